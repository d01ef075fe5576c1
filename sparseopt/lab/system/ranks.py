"""One run on several ranks: the same command under torchrun, each rank with its share of every batch.

    torchrun --nproc-per-node 2 -m sparseopt train cifar100-resnet20

The first rank writes the run directory; all of them hold the same network and the same masks, and read the same checkpoint.
Alone, everything here does nothing.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparseopt.lab.errors import UserError


@dataclass(frozen=True)
class Ranks:
    """Which of how many ranks this process is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, images: range) -> slice:
        """This rank's part of a batch, whose size the number of ranks divides."""
        part = len(images) // self.size
        return slice(images.start + self.rank * part, images.start + (self.rank + 1) * part)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def copy_first_(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank what the first one has."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def first_does(self, action: Callable[[], Any]) -> Any:
        """Let the first rank act; all of them return what it returned, or raise the user's error it met."""
        if self.size == 1:
            return action()
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = action()
            except UserError as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


ALONE = Ranks()


def local_rank() -> int | None:
    """This process's number on its machine, if torchrun started it."""
    launched = dist.is_available() and dist.is_torchelastic_launched()
    return int(os.environ["LOCAL_RANK"]) if launched else None


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the other ranks for the length of the block, if torchrun started this process."""
    if local_rank() is None:
        yield ALONE
        return
    from torch.distributed import PrefixStore, rendezvous  # pyright: ignore[reportPrivateImportUsage]

    store, rank, size = next(rendezvous("env://"))
    # Ranks that torchrun has restarted may meet in the store of those that died, and must not find their addresses there.
    attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size)
    try:
        yield Ranks(rank, size)
    finally:
        # Gloo's threads need the interpreter's lock to let go of the last tensors, and whoever takes the group down holds
        # that lock while it waits for them (a deadlock in torch). Asleep, this thread leaves them the lock.
        time.sleep(0.2)
        dist.destroy_process_group()
