"""The `sparseopt` command: finds the module of a command and hands it the rest of the line.

Commands live in `sparseopt/lab/commands/`, one module each with a `main(argv) -> exit code`. They are imported only when
called, so that `sparseopt --version` and `--help` work with nothing but torch installed, and a command whose libraries are
missing can say which extra brings them.
"""

import os
import sys
from importlib import import_module

COMMANDS = {
    "train": "train a recipe of the paper, or resume it",
    "sweep": "train all combinations of settings, or search, on many workers",
    "runs": "list runs, finished or not",
    "plot": "draw the curves of one or several runs",
    "reproduce": "a table or figure of the paper, at the scale one can afford",
    "report": "one HTML page about all runs in a folder",
    "demo": "the story in four acts, on data that needs no download",
    "bench": "what sparse kernels gain on this machine, in a minute",
    "analyse": "one of the paper's analyses: a figure and its numbers",
    "export": "the network of a run: a small file, ONNX, or a folder for the Hub",
    "completion": "what a shell needs to complete all this",
    "flops": "floating-point operations of a recipe, dense and sparse",
}


def usage() -> str:
    from sparseopt import __version__

    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        f"sparseopt {__version__}: sparse training in PyTorch\n\n"
        f"usage: sparseopt COMMAND [options]\n\ncommands:\n{rows}\n\n"
        "  sparseopt COMMAND --help lists a command's options.\n"
        "  sparseopt --version prints the version."
    )


def _answer(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        return _answer(usage())
    if argv[0] == "--version":
        from sparseopt import __version__

        return _answer(f"sparseopt {__version__}")
    name, *rest = argv
    if name not in COMMANDS:
        print(_unknown(name), file=sys.stderr)
        return 2
    try:
        command = import_module(f"sparseopt.lab.commands.{name}")
    except KeyboardInterrupt:
        print("sparseopt: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sparseopt":
            raise
        print(
            f"sparseopt: '{name}' needs {error.name}, which is not installed; "
            "install the lab's libraries with: pip install 'sparseopt[lab]'",
            file=sys.stderr,
        )
        return 2
    return command.main(rest)


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"sparseopt: unknown command {name!r}{meant}; the commands are: {', '.join(COMMANDS)}"


if __name__ == "__main__":
    sys.exit(main())
