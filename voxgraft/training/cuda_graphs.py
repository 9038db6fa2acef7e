"""CUDA graphs for training: the kernels of a microbatch are recorded once for each shape and then replayed.

A microbatch of a small model is hundreds of short kernels, and the CPU needs longer to launch them one by one than the
GPU needs to run them. A graph replays fixed shapes only, so microbatches are padded to one of a few sizes (buckets).
Gradients are accumulated inside the recording, in the precision of the parameters that the optimizer updates.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.models.speech_model import PackedBatch, PackedTokens
from voxgraft.nn import IGNORE_INDEX
from voxgraft.nn.attention import Packing, max_num_tiles
from voxgraft.nn.layers import map_tensors, round_up
from voxgraft.training.trainable import TrainableModel

# Bucket sizes up to that of a whole microbatch.
NUM_BUCKET_SIZES = 64
# Matrix kernels work in tiles of this many positions.
BUCKET_ALIGNMENT = 128
# Factor on the average number of clips and of text or speech positions, since no microbatch is exactly average.
BUCKET_SLACK = 1.1


@dataclass(frozen=True, slots=True)
class BatchBucket:
    """The length of every part of a padded microbatch."""

    positions: int
    sequences: int
    text: int
    speech: int
    longest: int
    """No sequence is longer."""


class BatchBucketSet:
    """The bucket sizes of a training: a function of clips and microbatch size, so they are the same after a resume."""

    def __init__(
        self,
        text_lengths: Sequence[NDArray[np.int64]],
        speech_lengths: Sequence[NDArray[np.int64]],
        num_conditioning: int,
        microbatch_tokens: int,
    ) -> None:
        """Text and speech positions of every clip, one array per dataset; a microbatch may mix datasets in any way."""
        totals = [text + speech + num_conditioning for text, speech in zip(text_lengths, speech_lengths, strict=True)]
        self._unit = _align_up(microbatch_tokens / NUM_BUCKET_SIZES)
        self._max_positions = _align_up(microbatch_tokens) + self._unit
        self._longest = _align_up(max(int(total.max()) for total in totals))
        self._clips_per_position = max(len(total) / float(total.sum()) for total in totals)
        # Of text and of speech: the largest share of the positions in any dataset, and the longest clip.
        self._shares = [
            (
                max(float(part.sum()) / float(total.sum()) for part, total in zip(parts, totals, strict=True)),
                max(int(part.max()) for part in parts),
            )
            for parts in (text_lengths, speech_lengths)
        ]

    def bucket_for(self, batch: PackedBatch, at_least: int = 0) -> BatchBucket | None:
        """The smallest bucket that a microbatch fits into; None where it fits into none."""
        num_positions = max(len(batch.order), at_least)
        for positions in range(round_up(num_positions, self._unit), self._max_positions + 1, self._unit):
            text, speech = (
                min(positions, _align_up(share * positions * BUCKET_SLACK + longest)) for share, longest in self._shares
            )
            sequences = int(self._clips_per_position * positions * BUCKET_SLACK) + 16
            padding_sequences = -(-(positions - len(batch.order)) // self._longest)
            if (
                len(batch.conditions) + padding_sequences <= sequences
                and len(batch.text.ids) <= text
                and len(batch.speech.ids) <= speech
                and batch.packing.longest <= self._longest
            ):
                return BatchBucket(positions, sequences, text, speech, self._longest)
        return None


def pad_to_bucket(batch: PackedBatch, bucket: BatchBucket) -> PackedBatch:
    """The same microbatch with every tensor as long as the bucket has it, on the CPU. Padding has no target."""
    missing = bucket.sequences - len(batch.conditions)

    # Vectors are conditioning, text, speech: each part moves behind the padding of the parts before it.
    num_text = len(batch.text.ids)
    slots = len(batch.order) - num_text - len(batch.speech.ids)
    padded_slots = bucket.sequences * (slots // len(batch.conditions))
    order = batch.order.numpy()
    is_text = (order >= slots) & (order < slots + num_text)
    is_speech = order >= slots + num_text
    moved = order + is_text * (padded_slots - slots) + is_speech * (padded_slots - slots + bucket.text - num_text)
    every = np.arange(padded_slots + bucket.text + bucket.speech)
    unused = np.setdiff1d(every, moved, assume_unique=True)
    # Padding reads the vectors left over, distinct ones as far as they go: the gradient of a vector that is read in
    # many places is slow to sum.
    padding = np.resize(unused if len(unused) else every, bucket.positions - len(order))

    silent = torch.zeros(len(batch.text.ids), dtype=torch.bool) if batch.silent is None else batch.silent
    # Padding as sequences after the others; sequences that are still missing are empty.
    whole, rest = divmod(bucket.positions - len(batch.packing.positions), bucket.longest)
    lengths = [*batch.packing.offsets.diff().tolist(), *[bucket.longest] * whole, *([rest] if rest else [])]
    padded = Packing.of(lengths, "cpu", batch.packing.backend)
    offsets = torch.cat([padded.offsets, padded.offsets[-1:].expand(bucket.sequences - len(lengths))])
    tiles = padded.tiles
    if tiles is not None:  # as many as any microbatch of this bucket may need; entries of zeros cost no work
        tiles = F.pad(tiles, (0, 0, 0, max_num_tiles(bucket.positions, bucket.sequences) - tiles.shape[1]))
    return replace(
        batch,
        packing=replace(padded, offsets=offsets, longest=bucket.longest, tiles=tiles),
        order=torch.from_numpy(np.concatenate([moved, padding])),
        conditions=map_tensors(  # the first voice again and again
            batch.conditions, lambda value: torch.cat([value, value[:1].expand(missing, *value.shape[1:])])
        ),
        text=_pad_part(batch.text, bucket.text, bucket.positions),
        speech=_pad_part(batch.speech, bucket.speech, bucket.positions),
        silent=_pad_with_zeros(silent, bucket.text),
    )


def list_batch_tensors(batch: PackedBatch) -> list[Tensor]:
    """Every tensor of a padded microbatch in a fixed order, for copying one microbatch over another."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    # Groups of padded rows exist on the CPU only; their number depends on the sequences.
    map_tensors(replace(batch, packing=replace(batch.packing, groups=(), places=None)), collect)
    return tensors


