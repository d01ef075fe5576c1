"""--weight-storage: runs on packed weights, what they go on with, and what they say."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import read_json
from sparseopt.lab.training.acceleration import Storage, choose_storage
from sparseopt.lab.training.experiment import build_method
from sparseopt.lab.training.train import train

Small = Callable[..., Config]


def test_packed_where_the_kernels_run_and_the_method_allows_it(small: Small) -> None:
    rigl, gmp = (build_method(small(method=name), 100) for name in ("rigl", "gmp"))
    assert choose_storage(None, "off", rigl) == "dense"
    assert choose_storage(None, "on", rigl) == "packed"
    assert choose_storage(None, "on", gmp) == "dense"
    assert choose_storage("dense", "on", rigl) == "dense"
    assert choose_storage("packed", "off", rigl) == "packed"
    with pytest.raises(UserError, match=r"GMP .*packed storage"):
        choose_storage("packed", "on", gmp)


def test_a_packed_run_tells_what_a_dense_run_tells(small: Small) -> None:
    storages: tuple[Storage, ...] = ("dense", "packed")
    dense, packed = (train(small(), storage=storage) for storage in storages)
    assert packed.result["weights"] == dense.result["weights"]
    for its, mine in zip(dense.rows, packed.rows, strict=True):
        assert mine.keys() == its.keys()
    assert packed.rows[0]["train_loss"] == pytest.approx(dense.rows[0]["train_loss"], rel=0.05)


def test_a_run_goes_on_in_its_storage_and_refuses_the_other(small: Small, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    train(small(), run.path, storage="packed")
    assert read_json(run.config_file)["storage"] == "packed"
    (run.path / "summary.json").unlink()
    with pytest.raises(UserError, match="with packed storage"):
        train(small(), run.path, storage="dense")
    summary = train(small(), run.path)
    assert summary.experiment is not None
    assert summary.experiment.topology is not None
    assert summary.experiment.topology.kind() == "packed"
