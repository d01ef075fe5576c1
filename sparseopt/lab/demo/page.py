"""The demo's page: a report on its runs, with the acts in front."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from sparseopt.lab.demo.act import Act
from sparseopt.lab.report import Section, write_report
from sparseopt.lab.runs.catalogue import Run

WHEN = (
    "Use it where a network must be small, or fast on a CPU, or where sparse training itself is what you study; not to train "
    "faster on a GPU, where masks over dense kernels take as long as the dense network."
)
"""When to use this and when not: the first thing that the demo says."""

YOURS = Section(
    "Your own network",
    label="And then",
    sentences=[
        "Two lines around a training loop that you already have; the optimizer, the scheduler and everything else stay."
    ],
    html=Markup(
        """<pre>import sparseopt as so

topology  = so.sparsify(model, sparsity=0.95)
optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=steps))

model  = so.accelerate(model, topology)            # train on the CPU kernels
engine = so.compile_inference(model, topology)     # after training: a frozen copy, as fast as in act 1</pre>
<p>To see whether the skew matters there: <code>print(so.analysis.skew_report(model, topology, loss))</code>.</p>"""
    ),
)


def write_page(acts: Sequence[Act], runs: Sequence[Run], path: Path, *, seconds: float, workers: int) -> None:
    """Write the acts, what to do next, and the report on all runs behind them."""
    write_report(
        runs,
        path,
        title="Sparse training: how fast, how small, how well",
        introduction=(
            f"{WHEN} Four acts, three of them on real digits, computed on this machine in {seconds / 60:.1f} minutes by "
            f"{workers} worker processes of one thread, and a report on every run behind them. No gain is claimed that the "
            "seeds do not support. "
            "Made again by sparseopt demo."
        ),
        sections=[*(act.section() for act in acts), YOURS],
    )
