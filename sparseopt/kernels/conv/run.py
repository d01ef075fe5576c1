"""A run of a region: forward, and the way back.

Backward, convolutions run in reverse, each leaving its share of its input's gradient; the last share to come in finishes the
gradient on the way: ReLU, the shortcut's share, and the sums that the batch norm below needs.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.conv.forward import ForwardPass, shape_of, with_border
from sparseopt.kernels.conv.numbers import Numbers
from sparseopt.kernels.conv.tiles import trial_blocks
from sparseopt.kernels.match.graph import Activation, Conv, Output
from sparseopt.kernels.match.modules import zero_padding
from sparseopt.kernels.native.buffers import Shape
from sparseopt.kernels.native.memory import doubles, floats
from sparseopt.kernels.native.norm import by_parameter
from sparseopt.kernels.native.packed import weight_gradients
from sparseopt.topology.dense_grads import Rows

Entered = tuple[Tensor, bool]  # where a gradient came in, and whether it was added

PLAIN = (None, 0, 0, False, None, None)  # neither a shortcut's share, nor a ReLU, nor sums
NOWHERE = (None, 0, False, *PLAIN)


class RegionRun(ForwardPass):
    """A pass, and the same back, `enter_back`, `compute_back` and `leave_back`, once: it overwrites what was kept."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.again = True  # whether all that is computed is computed by the library
        self.g: dict[Activation, Tensor] = {}
        self.g_shapes: dict[Activation, Shape] = {}
        self.sums: dict[Activation, Tensor] = {}
        self.of_biases: dict[Tensor, Tensor] = {}  # gradients
        self.input_gradients: list[tuple[Tensor, int] | None] = []  # with their borders
        self.held: list[Tensor] = []  # what the kernels were given
        self._numbers = Numbers()
        self._dense: dict[Conv, Rows] = {}  # gradients of all weights, where they are wanted
        self._done: set[Conv] = set()
        self._summed: set[Activation] = set()  # activations whose shortcuts' shares are in

    def enter_back(
        self, gradients: Sequence[Tensor | None], places: Iterable[Entered] | None = None
    ) -> list[Entered]:
        """Bring in the gradients of the outputs; `places`: where, if they have been there before. Returns where."""
        found = [
            (output, gradient.contiguous())
            for output, gradient in zip(self.plan.region.outputs, gradients, strict=True)
            if gradient is not None
        ]
        if places is None:
            places = (self._gradient(output.activation) for output, _ in found)
        return [self._enter(*each, *place) for each, place in zip(found, places, strict=True)]

    def compute_back(self, input_wanted: Sequence[bool]) -> None:
        wanted = dict(zip(self.plan.region.inputs, input_wanted, strict=True))
        self._numbers = Numbers(
            {conv: (self.values[conv].numel(), conv.channels) for conv in self.plan.region.convs}
        )
        for conv in reversed(self.plan.region.convs):
            self._convolve_back(conv, wanted.get(conv.input, True))
        self.input_gradients = [
            self._complete_input_gradient(each) if want else None for each, want in wanted.items()
        ]

    def leave_back(self) -> tuple[list[Tensor | None], dict[Tensor, Tensor]]:
        inputs = zip(self.plan.region.inputs, self.input_gradients, strict=True)
        of_inputs = [None if found is None else self._leave_gradient(each, *found) for each, found in inputs]
        return of_inputs, self._deliver()

    def _gradient(self, activation: Activation) -> tuple[Tensor, bool]:
        """The buffer of an activation's gradient, and whether shares are in it already."""
        if activation in self.g:
            return self.g[activation], True
        shape = self.shapes[activation]
        self.g_shapes[activation] = Shape(*with_border(shape, 0))
        self.g[activation] = self.buffers.take(self.g_shapes[activation])
        return self.g[activation], False

    def _enter(self, output: Output, gradient: Tensor, g: Tensor, accumulate: bool) -> Entered:
        if output.pooled:
            self.ops.pool_backward(gradient, g, 0, accumulate)
        elif accumulate:
            share = torch.empty_like(g)
            self.ops.pack(gradient, share, 0, repeat=False)
            g += share
        else:
            self.ops.pack(gradient, g, 0, repeat=False)
        return g, accumulate

    def _complete_gradient(self, activation: Activation) -> None:
        """Finish a gradient that the last convolution to read the activation could not finish."""
        if activation in self.sums:
            return
        self._add_shortcuts(activation)
        g, filled = self._gradient(activation)
        if not filled:
            self._zero(g)
        self.sums[activation] = self._sums(activation)
        assert activation.main is not None
        x, border = (self.x[activation], self.kept_shape(activation).border) if activation.relu else (None, 0)
        self.ops.finish_gradient(
            g,
            self.g_shapes[activation].border,
            x,
            border,
            self.z[activation.main],
            self.norms[activation.main].affine,
            self.samples,
            self.sums[activation],
        )

    def _sums(self, activation: Activation) -> Tensor:
        sums = doubles(2, activation.channels)
        self.held.append(sums)
        return sums

    def _add_shortcuts(self, activation: Activation) -> None:
        """The shares that residual sums leave to an activation they added."""
        for summed in self.plan.summed_in[activation]:
            self._complete_gradient(summed)
            to, accumulate = self._gradient(activation)
            shortcut = summed.shortcut
            assert shortcut is not None
            self.ops.shortcut_backward(
                self.g[summed], self.g_shapes[summed].border, shortcut.stride, shortcut.offset,
                to, self.g_shapes[activation].border, accumulate,
            )  # fmt: skip
        self._summed.add(activation)

    def _convolve_back(self, conv: Conv, input_wanted: bool) -> None:
        activation, source = self.plan.activation_of[conv], conv.input
        self._complete_gradient(activation)
        of_weights, of_norm = self._numbers.of(conv)
        coefficients, found = self.norms[conv].backward(self._sums_of(conv, activation), of_norm)
        self.of_biases.update(found)
        lists, values = self.used[conv], self.values[conv]
        use = lists.backward
        self._done.add(conv)
        read = (
            *(self.g[activation], self.g_shapes[activation].border, self.z[conv], coefficients),
            *self._input(source),
        )
        if self.weights[conv].dense_wanted:
            self._dense[conv] = self._dense_gradient(conv, read)
        to, *target = self._target(conv) if input_wanted else NOWHERE
        pattern = (values, use.start, use.offset, use.order)
        window = (conv.module.stride[0], lists.backward_reach, lists.backward_border)
        named = {
            "samples": self.samples,
            "weight_gradient": of_weights,
            "sums": self.sums.get(source),
            "dense": lists.window if lists.dense else None,
        }

        def tried() -> tuple[Any, ...]:
            """What the gradient is added to, or takes the place of, is read once: trials write elsewhere."""
            elsewhere = None if to is None else torch.zeros_like(to[: trial_blocks()])
            return (*read, elsewhere, *target, *pattern, *window)

        tile = self.tile(conv, self.ops.conv_backward, tried, named, backward=True)
        self.ops.conv_backward(*read, to, *target, *pattern, *window, **named, tile=tile)
        self.held += (coefficients, values)
        self._release(conv)
        self._release_used()

    def _release_used(self) -> None:
        """Give back gradients, and activations in half precision, that no convolution to come reads."""
        for activation in list(self.g):
            shortcut = activation.shortcut
            left = shortcut is None or isinstance(shortcut.source, Conv) or shortcut.source in self._summed
            if activation.main is None or not left or activation not in self.sums:
                continue
            if all(conv in self._done for conv in self.plan.makers[activation]):
                self.buffers.give(self.g_shapes[activation], self.g.pop(activation))
                if activation in self.x:
                    self.buffers.give(self.kept_shape(activation), self.x.pop(activation))

    def _deliver(self) -> dict[Tensor, Tensor]:
        """The gradients of the parameters, in memory that is theirs from now on."""
        convs, of_weights, gradients = self.plan.region.convs, [], {**self.of_biases}
        for conv, (of_weight, *of_norm) in zip(convs, self._numbers.copies(), strict=True):
            of_weights.append(of_weight)
            if conv.norm is not None:
                gradients |= by_parameter(conv.norm, *of_norm)
        weights = [self.weights[conv] for conv in convs]
        positions = [self.used[conv].position for conv in convs]
        dense = [self._dense.get(conv) for conv in convs]
        found = weight_gradients(weights, of_weights, positions, dense)
        return gradients | {weight.parameter: each for weight, each in zip(weights, found, strict=True)}

    def _dense_gradient(self, conv: Conv, read: tuple[Any, ...]) -> Rows:
        """The gradient of all weights: computed now, before what it is made from is overwritten."""
        gradient = floats(*self.weights[conv].shape)
        window = (conv.module.stride[0], zero_padding(conv.module))
        self.ops.conv_dense_gradient(*read, *window, self.samples, gradient)
        return gradient.__getitem__

    def _sums_of(self, conv: Conv, activation: Activation) -> Tensor:
        if activation.main is conv:
            return self.sums[activation]
        sums = torch.empty_like(self.sums[activation])
        self.held.append(sums)
        g, border = self.g[activation], self.g_shapes[activation].border
        self.ops.finish_gradient(
            g, border, None, 0, self.z[conv], self.norms[conv].affine, self.samples, sums
        )
        return sums

    def _input(self, activation: Activation) -> tuple[Any, ...]:
        """What the backward pass reads as the convolution's input: its kept rows, or z to make them again."""
        if activation in self.plan.kept:
            return (self.x[activation], self.kept_shape(activation).border, None, False)
        assert activation.main is not None
        return (self.z[activation.main], 0, self.norms[activation.main].affine, activation.relu)

    def _target(self, conv: Conv) -> tuple[Any, ...]:
        """Where the gradient of the convolution's input goes, finished if this is the last share of it."""
        activation = conv.input
        if not self._last_share(activation):
            to, accumulate = self._gradient(activation)
            return (to, self.g_shapes[activation].border, accumulate, *PLAIN)
        summed = self.plan.summed_in[activation]
        fused = summed[0] if len(summed) == 1 and self._same_step(summed[0], conv) else None
        if fused is None:
            self._add_shortcuts(activation)
        shortcut: tuple[Any, ...] = (None, 0, 0)
        if fused is not None:
            self._complete_gradient(fused)
            self._summed.add(activation)
            assert fused.shortcut is not None
            shortcut = (self.g[fused], self.g_shapes[fused].border, fused.shortcut.offset)
        if activation not in self.g and activation in self.x and not self.kept_shape(activation).half:
            # Nobody reads the kept rows after this pass: the gradient takes their place, position by position.
            self.g[activation], self.g_shapes[activation] = self.x.pop(activation), self.shapes[activation]
            to, accumulate = self.g[activation], False
        else:
            to, accumulate = self._gradient(activation)
        z = norm = None
        if activation.main is not None:
            z, norm = self.z[activation.main], self.norms[activation.main].affine
            self.sums[activation] = self._sums(activation)
        return (to, self.g_shapes[activation].border, accumulate, *shortcut, activation.relu, z, norm)

    def _last_share(self, activation: Activation) -> bool:
        """Whether nothing is missing from an activation's gradient but what the convolution at hand and finished sums add."""
        waiting = [activation]
        while waiting:  # a loop: there may be hundreds of sums, one behind the other
            each = waiting.pop()
            if any(conv not in self._done for conv in self.plan.readers[each]):
                return False
            waiting += self.plan.summed_in[each]
        return True

    @staticmethod
    def _same_step(summed: Activation, conv: Conv) -> bool:
        return summed.shortcut is not None and summed.shortcut.stride == conv.module.stride[0]

    def _complete_input_gradient(self, activation: Activation) -> tuple[Tensor, int]:
        if activation not in self._summed:
            self._add_shortcuts(activation)
        g, filled = self._gradient(activation)
        return g if filled else self._zero(g), self.g_shapes[activation].border

    def _zero(self, g: Tensor) -> Tensor:
        self.again = False
        return g.zero_()

    def _leave_gradient(self, activation: Activation, g: Tensor, border: int) -> Tensor:
        shape = self.shapes[activation]
        image = floats(self.samples, shape.channels, shape.height, shape.width)
        self.ops.unpack(g, border, image)
        return image

    def _release(self, conv: Conv) -> None:
        z = self.z.pop(conv)
        self.buffers.give(shape_of(z), z)

    def begin(self) -> None:
        """Forget the pass before."""
        self.clear(self.buffers.state())
        self.held, self.again = [], True
        self._dense.clear()

    def state(self) -> tuple[Any, ...]:
        """What a backward pass starts from and uses up."""
        return {**self.x}, {**self.z}, self.buffers.state()

    def set_state(self, state: tuple[Any, ...]) -> None:
        x, z, free = state
        self.clear(free)
        self.x, self.z = {**x}, {**z}

    def clear(self, free: Any) -> None:
        """Forget the pass; `free` is the memory that is free then."""
        self.buffers.set_state(free)
        for each in (
            self.x,
            self.z,
            self.g,
            self.g_shapes,
            self.sums,
            self.of_biases,
            self._done,
            self._summed,
        ):
            each.clear()

    def release(self) -> None:
        """Give back every buffer that is still held."""
        for conv in list(self.z):
            self._release(conv)
        for activation, buffer in self.x.items():
            self.buffers.give(self.kept_shape(activation), buffer)
        for activation, buffer in self.g.items():
            self.buffers.give(self.g_shapes[activation], buffer)
        self.x.clear()
        self.g.clear()
