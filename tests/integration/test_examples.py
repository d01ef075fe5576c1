"""The examples, run with the real libraries: sparse, dense without the marked lines, and resumed from a checkpoint.

A library that is not installed skips its tests. What other libraries warn of is theirs to mend, so warnings are no errors here.
"""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import sparseopt as so

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EXAMPLES = Path(__file__).parents[2] / "examples"
MARK = "# sparse"


@dataclass(frozen=True)
class Example:
    """One script: the library it shows, a checkpoint it leaves half-way, and a score that only a trained network has."""

    library: str
    script: str
    checkpoint: str
    learned: Callable[[float], bool]


def _accurate(score: float) -> bool:
    return score > 0.85  # chance: 0.1


def _predictive(loss: float) -> bool:
    return loss < 3.0  # chance: ln 256 = 5.5


ALL = [
    Example("accelerate", "with_accelerate.py", "3", _accurate),
    Example("transformers", "with_trainer.py", "checkpoint-40", _predictive),
    Example("lightning", "with_lightning.py", "epoch=2.ckpt", _accurate),
    Example("timm", "with_timm.py", "2.pt", _accurate),
]


@pytest.fixture(scope="module", params=ALL, ids=lambda example: example.library)
def example(request: pytest.FixtureRequest) -> Example:
    pytest.importorskip(request.param.library, reason=f"{request.param.library} is not installed")
    return request.param


@pytest.fixture(scope="module")
def trained(example: Example, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, so.SparseOpt, float]:
    """The example as it stands: its folder of checkpoints, its optimizer, its score."""
    folder = tmp_path_factory.mktemp(example.library)
    optimizer, score = _run(EXAMPLES / example.script, folder)
    return folder, optimizer, score


def test_it_trains_a_sparse_network(
    example: Example,
    trained: tuple[Path, so.SparseOpt, float],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    _, optimizer, score = trained
    assert isinstance(optimizer, so.SparseOpt)
    assert example.learned(score)
    assert_exactly_sparse(optimizer)
    assert optimizer.topology.itop_rate() > 1.2 * (
        1 - optimizer.topology.sparsity()
    )  # connections have moved


def test_at_most_three_lines_differ_from_the_dense_script(example: Example, tmp_path: Path) -> None:
    lines = (EXAMPLES / example.script).read_text().splitlines()
    dense = [line for line in lines if not line.endswith(MARK)]
    assert 1 <= len(lines) - len(dense) <= 3
    assert not any("so." in line or "import sparseopt" in line for line in dense)
    script = tmp_path / example.script
    script.write_text("\n".join(dense))
    shutil.copy(EXAMPLES / "digits.py", tmp_path)
    optimizer, score = _run(script, tmp_path / "run")
    assert example.learned(score)
    weights = torch.cat([weight.flatten() for weight in _weights(optimizer) if weight.ndim > 1])
    assert (weights == 0).float().mean() < 0.01


def test_a_resumed_run_is_the_same_run(
    example: Example, trained: tuple[Path, so.SparseOpt, float], tmp_path: Path
) -> None:
    folder, optimizer, score = trained
    resumed, again = _run(EXAMPLES / example.script, tmp_path, folder / example.checkpoint)
    assert resumed is not optimizer
    assert resumed.steps == optimizer.steps
    assert again == score
    for one, other in zip(_weights(optimizer), _weights(resumed), strict=True):
        assert torch.equal(one, other)
    for name, mask in optimizer.topology.masks.items():
        assert torch.equal(mask, resumed.topology.masks[name])
    assert resumed.topology.itop_rate() == optimizer.topology.itop_rate()


def _weights(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Lightning and Accelerate hand theirs out wrapped
    return (parameter.detach() for group in optimizer.param_groups for parameter in group["params"])


def _run(script: Path, *arguments: Path) -> tuple[Any, float]:
    """Call the script's `train`, with the script's folder on the path as `python script.py` has it."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(script.parent)
        spec.loader.exec_module(module)
        return module.train(*arguments)
