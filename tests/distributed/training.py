"""What the ranks of the distributed tests run: the same small training, replicated (DDP) or sharded (FSDP2).

Imported by the tests and, in processes of their own, by the ranks.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import sparseopt as so
from sparseopt.topology import dense_grads
from sparseopt.topology.sharding import local

sys.path.insert(0, str(Path(__file__).parents[1]))
from every_method import methods

dense_grads.BLOCK = 64  # dense gradients in several blocks of rows, as those of large layers are
BATCH = 16
METHODS = methods(total_steps=40, every=4) | {
    "set": so.SET(total_steps=40, every=4),
    "rigl": so.RigL(total_steps=40, every=4, grow_from="corrected"),
    "measured": so.RigL(total_steps=40, every=4, grow_from="corrected"),
}
OPTIONS: dict[str, dict[str, Any]] = {"measured": {"correction": "measured", "correct_decay": True}}


def network() -> nn.Sequential:
    """No BatchNorm, so that half batches on two ranks are the same mathematics as one whole batch."""
    torch.manual_seed(3)
    body = nn.Sequential(nn.Conv2d(2, 10, 3), nn.Tanh(), nn.ConvTranspose2d(10, 6, 2, groups=2), nn.Tanh())
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(6 * 49, 12), nn.Tanh(), nn.Linear(12, 3)).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 2, 8, 8, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (BATCH,), generator=draw)


def make_sparse(model: nn.Module, method: str, storage: Any = "dense") -> so.Topology:
    start = METHODS[method].starts_at()
    return so.sparsify(model, 0.8 if start is None else start, seed=1, storage=storage)


def make_optimizer(model: nn.Module, method: str, topology: so.Topology) -> so.SparseOpt:
    adam = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)
    return so.SparseOpt(adam, topology, METHODS[method], max_grad_norm=1.0, **OPTIONS.get(method, {}))


def train(
    model: nn.Module,
    optimizer: so.SparseOpt,
    steps: range,
    rank: int = 0,
    world: int = 1,
    corrupt: bool = False,
) -> None:
    for step in steps:
        x, y = (part.chunk(world)[rank] for part in batch(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if corrupt and rank == 1 and step == steps[3]:
            optimizer.topology.parameters["5.weight"].grad.mul_(-1).add_(3)  # pyright: ignore[reportOptionalMemberAccess]
        optimizer.step()


def result(model: nn.Module, topology: so.Topology) -> dict[str, Any]:
    """Everything to compare, whole: weights, masks, and what is read off them."""
    whole = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in model.state_dict().items()
    }
    masks = topology.state_dict()["layers"]
    return {
        "weights": {name.removeprefix("module."): value.clone() for name, value in whole.items()},
        "masks": {name: masks[name]["mask"] for name in masks},
        "itop": topology.itop_rate(),
        "dead": topology.dead_neurons(),
    }


def zeros_are_exact(optimizer: so.SparseOpt) -> bool:
    """On this rank's part: weights outside the mask, and the state of weights that do not learn, are exactly zero."""
    if optimizer.topology.kind() == "packed":
        return True  # nothing is outside
    for name, parameter in optimizer.topology.parameters.items():
        if local(parameter.detach())[~local(optimizer.topology.masks[name])].any():
            return False
        state = [value for value in optimizer.state[parameter].values() if value.shape == parameter.shape]
        if any(bool(local(tensor)[~optimizer.learning(name)].any()) for tensor in state):
            return False
    return True


def single(rank: int, world: int, method: str, folder: Path) -> dict[str, Any]:
    model = network()
    topology = make_sparse(model, method)
    train(model, make_optimizer(model, method, topology), range(20))
    return result(model, topology)


def ddp(rank: int, world: int, method: str, folder: Path) -> dict[str, Any]:
    model = network()
    topology = make_sparse(model, method)
    optimizer = make_optimizer(model, method, topology)
    train(DistributedDataParallel(model), optimizer, range(20), rank, world)
    return result(model, topology) | {"exact": zeros_are_exact(optimizer)}


