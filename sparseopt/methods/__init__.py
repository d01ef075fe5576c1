"""How connections move: static, SET, RigL and the rest of the field. A new method is one small file that overrides a score."""

from sparseopt.methods.acdc import ACDC
from sparseopt.methods.annealed_topk import AnnealedTopK
from sparseopt.methods.deepr import DeepR
from sparseopt.methods.dsr import DSR
from sparseopt.methods.gmp import GMP
from sparseopt.methods.granet import GraNet
from sparseopt.methods.gse import GSE
from sparseopt.methods.mest import MEST
from sparseopt.methods.method import Method
from sparseopt.methods.nm import NM
from sparseopt.methods.rigl import RigL
from sparseopt.methods.set import SET
from sparseopt.methods.snfs import SNFS
from sparseopt.methods.srigl import SRigL
from sparseopt.methods.srste import SRSTE
from sparseopt.methods.static import Static
from sparseopt.methods.topkast import TopKAST
from sparseopt.methods.view import Count, LayerView, Memory
from sparseopt.methods.weights import WeightMethod

__all__ = [
    "ACDC",
    "DSR",
    "GMP",
    "GSE",
    "MEST",
    "NM",
    "SET",
    "SNFS",
    "SRSTE",
    "AnnealedTopK",
    "Count",
    "DeepR",
    "GraNet",
    "LayerView",
    "Memory",
    "Method",
    "RigL",
    "SRigL",
    "Static",
    "TopKAST",
    "WeightMethod",
]
