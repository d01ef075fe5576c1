"""The results of a target in all their forms: tables, numbers, figures and a page, in one folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparseopt import __version__
from sparseopt.lab.errors import UserError
from sparseopt.lab.report import Section, write_report
from sparseopt.lab.report.masks import last_densities
from sparseopt.lab.reproduce.convergence import Reached, reach
from sparseopt.lab.reproduce.drawings import Drawings, draw
from sparseopt.lab.reproduce.latex import latex
from sparseopt.lab.reproduce.layout import LabelledTable, for_page, markdown
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes
from sparseopt.lab.reproduce.paper import PAPER
from sparseopt.lab.reproduce.records import Record, csv_text, records
from sparseopt.lab.reproduce.scale import sentence
from sparseopt.lab.reproduce.tables import (
    accuracy_table,
    by_epoch_table,
    convergence_table,
    difference_table,
    itop_table,
    methods_table,
    power_table,
    settings_table,
    tuning_table,
)
from sparseopt.lab.reproduce.tuning import Tuning
from sparseopt.lab.reproduce.verdict import verdict
from sparseopt.lab.runs.archive import FILE
from sparseopt.lab.runs.catalogue import Run, archive
from sparseopt.lab.show.figures import save
from sparseopt.lab.show.words import counted, duration
from sparseopt.lab.system.files import reporting_write_errors, write_bytes, write_json

TABLES = {"methods", "accuracy", "differences", "tuning", "convergence", "by-epoch", "power", "itop"}
"""All that there may be, by the names of their files."""


@dataclass(frozen=True)
class Results:
    """What is told about a target, in whatever form."""

    outcomes: Outcomes
    scale: str
    verdict: list[str]
    tables: dict[str, LabelledTable]
    """By the name of their files."""
    settings: LabelledTable
    records: list[Record]
    drawings: Drawings
    tuning: Tuning | None = None

    @property
    def name(self) -> str:
        return self.outcomes.grid.target.name

    @property
    def runs(self) -> list[Run]:
        """All that the results rest on: of the cells, and of the search for their settings."""
        tried = self.tuning.runs if self.tuning is not None else []
        return [*self.outcomes.found, *tried]


def results(outcomes: Outcomes, level: float | None = None, tuning: Tuning | None = None) -> Results:
    """Everything that follows from the finished runs; `level` is the accuracy that they are to reach, in percent."""
    if not outcomes.finished:
        raise UserError(
            f"no run of {outcomes.grid.target.name} at this scale is finished; sparseopt runs lists those there are, and without "
            "--tabulate-only they are trained"
        )
    reached = reach(outcomes, level)
    return Results(
        outcomes,
        f"{sentence(outcomes.grid.target, outcomes.grid.scale)} {_effort(outcomes)}",
        verdict(outcomes),
        _tables(outcomes, reached, tuning),
        settings_table(outcomes),
        records(outcomes, reached),
        draw(outcomes),
        tuning,
    )


def _tables(
    outcomes: Outcomes, reached: Mapping[Cell, Reached], tuning: Tuning | None
) -> dict[str, LabelledTable]:
    searched = tuning if outcomes.grid.scale.searches else None
    tuned = {} if searched is None else {"tuning": tuning_table(searched)}
    if outcomes.grid.target.of_methods:
        return {
            "methods": methods_table(outcomes),
            **tuned,
            "by-epoch": by_epoch_table(outcomes),
        }
    tables = {
        "accuracy": accuracy_table(outcomes),
        "differences": difference_table(outcomes),
        **tuned,
        "convergence": convergence_table(outcomes, reached),
        "by-epoch": by_epoch_table(outcomes),
        "power": power_table(outcomes),
        **({"itop": itop_table(outcomes)} if "itop" in outcomes.grid.target.drawn else {}),
    }
    return {
        name: table for name, table in tables.items() if table.rows or name in ("accuracy", "differences")
    }


def write(made: Results, folder: Path) -> list[Path]:
    """Write all files; their names, the page last."""
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "results.md": _markdown(made),
        "results.csv": csv_text(made.records),
        **{
            f"{name}.tex": latex(table, f"tab:{made.name}-{name}", made.scale)
            for name, table in made.tables.items()
        },
    }
    for name, text in texts.items():
        write_bytes(folder / name, text.encode())
    for name in TABLES - made.tables.keys():  # of an earlier scale
        (folder / f"{name}.tex").unlink(missing_ok=True)
    write_json(folder / "results.json", _json(made))
    archive((replace(run, densities=last_densities(run)) for run in made.runs), folder / FILE)
    figures = [
        path for name, drawing in made.drawings.items() for path in save(drawing.figure, folder / name)
    ]
    page = folder / "index.html"
    write_report(
        *(made.outcomes.found, page),
        title=f"{made.name}: {made.outcomes.grid.target.summary}",
        introduction=made.scale,
        sections=sections(made),
    )
    return [*(folder / name for name in (*texts, "results.json", FILE)), *figures, page]


def sections(made: Results) -> Sequence[Section]:
    """The chapters for a page."""
    return [
        *([Section("Verdict", sentences=made.verdict)] if made.verdict else []),
        *(Section(table.title, tables=[for_page(table)]) for table in made.tables.values()),
        *([Section("Figures", drawings=list(made.drawings.values()))] if made.drawings else []),
    ]


def _effort(outcomes: Outcomes) -> str:
    runs = outcomes.finished
    seconds = sum(run.last["seconds"] for run in runs)
    return f"{counted(len(runs), 'finished run')}, {duration(seconds)} of training."


def _markdown(made: Results) -> str:
    figures = [
        f"![{drawing.caption}]({name}.png)\n\n{drawing.caption}\n" for name, drawing in made.drawings.items()
    ]
    parts = [
        f"# {made.name}\n\n{made.scale}\n",
        *(["## Verdict\n\n" + "\n\n".join(made.verdict) + "\n"] if made.verdict else []),
        *map(markdown, made.tables.values()),
        *(["## Figures\n", *figures] if figures else []),
        markdown(made.settings),
        f"{'' if made.outcomes.grid.target.of_methods else f'Paper: {PAPER}. '}Made by sparseopt {__version__}.\n",
    ]
    return "\n".join(parts)


def _json(made: Results) -> dict[str, object]:
    return {
        "target": made.name,
        "version": __version__,
        "scale": made.scale,
        "verdict": made.verdict,
        "settings": {row[0]: row[1] for row in made.settings.rows},
        "cells": made.records,
        "runs": [str(run.path.name) for run in made.outcomes.finished],
    }
