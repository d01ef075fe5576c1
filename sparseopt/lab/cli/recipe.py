"""Command lines that begin with a recipe: `sparseopt train RECIPE ...`, or --config FILE in its place.

The recipe, or the file, decides the defaults of all options, so it is found before they are parsed.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from sparseopt.lab.cli.command import parse
from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.errors import UserError

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
    recipe = argv[0] if named else DEFAULT
    if recipe not in RECIPES:
        raise UserError(f"unknown recipe {recipe!r}; the recipes are {', '.join(RECIPES)}")
    if not named and (late := _late_recipe(argv)):
        raise UserError(f"the recipe goes before the options: {prog} {late} ...")
    described = _described(prog, command(RECIPES[recipe]), f"the ones of {recipe}")
    return parse(f"{prog} {recipe}", described, argv[1:] if named else argv)()


def _described(prog: str, command: Command, whose: str) -> Command:
    """The command, its help ending with the recipes there are."""
    command.__doc__ = (
        f"{command.__doc__} `{prog} RECIPE` with RECIPE one of {', '.join(RECIPES)} ({DEFAULT} if none is named) "
        f"chooses the defaults; those shown here are {whose}."
    )
    return command


def _late_recipe(argv: list[str]) -> str | None:
    """A recipe that stands after options, and is not the value of one."""
    return next(
        (word for before, word in pairwise(argv) if word in RECIPES and not before.startswith("--")), None
    )


def _config_file(argv: list[str]) -> Path | None:
    """The value of --config."""
    for word, following in pairwise([*argv, ""]):
        if word == "--config" and following:
            return Path(following)
        if word.startswith("--config="):
            return Path(word.partition("=")[2])
    return None
