"""Continuous batching: utterances of different languages and grafts in one decode batch, which they join and leave.

One backbone step serves all rows; adapters are chosen per row (`RowLoraLayer`). A row's codes depend on its own
seed, text and voice. On the CPU they also keep their bits whatever is beside them: rows are padded to a multiple of
`ROW_STEP` and positions to one of `LENGTH_STEP`, at which matrix products give each row the same bits. On other devices
rounding may differ with the number of rows, as it does for `speak --batch`.

Shapes: N streams, V speech rows. With guidance stream s has the cache rows 2 s (with text) and 2 s + 1 (without).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from voxgraft.core.errors import GraftError, TextError
from voxgraft.models.base import build_sequence, code_position
from voxgraft.models.generate import (
    CODES_PER_CHECK,
    DecodeState,
    StopCause,
    StoppingCriteria,
    find_loop_cut,
    get_decode_dtype,
)
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, compute_speech_latents, pack_batch
from voxgraft.nn.adapter import LoraLayer, find_lora_layers
from voxgraft.nn.attention import DecodeContext, PrefillContext
from voxgraft.nn.backbones import Backbone
from voxgraft.nn.decode import (
    FusedDecodeStep,
    PackedBackbone,
    SamplingParams,
    apply_repetition_penalty,
    filter_logits,
    iter_block_modules,
    sample_codes,
    supports_fused_decode,
)
from voxgraft.nn.layers import TransposedLinear, capture_graph, round_up
from voxgraft.synthesis.engine import SpeakingModel, SynthesisRequest, SynthesisResult

# Matrix products of this CPU library give a row the same bits at every multiple of 4 rows, attention at every multiple
# of 32 positions (measured; `tests/test_batching.py` fails where that is not so).
ROW_STEP, LENGTH_STEP = 4, 64
# The cache grows by so many positions at once, so that it is seldom copied.
CACHE_LENGTH_STEP = 256
# Blocks of steps that are kept as CUDA graphs, by their number of streams and positions.
MAX_BLOCK_GRAPHS = 24
NO_ADAPTER = 0
"""The number of rows that the base speaks alone."""


@dataclass(eq=False, slots=True)
class DecodeRow:
    """One utterance in the batch. `result` is set when it has left."""

    request: SynthesisRequest
    system: SpeakingModel
    generator: torch.Generator
    num_positions: int
    """Of the prompt and the codes so far."""
    is_open: bool = False
    """Whether its model's adapter contributes."""
    codes: list[int] = field(default_factory=list)
    result: SynthesisResult | None = None


