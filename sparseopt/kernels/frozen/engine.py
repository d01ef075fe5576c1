"""A compiled network, and what it says of itself."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch._compile import _disable_dynamo
from torch.fx import GraphModule

from sparseopt.kernels.frozen.chain import FrozenChain
from sparseopt.kernels.frozen.comparing import Compared
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.frozen.saved import Saved, read
from sparseopt.kernels.frozen.writing import Unsaved, write
from sparseopt.kernels.match.tracing import Unsupported
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import HighWater

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerReport:
    """A layer of the network: how many of its weights are zero, and how it runs. `reason`: why not on the sparse kernels."""

    name: str
    kind: str
    weights: int
    zeros: float
    reason: str | None

    def row(self, how: str) -> tuple[str, str, str, str, str]:
        """`how`: what was measured at the last call, if there was one."""
        sparse = how if how.startswith("dense") else f"sparse: {how}" if how else "sparse"
        runs = sparse if self.reason is None else f"dense: {self.reason}"
        return self.name or "(the model)", self.kind, f"{self.weights:,}", f"{self.zeros:.1%}", runs


class Engine:
    """A compiled network. Call it with what the model takes, from any thread; `print` it to see what runs how."""

    def __init__(
        self,
        program: nn.Module | Saved,
        layers: Sequence[LayerReport],
        name: str,
        frozen: Mapping[str, str] | None = None,
    ) -> None:
        """`frozen`: modules whose Python might do otherwise at another call, and does as it did when the engine was made."""
        self.program, self.layers, self.name, self.frozen = program, tuple(layers), name, dict(frozen or {})
        self.untraced = ""  # why the program is the model's Python
        self._only = only_piece(program)
        self._compared: Compared | None = None
        self._others: Sequence[Callable[[], Engine]] = ()
        self._water = HighWater()

    def compare_with(self, model: nn.Module, others: Sequence[Callable[[], "Engine"]]) -> None:
        """Let the first call of every kind be computed by the model, too. `others` make what runs where they differ."""
        self._compared, self._others = Compared(model), others

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return _apart(self, *args, **kwargs)
        self._water.reached(sum([each.numel() for each in args if isinstance(each, Tensor)]))
        compared = self._compared
        if compared is not None and not compared.knows(args, kwargs):
            return self._call_and_compare(compared, args, kwargs)
        if self._only is not None and len(args) == 1 and not kwargs:
            return self._only.forward(args[0])[0]
        with torch.no_grad():
            return self.program.forward(*args, **kwargs)

    @torch.no_grad()
    def _call_and_compare(self, compared: Compared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with compared.lock:
            right = compared.model(*args, **kwargs)
            while self._compared is not None and not compared.same(self.program.forward, args, kwargs, right):
                self._go_on_as_another()
        return right

    def _go_on_as_another(self) -> None:
        make, *self._others = self._others
        try:
            other = make()
        except Unsupported:
            return
        self.program, self.layers, self.frozen = other.program, other.layers, other.frozen
        self.untraced = other.untraced
        self._only = only_piece(self.program)
        if self._compared is not None:
            self._compared.kinds.clear()
        if not self._others:
            self._compared = None
            logger.warning(
                "%s does something else in a trace than in a call, because of its Python: it runs as it is written, and of its "
                "layers only linear ones on the kernels",
                self.name,
            )

    def save(self, path: str | Path) -> None:
        """Write the engine to one file, data alone, which `load_engine` runs without the model's Python code.

        Raises `ValueError` if the network computes something, outside the sparse layers, that is not one of torch's own
        functions or modules.
        """
        if self._compared is not None and not self._compared.kinds:
            raise ValueError(
                f"call this engine once before it is saved: the Python of {self.name} "
                f"{next(iter(self.frozen.values()))}, so what was frozen has to be compared with what the model does"
            )
        layers = [asdict(each) for each in self.layers]
        notes = {"name": self.name, "layers": layers, "frozen": self.frozen}
        try:
            write(self.program, notes, path)
        except Unsaved as reason:
            because = f" ({self.untraced})" if self.untraced else ""
            raise ValueError(f"this engine cannot be saved: {reason}{because}") from reason

    def summary(self) -> str:
        """A line a layer: sparse and, after a call, how and how fast; or dense and why."""
        how = {name: each for piece in self.pieces() for name, each in piece.report().items()}
        sparse = sum(
            each.reason is None and not how.get(each.name, "").startswith("dense") for each in self.layers
        )
        layers = f"{len(self.layers)} layer{'' if len(self.layers) == 1 else 's'}"
        title = f"engine of {self.name}: {sparse} of {layers} on sparse kernels"
        rows = [
            ("layer", "kind", "weights", "zeros", "runs"),
            *(each.row(how.get(each.name, "")) for each in self.layers),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = (
            "  ".join(
                [
                    *(
                        cell.ljust(width) if column < 2 else cell.rjust(width)
                        for column, (cell, width) in enumerate(zip(row, widths, strict=False))
                    ),
                    row[-1],
                ]
            )
            for row in rows
        )
        frozen = (
            f"  the Python of {name or self.name} is frozen as it was: {why}"
            for name, why in self.frozen.items()
        )
        return "\n".join((title, *(f"  {line}".rstrip() for line in lines), *frozen))

    def pieces(self) -> list[FrozenRegion | FrozenChain]:
        """What runs on the kernels."""
        modules = self.program.modules() if isinstance(self.program, nn.Module) else self.program.children()
        return [each for each in modules if isinstance(each, FrozenRegion | FrozenChain)]

    def __repr__(self) -> str:
        return self.summary()

    def __deepcopy__(self, memo: dict[int, object]) -> "Engine":
        program = self.program
        own = program.copy() if isinstance(program, Saved) else copy.deepcopy(program, memo)
        twin = Engine(own, self.layers, self.name, self.frozen)
        twin.untraced = self.untraced
        if self._compared is not None:
            twin.compare_with(self._compared.model, self._others)  # which are not changed by being called
        return twin

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Engine cannot be pickled, nor saved by torch.save: engine.save(path) writes a file that so.load_engine(path) runs"
        )


def only_piece(program: nn.Module | Saved) -> FrozenRegion | FrozenChain | None:
    """The piece that is all of a program, with one input and one output: it can be called without any detour."""
    if not isinstance(program, GraphModule):
        return None
    match [(node.op, node.args) for node in program.graph.nodes]:
        case [
            ("placeholder", ()),
            ("call_module", (_,)),
            ("call_function", (_, 0)),
            ("output", (fx.Node(),)),
        ]:
            (called,) = (str(node.target) for node in program.graph.nodes if node.op == "call_module")
            piece = program.get_submodule(called)
            return piece if isinstance(piece, FrozenRegion | FrozenChain) else None
    return None


def load_engine(path: str | Path) -> Engine:
    """The engine that `Engine.save` wrote. The file is data: whatever it holds, nothing of it is executed as code.

    Args:
        path: the file that `engine.save` wrote.

    >>> import torch, sparseopt as so
    >>> from torch import nn
    >>> path = getfixture("tmp_path") / "engine.safetensors"
    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    >>> so.compile_inference(model, so.sparsify(model, sparsity=0.9)).save(path)
    >>> so.load_engine(path)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 16, 32, 32])
    """
    operators()
    program, notes = read(path)
    try:
        frozen = {str(name): str(why) for name, why in dict(notes["frozen"]).items()}
        return Engine(program, [_report(each) for each in notes["layers"]], str(notes["name"]), frozen)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not an engine that can run: {error}") from error


def _report(saved: Any) -> LayerReport:
    reason = saved["reason"]
    return LayerReport(
        *(str(saved["name"]), str(saved["kind"]), int(saved["weights"]), float(saved["zeros"])),
        None if reason is None else str(reason),
    )


_apart: Any = _disable_dynamo(Engine.__call__)  # torch.compile around an engine leaves it as it is