def _pad_part(part: PackedTokens, length: int, positions: int) -> PackedTokens:
    missing = length - len(part.scored)
    return PackedTokens(
        ids=_pad_with_zeros(part.ids, length),
        positions=_pad_with_zeros(part.positions, length),
        scored=torch.cat([part.scored, torch.arange(missing) % positions]),
        targets=torch.cat([part.targets, part.targets.new_full((missing,), IGNORE_INDEX)]),
    )


def _pad_with_zeros(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values.new_zeros(length - len(values))])


def _align_up(value: float) -> int:
    return round_up(int(np.ceil(value)), BUCKET_ALIGNMENT)


class CudaGraphRunner:
    """Losses and gradients of padded microbatches by replay."""

    def __init__(
        self,
        loss_sums: Callable[[PackedBatch], Tensor],
        trained: TrainableModel,
        gate_context: Callable[[], AbstractContextManager[None]],
        gradient_buffers: Mapping[nn.Parameter, Tensor],
    ) -> None:
        """Both passes run inside of `gate_context`. `gradient_buffers` are where the optimizer wants gradients."""
        self._loss_sums, self._gate_context = loss_sums, gate_context
        named = trained.named()
        optimized = {
            name: value for part in trained.parameters for name, value in trained.optimizer_parameters(part).items()
        }
        self._parameters = list(named.values())
        self._optimized: list[nn.Parameter] = [optimized[name] for name in named]
        self._gradient_sums = [
            gradient_buffers[value] if value in gradient_buffers else torch.zeros_like(value)
            for value in self._optimized
        ]
        device = trained.model.device
        self._weights = torch.zeros(3, device=device)
        self._losses = torch.zeros(3, device=device)
        # By whether it starts a step's gradients, and the shapes: the graph and the tensors that it reads.
        self._graphs: dict[tuple[bool, tuple[torch.Size, ...]], tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self._pool = torch.cuda.MemPool()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        self._has_gradient: list[bool] | None = None

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, batch: PackedBatch, weights: Tensor, *, first: bool) -> Tensor:
        """Add the gradients of a microbatch to those of the step, or start them with it. Its summed losses. [3]"""
        self._weights.copy_(weights)
        if batch.order.device == self._losses.device:  # it fits into no bucket, so it was not padded
            self._accumulate_gradients(self._forward_backward(batch), first)
            return self._losses
        values = list_batch_tensors(batch)
        key = (first, tuple(value.shape for value in values))
        if key not in self._graphs:
            self._graphs[key] = self._capture_graph(batch, first)
        graph, inputs = self._graphs[key]
        for graph_input, value in zip(inputs, values, strict=True):
            graph_input.copy_(value, non_blocking=True)
        graph.replay()
        return self._losses

    def capture_largest(self, batch: PackedBatch) -> None:
        """Record a microbatch of the largest size, so that there is memory for all the smaller ones."""
        self._graphs.clear()
        self._pool = torch.cuda.MemPool()  # gives back what a larger one took
        torch.cuda.empty_cache()
        key = (True, tuple(value.shape for value in list_batch_tensors(batch)))
        self._graphs[key] = self._capture_graph(batch, first=True)

    def assign_gradients(self) -> None:
        """Hand the step's gradients to the parameters that the optimizer updates."""
        assert self._has_gradient is not None
        for value, total, reached in zip(self._optimized, self._gradient_sums, self._has_gradient, strict=True):
            value.grad = total if reached else None

    def _capture_graph(self, batch: PackedBatch, first: bool) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        device, stream, graph = self._losses.device, self._stream, torch.cuda.CUDAGraph()
        inputs = batch.to(device)
        with _disable_gc():
            stream.wait_stream(torch.cuda.current_stream(device))
            # The warm-up uses the memory pool of the recording, so that both together take no more room than one. Only
            # allocations of this thread come from the pool, so this thread must run the backward pass itself.
            with (
                torch.cuda.stream(stream),
                torch.cuda.use_mem_pool(self._pool, device),
                torch.autograd.set_multithreading_enabled(False),
            ):
                self._forward_backward(inputs)  # compiles, and lets the libraries initialize
            torch.cuda.current_stream(device).wait_stream(stream)
            torch.cuda.synchronize(device)
            pool = cast("Any", self._pool.id)  # torch's type hint knows only its other kind of handle
            # Thread-local, because the prefetch thread may copy the next step's batches meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self._accumulate_gradients(self._forward_backward(inputs), first)
        return graph, list_batch_tensors(inputs)

    def _forward_backward(self, batch: PackedBatch) -> list[Tensor | None]:
        with self._gate_context():
            sums = self._loss_sums(batch)
            gradients = torch.autograd.grad((sums * self._weights).sum(), self._parameters, allow_unused=True)
        self._losses.copy_(sums.detach().float())
        return list(gradients)

    def _accumulate_gradients(self, gradients: list[Tensor | None], first: bool) -> None:
        pairs = [(total, one) for total, one in zip(self._gradient_sums, gradients, strict=True) if one is not None]
        self._has_gradient = [one is not None for one in gradients]
        if first:
            torch._foreach_copy_([total for total, _ in pairs], [one for _, one in pairs])
        else:
            for total, one in pairs:
                total.add_(one)


@contextmanager
def _disable_gc() -> Iterator[None]:
    """Torch aborts the process if the memory of an old graph is collected while a new one is being captured."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
