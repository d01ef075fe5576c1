"""Test accuracy in the paper's layout."""

from collections.abc import Sequence

from sparseopt.lab.reproduce.grid import GridRow
from sparseopt.lab.reproduce.layout import Best, LabelledTable
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy
from sparseopt.lab.reproduce.paper import Published
from sparseopt.lab.reproduce.tables.beside import PaperColumn, beside, elsewhere
from sparseopt.lab.reproduce.tables.texts import LABELS, NOTHING, candidate_text, plus_minus
from sparseopt.lab.show.words import counted


def accuracy_table(outcomes: Outcomes) -> LabelledTable:
    """The paper's table: rows sparsity x method x HAM, columns epochs, mean ± std over seeds, the best in bold."""
    grid = outcomes.grid
    columns = [(epochs, beside(grid, epochs)) for epochs in grid.scale.epochs]
    far = elsewhere(grid)
    values = [
        heading
        for epochs, paper in columns
        for heading in (counted(epochs, "epoch"), *([paper.heading] if paper.figures else []))
    ]
    rows = [
        (
            *row.labels,
            *(text for epochs, paper in columns for text in _cells(outcomes, row, epochs, paper)),
            *(_figure(paper.figures.get(row)) for paper in far),
        )
        for row in outcomes.rows
    ]
    return LabelledTable(
        "Test accuracy (%)",
        LABELS,
        (*values, *(paper.heading for paper in far)),
        rows,
        notes=_accuracy_notes(outcomes, bool(far)),
    )


def _cells(outcomes: Outcomes, row: GridRow, epochs: int, paper: PaperColumn) -> list[str]:
    cell = outcomes.cells[row, epochs]
    text = seeds_text(cell) + tuned_text(outcomes, cell)
    ours = Best(text) if is_best(outcomes, cell) else text
    return [ours, _figure(paper.figures.get(row))] if paper.figures else [ours]


def is_best(outcomes: Outcomes, cell: Cell) -> bool:
    """Is it the best row of its block?"""
    kind = (cell.row.sparsity, cell.row.method, cell.epochs)
    block = [
        other for (row, epochs), other in outcomes.cells.items() if (row.sparsity, row.method, epochs) == kind
    ]
    return best_among(cell, block)


def best_among(cell: Cell, block: Sequence[Cell]) -> bool:
    """Has no other cell a higher mean, as far as it is printed? Of those with most seeds: fewer are farther from their mean."""
    most = max(len(other.runs) for other in block)
    means = [round(other.mean_and_std(accuracy)[0], 2) for other in block if len(other.runs) == most > 0]
    has_most = len(means) > 1 and len(cell.runs) == most
    return has_most and round(cell.mean_and_std(accuracy)[0], 2) == max(means)


def seeds_text(cell: Cell) -> str:
    """Mean ± std in percent, and how many seeds it is of where some are missing."""
    if not cell.runs:
        return NOTHING
    text = plus_minus(*cell.mean_and_std(accuracy))
    return text if len(cell.runs) == cell.wanted else f"{text} ({len(cell.runs)} of {cell.wanted} seeds)"


def tuned_text(outcomes: Outcomes, cell: Cell) -> str:
    """The settings that a cell was found best with, where rows are tuned."""
    chosen = outcomes.grid.chosen.get((cell.row, cell.epochs))
    return "" if chosen is None or not cell.runs else f", {candidate_text(chosen)}"


def _figure(figure: Published | None) -> str:
    return NOTHING if figure is None else plus_minus(figure.mean, figure.std)


def _accuracy_notes(outcomes: Outcomes, far: bool) -> list[str]:
    notes = ["After the last epoch, mean ± standard deviation over seeds; the best of a block in bold."]
    if outcomes.grid.scale.searches:
        notes.append("Each row with the settings that it was found best with, which stand behind its figure.")
    if far:
        notes.append(
            "In brackets: what the paper reports at its own scale, which is not the one of these runs; for orientation only."
        )
    return notes + missing_notes(outcomes)


def missing_notes(outcomes: Outcomes) -> list[str]:
    """What is not in the table, and why."""
    cells = list(outcomes.cells.values())
    wanted, done = sum(cell.wanted for cell in cells), len(outcomes.finished)
    if wanted == done:
        return []
    begun = [run for cell in cells for run in cell.begun.values()]
    states = ["damaged" if run.state == "finished" else run.state for run in begun]
    counts = {state: states.count(state) for state in sorted(set(states))}
    counts["not begun"] = wanted - done - len(states)
    told = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    notes = [f"{wanted - done} of {wanted} runs are missing: {told}."]
    shown = set(outcomes.rows)
    if absent := [" ".join(row.labels) for row in outcomes.grid.rows if row not in shown]:
        names = ", ".join(absent[:6]) + (", ..." if len(absent) > 6 else "")
        notes.append(f"Rows without a finished run are left out: {names}.")
    return notes
