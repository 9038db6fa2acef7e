"""Small parts that several models share: layers, empty initialization, chunked losses, CUDA graphs of solvers."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from voxgraft.core.errors import ConfigError
from voxgraft.nn import IGNORE_INDEX


class LearnedPositions(nn.Module):
    """Position numbers to rows of `emb`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(rows, width)

    def forward(self, positions: Tensor) -> Tensor:
        """[...] -> [..., W]"""
        out: Tensor = self.emb(positions)
        return out


class TransposedLinear(nn.Module):
    """x W + b with W as `[inputs, outputs]`, as GPT-2 checkpoints hold it."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.normal_(self.weight, std=0.02)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        return nn.functional.linear(x, self.weight.T, self.bias)


# The layers of a body that an adapter can sit on.
AnyLinear = nn.Linear | TransposedLinear


class no_init_weights(TorchFunctionMode):  # noqa: N801 (used as a function)
    """Parameters of modules that are made here hold whatever was in memory; buffers are computed as always."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def init_empty_weights() -> Iterator[None]:
    """Modules that are made here have shapes and no memory: every tensor has to be given before they compute.

    Without `no_init_weights`, drawing numbers for no memory would load torch's compiler, which takes a second.
    """
    with torch.device("meta"), no_init_weights():
        yield


