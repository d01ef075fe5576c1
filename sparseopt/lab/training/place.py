"""Where training happens: folders, device, threads. None of it changes what is trained."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from sparseopt.lab.errors import UserError
from sparseopt.lab.system.ranks import local_rank
from sparseopt.lab.training.acceleration import Accelerate, Storage
from sparseopt.lab.training.trackers import Tracker


@dataclass(frozen=True)
class Place:
    """What a machine brings to a run."""

    data_dir: Path | None = None
    """Folder with the data sets' official files; None: $SPARSEOPT_DATA, else the cache."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads; None: as many as there are cores."""
    accelerate: Accelerate = "off"
    """Train sparse layers on sparse CPU kernels, which round in another order: always, never, or (auto) where they are faster,
    which is measured before the first step; bfloat16: always, and activations are kept in half the memory."""
    weight_storage: Storage | None = None
    """Keep weights as dense tensors with zeros, or packed, as their active values alone (docs/storage.md). None: packed with
    --accelerate on where the method allows it, else dense; a run that goes on keeps the storage it began with."""
    tracker: tuple[Tracker, ...] = ("tensorboard",)
    """Where the curves go besides the run's folder, one or several; --tracker alone: nowhere. mlflow and wandb are extras."""
    checkpoint_seconds: float = 30.0
    """Longest time between two checkpoints within an epoch."""

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UserError(f"--threads must be at least 1, got {self.threads}")


def settle(place: Place) -> torch.device:
    """Settle, for this process, what the bits depend on: device, threads, deterministic algorithms."""
    if place.threads is not None:
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
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch goes on with every backend there is
        raise UserError(
            f"--device {place.device} cannot be used here ({reason}); try --device cpu"
        ) from error
    return device
