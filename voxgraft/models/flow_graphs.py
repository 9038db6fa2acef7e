"""CUDA graphs of flow solvers: one launch in the place of thousands of short kernels.

A processor starts the kernels of a flow more slowly than a GPU runs them. All steps of a solver have one shape, so the
whole solver is captured, for lengths that are multiples of `FRAME_STEP`; shorter utterances are padded and masked.
Elsewhere than on CUDA, and where capturing fails, solvers run as they are: a graph changes the time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from voxgraft.nn.layers import round_up

# A longer step wastes more on padding, a shorter one captures more graphs: 64 frames are 0.7 to 1.3 seconds.
FRAME_STEP = 64
MAX_GRAPHS = 16
# A replay must give what the solver has just given, up to rounding: graphs may choose other kernels.
REPLAY_TOLERANCE = 2e-2


def pad_frames(num_frames: int, device: torch.device) -> int:
    """The length that a solver runs at: the next of the captured ones on CUDA, the frames themselves elsewhere."""
    return round_up(num_frames, FRAME_STEP) if device.type == "cuda" else num_frames


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor

    def replay(self, inputs: tuple[Tensor, ...]) -> Tensor:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.output.clone()  # the next replay writes to the same memory


class SolverGraphs:
    """The captured solvers of one model, by the shapes of what they are given."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, _Captured] = {}
        self._seen: set[Hashable] = set()
        self.refusal = ""
        """Why nothing is captured any more; empty while graphs are used."""

    def run(self, solve: Callable[..., Tensor], kind: Hashable, *inputs: Tensor) -> Tensor:
        """`solve(*inputs)`, which must be a function of the values of `inputs` and of nothing else but `kind`.

        A shape is captured when it comes a second time: what is spoken once does not wait for a graph.
        """
        key = (kind, tuple((tuple(one.shape), one.dtype, one.device) for one in inputs))
        if (captured := self._graphs.pop(key, None)) is not None:
            self._graphs[key] = captured  # dicts keep their order: the least recently used is first
            return captured.replay(inputs)
        found = solve(*inputs)
        if self.refusal or inputs[0].device.type != "cuda":
            return found
        if key not in self._seen:
            self._seen.add(key)
            return found
        try:
            captured = self._capture(solve, inputs)
            error = float((captured.replay(inputs) - found).abs().max() / found.abs().max().clamp_min(1e-6))
            if not error <= REPLAY_TOLERANCE:
                self.refusal = f"a replay differs by {error:.1e} of the largest value"
        except RuntimeError as failure:  # no room beside a training, or an operation that cannot be captured
            self.refusal = str(failure).partition("\n")[0]
        if self.refusal:
            self._graphs.clear()
        else:
            while len(self._graphs) >= MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = captured
        return found

    @staticmethod
    def _capture(solve: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> _Captured:
        own = tuple(one.clone() for one in inputs)
        graph = torch.cuda.CUDAGraph()
        # Autocast frees its rounded weights when its block ends, and the graph would still read them: no cache here.
        cached = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)
        try:
            # thread_local: CUDA calls of other threads, such as copies of the next batch, do not end the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                output = solve(*own)
        finally:
            torch.set_autocast_cache_enabled(cached)
        return _Captured(graph, own, output)
