"""`sparseopt completion`: what a shell needs to complete commands, recipes, options and their values."""

from importlib import import_module
from typing import Literal

import tyro

from sparseopt.__main__ import COMMANDS
from sparseopt.lab.cli.command import run
from sparseopt.lab.cli.completion import Options, OptionsFound, bash, collecting
from sparseopt.lab.config.recipes import RECIPES

WITH_RECIPES = ("train", "sweep", "flops")


def main(argv: list[str]) -> int:
    """Print what the command line asks for."""
    return run("sparseopt completion", completion, argv)


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh"]] = "bash") -> None:
    """Print a script that completes what is typed after sparseopt. For this shell: source <(sparseopt completion bash). For good:
    sparseopt completion bash > ~/.local/share/bash-completion/completions/sparseopt

    Args:
        shell: zsh reads the same script, once bashcompinit is loaded; it is told so first.
    """
    if shell == "zsh":
        print("autoload -U bashcompinit && bashcompinit")
    print(bash(lines()), end="")


def lines() -> dict[str, Options]:
    """The options of every command, by the words that come before them."""
    found: dict[str, Options] = {}
    for name in COMMANDS:
        module = import_module(f"sparseopt.lab.commands.{name}")
        choices = next(
            (getattr(module, each) for each in ("ANALYSES", "TARGETS") if hasattr(module, each)), None
        )
        if choices is None:
            names = {key: [] for key in RECIPES} if name in WITH_RECIPES else {}
            found[name] = {**names, **_options(module.main, [])}
        else:
            for choice in choices:
                found[f"{name} {choice}"] = _options(module.main, [choice])
            found[name] = {key: [] for key in choices}
    return found


def _options(main: object, argv: list[str]) -> Options:
    assert callable(main)
    try:
        with collecting():
            main(argv)
    except OptionsFound as found:
        return found.options
    return {}
