"""What the wrapper costs under DistributedDataParallel: two ranks here, dense SGD against SparseOpt + RigL, in turn.

    python benchmarks/ddp_overhead.py

Both networks live in the same two processes; each round takes one step of each, the order alternating, and the ratio is of the
medians over the rounds, averaged over the ranks. CPU time of the whole process, communication threads included. An update
of the masks falls on every `--every`-th SparseOpt step, its comparison of digests between the ranks included.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import sparseopt as so
from sparseopt.lab.models import CifarResNet


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def rank_main(rank: int, world: int, folder: str, options: argparse.Namespace) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    torch.manual_seed(0)
    dense, sparse = CifarResNet(20, 100), CifarResNet(20, 100)
    method = so.RigL(total_steps=10**9, every=options.every)
    optimizers = {
        "dense": (DistributedDataParallel(dense), sgd(dense)),
        "sparse": (
            DistributedDataParallel(sparse),
            so.SparseOpt(sgd(sparse), so.sparsify(sparse, 0.95), method),
        ),
    }
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 100, (options.batch,))
    times: dict[str, list[float]] = {"dense": [], "sparse": []}
    for round_ in range(options.rounds + 3):
        for name in sorted(optimizers, reverse=bool(round_ % 2)):
            model, optimizer = optimizers[name]
            dist.barrier()
            start = time.process_time()
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            if round_ >= 3:
                times[name].append(time.process_time() - start)
    torch.save(
        {name: (statistics.median(v), statistics.mean(v)) for name, v in times.items()}, f"{folder}/{rank}.pt"
    )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100, help="timed steps of each kind")
    parser.add_argument("--batch", type=int, default=16, help="images a rank")
    parser.add_argument("--every", type=int, default=100, help="steps between two mask updates")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (2, folder, options), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
        ranks = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for index, what in enumerate(("median step", "mean step, updates included")):
        dense, sparse = (sum(rank[name][index] for rank in ranks) / 2 for name in ("dense", "sparse"))
        print(f"{what}: {sparse * 1e3:.2f} ms against {dense * 1e3:.2f} ms dense: {sparse / dense:.4f}x")


if __name__ == "__main__":
    main()
