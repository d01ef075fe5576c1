"""`sparseopt analyse NAME`: one of the paper's analyses, as a figure, its numbers and a table."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from sparseopt import __version__
from sparseopt.lab.analyses import ANALYSES
from sparseopt.lab.analyses.analysis import Analysis
from sparseopt.lab.cli.command import report
from sparseopt.lab.cli.named import Named
from sparseopt.lab.show.figures import save
from sparseopt.lab.show.terminal import print_table, wide_console
from sparseopt.lab.system.files import make_folder, write_json

PROG = "sparseopt analyse"


def main(argv: list[str]) -> int:
    """Run the analysis that the command line names."""
    does = "Writes ANALYSIS.png, ANALYSIS.pdf and ANALYSIS.json, and prints the key numbers."
    return report(PROG, lambda: Named(PROG, "analysis", does, ANALYSES).call(argv, _command))


def _command(name: str, analysis: Analysis[Any]) -> Callable[..., None]:
    def command(settings: Any, out: Path = Path("analyses")) -> None:
        make_folder(out)  # before minutes of work
        console = wide_console()
        with _one_thread():
            result = _plain(analysis.measure(settings, _tracker(console)))
        files = save(analysis.draw(result), out / name)
        record = {"analysis": name, "version": __version__, "settings": _settings(settings), "result": result}
        write_json(out / f"{name}.json", record)
        print_table(console, analysis.table(result))
        print("\n".join(str(path) for path in (*files, out / f"{name}.json")))

    command.__annotations__["settings"] = analysis.settings
    command.__doc__ = (
        f"{analysis.summary[0].upper()}{analysis.summary[1:]}.\n\nArgs:\n    out: Folder for the files."
    )
    return command


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """These networks are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _tracker(console: Console) -> Callable[[Sequence[Any], str], Iterable[Any]]:
    """A progress bar in a terminal, silence elsewhere."""
    return lambda sequence, description: track(
        sequence, description, console=console, transient=True, disable=not console.is_terminal
    )


def _settings(settings: Any) -> dict[str, Any]:
    """The options of the run, paths as text."""
    return json.loads(json.dumps(dataclasses.asdict(settings), default=str))


def _plain(value: Any) -> Any:
    """The result as JSON has it: null where a number is not finite."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
