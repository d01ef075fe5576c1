"""Text that needs no download: the topics of Python's own help, half a megabyte of English prose and code examples.

They come with the interpreter (`pydoc_data`, PSF licence), so the text is that of the Python at hand. Characters are numbered by
how common they are; the rare ones share one number.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sparseopt.lab.errors import UserError
from sparseopt.lab.system.ranks import ALONE, Ranks
from sparseopt.topology import generator

CHARACTERS = 96  # of which the last stands for all others
CONTEXT = 64  # characters that a network sees at once
TEST_BATCH = 100
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
    places = (starts + torch.arange(context + 1)).to(text.device)
    return text[places[:, :-1]], text[places[:, 1:]]


class TextPipeline:
    """Stretches of text for training, drawn anew in every epoch; for testing, one after the other."""

    def __init__(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        fraction: float = 1.0,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        text = load_text()
        self._train = text.train[: round(fraction * len(text.train))].to(device)
        self._test = text.test.to(device)
        self._batch, self._seed, self._ranks = batch_size, seed, ranks
        self.shape, self.classes = (CONTEXT,), len(text.characters)
        self.steps_per_epoch = len(self._train) // (CONTEXT * batch_size)
        if not self.steps_per_epoch:
            raise UserError(
                f"--batch-size must be at most {len(self._train) // CONTEXT}, the stretches of {CONTEXT} characters that the "
                f"text has, got {batch_size}"
            )
        self.test_images = (len(self._test) - 1) // CONTEXT

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """As many stretches as the text has, at random places."""
        for step in range(start, self.steps_per_epoch):
            draw = generator(self._seed, "text", epoch, step)
            x, y = windows(self._train, CONTEXT, self._batch, draw)
            yield self._share(x), self._share(y)

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = (self._test[shift : shift + self.test_images * CONTEXT].view(-1, CONTEXT) for shift in (0, 1))
        mine = slice(self._ranks.rank, None, self._ranks.size)
        yield from zip(x[mine].split(TEST_BATCH), y[mine].split(TEST_BATCH), strict=True)

    def _share(self, batch: Tensor) -> Tensor:
        return batch.chunk(self._ranks.size)[self._ranks.rank]
