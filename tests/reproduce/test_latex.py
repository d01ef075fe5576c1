"""LaTeX that compiles: checked by its grammar, because there is no LaTeX here."""

import re
from collections.abc import Callable

import pytest

from sparseopt.lab.reproduce.convergence import reach
from sparseopt.lab.reproduce.grid import Arm, Grid
from sparseopt.lab.reproduce.latex import latex, latex_escape
from sparseopt.lab.reproduce.layout import Best, LabelledTable
from sparseopt.lab.reproduce.outcomes import Outcomes
from sparseopt.lab.reproduce.tables import accuracy_table, convergence_table, difference_table
from sparseopt.lab.reproduce.targets import TARGETS


def test_special_signs_are_escaped() -> None:
    assert latex_escape("50% & $x_1$ #2 {a} ~^\\ <|> ±") == (
        r"50\% \& \$x\_1\$ \#2 \{a\} \textasciitilde{}\textasciicircum{}\textbackslash{} $<$$|$$>$ $\pm$"
    )


@pytest.fixture
def layouts(at_scale: Callable[..., Grid], outcomes_of: Callable[..., Outcomes]) -> list[LabelledTable]:
    grid = at_scale(TARGETS["table-imagenet"], epochs=(90, 20), sparsities=(0.9, 0.97), seeds=2)
    outcomes = outcomes_of(grid, {Arm("layer"): [70.0, 71.0], Arm("none"): [71.0, 71.5]})
    return [
        accuracy_table(outcomes),
        difference_table(outcomes),
        convergence_table(outcomes, reach(outcomes, None)),
    ]


def test_tables_are_well_formed(layouts: list[LabelledTable]) -> None:
    for layout in layouts:
        check(latex(layout, "tab:x", "2 seeds, 5% of it."), len(layout.columns))


def check(text: str, columns: int) -> None:
    """Braces and environments match, dollars pair, and every line of the table has its columns."""
    code = re.sub(r"(?m)^%.*$", "", text)
    bare = re.sub(r"\\[&%$#_{}\\]", "", code)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", code):
        stack.append(name) if kind == "begin" else stack.pop()
    assert not stack
    assert "%" not in bare
    lines = [line for line in code.splitlines() if line.endswith(r"\\")]
    assert lines
    for line in lines:
        spanned = sum(int(width) - 1 for width in re.findall(r"\\multicolumn\{(\d+)\}", line))
        assert len(re.findall(r"(?<!\\)&", line)) + 1 + spanned == columns


def test_the_papers_looks(layouts: list[LabelledTable]) -> None:
    text = latex(layouts[0], "tab:x", "2 seeds, 5% of it.")
    assert r"\caption{" in text.partition(r" 2 seeds, 5\% of it.")[0]
    assert r"\usepackage{booktabs,multirow}" in text.splitlines()[0]
    assert r"\multirow{4}{*}{90\%} & \multirow{2}{*}{RigL} & SparseOpt & 70.50 $\pm$ 0.71" in text
    assert r"\cmidrule(lr){2-" in text  # between RigL and SET
    assert r"\textbf{71.25 $\pm$ 0.35}" in text
    assert text.count(r"\midrule") == 2  # below the heading, and between the sparsities
    assert "$-$0.75 (" in latex(layouts[1], "tab:x", "2 seeds, 5% of it.")


def test_a_table_without_rows_is_still_a_table() -> None:
    check(latex(LabelledTable("Empty", ("a",), ("b",), []), "tab:e", "1 seed."), 2)
    check(latex(LabelledTable("One", ("a",), ("b",), [("1", Best("-2"))]), "tab:e", "1 seed."), 2)
