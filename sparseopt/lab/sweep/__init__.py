"""Many runs as one piece of work: every one of them trained once, by however many workers on however many machines."""

from collections.abc import Sequence
from pathlib import Path

from sparseopt.lab.place import Place, settle
from sparseopt.lab.recipes import Config
from sparseopt.lab.runs import Run
from sparseopt.lab.train import train

__all__ = ["run_configs"]


def run_configs(
    configs: Sequence[Config],
    folder: Path,
    *,
    name: str,
    workers: int = 1,
    storage: str | None = None,
    place: Place,
) -> list[Run]:
    """Train every configuration in `folder / "runs" / config.run_name`; the runs in the order of the configurations.

    The work is kept in an Optuna study called `name`, in `folder / "study.db"` or in the database `storage`. What is half
    done goes on from its checkpoint, and a run whose folder is complete counts as done, whoever trained it. `workers`
    processes share the work here, and with whoever calls this on the same study elsewhere. Runs that diverge are logged
    and returned like the others: `Run.state` tells. UserError if a run cannot be trained, KeyboardInterrupt's exit code
    130 if somebody asked to stop: the same call goes on.
    """
    device = settle(place)
    for config in configs:
        train(
            *(config, folder / "runs" / config.run_name),
            data_dir=place.data_dir,
            device=device,
            checkpoint_seconds=place.checkpoint_seconds,
            accelerate=place.accelerate,
        )
    return [Run.read(folder / "runs" / config.run_name) for config in configs]
