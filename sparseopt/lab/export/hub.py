"""A run as a folder for the Hugging Face Hub: weights that anybody can load, the configuration, and a model card.

The files are those of `huggingface_hub.PyTorchModelHubMixin`: model.safetensors is an ordinary state dict, config.json holds the
settings. The masks are in the metadata of model.safetensors, where `so.load` finds them.
"""

from dataclasses import replace
from pathlib import Path

from sparseopt import __version__
from sparseopt.kernels.frozen.file import DENSE_FILE, dense_file
from sparseopt.lab.config.differences import described
from sparseopt.lab.config.recipes import short
from sparseopt.lab.errors import UserError
from sparseopt.lab.export.trained import Trained
from sparseopt.lab.runs.catalogue import EXPORTED, Run
from sparseopt.lab.show.words import duration
from sparseopt.lab.system.files import reporting_write_errors, write_bytes, write_json

CARD = """---
library_name: sparseopt
tags: [sparse, {method}]
datasets: [{data}]
---

# {name}

The network `{model}` with {sparsity:.1%} of its sparsifiable weights exactly zero, trained on {data} by sparseopt {version}.

| | |
|---|---|
| test accuracy | {accuracy:.2%} |
| train loss | {loss:.4f} |
| weights | {active:,} active of {weights:,} |
| ITOP rate | {itop:.1%} |
| epochs | {epochs} of {planned}, in {seconds}{on} |

One seed ({seed}); the settings that depart from the recipe: {unusual}. config.json has all of them.

```python
import sparseopt as so
from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.training.experiment import build_model

model = build_model(read_config("config.json"), {shape}, {classes})
topology = so.load("model.safetensors", model)
engine = so.compile_inference(model, topology)
```
"""


def export_hub(network: Trained, run: Run, folder: Path) -> list[Path]:
    """Write the folder; the files in it."""
    if not run.rows:
        raise UserError(
            f"{run.path} has not finished its first epoch, and a model card tells an accuracy: train on, then export"
        )
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        masks = {} if network.topology is None else dict(network.topology.masks)
        contents = dense_file(network.model.state_dict(), masks, format="pt")
    write_bytes(folder / DENSE_FILE, contents)
    settings = replace(run.config, data=_without_path(run.config.data)).to_json()
    write_json(
        folder / "config.json", {"config": settings, "name": run.config.run_name, EXPORTED: __version__}
    )
    write_bytes(folder / "README.md", card(network, run).encode())
    return [folder / name for name in (DENSE_FILE, "config.json", "README.md")]


def _without_path(data: str) -> str:
    """A data set as strangers may read it: where the folder was is nobody's business."""
    kind, colon, _ = data.partition(":")
    return f"{kind}:{short(data).removeprefix(f'{kind}-')}" if colon else data


def card(network: Trained, run: Run) -> str:
    """The model card, with the run's own numbers."""
    config, last, topology = run.config, run.last, network.topology
    weights = sum(p.numel() for p in network.model.parameters() if p.dim() > 1)
    return CARD.format(
        name=config.run_name,
        method=config.method,
        model=config.model,
        data=short(config.data),
        version=__version__,
        sparsity=0.0 if topology is None else topology.sparsity(),
        accuracy=last["test_accuracy"],
        loss=last["train_loss"],
        active=weights if topology is None else weights - topology.size() + topology.active(),
        weights=weights,
        itop=last["itop_rate"],
        epochs=last["epoch"],
        planned=config.epochs,
        seconds=duration(last["seconds"]),
        on=""
        if run.state == "finished"
        else "; the weights are of a later checkpoint, the numbers of the last whole epoch",
        seed=config.seed,
        unusual=described(replace(config, data=_without_path(config.data)).unusual()) or "none",
        shape=network.shape,
        classes=network.classes,
    )
