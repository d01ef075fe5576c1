"""Where the public reference code agrees with ours, and where it departs from its paper.

Each expected number is worked out by hand from what the code in the named file does, said in words beside it; nothing is
taken from there, and nothing of it is run. Where the reference departs from the paper, ours has the paper's number, the
reference's is written down too, and the method's docstring says so.
"""

import math
from typing import Any

import pytest
import torch
from by_hand import step_with, tensor, trained, views
from torch import Tensor

import sparseopt as so
from sparseopt.methods import Count, LayerView, Memory
from sparseopt.topology import generator

AT_ONCE: dict[str, Any] = {"total_steps": 10, "every": 10, "until": 1.0}


def active(count: int, size: int, grad: Tensor | None = None) -> dict[str, LayerView]:
    """One layer of that size, of whose weights the first so many are active, the largest first."""
    weight = torch.zeros(1, size, dtype=torch.float64)
    weight[0, :count] = torch.arange(count, 0, -1)
    return views({"a": weight}, None if grad is None else {"a": grad})


def kept(method: so.Method, weight: Tensor, count: int, grad: Tensor | None = None) -> list[float]:
    """The values that are left where so many are, and nothing grows."""
    view = LayerView(weight != 0, weight, grad, generator(0, 1, "a"))
    return weight[method.choose(view, Count(count, count))].tolist()


# RigL and SET: google-research/rigl, rigl/sparse_optimizers_base.py; google-research/jaxpruner,
# jaxpruner/algorithms/sparse_trainers.py and mask_calculator.py


@pytest.mark.parametrize(
    # alpha/2 (1 + cos(pi t/T)) of alpha = 0.3, T = 750. RigL's code cuts fraction times 37 off to a whole number, as ours
    # does; JaxPruner rounds 37 times (1 - fraction), the number that stays, to the nearest.
    ("step", "fraction", "rigl", "jaxpruner"),
    [
        (0, 0.3, 11, 11),  # 11.1 go, 25.9 stay
        (250, 0.225, 8, 8),  # cos(pi/3) = 1/2: 8.325, 28.675
        (500, 0.075, 2, 3),  # cos(2 pi/3) = -1/2: 2.775, 34.225
        (750, 0.0, 0, 0),
    ],
)
def test_of_37_weights_as_many_are_dropped_as_by_rigls_code(
    step: int, fraction: float, rigl: int, jaxpruner: int
) -> None:
    method = so.RigL(total_steps=1000, drop_fraction=0.3, until=0.75)
    assert method.drop_fraction_at(step) == pytest.approx(fraction, abs=1e-12)
    assert method.counts(active(37, 100), step, Memory()) == {"a": Count(37 - rigl, 37)}
    assert 37 - round(37 * (1 - fraction)) == jaxpruner


@pytest.mark.parametrize("kind", [so.SET, so.RigL])
def test_the_constant_fraction_of_jaxpruners_classes_is_a_setting(kind: type[so.SET]) -> None:
    # their default is 0.3 at every step; made from a configuration (jaxpruner/api.py), the cosine from 0.1
    constant = kind(total_steps=1000, until=1.0, drop_decay="constant")
    assert [constant.drop_fraction_at(t) for t in (100, 500, 900)] == [0.3] * 3
    cosine = kind(total_steps=1000, until=0.5, drop_fraction=0.1)
    assert cosine.drop_fraction_at(250) == pytest.approx(0.05)


def test_a_weight_that_is_dropped_and_grown_at_once_keeps_its_value() -> None:
    """Both codes begin again only where the mask was 0 before. RigL's has a switch for the contrary, which RigL leaves off."""
    method = so.RigL(total_steps=9, every=1, drop_fraction=0.34, drop_decay="constant")
    model, optimizer = trained([3, 2, 1, 0], method, mask=[1, 1, 1, 0])
    step_with(model, optimizer, [0, 0, 9, 1])  # one of 3 goes, that of 1; the largest gradient is its own
    assert model.weight.tolist() == [[3, 2, 1, 0]]
    assert optimizer.topology.masks["weight"].int().tolist() == [[1, 1, 1, 0]]
    step_with(model, optimizer, [0, 0, 1, 9])
    assert model.weight.tolist() == [[3, 2, 0, 0]]


