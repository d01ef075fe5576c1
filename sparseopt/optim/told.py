"""What a user is told when an optimizer is made, or gets another method: the correction in force, and what the masks became."""

import logging
import warnings

from torch.optim import Optimizer

from sparseopt.methods import Method
from sparseopt.optim.correction import Correction, in_force, left_plain
from sparseopt.optim.tried import ignores_scale
from sparseopt.optim.wrapper import OptimizerWrapper
from sparseopt.topology import Topology
from sparseopt.topology.summary import listed

log = logging.getLogger(__name__)

NOTABLE = 0.02  # change of the sparsity; less is rounding, to a constant fan-in for instance


def tell_of_correction(base: Optimizer, topology: Topology, method: Method, correction: Correction) -> None:
    """To be called by what the user has called: a warning names the line of hers."""
    now = in_force(correction, method)
    if topology.init == "sparse" and now != "none":
        warnings.warn(
            "init='sparse' already removes the skew at the start, and the correction on top of it over-corrects; "
            "use correction='none' with it, or the model's own initialisation",
            stacklevel=3,
        )
    if correction == "auto":
        _tell_where(topology, method)
    _tell_without_effect(base, topology, now)


def tell_of_frozen(topology: Topology, method: Method) -> None:
    """Say which layers will not follow a method's schedule of sparsity."""
    frozen = [name for name, each in topology.parameters.items() if not each.requires_grad]
    if frozen and method.changes_counts():
        log.warning(
            "%s moves no masks of frozen weights (requires_grad=False): %s %s as sparse as now, whatever the method's sparsity",
            *(type(method).__name__, listed(frozen, 5), "stays" if len(frozen) == 1 else "stay"),
        )


def tell_of_start(method: Method, before: float, topology: Topology) -> None:
    """Say that the masks which a method begins with are of another sparsity than those it was given."""
    after = topology.sparsity()
    if method.starts_at() is None and abs(after - before) > NOTABLE:
        log.warning(
            "%s begins with masks of its own: sparsity %.4g became %.4g", type(method).__name__, before, after
        )


def _tell_where(topology: Topology, method: Method) -> None:
    """Say which layers "auto" corrects, if not all; loudly if none, because then it is the plain method."""
    others = [name for name in topology.layers if name not in topology.normed]
    if not topology.normed:
        log.warning(
            "no skew correction: none of the %d layers was found whose output goes into BatchNorm, which makes the skew",
            len(topology.layers),
        )
    elif left_plain(method):
        log.warning(
            "no skew correction with %s, by default: methods that go by gradients are left plain, since RigL trained worse "
            "corrected; 'layer' is the paper's correction, and 'none' asks for plain without this line",
            type(method).__name__,
        )
    elif others:
        log.info(
            "skew correction in %d of %d layers, those whose output goes into BatchNorm; not in %s",
            *(len(topology.normed), len(topology.layers), listed(others, 5)),
        )


def _tell_without_effect(base: Optimizer, topology: Topology, correction: Correction) -> None:
    """Say so where factors on gradients change nothing; loudly, if they were asked for."""
    corrected = correction != "none" and (correction != "auto" or bool(topology.normed))
    if corrected and not isinstance(base, OptimizerWrapper) and ignores_scale(base):
        log.log(
            logging.INFO if correction == "auto" else logging.WARNING,
            "a step of %s does not depend on the scale of a weight's gradients, so the skew correction, a factor on them, has "
            "next to no effect with it (docs/corrections.md)",
            type(base).__name__,
        )
