"""DeepR, Top-KAST and annealed top-k against numbers worked out by hand, in float64, from their papers."""

import math
from pathlib import Path

import pytest
import torch
from by_hand import chosen, step_with, tensor, trained, views
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods import LayerView, Memory

# DeepR


def test_in_deepr_a_flip_kills_and_the_count_stays() -> None:
    model, optimizer = trained(
        [1, -1, 0.05, 0, 0, 0], so.DeepR(total_steps=9, l1=0.0), mask=[1, 1, 1, 0, 0, 0]
    )
    step_with(model, optimizer, [1, -1, 1, 0, 0, 0])  # to 0.9, -0.9, -0.05: the third flips
    mask = optimizer.topology.masks["weight"][0]
    assert mask[:2].all()
    assert not model.weight.detach()[0, 2]
    assert int(mask.sum()) == 3
    assert model.weight.detach()[0, :2].tolist() == pytest.approx([0.9, -0.9])


@pytest.mark.parametrize("places", [3, 4], ids=["full", "one-free"])
def test_in_deepr_a_weight_that_flipped_begins_at_zero_also_where_it_is_drawn_again(places: int) -> None:
    model = nn.Linear(places, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(tensor([1, -1, 0.5, 0][:places]))
    topology = so.sparsify(model, masks={"weight": model.weight != 0})
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, so.DeepR(9, l1=0.0), correction="none")
    step_with(model, optimizer, [20, -20, 20, 0][:places])  # to -1, 1, -1.5: all three flip
    assert topology.active() == 3
    assert not model.weight.detach().any()
    assert not sgd.state[model.weight]["momentum_buffer"].any()


