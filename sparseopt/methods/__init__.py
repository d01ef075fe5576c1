"""How connections move: static, SET, RigL. A new method is one small file that overrides a score."""

from sparseopt.methods.method import Method
from sparseopt.methods.rigl import RigL
from sparseopt.methods.set import SET
from sparseopt.methods.static import Static
from sparseopt.methods.weights import WeightMethod

__all__ = ["SET", "Method", "RigL", "Static", "WeightMethod"]
