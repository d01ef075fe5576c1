"""The settings that all workers of a command share."""

import socket
from dataclasses import dataclass
from pathlib import Path

from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.sweep.database import Database
from sparseopt.lab.sweep.plan import Plan
from sparseopt.lab.system.files import reporting_write_errors
from sparseopt.lab.training.place import Place

HEARTBEAT = 10.0
DEAD_AFTER = 60.0
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Job:
    """A study, the folder of its runs, and how to train here."""

    database: Database
    name: str
    plan: Plan
    folder: Path
    place: Place
    heartbeat: float = HEARTBEAT
    """Seconds between two signs of life."""

    def run_dir(self, run: str) -> Path:
        return self.folder / "runs" / run

    def in_use(self, run: str) -> bool:
        """Is a process of this machine writing that run?"""
        return RunDir(self.run_dir(run)).running()

    @property
    def machine(self) -> str:
        """Identifies this machine since its boot, and this folder.

        Processes that share both see by the lock of a run whether its worker is alive.

        A machine is known by its kernel, which its containers share.
        """
        with reporting_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        folder = self.folder.stat()
        boot = BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()
        return f"{boot} {folder.st_dev}:{folder.st_ino}"


def worker_name(pid: int, token: str) -> str:
    """A name that tells where a worker is, and that, by its random token, no other one has had."""
    return f"{socket.gethostname()} {pid} {token}"
