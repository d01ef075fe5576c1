"""`sparseopt report`: what a folder of runs shows, as one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from sparseopt.lab.cli.command import run
from sparseopt.lab.errors import UserError
from sparseopt.lab.report import write_report
from sparseopt.lab.report.baseline import difference_table, differences, read_baseline
from sparseopt.lab.report.files import SUFFIX, Format, difference_records, result_records, write_table
from sparseopt.lab.report.study import Study
from sparseopt.lab.report.tables import results
from sparseopt.lab.runs.catalogue import survey


def main(argv: list[str]) -> int:
    """Report on what the command line says."""
    return run("sparseopt report", report, argv)


def report(
    folder: tyro.conf.Positional[Path] = Path("runs"),
    out: Path | None = None,
    baseline: tuple[str, ...] = (),
    tables: tuple[Format, ...] = (),
) -> None:
    """Write one HTML page about all runs in a folder: tables, curves, masks, settings, and what to be wary of.

    Args:
        folder: Where the runs are, finished or not; folders below it are searched as well.
        out: The page; None: report.html in that folder.
        baseline: KEY=VALUE, one or several, such as correction=none: compare every configuration with the one that has these
            values and shares all other settings, seed by seed.
        tables: Write the results, and the differences from the baseline, as files beside the page as well: NAME-results.csv,
            NAME-differences.csv, ...
    """
    found = survey(folder)
    if not found.runs:
        why = f" that can be read ({len(found.left_out)} left out, see above)" if found.left_out else ""
        raise UserError(f"there is no run in {folder}{why}; name a folder that sparseopt train wrote to")
    path = out or folder / "report.html"
    chosen = read_baseline(baseline)
    title = f"Runs in {folder.resolve().name}"
    write_report(found.runs, path, title=title, left_out=found.left_out, baseline=chosen)
    print(path.resolve())
    for file in _write_tables(Study(found.runs), path, chosen, tables):
        print(file)


def _write_tables(
    study: Study, page: Path, baseline: Mapping[str, Any], formats: Sequence[Format]
) -> list[Path]:
    made = {"results": (results(study), result_records(study))}
    if baseline:
        compared = differences(study, baseline)
        made["differences"] = (difference_table(study, compared), difference_records(study, compared))
    written = []
    for name, (table, records) in made.items():
        for form in formats:
            written.append(page.with_name(f"{page.stem}-{name}{SUFFIX[form]}"))
            write_table(written[-1], form, table, records)
    return written
