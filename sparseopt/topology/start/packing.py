"""Put the weights of a model into packed storage."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sparseopt.topology.dense_grads import DenseGradients
from sparseopt.topology.layers import Layer
from sparseopt.topology.scatter import Scatter, as_index, pack, scatters
from sparseopt.topology.sharding import is_sharded
from sparseopt.topology.storage import Packed


def check_packable(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError, before anything has changed, if a weight cannot be packed."""
    for name, parameter in parameters.items():
        if is_sharded(parameter):
            raise ValueError(
                f"{name!r} is sharded by FSDP2, and a row of active values is not cut along the layer's axes: "
                "use storage='dense', which FSDP2 shards, or DDP, which sends the active values alone"
            )
        for module, leaf in holders(model, parameter):
            if isinstance(module, nn.RNNBase):
                raise ValueError(
                    f"{name!r} belongs to a {type(module).__name__}, which hands its weights to a fused kernel by "
                    f"reference: use storage='dense', or leave it out with exclude={name!r} ({leaf})"
                )


def refuse_packed(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        return  # `find_layers` says so
    for prefix, module in model.named_modules():
        for leaf, _ in scatters(module):
            raise ValueError(
                f"{f'{prefix}.{leaf}'.lstrip('.')!r} is sparse already, in packed storage: use the topology that the first "
                "sparsify returned, or start from a fresh model"
            )


@torch.no_grad()
def pack_layer(
    model: nn.Module, layer: Layer, parameter: nn.Parameter, mask: Tensor, grads: DenseGradients
) -> Packed:
    """Pack a weight in all modules that have it: a tied one stays tied. The parameter stays the same object."""
    scatter = Scatter(layer.name, layer.shape, as_index(mask.to(parameter.device)), grads, parameter)
    parameter.grad = None  # it has the dense shape
    for module, leaf in holders(model, parameter):
        pack(module, leaf, scatter)
    return Packed(layer, parameter, scatter)


def holders(model: nn.Module, parameter: nn.Parameter) -> list[tuple[nn.Module, str]]:
    """The modules that have a parameter, each with the name it has there."""
    return [
        (module, leaf)
        for module in model.modules()
        for leaf, each in module._parameters.items()
        if each is parameter
    ]
