"""DSR, dynamic sparse reparameterisation (Mostafa and Wang 2019): one threshold for the network, and layers that trade weights.

At an update every active weight with |w| < H goes, wherever it is. If they were fewer than (1 - tolerance) times the number
aimed at (`drop_fraction` of the network's active weights), H doubles for the next time; if more than (1 + tolerance) times,
it halves. As many weights as went are grown at random, shared among the layers in proportion to what each has kept. The total
stays exact.

H is remembered with the optimizer's state. A layer keeps at least its largest weight (under weight_norm, one for each norm),
which the paper leaves open; the authors' code keeps the first. As there H begins at 0.001 and updates go on to the end of the
training; there the steps between them grow by a table of epochs, here they stay `every`; there the number aimed at is given as
such, and nothing grows where a weight has just been dropped, here it may.

>>> import sparseopt as so
>>> so.DSR(total_steps=1000).drop_fraction
0.01
"""

from dataclasses import dataclass
from typing import Literal

from sparseopt.methods.set import SET
from sparseopt.methods.view import Count, Memory, Views
from sparseopt.topology.densities import share_out


@dataclass(frozen=True)
class DSR(SET):
    """Drop below an adaptive threshold, grow in proportion to what layers keep.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that an update should drop; the threshold follows it.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
        threshold: magnitude below which weights are dropped, at the beginning.
        tolerance: how far, relative to drop_fraction, the dropped share may be off before the threshold is doubled or
            halved.
    """

    drop_fraction: float = 0.01
    until: float = 1.0
    drop_decay: Literal["cosine", "constant"] = "constant"
    threshold: float = 1e-3
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold > 0:
            raise ValueError(f"threshold must be positive, got {self.threshold}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must be in [0, 1), got {self.tolerance}")

    def due(self, step: int) -> bool:
        return step == 0 or super().due(step)  # at the start only the threshold is noted

    def changes_counts(self) -> bool:
        return True

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        threshold = memory.numbers.setdefault("threshold", self.threshold)
        active = {name: view.active() for name, view in views.items()}
        if step == 0:
            return {name: Count(count, count) for name, count in active.items()}
        kept = {
            name: max(int((view.mask & (view.weight.abs() >= threshold)).sum()), view.least())
            for name, view in views.items()
        }
        dropped = sum(active.values()) - sum(kept.values())
        aim = self.drop_fraction_at(step) * sum(active.values())
        if dropped < (1 - self.tolerance) * aim:
            memory.numbers["threshold"] = threshold * 2
        elif dropped > (1 + self.tolerance) * aim:
            memory.numbers["threshold"] = threshold / 2
        grown = shared_growth(kept, {name: view.mask.numel() for name, view in views.items()}, kept, dropped)
        return {name: Count(kept[name], kept[name] + grown[name]) for name in views}


def shared_growth(
    weights: dict[str, float] | dict[str, int], sizes: dict[str, int], kept: dict[str, int], total: int
) -> dict[str, int]:
    """`total` new connections, shared among the layers in proportion to their weights, none beyond the room it has."""
    room = {name: sizes[name] - kept[name] for name in sizes}
    whole = sum(weights.values())
    if not whole:
        weights, whole = {name: float(space) for name, space in room.items()}, float(sum(room.values()))
    targets = {name: total * weight / whole if whole else 0.0 for name, weight in weights.items()}
    return share_out(targets, room, total)
