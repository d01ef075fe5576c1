"""The table behind `topology.summary()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparseopt.topology.skew import relative_scale

if TYPE_CHECKING:
    from sparseopt.topology.topology import Topology

HEADER = (
    "layer",
    "active",
    "of",
    "sparsity",
    "fan-in mean",
    "least",
    "largest",
    "no inputs",
    "factor spread",
)


def summarise(topology: Topology) -> str:
    """One row a layer and one for the network.

    "factor spread" is the standard deviation of the layer's skew-correction factors: 0 means the correction is the identity
    there, 0.1 is what random masks give, above 0.3 the neurons of the layer are far from equal.
    """
    rows = [HEADER, *(_row(topology, name) for name in topology.layers)]
    rows.append(
        (
            "network",
            f"{topology.active():,}",
            f"{topology.size():,}",
            f"{topology.sparsity():.4f}",
            *[""] * 3,
            f"{topology.dead_neurons()}",
            "",
        )
    )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _row(topology: Topology, name: str) -> tuple[str, ...]:
    fan_in = topology.fan_in(name)
    spread = relative_scale(fan_in, fan_in.double().mean()).std(correction=0)
    return (
        name,
        f"{topology.active(name):,}",
        f"{topology.size(name):,}",
        f"{topology.sparsity(name):.4f}",
        f"{fan_in.double().mean().item():.1f}",
        f"{fan_in.min().item()}",
        f"{fan_in.max().item()}",
        f"{topology.dead_neurons(name)}",
        f"{spread.item():.3f}",
    )
