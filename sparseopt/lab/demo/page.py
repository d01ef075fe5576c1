"""The demo's page: a report on its runs, with the acts in front."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from sparseopt.lab.demo.act import Act
from sparseopt.lab.report import Section, write_report
from sparseopt.lab.runs.catalogue import Run

YOURS = Section(
    "Your own network",
    label="And then",
    sentences=[
        "Two lines around a training loop that you already have; the optimizer, the scheduler and everything else stay."
    ],
    html=Markup(
        """<pre>import sparseopt as so

topology  = so.sparsify(model, sparsity=0.95)
optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=steps))</pre>
<p>To see whether the skew matters there: <code>print(so.analysis.skew_report(model, topology, loss))</code>.</p>"""
    ),
)


def write_page(acts: Sequence[Act], runs: Sequence[Run], path: Path, *, seconds: float, workers: int) -> None:
    """Write the acts, what to do next, and the report on all runs behind them."""
    write_report(
        runs,
        path,
        title="Sparse training, and the skew that BatchNorm puts into it",
        introduction=(
            f"Three acts on 4,000 real digits, computed on this machine in {seconds / 60:.1f} minutes by {workers} worker "
            "processes of one thread, and a report on every run behind them. No gain is claimed that the seeds do not support. "
            "Made again by sparseopt demo."
        ),
        sections=[*(act.section() for act in acts), YOURS],
    )
