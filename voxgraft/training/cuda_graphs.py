"""What a CUDA device does for a pack, recorded once for each size and replayed: the processor only says "again".

A pack of a small model is hundreds of short kernels, and a processor that starts them one by one is slower than the
device. Gradients are added up inside the recording, in the precision of the parameters that the optimizer moves.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.models.speech_model import PackedBatch, PackedTokens
from voxgraft.nn.attention import Packing, max_num_tiles
from voxgraft.nn.layers import IGNORE_INDEX
from voxgraft.training.trainable import TrainableModel

NUM_BUCKET_SIZES = 64
"""Sizes up to that of a whole pack."""
BUCKET_ALIGNMENT = 128
"""Matrix kernels work in tiles of this many positions."""
BUCKET_SLACK = 1.1


@dataclass(frozen=True, slots=True)
class BatchBucket:
    """What every part of a filled pack comes to."""

    positions: int
    sequences: int
    text: int
    speech: int
    longest: int
    """No sequence is longer."""


@dataclass(frozen=True, slots=True)
class ClipLengths:
    """What the clips of a training are like, as far as sizes depend on it."""

    text: NDArray[np.int64]  # [clips] text positions
    speech: NDArray[np.int64]  # [clips] speech positions
    num_conditioning: int

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.text + self.speech + self.num_conditioning


class BatchBucketSet:
    """The sizes for a training: a function of its clips and of how large a pack may be, so the same after a resume."""

    def __init__(self, clips: list[ClipLengths], microbatch_tokens: int) -> None:
        """`clips` are those of each set; in a pack the sets are mixed as they may be."""
        self._unit = _align_up(microbatch_tokens / NUM_BUCKET_SIZES)
        self._max_positions = _align_up(microbatch_tokens) + self._unit
        self._longest = _align_up(max(int(each.positions.max()) for each in clips))
        self._text = _PartBound([each.text for each in clips], clips)
        self._speech = _PartBound([each.speech for each in clips], clips)
        self._clips_per_position = max(len(each.text) / float(each.positions.sum()) for each in clips)

    def of(self, batch: PackedBatch, at_least: int = 0) -> BatchBucket | None:
        """The smallest that a pack fits into; None where it is of no size that was foreseen."""
        num_positions = max(len(batch.order), at_least)
        for positions in range(_round_up(num_positions, self._unit), self._max_positions + 1, self._unit):
            mould = BatchBucket(
                positions,
                int(self._clips_per_position * positions * BUCKET_SLACK) + 16,
                self._text.most(positions),
                self._speech.most(positions),
                self._longest,
            )
            if _fits_bucket(batch, mould):
                return mould
        return None


class _PartBound:
    """How many positions of one part a pack may have."""

    def __init__(self, lengths: list[NDArray[np.int64]], clips: list[ClipLengths]) -> None:
        totals = [float(each.positions.sum()) for each in clips]
        self._share = max(float(part.sum()) / total for part, total in zip(lengths, totals, strict=True))
        self._longest = max(int(part.max()) for part in lengths)

    def most(self, positions: int) -> int:
        return min(positions, _align_up(self._share * positions * BUCKET_SLACK + self._longest))


def pad_to_bucket(batch: PackedBatch, mould: BatchBucket) -> PackedBatch:
    """The same pack with every tensor as long as the mould has it; still on the processor."""
    num_sequences = len(batch.conditions)
    slots = len(batch.order) - len(batch.text.ids) - len(batch.speech.ids)
    num_conditioning = slots // num_sequences
    sequences = mould.sequences
    return replace(
        batch,
        packing=_pad_packing(batch.packing, mould),
        order=_pad_order(batch, mould, slots, sequences * num_conditioning),
        conditions=_pad_conditions(batch.conditions, sequences),
        text=_pad_part(batch.text, mould.text, mould.positions),
        speech=_pad_part(batch.speech, mould.speech, mould.positions),
        silent=_pad_silent(batch, mould.text),
    )


def pin_batch(batch: PackedBatch) -> PackedBatch:
    """The same pack where a device can fetch it by itself."""
    conditions, packing = batch.conditions, batch.packing
    values = (getattr(conditions, one.name) for one in fields(conditions))
    text, speech = (
        PackedTokens(*(getattr(part, one.name).pin_memory() for one in fields(part)))
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


def list_batch_tensors(batch: PackedBatch) -> list[Tensor]:
    """Every tensor of a pack in a fixed order, for copying one pack over another."""
    conditions = [getattr(batch.conditions, one.name) for one in fields(batch.conditions)]
    parts = [
        getattr(part, name) for part in (batch.text, batch.speech) for name in ("ids", "positions", "scored", "targets")
    ]
    silent = [] if batch.silent is None else [batch.silent]
    packing = batch.packing
    tiles = [] if packing.tiles is None else [packing.tiles]
    return [packing.offsets, packing.positions, packing.rows, *tiles, batch.order, *conditions, *parts, *silent]


def _fits_bucket(batch: PackedBatch, mould: BatchBucket) -> bool:
    filling = -(-(mould.positions - len(batch.order)) // mould.longest)
    return (
        len(batch.conditions) + filling <= mould.sequences
        and len(batch.text.ids) <= mould.text
        and len(batch.speech.ids) <= mould.speech
        and batch.packing.longest <= mould.longest
    )


def _pad_packing(packing: Packing, mould: BatchBucket) -> Packing:
    """Filling as sequences after the others; those that are still missing are empty."""
    missing = mould.positions - len(packing.positions)
    whole, rest = divmod(missing, mould.longest)
    lengths = [*packing.offsets.diff().tolist(), *[mould.longest] * whole, *([rest] if rest else [])]
    made = Packing.of(lengths, "cpu", packing.backend)
    empty = mould.sequences - len(lengths)
    offsets = torch.cat([made.offsets, made.offsets[-1:].expand(empty)])
    return replace(made, offsets=offsets, longest=mould.longest, tiles=_pad_tiles(made.tiles, mould))


def _pad_tiles(tiles: Tensor | None, mould: BatchBucket) -> Tensor | None:
    """Work lists as long as any pack of this mould may need; no work is done for entries of zeros."""
    if tiles is None:
        return None
    return F.pad(tiles, (0, 0, 0, max_num_tiles(mould.positions, mould.sequences) - tiles.shape[1]))


def _pad_order(batch: PackedBatch, mould: BatchBucket, slots: int, filled_slots: int) -> Tensor:
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


def _pad_part(part: PackedTokens, most: int, positions: int) -> PackedTokens:
    missing = most - len(part.scored)
    return PackedTokens(
        ids=_pad_with_zeros(part.ids, most),
        positions=_pad_with_zeros(part.positions, most),
        scored=torch.cat([part.scored, torch.arange(missing) % positions]),
        targets=torch.cat([part.targets, part.targets.new_full((missing,), IGNORE_INDEX)]),
    )


def _pad_silent(batch: PackedBatch, most: int) -> Tensor:
    silent = torch.zeros(len(batch.text.ids), dtype=torch.bool) if batch.silent is None else batch.silent
    return _pad_with_zeros(silent, most)


def _pad_conditions(conditions: Any, sequences: int) -> Any:
    """The first voice again and again."""
    missing = sequences - len(conditions)
    values = (getattr(conditions, one.name) for one in fields(conditions))
    return type(conditions)(*(torch.cat([value, value[:1].expand(missing, *value.shape[1:])]) for value in values))


def _pad_with_zeros(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values.new_zeros(length - len(values))])


def _align_up(value: float) -> int:
    return _round_up(int(np.ceil(value)), BUCKET_ALIGNMENT)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


GraphKey = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _CapturedGraph:
    graph: torch.cuda.CUDAGraph
    tensors: list[Tensor]
    """What a pack is copied over before a replay."""


class CudaGraphRunner:
    """Losses and gradients of filled packs by replay."""

    def __init__(
        self,
        learner: Callable[[PackedBatch], Tensor],
        trained: TrainableModel,
        around: Callable[[], AbstractContextManager[None]],
        places: Mapping[nn.Parameter, Tensor],
    ) -> None:
        """`around` is what both passes are computed inside of: the gate. `places` are where gradients are wanted."""
        self._loss_module, self._gate_context = learner, around
        named = trained.named()
        optimized = {
            name: value for part in trained.parameters for name, value in trained.optimizer_parameters(part).items()
        }
        self._parameters = list(named.values())
        self._moved: list[nn.Parameter] = [optimized[name] for name in named]
        self._gradient_sums = [places[value] if value in places else torch.zeros_like(value) for value in self._moved]
        device = trained.model.device
        self._weights = torch.zeros(3, device=device)
        self._losses = torch.zeros(3, device=device)
        self._recordings: dict[tuple[bool, GraphKey], _CapturedGraph] = {}
        self._pool, self._stream = torch.cuda.MemPool(), _create_cuda_stream(device)
        self._has_gradient: list[bool] | None = None

    @property
    def num_graphs(self) -> int:
        return len(self._recordings)

    def run(self, batch: PackedBatch, weights: Tensor, *, first: bool) -> Tensor:
        """Add a filled pack's gradients to those of the step, or begin them with it; gives its summed losses. [3]"""
        self._weights.copy_(weights)
        if batch.order.device == self._losses.device:  # of no foreseen size, so it was not filled
            self._accumulate_gradients(self._forward_backward(batch), first)
            return self._losses
        values = list_batch_tensors(batch)
        key = (first, tuple(tuple(value.shape) for value in values))
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._recordings[key] = self._capture_graph(batch, first)
        for kept, value in zip(recording.tensors, values, strict=True):
            kept.copy_(value, non_blocking=True)
        recording.graph.replay()
        return self._losses

    def try_largest_batch(self, batch: PackedBatch) -> None:
        """Record a filled pack of the largest size, so that there is memory for all the smaller ones."""
        self._recordings.clear()
        self._pool = torch.cuda.MemPool()  # what a larger one took is given back
        torch.cuda.empty_cache()
        key = (True, tuple(tuple(value.shape) for value in list_batch_tensors(batch)))
        self._recordings[key] = self._capture_graph(batch, first=True)

    def assign_gradients(self) -> None:
        """Hand the step's gradients to the parameters that the optimizer moves."""
        assert self._has_gradient is not None
        for value, total, reached in zip(self._moved, self._gradient_sums, self._has_gradient, strict=True):
            value.grad = total if reached else None

    def _capture_graph(self, batch: PackedBatch, first: bool) -> _CapturedGraph:
        device = self._losses.device
        kept = batch.to(device)
        stream, graph = self._stream, torch.cuda.CUDAGraph()
        with _disable_gc():
            self._warm_up(kept)
            # Another thread may be making the next step's batches, which is no part of this.
            place = cast("Any", self._pool.id)  # torch's own hint knows only its other kind of handle
            with torch.cuda.graph(graph, pool=place, stream=stream, capture_error_mode="thread_local"):
                self._accumulate_gradients(self._forward_backward(kept), first)
        return _CapturedGraph(graph, list_batch_tensors(kept))

    def _warm_up(self, kept: PackedBatch) -> None:
        device, stream = self._losses.device, self._stream
        stream.wait_stream(torch.cuda.current_stream(device))
        # In the memory of the recording, which comes after it: both passes then take no more room than one. Only what
        # this thread asks for comes from there, so it must do the backward pass itself.
        with (
            torch.cuda.stream(stream),
            torch.cuda.use_mem_pool(self._pool, device),
            torch.autograd.set_multithreading_enabled(False),
        ):
            self._forward_backward(kept)  # compiles, and lets the libraries set themselves up
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)

    def _forward_backward(self, batch: PackedBatch) -> list[Tensor | None]:
        with self._gate_context():
            sums = self._loss_module(batch)
            gradients = torch.autograd.grad((sums * self._weights).sum(), self._parameters, allow_unused=True)
        self._losses.copy_(sums.detach().float())
        return list(gradients)

    def _accumulate_gradients(self, gradients: list[Tensor | None], first: bool) -> None:
        pairs = [(total, one) for total, one in zip(self._gradient_sums, gradients, strict=True) if one is not None]
        self._has_gradient = [one is not None for one in gradients]
        totals, ones = [total for total, _ in pairs], [one for _, one in pairs]
        if first:
            torch._foreach_copy_(totals, ones)
        else:
            for total, one in pairs:
                total.add_(one)


@contextmanager
def _disable_gc() -> Iterator[None]:
    """Torch ends the process when the memory of an old recording is collected while a new one is being made."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _create_cuda_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]
