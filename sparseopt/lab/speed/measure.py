"""Dense torch against `so.accelerate` and `so.compile_inference`, on this machine, in turns within one process.

The dense network is torch's own, as it is written (eager); the sparse ones have the same layers and the masks of `so.sparsify`.
Times are medians of calls that take turns, so that whatever else the machine does strikes all of them alike. On one thread they
are CPU times: on a busy machine a long call is interrupted and a short one is not, which no turns make good.
"""

import copy
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.kernels import BuildError, Unsupported
from sparseopt.lab.models import CifarResNet, mlp

DENSE, ACCELERATED, ENGINE = "dense", "accelerate", "compile_inference"
TRAIN_BATCH = 64
CLASSES = 100
FEWEST = 3  # rounds, however long one takes


@dataclass(frozen=True)
class TimedNetwork:
    """A network to be timed: its name, how it is made, and the shape of one sample."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


RESNET = TimedNetwork("ResNet-20 on 32 x 32 pixels", lambda: CifarResNet(20, CLASSES), (3, 32, 32))
MLP = TimedNetwork("MLP 3 x 1024", lambda: mlp((1024,), CLASSES, (1024, 1024, 1024)), (1024,))


@dataclass(frozen=True)
class TimedTask:
    """What was timed: milliseconds by how it ran."""

    name: str
    ms: dict[str, float]

    def ratio(self, kind: str) -> float:
        """How many times as fast as dense."""
        return self.ms[DENSE] / self.ms[kind]

    @property
    def best(self) -> str:
        """The fastest way besides the dense one; the dense one where there is no other."""
        others = [kind for kind in self.ms if kind != DENSE]
        return min(others, key=self.ms.__getitem__) if others else DENSE


@dataclass(frozen=True)
class Speed:
    """One network at one sparsity."""

    network: str
    sparsity: float
    threads: int
    tasks: list[TimedTask]
    dense_bytes: int
    packed_bytes: int
    why_not: str | None = None
    """Why no kernels run here; None where they do."""


def measure(network: TimedNetwork, sparsity: float, seconds: float, threads: int = 1) -> Speed:
    """Time a training step, one sample and a batch, for about so many seconds altogether."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measured(network, sparsity, seconds)
    finally:
        torch.set_num_threads(before)


def _measured(network: TimedNetwork, sparsity: float, seconds: float) -> Speed:
    torch.manual_seed(0)
    dense = network.build()
    model = copy.deepcopy(dense)
    topology = so.sparsify(model, sparsity, storage="packed")  # as `sparseopt train --accelerate on` keeps it
    one, many = torch.randn(1, *network.shape), torch.randn(TRAIN_BATCH, *network.shape)
    with _quiet_log():
        why_not = unavailable()
        if why_not is None:
            engine = so.compile_inference(model, topology)
            so.accelerate(model, topology, break_even=0.0)
        else:
            engine, model = None, None
        tasks = [
            _training(dense, model, topology, many, seconds / 3),
            _inference("one image", dense, model, engine, one, seconds / 3),
            _inference(f"{TRAIN_BATCH} images", dense, model, engine, many, seconds / 3),
        ]
    sizes = _bytes(network, sparsity)
    return Speed(network.name, sparsity, torch.get_num_threads(), tasks, *sizes, why_not)


def unavailable() -> str | None:
    """Why the sparse kernels do not run on this machine; None if they do. Compiles them where nobody has."""
    try:
        probe = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        so.compile_inference(probe, so.sparsify(probe, 0.5))(torch.zeros(1, 3, 8, 8))
    except (
        BuildError,
        Unsupported,
        ValueError,
    ) as error:  # ValueError: SPARSEOPT_KERNELS names none that there are
        return str(error).splitlines()[0]
    return None


def _training(
    dense: nn.Module, model: nn.Module | None, topology: so.Topology, x: Tensor, seconds: float
) -> TimedTask:
    y = torch.arange(len(x)) % CLASSES
    steps = {DENSE: _step(dense, torch.optim.SGD(dense.parameters(), lr=0.0), x, y)}
    if model is not None:
        sgd = torch.optim.SGD(model.parameters(), lr=0.0)
        steps[ACCELERATED] = _step(model, so.SparseOpt(sgd, topology, so.Static()), x, y)
    return TimedTask(f"train, batch {len(x)}", interleaved(steps, seconds))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def _inference(
    name: str,
    dense: nn.Module,
    model: nn.Module | None,
    engine: so.kernels.Engine | None,
    x: Tensor,
    seconds: float,
) -> TimedTask:
    passes: dict[str, Callable[[], object]] = {DENSE: lambda: dense(x)}
    dense.eval()
    if model is not None and engine is not None:
        model.eval()
        passes |= {ACCELERATED: lambda: model(x), ENGINE: lambda: engine(x)}
    with torch.no_grad():
        return TimedTask(name, interleaved(passes, seconds))


def interleaved(candidates: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median milliseconds of each, called in turns for about so many seconds; of CPU time where there is one thread."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for candidate in candidates.values():
        candidate()  # what is built or allocated at the first call is not what is measured
        candidate()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[DENSE]) < FEWEST:
        for name, candidate in candidates.items():
            start = clock()
            candidate()
            times[name].append((clock() - start) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def _bytes(network: TimedNetwork, sparsity: float) -> tuple[int, int]:
    """The network on disk: dense, and as `so.kernels.save` packs it."""
    model = network.build()
    dense = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "packed.safetensors"
        so.kernels.save(model, so.sparsify(model, sparsity), path)
        return dense, path.stat().st_size


@contextmanager
def _quiet_log() -> Iterator[None]:
    """What runs where is told in the result."""
    logger = logging.getLogger(so.kernels.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
