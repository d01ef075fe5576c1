"""`sparseopt export`: a trained network as a file for others."""

import logging
from pathlib import Path
from typing import Literal

import tyro

from sparseopt.kernels.frozen.file import save
from sparseopt.lab.cli.command import run
from sparseopt.lab.errors import UserError
from sparseopt.lab.export.hub import export_hub
from sparseopt.lab.export.onnx import export_onnx
from sparseopt.lab.export.trained import trained
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import make_folder, reporting_write_errors

log = logging.getLogger(__name__)

SUFFIX = {"safetensors": "sparse.safetensors", "onnx": "model.onnx", "hub": "hub"}


def main(argv: list[str]) -> int:
    """Export what the command line says."""
    return run("sparseopt export", export, argv)


def export(
    folder: tyro.conf.Positional[Path],
    format: Literal["safetensors", "onnx", "hub"] = "safetensors",
    out: Path | None = None,
    data_dir: Path | None = None,
) -> None:
    """Write the network of a run to one file; of a run that is not complete, as it was at its last checkpoint.

    Args:
        folder: The run.
        format: safetensors: active weights and one bit for every possible one, small, read by `sparseopt.load`. onnx:
            the dense network with its zeros, for any ONNX runtime; compared with torch before it counts as written. hub: a
            folder for the Hugging Face Hub, with model.safetensors (dense, masks in its metadata), config.json and a model card.
        out: The file, or folder; None: beside the run's other files.
        data_dir: Folder with the data sets' official files, needed if the run is not complete; None: $SPARSEOPT_DATA, else
            the cache.
    """
    network = trained(folder, data_dir)
    run = RunDir(folder)
    if run.summary() is None:
        step = run.checkpoints.newest_step()
        log.warning("%s is not complete: what is exported is its network after step %s", folder, step)
    path = out or folder / SUFFIX[format]
    make_folder(path.parent)
    if format == "onnx":
        deviation = export_onnx(network.model, network.shape, path, symbols=network.symbols)
        print(f"{path}: {size(path)}, within {deviation:.1e} of torch")
        return
    if format == "hub":
        for file in export_hub(network, Run.read(folder), path):
            print(file)
        return
    if network.topology is None:
        raise UserError(f"{folder} is a dense run; its model.safetensors is all there is to pack")
    with reporting_write_errors(path):
        save(network.model, network.topology, path)
    dense = sum(t.numel() * t.element_size() for t in network.model.state_dict().values())
    print(f"{path}: {size(path)}, {path.stat().st_size / dense:.1%} of the dense network")


def size(path: Path) -> str:
    return f"{path.stat().st_size / 1024:,.0f} KiB"
