"""Tables in a terminal: whatever its width, no cell is cut."""

import io

import pytest
from rich.console import Console

from sparseopt.lab.show.table import Table
from sparseopt.lab.show.terminal import print_table

COLUMNS = ("layer", "fan-in least / median / largest", "factor spread", "norm slope corrected", "rotation")
ROWS = [
    ("1.weight", "13 / 26 / 160", "0.2312", "+0.1511", "12.1111"),
    ("network (slopes: median)", "9 / 22 / 162", "0.2113", "-0.4114", "10.4115"),
]


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_table(console, Table(COLUMNS, ROWS))
    return console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("width", [45, 60, 80, 120, 200])
def test_every_number_is_whole(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    for row in ROWS:
        for cell in row[1:]:
            assert sum(cell in line for line in lines) == 1
    assert "…" not in "".join(lines)


def test_a_wide_terminal_has_one_table_and_a_narrow_one_repeats_the_labels() -> None:
    assert sum("1.weight" in line for line in printed(200)) == 1
    assert sum("1.weight" in line for line in printed(45)) > 1
