"""Every method of the field, set up for a short run: shared by the tests that hold for all of them."""

from typing import Any

import sparseopt as so

STEPS = 28


def methods(total_steps: int = STEPS, every: int = 3) -> dict[str, so.Method]:
    """By name. The schedules put several updates, and what ends them, into so many steps."""
    often: dict[str, Any] = {"total_steps": total_steps, "every": every, "drop_fraction": 0.5, "until": 1.0}
    return {
        "static": so.Static(),
        "set": so.SET(**often),
        "rigl": so.RigL(**often),
        "gse": so.GSE(**often, subset=0.5),
        "srigl": so.SRigL(**often),
        "mest": so.MEST(**often),
        "mest-soft": so.MEST(**{**often, "until": 0.8}, soft=True),
        "dsr": so.DSR(**often, threshold=0.05),
        "snfs": so.SNFS(**often),
        "deepr": so.DeepR(total_steps, temperature=1e-4),
        "nm": so.NM(so.RigL(**often)),
        "nm-set": so.NM(so.SET(**often), n=1, m=2),
        "gmp": so.GMP(total_steps, every=every, until=1.0, sparsity=0.8),
        "gmp-global": so.GMP(total_steps, every=every, until=1.0, sparsity=0.8, start=0.2, scope="global"),
        "granet": so.GraNet(total_steps, every=every, sparsity=0.8),
        "acdc": so.ACDC(total_steps, sparsity=0.8, warmup=0.1, phase=0.2),
        "topkast": so.TopKAST(total_steps, sparsity=0.8, backward_sparsity=0.5),
        "topkast-every": so.TopKAST(total_steps, every=every, sparsity=0.8, backward_sparsity=0.6),
        "annealed": so.AnnealedTopK(total_steps, sparsity=0.8),
        "srste": so.SRSTE(total_steps),
    }


METHODS = methods()
