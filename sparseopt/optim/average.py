"""An exponential moving average of a sparse network's weights that is as sparse as the network.

The average of weights whose masks move is not zero where any of the masks was not: after a few updates of the topology it is
nearly dense. `average` gives torch's own `AveragedModel`, which after every `update_parameters` is exactly zero outside the
masks in force. A weight that is dropped loses its average; one that is grown starts at zero in the average as in the network.

>>> import torch, sparseopt as so
>>> model = torch.nn.Linear(8, 4)
>>> topology = so.sparsify(model, 0.5)
>>> ema = so.average(model, topology, decay=0.9)
>>> ema.update_parameters(model)  # after every optimizer.step()
>>> bool(ema.module.weight[~topology.masks["weight"]].any())
False
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sparseopt.topology import Topology
from sparseopt.topology.scatter import Scatter, scatter_values, scatters
from sparseopt.topology.storage import Dense, Packed, hold


class Followed:
    """The topologies that an average may follow: that of the network, and in a copy of the average first the copy of it.

    A copy may go on with the network, or with a copy of the network that was made together with it.
    """

    def __init__(self, *topologies: Topology) -> None:
        self._topologies = topologies

    def of(self, model: nn.Module) -> Topology:
        """The one of this model."""
        here = {id(parameter) for parameter in model.parameters()}
        known = (each for each in self._topologies if here.issuperset(map(id, each.parameters.values())))
        return next(known, self._topologies[0])

    def __deepcopy__(self, memo: dict[int, Any]) -> "Followed":
        return Followed(copy.deepcopy(self._topologies[0], memo), *self._topologies)


class SparseAverage(AveragedModel):
    """`AveragedModel` that holds its weights to the masks of a topology. Its state is that of an `AveragedModel`."""

    def __init__(self, model: nn.Module, topology: Topology, decay: float) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        names = {id(parameter): name for name, parameter in topology.parameters.items()}
        found = [names.get(id(parameter)) for parameter in model.parameters()]
        missing = [name for name in topology.parameters if name not in found]
        if missing:
            raise ValueError(f"the topology is of another model: this one has no {', '.join(missing[:3])}")
        self._names, self._followed = found, Followed(topology)
        self._order: int | None = None  # of the masks that packed values are in the order of
        for _, scatter, packed in self._packed(topology):
            packed.scatter.copies.discard(scatter)  # it is looked after here

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        topology = self._followed.of(model)
        if self._order != topology.version:
            for values, scatter, packed in self._packed(topology):
                scatter.put(packed.index.to(values.device), values)
            self._order = topology.version
        super().update_parameters(model)
        for name, parameter in zip(self._names, self.module.parameters(), strict=True):
            storage = topology.storage.get(name or "")
            if isinstance(storage, Dense):
                hold([(parameter.detach(), storage.part.to(parameter.device))])

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        self._order = None
        return super().load_state_dict(*args, **options)

    def _packed(self, topology: Topology) -> Iterator[tuple[nn.Parameter, Scatter, Packed]]:
        for module in self.module.modules():
            for leaf, scatter in scatters(module):
                packed = topology.packed(scatter.name)
                if packed is not None:
                    yield scatter_values(module, leaf), scatter, packed


def average(model: nn.Module, topology: Topology, decay: float = 0.999) -> SparseAverage:
    """An average of the model's weights, w <- decay w + (1 - decay) weight, sparse by the masks in force.

    Call `update_parameters(model)` after every step. `average.module` is the averaged network, `state_dict` and
    `load_state_dict` make it part of a checkpoint. Buffers, such as BatchNorm's statistics, are the model's own; see
    `torch.optim.swa_utils.update_bn`.

    Args:
        model: the network that is trained.
        topology: what `sparsify` returned for it.
        decay: what the average keeps of itself at an update.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay must be in [0, 1), got {decay}")
    return SparseAverage(model, topology, decay)
