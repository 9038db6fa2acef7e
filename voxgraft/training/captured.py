"""What a CUDA device does for a pack, recorded once for each size and replayed: the processor only says "again".

A pack of a small model is hundreds of short kernels, and a processor that starts them one by one is slower than the
device. Gradients are added up inside the recording, in the precision of the parameters that the optimizer moves.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from voxgraft.families.model import PackedBatch
from voxgraft.families.moulds import list_batch_tensors
from voxgraft.training.parts import TrainableModel

__all__ = ["CudaGraphRunner"]

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
