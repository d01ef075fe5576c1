"""Several ranks train as one: the same masks as a single process, replicated or sharded, and a stop if they ever differ."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import METHODS

pytestmark = pytest.mark.slow

if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

QUICK = ("set", "rigl", "measured")
OTHERS = [method for method in METHODS if method not in QUICK]
PACKED = ("gse", "mest")  # of the others, those that packed storage holds
ACCELERATED = ("accelerated", "accelerated_packed")
SCRIPT = Path(__file__).with_name("training.py")


Outcomes = dict[str, list[dict[str, Any]]]  # by task, what each rank returned


def on_ranks(world: int, folder: Path, *tasks: str) -> Outcomes:
    """Run tasks of training.py, each `scenario:method`, on so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), *tasks],
            env=os.environ | common | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    errors = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(errors)
    results = [torch.load(folder / f"{world}-{rank}.pt", weights_only=True) for rank in range(world)]
    return {task: [result[task] for result in results] for task in tasks}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """All trainings, in as few processes as will do: starting one costs more than what it trains."""
    accelerated = [f"{scenario}:{method}" for scenario in ACCELERATED for method in QUICK]
    packed = [f"ddp_packed:{method}" for method in QUICK]
    return run_all(tmp_path_factory.mktemp("ranks"), QUICK, accelerated, "corrupted:rigl", *packed)


@pytest.fixture(scope="module")
def outcomes_of_others(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    packed = [f"ddp_packed:{method}" for method in PACKED]
    return run_all(tmp_path_factory.mktemp("others"), OTHERS, [], *packed)


def run_all(folder: Path, methods: Sequence[str], accelerated: list[str], *on_two: str) -> Outcomes:
    for method in methods:
        (folder / method).mkdir()
    alone = on_ranks(1, folder, *(f"single:{method}" for method in methods), *accelerated)
    return {
        **{f"alone {task}": found for task, found in alone.items()},
        **on_ranks(
            *(2, folder, *(f"{s}:{method}" for s in ("ddp", "fsdp") for method in methods), *accelerated),
            *on_two,
        ),
        **on_ranks(4, folder, *(f"fsdp_resumed:{method}" for method in methods)),
    }


@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.parametrize("scenario", ["ddp", "fsdp", "fsdp_resumed"])
def test_so_it_is_for_every_method(outcomes_of_others: Outcomes, scenario: str, method: str) -> None:
    assert_one_process(outcomes_of_others, scenario, method)


@pytest.mark.parametrize("method", PACKED)
def test_so_it_is_on_packed_storage(outcomes_of_others: Outcomes, method: str) -> None:
    assert_one_process(outcomes_of_others, "ddp_packed", method)


@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize("scenario", ["ddp", "ddp_packed", "fsdp", "fsdp_resumed"])
def test_several_ranks_are_one_process_with_the_whole_batch(
    outcomes: Outcomes, scenario: str, method: str
) -> None:
    """Two ranks replicated, two sharded, and four that go on from the checkpoint of the two."""
    assert_one_process(outcomes, scenario, method)


def assert_one_process(outcomes: Outcomes, scenario: str, method: str) -> None:
    (alone,) = outcomes[f"alone single:{method}"]
    for outcome in outcomes[f"{scenario}:{method}"]:
        assert all(torch.equal(outcome["masks"][name], mask) for name, mask in alone["masks"].items())
        assert (outcome["itop"], outcome["dead"]) == (alone["itop"], alone["dead"])
        assert outcome["exact"], "inactive weights and state are exactly zero"
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(outcome["weights"][name], weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize("scenario", ACCELERATED)
def test_accelerated_ranks_are_one_accelerated_process(
    outcomes: Outcomes, scenario: str, method: str
) -> None:
    (alone,) = outcomes[f"alone {scenario}:{method}"]
    if not alone["on_kernels"]:
        pytest.skip("the kernels cannot be built here")
    for outcome in outcomes[f"{scenario}:{method}"]:
        assert outcome["on_kernels"] == alone["on_kernels"]
        assert outcome["exact"], "inactive weights and state are exactly zero"
        assert all(torch.equal(outcome["masks"][name], mask) for name, mask in alone["masks"].items())
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(outcome["weights"][name], weight, rtol=1e-3, atol=1e-5)


def test_masks_are_sharded_as_their_parameters_are(outcomes: Outcomes) -> None:
    assert all(outcome["sharded"] for method in QUICK for outcome in outcomes[f"fsdp:{method}"])


def test_ranks_that_disagree_stop_and_name_the_layer(outcomes: Outcomes) -> None:
    for outcome in outcomes["corrupted:rigl"]:
        assert re.search(r"ranks.*5\.weight.*step 4", outcome["error"])