def test_the_draws_of_deepr_are_independent() -> None:
    size = 2000
    drawn: dict[str, Tensor] = {}

    class Watched(so.DeepR):
        def term(self, view: LayerView, step: int) -> Tensor | None:
            drawn["noise"] = torch.randn(view.mask.shape, generator=view.generator)
            return super().term(view, step)

        def grow_score(
            self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None
        ) -> Tensor:
            drawn["growth"] = super().grow_score(weight, grad, generator)
            return drawn["growth"]

    method = Watched(total_steps=9, l1=0.0, temperature=1.0)
    model, optimizer = trained([1.0] * size, method, mask=[1] * (size // 2) + [0] * (size // 2))
    step_with(model, optimizer, [20.0] * size)
    pair = torch.stack([drawn["noise"].flatten(), drawn["growth"].flatten()])
    assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.1
    assert abs(torch.corrcoef(pair.abs())[0, 1].item()) < 0.1


def test_in_deepr_a_dormant_place_has_a_sign_for_life() -> None:
    method = so.DeepR(total_steps=100, l1=0.0)
    model, optimizer = trained([1.0] + [0.0] * 40, method, mask=[1] * 21 + [0] * 20)
    signs = optimizer.memory.layers["weight"]["sign"][0]
    assert signs[0] == 1
    assert {int(sign) for sign in signs[1:]} == {-1, 1}
    down = [0.0] + [1.0] * 40  # every weight but the first goes down
    step_with(model, optimizer, down)
    mask, kept = optimizer.topology.masks["weight"][0], torch.zeros(41).bool()
    kept[1:21] = signs[1:21] < 0
    assert mask[kept].all(), "those of negative sign go on"
    assert model.weight.detach()[0, kept].tolist() == pytest.approx([-0.1] * int(kept.sum()))
    assert torch.equal(optimizer.memory.layers["weight"]["sign"][0], signs)


def test_the_l1_term_and_the_noise_of_deepr() -> None:
    model, optimizer = trained([1, -1], so.DeepR(total_steps=9, l1=0.5), lr=0.1)
    step_with(model, optimizer, [0, 0])
    assert model.weight.detach().tolist()[0] == pytest.approx([0.95, -0.95])
    size, lr, temperature = 4000, 0.01, 2.0
    model, optimizer = trained([10.0] * size, so.DeepR(total_steps=9, l1=0.0, temperature=temperature), lr=lr)
    step_with(model, optimizer, [0.0] * size)
    assert (model.weight.detach() - 10).std().item() == pytest.approx(
        math.sqrt(2 * lr * temperature), rel=0.05
    )


# Top-KAST


def test_topkast_by_hand() -> None:
    method = so.TopKAST(total_steps=9, sparsity=0.75, backward_sparsity=0.5, penalty=0.0)
    model, optimizer = trained([4, 3, 2, 1], method)
    assert model.weight.tolist() == [[4, 0, 0, 0]]  # A is 4, B is 4 and 3
    assert optimizer.learning("weight").tolist() == [[True, True, False, False]]
    step_with(model, optimizer, [10, -15, -90, -90])  # B moves to 3 and 4.5; outside B nothing does
    assert model.weight.tolist() == [[0, 4.5, 0, 0]]
    assert optimizer.learning("weight").tolist() == [[True, True, False, False]]
    step_with(model, optimizer, [0, 25, 0, 0])  # 4.5 falls to 2
    assert model.weight.tolist() == [[3, 0, 0, 0]]


@pytest.mark.parametrize(("norm", "expected"), [(2, [4 - 0.4, 3 - 1.2]), (1, [4 - 0.1, 3 - 0.4])])
def test_the_exploration_penalty_is_stronger_outside_the_forward_set(
    norm: int, expected: list[float]
) -> None:
    method = so.TopKAST(  # D = 1/4: outside A four times as strong
        total_steps=9,
        sparsity=0.75,
        backward_sparsity=0.5,
        penalty=1.0,
        penalty_norm=norm,  # pyright: ignore[reportArgumentType]
    )
    model, optimizer = trained([4, 3, 2, 1], method)
    step_with(model, optimizer, [0, 0, 0, 0])
    optimizer._asleep.wake(optimizer.topology)
    optimizer._asleep.recall(optimizer.topology)
    assert model.weight.detach()[0].tolist() == pytest.approx([*expected, 2, 1])


def test_in_topkast_what_falls_out_of_the_backward_set_rests_and_may_return() -> None:
    method = so.TopKAST(total_steps=9, sparsity=0.75, backward_sparsity=0.5, penalty=0.0)
    model, optimizer = trained([4, 3, 2, 1], method)

    def learning() -> list[int]:
        return optimizer.learning("weight")[0].int().tolist()

    step_with(model, optimizer, [0, 15, 0, 0])  # 3 falls to 1.5: the resting 2 comes in its place
    assert learning() == [1, 0, 1, 0]
    step_with(model, optimizer, [0, 90, 15, 0])  # what rests does not move; 2 falls to 0.5
    assert learning() == [1, 1, 0, 0]
    step_with(model, optimizer, [30, 0, 0, 0])  # 4 falls to 1
    assert model.weight.tolist() == [[0, 1.5, 0, 0]]


def test_what_rests_is_saved(tmp_path: Path) -> None:
    def made() -> tuple[nn.Linear, so.SparseOpt]:
        return trained([4, 3, 2, 1], so.TopKAST(9, sparsity=0.75, backward_sparsity=0.5, penalty=0.0))

    gradients = [[0, 15, 0, 0], [0, 0, 15, 0], [30, 0, 0, 0]]
    model, optimizer = made()
    step_with(model, optimizer, gradients[0])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    other, resumed = made()
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    for gradient in gradients[1:]:
        step_with(model, optimizer, gradient)
        step_with(other, resumed, gradient)
        assert torch.equal(model.weight, other.weight)
    assert model.weight.tolist() == [[0, 1.5, 0, 0]]


# Annealed top-k


def test_annealed_topk_by_hand() -> None:
    model, optimizer = trained([4, 3, 2, 1], so.AnnealedTopK(total_steps=8, sparsity=0.5, until=0.5))
    active, weights = [], []
    for gradient in ([0, 0, 0, -15], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, -90, 0], [0, 0, 0, 0]):
        step_with(model, optimizer, gradient)
        active.append(optimizer.topology.active())
        weights.append(model.weight.detach().tolist()[0])
    # density 1 - t/8 to 1/2 at t = 4: 3.5, 3, 2.5, 2 of 4, rounded to even halves
    assert active == [4, 3, 2, 2, 2, 2]
    assert weights[1] == [4, 3, 0, 2.5]
    assert weights[3] == [4, 3, 0, 0]
    assert weights[4] == [4, 0, 9, 0], "a weight that was zero learns, and one step may bring it in"


def test_annealed_topk_has_exactly_the_weights_asked_for_at_every_step() -> None:
    """Layers of 25: rounded one by one they would have 14 weights of 175 at the end, and not 17."""
    method = so.AnnealedTopK(total_steps=20, sparsity=0.9, until=0.5)
    layers = views({name: torch.randn(5, 5) for name in "abcdefg"})
    for step in range(21):
        density = 1 - 0.9 * min(step / 10, 1)
        counts = [count.active for count in method.counts(layers, step, Memory()).values()]
        assert sum(counts) == round(density * 175)
        assert max(counts) - min(counts) <= 1
    layers = views({"large": torch.randn(20, 20), "small": torch.randn(1, 2), "one": torch.randn(1, 1)})
    counts = {name: count.active for name, count in method.counts(layers, 20, Memory()).items()}
    assert counts == {"large": 38, "small": 1, "one": 1}, "40 of 403, and no layer empty"


def test_annealed_topk_leaves_every_neuron_its_largest_inputs() -> None:
    weight = {"a": tensor([9, 8, 7, 6], [1, 0.5, 0.4, 0.3])}
    expected = {
        0: [[1, 1, 1, 1], [0, 0, 0, 0]],
        1: [[1, 1, 1, 0], [1, 0, 0, 0]],
        4: [[1, 1, 0, 0], [1, 1, 0, 0]],  # 4 weights for 2 neurons are 2 each
    }
    for minimum, mask in expected.items():
        method = so.AnnealedTopK(total_steps=8, sparsity=0.5, minimum=minimum)
        assert chosen(method, views(weight), 8) == {"a": mask}
    assert so.AnnealedTopK(total_steps=8).minimum == 4


def test_the_top_is_taken_after_the_last_step_too() -> None:
    for method in (so.SRSTE(total_steps=9), so.TopKAST(total_steps=9), so.AnnealedTopK(total_steps=9)):
        assert [t for t in range(10) if method.due(t)] == list(range(10))
    assert so.AnnealedTopK(total_steps=10, every=7, until=1.0).due(10), "where the sparsity is reached"
    assert not so.TopKAST(total_steps=10, until=0.5).due(6)
