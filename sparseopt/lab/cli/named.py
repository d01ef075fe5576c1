"""Commands whose first word is one of many names: `sparseopt COMMAND NAME [options]`.

Without a name the command lists them, and a name that it does not know is answered with the one that comes closest.
"""

import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sparseopt.lab.cli.command import parse
from sparseopt.lab.errors import UserError, near


class Summarised(Protocol):
    """Something that says in a line what it is."""

    @property
    def summary(self) -> str: ...


Choice = TypeVar("Choice", bound=Summarised)


@dataclass(frozen=True)
class Named(Generic[Choice]):
    """A command with its names: `word` is what a name is the name of, `does` what happens with it."""

    prog: str
    word: str
    does: str
    choices: Mapping[str, Choice]

    def call(
        self, argv: list[str], command: Callable[[str, Choice], Callable[..., int | None]]
    ) -> int | None:
        """Call the command of the name that stands first, with the options behind it."""
        if not argv or argv[0] in ("-h", "--help"):
            sys.stdout.write(f"{self.usage()}\n")
            return 0
        name, *rest = argv
        if name not in self.choices:
            raise UserError(f"unknown {self.word} {name!r}{near(name, self.choices)}; {self.prog} lists all")
        return parse(f"{self.prog} {name}", command(name, self.choices[name]), rest)()

    def usage(self) -> str:
        """All names with their summaries."""
        width = max(map(len, self.choices))
        rows = "\n".join(
            textwrap.fill(
                choice.summary, 80, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4)
            )
            for name, choice in self.choices.items()
        )
        does = textwrap.fill(self.does, 80)
        place = self.word.upper()
        return (
            f"usage: {self.prog} {place} [options]\n\n{does}\n\n{place}, one of:\n{rows}\n\n"
            f"  {self.prog} {place} --help lists the options."
        )
