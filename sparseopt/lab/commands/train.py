"""`sparseopt train`: train a recipe of the paper, watch it, stop it, go on with it."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sparseopt.lab.cli.command import report
from sparseopt.lab.cli.recipe import Command, call
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import INTERRUPTED, UserError
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.show.terminal import Unheard
from sparseopt.lab.show.words import duration
from sparseopt.lab.system.files import read_json
from sparseopt.lab.system.ranks import joined
from sparseopt.lab.training.acceleration import Storage
from sparseopt.lab.training.place import Place, settle
from sparseopt.lab.training.progress import progress
from sparseopt.lab.training.train import Summary, train

PROG = "sparseopt train"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainOptions(Place):
    """Where the run happens: what is trained stays the same but for rounding, which --accelerate bfloat16 makes coarse."""

    config: Path | None = None
    """Repeat a run: take the defaults of all settings from its config.json instead of from a recipe."""
    out: Path | None = None
    """Folder of the run; None: runs/NAME, with a name made from the settings."""
    weight_storage: Annotated[Storage | None, tyro.conf.arg(aliases=["--storage"])] = None
    """Keep weights as dense tensors with zeros, or packed, as their active values alone (docs/storage.md). None: packed with
    --accelerate on where the method allows it, else dense; a run that goes on keeps the storage it began with. (Elsewhere
    --storage is a sweep's database, and this option has its long name alone.)"""


def main(argv: list[str]) -> int:
    """Train what the command line says."""
    return report(PROG, lambda: call(PROG, argv, _command))


def _command(defaults: Config) -> Command:
    def command(settings: Config = defaults, place: TrainOptions = TrainOptions()) -> None:  # noqa: B008 - immutable
        """Train a network; the same command goes on with a run that was stopped or killed."""
        out = place.out or Path("runs") / settings.run_name
        device = settle(place)
        with joined(device) as ranks:
            console = Unheard(quiet=not ranks.first)
            where = f"{device}" if ranks.size == 1 else f"{ranks.size} ranks"
            if ranks.first and settings.optimizer != defaults.optimizer and settings.lr == defaults.lr:
                told = f"--optimizer {settings.optimizer} trains at --lr {settings.lr:g}"
                log.warning("%s, the defaults' for %s: give a rate of its own", told, defaults.optimizer)
            console.print(f"on {where} -> {out}", highlight=False, markup=False, soft_wrap=True)
            try:
                summary = train(
                    *(settings, out),
                    data_dir=place.data_dir,
                    device=device,
                    observers=[progress(console)],
                    checkpoint_seconds=place.checkpoint_seconds,
                    ranks=ranks,
                    accelerate=place.accelerate,
                    storage=place.weight_storage,
                    tracker=place.tracker,
                )
            except KeyboardInterrupt:
                raise UserError(
                    "interrupted; the same command goes on from the last checkpoint", INTERRUPTED
                ) from None
            if ranks.first:
                print(_result(summary, out, place))

    return command


def _result(summary: Summary, out: Path, place: TrainOptions) -> str:
    result = summary.result
    before = _already(out, place) if summary.experiment is None else ""
    masked = "" if summary.config.method == "dense" else f" ({result['sparsity']:.1%} zeros in sparse layers)"
    return (
        f"{before}test accuracy {result['test_accuracy']:.2%} (best {result['best_test_accuracy']:.2%})\n"
        f"{result['active_weights']:,} of {result['weights']:,} weights active{masked}, "
        f"ITOP {result['itop_rate']:.1%}, {duration(result['seconds'])}\nthe run: {out}"
    )


def _already(out: Path, place: TrainOptions) -> str:
    """Of a run that was complete before: that it was, and how it was trained where this command asks for another way."""
    there = read_json(RunDir(out).config_file)
    asked = {"accelerate": place.accelerate, "storage": place.weight_storage}
    others = [
        f"--{name} {there[name]}"
        for name, value in asked.items()
        if value is not None and there.get(name, value) != value
    ]
    return f"was complete already{', trained with ' + ' '.join(others) if others else ''}: "
