"""Memory that is kept from step to step: how much of it, over inputs of many sizes."""

import random

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.native import memory
from sparseopt.kernels.native.buffers import Buffers, Shape


class Counted(Buffers):
    """Knows every buffer it has made."""

    def held(self) -> int:
        """Floats in all buffers that are free."""
        return sum(buffer.untyped_storage().nbytes() // 4 for _, buffer in self._free)


def pass_of(buffers: Buffers, height: int) -> list[tuple[Shape, Tensor]]:
    """Three activations of one input, as a pass takes them."""
    shapes = [Shape(2, height, channels, 5, border) for channels, border in ((3, 1), (8, 1), (8, 0))]
    return [(shape, buffers.take(shape)) for shape in shapes]


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
def test_many_sizes_need_the_memory_of_the_largest(order: str) -> None:
    heights = list(range(1, 101))
    if order == "falling":
        heights.reverse()
    elif order == "shuffled":
        random.Random(0).shuffle(heights)
    many, largest = Counted(8), Counted(8)
    for buffers, given in ((many, heights), (largest, [100])):
        for height in given:
            for taken in pass_of(buffers, height):
                buffers.give(*taken)
    assert largest.held() <= many.held() <= 1.2 * largest.held()


def test_steps_that_repeat_themselves_soon_find_every_shape() -> None:
    """Gradients have other shapes than what they are the gradients of: their sum is more than is ever in use at once."""
    buffers = Buffers(8)
    kept = [Shape(2, 8, channels, 8) for channels in (4, 5, 6, 7)]
    made = []
    for _ in range(6):
        before = buffers.changes
        forward = [(shape, buffers.take(shape)) for shape in kept]
        for shape, buffer in reversed(forward):
            gradient = Shape(2, 8, shape.channels, 8, border=1)
            memory = buffers.take(gradient)
            buffers.give(shape, buffer)
            buffers.give(gradient, memory)
        made.append(buffers.changes - before)
    assert made[0] == 8
    assert made[3:] == [0, 0, 0]


def test_a_border_is_zero_whatever_the_memory_was_used_for() -> None:
    buffers = Buffers(4)
    large, small = Shape(2, 9, 3, 7), Shape(1, 4, 2, 3, border=2)
    memory = buffers.take(large)
    memory.fill_(5)
    buffers.give(large, memory)
    again = buffers.take(small)
    assert again.shape == small.sizes(4)
    assert again.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    assert not again.any()


def test_a_buffer_that_comes_back_keeps_its_shape_and_place() -> None:
    buffers = Buffers(4)
    shapes = [Shape(2, 9, 3, 7, 1), Shape(2, 9, 3, 7)]
    first = {shape: buffers.take(shape) for shape in shapes}
    for shape, buffer in first.items():
        buffers.give(shape, buffer)
    for shape in shapes:
        assert buffers.take(shape).data_ptr() == first[shape].data_ptr()
    assert torch.is_tensor(buffers.take(shapes[0]))  # none is free: a new one


def test_holes_go_back_when_inputs_grow_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(memory, "give_back", lambda: calls.append(0))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    topology = so.sparsify(model, 0.9, distribution="uniform")
    engine = so.compile_inference(model, topology)
    so.accelerate(model, topology)
    for run in (model, engine):
        calls.clear()
        for samples in (10, 1000, 1000, 1010, 500, 1000):
            run(torch.zeros(samples, 64))
        assert len(calls) == 1
        run(torch.zeros(1200, 64))
        assert len(calls) == 2
