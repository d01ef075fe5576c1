"""A sweep of small runs that tests can disturb in every way, and a PostgreSQL server of our own to keep its study in."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import FrozenTrial, TrialState

from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.sweep.database import Database

USER = "sparseopt"
SETTINGS = ["--epochs", "3", "--batch-size", "400", "--hidden", "16", "--every", "4", "--sparsity", "0.8"]
# A checkpoint after every step: the runs are slow enough to be hit, and have something to go on from.
SMALL = [*SETTINGS, "--method", "set", "--threads", "1", "--checkpoint-seconds", "0"]
QUICK_DEATHS = ["--heartbeat", "0.5", "--dead-after", "8"]


class Server:
    """A PostgreSQL server on a free port of the loopback interface, with a password, in a folder that goes away with it."""

    def __init__(self, bin_folder: Path, folder: Path, unprivileged: list[str]) -> None:
        self._bin, self._data, self._run = bin_folder, folder / "data", unprivileged
        self.password = secrets.token_hex(8)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "password").write_text(self.password)
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": folder}
        self._options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._call(
            "initdb", "-U", USER, "-A", "scram-sha-256", f"--pwfile={folder / 'password'}", "--no-sync"
        )

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        self._call("pg_ctl", "start", "-w", "-o", self._options, "-l", str(self._data / "log"))

    def stop(self) -> None:
        self._call("pg_ctl", "stop", "-m", "fast")

    def _call(self, program: str, *arguments: str) -> None:
        command = [*self._run, str(self._bin / program), "-D", str(self._data), *arguments]
        # Not captured: the server inherits what its starter has, and would keep a pipe open.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running server; a test that stops it starts it again."""
    initdb = shutil.which("initdb") or max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
    if initdb is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    folder, unprivileged = Path(tempfile.mkdtemp(prefix="sparseopt-postgres-")), []
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and there is no runuser to become somebody else")
        shutil.chown(folder, "nobody")
        unprivileged = ["runuser", "-u", "nobody", "--"]
    server = Server(Path(os.path.realpath(initdb)).parent, folder, unprivileged)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


class Command:
    """`sparseopt sweep` as a process of its own, with workers: a machine, as it were."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self._log = log
        with log.open("w") as file:
            command = [sys.executable, "-m", "sparseopt", "sweep", *argv]
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in listed if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def die(self) -> None:
        """All of its processes are gone from one moment to the next."""
        for pid in (*self.workers(), self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        return self.process.wait(timeout=600)


class Sweep:
    """A sweep of runs that take a second each, in a folder and a database."""

    def __init__(self, folder: Path, storage: str, name: str, grid: tuple[str, ...]) -> None:
        self.folder, self.storage, self.name, self.grid = folder, storage, name, grid
        self._commands: list[Command] = []
        self._database = Database(storage)

    def argv(self, *more: str, out: Path | None = None) -> list[str]:
        grid = [word for each in self.grid for word in ("--grid", each)]
        where = ["--out", str(out or self.folder), "--storage", self.storage, "--name", self.name]
        return ["digits-mlp", *grid, *SMALL, *QUICK_DEATHS, *where, *more]

    def start(self, *more: str, out: Path | None = None) -> Command:
        """The command, in processes of its own."""
        log = self.folder.parent / f"command-{len(self._commands)}.log"
        self._commands.append(Command(self.argv(*more, out=out), log))
        return self._commands[-1]

    def end_all(self) -> None:
        for command in self._commands:
            if command.process.poll() is None:
                command.die()

    def trials(self) -> list[FrozenTrial]:
        """What anybody sees who looks at the study with Optuna; none before there is a study."""
        try:
            return optuna.load_study(study_name=self.name, storage=self._database.storage).trials
        except KeyError:
            return []
        finally:
            self._database.close()

    def count(self, state: TrialState) -> int:
        return sum(trial.state == state for trial in self.trials())

    def outcomes(self, out: Path | None = None) -> dict[str, tuple[bytes, list[dict[str, Any]]]]:
        """Of every run the final network, bit by bit, and the metrics but for the time."""
        found = {}
        for folder in sorted(((out or self.folder) / "runs").iterdir()):
            run = RunDir(folder)
            rows = [
                {name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()
            ]
            found[folder.name] = run.model_file.read_bytes(), rows
        return found

    def assert_each_ended_once(self, runs: int) -> None:
        ended = self.trials()
        assert [trial.state for trial in ended] == [TrialState.COMPLETE] * runs
        assert len({trial.user_attrs["run"] for trial in ended}) == runs
        assert all(sorted(trial.intermediate_values) == [1, 2, 3] for trial in ended)

    @staticmethod
    def wait_until(condition: Callable[[], bool]) -> None:
        """Wait for something that must happen; the limit is only there so that a failure ends."""
        deadline = time.monotonic() + 600
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.1)


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """Makes sweeps; whatever of them still runs when a test ends is ended."""
    made: list[Sweep] = []

    def make(*grid: str, storage: str | None = None) -> Sweep:
        folder = tmp_path / f"sweep{len(made)}"
        url = storage or f"sqlite:///{tmp_path / f'study{len(made)}.db'}"
        made.append(Sweep(folder, url, f"study {secrets.token_hex(4)}", grid))
        return made[-1]

    yield make
    for each in made:
        each.end_all()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database for a study: a SQLite file, or the server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'elsewhere.db'}"
    return request.getfixturevalue("server").url


@pytest.fixture(autouse=True)
def settings_restored() -> Iterator[None]:
    """Training settles the settings of its process, which may be ours."""
    yield
    torch.use_deterministic_algorithms(False)
