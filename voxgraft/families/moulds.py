"""Packs filled up to one of a few fixed sizes, so that what a device does for a pack can be recorded once and replayed.

Filling takes part in nothing: its positions are sequences of their own that no loss asks about. Needs torch only.

Shapes: B sequences, T positions of the pack, N positions of one part, C conditioning slots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.families.model import PackedBatch, PackedPart
from voxgraft.nn.attention import Packing
from voxgraft.nn.losses import IGNORED
from voxgraft.nn.tiles import most_tiles

__all__ = ["Lengths", "Mould", "Moulds", "filled", "pinned", "tensors_of"]

STEPS = 64
"""Sizes up to that of a whole pack."""
ALIGNMENT = 128
"""Matrix kernels work in tiles of this many positions."""
SLACK = 1.1


@dataclass(frozen=True, slots=True)
class Mould:
    """What every part of a filled pack comes to."""

    positions: int
    sequences: int
    text: int
    speech: int
    longest: int
    """No sequence is longer."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What the clips of a training are like, as far as sizes depend on it."""

    text: NDArray[np.int64]  # [clips] text positions
    speech: NDArray[np.int64]  # [clips] speech positions
    num_conditioning: int

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.text + self.speech + self.num_conditioning


class Moulds:
    """The sizes for a training: a function of its clips and of how large a pack may be, so the same after a resume."""

    def __init__(self, clips: list[Lengths], pack_tokens: int) -> None:
        """`clips` are those of each set; in a pack the sets are mixed as they may be."""
        self._unit = _rounded_up(pack_tokens / STEPS)
        self._most = _rounded_up(pack_tokens) + self._unit
        self._longest = _rounded_up(max(int(each.positions.max()) for each in clips))
        self._text = _Part([each.text for each in clips], clips)
        self._speech = _Part([each.speech for each in clips], clips)
        self._per_position = max(len(each.text) / float(each.positions.sum()) for each in clips)

    def of(self, batch: PackedBatch, at_least: int = 0) -> Mould | None:
        """The smallest that a pack fits into; None where it is of no size that was foreseen."""
        num_positions = max(len(batch.order), at_least)
        for positions in range(_up_to(num_positions, self._unit), self._most + 1, self._unit):
            mould = Mould(
                positions,
                int(self._per_position * positions * SLACK) + 16,
                self._text.most(positions),
                self._speech.most(positions),
                self._longest,
            )
            if _fits(batch, mould):
                return mould
        return None


class _Part:
    """How many positions of one part a pack may have."""

    def __init__(self, lengths: list[NDArray[np.int64]], clips: list[Lengths]) -> None:
        totals = [float(each.positions.sum()) for each in clips]
        self._share = max(float(part.sum()) / total for part, total in zip(lengths, totals, strict=True))
        self._longest = max(int(part.max()) for part in lengths)

    def most(self, positions: int) -> int:
        return min(positions, _rounded_up(self._share * positions * SLACK + self._longest))


def filled(batch: PackedBatch, mould: Mould) -> PackedBatch:
    """The same pack with every tensor as long as the mould has it; still on the processor."""
    num_sequences = len(batch.conditions)
    slots = len(batch.order) - len(batch.text.ids) - len(batch.speech.ids)
    num_conditioning = slots // num_sequences
    sequences = mould.sequences
    return replace(
        batch,
        packing=_packing(batch.packing, mould),
        order=_order(batch, mould, slots, sequences * num_conditioning),
        conditions=_conditions(batch.conditions, sequences),
        text=_part(batch.text, mould.text, mould.positions),
        speech=_part(batch.speech, mould.speech, mould.positions),
        silent=_silent(batch, mould.text),
    )


def pinned(batch: PackedBatch) -> PackedBatch:
    """The same pack where a device can fetch it by itself."""
    conditions, packing = batch.conditions, batch.packing
    values = (getattr(conditions, one.name) for one in fields(conditions))
    text, speech = (
        PackedPart(*(getattr(part, one.name).pin_memory() for one in fields(part)))
        for part in (batch.text, batch.speech)
    )
    return replace(
        batch,
        packing=replace(
            packing,
            offsets=packing.offsets.pin_memory(),
            positions=packing.positions.pin_memory(),
            rows=packing.rows.pin_memory(),
            tiles=None if packing.tiles is None else packing.tiles.pin_memory(),
        ),
        order=batch.order.pin_memory(),
        conditions=type(conditions)(*(value.pin_memory() for value in values)),
        text=text,
        speech=speech,
        silent=None if batch.silent is None else batch.silent.pin_memory(),
    )


