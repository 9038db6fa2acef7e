"""What is left of the base, proven: its values, its speech logits with and without what was added, code for code.

Both systems compute on the same machine, in the same shapes, one after the other; equal means `torch.equal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from voxgraft.checkpoints import Checkpoint, open_checkpoint
from voxgraft.evaluating.rates import Score, single, unmeasured
from voxgraft.evaluating.speaking import Said
from voxgraft.evaluating.systems import System
from voxgraft.families.layout import lay_out
from voxgraft.families.model import PackedBatch, hidden_states, pack
from voxgraft.families.tensors import stored_tensor
from voxgraft.training.nearness import kl_sum

__all__ = ["Change", "Kept", "changed_values", "kept_of"]

TOGETHER = 16
"""Utterances in one pack."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one base language has kept: logits over all positions of what the base said, and the codes themselves."""

    language: str
    equal: bool | None
    """None where it could not be measured; `why` tells."""
    largest_difference: float | None
    positions: int
    same_codes: int
    spoken: int
    kl: Score
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__ if name not in ("kl", "language")}
        return {**values, "kl": self.kl.to_json()}


@dataclass(frozen=True, slots=True)
class Change:
    """How many values of the base's tensors are others than they were."""

    changed: int
    total: int
    tensors: tuple[str, ...]
    """The tensors that have changed."""
    compared: str
    """What was held against what, in words."""

    def to_json(self) -> dict[str, Any]:
        return {"changed": self.changed, "total": self.total, "tensors": list(self.tensors), "compared": self.compared}


def changed_values(base: System, after: System) -> Change:
    """Compare every tensor of the base with the same one now, bit for bit; new rows do not count.

    Two checkpoints are compared as they are stored: in memory both may be rounded, and small changes lost. What has no
    checkpoint of its own is the base's, opened from the same file, and is compared where it computes.
    """
    spare, names = base.model.spare_rows, list(base.model.state_dict())
    if base.checkpoint is None or after.checkpoint is None:
        old, now = base.model.state_dict(), after.model.state_dict()
        dtype = str(next(base.model.parameters()).dtype).removeprefix("torch.")
        compared = f"the base as it computes alone and as it computes with {after.name}, in memory, in {dtype}"
        return _change(names, old.__getitem__, now.get, spare, compared)
    with open_checkpoint(base.checkpoint) as one, open_checkpoint(after.checkpoint) as two:
        compared = f"{one.path.name} of the base and {two.path.name} of {after.name}, both as they are stored"
        return _change(names, partial(_stored, one), partial(_stored, two), spare, compared)


def _change(
    names: Sequence[str],
    old: Callable[[str], Tensor | None],
    new: Callable[[str], Tensor | None],
    spare_rows: int,
    compared: str,
) -> Change:
    changed, total, tensors = 0, 0, []
    for name in names:
        was, now = old(name), new(name)
        assert was is not None
        total += was.numel()
        count = was.numel() if now is None else _num_different(was, now, spare_rows)
        changed += count
        tensors += [name] if count else []
    return Change(changed, total, tuple(tensors), compared)


def _stored(checkpoint: Checkpoint, name: str) -> Tensor | None:
    return stored_tensor(checkpoint, name) if name in checkpoint.tensors else None


@torch.no_grad()
def kept_of(base: System, after: System, before: Sequence[Said], now: Sequence[Said]) -> Kept:
    """Whether a base language is spoken as before. `before` and `now` are what both said of the same sentences."""
    language = before[0].sentence.language if before else ""
    usable = [one for one in before if one.codes]
    same = sum(old.codes == new.codes for old, new in zip(before, now, strict=True) if old.codes is not None)
    if not usable:
        why = "the base could not say a sentence"
        return Kept(language, None, None, 0, same, 0, unmeasured(why), why)
    equal, largest, positions, kl = True, 0.0, 0, 0.0
    for first in range(0, len(usable), TOGETHER):
        some = usable[first : first + TOGETHER]
        old_hidden, old = _logits(base, _batch(base, some), language)
        new_hidden, new = _logits(after, _batch(after, some), language)
        equal = equal and torch.equal(old, new)
        largest = max(largest, float((old.float() - new.float()).abs().max()))
        positions += len(old)
        kl += float(kl_sum(after.model.speech_logits, new_hidden, base.model.speech_logits, old_hidden, chunk=None))
    return Kept(language, equal, largest, positions, same, len(usable), single(kl / positions, positions))


def _batch(system: System, said: Sequence[Said]) -> PackedBatch:
    """What the base said, to be said again: text as this system reads it, voice and codes as they were."""
    frame, language = system.model.frame, said[0].sentence.language
    layouts = [lay_out(frame, system.ids(one.sentence.text, language), one.codes) for one in said]
    return pack(system.model, layouts, [system.family.condition(one.voice.clip) for one in said])


def _logits(system: System, batch: PackedBatch, language: str) -> tuple[Tensor, Tensor]:
    with system.speaking(language):
        hidden = hidden_states(system.model, batch)[batch.speech.scored]
        return hidden, system.model.speech_logits(hidden)


def _num_different(old: Tensor, new: Tensor, spare_rows: int) -> int:
    """Values that differ in any bit. Where rows were added, the base's own stand first, and spare ones last."""
    if old.shape == new.shape:
        return sum(_bits_differ(old, new))
    if old.shape[1:] != new.shape[1:] or len(new) < len(old):
        return old.numel()
    own = len(old) - spare_rows
    parts = [(old[:own], new[:own]), (old[own:], new[len(new) - spare_rows :] if spare_rows else new[:0])]
    return sum(count for one, two in parts for count in _bits_differ(one, two))


def _bits_differ(old: Tensor, new: Tensor) -> Iterator[int]:
    """In the wider of the two types, if they are kept in two: what one of them cannot hold has changed."""
    if old.numel():
        wide = torch.promote_types(old.dtype, new.dtype)
        whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[wide.itemsize]
        yield int((old.to(wide).contiguous().view(whole) != new.to(wide).contiguous().view(whole)).sum())
