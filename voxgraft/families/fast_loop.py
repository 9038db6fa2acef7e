"""Drawing a code and feeding it, as one captured graph of several steps: the inner loop of speaking on CUDA.

Made for so many streams and so much room; streams that fit use it again and again. Knows nothing of prompts.

Shapes: N streams, R rows, V speech rows, W width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from voxgraft.families.model import SpeechModel
from voxgraft.families.stream_state import CODES_PER_CHECK, DecodeState
from voxgraft.nn.fast_step import FusedDecodeStep
from voxgraft.nn.packed_body import PackedBackbone
from voxgraft.nn.sampling import SamplingParams

__all__ = ["DecodeGraph", "DecodeGraphKey"]


@dataclass(frozen=True, slots=True)
class DecodeGraphKey:
    """What is fixed when a graph is captured. Numbers of a sampling may change without a new graph."""

    num_streams: int
    guided: bool
    stochastic: bool
    top_k: bool
    top_p: bool
    readable: bool
    first_position: int

    @classmethod
    def of(cls, num_streams: int, sampling: SamplingParams, first_position: int) -> DecodeGraphKey:
        return cls(
            num_streams=num_streams,
            guided=sampling.guidance > 0,
            stochastic=sampling.temperature > 0,
            top_k=sampling.top_k > 0,
            top_p=sampling.top_p < 1,
            readable=sampling.readable,
            first_position=first_position,
        )


class DecodeGraph:
    """A graph over a state of its own. Capturing runs a step, so begin the state afterwards."""

    def __init__(self, model: SpeechModel, body: PackedBackbone, kind: DecodeGraphKey, state: DecodeState) -> None:
        self.kind, self.state = kind, state
        self.length, self.max_codes = state.cache.length, state.codes.shape[1]
        device, num_speech_rows = state.logits.device, state.logits.shape[1]
        self.noise = torch.ones(kind.num_streams, CODES_PER_CHECK, num_speech_rows, device=device)
        self._settings = torch.ones(6, device=device)
        self._ids = torch.zeros_like(state.num_generated)
        self._positions = torch.zeros_like(state.num_generated)
        self._step = FusedDecodeStep(body, state.cache)
        self._graph = self._capture(model)

    def set(self, sampling: SamplingParams) -> None:
        """The numbers by which codes are drawn from now on."""
        numbers = (
            sampling.guidance,
            sampling.repetition_penalty,
            sampling.temperature,
            sampling.min_p,
            float(sampling.top_k),
            sampling.top_p,
        )
        self._settings.copy_(torch.tensor(numbers))

    def advance(self) -> None:
        """Speak and feed `LOOK_EVERY` more codes of every stream, with the noise that is there."""
        self._graph.replay()

    def _capture(self, model: SpeechModel) -> torch.cuda.CUDAGraph:
        self.state.begin(model.frame)
        self._once(model)  # kernels are compiled and libraries wake up outside of the graph
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with _disable_autocast_cache(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(CODES_PER_CHECK):
                self._once(model)
        return graph

    def _once(self, model: SpeechModel) -> None:
        """Draw, embed, body, head."""
        state = self.state
        self._sample(model)
        hidden = self._step(model.embed_speech(self._ids, self._positions))  # [R, W]
        state.logits.copy_(model.speech_logits(hidden))

    def _sample(self, model: SpeechModel) -> None:
        from voxgraft.nn.draw_kernel import sample_code_kernel

        state, kind, frame = self.state, self.kind, model.frame
        num_speech_rows = state.logits.shape[1]
        kernel: Any = sample_code_kernel[(kind.num_streams,)]
        kernel(
            state.logits, state.heard.view(torch.uint8), self.noise, self._settings, state.codes, state.num_generated,
            state.stopped.view(torch.uint8), state.cache.filled, self._ids, self._positions, kind.num_streams,
            self.max_codes, kind.first_position, num_speech_rows, frame.num_codes, frame.speech_stop, kind.readable,
            kind.guided, kind.stochastic, kind.top_k, kind.top_p, CODES_PER_CHECK, 1 << (num_speech_rows - 1).bit_length(),
            num_warps=16,
        )  # fmt: skip


@contextmanager
def _disable_autocast_cache() -> Iterator[None]:
    """Autocast keeps weights that it has rounded until it ends; a graph would go on reading them."""
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
