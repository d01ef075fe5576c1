"""What a step of the ImageNet recipe is made of: time, bytes sent between the ranks, bytes held by each of them.

    python benchmarks/scaling.py

- composition: CPU seconds of forward, backward, optimizer and an update of the masks, ResNet-50 at 224 x 224 pixels, one thread.
  Medians over the rounds; SGD and SparseOpt each step on the same gradients.
- communication: what data parallelism sends of the gradients a step in dense storage, and in packed storage, where active weights
  alone travel; reckoned here, and then counted on two ranks (`ddp_traffic.py`).
- memory: weights, gradients, momentum and what the wrapper adds, counted over the tensors that exist; activations, counted over
  the tensors that autograd keeps for the backward pass.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from ddp_traffic import compare
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.lab.models import ResNet50

SIDE, CLASSES = 224, 1000
STEPS, EVERY, UNTIL = 90 * (1_281_167 // 1024), 100, 0.75
MEGA = 1e6

Result = TypeVar("Result")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds of a piece of work, and what it returned."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def composition(model: nn.Module, optimizer: so.SparseOpt, batch: int, rounds: int) -> None:
    x, y = torch.randn(batch, 3, SIDE, SIDE), torch.randint(0, CLASSES, (batch,))
    plain = sgd(model)
    times: dict[str, list[float]] = {name: [] for name in ("forward", "backward", "SGD", "SparseOpt")}
    for _ in range(rounds + 1):  # the first one warms up
        optimizer.zero_grad()
        forward, loss = timed(lambda: cross_entropy(model(x), y))
        spent = (forward, timed(loss.backward)[0], timed(plain.step)[0], timed(optimizer.step)[0])
        for values, value in zip(times.values(), spent, strict=True):
            values.append(value)
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    dense = median["forward"] + median["backward"] + median["SGD"]
    print(f"composition of a step, batch {batch}, one thread")
    for name, value in median.items():
        print(f"  {name:<28} {value:8.3f} s  {value / dense:7.2%} of a dense step")
    update = statistics.median(updates(optimizer, rounds))
    print(
        f"  {'update of the masks':<28} {update:8.3f} s  {update / EVERY / dense:7.2%} of a dense step, every {EVERY}"
    )


def updates(optimizer: so.SparseOpt, rounds: int) -> Iterable[float]:
    """CPU seconds of updates by the gradients that are there."""
    method = so.RigL(total_steps=STEPS, every=1)
    usual, optimizer.method = optimizer.method, method
    times = [timed(optimizer.step)[0] for _ in range(rounds)]
    optimizer.method = usual
    return times


def communication(model: nn.Module, topology: so.Topology) -> None:
    everything = sum(parameter.numel() for parameter in model.parameters())
    active = everything - topology.size() + topology.active()
    method = so.RigL(total_steps=STEPS, every=EVERY, until=UNTIL)
    dense_steps = sum(method.needs_dense_grad(step) for step in range(1, STEPS + 1)) / STEPS
    average = dense_steps * everything + (1 - dense_steps) * active
    print("gradients a rank contributes to a step, in float32")
    print(f"  all of them: dense storage   {4 * everything / MEGA:8.1f} MB")
    print(f"  active ones: packed storage  {4 * active / MEGA:8.1f} MB")
    print(f"  with RigL's dense steps      {4 * average / MEGA:8.1f} MB  {average / everything:.3f}x")


def memory(model: nn.Module, optimizer: so.SparseOpt) -> None:
    topology = optimizer.topology
    parameters = list(model.parameters())
    weights = nbytes(parameters)
    gradients = nbytes(parameter.grad for parameter in parameters if parameter.grad is not None)
    momentum = nbytes(
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    )
    records = [each.ever for each in topology.storage.values()]
    wrapper = nbytes([*topology.masks.values(), *records, *optimizer.factors.values()])
    print("memory of a rank, in float32")
    for name, value in {
        "weights": weights,
        "gradients": gradients,
        "momentum": momentum,
        "masks, factors": wrapper,
    }.items():
        print(f"  {name:<28} {value / MEGA:8.1f} MB")
    state = weights + gradients + momentum + wrapper
    for ranks in (1, 8, 64):
        print(
            f"  {f'together, FSDP2 on {ranks}' if ranks > 1 else 'together, DDP':<28} {state / ranks / MEGA:8.1f} MB"
        )
    print(f"  {'activations an image':<28} {activations(model) / MEGA:8.1f} MB")


def nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def activations(model: nn.Module, batch: int = 2) -> float:
    """Bytes an image that autograd keeps for the backward pass, each memory once, parameters left out."""
    kept: dict[int, Tensor] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        cross_entropy(model(torch.randn(batch, 3, SIDE, SIDE)), torch.zeros(batch, dtype=torch.long))
    return sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own) / batch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8, help="images a step")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps")
    parser.add_argument("--sparsity", type=float, default=0.9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ResNet50(CLASSES)
    topology = so.sparsify(model, options.sparsity)
    method = so.RigL(total_steps=STEPS, every=STEPS)
    optimizer = so.SparseOpt(sgd(model), topology, method)
    composition(model, optimizer, options.batch, options.rounds)
    communication(model, topology)
    compare(options.sparsity)
    memory(model, optimizer)


if __name__ == "__main__":
    main()
