"""Command lines that begin with a recipe: `sparseopt train RECIPE ...`, or --config FILE in its place.

The recipe, or the file, decides the defaults of all options, so it is found before they are parsed.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from sparseopt.lab.cli.command import parse
from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.errors import UserError, near

DEFAULT = "digits-mlp"

Command = Callable[..., int | None]


def call(prog: str, argv: list[str], command: Callable[[Config], Command]) -> int | None:
    """Make the command for the defaults that the line names, parse the rest of the line with it, and call it."""
    named = bool(argv) and not argv[0].startswith("-")
    file = _config_file(argv)
    if named and file:
        raise UserError(f"the recipe {argv[0]} and --config {file} both say what to train; give one of them")
    if file:
        return parse(prog, _described(prog, command(read_config(file)), f"the settings of {file}"), argv)()
    recipe = recipe_named(argv[0]) if named else DEFAULT
    described = _described(prog, command(RECIPES[recipe]), f"the ones of {recipe}")
    try:
        return parse(f"{prog} {recipe}", described, argv[1:] if named else argv)()
    except SystemExit as stop:
        if stop.code == 2 and not named and (late := [word for word in argv if word in RECIPES]):
            sys.stderr.write(f"{prog}: the recipe goes before the options: {prog} {late[0]} ...\n")
        raise


def recipe_named(name: str) -> str:
    """The name, if it is one of a recipe; refused, with the nearest one, if it is not."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}{near(name, RECIPES)}; the recipes are {', '.join(RECIPES)}")
    return name


def _described(prog: str, command: Command, whose: str) -> Command:
    """The command, its help ending with the recipes there are."""
    command.__doc__ = (
        f"{command.__doc__} `{prog} RECIPE` with RECIPE one of {', '.join(RECIPES)} ({DEFAULT} if none is named) "
        f"chooses the defaults; those shown here are {whose}."
    )
    return command


def _config_file(argv: list[str]) -> Path | None:
    """The value of --config, if there is one; whatever else is wrong with the line is told when it is parsed whole."""
    line = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    line.add_argument("--config", type=Path, nargs="?")
    return line.parse_known_args(argv)[0].config
