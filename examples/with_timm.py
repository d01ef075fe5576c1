"""timm: one of its networks, with its optimizer factory and its schedule, trained sparse on digits.

    python examples/with_timm.py

Delete the lines marked `# sparse`, and the script trains the dense network.
"""

from pathlib import Path

import timm
import torch
from digits import ShuffledByEpoch, load
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sparseopt as so  # sparse

EPOCHS = 4
BATCH = 50
SIDE = 32


def train(folder: Path, resume_from: Path | None = None) -> tuple[torch.optim.Optimizer, float]:
    """Train, from a checkpoint if one is named; leave one of every epoch in the folder. The optimizer and the test accuracy."""
    torch.manual_seed(0)
    training, test = load()
    model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
    steps = EPOCHS * (len(training) // BATCH)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
    topology = so.sparsify(model, 0.8, exclude="conv1.0.weight")  # sparse
    optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=steps, every=20))  # sparse
    schedule = CosineLRScheduler(optimizer, t_initial=EPOCHS, warmup_t=1, warmup_lr_init=1e-3)
    done = 0
    if resume_from is not None:
        saved = torch.load(resume_from, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epochs"]
    order = ShuffledByEpoch(len(training))
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(done, EPOCHS):
        schedule.step(epoch)
        order.set_epoch(epoch)
        model.train()
        for images, labels in DataLoader(training, BATCH, sampler=order):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(enlarged(images)), labels).backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
        torch.save(state, folder / f"{epoch + 1}.pt")
        score = accuracy(model, *test.tensors)
        print(f"epoch {epoch + 1}: test accuracy {score:.1%}")
    return optimizer, score


def enlarged(images: Tensor) -> Tensor:
    """Digits at the size timm's networks begin to make sense."""
    return nn.functional.interpolate(images, SIDE, mode="bilinear")


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (model.eval()(enlarged(images)).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    train(Path("runs/with-timm"))
