"""Act 1, speed: the same network dense, accelerated and compiled for inference, timed on this machine."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparseopt.lab.demo.act import Act
from sparseopt.lab.show.colors import COLORS
from sparseopt.lab.show.figures import panels, style
from sparseopt.lab.speed.measure import ACCELERATED, DENSE, ENGINE, Speed
from sparseopt.lab.speed.words import machine, milliseconds, sentence, size, table

BARS = {DENSE: COLORS[7], ACCELERATED: COLORS[0], ENGINE: COLORS[1]}
LABELS = {DENSE: "dense torch", ACCELERATED: "so.accelerate", ENGINE: "so.compile_inference"}


def speed_act(speed: Speed) -> Act:
    """From a measurement of one network."""
    return Act(
        number=1,
        name="speed",
        title="Speed",
        figure=_draw(speed),
        caption=(
            f"A {speed.network}, {speed.sparsity:.0%} zeros (ERK), timed just now on {machine(speed.threads)}: medians "
            "of the CPU time of calls that took turns. Dense is torch as it is written (eager); weights are packed "
            '(storage="packed"). '
            "so.accelerate is for training and for batches: a single image is what engines are for. Right: the network on disk."
        ),
        sentences=[
            sentence(speed),
            "The speed comes from the CPU kernels of so.accelerate and so.compile_inference; masks alone, and a GPU, gain "
            "size and no time.",
        ],
        table=table([speed]),
    )


def _draw(speed: Speed) -> Figure:
    with style():
        figure, axes = panels(4, width=2.5, height=2.3)
        for axis, task in zip(axes, speed.tasks, strict=False):
            shown = {LABELS[kind]: (value, BARS[kind]) for kind, value in task.ms.items()}
            _bars(axis, shown, task.name, [f"{milliseconds(value)} ms" for value, _ in shown.values()])
        sizes = {"dense": (speed.dense_bytes, BARS[DENSE]), "packed": (speed.packed_bytes, COLORS[2])}
        _bars(axes[3], sizes, "on disk", [size(value) for value, _ in sizes.values()])
    return figure


def _bars(axis: Axes, shown: Mapping[str, tuple[float, str]], title: str, texts: list[str]) -> None:
    """Bars from the top down, each with its name and its number written on it."""
    longest = max(value for value, _ in shown.values())
    for row, ((name, (value, color)), text) in enumerate(zip(shown.items(), texts, strict=True)):
        axis.barh(row, value, height=0.5, color=color)
        axis.text(0, row - 0.3, name, fontsize=8.5, va="bottom")
        axis.text(value + 0.02 * longest, row, text, fontsize=8.5, va="center")
    axis.set(title=title, xlim=(0, 1.45 * longest), ylim=(len(shown) - 0.5, -0.75), xticks=[], yticks=[])
    axis.grid(visible=False)
    axis.spines[["left", "bottom"]].set_visible(False)
