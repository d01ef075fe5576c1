"""`sparseopt export` on a run that has just been trained."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import sparseopt as so
from sparseopt.__main__ import main
from sparseopt.kernels.frozen.file import dense_file, read, stored_masks
from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.errors import UserError
from sparseopt.lab.export.hub import export_hub
from sparseopt.lab.export.onnx import export_onnx
from sparseopt.lab.export.trained import Trained
from sparseopt.lab.models import Decoder
from sparseopt.lab.runs.catalogue import Run, find_runs
from sparseopt.lab.training.experiment import build_model
from sparseopt.lab.training.train import Summary, train

pytestmark = pytest.mark.slow


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


def test_of_a_stopped_run_it_says_so(
    trained: tuple[Path, Summary], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(trained[0], tmp_path / "run", ignore=shutil.ignore_patterns("summary.json"))
    assert main(["export", str(tmp_path / "run")]) == 0
    assert "is not complete: what is exported is its network after step 31" in caplog.text


def test_a_figure_is_not_written_as_what_it_cannot_be(
    trained: tuple[Path, Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(trained[0]), "--out", str(tmp_path / "a.jpg")]) != 0
    assert "figures are written as .png, .pdf, .svg, not as .jpg" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["safetensors", "onnx", "hub"])
def test_a_packed_run_is_exported_too(format: str, tmp_path: Path) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    config = replace(RECIPES["digits-mlp"], epochs=1, hidden=(64,), sparsity=0.9, every=10)
    train(config, tmp_path / "run", storage="packed")
    assert main(["export", str(tmp_path / "run"), "--format", format]) == 0


def test_skew_of_a_packed_run(tmp_path: Path) -> None:
    config = replace(RECIPES["digits-mlp"], epochs=1, hidden=(64,), sparsity=0.9, every=10)
    train(config, tmp_path / "run", storage="packed")
    assert main(["analyse", "skew", str(tmp_path / "run"), "--out", str(tmp_path / "skew")]) == 0


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


def test_hub(trained: tuple[Path, Summary], capsys: pytest.CaptureFixture[str]) -> None:
    """Anybody loads the state dict; `so.load` finds the masks; the card has the run's own numbers."""
    folder, summary = trained
    assert main(["export", str(folder), "--format", "hub"]) == 0
    assert [run.path for run in find_runs(folder)] == [folder]  # what was exported is no second run
    assert {Path(line).name for line in capsys.readouterr().out.split()} == {
        "model.safetensors",
        "config.json",
        "README.md",
    }
    experiment = summary.experiment
    assert experiment is not None
    assert experiment.topology is not None
    plain = build_model(summary.config, experiment.data.shape, experiment.data.classes)
    plain.load_state_dict(load_file(folder / "hub" / "model.safetensors"))
    model = build_model(
        read_config(folder / "hub" / "config.json"), experiment.data.shape, experiment.data.classes
    )
    topology = so.load(folder / "hub", model)
    for name, mask in experiment.topology.masks.items():
        assert torch.equal(topology.masks[name], mask)
    for name, value in experiment.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    card = (folder / "hub" / "README.md").read_text()
    assert f"{summary.result['test_accuracy']:.2%}" in card
    assert f"{summary.result['active_weights']:,} active of {summary.result['weights']:,}" in card


def test_a_card_tells_the_data_and_not_where_they_were(trained: tuple[Path, Summary]) -> None:
    folder, summary = trained
    assert summary.experiment is not None
    run = Run.read(folder)
    own = replace(
        run, config=replace(run.config, data="imagefolder:/home/alice/clinic/patients", model="timm:resnet18")
    )
    files = export_hub(Trained.of(summary.experiment), own, folder / "own")
    texts = [path.read_text() for path in files if path.suffix != ".safetensors"]
    assert not any("alice" in text for text in texts)
    (card,) = [text for text in texts if text.startswith("---")]
    assert "datasets: [imagefolder-patients]" in card
    assert read_config(folder / "own" / "config.json").data == "imagefolder:patients"


