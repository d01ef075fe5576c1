"""How weights move: the SparseOpt wrapper, the skew correction, HAM, gradient renormalisation."""

from sparseopt.optim.average import average
from sparseopt.optim.correction import skew_factors
from sparseopt.optim.ham import HAM
from sparseopt.optim.sparseopt import SparseOpt

__all__ = ["HAM", "SparseOpt", "average", "skew_factors"]
