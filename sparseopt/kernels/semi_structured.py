"""2:4 sparse Linear layers on the sparse tensor cores of NVIDIA's GPUs, by torch's own semi-structured tensors.

Train with `SRSTE` or `NM`, then let the weights change their form for inference. It works in place, in half precision or
bfloat16, on CUDA devices of capability 8.0 and above; elsewhere torch has no such kernels, and this says so.
"""

import torch
from torch import nn

from sparseopt.topology import Topology, uncompiled
from sparseopt.topology.nm import has_groups, to_groups


def to_semi_structured(model: nn.Module, topology: Topology) -> list[str]:
    """Turn the weights of all 2:4 Linear layers into torch's semi-structured tensors; gives the names of those layers.

    The model can infer afterwards, and not be trained.
    """
    model = uncompiled(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    names = [
        name for name in topology.layers if name.removesuffix(".weight") in found and _is_2_4(topology, name)
    ]
    if "weight" in topology.layers and isinstance(model, nn.Linear) and _is_2_4(topology, "weight"):
        names = ["weight"]
    if not names:
        raise ValueError("no Linear layer is 2:4 sparse: train with SRSTE or NM, with n=2 and m=4")
    devices = {topology.parameters[name].device.type for name in names}
    if devices != {"cuda"}:
        raise ValueError(
            f"semi-structured tensors run on CUDA devices only, and the model is on {', '.join(sorted(devices))}: move it "
            "there, or keep the weights as they are"
        )
    from torch.sparse import to_sparse_semi_structured

    for name in names:
        module = model.get_submodule(name.rpartition(".")[0])
        with torch.no_grad():
            module.weight = nn.Parameter(to_sparse_semi_structured(module.weight), requires_grad=False)  # pyright: ignore
    return names


def _is_2_4(topology: Topology, name: str) -> bool:
    layer, mask = topology.layers[name], topology.masks[name]
    return has_groups(layer, 4) and bool((to_groups(mask, layer, 4).sum(1) <= 2).all())
