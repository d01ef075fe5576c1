"""Static sparse training: the first mask is the last."""

from dataclasses import dataclass
from typing import ClassVar

from sparseopt.methods.method import Method


@dataclass(frozen=True)
class Static(Method):
    """Never moves a connection.

    Args:
        total_steps: not used.
        drop_fraction: not used: nothing moves.
        every: not used.
        until: not used.
        drop_decay: not used.
    """

    total_steps: int = 1
    drop_fraction: float = 0.0
    uses_gradient: ClassVar[bool] = False

    def due(self, step: int) -> bool:
        return False
