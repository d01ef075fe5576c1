"""Text that needs no download: the topics of Python's own help, half a megabyte of English prose and code examples.

They come with the interpreter (`pydoc_data`, PSF licence), so the text is that of the Python at hand. Characters are numbered by
how common they are; the rare ones share one number.
"""

from typing import NamedTuple

import torch
from torch import Tensor

CHARACTERS = 96  # of which the last stands for all others
HELD_OUT = 0.1  # the share at the end that is for testing


class Text(NamedTuple):
    """Characters as whole numbers, for training and for testing, and what each number stands for."""

    train: Tensor
    test: Tensor
    characters: str


def load_text() -> Text:
    """Python's help, by topic.

    >>> text = load_text()
    >>> len(text.train) > 300_000, len(text.characters)
    (True, 96)
    """
    from pydoc_data.topics import topics

    whole = "\n".join(topics[name] for name in sorted(topics))
    common = sorted(set(whole), key=lambda character: (-whole.count(character), character))[: CHARACTERS - 1]
    number = {character: place for place, character in enumerate(common)}
    codes = torch.tensor([number.get(character, CHARACTERS - 1) for character in whole])
    first = round((1 - HELD_OUT) * len(codes))
    return Text(codes[:first], codes[first:], "".join(common) + "\N{REPLACEMENT CHARACTER}")


def windows(text: Tensor, context: int, batch: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random stretches of text, and the character after each of theirs."""
    starts = torch.randint(len(text) - context, (batch, 1), generator=draw)
    places = starts + torch.arange(context + 1)
    return text[places[:, :-1]], text[places[:, 1:]]