def test_ties_go_the_other_way_than_in_jaxpruner() -> None:
    # Four of six active, all of magnitude 0.5, one goes. JaxPruner keeps the first of equal scores: the last active, 4, goes.
    # Then both take the first of equal gradients, 0.
    weight, grad = tensor([0, 0.5, 0.5, 0.5, 0.5, 0]), torch.full((1, 6), 2.0, dtype=torch.float64)
    ours = so.RigL(total_steps=9).next_mask(weight != 0, weight, grad, 0.25)
    assert ours.int().tolist() == [[1, 0, 1, 1, 1, 0]]
    jaxpruner = [[1, 1, 1, 1, 0, 0]]
    assert ours.int().tolist() != jaxpruner


def test_set_takes_positive_and_negative_weights_together() -> None:
    """dcmocanu/sparse-evolutionary-artificial-neural-networks, SET-MLP-Keras-Weights-Mask/set_mlp_keras_cifar10.py.

    The paper drops, of five positive and five negative weights, 0.4 of each sign. The code sorts all 20 entries, zeros in the
    middle, and keeps what is below entry int(0.6 * 5) = 3, -20, and above entry 15 + 0.4 * 5 = 17, which is 3.
    """
    weight = tensor([1, 2, 3, 4, 5, -10, -20, -30, -40, -50] + [0] * 10)
    paper, code = {3, 4, 5, -30, -40, -50}, {4, 5, -30, -40, -50}
    ours = set(kept(so.SET(total_steps=9), weight, 10 - math.floor(0.4 * 10)))
    assert ours == {5, -10, -20, -30, -40, -50}, (
        "the four smallest magnitudes go, as in RigL's code and JaxPruner"
    )
    assert len(ours) == len(paper) == len(code) + 1


# GMP: google-research/jaxpruner, jaxpruner/sparsity_schedules.py; VITA-Group/GraNet, CIFAR/sparselearning/core.py


@pytest.mark.parametrize(
    # 0.9 (1 - (1 - p)^3), p = t/500 in the paper, (t + 1)/500 in JaxPruner, at most 1
    ("step", "paper", "jaxpruner"),
    [
        (0, 0.0, 0.0053892072),  # 1 - 0.998^3 = 0.005988008
        (250, 0.7875, 0.7888446072),  # 1 - 0.5^3 = 0.875; 1 - 0.498^3 = 0.876494008
        (500, 0.9, 0.9),
        (1000, 0.9, 0.9),
    ],
)
def test_jaxpruners_cubic_is_ahead_by_one_step(step: int, paper: float, jaxpruner: float) -> None:
    method = so.GMP(total_steps=1000, sparsity=0.9, until=0.5, every=1)
    assert method.sparsity_at(step) == pytest.approx(paper, abs=1e-12)
    assert method.sparsity_at(step + 1) == pytest.approx(jaxpruner, abs=1e-12)


@pytest.mark.parametrize(
    # (1 - d_i) + (d_i - d_f) (1 - (1 - k/7)^3) for densities 0.5 and 0.1, k = int(t/100), pruning until step 700
    ("step", "sparsity"),
    [
        (100, 0.5 + 0.4 * 127 / 343),  # 1 - (6/7)^3
        (400, 0.5 + 0.4 * 316 / 343),  # 1 - (3/7)^3
        (700, 0.9),
        (1000, 0.9),
    ],
)
def test_the_cubic_of_granet(step: int, sparsity: float) -> None:
    method = so.GraNet(total_steps=1000, every=100, sparsity=0.9, start=0.5, prune_until=0.7)
    assert method.sparsity_at(step) == pytest.approx(sparsity)


