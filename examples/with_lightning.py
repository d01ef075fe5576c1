"""Lightning: a convolutional network that reads digits, its sparse optimizer returned from `configure_optimizers`.

    python examples/with_lightning.py

Delete the lines marked `# sparse`, and the script trains the dense network. The masks are made where the network is made, not in
`configure_optimizers`: Lightning calls that after it has loaded a checkpoint's weights, which fresh masks would cut.
"""

from pathlib import Path
from typing import Any

import lightning
import torch
from digits import ShuffledByEpoch, load
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sparseopt as so  # sparse

EPOCHS = 6
BATCH = 50


class Reader(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten()),
            nn.Linear(1024, 10),
        )
        self.topology = so.sparsify(self, 0.9)  # sparse

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        optimizer = so.SparseOpt(optimizer, self.topology, so.RigL(total_steps=steps, every=20))  # sparse
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(folder: Path, resume_from: Path | None = None) -> tuple[torch.optim.Optimizer, float]:
    """Train, from a checkpoint if one is named; leave one of every epoch in the folder. The optimizer and the test accuracy."""
    lightning.seed_everything(0)
    training, test = load()
    every_epoch = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        default_root_dir=folder,
        callbacks=[every_epoch],
        logger=False,
    )
    batches = DataLoader(training, BATCH, sampler=ShuffledByEpoch(len(training)))
    trainer.fit(Reader(), batches, DataLoader(test, len(test)), ckpt_path=resume_from and str(resume_from))
    return trainer.optimizers[0], trainer.callback_metrics["accuracy"].item()


if __name__ == "__main__":
    train(Path("runs/with-lightning"))
