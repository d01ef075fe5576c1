"""Doctests of docstrings as blocks of code in the reference; Markdown takes their `>>>` for quotations."""

import re

import griffe

EXAMPLE = re.compile(r"(?m)^>>> (?:.*\n?)(?:^(?!\s*$).*\n?)*(?:\n>>> (?:.*\n?)(?:^(?!\s*$).*\n?)*)*")


class Doctests(griffe.Extension):
    """Called by griffe for every class and function that it reads."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text, with a fence around each example."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip()