def cross_entropy_sum(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, *, chunk: int | None
) -> Tensor:
    """Summed cross-entropy of `head(hidden)` against `targets`, a float32 number. [N, W], [N] -> []

    With a `chunk`, the logits of at most that many positions exist at once (`sum_in_chunks`). The caller has checked
    that every target is a row of the head or `IGNORE_INDEX`.
    """

    def chunk_sum(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = head(hidden)  # [N, V]
        if use_cross_entropy_kernel(logits):
            total: Tensor = _CrossEntropySum.apply(logits, targets)  # type: ignore[no-untyped-call]
            return total
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(exact, targets, ignore_index=IGNORE_INDEX, reduction="sum")

    return sum_in_chunks(chunk_sum, (hidden, targets), chunk)


# One kernel reads half-precision logits as they are; torch makes float32 copies of them. Off: measured on a
# GPU only together with the fused gated blocks (docs/log.md, 2026-11-19).
FUSED_CROSS_ENTROPY = False
CROSS_ENTROPY_BLOCK = 1024


def use_cross_entropy_kernel(logits: Tensor) -> bool:
    """Whether the kernel computes the loss of these logits."""
    return FUSED_CROSS_ENTROPY and logits.is_cuda and logits.element_size() == 2


class _CrossEntropySum(torch.autograd.Function):
    """Summed cross-entropy of half-precision logits. [N, V], [N] -> []"""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        from voxgraft.nn.training_kernels import cross_entropy_kernel

        losses, log_totals = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
        width, row = logits.shape[1], logits.stride(0)
        cross_entropy_kernel[(len(logits),)](
            logits, targets, losses, log_totals, row, width, IGNORED=IGNORE_INDEX, BLOCK=CROSS_ENTROPY_BLOCK
        )
        ctx.save_for_backward(logits, targets, log_totals)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        from voxgraft.nn.training_kernels import cross_entropy_gradient_kernel

        logits, targets, log_totals = ctx.saved_tensors
        width = logits.shape[1]
        # Rows begin where the kernel can write 16 bytes at once.
        gradient = logits.new_empty(len(logits), round_up(width, 64))[:, :width]
        cross_entropy_gradient_kernel[(len(logits),)](
            logits, targets, log_totals, gradients[0], gradient, logits.stride(0), gradient.stride(0), width,
            IGNORED=IGNORE_INDEX, BLOCK=CROSS_ENTROPY_BLOCK,
        )  # fmt: skip
        return gradient, None


def sum_in_chunks(chunk_sum: Callable[..., Tensor], tensors: Sequence[Tensor], chunk: int | None) -> Tensor:
    """`chunk_sum(*tensors)`, computed over at most `chunk` rows at a time and summed; None takes all rows at once.

    Chunks run a second time in the backward pass instead of keeping their logits, so the head must not change between.
    """
    if chunk is not None and chunk < 1:
        raise ConfigError("config-value", f"a chunk of {chunk} positions", expected="1 or more, or None")
    if chunk is None or len(tensors[0]) <= chunk:
        return chunk_sum(*tensors)
    sums = [
        # A head draws no random numbers, so there is no generator state to restore.
        checkpoint(chunk_sum, *parts, use_reentrant=False, preserve_rng_state=False)
        for parts in zip(*(torch.split(tensor, chunk) for tensor in tensors), strict=True)
    ]
    return torch.stack(sums).sum()


Structure = TypeVar("Structure")
Module = TypeVar("Module", bound=nn.Module)


def map_tensors(value: Structure, function: Callable[[Tensor], Tensor]) -> Structure:
    """The same dataclass with `function` applied to every tensor in it, those of dataclasses and tuples inside too."""
    changed: Any = value
    if isinstance(value, Tensor):
        changed = function(value)
    elif isinstance(value, tuple):
        changed = tuple(map_tensors(one, function) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        changed = replace(value, **{one.name: map_tensors(getattr(value, one.name), function) for one in fields(value)})
    return cast("Structure", changed)


def round_up(number: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-number // unit) * unit


def iter_modules_by_prefix(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its name as a prefix, without the names that DDP and torch.compile put before it."""
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    for name, module in bare.named_modules():
        yield (f"{name}.".replace("_orig_mod.", "") if name else ""), module


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------


class CaptureLock:
    """Threads work on a device side by side; one that captures a graph waits until all others pause.

    In every capture mode, a call of another thread that waits for the whole device fails and ends the capture.
    Libraries make such calls when they are first used, and the allocator when memory runs out. Captures of one process
    take turns: torch has one stream for them, and the memory of an old graph must not be freed while a new one is
    captured.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working: set[int] = set()
        self._num_waiting = 0
        self._capturing: int | None = None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Around what a thread does on the device where another thread may capture."""
        own = threading.get_ident()
        if own in self._working or own == self._capturing:
            # Its turn already. To wait here for a capture, which waits for this thread, would block both for ever.
            yield
            return
        with self._changed:
            # A capture that waits comes first: else two busy threads would keep a third from ever capturing.
            self._changed.wait_for(lambda: self._capturing is None and not self._num_waiting)
            self._working.add(own)
        try:
            yield
        finally:
            with self._changed:
                self._working.discard(own)
                self._changed.notify_all()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Alone on the device. A thread that works gives up its turn while it waits, so that two cannot block."""
        own = threading.get_ident()
        if own == self._capturing:
            raise RuntimeError("a capture inside of a capture: CUDA has no graphs in graphs")
        with self._changed:
            was_working = own in self._working
            self._working.discard(own)
            self._num_waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._capturing is None and not self._working)
            finally:
                self._num_waiting -= 1
                self._changed.notify_all()  # after an interrupt, threads that waited for this capture go ahead
            self._capturing = own
        try:
            yield
        finally:
            with self._changed:
                self._capturing = None
                if was_working:
                    self._working.add(own)
                self._changed.notify_all()


CAPTURE_LOCK = CaptureLock()
Captured = TypeVar("Captured")
# torch's allocators ask a graph for its stream until its capture ends, which a failed one never does: these must live.
_failed_graphs: list[torch.cuda.CUDAGraph] = []


def capture_graph(function: Callable[[], Captured], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Captured]:
    """`function()` as a CUDA graph, and what it returned, to which every replay writes. It must have run before.

    After an error the thread and its stream are as before, so that the caller can compute without a graph.
    """
    graph = torch.cuda.CUDAGraph()
    # Autocast frees its rounded weights when its block ends, and the graph would still read them: no cache here.
    cached = torch.is_autocast_cache_enabled()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    with CAPTURE_LOCK.capture():
        collected = gc.isenabled()
        gc.disable()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)
        stream = torch.cuda.current_stream()
        try:
            # thread_local: CUDA calls of other threads, such as copies of the next batch, do not end the capture.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                output = function()
        except BaseException:
            # torch leaves the thread on the stream of captures, and its allocator in the capture.
            torch.cuda.set_stream(stream)
            _failed_graphs.append(graph)
            with suppress(RuntimeError, AttributeError):  # it had ended; the functions are private to torch
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
                torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
            raise
        finally:
            torch.set_autocast_cache_enabled(cached)
            if collected:
                gc.enable()
    return graph, output


def round_matrices(network: Module, dtype: torch.dtype) -> Module:
    """A copy for autocast whose matrices and convolutions are in `dtype` already. It shares everything else.

    Autocast rounds weights again at every call, since they ask for no gradient: two more kernels for each layer.
    """
    tensors = chain(network.parameters(), network.buffers())
    rounded = copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})
    for module in list(rounded.modules()):
        if isinstance(module, nn.Linear | nn.Conv1d):
            for name, value in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(value.to(dtype), requires_grad=False))
    for module in list(rounded.modules()):
        if isinstance(module, FusableModule):
            module.fuse()
    return rounded


