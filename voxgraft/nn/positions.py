"""A table of learned positions under the name that both published models give it."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["LearnedPositions"]


class LearnedPositions(nn.Module):
    """Position numbers to rows of `emb`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(rows, width)

    def forward(self, positions: Tensor) -> Tensor:
        """[...] -> [..., W]"""
        out: Tensor = self.emb(positions)
        return out
