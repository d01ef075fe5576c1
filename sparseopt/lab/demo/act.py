"""What an act leaves behind: a figure, the sentences its numbers support, and a table."""

from dataclasses import dataclass, field

from matplotlib.figure import Figure

from sparseopt.lab.report import Drawing, Section
from sparseopt.lab.show.table import Table


@dataclass(frozen=True)
class Act:
    """One act of the demo; `caption` says what the figure shows and how it was measured."""

    number: int
    name: str
    title: str
    figure: Figure
    caption: str
    sentences: list[str]
    table: Table | None = field(default=None)

    def section(self) -> Section:
        """The act as a chapter of the page."""
        tables = [] if self.table is None else [self.table]
        drawing = Drawing(self.figure, self.caption)
        return Section(self.title, f"Act {self.number}", self.sentences, [drawing], tables)
