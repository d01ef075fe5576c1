"""What sparse training costs on top of dense training, as ratios measured in one process.

    python benchmarks/overhead.py

- step: a SparseOpt + RigL step against the plain dense SGD step, ResNet-20, batch 16, one thread. Every round times one step
  of each, in random order; CPU time, so that other load on the machine matters little. Where in memory a network lies changes its
  speed, so all are built anew several times. Printed are the ratio of the medians and the median of the rounds' ratios, and both
  for a second dense network: how far these are from 1 is the error. The two optimizers' own steps are timed as well.
- update: one mask update, CPU milliseconds, ResNet-20 and beside it ResNet-50: the cost grows linearly with the weights.
- memory: bytes a weight beyond the dense optimizer's, between updates, counted over the tensors the wrapper holds.
- compile: recompilations of `torch.compile(model, fullgraph=True)` over many steps with mask updates.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.lab.models import CifarResNet, ResNet50

Step = Callable[[], object]


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def sparse(model: nn.Module, every: int) -> so.SparseOpt:
    topology = so.sparsify(model, 0.95)
    return so.SparseOpt(sgd(model), topology, so.RigL(total_steps=10**9, every=every), correction="layer")


def interleaved(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each step, one of each a round, in random order."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    for _ in range(rounds):
        for name in random.sample(list(steps), len(steps)):
            start = time.process_time()
            steps[name]()
            times[name].append(time.process_time() - start)
    return times


BUILDS = 5


def step_ratio(rounds: int, batch: int) -> None:
    torch.manual_seed(0)
    random.seed(0)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 100, (batch,))
    times: dict[str, list[float]] = {"dense": [], "dense again": [], "SparseOpt": []}
    steps: dict[str, Step] = {}
    for _ in range(BUILDS):
        networks = {name: CifarResNet(20, 100) for name in times}
        optimizers = {
            name: sgd(model) if name != "SparseOpt" else sparse(model, every=10**8)
            for name, model in networks.items()
        }
        whole = {name: training_step(networks[name], optimizers[name], x, y) for name in times}
        for name, found in interleaved(whole, rounds // BUILDS).items():
            times[name] += found
        steps = {name: optimizers[name].step for name in ("dense", "SparseOpt")}
    dense_ms, again_ms, ours_ms = medians_ms(times)
    ratio = median_ratio(times["SparseOpt"], times["dense"])
    print(f"ordinary step {ours_ms:.2f} ms against {dense_ms:.2f} ms dense")
    print(f"    by the medians {ours_ms / dense_ms:.4f}x, by the rounds {ratio:.4f}x")
    again = median_ratio(times["dense again"], times["dense"])
    print(f"    dense against dense: {again_ms / dense_ms:.4f}x and {again:.4f}x")
    every, update_ms = 100, statistics.median(update_times(CifarResNet(20, 100), 9)) * 1e3
    amortised = ((every - 1) * ratio + 1 + update_ms / dense_ms) / every
    print(f"with an update every {every} steps (RigL's default): {amortised:.4f}x")
    plain_ms, wrapped_ms = medians_ms(interleaved(steps, 5 * rounds))
    share = (wrapped_ms - plain_ms) / dense_ms
    print(
        f"optimizer.step alone {wrapped_ms:.2f} ms against {plain_ms:.2f} ms: {share:.2%} of the dense step"
    )


def median_ratio(ours: list[float], dense: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, dense, strict=True))


def medians_ms(times: dict[str, list[float]]) -> list[float]:
    return [statistics.median(values) * 1e3 for values in times.values()]


def update_times(model: nn.Module, repeats: int) -> Iterable[float]:
    """CPU seconds of steps that update the masks, without the forward and backward pass."""
    optimizer = sparse(model, every=1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for _ in range(repeats):
        start = time.process_time()
        optimizer.step()
        yield time.process_time() - start


def update_cost() -> None:
    for name, model in (("ResNet-20", CifarResNet(20, 100)), ("ResNet-50", ResNet50())):
        weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
        median = statistics.median(update_times(model, 9 if weights < 10**6 else 3))
        print(
            f"mask update of {name} ({weights:,} weights): {median * 1e3:.1f} ms, {median / weights * 1e9:.1f} ns a weight"
        )


def memory() -> None:
    model = CifarResNet(20, 100)
    optimizer = sparse(model, every=10**8)
    topology = optimizer.topology
    records = [each.ever for each in topology.storage.values()]
    held = [*topology.masks.values(), *records, *optimizer.factors.values()]
    extra = sum(tensor.numel() * tensor.element_size() for tensor in held)
    print(f"extra memory: {extra / topology.size():.3f} bytes a weight")


def recompilations(steps: int) -> None:
    model = CifarResNet(20, 100)
    optimizer = sparse(model, every=10)
    x, y = torch.randn(2, 3, 32, 32), torch.randint(0, 100, (2,))
    step = training_step(torch.compile(model, fullgraph=True), optimizer, x, y)  # pyright: ignore[reportArgumentType]
    step()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for _ in range(steps):
        step()
    after = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    print(f"recompilations in {steps} steps with {steps // 10} mask updates: {after - before}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200, help="timed steps of each kind")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--compiled-steps", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    step_ratio(options.rounds, options.batch)
    update_cost()
    memory()
    recompilations(options.compiled_steps)


if __name__ == "__main__":
    main()
