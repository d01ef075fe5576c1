"""A compiled network, and what it says of itself."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule


@dataclass(frozen=True)
class LayerReport:
    """A layer of the network: how many of its weights are zero, and how it runs. `reason`: why not on the sparse kernels."""

    name: str
    kind: str
    weights: int
    zeros: float
    reason: str | None

    def row(self) -> tuple[str, str, str, str, str]:
        runs = "sparse" if self.reason is None else f"dense: {self.reason}"
        return self.name or "(the model)", self.kind, f"{self.weights:,}", f"{self.zeros:.1%}", runs


class Engine:
    """A compiled network. Call it with what the model takes; `print` it to see what runs how."""

    def __init__(self, program: GraphModule, layers: Sequence[LayerReport], name: str) -> None:
        self.program, self.layers, self.name = program, tuple(layers), name

    @torch.inference_mode()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program.forward(*args, **kwargs)

    def summary(self) -> str:
        """A line a layer: sparse, or dense and why."""
        sparse = sum(each.reason is None for each in self.layers)
        layers = f"{len(self.layers)} layer{'' if len(self.layers) == 1 else 's'}"
        title = f"engine of {self.name}: {sparse} of {layers} on sparse kernels"
        rows = [("layer", "kind", "weights", "zeros", "runs"), *(each.row() for each in self.layers)]
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
        return "\n".join((title, *(f"  {line}".rstrip() for line in lines)))

    def __repr__(self) -> str:
        return self.summary()

    def __deepcopy__(self, memo: dict[int, object]) -> "Engine":
        return Engine(copy.deepcopy(self.program, memo), self.layers, self.name)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Engine cannot be pickled, nor saved by torch.save: save the model (so.kernels.save writes a small file) "
            "and compile it where it is loaded"
        )
