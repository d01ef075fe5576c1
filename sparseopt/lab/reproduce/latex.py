r"""Tables in LaTeX, in the paper's looks: booktabs, outer labels over several rows, rules where they change.

The file needs `\usepackage{booktabs,multirow}`.
"""

import re
from itertools import pairwise

from sparseopt.lab.reproduce.layout import Best, LabelledTable
from sparseopt.lab.show.latex import latex_escape


def latex(layout: LabelledTable, label: str, scale: str) -> str:
    """The table as a float of its own, to be included with `\\input`; the caption tells the scale, wherever it goes."""
    depth, width = len(layout.labels), len(layout.columns)
    notes = "".join(f" {latex_escape(note)}" for note in (scale, *layout.notes))
    lines = [
        "% needs \\usepackage{booktabs,multirow}",
        r"\begin{table}[tbp]",
        r"\centering",
        r"\small",
        rf"\caption{{\textbf{{{latex_escape(layout.title)}}}.{notes}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{@{{}}{'l' * depth}{'r' * (width - depth)}@{{}}}}",
        r"\toprule",
        _line([latex_escape(name) for name in layout.columns]),
        r"\midrule",
        *_body(layout),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _body(layout: LabelledTable) -> list[str]:
    """The rows, with a rule where an outer label changes; the innermost label differs in every row and needs none."""
    lines: list[str] = []
    depth, width = len(layout.labels), len(layout.columns)
    for number, (level, row) in enumerate(zip(layout.changes(), layout.rows, strict=True)):
        if number and level == 0:
            lines.append(r"\midrule")
        elif number and level < depth - 1:
            lines.append(rf"\cmidrule(lr){{{level + 1}-{width}}}")
        cells = [_label(layout, number, column, level) for column in range(depth)]
        lines.append(_line(cells + [_value(cell) for cell in row[depth:]]))
    return lines


def _label(layout: LabelledTable, number: int, column: int, level: int) -> str:
    """A label where it begins, over as many rows as share it."""
    if column < level:
        return ""
    text, rows = latex_escape(layout.rows[number][column]), 1
    for above, below in pairwise(layout.rows[number:]):
        if above[: column + 1] != below[: column + 1]:
            break
        rows += 1
    return text if rows == 1 else rf"\multirow{{{rows}}}{{*}}{{{text}}}"


def _value(cell: str) -> str:
    """A value with true minus signs, bold if it is the best."""
    text = re.sub(r"(?<!\w)-(?=\d)", "$-$", latex_escape(cell))
    return rf"\textbf{{{text}}}" if isinstance(cell, Best) else text


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
