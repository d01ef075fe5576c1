"""Networks of timm and transformers, with random weights, on the sparse kernels: what the dense network gives, call for call."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.native.build import BuildError, operators

pytest.importorskip("torchvision", reason="torchvision is not installed", exc_type=ImportError)
timm = pytest.importorskip("timm", reason="timm is not installed", exc_type=ImportError)
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    try:
        operators()
    except BuildError as reason:
        pytest.skip(str(reason))


def pair(model: nn.Module) -> tuple[nn.Module, nn.Module, so.Topology]:
    """The model accelerated, and a dense copy."""
    topology = so.sparsify(model, 0.9, distribution="uniform")
    dense = copy.deepcopy(model)
    return so.accelerate(model, topology), dense, topology


def first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def outputs(model: nn.Module, calls: int, **inputs: Any) -> list[Tensor]:
    torch.manual_seed(1)
    random.seed(1)
    return [first(model(**inputs)).detach() for _ in range(calls)]


def gradients(model: nn.Module, topology: so.Topology, **inputs: Any) -> dict[str, Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    first(model(**inputs)).square().mean().backward()
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {name: grad * topology.masks.get(name, torch.tensor(1.0)) for name, grad in found.items()}


def close(mine: Tensor, its: Tensor) -> bool:
    mine, its = mine.detach(), its.detach()
    return float((mine - its).norm()) <= 1e-4 * float(its.norm()) + 1e-6


DROPPING = {
    "resnet18": {},
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8},
    "convnext_atto": {},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4, "embed_dim": 48},
}


@pytest.mark.parametrize("name", DROPPING)
def test_timms_drop_path_drops_anew_at_every_call(name: str) -> None:
    torch.manual_seed(0)
    options = {"num_classes": 10, "drop_path_rate": 0.5, **DROPPING[name]}
    made = timm.create_model(name, **options)
    with torch.no_grad():
        for each in made.parameters():
            if each.dim() == 1:
                each.uniform_(0.5, 1.0)  # branches that begin at zero would be dropped unseen
    model, dense, topology = pair(made)
    assert any(type(module).__name__ == "DropPath" for module in model.modules())
    assert so.kernels.accelerated_layers(model)
    side = options.get("img_size", 64)
    x = torch.randn(4, 3, side, side)
    mine, its = outputs(model, 4, x=x), outputs(dense, 4, x=x)
    assert all(close(a, b) for a, b in zip(mine, its, strict=True))
    assert not close(mine[0], mine[1])
    engine = so.compile_inference(model, topology)
    expected = dense.eval()(x)
    assert close(engine(x), expected)
    assert close(model.eval()(x), expected)


def test_timms_norm_with_an_activation_runs_with_its_convolution() -> None:
    torch.manual_seed(0)
    model, dense, topology = pair(timm.create_model("densenet121", num_classes=10, block_config=(2, 2)))
    assert any(type(module).__name__ == "BatchNormAct2d" for module in model.modules())
    convolutions = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert convolutions <= set(so.kernels.accelerated_layers(model))
    assert {f"{name}.weight" for name in convolutions} == topology.normed
    x = torch.randn(4, 3, 64, 64)
    mine, its = outputs(model, 2, x=x), outputs(dense, 2, x=x)
    assert all(close(a, b) for a, b in zip(mine, its, strict=True))
    engine = so.compile_inference(model, topology)
    assert convolutions <= {each.name for each in engine.layers if each.reason is None}
    assert close(engine(x), dense.eval()(x))


def bert() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=100,
    )
    return transformers.BertModel(config)


def test_the_linear_layers_of_bert() -> None:
    torch.manual_seed(0)
    model, dense, topology = pair(bert())
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert set(so.kernels.accelerated_layers(model)) == linear
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, 8:] = 0
    inputs = {"input_ids": torch.randint(0, 100, (3, 12)), "attention_mask": mask}
    mine, its = outputs(model, 2, **inputs), outputs(dense, 2, **inputs)
    assert all(close(a, b) for a, b in zip(mine, its, strict=True))
    of_mine, of_its = gradients(model, topology, **inputs), gradients(dense, topology, **inputs)
    assert of_mine.keys() == of_its.keys()
    assert all(close(of_mine[name], of_its[name]) for name in of_its)
    engine = so.compile_inference(model, topology)
    assert {each.name for each in engine.layers if each.reason is None} == linear
    assert close(first(engine(**inputs)), first(dense.eval()(**inputs)))
