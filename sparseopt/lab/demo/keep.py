"""A training that is over, as the folder of a run: small, because nobody will go on with it.

There are no checkpoints and no curves for TensorBoard, and the network is packed (`sparseopt.load` reads it). All that
`sparseopt runs`, `plot` and `report` show is there.
"""

from pathlib import Path

from sparseopt.kernels.frozen.file import save
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import write_json
from sparseopt.lab.training.acceleration import Accelerate
from sparseopt.lab.training.train import Summary, record


def keep(summary: Summary, folder: Path, accelerate: Accelerate) -> None:
    """Write the run, in place of one that an earlier demo has left there."""
    run, experiment = RunDir(folder), summary.experiment
    assert experiment is not None  # it has just been trained
    with run.locked():
        write_json(run.config_file, record(experiment, accelerate))
        run.write_metrics(summary.rows)
        if experiment.topology is not None:
            save(experiment.model, experiment.topology, run.packed_file)
        write_json(run.summary_file, summary.result)