def test_a_global_threshold_keeps_as_many_as_asked_for() -> None:
    # 16 weights at 0.7: 4.8 stay. GraNet's code takes int(4.8) = 4 and keeps what is strictly above the fourth: 3. IST's
    # (IST-DASLab/ACDC, policies/pruners.py and utils/utils.py) takes ceil(4.8) = 5 and does the same: 4.
    granet, ist = int(4.8) - 1, math.ceil(4.8) - 1
    layers = views({"a": torch.arange(9.0, 17).view(1, 8), "b": torch.arange(1.0, 9).view(1, 8)})
    for method in (so.GMP(**AT_ONCE, sparsity=0.7, scope="global"), so.ACDC(total_steps=10, sparsity=0.7)):
        counts = method.counts(layers, 10, Memory())
        assert sum(count.active for count in counts.values()) == 5 > ist > granet == 3


def test_granet_regrows_one_less_than_its_code() -> None:
    # Half way: 0.005 + (0.5 - 0.005)/2 (1 + cos(pi/2)) = 0.2525 there, and ceil(0.2525 * 40) = 11. Here 0.25: 10.
    method = so.GraNet(total_steps=1000, every=100, sparsity=0.9, start=0.9)
    layers = active(40, 400, torch.zeros(1, 400, dtype=torch.float64))
    assert method.counts(layers, 500, Memory()) == {"a": Count(30, 40)}
    assert math.ceil((0.005 + 0.2475) * 40) == 11


def test_granet_counts_from_where_it_begins() -> None:
    # its code: the multiples of 100 from step 50 on, 100, 200, ...
    method = so.GraNet(total_steps=1000, every=100, begin=0.05)
    assert [t for t in range(1, 400) if method.due(t)] == [50, 150, 250, 350]


# AC/DC: IST-DASLab/ACDC, configs/neurips; an epoch is a step here


@pytest.mark.parametrize(
    ("settings", "compressed", "dense"),
    [
        # iht_cifar100_wideresnet_steplr_freq20: pruned from 10 every 40 up to 170, restored from 30 every 40 up to 160
        ({"total_steps": 200}, [10, 50, 90, 130, 170], [30, 70, 110, 150]),
        # iht_imagenet_resnet50_insta_cosinelr_s90_ep100: pruned from 10 every 10 up to 70, and at 85; restored from 15 every
        # 10 up to 65, and at 75: the last dense phase has 10 epochs, the last compressed one 15. (JaxPruner's extension,
        # projects/extensions/acdc.py, would go on with the cycle, and be compressed from 80 on.)
        (
            {"total_steps": 100, "warmup": 0.1, "phase": 0.05, "until": 0.85},
            [*range(10, 71, 10), 85],
            [*range(15, 66, 10), 75],
        ),
        # the same for 150 epochs: up to 120, and at 135; up to 115, and at 125
        (
            {"total_steps": 150, "warmup": 10 / 150, "phase": 5 / 150, "until": 0.9},
            [*range(10, 121, 10), 135],
            [*range(15, 116, 10), 125],
        ),
    ],
    ids=["cifar100", "imagenet-100", "imagenet-150"],
)
def test_the_phases_of_acdc(settings: dict[str, Any], compressed: list[int], dense: list[int]) -> None:
    method = so.ACDC(**settings)
    due = [epoch for epoch in range(method.total_steps + 1) if method.due(epoch)]
    assert [epoch for epoch in due if method.compressed(epoch)] == compressed
    assert [epoch for epoch in due if not method.compressed(epoch)] == dense


# SRigL: calgaryml/condensed-sparsity, src/rigl_torch/rigl_constant_fan.py; with ablation, as its copy in
# abhishektyaagi/nmsparsity has it


def srigl_layer() -> tuple[Tensor, Tensor]:
    """Two neurons of fan-in 5 of 10; at 4 of 10 dropped, one weight of the first neuron stays, and all of the second."""
    weight = torch.zeros(2, 10, dtype=torch.float64)
    weight[0, :5] = torch.tensor([9.0, 0.1, 0.2, 0.3, 0.4])
    weight[1, :5] = torch.tensor([5.0, 6, 7, 8, 10])
    return weight, torch.zeros_like(weight)


