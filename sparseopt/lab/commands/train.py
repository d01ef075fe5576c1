"""`sparseopt train`: train a recipe of the paper, watch it, stop it, go on with it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console

from sparseopt.lab.acceleration import Accelerate
from sparseopt.lab.cli import INTERRUPTED, UserError, parse, report
from sparseopt.lab.configfile import read_config
from sparseopt.lab.progress import duration, progress
from sparseopt.lab.ranks import joined, local_rank
from sparseopt.lab.recipes import RECIPES, Config
from sparseopt.lab.train import Summary, train

PROG = "sparseopt train"
DEFAULT = "digits-mlp"


@dataclass(frozen=True)
class Place:
    """Where the run happens; none of this changes what is trained."""

    config: Path | None = None
    """Repeat a run: take the defaults of all settings from its config.json instead of from a recipe."""
    out: Path | None = None
    """Folder of the run; None: runs/NAME, with a name made from the settings."""
    data_dir: Path | None = None
    """Folder with the data sets' official files; None: $SPARSEOPT_DATA, else the cache."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads; None: as many as there are cores."""
    accelerate: Accelerate = "off"
    """Train sparse layers on sparse CPU kernels, which round in another order: always, never, or (auto) where they are faster,
    which is measured before the first step."""
    checkpoint_seconds: float = 30.0
    """Longest time between two checkpoints within an epoch."""


def main(argv: list[str]) -> int:
    """Train what the command line says."""
    return report(PROG, lambda: _main(argv), argv)


def _main(argv: list[str]) -> int | None:
    named = bool(argv) and not argv[0].startswith("-")
    file = _config_file(argv)
    if named and file:
        raise UserError(f"the recipe {argv[0]} and --config {file} both say what to train; give one of them")
    if file:
        return parse(PROG, _command(read_config(file), f"the settings of {file}"), argv)()
    recipe = argv[0] if named else DEFAULT
    if recipe not in RECIPES:
        raise UserError(f"unknown recipe {recipe!r}; the recipes are {', '.join(RECIPES)}")
    if not named and (late := _late_recipe(argv)):
        raise UserError(f"the recipe goes before the options: {PROG} {late} ...")
    command = _command(RECIPES[recipe], f"the ones of {recipe}")
    return parse(f"{PROG} {recipe}", command, argv[1:] if named else argv)()


def _late_recipe(argv: list[str]) -> str | None:
    """A recipe that stands after options, and is not the value of one."""
    return next(
        (word for before, word in pairwise(argv) if word in RECIPES and not before.startswith("--")), None
    )


def _config_file(argv: list[str]) -> Path | None:
    """The value of --config, which decides the defaults of all other options and so is needed before them."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word == "--config" and following:
            return Path(following)
        if word.startswith("--config="):
            return Path(word.partition("=")[2])
    return None


def _command(defaults: Config, whose: str) -> Callable[..., None]:
    def command(settings: Config = defaults, place: Place = Place()) -> None:  # noqa: B008 - immutable
        out = place.out or Path("runs") / settings.run_name
        device = _prepare(place)
        with joined(device) as ranks:
            console = Console(quiet=not ranks.first)
            where = f"{device}" if ranks.size == 1 else f"{ranks.size} ranks"
            console.print(f"{settings.run_name} on {where} -> {out}", highlight=False, soft_wrap=True)
            try:
                summary = train(
                    *(settings, out),
                    data_dir=place.data_dir,
                    device=device,
                    observers=[progress(console)],
                    checkpoint_seconds=place.checkpoint_seconds,
                    ranks=ranks,
                    accelerate=place.accelerate,
                )
            except KeyboardInterrupt:
                raise UserError(
                    "interrupted; the same command goes on from the last checkpoint", INTERRUPTED
                ) from None
            if ranks.first:
                print(_result(summary, out))

    command.__doc__ = (
        "Train a network; the same command goes on with a run that was stopped or killed. "
        f"`{PROG} RECIPE` with RECIPE one of {', '.join(RECIPES)} ({DEFAULT} if none is named) "
        f"chooses the defaults; those shown here are {whose}."
    )
    return command


def _prepare(place: Place) -> torch.device:
    """Settle what the bits depend on: device, threads, deterministic algorithms."""
    if place.threads is not None:
        if place.threads < 1:
            raise UserError(f"--threads must be at least 1, got {place.threads}")
        torch.set_num_threads(place.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS is not deterministic
    torch.use_deterministic_algorithms(True)
    # Filling new memory costs time, and nothing here reads memory that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(automatic if place.device == "auto" else place.device)
        if device.type == "cuda" and device.index is None and (number := local_rank()) is not None:
            device = torch.device("cuda", number)
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--device {place.device} cannot be used here ({reason}); try --device cpu"
        ) from error
    return device


def _result(summary: Summary, out: Path) -> str:
    result = summary.result
    before = "was complete already: " if summary.experiment is None else ""
    return (
        f"{before}test accuracy {result['test_accuracy']:.2%} (best {result['best_test_accuracy']:.2%}), "
        f"{result['active_weights']:,} of {result['weights']:,} weights active, ITOP {result['itop_rate']:.1%}, "
        f"{duration(result['seconds'])}; see {out}"
    )
