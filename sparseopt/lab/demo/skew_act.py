"""Act 2, the skew: BatchNorm amplifies the gradients of sparse neurons, and the correction evens them out."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparseopt.lab.analyses.analysis import Result
from sparseopt.lab.analyses.bn_ratio import centre_and_spread, deviation, draw_ratio
from sparseopt.lab.analyses.fan_in import draw_law
from sparseopt.lab.demo.act import Act
from sparseopt.lab.show.colors import COLORS, MARKERS
from sparseopt.lab.show.figures import panels, style


def skew_act(ratio: Result, law: Result) -> Act:
    """From the results of the analyses bn-ratio and fan-in."""
    return Act(
        number=2,
        name="skew",
        title="The skew",
        figure=_draw(ratio, law["law"]),
        caption=(
            f"A 784-64-10 network at initialisation, nothing trained, on {ratio['inputs']}. Left: mean |gradient| of the active "
            f"first-layer weights, sparse over dense, {len(ratio['curves']['batch']['weight'])} seeds (bars: standard deviation; "
            "band: spread over batches). Middle: the same neuron by neuron in a layer of heterogeneous fan-in, "
            f"{len(law['law']['slope'])} seeds. Right: cosine of the angle to the gradient of the dense network, over the active "
            "weights; one line a seed."
        ),
        sentences=_sentences(ratio, law["law"]),
    )


def _draw(ratio: Result, law: Result) -> Figure:
    with style():
        figure, (left, middle, right) = panels(3, width=3.3, height=3.0)
        draw_ratio(left, ratio, "weight")
        left.set(title="BatchNorm amplifies sparse layers", ylabel="gradient ratio, sparse / dense")
        left.legend(loc="upper left")
        draw_law(middle, law)
        middle.set_title("... neuron by neuron")
        _draw_cosines(right, law)
    return figure


def _draw_cosines(axis: Axes, law: Result) -> None:
    for plain, corrected in zip(law["cosine"], law["corrected_cosine"], strict=True):
        axis.plot([0, 1], [plain, corrected], color=COLORS[7], lw=0.8, alpha=0.7)
    for position, key in enumerate(("cosine", "corrected_cosine")):
        values = law[key]
        axis.plot([position] * len(values), values, MARKERS[position], color=COLORS[position], ms=5)
    axis.set_xticks([0, 1], ["plain", "corrected"])
    axis.set(
        xlim=(-0.4, 1.4),
        ylim=(0.4, 1),
        ylabel="cosine (1: same direction)",
        title="Closer to the dense gradient",
    )


def _sentences(ratio: Result, law: Result) -> list[str]:
    average, worst = deviation(ratio, "batch")
    without = float(centre_and_spread(ratio["curves"]["none"]["weight"])[0][-1])
    sparsest = ratio["sparsities"][-1]
    slope, corrected = (float(np.mean(law[key])) for key in ("slope", "corrected_slope"))
    cosine, turned = (float(np.mean(law[key])) for key in ("cosine", "corrected_cosine"))
    return [
        "With BatchNorm the gradients of a layer of sparsity s should grow by 1/sqrt(1-s): measured is "
        f"{average:+.1%} from theory on average over the sparsities and {worst:+.1%} at worst. Without BatchNorm the ratio at "
        f"s = {sparsest:g} is {without:.2f}.",
        f"Within a layer the gradient scale of a neuron against its density has slope {slope:+.2f} in logarithms (theory -0.5). "
        f"After the correction it is {corrected:+.2f} (theory 0), and the cosine to the dense gradient goes from {cosine:.2f} to "
        f"{turned:.2f}.",
    ]