def test_srigl_does_not_round_what_a_neuron_needs() -> None:
    weight, grad = srigl_layer()
    grad[1, 5:9] = 3.0  # what would grow belongs to the second neuron; the first has 1 salient weight
    view = LayerView(weight != 0, weight, grad)
    # 0.3 of 5 is 1.5. The code rounds down, at least to 1: the first neuron would stay.
    assert max(1, int(0.3 * 5)) == 1
    assert so.SRigL(total_steps=9, gamma_sal=0.3)._left(view, 6, 10).tolist() == [False, True]
    assert so.SRigL(total_steps=9, gamma_sal=0.2)._left(view, 6, 10).tolist() == [True, True]


def test_in_srigl_only_weights_that_could_grow_are_salient_by_gradient() -> None:
    weight, grad = srigl_layer()
    grad[1, :4] = (
        9.0  # the code takes the 4 largest gradients wherever they are: here of weights that are salient already,
    )
    grad[0, 5:9] = 1.0  # so that the first neuron has 1 salient weight, and int(0.5 * 5) = 2 are needed
    view = LayerView(weight != 0, weight, grad)
    assert so.SRigL(total_steps=9, gamma_sal=0.5)._left(view, 6, 10).tolist() == [True, True]


def test_what_srigl_drops_is_not_made_up_for_by_ablated_neurons() -> None:
    weight = torch.zeros(3, 8, dtype=torch.float64)
    weight[:, :4] = tensor([9, 8, 7, 6], [5, 4, 3, 0.05], [2, 1, 0.1, 0.15])
    grad = torch.zeros_like(weight)
    grad[:, 4:] = tensor([0.6, 0.5, 0.4, 0.3], [9, 8, 7, 1], [0, 0, 0, 0])
    # 3 of 12 go: 0.05, 0.1, 0.15. Salient: 4, 3 + 3 and 2, of 0.75 * 4 = 3: the last neuron is ablated, the fan-in 12/2.
    new = so.SRigL(total_steps=9, gamma_sal=0.75).next_mask(weight != 0, weight, grad, 0.25)
    assert new.int().tolist() == [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 1, 1, 0], [0] * 8]
    # The code looks for the 9 weights to keep among the 8 of the neurons left: 0.05 stays, and the third gradient, 7, loses.


# MEST: boone891214/MEST, prune_utils/retrain.py and main_sparse_train.py; the scores, which are not among its public files,
# as in neu-spiral/SparCL, prune_utils/utils_pr.py


def test_the_two_sparsities_of_mest() -> None:
    # 100 weights at 0.8, half of 20 move. The hard bound prunes to 0.9, strictly above that percentile, and grows
    # int(90 - 0.8 * 100) = 10; the soft one prunes to 0.8 and grows int(80 - 0.7 * 100) = 10.
    settings: dict[str, Any] = {"total_steps": 100, "drop_fraction": 0.5, "drop_decay": "constant"}
    assert so.MEST(**settings).counts(active(20, 100), 10, Memory()) == {"a": Count(10, 20)}
    soft, memory = so.MEST(**settings, every=10, until=0.5, soft=True), Memory()
    soft.counts(active(20, 100), 0, memory)
    grad = torch.ones(1, 100)
    assert soft.counts(active(20, 100, grad), 10, memory) == {"a": Count(20, 30)}
    assert soft.counts(active(30, 100, grad), 20, memory) == {"a": Count(20, 30)}
    assert soft.counts(active(30, 100, grad), 50, memory) == {"a": Count(20, 20)}, (
        "at the end both bounds are one"
    )


