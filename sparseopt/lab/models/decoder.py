"""A small GPT: a decoder of pre-norm blocks over characters, in torch alone.

Every matrix product is an `nn.Linear`, so all of its weights but the embeddings can be sparse. Norms are LayerNorm: the skew
correction of BatchNorm has nothing to undo here, and `SparseOpt` leaves it out by itself.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    """Causal self-attention, then a network of one hidden layer, each added to what it was given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=2)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Scores of the next character at every position: (batch, length) whole numbers to (batch, characters, length)."""

    def __init__(
        self, characters: int, context: int, width: int = 128, depth: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads={heads}, got {width}")
        self.character, self.position = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        for embedding in (self.character, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        x = self.blocks(self.character(text) + self.position(places))
        return self.head(self.norm(x)).transpose(1, 2)  # as cross_entropy takes them
