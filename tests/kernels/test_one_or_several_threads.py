"""Few samples are computed by one thread where it is faster than several, many samples never are.

What is faster is made up here: a clock that only several threads, or only one, let go on.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.frozen import chain as chains
from sparseopt.kernels.frozen.chain import MANY, FrozenChain
from sparseopt.kernels.frozen.layouts import Layout
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.frozen.tuned import TRIED, Tuned, fastest
from sparseopt.kernels.native.measurements import Measurements


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def images(samples: int) -> tuple[Tensor]:
    return (torch.randn(samples, 3, 8, 8),)


def tuned_region() -> Tuned:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    (region,) = so.compile_inference(model, so.sparsify(model, 0.8, distribution="uniform")).pieces()
    assert isinstance(region, FrozenRegion)
    return FrozenRegion(region.content, (Layout(8, 2),)).prepared(images(1))


def frozen_chain() -> FrozenChain:
    model = nn.Sequential(nn.Linear(256, 300), nn.ReLU(), nn.Linear(300, 10))
    (chain,) = so.compile_inference(model, so.sparsify(model, 0.8, distribution="uniform")).pieces()
    assert isinstance(chain, FrozenChain)
    return chain


def watched(tuned: Tuned, monkeypatch: pytest.MonkeyPatch, seen: Callable[[int], None]) -> None:
    """`seen` is told with how many threads the library is called."""
    network = tuned.program.network
    run = network._run

    def call(threads: int, *arguments: Any) -> object:
        seen(threads)
        return run(threads, *arguments)

    monkeypatch.setattr(network, "_run", call)


def test_a_region_runs_on_one_thread_if_told_to_and_samples_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned, threads = tuned_region(), list[int]()
    watched(tuned, monkeypatch, threads.append)
    alone, together = replace(tuned, alone=True), replace(tuned, alone=False)
    for samples in (1, TRIED, TRIED + 1):
        x = images(samples)
        for one, other in zip(alone.run(x), together.run(x), strict=True):
            assert torch.equal(one, other)
    assert threads == [1, 2, 1, 2, 2, 2]


@pytest.mark.parametrize("faster", [1, 2])
def test_whichever_is_faster_is_taken_for_a_region_and_kept(
    faster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, known, now = tuned_region(), Measurements(None, ""), [0.0]

    def goes_on(threads: int) -> None:
        now[0] += 0.0 if threads == faster else 1.0

    watched(tuned, monkeypatch, goes_on)
    monkeypatch.setattr("sparseopt.kernels.frozen.tuned.time.perf_counter", lambda: now[0])
    assert fastest([tuned], images(1), known).alone == (faster == 1)
    before = now[0]
    assert fastest([tuned], images(1), known).alone == (faster == 1)
    assert now[0] == before  # measured once
    torch.set_num_threads(1)
    assert not fastest([tuned], images(1), known).alone  # of one thread there is nothing to ask


@pytest.mark.parametrize("faster", [1, 2])
def test_whichever_is_faster_is_taken_for_a_chain(faster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(run: Any, _: Tensor) -> float:
        if not isinstance(run, partial):
            return 3.0  # dense
        return 1.0 if run.keywords["alone"] == (faster == 1) else 2.0

    monkeypatch.setattr(chains, "shortest", seconds)
    monkeypatch.setattr(chains, "measurements", lambda: Measurements(None, ""))
    chain = frozen_chain()
    alone = {samples: chain._runner(samples).keywords["alone"] for samples in (1, MANY, MANY + 1, 10 * MANY)}  # pyright: ignore[reportFunctionMemberAccess]
    assert alone == {1: faster == 1, MANY: faster == 1, MANY + 1: False, 10 * MANY: False}
    assert ("one thread" in next(iter(chain.report().values()))) == (faster == 1)
    torch.set_num_threads(1)
    assert not chain._runner(1).keywords["alone"]  # pyright: ignore[reportFunctionMemberAccess]
    x = torch.randn(3, 256)
    assert torch.equal(chain(x)[0], chain.make(8, 1, 0).run(x))
