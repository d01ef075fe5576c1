"""Where the values of a frozen region lie in memory: one arena, in which values share a place unless both are needed at once.

The smaller the arena, the more of it stays in the cache. What a value finds at its place is another one's: whoever writes a
value clears its border as well (`csrc/bands.h`).
"""

from dataclasses import astuple, dataclass, field

from sparseopt.kernels.native.interface import Slot

ALIGN = 16  # floats: a cache line


@dataclass(frozen=True)
class Form:
    """How a value lies in memory."""

    channels: int
    height: int
    width: int
    border: int
    rows: int  # of a patch
    columns: int
    bands: int
    strips: int
    group: int  # columns; 0: all of them, and a border

    def floats(self, lanes: int) -> int:
        in_groups = -(-self.columns // self.group) * self.group if self.group else 0
        columns = in_groups or (self.columns + 2 * self.border) | 1
        size = self.channels * (self.rows + 2 * self.border) * columns * lanes
        return -(-size // ALIGN) * ALIGN


@dataclass
class Arena:
    """Slots by their numbers; `floats`: the size of the arena."""

    lanes: int
    slots: list[Slot] = field(default_factory=list)
    floats: int = 0
    _taken: dict[int, tuple[int, int]] = field(default_factory=dict)  # where a slot in use begins and ends

    def take(self, form: Form) -> int:
        """A slot at the first place where nothing is."""
        size, begin = form.floats(self.lanes), 0
        for first, end in sorted(self._taken.values()):
            if first - begin >= size:
                break
            begin = max(begin, end)
        number = len(self.slots)
        self.slots.append(Slot(begin, *astuple(form)))
        self._taken[number] = (begin, begin + size)
        self.floats = max(self.floats, begin + size)
        return number

    def give(self, number: int) -> None:
        del self._taken[number]

    def keep(self, numbers: list[int]) -> None:
        """Give all others back."""
        self._taken = {number: self._taken[number] for number in numbers}