def test_mest_reads_a_gradient_that_its_code_has_set_to_zero() -> None:
    weight, grad = tensor([1, 0.1, 0.3, 0.2]), tensor([0, 5, 0, 0])
    # |w| + 0.1 |g|: 1, 0.6, 0.3, 0.2. The code's loop calls zero_grad before the epoch at whose start it prunes: 0.1 goes.
    assert kept(so.MEST(total_steps=9, lam=0.1), weight, 3, grad) == [1, 0.1, 0.3]
    assert kept(so.MEST(total_steps=9, lam=0.1), weight, 3, torch.zeros_like(grad)) == [1, 0.3, 0.2]


# SNFS: TimDettmers/sparse_learning, sparselearning/core.py and funcs.py


def test_what_layers_of_snfs_get_adds_up() -> None:
    # Each of two layers drops 2 of 4; means of |M| 7 and 3: shares of 2.8 and 1.2. The code rounds both up, 3 and 2, and lets
    # the next updates make up for the fifth; here 3 and 1.
    method = so.SNFS(total_steps=100, drop_fraction=0.5, drop_decay="constant", momentum=0.0)
    layers = views(
        {name: tensor([4, 3, 2, 1, 0, 0, 0, 0]) for name in "ab"},
        {"a": tensor([7, 7, 7, 7, 0, 0, 0, 0]), "b": tensor([3, 3, 3, 3, 0, 0, 0, 0])},
    )
    method.counts(layers, 0, Memory())
    for view in layers.values():
        method.watch(view, 1)
    assert method.counts(layers, 10, Memory()) == {"a": Count(2, 5), "b": Count(2, 3)}
    assert math.ceil(0.7 * 4) + math.ceil(0.3 * 4) == 5


def test_snfs_rounds_what_it_drops_down() -> None:
    method = so.SNFS(total_steps=100, drop_fraction=0.5, drop_decay="constant")
    layers = active(5, 8, torch.ones(1, 8, dtype=torch.float64))
    method.counts(layers, 0, Memory())
    assert method.counts(layers, 10, Memory()) == {"a": Count(3, 5)}
    assert 5 - math.ceil(0.5 * 5) == 2, "what its code would keep"


def test_the_momentum_of_snfs_is_that_of_sgd_but_for_a_factor() -> None:
    # SGD's buffer after g = 1, 2 at 0.9: 0.9 * 1 + 2 = 2.9. Ours is a mean, 0.1 times that: shares and order are the same.
    method = so.SNFS(total_steps=100, momentum=0.9)
    view = active(1, 2)["a"]
    method.counts({"a": view}, 0, Memory())
    for step, grad in enumerate((1.0, 2.0), start=1):
        seen = LayerView(
            view.mask, view.weight, torch.full((1, 2), grad, dtype=torch.float64), memory=view.memory
        )
        method.watch(seen, step)
    assert view.memory["momentum"].tolist() == [pytest.approx([0.29, 0.29])]


# DSR: the authors' code as TimDettmers/sparse_learning has it, imagenet/dynamic-reparameterization, main.py and
# parameterized_tensors.py


@pytest.mark.parametrize(
    ("dropped", "factor"),  # 10 are aimed at: fewer than 9 double the threshold, more than 11 halve it
    [(8, 2.0), (9, 1.0), (11, 1.0), (12, 0.5)],
)
def test_the_threshold_of_dsr(dropped: int, factor: float) -> None:
    weight = tensor([0.1] * dropped + [1.0] * (40 - dropped) + [0.0] * 40)
    method, memory = so.DSR(total_steps=100, drop_fraction=0.25, threshold=0.5), Memory()
    assert method.counts(views({"a": weight}), 10, memory) == {"a": Count(40 - dropped, 40)}
    assert memory.numbers["threshold"] == 0.5 * factor


def test_dsr_shares_by_what_layers_keep() -> None:
    # 4 and 1 kept, 3 to grow: 2.4 and 0.6, which the code rounds to the nearest, 2 and 1
    layers = views({"a": tensor([1, 2, 3, 4, 0, 0, 0, 0]), "b": tensor([0.1, 0.2, 0.3, 4, 0, 0, 0, 0])})
    counts = so.DSR(total_steps=100, threshold=0.5).counts(layers, 10, Memory())
    assert counts == {"a": Count(4, 6), "b": Count(1, 2)}


