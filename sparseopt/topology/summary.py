"""The table behind `topology.summary()`."""

from __future__ import annotations

from collections.abc import Sequence
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
    rows.append(("network", *_counts(topology), *[""] * 3, f"{topology.dead_neurons()}", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *_whole_model(topology)])


def _whole_model(topology: Topology) -> list[str]:
    """What stayed dense, by reason, and the sparsity of the whole model; nothing where all of it is sparse."""
    if not topology.left_dense:
        return []
    lines = ["", "stayed dense"]
    for why in dict.fromkeys(each.why for each in topology.left_dense):
        same = [each for each in topology.left_dense if each.why == why]
        shown = listed([each.name for each in same])
        lines.append(f"  {sum(each.size for each in same):>12,}  {shown}: {why}")
    dense = sum(each.size for each in topology.left_dense)
    active, size = topology.active() + dense, topology.size() + dense
    lines.append(f"whole model: {active:,} of {size:,} parameters active, sparsity {1 - active / size:.4f}")
    if topology.dead_neurons():
        dead = topology.dead_neurons()
        have, them = ("neuron has", "it") if dead == 1 else ("neurons have", "them")
        lines.append(f"{dead} {have} no input: nothing reaches {them} until one grows")
    return lines


def _counts(topology: Topology, name: str | None = None) -> tuple[str, str, str]:
    return f"{topology.active(name):,}", f"{topology.size(name):,}", f"{topology.sparsity(name):.4f}"


def _row(topology: Topology, name: str) -> tuple[str, ...]:
    fan_in = topology.fan_in(name)
    mean = fan_in.double().mean()
    spread = relative_scale(fan_in, mean).std(correction=0)
    ends = (f"{mean.item():.1f}", f"{fan_in.min().item()}", f"{fan_in.max().item()}")
    return name, *_counts(topology, name), *ends, f"{topology.dead_neurons(name)}", f"{spread.item():.3f}"


def listed(names: Sequence[str], shown: int = 3) -> str:
    """The first few of many names."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
