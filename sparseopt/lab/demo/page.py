"""The demo's page: one HTML file with everything in it, for light and dark screens, phones and paper."""

import platform
from collections.abc import Sequence
from pathlib import Path

import jinja2
import torch
from markupsafe import Markup

from sparseopt import __version__
from sparseopt.lab.demo.act import Act
from sparseopt.lab.figures import svg
from sparseopt.lab.files import write_bytes


def write_page(acts: Sequence[Act], path: Path, *, seconds: float, workers: int) -> None:
    """Render the acts; figures are inlined as SVG and follow the page's colours."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sparseopt.lab.demo", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(
        acts=acts,
        figures={act.name: Markup(svg(act.figure, act.name)) for act in acts},
        version=__version__,
        torch_version=torch.__version__,
        machine=f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        minutes=f"{seconds / 60:.1f}",
        workers=workers,
    )
    write_bytes(path, page.encode())