def round_like(x: Tensor, weight: Tensor) -> Tensor:
    """x in a weight's dtype: before it is copied or read several times, where autocast would round it each time."""
    return x.to(weight.dtype)


class FusableModule(nn.Module):
    """Has layers that `round_matrices` may join into one."""

    def fuse(self) -> None:
        raise NotImplementedError


# ---- captured solvers ------------------------------------------------------------------------------------------------
# A processor starts the kernels of a flow more slowly than a GPU runs them. All steps of a solver have one shape, so
# the whole solver is captured as a CUDA graph, for lengths that are multiples of FRAME_STEP; shorter utterances are
# padded and masked. Elsewhere than on CUDA, and where capturing fails, solvers run as they are.

# A longer step wastes more on padding, a shorter one captures more graphs: 64 frames are 0.7 to 1.3 seconds.
FRAME_STEP = 64
MAX_GRAPHS = 32
# With more frames in a batch a kernel takes longer than its start, and capturing would only cost time.
MAX_CAPTURED_FRAMES = 6_000
# A replay must give what the solver has just given, up to rounding: graphs may choose other kernels.
REPLAY_TOLERANCE = 2e-2


def pad_frames(num_frames: int, device: torch.device) -> int:
    """The length that a solver runs at: the next of the captured ones on CUDA, the frames themselves elsewhere."""
    return round_up(num_frames, FRAME_STEP) if device.type == "cuda" else num_frames


@dataclass(frozen=True, slots=True)
class _CapturedSolver:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor

    def replay(self, inputs: tuple[Tensor, ...]) -> Tensor:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.output.clone()  # the next replay writes to the same memory


class SolverGraphs:
    """The captured solvers of one model, by the shapes of what they are given.

    With `beside`, they share the memory of another model's: only if no two threads use the two.
    """

    def __init__(self, beside: SolverGraphs | None = None) -> None:
        self._graphs: dict[Hashable, _CapturedSolver] = {}
        self._seen: set[Hashable] = set()
        self._rounded: tuple[Hashable, nn.Module] | None = None
        self._pools: list[Any] = [] if beside is None else beside._pools  # one, once there are graphs
        self.refusal = ""
        """Why nothing is captured any more; empty while graphs are used."""
        self.num_replays = 0
        self.num_bytes = 0
        """Memory that the captured solvers hold; they share it, since only one runs at a time."""

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def round_matrices(self, network: Module, dtype: torch.dtype) -> Module:
        """`round_matrices` of the model, kept until another dtype is wanted or the model moves."""
        key = (dtype, next(network.parameters()).data_ptr())
        if self._rounded is None or self._rounded[0] != key:
            self._rounded = key, round_matrices(network, dtype)
            self._graphs.clear()  # they read the matrices that were kept before
        return cast("Module", self._rounded[1])

    def run(self, solve: Callable[..., Tensor], kind: Hashable, *inputs: Tensor, num_frames: int = 0) -> Tensor:
        """`solve(*inputs)`, which must be a function of the values of `inputs` and of nothing else but `kind`.

        A shape is captured when it comes a second time: what is spoken once does not wait for a graph. `num_frames` of
        all rows say how much work it is.
        """
        if num_frames > MAX_CAPTURED_FRAMES:
            return solve(*inputs)
        key = (kind, tuple((tuple(one.shape), one.dtype, one.device) for one in inputs))
        known = self._graphs.pop(key, None)
        if known is not None:
            self._graphs[key] = known  # dicts keep their order: the least recently used is first
            self.num_replays += 1
            return known.replay(inputs)
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
            warnings.warn(f"CUDA graphs of a solver are off: {self.refusal}", RuntimeWarning, stacklevel=2)
            return found
        while len(self._graphs) >= MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = captured
        return found

    def _capture(self, solve: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> _CapturedSolver:
        with torch.inference_mode(False):  # else they could not be written to outside of it
            own = tuple(one.clone() for one in inputs)
        if not self._pools:
            self._pools.append(torch.cuda.graph_pool_handle())
        before = 0

        def measured() -> Tensor:
            # Here and not before: only now has the cache been emptied, while no other thread works.
            nonlocal before
            before = torch.cuda.memory_reserved()
            return solve(*own)

        # One pool for all of them: replays run one after another, and each output is copied before the next.
        graph, output = capture_graph(measured, self._pools[0])
        self.num_bytes += torch.cuda.memory_reserved() - before
        return _CapturedSolver(graph, own, output)
