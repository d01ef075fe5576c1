"""What the theory says and what a network shows: gradient ratios, the fan-in law, invariants, the skew diagnostic, FLOPs."""

from sparseopt.analysis.flops import Flops, count_flops
from sparseopt.analysis.skew import LayerSkew, SkewReport, skew_report

__all__ = ["Flops", "LayerSkew", "SkewReport", "count_flops", "skew_report"]