def test_the_code_on_the_model_card_runs(
    trained: tuple[Path, Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, summary = trained
    assert main(["export", str(folder), "--format", "hub"]) == 0
    assert summary.experiment is not None
    monkeypatch.chdir(folder / "hub")
    names: dict[str, Any] = {}
    exec((folder / "hub" / "README.md").read_text().split("```python\n")[1].split("```")[0], names)
    images = torch.randn(3, *summary.experiment.data.shape)
    expected = summary.experiment.model.eval()(images)
    assert torch.allclose(names["engine"](images), expected, rtol=1e-4, atol=1e-5)


def test_the_final_network_of_a_run_carries_its_masks(trained: tuple[Path, Summary], tmp_path: Path) -> None:
    folder, summary = trained
    assert summary.experiment is not None
    assert summary.experiment.topology is not None
    masks = stored_masks(folder / "model.safetensors")
    assert all(torch.equal(masks[name], mask) for name, mask in summary.experiment.topology.masks.items())
    state = {name: torch.ones_like(value) for name, value in load_file(folder / "model.safetensors").items()}
    (tmp_path / "wrong.safetensors").write_bytes(dense_file(state, masks))
    with pytest.raises(ValueError, match="outside its mask"):
        read(tmp_path / "wrong.safetensors")


def moved(folder: Path, to: Path) -> Path:
    """What somebody keeps of a complete run: no data, no checkpoints."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    return to


@pytest.mark.parametrize("format", ["safetensors", "onnx", "hub"])
def test_a_complete_run_needs_neither_its_data_nor_its_checkpoints(
    trained: tuple[Path, Summary], format: str, tmp_path: Path
) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    folder, summary = trained
    run = moved(folder, tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    record["config"]["data"] = f"imagefolder:{tmp_path}/gone"
    (run / "config.json").write_text(json.dumps(record))
    assert main(["export", str(run), "--format", format, "--out", str(tmp_path / "out")]) == 0
    assert summary.experiment is not None
    expected = summary.experiment.model.state_dict()
    if format != "onnx":
        contents = read(tmp_path / "out")
        assert all(torch.equal(contents.state[name], value) for name, value in expected.items())


def test_a_run_that_kept_its_small_file_alone_names_it(
    trained: tuple[Path, Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = moved(trained[0], tmp_path / "run")
    assert main(["export", str(run)]) == 0
    (run / "model.safetensors").unlink()
    assert main(["export", str(run), "--format", "hub"]) == 2
    assert f"its network is {run / 'sparse.safetensors'}" in capsys.readouterr().err.replace("\n", "")


def test_a_dense_run_is_exported_too(tmp_path: Path) -> None:
    config = replace(RECIPES["digits-mlp"], epochs=1, hidden=(64,), method="dense")
    train(config, tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--format", "hub"]) == 0
    expected = load_file(tmp_path / "run" / "model.safetensors")
    found = load_file(tmp_path / "run" / "hub" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_run_that_is_not_complete_is_exported_as_it_stands(
    trained: tuple[Path, Summary], tmp_path: Path
) -> None:
    folder, summary = trained
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "model.safetensors").unlink()
    assert main(["export", str(tmp_path / "run")]) == 0
    assert summary.experiment is not None
    contents = read(tmp_path / "run" / "sparse.safetensors")
    expected = summary.experiment.model.state_dict()
    assert all(torch.equal(contents.state[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    "wrong", [{"input": "3x32x32"}, {"classes": 0}, {"input": []}, {"input": [1, -28, 28]}]
)
def test_sizes_that_are_none_are_refused(
    trained: tuple[Path, Summary], wrong: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = moved(trained[0], tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**record, **wrong}))
    assert main(["export", str(run)]) == 2
    assert "which are no sizes" in capsys.readouterr().err


def test_a_network_of_another_size_is_refused(
    trained: tuple[Path, Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = moved(trained[0], tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**record, "classes": 11}))
    assert main(["export", str(run)]) == 2
    assert "is not the network of" in capsys.readouterr().err


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "folder of a run" in capsys.readouterr().err


def test_onnx_of_a_network_that_reads_text(tmp_path: Path) -> None:
    assert export_onnx(Decoder(20, 8, 16, 1), (8,), tmp_path / "text.onnx", symbols=20) < 1e-5


def test_a_run_without_a_whole_epoch_has_no_card(trained: tuple[Path, Summary], tmp_path: Path) -> None:
    folder, summary = trained
    assert summary.experiment is not None
    with pytest.raises(UserError, match="has not finished its first epoch"):
        export_hub(Trained.of(summary.experiment), replace(Run.read(folder), rows=[]), tmp_path / "hub")
    assert not (tmp_path / "hub").exists()
