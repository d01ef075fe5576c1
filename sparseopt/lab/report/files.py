"""The report's tables as files for other programs: CSV and JSON with every digit, LaTeX as a paper sets it."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from sparseopt.lab.config.differences import differing
from sparseopt.lab.report.baseline import Difference
from sparseopt.lab.report.study import Study
from sparseopt.lab.report.tables import MEASURES, ReportTable
from sparseopt.lab.show.latex import latex_escape
from sparseopt.lab.show.statistics import Comparison, mean_and_std
from sparseopt.lab.system.files import write_bytes

Format = Literal["csv", "latex", "json"]
SUFFIX: dict[Format, str] = {"csv": ".csv", "latex": ".tex", "json": ".json"}
Record = dict[str, Any]


def write_table(path: Path, form: Format, table: ReportTable, records: Sequence[Record]) -> None:
    """Write a table: its records for programs, its cells for LaTeX."""
    made = {"csv": lambda: _csv(records), "json": lambda: _json(records), "latex": lambda: _latex(table)}
    write_bytes(path, made[form]().encode())


def result_records(study: Study) -> list[Record]:
    """One record a configuration: the settings that differ, the finished seeds, mean and standard deviation of every measure."""
    names = differing([group.settings for group in study.groups])
    found = []
    for group in study.groups:
        record: Record = {name: group.settings.get(name) for name in names}
        record["seeds"] = [run.config.seed for run in group.finished]
        for measure in MEASURES if group.finished else ():
            mean, std = mean_and_std([measure.of(run) for run in group.finished])
            record |= {measure.name: mean, f"{measure.name}_std": std}
        found.append(record)
    return found


def difference_records(study: Study, found: Sequence[Difference]) -> list[Record]:
    """One record a comparison: differences seed by seed, their mean and 95% interval."""
    names = differing([group.settings for group in study.groups])
    return [
        {
            **{name: each.group.settings.get(name) for name in names},
            "seeds": each.seeds,
            **_compared("test_accuracy", each.accuracy),
            **_compared("mean_train_loss_relative", each.loss),
        }
        for each in found
    ]


def _compared(name: str, comparison: Comparison) -> Record:
    return {
        f"{name}_difference": comparison.mean,
        f"{name}_low": comparison.low if math.isfinite(comparison.low) else None,
        f"{name}_high": comparison.high if math.isfinite(comparison.high) else None,
        f"{name}_by_seed": list(comparison.differences),
        f"{name}_supported": comparison.supported,
    }


def _json(records: Sequence[Record]) -> str:
    return json.dumps(list(records), indent=2) + "\n"


def _csv(records: Sequence[Record]) -> str:
    """Lists as numbers with spaces between them."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _plain(value) for name, value in record.items()})
    return text.getvalue()


def _plain(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _latex(table: ReportTable) -> str:
    lines = [
        "% needs \\usepackage{booktabs}",
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(table.columns) - 1)}@{{}}}}",
        r"\toprule",
        _row(table.columns),
        r"\midrule",
        *(_row([cell.text for cell in row]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_escape, cells)) + r" \\"
