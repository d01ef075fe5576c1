"""Whole networks in the engines one would really pick, in turns: python benchmarks/kernels/engines.py --network resnet20

ONNX Runtime and OpenVINO come with `pip install -e '.[bench]'`. DeepSparse 1.8.0 has wheels up to Python 3.11 and needs numpy 1:
it lives in an environment of its own, and is talked to over a pipe:

    python3.11 -m venv ENV && ENV/bin/pip install deepsparse==1.8.0 'numpy<2'
    python benchmarks/kernels/engines.py --deepsparse ENV/bin/python

Engines that are not installed are left out. All are compared with torch before anything is timed.
"""

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from candidates import settled
from deepsparse_pipe import DeepSparse
from timing import CLOCKS, machine
from torch import Tensor, nn

import sparseopt as so
from sparseopt.lab.models import CifarResNet, ResNet50

Run = Callable[[], object]
Clock = Callable[[int], float]  # seconds that so many calls take

TOLERANCE = 1e-3  # of the largest output: engines may reorder sums


class Mlp(nn.Sequential):
    """Four layers of width 1024."""

    def __init__(self) -> None:
        layers = [layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        super().__init__(*layers, nn.Linear(1024, 1024))


class VitLinears(nn.Module):
    """The linear layers of a ViT-S block, one after another: attention's weights are not what is compared here."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(384, 1152), nn.Linear(384, 384)
        self.fc1, self.gelu, self.fc2 = nn.Linear(384, 1536), nn.GELU(), nn.Linear(1536, 384)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return self.fc2(self.gelu(self.fc1(self.proj(query + key + value))))


@dataclass(frozen=True)
class Network:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batches: tuple[int, ...]


NETWORKS = {
    "resnet20": Network(lambda: CifarResNet(20, 100, shortcut="padding"), (3, 32, 32), (1, 64)),
    "resnet50": Network(lambda: ResNet50(1000), (3, 224, 224), (1, 16)),
    "mlp": Network(Mlp, (1024,), (1, 128)),
    "vit-linears": Network(VitLinears, (197, 384), (1, 8)),
    "vit-linears-token": Network(VitLinears, (1, 384), (1,)),
}


def made(network: str, sparsity: float, distribution: str) -> tuple[nn.Module, so.Topology | None]:
    torch.manual_seed(0)
    model = NETWORKS[network].make()
    topology = so.sparsify(model, sparsity, distribution=distribution) if sparsity else None
    return settled(model, images(network, 4)), topology


def images(network: str, batch: int) -> Tensor:
    return torch.randn(batch, *NETWORKS[network].shape, generator=torch.Generator().manual_seed(0))


def export(model: nn.Module, x: Tensor, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(path), input_names=["x"], opset_version=13, dynamo=False)
    return path


def onnx_runtime(path: Path, x: Tensor, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {"x": x.numpy()}
    return lambda: session.run(None, given)[0]


def openvino(path: Path, x: Tensor, threads: int) -> Run:
    import openvino  # pyright: ignore[reportMissingImports]

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = openvino.Core().compile_model(str(path), "CPU", options)
    given = [x.numpy()]
    return lambda: model(given)[0]


def torch_compiled(model: nn.Module, x: Tensor) -> Run:
    import torch._inductor.config

    torch._inductor.config.freezing = True  # folds batch norm
    compiled = torch.compile(model)
    return lambda: compiled(x)


def available(*names: str) -> Iterator[str]:
    from importlib.util import find_spec

    yield from (name for name in names if find_spec(name))


def clock(run: Run, now: Callable[[], float]) -> Clock:
    def seconds(calls: int) -> float:
        start = now()
        for _ in range(calls):
            run()
        return now() - start

    return seconds


def timed(clocks: dict[str, Clock], seconds: float, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, in turns; a turn is as many calls as take about so many seconds."""
    calls = {name: max(1, int(seconds / (measure(2) / 2))) for name, measure in clocks.items()}
    times: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(rounds):
        for name, measure in clocks.items():
            times[name].append(measure(calls[name]) / calls[name] * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def check(name: str, found: object, expected: Tensor) -> None:
    error = float((torch.as_tensor(found) - expected).abs().max() / expected.abs().max())
    if not error < TOLERANCE:
        sys.exit(f"{name} gives another result: off by {error:.2g} of the largest output")


def compare(given: argparse.Namespace, network: str, batch: int, threads: int) -> None:
    """Prints the table of one network and batch."""
    x = images(network, batch)
    runs: dict[str, Run] = {}
    expected: dict[str, Tensor] = {}
    clocks: dict[str, Clock] = {}
    folder = Path(given.folder)
    with ExitStack() as stack, torch.no_grad():
        pipe = stack.enter_context(DeepSparse(given.deepsparse, threads)) if given.deepsparse else None

        def add(name: str, run: Run, output: Tensor) -> None:
            runs[name], expected[name], clocks[name] = run, output, clock(run, CLOCKS[given.clock])

        def add_deepsparse(name: str, path: Path, output: Tensor) -> None:
            assert pipe is not None
            other, number = pipe, pipe.load(path, x)
            runs[name], expected[name] = (lambda: other.run(number)), output
            clocks[name] = lambda calls: other.seconds(number, calls, given.clock)

        model, _ = made(network, 0, "erk")
        path = export(model, x, folder / f"{network}-{batch}-dense.onnx")
        for engine, start in (("onnxruntime", onnx_runtime), ("openvino", openvino)):
            if engine in available(engine):
                add(f"dense {engine}", start(path, x, threads), model(x))
        if given.torch:
            add("dense torch compiled", torch_compiled(model, x), model(x))
        if pipe and given.dense_deepsparse:
            add_deepsparse("dense deepsparse", path, model(x))
        for distribution in given.distribution:
            for sparsity in given.sparsity:
                model, topology = made(network, sparsity, distribution)
                label = f"{sparsity:.0%} {distribution}"
                output = model(x)
                if pipe:
                    path = export(model, x, folder / f"{network}-{batch}-{sparsity}-{distribution}.onnx")
                    add_deepsparse(f"{label} deepsparse", path, output)
                engine = so.compile_inference(model, topology)
                add(f"{label} ours", lambda engine=engine: engine(x), output)
        for name, run in runs.items():
            check(name, run(), expected[name])
        show(network, batch, threads, timed(clocks, given.turn, given.rounds))


def show(network: str, batch: int, threads: int, times: dict[str, float]) -> None:
    dense = {name.removeprefix("dense "): value for name, value in times.items() if name.startswith("dense")}
    best = min(dense, key=lambda name: dense[name])
    print(f"\n{network}, batch {batch}, {threads} thread{'s' * (threads > 1)}, dense (ms): ", end="")
    print(", ".join(f"{name} {value:.3g}" for name, value in dense.items()), "\n")
    print("| | DeepSparse, ms | ours, ms | DeepSparse / ours | best dense / ours |\n|---|---|---|---|---|")
    for label in dict.fromkeys(" ".join(name.split()[:2]) for name in times if not name.startswith("dense")):
        ours, theirs = times[f"{label} ours"], times.get(f"{label} deepsparse", float("nan"))
        print(f"| {label} | {theirs:.3g} | {ours:.3g} | {theirs / ours:.2f} | {dense[best] / ours:.2f} |")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", type=int, nargs="+", help="the network's own by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.97])
    parser.add_argument("--distribution", nargs="+", choices=("erk", "uniform"), default=["erk", "uniform"])
    parser.add_argument("--deepsparse", help="the Python of the environment that has it")
    parser.add_argument("--dense-deepsparse", action="store_true")
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True, help="torch compiled")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: on a busy machine, with one thread"
    )
    parser.add_argument("--turn", type=float, default=0.05, help="seconds of one engine's turn")
    given = parser.parse_args()
    for threads in given.threads:
        torch.set_num_threads(threads)
        print(machine(given.clock))
        for network in given.network:
            for batch in given.batch or NETWORKS[network].batches:
                with tempfile.TemporaryDirectory() as folder:
                    given.folder = folder
                    compare(given, network, batch, threads)


if __name__ == "__main__":
    main()
