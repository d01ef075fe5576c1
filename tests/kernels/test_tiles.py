"""A training step gives the same bits in all tiles its convolutions can run in; the fastest is found once, and kept."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.conv import forward, taped, tiles
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.measurements import Measurements


class Net(nn.Module):
    """Both strides, an identity and a projection shortcut, a dense layer, images whose sizes no tile divides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 7, 3, padding=1), nn.BatchNorm2d(7)
        self.same, self.norm_same = nn.Conv2d(7, 7, 5, padding=2, bias=False), nn.BatchNorm2d(7)
        self.down, self.norm_down = nn.Conv2d(7, 9, 3, 2, 1, bias=False), nn.BatchNorm2d(9)
        self.projection, self.norm_projection = nn.Conv2d(7, 9, 1, 2, bias=False), nn.BatchNorm2d(9)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.norm_same(self.same(x)) + x)
        return torch.relu(self.norm_down(self.down(x)) + self.norm_projection(self.projection(x)))


def steps(size: tuple[int, int], activations: torch.dtype = torch.float32, count: int = 3) -> list[Tensor]:
    """All that a few steps leave behind."""
    torch.manual_seed(0)
    model = Net()
    topology = so.sparsify(model, 0.8, distribution="uniform", exclude="down.weight")
    so.accelerate(model, topology, activations=activations)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    left: list[Tensor] = []
    for _ in range(count):
        x = torch.randn(19, 3, *size, requires_grad=True)
        optimizer.zero_grad()
        y = model(x)
        (y * torch.randn_like(y)).sum().backward()
        assert x.grad is not None
        left += [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
    return [*left, *(value.clone() for value in model.state_dict().values())]


@pytest.mark.parametrize("size", [(8, 8), (13, 11), (7, 21), (2, 3)])
@pytest.mark.parametrize("activations", [torch.float32, torch.bfloat16])
def test_every_tile_gives_the_same_bits(
    size: tuple[int, int], activations: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = [0]
    monkeypatch.setattr(forward, "fastest_tile", lambda operator, count, *_: min(number[0], count - 1))
    expected = steps(size, activations)
    most = max(operators().training_tiles(backward=backward) for backward in (False, True))
    assert most >= 2
    for number[0] in range(1, most):
        found = steps(size, activations)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_first_step_measures_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as fixed:
        fixed.setattr(forward, "fastest_tile", lambda *_: 0)
        expected = steps((12, 10))
    known = Measurements(tmp_path / "kernels", "layers")
    monkeypatch.setattr(tiles, "measurements", lambda: known)
    monkeypatch.setattr(taped, "measurements", lambda: known)
    found = steps((12, 10))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert (tmp_path / "kernels" / "layers").is_file()
    again = Measurements(tmp_path / "kernels", "layers")
    monkeypatch.setattr(tiles, "measurements", lambda: again)
    monkeypatch.setattr(again, "put", lambda *_: pytest.fail("measured anew"))
    assert all(torch.equal(a, b) for a, b in zip(steps((12, 10)), expected, strict=True))


def test_what_a_file_says_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Measurements(None, "")
    monkeypatch.setattr(tiles, "measurements", lambda: known)
    monkeypatch.setattr(known, "get", lambda key: (99, 0, 0.1))
    steps((6, 6), count=1)
    with pytest.raises(RuntimeError, match="a tile that there is not"):
        operators()._tile(99, backward=False)
