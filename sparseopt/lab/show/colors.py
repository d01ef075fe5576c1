"""The marks that series are told apart by. Apart from the figures, so that a page can have them without matplotlib."""

from typing import Any

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6000", "#7a7a7a")
"""Okabe and Ito's palette, in the order in which series are drawn; the last, grey, is for what recedes."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", ".")
"""One marker a colour, so that a black-and-white print can still be read."""

LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
"""Line styles, for series that must be told apart without colour. Long dashes in ink are theory's."""

INK = "#1c1e21"
"""Text, axes and theory."""