def test_dsr_may_grow_where_it_has_just_dropped_and_keeps_the_largest() -> None:
    method = so.DSR(total_steps=100, threshold=0.5)
    weight, grown = tensor([4, 3, 0.1, 0]), set[int]()
    for seed in range(40):
        view = LayerView(weight != 0, weight, None, generator(seed, 1, "a"))
        grown |= set(method.choose(view, Count(2, 3))[0].nonzero().flatten().tolist()) - {0, 1}
    assert grown == {2, 3}, "the code leaves the place of 0.1 out: 3 alone"
    small = tensor([0.1, 0.3, 0.2, 0])
    assert method.counts(views({"a": small}), 10, Memory())["a"].keep == 1
    assert kept(method, small, 1) == [0.3], "the code keeps the first, 0.1"


# DeepR: guillaumeBellec/deep_rewiring, script_mnist_deep_rewiring.py


def test_the_l1_term_of_deepr_is_that_of_its_code() -> None:
    # its defaults: every connected weight shrinks by 0.5 * 1e-5 a step
    model, optimizer = trained([1, -1], so.DeepR(total_steps=9, l1=1e-5), lr=0.5)
    step_with(model, optimizer, [0, 0])
    assert model.weight.detach().tolist()[0] == pytest.approx([1 - 5e-6, -1 + 5e-6], abs=1e-12)


def test_in_deepr_a_weight_at_zero_is_alive() -> None:
    # 0.1 - 0.1 * 1 = 0, no flip. The code takes what is not above 0 for dropped, and therefore grows at 1e-12.
    model, optimizer = trained([1, 0.1, 0], so.DeepR(total_steps=9, l1=0.0), mask=[1, 1, 0])
    step_with(model, optimizer, [0, 1, 0])
    assert optimizer.topology.masks["weight"].int().tolist() == [[1, 1, 0]]
    assert model.weight.tolist() == [[1, 0, 0]]


# Top-KAST: A-Klass/torch_topkast, torch_topkast/topkast_linear.py and topkast_loss.py


@pytest.mark.parametrize(
    # What is at or above the quantile stays. Of 4 at 0.75 it is 2.25 steps from the smallest: one is above; of 5 it is
    # exactly the second largest: two stay, and 1.25 are asked for.
    ("size", "ours", "code"),
    [(4, 1, 1), (5, 1, 2)],
)
def test_topkast_keeps_no_more_than_asked_for(size: int, ours: int, code: int) -> None:
    method = so.TopKAST(total_steps=9, sparsity=0.75, backward_sparsity=0.5)
    assert method.counts(active(size, size), 1, Memory()) == {"a": Count(0, ours)}
    assert size - math.ceil(0.75 * (size - 1)) == code


def test_topkast_penalises_squares_not_norms() -> None:
    # d/dw of |w|_2 over A = {4} is 4/4 = 1 in the code: 4 - 0.1 = 3.9; half the square pulls by 4: 4 - 0.4
    method = so.TopKAST(total_steps=9, sparsity=0.75, backward_sparsity=0.75, penalty=1.0)
    model, optimizer = trained([4, 3, 2, 1], method)
    step_with(model, optimizer, [0, 0, 0, 0])
    assert model.weight.detach().tolist()[0] == pytest.approx([3.6, 0, 0, 0])


# SR-STE: aojunzz/NM-sparsity, devkit/sparse_ops/sparse_ops.py


def test_srste_as_in_its_code() -> None:
    # 4, 1, 3, 2: the two smallest of four go, and get 0.0002 of themselves on top of the gradient
    weight, method = tensor([4, 1, 3, 2]), so.SRSTE(total_steps=9)
    mask = method.choose(LayerView(weight != 0, weight), Count(0, 2))
    assert mask.int().tolist() == [[1, 0, 1, 0]]
    term = method.term(LayerView(mask, weight), 1)
    assert term is not None
    assert term.tolist() == [pytest.approx([0, 0.0002, 0, 0.0004])]


