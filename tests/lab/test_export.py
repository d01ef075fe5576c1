"""`sparseopt export` on a run that has just been trained."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparseopt.__main__ import main
from sparseopt.kernels.frozen.file import read
from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.training.train import Summary, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = replace(RECIPES["digits-mlp"], epochs=1, hidden=(64,), sparsity=0.9, every=10)
    return folder, train(config, folder)


def test_safetensors(trained: tuple[Path, Summary], capsys: pytest.CaptureFixture[str]) -> None:
    folder, summary = trained
    assert main(["export", str(folder)]) == 0
    assert "of the dense network" in capsys.readouterr().out
    assert summary.experiment is not None
    expected = summary.experiment.model.state_dict()
    contents = read(folder / "sparse.safetensors")
    assert all(torch.equal(contents.state[name], value) for name, value in expected.items())


def test_onnx(trained: tuple[Path, Summary], capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    folder, summary = trained
    assert main(["export", str(folder), "--format", "onnx"]) == 0
    assert "within" in capsys.readouterr().out
    assert summary.experiment is not None
    model = summary.experiment.model.eval()
    images = torch.randn(3, *summary.experiment.data.shape)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {"images": images.numpy()})
    assert torch.allclose(torch.from_numpy(scores), model(images), atol=1e-5)


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
