"""A compiled model is compiled once: masks are data, not code."""

from collections.abc import Callable

import torch
from torch import nn
from torch._dynamo.utils import counters

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]


def test_mask_updates_cause_no_recompilation(
    build: Callable[..., Network],
    train: Callable[..., None],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    torch._dynamo.reset()
    counters.clear()
    model, topology = build()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = so.SparseOpt(
        torch.optim.AdamW(model.parameters()), topology, so.RigL(total_steps=100, every=5)
    )
    train(compiled, optimizer, 5)
    graphs = counters["stats"]["unique_graphs"]
    train(compiled, optimizer, 55, first=6)
    assert topology.version == 12
    assert graphs == counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert_exactly_sparse(optimizer)
