"""The ImageNet pipeline on 1,000 real images, and the ImageNet recipe on two ranks, killed on the way and resumed."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchvision", reason="torchvision is not installed", exc_type=ImportError)
pytest.importorskip("tyro", reason="the lab is not installed")

from PIL import Image

from sparseopt.lab.data import pipeline
from sparseopt.lab.data.batches import Batch, Pipeline
from sparseopt.lab.system.ranks import Ranks

pytestmark = pytest.mark.slow

ARCHIVE = "imagenet-sample-1000-224px.tar"
BATCH = 6


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `train/WNID/*.JPEG` and `val/WNID/*.JPEG` of the same 1,000 images."""
    archive = Path(os.environ.get("SPARSEOPT_DATA", "")) / ARCHIVE
    if not archive.is_file():
        pytest.skip(f"$SPARSEOPT_DATA has no {ARCHIVE}")
    root = tmp_path_factory.mktemp("imagenet")
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter="data")
    (root / archive.stem).rename(root / "train")
    (root / "val").symlink_to(root / "train")
    return root


@pytest.fixture(scope="module")
def few_images(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with 32 of them, in four classes."""
    root = tmp_path_factory.mktemp("few")
    for number, folder in enumerate(sorted((images / "train").iterdir())[:32]):
        for part in ("train", "val"):
            place = root / part / f"n{number % 4}"
            place.mkdir(parents=True, exist_ok=True)
            for file in folder.iterdir():
                (place / file.name).symlink_to(file)
    return root


def make(folder: Path, **options: Any) -> Pipeline:
    return pipeline("imagenet", BATCH, data_dir=folder, **options)


def first(batches: Iterator[Batch], count: int) -> list[Batch]:
    return [batch for batch, _ in zip(batches, range(count), strict=False)]


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(x, y) for pair in zip(one, other, strict=True) for x, y in zip(*pair, strict=True)
    )


def joined(parts: list[Batch]) -> Batch:
    pixels, labels = zip(*parts, strict=True)
    return torch.cat(pixels), torch.cat(labels)


def test_shapes_and_lengths(images: Path) -> None:
    data = make(images)
    assert (data.shape, data.classes, data.steps_per_epoch) == ((3, 224, 224), 1000, 1000 // BATCH)
    pixels, labels = next(data.train_batches(0))
    assert pixels.shape == (BATCH, 3, 224, 224)
    assert pixels.dtype == torch.float32
    assert labels.shape == (BATCH,)


def test_an_image_of_the_test_set_by_hand(images: Path) -> None:
    """Shorter side to 256, the central 224 x 224 of it, then (x / 255 - mean) / std in each channel."""
    pixels, labels = next(make(images).test_batches())
    classes = sorted(folder.name for folder in (images / "val").iterdir())
    (file,) = (images / "val" / classes[int(labels[3])]).iterdir()
    image = Image.open(file).convert("RGB")
    width, height = (round(256 * side / min(image.size)) for side in image.size)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    cut = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    values = torch.tensor(list(cut.tobytes()), dtype=torch.float64).view(224, 224, 3).permute(2, 0, 1) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (values - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(pixels[3].double(), expected, rtol=0, atol=1e-5)


def test_training_images_move_and_test_images_do_not(few_images: Path) -> None:
    data = make(few_images)
    epochs = [_brightness(data, epoch) for epoch in (0, 1)]
    assert not torch.equal(*epochs)
    assert same(list(data.test_batches()), list(data.test_batches()))


def _brightness(data: Pipeline, epoch: int) -> Tensor:
    """The mean brightness of all images of an epoch, sorted: the same for two epochs unless crops differ."""
    return torch.cat([pixels.mean((1, 2, 3)) for pixels, _ in data.train_batches(epoch)]).sort().values


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_nothing(
    few_images: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 0)
    alone = list(make(few_images).train_batches(2))
    monkeypatch.setattr(os, "cpu_count", lambda: workers)
    assert same(alone, list(make(few_images).train_batches(2)))


def test_an_epoch_goes_on_where_it_stopped(few_images: Path) -> None:
    whole = list(make(few_images).train_batches(1))
    assert same(whole[3:], list(make(few_images).train_batches(1, start=3)))


def test_the_seed_decides(few_images: Path) -> None:
    one, same_seed, other = (first(make(few_images, seed=seed).train_batches(0), 1) for seed in (0, 0, 1))
    assert same(one, same_seed)
    assert not same(one, other)


def test_ranks_share_every_batch(few_images: Path) -> None:
    """Put together, the shares are the batch of a single process, crops included."""
    alone = first(make(few_images).train_batches(0), 2)
    shares = [first(make(few_images, ranks=Ranks(rank, 2)).train_batches(0), 2) for rank in (0, 1)]
    assert same(alone, [joined(list(parts)) for parts in zip(*shares, strict=True)])


def test_ranks_see_every_test_image_once(few_images: Path) -> None:
    _, labels = joined(list(make(few_images).test_batches()))
    shares = [joined(list(make(few_images, ranks=Ranks(rank, 3)).test_batches())) for rank in range(3)]
    assert [len(theirs) for _, theirs in shares] == [11, 11, 10]
    assert torch.equal(torch.cat([theirs for _, theirs in shares]).sort().values, labels.sort().values)


def start(folder: Path, out: Path) -> subprocess.Popen[str]:
    """The paper's recipe with a narrow network, on two ranks, a checkpoint after every step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    command += ["-m", "sparseopt", "train", "imagenet-resnet50", "--data-dir", str(folder), "--out", str(out)]
    command += ["--batch-size", str(BATCH), "--epochs", "2", "--warmup-epochs", "1", "--every", "2"]
    command += ["--width", "0.125", "--channels-last", "--device", "cpu", "--checkpoint-seconds", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(run: subprocess.Popen[str], out: Path) -> bytes:
    said = run.communicate(timeout=300)[0]
    assert run.returncode == 0, said
    return (out / "model.safetensors").read_bytes()


def kill_after_a_step(run: subprocess.Popen[str], out: Path) -> None:
    """Kill the rank that writes, whose process the lock names, once it has written; torchrun then ends the other one."""
    while not any((out / "checkpoints").glob("step-*.ckpt")):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.02)
    os.kill(int((out / "lock").read_text()), signal.SIGKILL)
    run.communicate()
    assert run.returncode != 0
    assert not (out / "summary.json").exists(), "the run had ended before"


def test_two_ranks_killed_and_resumed_end_with_the_same_bits(few_images: Path, tmp_path: Path) -> None:
    undisturbed = finish(start(few_images, tmp_path / "undisturbed"), tmp_path / "undisturbed")
    out = tmp_path / "killed"
    run = start(few_images, out)
    kill_after_a_step(run, out)
    assert finish(start(few_images, out), out) == undisturbed


def test_a_share_of_the_images_is_the_same_for_every_seed(few_images: Path) -> None:
    halves = [make(few_images, fraction=0.75, seed=seed) for seed in (0, 1)]
    assert [half.steps_per_epoch for half in halves] == [4, 4]
    labels = [torch.cat([label for _, label in half.train_batches(0)]) for half in halves]
    assert labels[0].bincount().tolist() == labels[1].bincount().tolist() == [6] * 4
