"""`sparseopt train` under torchrun: a rank that is killed costs nothing, and the ranks end with one network."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

pytest.importorskip("tyro", reason="the lab is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

RECIPE = ["digits-mlp", "--hidden", "24", "--epochs", "3", "--every", "10", "--checkpoint-seconds", "0"]


def start(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    command += ["-m", "sparseopt", "train", *RECIPE, "--out", str(out), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out.parent
    )


def finish(run: subprocess.Popen[str], out: Path) -> bytes:
    said = run.communicate(timeout=200)[0]
    assert run.returncode == 0, said
    return (out / "model.safetensors").read_bytes()


def kill_a_rank_after_the_first_epoch(out: Path) -> int:
    """The lock names the process of the first rank, which is the one that writes."""
    metrics, lock = out / "metrics.jsonl", out / "lock"
    for _ in range(3000):
        if metrics.exists() and metrics.read_text():
            victim = int(lock.read_text())
            os.kill(victim, signal.SIGKILL)
            return victim
        time.sleep(0.05)
    raise AssertionError("no epoch ended within the time")


def test_a_killed_rank_is_restarted_and_the_result_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    undisturbed = finish(start(tmp_path / "undisturbed"), tmp_path / "undisturbed")
    run = start(tmp_path / "killed")
    victim = kill_a_rank_after_the_first_epoch(tmp_path / "killed")
    assert finish(run, tmp_path / "killed") == undisturbed
    assert int((tmp_path / "killed" / "lock").read_text()) != victim, "another process has finished it"