class DecodeBatch:
    """Streams of models that share one backbone. Not thread-safe: one thread joins, advances and removes."""

    def __init__(
        self,
        systems: Sequence[SpeakingModel],
        sampling: SamplingParams,
        *,
        code_hz: float,
        latents: bool = False,
    ) -> None:
        """`latents` are for a vocoder that needs them."""
        gated = [system for system in systems if system.gate is not None]
        joined, self._choice = join_adapters([system.model for system in gated or systems[:1]])
        self.model = cast(SpeechModel, joined)
        self._numbers = {id(system): number for number, system in enumerate(gated, 1)}
        self._sampling = replace(sampling, readable=True) if latents else sampling
        self._code_hz, self._latents = code_hz, latents
        self._rows_per_stream = 2 if sampling.guidance > 0 else 1
        self._first_position = code_position(self.model.spec, 0, stock=sampling.stock)
        self._max_codes = round_up(self.model.spec.max_codes, CODES_PER_CHECK)
        self.rows: list[DecodeRow] = []
        self._graphs: dict[tuple[int, int, bool], torch.cuda.CUDAGraph | None] = {}
        self._captures = self.model.device.type == "cuda"
        self._packed, self._row_adapters = self._pack((gated or systems)[0])
        self._fused_steps: dict[tuple[int, bool], FusedDecodeStep] = {}
        self._state, self._adapters, self._noise = self._allocate(self._pad_streams(1), CACHE_LENGTH_STEP)
        ids = torch.arange(self._state.logits.shape[1], device=self.model.device)
        self._unreadable = (ids >= self.model.spec.num_codes) & (ids != self.model.spec.speech_stop)

    def _pack(self, system: SpeakingModel) -> tuple[PackedBackbone | None, PackedRowAdapters | None]:
        """The base's weights and all adapters for the fused step; nothing where that cannot run."""
        model, dtype = system.model, get_decode_dtype(system.model)
        if not supports_fused_decode(model.body, model.device, dtype):
            return None, None
        try:
            with nullcontext() if system.gate is None else system.gate.closed():
                packed = PackedBackbone(model.body, dtype)
            return packed, PackedRowAdapters(self.model.body, self._choice)
        except torch.OutOfMemoryError:  # no room for a second copy of the backbone
            return None, None

    def _fused_step(self, num_streams: int, *, is_open: bool) -> FusedDecodeStep | None:
        if self._packed is None:
            return None
        key = (num_streams, is_open)
        if key not in self._fused_steps:
            cache = self._state.cache
            part = cache.view(num_streams * self._rows_per_stream, cache.length)
            self._fused_steps[key] = FusedDecodeStep(self._packed, part, self._row_adapters if is_open else None)
        return self._fused_steps[key]

    def join(self, request: SynthesisRequest, system: SpeakingModel) -> DecodeRow:
        """Add an utterance: its prompt is computed alone, by its own model, and fills the next rows of the cache."""
        return self.join_all([request], system)[0]

    @property
    def joins_together(self) -> bool:
        """Whether several prompts may be computed at once; on the CPU a row's bits would depend on the others."""
        return self.model.device.type == "cuda"

    @torch.no_grad()
    def join_all(self, requests: Sequence[SynthesisRequest], system: SpeakingModel) -> list[DecodeRow]:
        """Add utterances of one model whose gate is the same for all: all of them, or none."""
        model, spec, twice = system.model, system.model.spec, self._rows_per_stream
        stock, most = self._sampling.stock, max(request.max_codes for request in requests)
        if most > spec.max_codes:
            raise TextError("ids-length", f"the limit is {most:,} codes", expected=f"at most {spec.max_codes:,}")
        sequences = [
            build_sequence(spec, request.text_ids, closed=request.closed, stock=stock)
            for request in requests
            for _ in range(twice)
        ]
        conditions = [request.condition for request in requests for _ in range(twice)]
        batch = pack_batch(model, sequences, conditions, silent=[False, True][:twice] * len(requests))
        longest, first = batch.packing.longest, len(self.rows)
        streams = slice(first, first + len(requests))
        rows = slice(first * twice, streams.stop * twice)
        self._reserve(streams.stop, longest + round_up(most, CODES_PER_CHECK))
        state = self._state
        with system.set_gate_for(requests[0].language):
            context = PrefillContext(batch.packing, state.cache, rows.start)
            hidden = compute_hidden_states(model, batch, context)
            context.finish()
            state.logits[rows] = model.speech_logits(hidden[batch.packing.last])
        state.codes[streams], state.num_generated[streams], state.stopped[streams] = spec.speech_stop, 0, False
        state.heard[streams] = False
        state.heard[streams, list(spec.initial_penalized_codes)] = True
        is_open = system.gate is not None and system.is_open(requests[0].language)
        self._adapters[rows] = self._numbers[id(system)] if is_open else NO_ADAPTER
        joined = []
        for request in requests:
            generator = torch.Generator(self.model.device).manual_seed(request.seed)
            # At most as many positions as the longest prompt has.
            joined.append(DecodeRow(request, system, generator, longest, is_open))
        self.rows += joined
        return joined

    @torch.no_grad()
    def advance(self) -> list[DecodeRow]:
        """A few codes more of every stream. Those that have ended leave, and are returned with their results."""
        if not self.rows:
            return []
        state, active, stop = self._state, len(self.rows), self.model.spec.speech_stop
        num_streams = self._pad_streams(active)
        # Streams that only pad the batch start at position 0 again and again.
        state.cache.filled[active * self._rows_per_stream : num_streams * self._rows_per_stream] = 0
        state.num_generated[active:num_streams], state.stopped[active:num_streams] = 0, True
        self._adapters[active * self._rows_per_stream :] = NO_ADAPTER
        if self._sampling.temperature > 0:
            for own, row in zip(self._noise, self.rows, strict=False):
                # As many draws as `DecodeSession` makes at once: a stream draws the same numbers in both.
                own.exponential_(generator=row.generator)
        longest = max(row.num_positions for row in self.rows) + CODES_PER_CHECK
        # The fused step reads each row's positions alone, so that one graph serves all lengths.
        length = state.cache.length
        if self._packed is None:
            length = min(round_up(longest, LENGTH_STEP), length)
        self._run_block(num_streams, length, is_open=any(row.is_open for row in self.rows))
        window = torch.arange(-CODES_PER_CHECK, 0, device=self.model.device)
        fresh = state.codes[:active].gather(1, state.num_generated[:active, None] + window).tolist()
        finished = []
        for row in self.rows:  # all before the first leaves: another row may be moved then
            row.num_positions += CODES_PER_CHECK
        for row, codes in zip(list(self.rows), fresh, strict=True):
            row.codes += codes[: codes.index(stop)] if stop in codes else codes
            if stop in codes or len(row.codes) >= row.request.max_codes or find_loop_cut(row.codes, self._code_hz):
                row.result = self._finish(row, by_itself=stop in codes)
                self.remove(row)
                finished.append(row)
        return finished

    @torch.no_grad()
    def remove(self, row: DecodeRow) -> None:
        """Take an utterance out, finished or not. The last stream moves into its place."""
        stream, last = self.rows.index(row), len(self.rows) - 1
        moved = self.rows.pop()
        if moved is row:
            return
        self.rows[stream] = moved
        state, twice, length = self._state, self._rows_per_stream, moved.num_positions
        to, source = slice(stream * twice, (stream + 1) * twice), slice(last * twice, (last + 1) * twice)
        for tensor in (*state.cache.keys, *state.cache.values):
            tensor[to, :, :length] = tensor[source, :, :length]
        for tensor in (state.cache.filled, state.logits, self._adapters):
            tensor[to] = tensor[source]
        for tensor in (state.heard, state.codes, state.num_generated, state.stopped):
            tensor[stream] = tensor[last]

    def _finish(self, row: DecodeRow, *, by_itself: bool) -> SynthesisResult:
        request, model = row.request, row.system.model
        criteria = StoppingCriteria([request.max_codes], model.spec.speech_stop, self._code_hz)
        codes, cause = criteria.outcome(0, row.codes, by_itself=by_itself)
        stop: StopCause = cause
        if not self._latents:
            return SynthesisResult(tuple(codes), stop)
        with row.system.set_gate_for(request.language):
            texts, conditions, closed = [request.text_ids], [request.condition], [request.closed]
            (found,) = compute_speech_latents(model, texts, conditions, [codes], closed, [stop == "ended"])
        return SynthesisResult(tuple(codes), stop, found.float().cpu().numpy())

    def _pad_streams(self, active: int) -> int:
        """On CUDA powers of two, so that few graphs serve all numbers; else a multiple that keeps a row's bits."""
        if self.model.device.type == "cuda":
            return max(2, 1 << (active - 1).bit_length())
        return round_up(active, ROW_STEP // self._rows_per_stream)

    def _allocate(self, num_streams: int, length: int) -> tuple[DecodeState, Tensor, Tensor]:
        """The state of so many streams, the number of each row's adapter, and room for draws."""
        rows, device = num_streams * self._rows_per_stream, self.model.device
        state = DecodeState.of(self.model, num_streams, rows, length, self._max_codes)
        noise = torch.ones(num_streams, CODES_PER_CHECK, state.logits.shape[1], device=device)
        return state, torch.zeros(rows, dtype=torch.long, device=device), noise

    def _reserve(self, num_streams: int, length: int) -> None:
        """Room for so many streams and positions. What exists is copied; graphs, which hold addresses, are dropped."""
        old = self._state
        num_streams = max(self._pad_streams(num_streams), len(old.stopped))
        length = max(round_up(length, CACHE_LENGTH_STEP), old.cache.length)
        if (num_streams, length) == (len(old.stopped), old.cache.length):
            return
        state, adapters, noise = self._allocate(num_streams, length)
        pairs = [
            (old.logits, state.logits), (old.heard, state.heard), (old.codes, state.codes),
            (old.num_generated, state.num_generated), (old.stopped, state.stopped),
            (old.cache.filled, state.cache.filled), (self._adapters, adapters),
        ]  # fmt: skip
        for before, after in pairs:
            after[: len(before)] = before
        for before, after in zip(
            (*old.cache.keys, *old.cache.values), (*state.cache.keys, *state.cache.values), strict=True
        ):
            after[: len(before), :, : before.shape[2]] = before
        # Only now: if memory runs out above, the batch is as it was.
        self._state, self._adapters, self._noise = state, adapters, noise
        self._graphs.clear()
        self._fused_steps.clear()

    def _run_block(self, num_streams: int, length: int, *, is_open: bool) -> None:
        """All steps until the next check; on CUDA as a graph, from the second time on that a shape comes up.

        Where no row is open, adapters are not computed: their rows would be dropped.
        """
        device, key = self.model.device.type, (num_streams, length, is_open)
        if not self._captures or key not in self._graphs:
            # The CPU's flash attention divides its work by the number of rows, and with it the order of its sums.
            with sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext():
                self._run_steps(num_streams, length, is_open=is_open)
            self._graphs |= {key: None} if self._captures else {}
            return
        graph = self._graphs[key]
        if graph is None:
            while len(self._graphs) > MAX_BLOCK_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            try:
                graph, _ = capture_graph(lambda: self._run_steps(num_streams, length, is_open=is_open))
            except RuntimeError as failure:  # no memory for it: a capture computes nothing, so the steps still can run
                reason = str(failure).partition("\n")[0]
                warnings.warn(f"CUDA graphs of a decode batch are off: {reason}", RuntimeWarning, stacklevel=2)
                self._captures = False
                self._graphs.clear()
                self._run_steps(num_streams, length, is_open=is_open)
                return
            self._graphs[key] = graph
        graph.replay()

    def _run_steps(self, num_streams: int, length: int, *, is_open: bool) -> None:
        """`CODES_PER_CHECK` times: draw a code of each stream, feed it, compute the next logits. Nothing waits."""
        state, model, sampling, twice = self._state, self.model, self._sampling, self._rows_per_stream
        rows = num_streams * twice
        cache, logits = state.cache.view(rows, length), state.logits[:rows]
        fused = self._fused_step(num_streams, is_open=is_open)
        heard, codes, stopped = state.heard[:num_streams], state.codes[:num_streams], state.stopped[:num_streams]
        num_generated = state.num_generated[:num_streams]
        self._choice.choose(self._adapters[:rows] if is_open else None)
        last_position = self._first_position + model.spec.max_codes - 1
        for at in range(CODES_PER_CHECK):
            own: Tensor = logits
            if twice == 2:
                with_text, without = logits.view(num_streams, 2, -1).unbind(1)
                own = with_text + sampling.guidance * (with_text - without)
            own = apply_repetition_penalty(own, heard, sampling.repetition_penalty)
            own = own.masked_fill(self._unreadable, -torch.inf) if sampling.readable else own
            noise = self._noise[:num_streams, at] if sampling.temperature > 0 else None
            chosen = sample_codes(filter_logits(own, sampling), noise)  # [N]
            chosen = torch.where(stopped, model.spec.speech_stop, chosen)
            codes.scatter_(1, num_generated[:, None], chosen[:, None])
            heard.scatter_(1, chosen[:, None], True)
            stopped.logical_or_(chosen == model.spec.speech_stop)
            # Codes behind a stream's limit are dropped, but their positions must exist.
            positions = (num_generated + self._first_position).clamp(max=last_position)
            num_generated.add_(1)
            vectors = model.embed_speech(chosen, positions).repeat_interleave(twice, 0)
            if fused is None:
                step = DecodeContext(cache)
                hidden = model.body(vectors, step)
                step.finish()
            else:  # it counts the new position before it runs
                cache.filled.add_(1)
                hidden = fused(vectors)
            logits.copy_(model.speech_logits(hidden))


# ---- an adapter for each row ---------------------------------------------------------------------------------------

# `Gate` opens one adapter for a whole model. Here each row of a batch has the number of its adapter. The products of
# all adapters are two matrix products of fixed shape, so that a captured graph can run them. Inference only.
# Shapes: B rows, I inputs and O outputs of a layer, R ranks of all adapters together.


class RowChoice:
    """The adapter of each row: 0 for none, else its number from 1 on. One for a whole model."""

    def __init__(self) -> None:
        self.choose(None)

    def choose(self, rows: Tensor | None) -> None:
        """For all steps until it is called again. Layers keep here what depends on the rows alone."""
        self.rows = rows  # [B]
        self.is_adapted = None if rows is None else (rows > NO_ADAPTER)[:, None]  # [B, 1]
        self.scales: dict[object, Tensor] = {}


class RowLoraLayer(nn.Module):
    """A linear layer of the base with the adapters of several models beside it.

    Rows without an adapter keep the bits of the base's own layer: the sum is not even made for them.
    """

    def __init__(self, layers: Sequence[LoraLayer | None], choice: RowChoice) -> None:
        """`layers` are the same layer in each model, None where a model has no adapter here. They share one weight."""
        super().__init__()
        present = [layer for layer in layers if layer is not None]
        first = present[0]
        if any(layer.base_weight is not first.base_weight for layer in present):
            raise GraftError("adapter-mismatch", "the adapters are on different bases", expected="one base in memory")
        self.plain = first.plain_layer(first.base_weight)
        self._choice, dtype = choice, first.base_weight.dtype
        self.register_buffer("down", torch.cat([layer.down.to(dtype) for layer in present]), persistent=False)  # [R, I]
        self.register_buffer("up", torch.cat([layer.up.to(dtype) for layer in present], 1), persistent=False)  # [O, R]
        # By adapter: its scale at the places of its own ranks, 0 at those of the others.
        scales = torch.zeros(len(layers) + 1, len(self.down), dtype=dtype, device=self.down.device)
        start = 0
        for number, layer in enumerate(layers, 1):
            if layer is not None:
                scales[number, start : start + layer.rank] = layer.scale
                start += layer.rank
        self.register_buffer("scales", scales, persistent=False)  # [adapters + 1, R]

    down: Tensor
    up: Tensor
    scales: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[B, I] -> [B, O]"""
        result: Tensor = self.plain(x)
        choice = self._choice
        if choice.rows is None or choice.is_adapted is None:
            return result
        if (scale := choice.scales.get(id(self))) is None:
            scale = choice.scales[id(self)] = self.scales[choice.rows]
        narrow = F.linear(x, self.down) * scale  # [B, R]
        return torch.where(choice.is_adapted, result + F.linear(narrow, self.up), result)


class PackedRowAdapters:
    """The adapters of a joined model for `FusedDecodeStep`, whose products are those of several layers at once."""

    def __init__(self, body: Backbone, choice: RowChoice) -> None:
        self._choice = choice
        self._parts: dict[tuple[int, str], tuple[Tensor, Tensor, Tensor]] = {}
        *blocks, _ = iter_block_modules(body)
        for number, (_, qkv, out, _, up, down) in enumerate(blocks):
            for name, layers in (("qkv", qkv), ("out", out), ("up", up), ("down", down)):
                if any(isinstance(layer, RowLoraLayer) for layer in layers):
                    self._parts[number, name] = _join_layers(layers)

    def __call__(self, y: Tensor, x: Tensor, layer: int, name: str) -> Tensor:
        """y + the adapters' x, for each row by its own. [R, O], [R, I] -> [R, O]"""
        choice, part = self._choice, self._parts.get((layer, name))
        if part is None or choice.rows is None or choice.is_adapted is None:
            return y
        down, up, scales = part
        key = (layer, name)
        if (scale := choice.scales.get(key)) is None:
            scale = choice.scales[key] = scales[choice.rows]
        # Chosen, not added with a scale of 0: -0.0 + 0 is 0.0, and 0 times an infinite product is not a number.
        return torch.where(choice.is_adapted, torch.addmm(y, F.linear(x, down) * scale, up.T), y)


def _join_layers(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor, Tensor]:
    """Layers that read the same vector as one: down [R, I], up [sum of O, R] and scales [adapters + 1, R]."""
    first = next(layer for layer in layers if isinstance(layer, RowLoraLayer))
    downs, scales, ups = [], [], []
    for layer in layers:
        if isinstance(layer, RowLoraLayer):
            downs.append(layer.down)
            scales.append(layer.scales)
            ups.append(layer.up)
        else:
            assert isinstance(layer, nn.Linear | TransposedLinear)
            ups.append(first.up.new_zeros(layer.out_features, 0))
    joined: Tensor = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
    return torch.cat(downs), joined, torch.cat(scales, 1)


@torch.no_grad()
def join_adapters(models: Sequence[nn.Module]) -> tuple[nn.Module, RowChoice]:
    """A copy of the first model that shares its tensors and has the adapters of all, number n that of `models[n - 1]`.

    All models must hold the same base tensors. Adapter weights are copied, in the base's dtype.
    """
    first, choice = models[0], RowChoice()
    tensors = chain(first.parameters(), first.buffers())
    joined = copy.deepcopy(first, {id(tensor): tensor for tensor in tensors})
    layers = [find_lora_layers(model) for model in models]
    for name in dict.fromkeys(chain(*layers)):
        joined.set_submodule(name, RowLoraLayer([own.get(name) for own in layers], choice))
    return joined, choice
