"""What the theory says and what a network shows: gradient ratios, the fan-in law, invariants, the skew diagnostic."""

from sparseopt.analysis.skew import LayerSkew, SkewReport, skew_report

__all__ = ["LayerSkew", "SkewReport", "skew_report"]
