"""Staying near the base on replay: how far the tuned model's speech is from the frozen base's, position by position.

With an adapter the base is the same model with its gate closed, at the price of a forward pass; a body that is trained
itself needs a frozen copy. Which items are to stay near is the caller's business.

Shapes: M scored speech positions of these items, T positions of the pack, W width, V speech rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from voxgraft.errors import ConfigError
from voxgraft.families.model import PackedBatch, SpeechModel, compute_hidden_states
from voxgraft.nn.adapter import Gate

__all__ = ["FrozenBase", "KLBatch", "kl_sum"]

LogitHead = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KLBatch:
    """The items of a pack that are to stay near the base, packed by themselves, and where their speech stands there."""

    batch: PackedBatch
    places: Tensor  # [M] of the whole pack, in the order of `batch.speech.scored`


class FrozenBase:
    """The base as it was before training: what it would say at each position."""

    def __init__(self, model: SpeechModel, gate: Gate | None = None) -> None:
        """`model` with its gate closed is the base; without a gate it is a copy that nobody trains."""
        self.model, self.gate = model, gate

    @torch.no_grad()
    def hidden(self, near: KLBatch) -> Tensor:
        """What the base's speech head is given at the positions that count. [M, W]"""
        with self.gate.closed() if self.gate else nullcontext():
            return compute_hidden_states(self.model, near.batch)[near.batch.speech.scored]

    def head(self, hidden: Tensor) -> Tensor:
        """[M, W] -> [M, V]"""
        return self.model.speech_logits(hidden)


def kl_sum(head: LogitHead, hidden: Tensor, base_head: LogitHead, base_hidden: Tensor, *, chunk: int | None) -> Tensor:
    """Summed KL(base || tuned) in nats, a float32 number; gradients reach `head` and `hidden` alone. [M, W] twice -> []

    In this direction a speech code that the base would say and the tuned model would not costs the most. With a `chunk`
    the logits of at most that many positions exist at once, as in the cross-entropy.
    """
    if chunk is not None and chunk < 1:
        raise ConfigError("config-value", f"a chunk of {chunk} positions", expected="1 or more, or none at all")
    if chunk is None or len(hidden) <= chunk:
        return _kl_chunk_sum(head, hidden, base_head, base_hidden)
    sums = [
        checkpoint(_kl_chunk_sum, head, part, base_head, base, use_reentrant=False, preserve_rng_state=False)
        for part, base in zip(torch.split(hidden, chunk), torch.split(base_hidden, chunk), strict=True)
    ]
    return torch.stack(sums).sum()


def _kl_chunk_sum(head: LogitHead, hidden: Tensor, base_head: LogitHead, base_hidden: Tensor) -> Tensor:
    with torch.no_grad():
        base = base_head(base_hidden).float().log_softmax(-1)  # [M, V]
    tuned = head(hidden).float().log_softmax(-1)  # [M, V]
    return F.kl_div(tuned, base, reduction="sum", log_target=True)
