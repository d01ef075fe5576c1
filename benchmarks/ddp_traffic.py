"""What data parallelism sends in a step: bytes counted on two ranks, dense and packed storage, ResNet-50.

    python benchmarks/ddp_traffic.py

All reductions are counted where they are handed over: the buckets of DDP, through a communication hook, and the dense gradient,
which packed storage averages at RigL's updates alone. Beside them stand the buffers of batch norm, which rank 0 sends. A ring
all-reduce over N ranks moves 2 (N - 1) / N times the bytes that a rank gives: on two ranks, these bytes. The images are small,
which changes no gradient's size.
"""

import argparse
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import sparseopt as so
from sparseopt.lab.models import ResNet50

MEGA = 1e6


class Count:
    """Bytes that this rank gives."""

    def __init__(self) -> None:
        self.bytes = 0
        self._reduce = dist.all_reduce

    def bucket(self, group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # pyright: ignore
        return allreduce_hook(group, bucket)  # which calls what is counted below

    def all_reduce(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.bytes += tensor.nbytes
        return self._reduce(tensor, *args, **kwargs)

    def taken(self) -> int:
        found, self.bytes = self.bytes, 0
        return found


def on_rank(rank: int, port: int, sparsity: float, storage: str, method: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ResNet50(1000)
    topology = so.sparsify(model, sparsity, storage=storage)  # pyright: ignore[reportArgumentType]
    kind = {"set": so.SET, "rigl": so.RigL}[method]
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, kind(total_steps=1000, every=3))
    parallel, count = DistributedDataParallel(model), Count()
    parallel.register_comm_hook(dist.group.WORLD, count.bucket)
    dist.all_reduce = count.all_reduce
    buffers = sum(each.nbytes for each in model.buffers())
    steps = []
    for _ in range(3):
        count.taken()
        optimizer.zero_grad()
        loss = cross_entropy(parallel(torch.randn(2, 3, 64, 64)), torch.randint(0, 1000, (2,)))
        loss.backward()
        optimizer.step()
        steps.append(count.taken())
    if rank == 0:
        everything = sum(each.numel() for each in model.parameters())
        packed = storage == "packed"
        needed = 4 * (everything if packed else everything - topology.size() + topology.active())
        print(
            f"{storage:<8} {method:<6} {steps[1] / MEGA:10.2f} {steps[2] / MEGA:12.2f} {buffers / MEGA:9.2f} "
            f"{(steps[1] + buffers) / needed:10.3f}",
            flush=True,
        )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sparsity", type=float, default=0.95)
    compare(parser.parse_args().sparsity)


def compare(sparsity: float) -> None:
    print(f"MB a rank gives in a step, ResNet-50, {sparsity:.0%} zeros, float32, two ranks")
    print(
        f"{'storage':<8} {'method':<6} {'ordinary':>10} {'at an update':>12} {'buffers':>9} {'of needed':>10}",
        flush=True,
    )
    for storage, method in (("packed", "set"), ("packed", "rigl"), ("dense", "rigl")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(on_rank, (port, sparsity, storage, method), nprocs=2)  # pyright: ignore
    print("needed: 4 bytes for every active weight and every other parameter")


if __name__ == "__main__":
    main()
