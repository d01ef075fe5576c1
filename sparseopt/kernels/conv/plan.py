"""What does not change from one pass through a region to the next."""

from sparseopt.kernels.match.graph import Activation, Conv, Region, Shortcut
from sparseopt.kernels.match.modules import zero_padding


class RegionPlan:
    """What does not change from run to run: who reads what, what must be kept, how wide borders are."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.activations = region.activations()
        self.readers = {each: region.readers(each) for each in self.activations}
        self.pooled = {o.activation for o in region.outputs if o.pooled}
        self.images = {o.activation for o in region.outputs if not o.pooled}
        self.summed_in: dict[Activation, list[Activation]] = {each: [] for each in self.activations}
        self.activation_of: dict[Conv, Activation] = {}
        for each in self.activations:
            if each.main is not None:
                self.activation_of[each.main] = each
            if each.shortcut is not None:
                self._note_shortcut(each, each.shortcut)
        self.makers: dict[Activation, list[Conv]] = {each: [] for each in self.activations}
        for conv, each in self.activation_of.items():
            self.makers[each].append(conv)
        self.kept = {each for each in self.activations if self._must_keep(each)}
        self.border = {each: self._border(each) for each in self.activations}

    def _note_shortcut(self, activation: Activation, shortcut: Shortcut) -> None:
        if isinstance(shortcut.source, Conv):
            self.activation_of[shortcut.source] = activation
        else:
            self.summed_in[shortcut.source].append(activation)

    def _must_keep(self, each: Activation) -> bool:
        """An activation that one convolution alone reads, and that is a function of z, is cheaper made twice."""
        wanted = (
            len(self.readers[each]) != 1 or self.summed_in[each] or each in self.pooled or each in self.images
        )
        return bool(wanted) or each.main is None or each.shortcut is not None

    def _border(self, each: Activation) -> int:
        paddings = (zero_padding(conv.module) or () for conv in self.readers[each])
        return max((size for padding in paddings for size in padding), default=0)