def tensors_of(batch: PackedBatch) -> list[Tensor]:
    """Every tensor of a pack in a fixed order, for copying one pack over another."""
    conditions = [getattr(batch.conditions, one.name) for one in fields(batch.conditions)]
    parts = [
        getattr(part, name) for part in (batch.text, batch.speech) for name in ("ids", "positions", "scored", "targets")
    ]
    silent = [] if batch.silent is None else [batch.silent]
    packing = batch.packing
    tiles = [] if packing.tiles is None else [packing.tiles]
    return [packing.offsets, packing.positions, packing.rows, *tiles, batch.order, *conditions, *parts, *silent]


def _fits(batch: PackedBatch, mould: Mould) -> bool:
    filling = -(-(mould.positions - len(batch.order)) // mould.longest)
    return (
        len(batch.conditions) + filling <= mould.sequences
        and len(batch.text.ids) <= mould.text
        and len(batch.speech.ids) <= mould.speech
        and batch.packing.longest <= mould.longest
    )


def _packing(packing: Packing, mould: Mould) -> Packing:
    """Filling as sequences after the others; those that are still missing are empty."""
    missing = mould.positions - len(packing.positions)
    whole, rest = divmod(missing, mould.longest)
    lengths = [*packing.offsets.diff().tolist(), *[mould.longest] * whole, *([rest] if rest else [])]
    made = Packing.of(lengths, "cpu", packing.backend)
    empty = mould.sequences - len(lengths)
    offsets = torch.cat([made.offsets, made.offsets[-1:].expand(empty)])
    return replace(made, offsets=offsets, longest=mould.longest, tiles=_tiles(made.tiles, mould))


def _tiles(tiles: Tensor | None, mould: Mould) -> Tensor | None:
    """Work lists as long as any pack of this mould may need; no work is done for entries of zeros."""
    if tiles is None:
        return None
    return F.pad(tiles, (0, 0, 0, most_tiles(mould.positions, mould.sequences) - tiles.shape[1]))


def _order(batch: PackedBatch, mould: Mould, slots: int, filled_slots: int) -> Tensor:
    """The vectors of a part begin later where the parts before it are filled; filling takes the vectors left over."""
    texts = len(batch.text.ids)
    order = batch.order.numpy()
    is_text = (order >= slots) & (order < slots + texts)
    is_speech = order >= slots + texts
    moved = order + is_text * (filled_slots - slots) + is_speech * (filled_slots - slots + mould.text - texts)
    every = np.arange(filled_slots + mould.text + mould.speech)
    unused = np.setdiff1d(every, moved, assume_unique=True)
    missing = mould.positions - len(order)
    # Distinct ones as far as they go: the gradient of a vector that stands in many places is slow to sum.
    filling = np.resize(unused if len(unused) else every, missing)
    return torch.from_numpy(np.concatenate([moved, filling]))


def _part(part: PackedPart, most: int, positions: int) -> PackedPart:
    missing = most - len(part.scored)
    return PackedPart(
        ids=_zeros_after(part.ids, most),
        positions=_zeros_after(part.positions, most),
        scored=torch.cat([part.scored, torch.arange(missing) % positions]),
        targets=torch.cat([part.targets, part.targets.new_full((missing,), IGNORED)]),
    )


def _silent(batch: PackedBatch, most: int) -> Tensor:
    silent = torch.zeros(len(batch.text.ids), dtype=torch.bool) if batch.silent is None else batch.silent
    return _zeros_after(silent, most)


def _conditions(conditions: Any, sequences: int) -> Any:
    """The first voice again and again."""
    missing = sequences - len(conditions)
    values = (getattr(conditions, one.name) for one in fields(conditions))
    return type(conditions)(*(torch.cat([value, value[:1].expand(missing, *value.shape[1:])]) for value in values))


def _zeros_after(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values.new_zeros(length - len(values))])


def _rounded_up(value: float) -> int:
    return _up_to(int(np.ceil(value)), ALIGNMENT)


def _up_to(value: int, unit: int) -> int:
    return -(-value // unit) * unit
