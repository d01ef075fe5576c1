"""How a run shows itself: a live bar in a terminal, plain lines anywhere else."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from sparseopt.lab.runs.row import Row
from sparseopt.lab.show.words import duration
from sparseopt.lab.training.metrics import train_metrics
from sparseopt.lab.training.trainer import Observer, Trainer

REFRESH_SECONDS = 0.25  # reading the numbers waits for the device, so they are not read at every step
LINE_SECONDS = 30.0


def progress(console: Console) -> Observer:
    """The right display for where the output goes."""
    return LiveProgress(console) if console.is_terminal else LineProgress(console)


class _Display(Observer):
    """What both displays know: the position, the current numbers, the speed, and when to show them again."""

    interval: float

    def __init__(self, console: Console) -> None:
        self.console = console

    def started(self, trainer: Trainer) -> None:
        self._first_step, self._since = trainer.step, time.monotonic()
        self._shown_at = self._since
        if trainer.step:
            self.tell(f"going on after step {trainer.step} of {trainer.total_steps}")

    def stepped(self, trainer: Trainer) -> None:
        now = time.monotonic()
        if now - self._shown_at >= self.interval:
            self._shown_at = now
            self.show(trainer)

    def tell(self, line: str) -> None:
        """Print a line that stays."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, trainer: Trainer) -> None:
        """Show the numbers of the current epoch so far."""

    def speed(self, trainer: Trainer) -> float:
        """Images a second since training began or went on."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        return (trainer.step - self._first_step) * trainer.experiment.config.batch_size / elapsed

    def position(self, trainer: Trainer) -> str:
        config = trainer.experiment.config
        return f"epoch {min(trainer.epoch + 1, config.epochs)}/{config.epochs}"

    def numbers(self, trainer: Trainer) -> str:
        config = trainer.experiment.config
        row = train_metrics(trainer.trace[:, : trainer.batch], config.batch_size, config.max_grad_norm)
        return f"loss {row['train_loss']:.3f} {row['train_accuracy']:.1%}"


class LiveProgress(_Display):
    """A bar with what changes, and above it one line for every epoch."""

    interval = REFRESH_SECONDS

    def started(self, trainer: Trainer) -> None:
        super().started(trainer)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("{task.fields[speed]}", style="progress.data.speed"),
            TimeRemainingColumn(compact=True),
            console=self.console,
        )
        self._bar.start()
        self._task: TaskID = self._bar.add_task(
            self.position(trainer), total=trainer.total_steps, completed=trainer.step, numbers="", speed=""
        )

    def show(self, trainer: Trainer) -> None:
        self._bar.update(
            self._task,
            completed=trainer.step,
            description=self.position(trainer),
            numbers=self.numbers(trainer),
            speed=f"{self.speed(trainer):,.0f} images/s",
        )

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        self._bar.update(self._task, completed=trainer.step, description=self.position(trainer))
        self.tell(epoch_line(row))

    def ended(self) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()


class LineProgress(_Display):
    """One line an epoch, and one every half minute of a long epoch."""

    interval = LINE_SECONDS

    def show(self, trainer: Trainer) -> None:
        speed = self.speed(trainer)
        left = (trainer.total_steps - trainer.step) * trainer.experiment.config.batch_size / max(speed, 1e-9)
        self.tell(
            f"{self.position(trainer)} step {trainer.step}/{trainer.total_steps} {self.numbers(trainer)} "
            f"{speed:,.0f} images/s {duration(left)} left"
        )

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        self._shown_at = time.monotonic()
        self.tell(epoch_line(row))


def epoch_line(row: Row) -> str:
    """The numbers of an epoch that one wants to see while waiting, in 80 columns: loss and accuracy of training and test."""
    return (
        f"epoch {row['epoch']}  train {row['train_loss']:.4g} {row['train_accuracy']:.1%}  "
        f"test {row['test_loss']:.4g} {row['test_accuracy']:.1%}  lr {row['lr']:.3g}  "
        f"ITOP {row['itop_rate']:.1%}  {duration(row['seconds'])}"
    )
