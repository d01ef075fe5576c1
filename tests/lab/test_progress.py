import io
from collections.abc import Callable

from rich.console import Console

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.training.experiment import build
from sparseopt.lab.training.progress import LineProgress, LiveProgress, epoch_line, progress
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Trainer

Small = Callable[..., Config]


def shown(small: Small, *, terminal: bool, eager: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160, color_system=None)
    display = progress(console)
    assert isinstance(display, LiveProgress if terminal else LineProgress)
    if eager:
        display.interval = 0
    train(small(), observers=[display])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lines_for_what_is_no_terminal(small: Small) -> None:
    lines = shown(small, terminal=False).splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1"], ["epoch", "2"], ["epoch", "3"]]
    for part in ("train", "test", "%", "lr", "ITOP"):
        assert part in lines[0]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


def test_long_epochs_show_lines_in_between(small: Small) -> None:
    lines = [line for line in shown(small, terminal=False, eager=True).splitlines() if "images/s" in line]
    assert len(lines) == 30
    assert lines[3].startswith("epoch 1/3 step 4/30 loss ")
    assert lines[3].endswith(" left")


def test_the_longest_lines_fit_80_columns() -> None:
    numbers = {"train_loss": 12.3456, "train_accuracy": 0.99, "test_loss": 12.3456, "test_accuracy": 0.99}
    row = {"epoch": 500, **numbers, "lr": 9.87e-05, "itop_rate": 0.567, "seconds": 40000.0}
    assert len(epoch_line(row)) <= 80


def test_a_resumed_run_says_where_it_goes_on(small: Small) -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=160)
    trainer = Trainer(build(small()))
    trainer.run()
    state = trainer.state_dict() | {"epoch": 2, "rows": trainer.rows[:2]}
    resumed = Trainer(build(small()))
    resumed.load_state_dict(state)
    resumed.run([progress(console)])
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[0].endswith("step 20 of 30")


def test_a_bar_for_a_terminal(small: Small) -> None:
    text = shown(small, terminal=True, eager=True)
    for part in ("epoch 3/3", "100%", "images/s", "loss", "0:00"):
        assert part in text, part
