"""Hugging Face Accelerate: a perceptron that reads digits, trained sparse on whatever devices there are.

    python examples/with_accelerate.py
    torchrun --nproc-per-node 2 examples/with_accelerate.py

Delete the lines marked `# sparse`, and the script trains the dense network.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digits import load
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sparseopt as so  # sparse

EPOCHS = 6
BATCH = 50


def train(folder: Path, resume_from: Path | None = None) -> tuple[torch.optim.Optimizer, float]:
    """Train, from a checkpoint if one is named; leave one of every epoch in the folder. The optimizer and the test accuracy."""
    set_seed(0)
    accelerator = Accelerator()
    training, test = load()
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU()),
        *(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)),
    )
    batches = accelerator.prepare(DataLoader(training, BATCH, shuffle=True))
    steps = EPOCHS * len(batches)  # of this rank, which are the optimizer's
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    topology = so.sparsify(model, 0.9)  # sparse
    optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=steps, every=20))  # sparse
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    network, stepper = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(schedule)
    done = 0
    if resume_from is not None:
        accelerator.load_state(str(resume_from))
        done = int(resume_from.name)
    for epoch in range(done, EPOCHS):
        network.train()
        for images, labels in batches:
            stepper.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(network(images), labels))
            stepper.step()
            schedule.step()
        accelerator.save_state(str(folder / str(epoch + 1)))
        score = accuracy(network, *(part.to(accelerator.device) for part in test.tensors))
        accelerator.print(f"epoch {epoch + 1}: test accuracy {score:.1%}")
    return optimizer, score


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (network.eval()(images).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    train(Path("runs/with-accelerate"))
