"""`compile_inference`: a frozen copy of a network, batch norm folded into the weights, on sparse kernels."""

import copy
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sparseopt.kernels.frozen.chain import FrozenChain
from sparseopt.kernels.frozen.description import Convs, Linears, share_of_zeros
from sparseopt.kernels.frozen.engine import Engine, LayerReport
from sparseopt.kernels.frozen.freeze import freeze_chain, freeze_region
from sparseopt.kernels.frozen.joining import join_regions
from sparseopt.kernels.frozen.pool import replace_pools
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.match.chains import ChainLayer
from sparseopt.kernels.match.heads import take_heads
from sparseopt.kernels.match.modules import must_be_called
from sparseopt.kernels.match.pieces import BREAK_EVEN, find_pieces
from sparseopt.kernels.match.reasons import HOOKED, layers, not_known, why_dense
from sparseopt.kernels.match.rewrite import Piece, rewrite
from sparseopt.kernels.match.tracing import Unsupported
from sparseopt.kernels.match.whole import defaults, trace, unprovable_python
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.norm import Normed
from sparseopt.topology import Topology

Found = dict[FrozenRegion | FrozenChain, Piece[Any]]
Report = tuple[str, int, float]  # kind, weights, share of zeros

NOT_AS_TRACED = "the model does something else in a trace than in a call"

# Weights of a chain of linear layers, below which torch's dense one takes less time than changing the layout.
SMALL = 1 << 16


def compile_inference(model: nn.Module, topology: Topology | None = None) -> Engine:
    """The network as it is now, for inference alone: `engine(x)` is what `model.eval()(x)` would be.

    The engine is a copy: later changes of the model do not reach it. Convolutions and linear layers run on the weights that
    are not zero, whatever the masks of `topology` say, batch norm costs nothing, and a batch passes through all layers of a
    region in shares that stay in the cache. `print(engine)` says what runs how. Of a model that torch.fx cannot trace, the linear
    layers run on the kernels one by one. Raises `BuildError` or `Unsupported` where the kernels cannot run.

    Args:
        model: the trained network; the engine is a copy.
        topology: its topology, as `sparsify` returned it.

    >>> import torch, sparseopt as so
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    >>> engine = so.compile_inference(model, so.sparsify(model, sparsity=0.9))
    >>> engine(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 16, 32, 32])
    """
    operators()
    name, model = type(model).__name__, frozen_copy(model)
    ways = [partial(_of_trace, model, name, {})]
    if may_be_left_out := defaults(model):
        ways.append(partial(_of_trace, model, name, may_be_left_out))
    why = ""
    for number, make in enumerate(ways):
        try:
            engine = make()
        except Unsupported as reason:
            why = str(reason)
            continue
        if engine.frozen:
            engine.compare_with(
                model, [*ways[number + 1 :], partial(_as_written, model, name, NOT_AS_TRACED)]
            )
        return engine
    return _as_written(model, name, why)


def _of_trace(model: nn.Module, name: str, left_out: Mapping[str, Any]) -> Engine:
    """From one trace; `left_out` are arguments that calls leave out. Raises `Unsupported`."""
    traced = trace(model, left_out)
    reports, reasons, frozen = _reports(model), why_dense(model, traced.graph), unprovable_python(model)
    if left_out:
        frozen[""] = f"is called without {', '.join(left_out)}"
    rewrite(traced, find_sparse(model, traced.graph, reasons))
    replace_pools(traced)
    traced.delete_all_unused_submodules()
    return _engine(traced, name, reports, reasons, frozen)


def _as_written(model: nn.Module, name: str, why: str) -> Engine:
    """Without a trace: the linear layers run on the kernels one by one."""
    model = copy.deepcopy(model)
    reports = _reports(model)
    engine = _engine(model, name, reports, replace_linears(model, why))
    engine.untraced = why
    return engine


def _engine(
    program: nn.Module,
    name: str,
    reports: Mapping[str, Report],
    reasons: Mapping[str, str],
    frozen: Mapping[str, str] | None = None,
) -> Engine:
    engine = Engine(program, (), name, frozen)
    sparse = {name for piece in engine.pieces() for name in piece.content.names()}
    engine.layers = tuple(
        LayerReport(name, *report, None if name in sparse else reasons[name])
        for name, report in reports.items()
    )
    return engine


def _reports(model: nn.Module) -> dict[str, Report]:
    return {name: (type(module).__name__, *count_weights(module)) for name, module in layers(model)}


