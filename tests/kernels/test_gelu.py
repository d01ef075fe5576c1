"""GELU between linear layers is part of a chain, and is what its definition says."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.kernels.frozen.chain import FrozenChain

ROUNDOFF = 2.0**-24


class Block(nn.Module):
    def __init__(self, *, functional: bool = False, approximate: str = "none") -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 260), nn.Linear(260, 256)
        self.gelu = nn.GELU(approximate)
        self.functional = functional

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(F.gelu(x) if self.functional else self.gelu(x))


def made(**settings: object) -> Block:
    torch.manual_seed(0)
    block = Block(**settings)  # pyright: ignore[reportArgumentType]
    so.sparsify(block, 0.8)
    return block


def chains(engine: so.kernels.Engine) -> list[FrozenChain]:
    return [piece for piece in engine.pieces() if isinstance(piece, FrozenChain)]


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("samples", [1, 3, 70])
def test_it_is_part_of_the_chain(samples: int, *, functional: bool) -> None:
    block = made(functional=functional)
    engine = so.compile_inference(block)
    assert [piece.content.names() for piece in chains(engine)] == [["first", "second"]]
    x = torch.randn(samples, 256)
    torch.testing.assert_close(engine(x), block(x), rtol=1e-5, atol=1e-6)


def test_values_are_those_of_the_definition() -> None:
    """Of an identity: y = x P(normal < x), off by an approximation of 0.75e-7 |x| and a few roundings."""
    layer = nn.Linear(256, 256)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(256))
        layer.bias.zero_()
    model = nn.Sequential(layer, nn.GELU())
    x = torch.cat(
        [torch.linspace(-14, 14, 256 * 20), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 3e4, -3e4] + [0.5] * 250)]
    )
    x = x.view(-1, 256)
    (chain,) = chains(so.compile_inference(model))
    exact = F.gelu(x.double())
    for vectors in (0, 1, 8):
        found = chain.make(8, vectors, 0).run(x)
        assert bool(((found.double() - exact).abs() <= (0.75e-7 + 8 * ROUNDOFF) * x.double().abs()).all())
    assert chain.make(8, 0, 0).run(torch.full((1, 256), float("nan"))).isnan().all()


def test_the_bits_do_not_depend_on_the_way() -> None:
    block = made()
    (chain,) = chains(so.compile_inference(block))
    x = torch.randn(19, 256)
    alone = chain.make(8, 0, 0).run(x)
    for lanes, vectors, block_size in ((4, 1, 0), (8, 4, 256), (8, 8, 128), (16, 2, 0)):
        assert torch.equal(chain.make(lanes, vectors, block_size).run(x), alone)


@pytest.mark.parametrize("vectors", [0, 1])
def test_the_bits_do_not_depend_on_the_threads(vectors: int) -> None:
    """A sample of which every thread has enough to do, in layers whose outputs are no multiple of what is summed together."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(512, 1021), nn.GELU(), nn.Linear(1021, 515))
    (chain,) = chains(so.compile_inference(block, so.sparsify(block, 0.7)))
    run, x = chain.make(8, vectors, 0).run, torch.randn(1, 512)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run(x)
        for number in (2, 3):
            torch.set_num_threads(number)
            assert torch.equal(run(x), alone)
    finally:
        torch.set_num_threads(threads)


def test_the_approximation_by_tanh_stays_torchs() -> None:
    block = made(approximate="tanh")
    engine = so.compile_inference(block)
    assert [piece.content.names() for piece in chains(engine)] == [["first"], ["second"]]
    x = torch.randn(5, 256)
    torch.testing.assert_close(engine(x), block(x), rtol=1e-5, atol=1e-6)


def test_training_leaves_it_to_torch() -> None:
    block = Block()
    topology = so.sparsify(block, 0.8)
    x = torch.randn(6, 256)
    expected = block(x)
    assert torch.allclose(so.accelerate(block, topology)(x), expected, rtol=1e-5, atol=1e-6)


def test_it_is_saved(tmp_path: Path) -> None:
    engine = so.compile_inference(made())
    engine.save(tmp_path / "engine.safetensors")
    x = torch.randn(7, 256)
    assert torch.equal(so.load_engine(tmp_path / "engine.safetensors")(x), engine(x))
