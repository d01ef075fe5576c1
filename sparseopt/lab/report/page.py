"""A report as one HTML file: template, style, script, charting library and numbers in one page that loads nothing.

The content security policy forbids every request and every script but the two that are put in here, which it knows by their
SHA-256. Names and settings come from folders that anybody may have written: the template escapes them, and the script shows them
as text.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import torch
from markupsafe import Markup

from sparseopt import __version__
from sparseopt.lab.errors import UserError
from sparseopt.lab.report import tables
from sparseopt.lab.report.baseline import difference_table, differences
from sparseopt.lab.report.cautions import cautions
from sparseopt.lab.report.charts import (
    BUDGET,
    LAYERS,
    LEARNING,
    QUARTILES,
    TOPOLOGY,
    chart_data,
    read_layers,
)
from sparseopt.lab.report.overview import lead, overview
from sparseopt.lab.report.section import Section
from sparseopt.lab.report.study import Study
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.show.colors import COLORS
from sparseopt.lab.system.files import reporting_write_errors, write_bytes

HERE = files("sparseopt.lab.report")
SCRIPTS = ("data", "lines", "tooltip", "chart", "legend", "tables", "main")
STYLES = ("page", "tables", "charts", "print")


def write_report(
    runs: Sequence[Run],
    path: Path,
    *,
    title: str,
    introduction: str = "",
    sections: Sequence[Section] = (),
    left_out: Sequence[str] = (),
    baseline: Mapping[str, Any] | None = None,
) -> None:
    """Write the page about these runs.

    Args:
        baseline: Settings of the configurations that the others are compared with, such as `{"correction": "none"}`.
        introduction: A sentence or two under the title; empty: what the runs are, in short.
        sections: Chapters that come before the general ones.
        left_out: For every folder that could not be read, why: the page warns of them.
    """
    if not runs:
        raise UserError("there is no run to report on; sparseopt train makes one")
    study = Study(runs)
    page = _render(
        study, left_out, baseline, title=title, lead=introduction or lead(study), sections=sections
    )
    with reporting_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, page.encode(errors="backslashreplace"))  # names of folders may be no text


def _render(study: Study, left_out: Sequence[str], baseline: Mapping[str, Any] | None, **head: Any) -> str:
    layers, unread = read_layers(study)
    library, script = _library(), _script()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            **head,
            **_contents(study),
            differences=difference_table(study, differences(study, baseline)) if baseline else None,
            baseline=", ".join(
                f"{tables.in_words(name)} {tables.shown(value)}" for name, value in (baseline or {}).items()
            ),
            cautions=cautions(study, left_out, unread),
            layers=any(layers),
            numbers=chart_data(study, layers),
            policy=_policy(library, script),
            style=Markup(_style()),
            library=Markup(library),
            script=Markup(script),
        )
    )


def _contents(study: Study) -> dict[str, Any]:
    """What the template shows besides what it is given from outside."""
    return {
        "tiles": overview(study),
        "results": tables.results(study),
        "compared": tables.compared(study),
        "shared": tables.shared(study),
        "every_run": tables.every_run(study),
        "learning": LEARNING,
        "topology": TOPOLOGY,
        "by_layer": LAYERS,
        "budget": BUDGET,
        "quantiles": QUARTILES,
        "budgets": sorted({run.config.epochs for group in study.groups for run in group.finished}),
        "drawable": any(run.rows for run in study.runs),
        "sparse": any(run.config.method != "dense" and run.rows for run in study.runs),
        "svg": _svg,
        "today": date.today().isoformat(),
        "version": __version__,
        "torch_version": torch.__version__,
        "library_version": json.loads(_text("vendor/uplot.json"))["version"],
    }


def _svg(figure: Any, name: str) -> Markup:
    from sparseopt.lab.show.figures import svg  # matplotlib, which a report without drawings does not need

    return Markup(svg(figure, name))


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("sparseopt.lab.report", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _library() -> str:
    """uPlot with its licence, which asks to be in every copy."""
    return f"/*\n{_text('vendor/LICENSE')}*/\n{_text('vendor/uPlot.iife.min.js')}"


def _script() -> str:
    """All modules in one scope of their own."""
    modules = "\n".join(_text(f"script/{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{modules}}})();\n'


def _style() -> str:
    """The library's style, the palette of the figures, and the page's own style, which may override both."""
    series = "".join(f"--series-{number}: {color}; " for number, color in enumerate(COLORS))
    own = [_text(f"style/{name}.css") for name in STYLES]
    return "\n".join([_text("vendor/uPlot.min.css"), f":root {{ {series}}}", *own])


def _policy(*scripts: str) -> str:
    """Nothing from anywhere, and no script but these; figures bring styles and, where they must, pictures of their own."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _text(name: str) -> str:
    return HERE.joinpath(name).read_text(encoding="utf-8")
