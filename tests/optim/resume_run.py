"""Training runs in a process of their own, for `test_resume.py`: `python resume_run.py FOLDER PART...`.

A part is "whole" (2N steps), "first" (N steps, then save) or "second" (load what "first" saved, then N steps). Each is run for
every combination of method and base optimizer, and leaves one file a combination in the folder.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR

import sparseopt as so

sys.path.insert(0, str(Path(__file__).parents[1]))
from every_method import METHODS

STEPS = 14
FEW = ("sgd", "adamw", "lbfgs")
EVERYWHERE = ("static", "set", "rigl")  # with every base optimizer; the other methods with few
BASES: dict[str, Callable[[Iterable[Tensor]], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True),
    "ham": lambda p: so.HAM(optim.SGD(p, lr=0.1, momentum=0.9)),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.05),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "lbfgs": lambda p: optim.LBFGS(p, lr=0.1, max_iter=2),
}
if hasattr(optim, "Muon"):  # torch 2.9
    BASES["muon"] = lambda p: optim.Muon(p, lr=0.02)


def combinations() -> list[tuple[str, str]]:
    return [(method, base) for method in METHODS for base in BASES if method in EVERYWHERE or base in FEW]


def run(method: str, base: str, part: str, folder: Path) -> None:
    torch.manual_seed(0)
    norm: nn.Module = nn.Identity() if base == "muon" else nn.BatchNorm1d(12)
    model = nn.Sequential(nn.Linear(8, 12, bias=False), norm, nn.ReLU(), nn.Linear(12, 4, bias=False))
    start = METHODS[method].starts_at()
    topology = so.sparsify(model, 0.6 if start is None else start, distribution="uniform", seed=4)
    optimizer = so.SparseOpt(BASES[base](model.parameters()), topology, METHODS[method], max_grad_norm=1.0)
    scheduler = CosineAnnealingLR(optimizer, 2 * STEPS)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if part == "second":
        saved = torch.load(folder / f"first-{method}-{base}.pt", weights_only=True)
        for name, each in parts.items():
            each.load_state_dict(saved[name])
    for step in range(*{"whole": (2 * STEPS,), "first": (STEPS,), "second": (STEPS, 2 * STEPS)}[part]):
        draw = so.topology.generator(0, "batch", step)
        inputs, labels = torch.randn(16, 8, generator=draw), torch.randint(4, (16,), generator=draw)

        def closure(inputs: Tensor = inputs, labels: Tensor = labels) -> float:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss.item()

        optimizer.step(closure)
        scheduler.step()
    torch.save(
        {name: each.state_dict() for name, each in parts.items()}, folder / f"{part}-{method}-{base}.pt"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *parts = sys.argv[1:]
    for part in parts:
        for method, base in combinations():
            run(method, base, part, Path(folder))