def test_the_groups_of_a_convolution_lie_along_its_input_channels() -> None:
    # at the first place of the kernel the channels have 4, 1, 3, 2, at the second 1, 2, 3, 4
    weight = torch.stack([tensor([4, 1, 3, 2]), tensor([1, 2, 3, 4])], dim=2).view(1, 4, 1, 2)
    mask = so.SRSTE(total_steps=9).choose(LayerView(weight != 0, weight), Count(0, 4))
    assert mask[0, :, 0, 0].int().tolist() == [1, 0, 1, 0]
    assert mask[0, :, 0, 1].int().tolist() == [0, 0, 1, 1]


# n:m: google-research/jaxpruner, jaxpruner/mask_calculator.py


def test_of_equal_magnitudes_in_a_group_the_first_stay() -> None:
    # JaxPruner ranks from the smallest up and keeps the two highest ranks: the last two of the three that are equal
    weight = tensor([1, 2, 2, 2])
    ours = so.SRSTE(total_steps=9).choose(LayerView(weight != 0, weight), Count(0, 2)).int().tolist()
    assert ours == [[0, 1, 1, 0]]
    assert ours != [[0, 0, 1, 1]]


def test_rigl_moves_within_groups() -> None:
    # One of four goes, 0.1, and the larger gradient of its group comes, though the other group has larger ones. In JaxPruner
    # the drop keeps two of each group whatever the fraction, and growth those two: nothing moves.
    weight, grad = tensor([5, 0.1, 0, 0, 4, 3, 0, 0]), tensor([0, 0, 2, 7, 9, 9, 8, 8])
    new = so.NM(so.RigL(total_steps=9)).next_mask(weight != 0, weight, grad, 0.25)
    assert new.int().tolist() == [[1, 0, 0, 1, 1, 1, 0, 0]]


# GSE: mikeheddes/guided-stochastic-exploration, grow.py


@pytest.mark.parametrize(
    # int(subset * active) places of the whole matrix in the code, and all of them where half or more is active
    ("count", "subset", "ours", "code"),
    [(5, 0.5, 3, 2), (10, 0.3, 3, 20)],
)
def test_gse_looks_at_the_inactive_weights_that_it_draws(
    count: int, subset: float, ours: int, code: int
) -> None:
    method = so.GSE(total_steps=9, subset=subset)
    view = active(count, 20, torch.ones(1, 20, dtype=torch.float64))["a"]
    looked = method.looked_at(view, Count(count - 1, count)).grad
    assert looked is not None
    seen = looked.isfinite()
    assert int(seen.sum()) == ours
    assert not (seen & view.mask).any()
    assert code == (20 if count >= 10 else int(subset * count))


# Annealed top-k: the training script circuit_sparsity/train.py, as shiyukonghui/circuit_sparsity has it, a copy of OpenAI's


@pytest.mark.parametrize(
    # linear from 1 to 0.1: over the first half in the paper, from the first hundredth to the half in the code
    ("step", "paper", "code"),
    [(0, 1.0, 1.0), (10, 0.982, 1.0), (250, 0.55, 1 - 0.9 * 24 / 49), (500, 0.1, 0.1), (1000, 0.1, 0.1)],
)
def test_annealed_topk_begins_at_once(step: int, paper: float, code: float) -> None:
    method = so.AnnealedTopK(total_steps=1000, sparsity=0.9)
    assert method.density_at(step) == pytest.approx(paper)
    assert 1 - 0.9 * min(max((step - 10) / 490, 0), 1) == pytest.approx(code)


def test_annealed_topk_rounds_to_the_nearest() -> None:
    # 0.55 * 7 = 3.85; the code cuts off: 3
    assert so.AnnealedTopK(total_steps=1000, sparsity=0.9).counts(active(7, 7), 250, Memory()) == {
        "a": Count(0, 4)
    }
