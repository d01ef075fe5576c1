"""What the kernels can run of a trace, for training and for inference alike."""

from typing import Any

from torch import nn
from torch.fx import Graph

from sparseopt.kernels.match.chains import Chain, match_chains
from sparseopt.kernels.match.convs import Names, match_convs
from sparseopt.kernels.match.effects import effects
from sparseopt.kernels.match.graph import Region
from sparseopt.kernels.match.modules import tied_modules
from sparseopt.kernels.match.rewrite import Piece

BREAK_EVEN = 0.5  # sparsity of a piece below which dense kernels are as fast


def find_pieces_in(
    modules: dict[str, nn.Module], graph: Graph, tied: set[nn.Module], names: Names, *, gelu: bool = False
) -> list[Piece[Any]]:
    """Regions of convolutions, and chains of linear layers; with `gelu` it may be in chains."""
    barriers = effects(graph, modules)
    return [
        *match_convs(modules, graph, tied, barriers, names),
        *match_chains(modules, graph, tied, barriers, names, gelu=gelu),
    ]


def find_pieces(model: nn.Module, graph: Graph) -> tuple[list[Piece[Region]], list[Piece[Chain]]]:
    """The same of a trace of the whole model, layers by their names in it."""
    modules = dict(model.named_modules())
    tied = tied_modules(model)
    found = find_pieces_in(modules, graph, tied, lambda _, target: f"{target}.weight", gelu=True)
    regions = [piece for piece in found if isinstance(piece.content, Region)]
    return regions, [piece for piece in found if not isinstance(piece.content, Region)]
