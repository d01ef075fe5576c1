"""Weights and gradients that the kernels share with `SparseOpt` as active values: users see dense ones, training is the same."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.topology.active_parameter import ActiveParameter
from sparseopt.topology.active_tensor import ActiveTensor


class Training:
    """A chain of linear layers on the kernels; `packed` hands active values to the optimizer, its twin dense gradients."""

    def __init__(self, *, packed: bool, method: so.Method | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4)
        )
        self.topology = so.sparsify(self.model, 0.9, distribution="uniform")
        base = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        if not packed:
            base.register_step_post_hook(
                lambda *_: None
            )  # who watches an optimizer sees the dense parameters
        method = method or so.SET(total_steps=100, every=4)
        self.optimizer = so.SparseOpt(base, self.topology, method, **options)
        so.accelerate(self.model, self.topology)

    @property
    def weights(self) -> list[nn.Parameter]:
        return list(self.topology.parameters.values())

    def backward(self, step: int) -> None:
        draw = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 20, generator=draw), torch.randint(4, (16,), generator=draw)
        F.cross_entropy(self.model(x), y).backward()

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.backward(step)
        self.optimizer.step()


def assert_same(ours: Training, reference: Training) -> None:
    """float32, where torch rounds the ends of vectors another way."""
    for mine, its in zip(ours.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)
        buffers = [each.optimizer.state[p]["momentum_buffer"] for each, p in ((ours, mine), (reference, its))]
        torch.testing.assert_close(*buffers, rtol=1e-5, atol=1e-6)
    for name, mask in ours.topology.masks.items():
        assert torch.equal(mask, reference.topology.masks[name])
        assert not ours.topology.parameters[name][~mask].any()


def clip_by_norm(run: Training) -> None:
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)


def clip_by_value(run: Training) -> None:
    for weight in run.weights:
        assert weight.grad is not None
        weight.grad.data.clamp_(-0.01, 0.01)


def replace(run: Training) -> None:
    for weight in run.weights:
        assert weight.grad is not None
        weight.grad = weight.grad * 2


def accumulate(run: Training) -> None:
    run.backward(100)
    run.backward(200)


def look(run: Training) -> None:
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in run.weights)


def decay(run: Training) -> None:
    for weight in run.weights:
        weight.data.mul_(0.9)


BETWEEN = [clip_by_norm, clip_by_value, replace, accumulate, look, decay]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("method", [so.SET(total_steps=100, every=4), so.RigL(total_steps=100, every=4)])
def test_what_users_do_between_backward_and_step(
    between: Callable[[Training], None], method: so.Method
) -> None:
    runs = [Training(packed=packed, method=method) for packed in (True, False)]
    for run in runs:
        for step in range(9):
            run.optimizer.zero_grad(set_to_none=step % 2 == 0)
            run.backward(step)
            between(run)
            run.optimizer.step()
    assert_same(*runs)


def test_gradients_stay_packed_where_nobody_looks() -> None:
    run = Training(packed=True, method=so.Static(), max_grad_norm=1.0)
    for step in range(3):
        run.step(step)
    for weight in run.weights:
        assert isinstance(weight.grad, ActiveTensor)
        assert weight.grad.content._dense is None
        buffer = run.optimizer.state[weight]["momentum_buffer"]
        assert isinstance(buffer, ActiveTensor)
        assert buffer.content._dense is None


def test_a_gradient_that_is_kept_stays_what_it_was() -> None:
    run = Training(packed=True, method=so.Static(), correction="none")
    run.step(0)
    kept = run.weights[0].grad
    assert kept is not None
    copied = kept.clone()
    for step in range(1, 4):
        run.step(step)
    assert torch.equal(kept, copied)


def test_hooks_of_a_parameter_see_and_change_its_gradient() -> None:
    def triple(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(3)

    runs = [Training(packed=packed) for packed in (True, False)]
    for run in runs:
        run.weights[1].register_hook(lambda grad: grad * 0.5)
        run.weights[2].register_post_accumulate_grad_hook(triple)
        for step in range(6):
            run.step(step)
    assert_same(*runs)


def test_a_run_resumed_from_its_state_dict_is_the_same_run() -> None:
    whole, half, resumed = (Training(packed=True) for _ in range(3))
    for step in range(12):
        whole.step(step)
    for step in range(7):
        half.step(step)
    resumed.model.load_state_dict(half.model.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(half.optimizer.state_dict()))
    for step in range(7, 12):
        resumed.step(step)
    for mine, its in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_plain_optimizer_gets_dense_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))
    so.accelerate(model, so.sparsify(model, 0.9))
    model(torch.randn(8, 20)).sum().backward()
    assert all(type(parameter.grad) is Tensor for parameter in model.parameters())
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


def noise(tensor: Tensor) -> Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3))


def average(run: Training) -> None:
    """Weights pulled towards those of another model, by a foreach operator over all of them."""
    lerp: Any = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]
    with torch.no_grad():
        lerp(list(run.model.parameters()), [torch.zeros_like(each) for each in run.model.parameters()], 0.1)


def load(run: Training) -> None:
    run.model.load_state_dict({name: 0.5 * each for name, each in run.model.state_dict().items()})


def there_and_back(run: Training) -> None:
    run.model.double()
    run.model.float()


def for_weights(edit: Callable[[Tensor], Any]) -> Callable[[Training], None]:
    def edit_all(run: Training) -> None:
        for weight in run.weights:
            edit(weight)

    return edit_all


EDITS: dict[str, Callable[[Training], None]] = {
    "in place": for_weights(lambda weight: weight.detach().add_(noise(weight))),
    "through .data": for_weights(lambda weight: weight.data.mul_(0.9)),
    "through numpy": for_weights(lambda weight: weight.detach().numpy().__imul__(0.5)),
    "one entry": for_weights(lambda weight: weight.data[0].fill_(0.2)),
    "inactive entries": for_weights(lambda weight: weight.detach().masked_fill_(weight == 0, 1.0)),
    "other memory": for_weights(lambda weight: setattr(weight, "data", weight.detach() + noise(weight))),
    "vector": for_weights(lambda w: nn.utils.vector_to_parameters(noise(w).flatten(), [w])),
    "average": average,
    "load": load,
    "there and back": there_and_back,
    "masks": lambda run: run.topology.apply(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_users_do_to_the_weights_between_steps(edit: str) -> None:
    runs = [Training(packed=packed) for packed in (True, False)]
    for run in runs:
        for step in range(9):
            run.step(step)
            if step in (1, 4, 5):
                EDITS[edit](run)
    assert_same(*runs)


def test_weights_stay_packed_where_nobody_looks() -> None:
    run = Training(packed=True, method=so.Static())
    run.step(0)
    memory = [weight.detach().clone() for weight in run.weights]
    for step in range(1, 4):
        run.step(step)
    for weight, before in zip(run.weights, memory, strict=True):
        assert isinstance(weight, ActiveParameter)
        assert torch.equal(weight.content._dense, before)
        assert not torch.equal(weight, before)


def test_a_state_dict_that_is_kept_follows_the_training() -> None:
    runs = [Training(packed=packed) for packed in (True, False)]
    for run in runs:
        run.step(0)
    kept = [run.model.state_dict() for run in runs]
    for run in runs:
        for step in range(1, 7):
            run.step(step)
    for ours, reference in zip(kept[0].values(), kept[1].values(), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


def test_an_average_of_the_weights_follows_the_training() -> None:
    runs = [Training(packed=packed) for packed in (True, False)]
    averages = [torch.optim.swa_utils.AveragedModel(run.model) for run in runs]
    for run, average in zip(runs, averages, strict=True):
        for step in range(6):
            run.step(step)
            average.update_parameters(run.model)
    for ours, reference in zip(*(each.parameters() for each in averages), strict=True):
        assert type(ours) is nn.Parameter
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_evaluation_and_dense_use_between_steps(without_gradients: Callable[[], Any]) -> None:
    runs = [Training(packed=packed) for packed in (True, False)]
    x = torch.randn(5, 20)
    for run in runs:
        for step in range(4):
            run.step(step)
            run.model.eval()
            with without_gradients():
                torch.testing.assert_close(run.model(x), type(run.model).forward(run.model, x))
                run.model(torch.randn(16, 20))  # memory of the size that training uses
            run.model.train()
    assert_same(*runs)


def test_copies_and_files_are_of_ordinary_parameters(tmp_path: Path) -> None:
    run = Training(packed=True)
    for step in range(3):
        run.step(step)
    torch.save(run.model.state_dict(), tmp_path / "state.pt")
    torch.save(run.model, tmp_path / "model.pt")
    copies = [copy.deepcopy(run.model), torch.load(tmp_path / "model.pt", weights_only=False)]
    for model in copies:
        for ours, theirs in zip(model.parameters(), run.model.parameters(), strict=True):
            assert type(ours) is nn.Parameter
            assert torch.equal(ours, theirs)
    loaded = torch.load(tmp_path / "state.pt")
    assert all(torch.equal(loaded[name], each) for name, each in run.model.state_dict().items())


def test_a_restored_model_goes_on_as_an_ordinary_one() -> None:
    runs = [Training(packed=packed, method=so.Static()) for packed in (True, False)]
    for run in runs:
        for step in range(3):
            run.step(step)
        so.kernels.restore(run.model)
        assert all(type(weight) is nn.Parameter for weight in run.weights)
        for step in range(3, 6):
            run.step(step)
    assert_same(*runs)


def test_a_backward_pass_behind_a_step_is_refused() -> None:
    run = Training(packed=True, method=so.Static())
    for step in range(2):
        run.step(step)
    loss = run.model(torch.randn(4, 20)).sum()
    run.step(2)
    with pytest.raises(RuntimeError, match="call backward before step"):
        loss.backward()


def test_a_graph_can_be_kept_for_a_second_backward_pass() -> None:
    runs = [Training(packed=packed, method=so.Static()) for packed in (True, False)]
    for run in runs:
        run.step(0)
        run.optimizer.zero_grad()
        loss = run.model(torch.ones(4, 20)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        run.optimizer.step()
    assert_same(*runs)


@pytest.mark.parametrize("scale", [2.0**10, float("inf")])
def test_a_gradient_scaler(scale: float) -> None:
    """With an infinite scale every gradient overflows, and no step is taken."""
    runs = [Training(packed=packed, method=so.Static()) for packed in (True, False)]
    for run in runs:
        for step in range(2):
            run.step(step)
        before = [weight.detach().clone() for weight in run.weights]
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        run.optimizer.zero_grad()
        loss = run.model(torch.ones(4, 20)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
        moved = [not torch.equal(*each) for each in zip(run.weights, before, strict=True)]
        assert moved == [scale < float("inf")] * len(moved)
    assert_same(*runs)