def ddp_packed(rank: int, world: int, method: str, folder: Path) -> dict[str, Any]:
    """Active values alone travel, and at RigL's updates the dense gradient."""
    model = network()
    topology = make_sparse(model, method, "packed")
    optimizer = make_optimizer(model, method, topology)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    train(parallel, optimizer, range(20), rank, world)
    return result(model, topology) | {"exact": zeros_are_exact(optimizer)}


def accelerated_packed(rank: int, world: int, method: str, folder: Path) -> dict[str, Any]:
    return accelerated(rank, world, method, folder, storage="packed")


def accelerated(rank: int, world: int, method: str, folder: Path, storage: Any = "dense") -> dict[str, Any]:
    """On the sparse kernels; in one process and in several."""
    torch.manual_seed(3)
    layers = (nn.Flatten(), nn.Linear(128, 60), nn.ReLU(), nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 3))
    model = nn.Sequential(*layers)
    topology = so.sparsify(model, 0.8, seed=1, storage=storage)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, METHODS[method], max_grad_norm=1.0, **OPTIONS.get(method, {}))
    so.accelerate(model, topology)
    forward = DistributedDataParallel(model) if world > 1 else model
    for step in range(20):
        x, y = (part.chunk(world)[rank] for part in batch(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(forward(x.float()), y).backward()
        optimizer.step()
    return result(model, topology) | {
        "exact": zeros_are_exact(optimizer),
        "on_kernels": list(so.kernels.accelerated_layers(model)),
    }


def corrupted(rank: int, world: int, method: str, folder: Path) -> dict[str, Any]:
    model = network()
    optimizer = make_optimizer(model, method, so.sparsify(model, 0.8, seed=1))
    try:
        train(DistributedDataParallel(model), optimizer, range(20), rank, world, corrupt=True)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": ""}


def sharded(world: int, method: str) -> tuple[nn.Module, so.SparseOpt]:
    mesh = init_device_mesh("cpu", (world,))
    model = network()
    for module in model:
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    topology = make_sparse(model, method)
    return model, make_optimizer(model, method, topology)


def fsdp(rank: int, world: int, method: str, folder: Path) -> dict[str, Any]:
    """Train to the middle, save with torch.distributed.checkpoint; then on to the end."""
    model, optimizer = sharded(world, method)
    train(model, optimizer, range(10), rank, world)
    save(_checkpoint(model, optimizer), checkpoint_id=folder / f"checkpoint-{world}")
    train(model, optimizer, range(10, 20), rank, world)
    masks = optimizer.topology.masks
    return result(model, optimizer.topology) | {
        "exact": zeros_are_exact(optimizer),
        "sharded": all(
            isinstance(mask, DTensor) and mask.to_local().numel() < mask.numel() for mask in masks.values()
        ),
    }


def fsdp_resumed(rank: int, world: int, method: str, folder: Path) -> dict[str, Any]:
    """Load what another number of ranks has saved, and train to the end."""
    model, optimizer = sharded(world, method)
    state = _checkpoint(model, optimizer)
    load(state, checkpoint_id=next(folder.glob("checkpoint-*")))
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer.base, state["optimizer"])
    optimizer.load_sparse_state_dict(state["sparse"])
    train(model, optimizer, range(10, 20), rank, world)
    return result(model, optimizer.topology) | {"exact": zeros_are_exact(optimizer)}


def _checkpoint(model: nn.Module, optimizer: so.SparseOpt) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": get_optimizer_state_dict(model, optimizer.base),
        "sparse": optimizer.sparse_state_dict(),
    }


def main(folder: str, *tasks: str) -> None:
    """Run the tasks, each `scenario:method`, one after the other; leave what they returned in the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    outcomes = {}
    for task in tasks:
        scenario, method = task.split(":")
        outcomes[task] = globals()[scenario](rank, world, method, Path(folder) / method)
    torch.save(outcomes, Path(folder) / f"{world}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
