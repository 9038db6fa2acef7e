"""Next-token cross-entropy over many positions without holding all of their logits. Needs torch only.

Which positions count and what the sum is divided by is the caller's business.

Shapes: N positions, W width, V rows of the head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from voxgraft.errors import ConfigError

__all__ = ["IGNORE_INDEX", "cross_entropy_sum"]

IGNORE_INDEX = -100
"""A target that counts nothing: for padded shapes that stay the same from step to step."""


def cross_entropy_sum(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, *, chunk: int | None
) -> Tensor:
    """Summed cross-entropy of `head(hidden)` against `targets`, a float32 number. [N, W], [N] -> []

    With a `chunk`, the logits of at most that many positions exist at once: more positions go through the head piece by
    piece, and a second time in the backward pass, where the head must still be what it was. None keeps all logits.
    The caller has checked that every target is a row of the head or `IGNORE_INDEX`.
    """
    if chunk is not None and chunk < 1:
        raise ConfigError("config-value", f"a chunk of {chunk} positions", expected="1 or more, or none at all")
    if chunk is None or len(hidden) <= chunk:
        return _chunk_cross_entropy(head, hidden, targets)
    sums = [
        # The head draws no random numbers, so there is no generator state to put back.
        checkpoint(_chunk_cross_entropy, head, part, wanted, use_reentrant=False, preserve_rng_state=False)
        for part, wanted in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True)
    ]
    return torch.stack(sums).sum()


def _chunk_cross_entropy(head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor) -> Tensor:
    logits = head(hidden)  # [N, V]
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(exact, targets, ignore_index=IGNORE_INDEX, reduction="sum")
