"""A configuration made real: data, network, masks, optimizer and learning rate, ready for the first step.

This is how the library is used on any network: `sparsify`, wrap the optimizer, train as always.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

import sparseopt as so
from sparseopt.lab.config.controls import correction
from sparseopt.lab.config.recipes import Config, OptimizerName
from sparseopt.lab.config.schedule import WarmupCosine
from sparseopt.lab.data import Pipeline, pipeline
from sparseopt.lab.errors import UserError
from sparseopt.lab.models import CifarResNet, Decoder, ResNet50, mlp, timm_model
from sparseopt.lab.system.ranks import ALONE, Ranks
from sparseopt.lab.training.acceleration import Accelerate, Storage, choose_storage, put_on_kernels
from sparseopt.lab.training.methods import build_method

OPTIMIZERS: dict[OptimizerName, Any] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": NAdam,
    "radam": RAdam,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
    "adamax": Adamax,
}


@dataclass(frozen=True)
class Experiment:
    """Everything a run consists of. A dense one has no topology."""

    config: Config
    data: Pipeline
    model: nn.Module
    topology: so.Topology | None
    optimizer: Optimizer
    schedule: WarmupCosine
    device: torch.device
    forward: nn.Module
    """The network as training calls it: with several ranks, in the wrapper that averages their gradients."""
    ranks: Ranks = ALONE

    def scores(self, network: nn.Module, images: Tensor) -> Tensor:
        """What the network says of the images, computed in the precision of the configuration, told in float32."""
        reduced = self.config.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=reduced):
            return network(images).float()

    @property
    def factors(self) -> dict[str, Tensor]:
        """The skew correction in force: one factor a neuron, by layer; empty where there is none."""
        return self.optimizer.factors if isinstance(self.optimizer, so.SparseOpt) else {}

    def update(self) -> Tensor:
        """Take the optimizer step; the norm of the gradients before clipping, NaN if connections moved instead."""
        if not isinstance(self.optimizer, so.SparseOpt):
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), _max_norm(self.config))
            self.optimizer.step()
            return norm
        version = self.optimizer.topology.version
        self.optimizer.step()
        norm = self.optimizer.grad_norm
        moved = self.optimizer.topology.version != version and not self.optimizer.method.moves_weights
        return torch.full((), math.nan, device=self.device) if moved or norm is None else norm


def build(
    config: Config,
    *,
    device: torch.device | None = None,
    data_dir: Path | None = None,
    ranks: Ranks = ALONE,
    accelerate: Accelerate = "off",
    storage: Storage | None = None,
    on_kernels: Sequence[str] | None = None,
) -> Experiment:
    """Load the data and make the network, its masks and its optimizer, all decided by the configuration.

    `on_kernels` are the layers that `accelerate="auto"` chose before, when the run is to go on as it began.
    """
    device = device or torch.device("cpu")
    data = pipeline(
        *(config.data, config.batch_size),
        seed=config.seed,
        augment=config.augment,
        fraction=config.data_fraction,
        device=device,
        data_dir=data_dir,
        image_size=config.image_size,
        ranks=ranks,
    )
    total_steps = config.epochs * data.steps_per_epoch
    try:
        model = build_model(config, data.shape, data.classes).to(device)
        if config.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        kept = choose_storage(storage, accelerate, build_method(config, total_steps))
        topology = build_topology(config, model, kept)
        optimizer = build_optimizer(config, model, topology, total_steps)
    except ValueError as error:  # the library's, which name the option and the remedy
        raise UserError(str(error)) from error
    schedule = WarmupCosine(
        total_steps,
        round(config.warmup_epochs * data.steps_per_epoch),
        *(config.warmup_lr, config.peak_lr, config.final_lr),
    )
    if topology is not None:
        put_on_kernels(accelerate, model, topology, data, ranks, config.sparsity, on_kernels)
    forward = model if ranks.size == 1 else DistributedDataParallel(model)
    return Experiment(config, data, model, topology, optimizer, schedule, device, forward, ranks)


def build_model(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network with its initial weights, which depend on the seed alone: dense and sparse runs share them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.model == "mlp" and config.data != "text":
            hidden = [max(1, round(width * config.width)) for width in config.hidden]
            return mlp(shape, classes, hidden)
        if (config.model == "decoder") != (config.data == "text"):
            raise UserError(
                f"--model decoder and --data text go together, got {config.model} and {config.data}"
            )
        if config.model == "decoder":
            return Decoder(classes, *shape, width=4 * max(1, round(32 * config.width)))
        if config.model.startswith("timm:"):
            return timm_model(config.model.removeprefix("timm:"), shape, classes)
        if shape[0] != 3:
            raise UserError(f"--model {config.model} needs colour images, which --data {config.data} has not")
        if config.model == "resnet50":
            return ResNet50(classes, width=config.width)
        depth = int(config.model.removeprefix("resnet"))
        return CifarResNet(depth, classes, width=config.width, shortcut=config.shortcut)


def build_topology(config: Config, model: nn.Module, storage: Storage = "dense") -> so.Topology | None:
    """Make the network sparse, unless it is to stay dense."""
    if config.method == "dense":
        return None
    include, exclude = config.include or None, config.exclude or None
    start = build_method(config, 1).starts_at()
    sparsity = config.sparsity if start is None else start
    masks = so.topology.fan_in_masks(
        *(model, sparsity, config.fan_in),
        distribution=config.distribution,
        include=include,
        exclude=exclude,
        seed=config.seed,
    )
    chosen: dict[str, Any] = {"include": include, "exclude": exclude, "storage": storage}
    return so.sparsify(model, sparsity, masks=masks, seed=config.seed, **chosen)


def build_optimizer(
    config: Config, model: nn.Module, topology: so.Topology | None, total_steps: int
) -> Optimizer:
    """The base optimizer, with HAM if asked; around it, for a sparse network, SparseOpt."""
    optimizer = build_base_optimizer(config, model)
    if config.ham:
        optimizer = so.HAM(optimizer, alpha=config.ham_alpha, beta=config.ham_beta)
    if topology is None:
        return optimizer
    return so.SparseOpt(
        optimizer,
        topology,
        build_method(config, total_steps),
        correction=correction(config.correction),
        correct_decay=config.correct_decay and config.correction != "none",
        max_grad_norm=_max_norm(config),
        clip=config.clip,
    )


def build_base_optimizer(config: Config, model: nn.Module) -> Optimizer:
    """torch's optimizer of that name."""
    kind: type[Optimizer] = OPTIMIZERS[config.optimizer]
    options: dict[str, Any] = {"lr": config.peak_lr, "weight_decay": config.weight_decay}
    if config.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = config.momentum
    elif config.optimizer != "adagrad":
        options["betas"] = (config.momentum, 0.999)
    return kind(model.parameters(), **options)


def _max_norm(config: Config) -> float:
    """An infinite norm clips nothing, and is measured all the same."""
    return math.inf if config.max_grad_norm is None else config.max_grad_norm