def frozen_copy(model: nn.Module) -> nn.Module:
    """In evaluation mode, as plain parameters in float32 on the CPU. Raises `Unsupported`."""
    while (inside := wrapped_in(model)) is not None:
        model = inside
    if isinstance(model, torch.jit.ScriptModule):
        raise Unsupported("a scripted model cannot be traced: compile the model that was scripted")
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            make_plain(module)
    model.requires_grad_(False)
    for name, each in model.named_parameters():
        if each.dtype != torch.float32 or each.device.type != "cpu":
            raise Unsupported(
                f"engines compute in float32 on the CPU, and {name!r} is {each.dtype} on {each.device}: "
                "compile model.float().cpu()"
            )
    # A trace shows what a model calls, and not the model itself.
    alone = type(model).__module__.startswith("torch.nn") and not isinstance(model, nn.Sequential)
    return nn.Sequential(model) if alone or must_be_called(model) else model


def wrapped_in(model: nn.Module) -> nn.Module | None:
    """The network inside what torch.compile or data parallelism has put around it."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return model.module
    return getattr(model, "_orig_mod", None)


@torch.no_grad()
def make_plain(module: nn.Module) -> None:
    """Give a parametrized module its weights as they are. Torch's own removal would change the class, which copies share."""
    weights = {name: getattr(module, name) for name in module._modules["parametrizations"] or ()}  # pyright: ignore
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module._modules["parametrizations"]
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight.detach().clone()))


def find_sparse(model: nn.Module, graph: Any, reasons: dict[str, str]) -> Found:
    """What runs on the kernels; of the rest that could, the reason is noted."""
    regions, chains = find_pieces(model, graph)
    found: Found = {}
    for piece in chains:
        if not foldable(piece.content, reasons):
            continue
        frozen = freeze_chain(piece.content)
        if worthwhile(frozen, reasons) and large(frozen, reasons):
            found[FrozenChain(frozen)] = piece
    taken = frozenset().union(*(each.nodes for each in found.values()))
    names: Mapping[nn.Module, str] = {module: name for name, module in model.named_modules()}
    pieces: list[Piece[Convs]] = []
    for piece in regions:
        if not foldable(piece.content.convs, reasons):
            continue
        with_heads, heads = take_heads(model, piece, taken)
        frozen = freeze_region(piece.content, heads, names)
        if worthwhile(frozen, reasons):
            pieces.append(Piece(frozen, with_heads.nodes, with_heads.inputs, with_heads.outputs))
    found |= {FrozenRegion(piece.content): piece for piece in join_regions(model, graph, pieces)}
    return found


def replace_linears(model: nn.Module, untraced: str) -> dict[str, str]:
    """Let the sparse linear layers of a model that cannot be traced run on the kernels, each by itself; why the others do not."""
    reasons: dict[str, str] = {}
    for name, module in list(layers(model)):
        if type(module) is not nn.Linear:
            known = isinstance(module, nn.Linear | nn.Conv2d)
            reasons[name] = untraced if known else not_known(module)
        elif must_be_called(module):
            reasons[name] = HOOKED
        else:
            frozen = freeze_chain([ChainLayer(module, f"{name}.weight")])
            if worthwhile(frozen, reasons) and large(frozen, reasons):
                module.sparse = FrozenChain(frozen)
                module.forward = partial(_only, module.sparse)
    return reasons


def _only(chain: FrozenChain, input: Tensor) -> Tensor:
    return chain(input)[0]


def foldable(layers: Iterable[Normed], reasons: dict[str, str]) -> bool:
    """Whether batch norms have statistics that could be folded into the weights."""
    layers = list(layers)
    without = [each for each in layers if each.norm is not None and each.norm.running_mean is None]
    if without:
        message = "a batch norm behind it has no running statistics: its output depends on the whole batch"
        names = (each.weight.removesuffix(".weight") for each in layers if each.weight is not None)
        reasons |= dict.fromkeys(names, message)
    return not without


def large(frozen: Linears, reasons: dict[str, str]) -> bool:
    if sum(weight.size for weight in frozen.weights()) >= SMALL:
        return True
    message = f"fewer than {SMALL:,} weights in the layers that run together, and a call of the kernels takes longer"
    reasons |= dict.fromkeys(frozen.names(), message)
    return False


def worthwhile(frozen: Any, reasons: dict[str, str]) -> bool:
    zeros = share_of_zeros(frozen.weights())
    if zeros >= BREAK_EVEN:
        return True
    message = f"{zeros:.0%} zeros in the layers that run together, and below {BREAK_EVEN:.0%} dense is faster"
    reasons |= dict.fromkeys(frozen.names(), message)
    return False


def count_weights(module: nn.Module) -> tuple[int, float]:
    """How many weights a layer has, and the share of them that are zero."""
    weights = [each for each in module._parameters.values() if each is not None and each.dim() >= 2]
    size = sum(each.numel() for each in weights)
    return size, 1 - sum(int(each.count_nonzero()) for each in weights) / max(size, 1)
