"""Every row is tuned alike, on one seed, and compared at its own best."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparseopt.lab.commands.reproduce import main
from sparseopt.lab.errors import UserError
from sparseopt.lab.reproduce import tuning as module
from sparseopt.lab.reproduce.grid import Arm, Grid, GridRow
from sparseopt.lab.reproduce.layout import Best
from sparseopt.lab.reproduce.outcomes import experiment
from sparseopt.lab.reproduce.scale import Candidate, sentence
from sparseopt.lab.reproduce.tables import tuning_table
from sparseopt.lab.reproduce.targets import TARGETS, Target
from sparseopt.lab.reproduce.tuning import RowSearch, Tuning, tuning
from sparseopt.lab.runs.catalogue import Run

pytestmark = pytest.mark.slow

AtScale = Callable[..., Grid]
RATES = (("lr", 0.1), ("lr", 0.2), ("lr", 0.4))
ROW = GridRow(0.97, "set", Arm("layer"))


def rates(**tried: float | None) -> dict[Candidate, float | None]:
    return {
        (("lr", float(name.removeprefix("lr").replace("_", "."))),): value for name, value in tried.items()
    }


@pytest.fixture
def grid(at_scale: AtScale) -> Grid:
    return at_scale(
        TARGETS["table-cifar100-set"], epochs=(10,), sparsities=(0.97,), ham=False, seeds=2, tune=RATES
    )


@pytest.fixture
def trained(
    monkeypatch: pytest.MonkeyPatch, grid: Grid
) -> Callable[[Callable[[float], float | None]], Tuning]:
    """The tuning where a run has an accuracy that its learning rate decides; None: it is not there."""

    def make(percent: Callable[[float], float | None]) -> Tuning:
        found = {}
        for row in grid.rows:
            for power in range(-8, 9):
                config = grid.config(row, 10, 0, (("lr", float(f"{0.1 * 2.0**power:.6g}")),))
                if (value := percent(config.lr)) is not None:
                    rows = [{"epoch": epoch, "test_accuracy": value / 100} for epoch in range(1, 11)]
                    state = "diverged" if value == -math.inf else "finished"
                    found[experiment(config)] = Run(Path(config.run_name), config, rows, state)
        monkeypatch.setattr(module, "find", lambda folder: found)
        return tuning(grid, Path("runs"))

    return make


def test_a_best_inside_ends_the_search(trained: Callable[..., Tuning]) -> None:
    search = trained(lambda lr: 30 - abs(lr - 0.2))
    assert search.complete
    assert set(search.chosen.values()) == {(("lr", 0.2),)}
    assert len(search.configs()) == 2 * 3
    assert {config.seed for config in search.configs()} == {0}
    assert [config.lr for config in search.configs()] == [0.1, 0.1, 0.2, 0.2, 0.4, 0.4]
    grid = search.tuned_grid()
    assert {grid.config(row, 10, seed).lr for row in grid.rows for seed in range(2)} == {0.2}


@pytest.mark.parametrize(
    ("best", "tried"), [(0.8, [0.1, 0.2, 0.4, 0.8, 1.6]), (0.05, [0.025, 0.05, 0.1, 0.2, 0.4])]
)
def test_a_best_at_the_edge_is_followed_outwards(
    trained: Callable[..., Tuning], best: float, tried: list[float]
) -> None:
    search = trained(lambda lr: 30 - abs(math.log(lr / best)))
    first = next(iter(search.searches.values()))
    assert sorted(dict(candidate)["lr"] for candidate in first.tried) == pytest.approx(tried)
    assert dict(first.best or ())["lr"] == pytest.approx(best)
    assert not first.edges


def test_it_goes_out_only_so_far_and_says_so(trained: Callable[..., Tuning]) -> None:
    search = trained(lambda lr: 30 + lr)
    first = next(iter(search.searches.values()))
    assert len(first.tried) == 3 + 2
    assert first.edges == ["largest lr"]
    assert tuning_table(search).rows[0][-1].startswith("lr 1.6 (")


def test_a_rate_that_diverges_is_out(trained: Callable[..., Tuning]) -> None:
    search = trained(lambda lr: -math.inf if lr > 0.2 else 30 + lr)
    assert set(search.chosen.values()) == {(("lr", 0.2),)}
    row = tuning_table(search).rows[0]
    assert row[4:] == ("30.10", Best("30.20"), "diverged", "lr 0.2")
    assert isinstance(row[5], Best)


def test_what_is_missing_is_waited_for(trained: Callable[..., Tuning]) -> None:
    search = trained(lambda lr: None if lr == 0.2 else 30 - lr)
    assert not search.complete
    assert (search.done, len(search.configs())) == (4, 6)  # nothing further out before
    assert not search.chosen  # a row is not compared at what was best so far
    table = tuning_table(search)
    assert table.rows[0][-1] == "lr 0.1 so far"
    assert any("2 of 6 runs are missing" in note for note in table.notes)


def test_several_settings_are_tried_in_all_combinations(at_scale: AtScale) -> None:
    tune = (("lr", 0.1), ("lr", 0.2), ("every", 100), ("every", 200))
    grid = at_scale(TARGETS["table-cifar100-set"], tune=tune)
    assert grid.scale.candidates == [
        (("lr", rate), ("every", every)) for rate in (0.1, 0.2) for every in (100, 200)
    ]
    config = grid.config(ROW, 100, 0, (("lr", 0.2), ("every", 200)))
    assert (config.lr, config.every) == (0.2, 200)


def test_nothing_is_in_proportion_to_0() -> None:
    for of_0, other in ((30.0, 40.0), (40.0, 30.0)):
        tried: dict[Candidate, float | None] = {
            (("drop_fraction", 0.0),): of_0,
            (("drop_fraction", 0.3),): other,
        }
        assert RowSearch(ROW, 10, tried).further() is None


def test_further_out_keeps_the_other_settings() -> None:
    tried = {
        (("lr", 0.1), ("every", 100)): 30.0,
        (("lr", 0.2), ("every", 100)): 31.0,
        (("lr", 0.1), ("every", 200)): 29.0,
        (("lr", 0.2), ("every", 200)): 30.0,
    }
    search = RowSearch(ROW, 10, tried)  # pyright: ignore[reportArgumentType]
    assert search.further() == (("lr", 0.4), ("every", 100))
    assert search.edges == ["largest lr", "smallest every"]


def test_tuned_at_another_length(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Grid(grid.target, replace(grid.scale, epochs=(100,), tune_epochs=10))
    monkeypatch.setattr(module, "find", lambda *folders: {})
    search = tuning(short, Path("runs"))
    assert {config.epochs for config in search.configs()} == {10}
    done = Tuning(
        short,
        {key: replace(each, tried=rates(lr0_1=1.0, lr0_2=2.0)) for key, each in search.searches.items()},
        {},
    )
    assert set(done.chosen) == {(row, 100) for row in short.rows}
    assert "(seed 0 at 10 epochs)" in sentence(short.target, short.scale)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tune", "momentum=0.9"], "--tune takes NAME=VALUE"),
        (["--tune", "lr"], "--tune takes NAME=VALUE"),
        (["--tune", "lr=fast"], "--tune lr must have numbers"),
        (["--tune", "lr=0.1,0.2", "--lr-controls", "2"], "--lr-controls must be empty"),
        (["--tune", "lr=0.1", "--tune-epochs", "0"], "--tune-epochs must be at least 1"),
        (["--corrections", "none,none+decay"], "none\\+decay says nothing"),
        (["--corrections", "none,layer+decay", "--ham"], "does not go with HAM"),
    ],
)
def test_what_cannot_be_is_named(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:

    assert main(["table-cifar100-set", *argv, "--tabulate-only"]) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_renormalised_tables_may_be_tuned_instead_of_controlled(at_scale: AtScale) -> None:
    target = TARGETS["table-cifar100-set-renorm"]
    assert at_scale(target, lr_controls=(), tune=RATES).arms
    with pytest.raises(UserError, match="--lr-controls must name"):
        at_scale(target, lr_controls=(), tune=(("every", 100),))


@pytest.fixture
def known(digits: Target) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TARGETS, digits.name, digits)
        yield


@pytest.mark.usefixtures("known")
def test_the_command_tunes_trains_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["table-digits", "--out", str(tmp_path), "--threads", "1", "--epochs", "1", "--seeds", "2"]
    argv += ["--corrections", "none,overall+decay", "--tune", "lr=0.05,0.2", "--tune-further", "1"]
    assert main([*argv, "--dry-run"]) == 0
    assert "4 runs, 0 done" in " ".join(capsys.readouterr().out.split())
    assert main(argv) == 0
    results = json.loads((tmp_path / "table-digits" / "results.json").read_text())
    for cell in results["cells"]:
        assert cell["tuned"] == f"lr {cell['lr']:g}"
        assert cell["seeds"] == 2
    assert [cell["correct_decay"] for cell in results["cells"]] == [1, 0]
    text = (tmp_path / "table-digits" / "results.md").read_text()
    assert "## Tuning" in text
    assert "SparseOpt (overall), decay too" in text
    assert "## Power" in text
    tried = len(list((tmp_path / "runs").iterdir()))
    assert tried == len({*results["runs"]} | {path.name for path in (tmp_path / "runs").glob("*-seed0-*")})
    assert main([*argv, "--tabulate-only"]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == tried
