"""What somebody who knows more about the runs than their folders tell can put in front of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from sparseopt.lab.show.table import Table

if TYPE_CHECKING:  # drawing takes a second to import, and a report without sections draws nothing
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure in the house style, inlined as SVG that follows the page's colours; the caption says what it shows."""

    figure: "Figure"
    caption: str


@dataclass(frozen=True)
class Section:
    """A chapter of the page, shown in the order of the fields.

    All text is escaped; `Markup` is not, be it `html` or a cell of a table (`Markup("<strong>33.1</strong>")`).
    """

    title: str
    label: str = ""
    """A small line above the title, such as `Act 1`."""
    sentences: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    html: Markup | None = None
