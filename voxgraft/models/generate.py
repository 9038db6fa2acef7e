"""Generation: from prompts to speech codes, many utterances at once, with a static KV cache.

The same for every family: the model says how ids become vectors and vectors logits. On CUDA in half precision a
captured graph runs the steps (`DecodeGraph`); anywhere else `DecodeSession` runs them one by one. Needs torch only.

Shapes: N streams, R rows (N, or 2 N with guidance: those with text first), V speech rows, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from voxgraft.core.errors import ConfigError, GraftError
from voxgraft.models.base import SequenceSpec, build_sequence, code_position
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, pack_batch
from voxgraft.nn.attention import DecodeContext, KVCache, PrefillContext
from voxgraft.nn.decode import SamplingParams, apply_guidance, apply_repetition_penalty, filter_logits, sample_codes
from voxgraft.nn.layers import capture_graph, round_up

if TYPE_CHECKING:
    from voxgraft.nn.decode import PackedBackbone

# Codes between two checks whether all streams have stopped; a check waits for the device.
CODES_PER_CHECK = 8


# Called every few codes with the codes so far, [N, codes]; returns which streams must stop now. [N] bool
StopCallback = Callable[[Tensor], Tensor]

# Graphs, each with its cache, that a generator keeps: for full batches, and for the rest at the end.
MAX_DECODE_GRAPHS = 2
# Caches have room for a multiple of so many codes, so that one serves utterances of many lengths.
CACHE_LENGTH_STEP = 256
StopCause = Literal["ended", "limit", "loop"]
# Shorter repetitions are speech: a long vowel, a silence, a stutter.
MIN_LOOP_SECONDS = 2.0
MAX_LOOP_PERIOD_SECONDS = 2.0
MIN_LOOP_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class GenerationPrompt:
    """One utterance to speak. What it is drawn with depends on its own seed, never on who is spoken beside it."""

    text_ids: Sequence[int]
    condition: Any
    seed: int = 0
    closed: Sequence[bool] | None = None
    """By text id: where an open gate is closed, since the text is of a base language; None: nowhere."""


@dataclass(frozen=True, slots=True)
class GeneratedCodes:
    """The codes of one utterance, without start and stop, and whether it came to its end on its own."""

    codes: list[int]
    stopped: bool


def generate_codes(
    model: SpeechModel, prompts: Sequence[GenerationPrompt], sampling: SamplingParams
) -> list[GeneratedCodes]:
    """Generate every prompt in one batch. To generate more than once, keep a `SpeechGenerator`."""
    return SpeechGenerator(model).speak(prompts, sampling)


class SpeechGenerator:
    """A model that generates again and again: it keeps packed weights, caches and captured graphs between calls.

    The model may be trained, and its adapter's gate opened or closed, between two calls. Memory is released with the
    generator itself.
    """

    def __init__(self, model: SpeechModel) -> None:
        self.model = model
        self._body: PackedBackbone | None = None
        self._graphs: dict[DecodeGraphKey, DecodeGraph] = {}
        self._places: list[int] = []

    @torch.no_grad()
    def speak(
        self, prompts: Sequence[GenerationPrompt], sampling: SamplingParams, watch: StopCallback | None = None
    ) -> list[GeneratedCodes]:
        """Generate every prompt. All run side by side until the last has stopped or has `max_codes` codes."""
        return DecodeSession(self.model, prompts, sampling, self).run(watch)

    def advance(
        self, prompts: Sequence[GenerationPrompt], sampling: SamplingParams, watch: StopCallback | None = None
    ) -> Iterator[Tensor]:
        """Generate every prompt, a few codes at a time: all codes so far, then stops. [N, codes]"""
        return DecodeSession(self.model, prompts, sampling, self).advance(watch)

    @property
    def graphs(self) -> list[DecodeGraph]:
        """The captured graphs that are kept, the last used at the end."""
        return list(self._graphs.values())

    def get_graph(self, kind: DecodeGraphKey, longest_prompt: int, max_codes: int) -> DecodeGraph | None:
        """A graph for streams like these, captured if there is none; None where only plain steps are possible."""
        model, dtype = self.model, get_decode_dtype(self.model)
        if model.device.type != "cuda":  # only there are fused kernels
            return None
        from voxgraft.nn.decode import supports_fused_decode

        if not supports_fused_decode(model.body, model.device, dtype):
            return None
        # Graphs hold the addresses of the tables around the backbone; the backbone itself they read from the
        # packed copy.
        inside = {id(parameter) for parameter in model.body.parameters()}
        other_parameters = (parameter for parameter in model.parameters() if id(parameter) not in inside)
        # A changed address (a model moved or reloaded) would make a captured graph read freed memory.
        addresses = [hash(dtype), *(parameter.data_ptr() for parameter in other_parameters)]
        if addresses != self._places:
            self._graphs.clear()
            self._body = None
        self._places = addresses
        from voxgraft.nn.decode import PackedBackbone

        try:
            if self._body is None:
                self._body = PackedBackbone(model.body, dtype)
            self._body.refresh(model.body)
            graph = self._graphs.pop(kind, None)
            needed = longest_prompt + round_up(max_codes, CODES_PER_CHECK)
            if graph is None or graph.length < needed or graph.max_codes < max_codes:
                room = min(round_up(max_codes, CACHE_LENGTH_STEP), model.spec.max_codes)
                length = round_up(longest_prompt, CACHE_LENGTH_STEP) + round_up(room, CODES_PER_CHECK)
                graph = None  # releases its cache before the larger one is allocated
                while len(self._graphs) >= MAX_DECODE_GRAPHS:
                    del self._graphs[next(iter(self._graphs))]  # dicts keep their order: the least recently used
                rows = kind.num_streams * (2 if kind.guided else 1)
                state = DecodeState.of(model, kind.num_streams, rows, length, room)
                graph = DecodeGraph(model, self._body, kind, state)
            self._graphs[kind] = graph
            return graph
        except torch.OutOfMemoryError:  # beside a training there may be no room for a second copy of the backbone
            self._body = None
            self._graphs.clear()
            return None


class DecodeSession:
    """N utterances that are being generated. Everything that a step touches stays on the device.

    Sessions of one generator share its caches: start a new one only when the last has finished.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: SpeechModel,
        prompts: Sequence[GenerationPrompt],
        sampling: SamplingParams,
        generator: SpeechGenerator | None = None,
    ) -> None:
        if not prompts:
            raise GraftError("packing", "no prompts", expected="at least one")
        spec = model.spec
        if sampling.max_codes > spec.max_codes:
            found = f"max_codes is {sampling.max_codes:,}"
            raise ConfigError(
                "sampling", found, expected=f"at most {spec.max_codes:,}; the model has no more positions"
            )
        if sampling.guidance > 0 and not spec.guided:
            found = f"guidance is {sampling.guidance:g}, but this model was not trained for guidance"
            raise ConfigError("sampling", found, expected="0")
        self.model, self.spec, self.sampling = model, spec, sampling
        self.num_streams = len(prompts)
        self._first_position = code_position(spec, 0, stock=sampling.stock)
        # With guidance every prompt has a second row without text, after all rows with text.
        twice = 2 if sampling.guidance > 0 else 1
        sequences = [
            build_sequence(spec, prompt.text_ids, closed=prompt.closed, stock=sampling.stock) for prompt in prompts
        ] * twice
        conditions = [prompt.condition for prompt in prompts] * twice
        silent = [row >= len(prompts) for row in range(len(sequences))]
        batch = pack_batch(model, sequences, conditions, silent=silent)
        longest = batch.packing.longest
        self.graph: DecodeGraph | None = None
        if generator is not None:
            kind = DecodeGraphKey(
                num_streams=self.num_streams,
                guided=sampling.guidance > 0,
                stochastic=sampling.temperature > 0,
                top_k=sampling.top_k > 0,
                top_p=sampling.top_p < 1,
                readable=sampling.readable,
                first_position=self._first_position,
            )
            self.graph = generator.get_graph(kind, longest, sampling.max_codes)
        if self.graph is not None:
            self.graph.set(sampling)
            self.state = self.graph.state
        else:
            length = longest + sampling.max_codes
            self.state = DecodeState.of(model, self.num_streams, len(sequences), length, sampling.max_codes)
        self.state.begin(spec)
        # All prompts in one packed pass fill the cache; later steps add one position to every row.
        context = PrefillContext(batch.packing, self.state.cache)
        hidden = compute_hidden_states(model, batch, context)
        context.finish()
        self.state.logits.copy_(model.speech_logits(hidden[batch.packing.last]))
        ids = torch.arange(self.state.logits.shape[1], device=model.device)
        self._unreadable = (ids >= spec.num_codes) & (ids != spec.speech_stop)
        # One generator per stream: what is drawn does not depend on the batch that a prompt is in.
        self._generators = [torch.Generator(model.device).manual_seed(prompt.seed) for prompt in prompts]

    @property
    def logits(self) -> Tensor:
        """The head's output for every row. [R, V]"""
        return self.state.logits

    @property
    def codes(self) -> Tensor:
        """The codes so far, then stops. [N, most codes]"""
        return self.state.codes

    @property
    def num_generated(self) -> Tensor:
        """How many codes that is. [N]"""
        return self.state.num_generated

    def run(self, watch: StopCallback | None = None) -> list[GeneratedCodes]:
        """Generate to the end. A stream that `watch` stops counts as stopped; the caller knows which those are."""
        for _ in self.advance(watch):
            pass
        # All streams have made the same number of steps, those that had stopped too.
        num_codes = min(int(self.num_generated[0]), self.sampling.max_codes)
        results, stop = [], self.spec.speech_stop
        for row in self.codes[:, :num_codes].tolist():
            stopped = stop in row
            results.append(GeneratedCodes(row[: row.index(stop)] if stopped else row, stopped))
        return results

    @torch.no_grad()
    def advance(self, watch: StopCallback | None = None) -> Iterator[Tensor]:
        """Generate a few codes of every stream at a time until all have stopped: all codes so far. [N, codes]"""
        limit = self.sampling.max_codes
        for first in range(0, limit, CODES_PER_CHECK):
            if self.graph is not None:
                self._draw_noise(self.graph.noise)
                self.graph.advance()
            else:
                noise = self.logits.new_empty(self.num_streams, CODES_PER_CHECK, self.logits.shape[1])
                self._draw_noise(noise)
                for at in range(min(CODES_PER_CHECK, limit - first)):
                    self.sample_next_codes(noise[:, at] if self.sampling.temperature > 0 else None)
                    if first + at + 1 < limit:  # nothing comes after the last code
                        self.feed_codes()
            codes = self.codes[:, : min(first + CODES_PER_CHECK, limit)]
            if watch is not None:
                self.state.stopped.logical_or_(watch(codes))
            yield codes
            if bool(self.state.stopped.all()):
                break

    def penalized_logits(self) -> Tensor:
        """What the next codes are drawn from, before temperature and cuts. [N, V]"""
        logits = self.logits
        if self.sampling.guidance > 0:
            logits = apply_guidance(logits, self.sampling.guidance)
        logits = apply_repetition_penalty(logits, self.state.heard, self.sampling.repetition_penalty)
        return logits.masked_fill(self._unreadable, -torch.inf) if self.sampling.readable else logits

    def sample_next_codes(self, noise: Tensor | None) -> None:
        """Sample the next code of every stream; a stream that has stopped stays stopped."""
        state = self.state
        chosen = sample_codes(filter_logits(self.penalized_logits(), self.sampling), noise)  # [N]
        chosen = torch.where(state.stopped, self.spec.speech_stop, chosen)
        state.codes.scatter_(1, state.num_generated[:, None], chosen[:, None])
        state.heard.scatter_(1, chosen[:, None], True)
        state.stopped.logical_or_(chosen == self.spec.speech_stop)
        state.num_generated.add_(1)

    def feed_codes(self) -> None:
        """Run the model on the codes just sampled, which gives the logits of the next."""
        state = self.state
        last = state.num_generated - 1  # [N]
        ids = state.codes.gather(1, last[:, None])[:, 0]
        vectors = self.model.embed_speech(ids, last + self._first_position)  # [N, W]
        step = DecodeContext(state.cache)
        hidden = self.model.body(vectors.repeat(len(state.logits) // self.num_streams, 1), step)
        step.finish()
        state.logits.copy_(self.model.speech_logits(hidden))

    def _draw_noise(self, noise: Tensor) -> None:
        """Exponential draws for the next codes, each stream's from its own seed. [N, count, V]"""
        # Always as many, also where fewer codes are left: the codes do not depend on `max_codes`.
        if self.sampling.temperature > 0:
            for own, generator in zip(noise, self._generators, strict=True):
                own.exponential_(generator=generator)


def find_loop_cut(codes: Sequence[int], code_hz: float) -> int | None:
    """Where codes that end in a loop are cut: behind its first round. None if they end in none."""
    least = round(MIN_LOOP_SECONDS * code_hz)
    # Shortest period first: a loop of 5 codes is also one of 10.
    for period in range(1, round(MAX_LOOP_PERIOD_SECONDS * code_hz) + 1):
        needed = max(least, MIN_LOOP_ROUNDS * period)
        if len(codes) < needed:
            return None
        if codes[-1] == codes[-1 - period] and list(codes[-needed + period :]) == list(codes[-needed:-period]):
            start = len(codes) - needed
            while start > 0 and codes[start - 1] == codes[start - 1 + period]:
                start -= 1
            return start + period
    return None


class StoppingCriteria:
    """Stops streams that loop or reach their limit, and remembers why. For one call of `SpeechGenerator.speak`."""

    def __init__(self, limits: Sequence[int], stop_id: int, code_hz: float) -> None:
        self.limits, self.stop_id, self.code_hz = tuple(limits), stop_id, code_hz
        self.stopped: dict[int, StopCause] = {}
        self._ended: set[int] = set()

    def __call__(self, codes: Tensor) -> Tensor:
        """[N, codes so far] -> [N] who stops now"""
        for row, own in enumerate(codes.tolist()):
            if row in self.stopped or row in self._ended:
                continue
            if self.stop_id in own:
                self._ended.add(row)
            elif find_loop_cut(own, self.code_hz) is not None:
                self.stopped[row] = "loop"
            elif len(own) >= self.limits[row]:
                self.stopped[row] = "limit"
        return torch.tensor([row in self.stopped for row in range(len(codes))], device=codes.device)

    def outcome(self, row: int, codes: Sequence[int], *, by_itself: bool) -> tuple[list[int], StopCause]:
        """What is kept of an utterance, and how it came to its end."""
        cut = find_loop_cut(codes, self.code_hz)
        if cut is not None:
            return list(codes[:cut]), "loop"
        limit = self.limits[row]
        if row in self.stopped or len(codes) > limit or not by_itself:
            return list(codes[:limit]), "limit"
        return list(codes), "ended"


def get_decode_dtype(model: SpeechModel) -> torch.dtype:
    """What the backbone computes in: its weights' own, or what autocast makes of it."""
    kind = model.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return next(model.body.parameters()).dtype


@dataclass(frozen=True, slots=True)
class DecodeState:
    """The next codes are sampled from `logits`; `codes` holds `num_generated` codes of each stream."""

    cache: KVCache
    logits: Tensor  # [R, V] float32, of every row, as the head gives them
    heard: Tensor  # [N, V] bool
    codes: Tensor  # [N, most codes]
    num_generated: Tensor  # [N]
    stopped: Tensor  # [N] bool

    @classmethod
    def of(cls, model: SpeechModel, num_streams: int, num_rows: int, length: int, max_codes: int) -> DecodeState:
        """Room for rows of up to `length` positions."""
        body, device, dtype = model.body, model.device, get_decode_dtype(model)
        nothing = torch.zeros(1, body.num_heads * body.head_width, device=device, dtype=dtype)
        with torch.no_grad():
            num_speech_rows = model.speech_logits(nothing).shape[-1]
        return cls(
            cache=KVCache((body.num_layers, num_rows, body.num_heads, length, body.head_width), device, dtype),
            logits=torch.zeros(num_rows, num_speech_rows, device=device),
            heard=torch.zeros(num_streams, num_speech_rows, dtype=torch.bool, device=device),
            codes=torch.zeros(num_streams, max_codes, dtype=torch.long, device=device),
            num_generated=torch.zeros(num_streams, dtype=torch.long, device=device),
            stopped=torch.zeros(num_streams, dtype=torch.bool, device=device),
        )

    def begin(self, spec: SequenceSpec) -> None:
        """Nothing is spoken yet."""
        self.cache.filled.zero_()
        self.codes.fill_(spec.speech_stop)
        self.heard.zero_()
        self.heard[:, list(spec.initial_penalized_codes)] = True
        self.num_generated.zero_()
        self.stopped.zero_()


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


class DecodeGraph:
    """A CUDA graph of several steps over a state of its own. Capturing runs a step, so begin the state afterwards."""

    def __init__(self, model: SpeechModel, body: PackedBackbone, kind: DecodeGraphKey, state: DecodeState) -> None:
        self.kind, self.state = kind, state
        self.length, self.max_codes = state.cache.length, state.codes.shape[1]
        device, num_speech_rows = state.logits.device, state.logits.shape[1]
        self.noise = torch.ones(kind.num_streams, CODES_PER_CHECK, num_speech_rows, device=device)
        # On the device, so that other numbers do not need another graph.
        self._settings = torch.ones(6, device=device)
        self._ids = torch.zeros_like(state.num_generated)
        self._positions = torch.zeros_like(state.num_generated)
        from voxgraft.nn.decode import FusedDecodeStep

        self._step = FusedDecodeStep(body, state.cache)
        # A first step outside the graph compiles kernels and initializes libraries, which a capture must not do.
        state.begin(model.spec)
        self._once(model)
        self._graph, _ = capture_graph(lambda: self._run_steps(model))

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
        """`CODES_PER_CHECK` more codes of every stream, with the noise that is in `noise`."""
        self._graph.replay()

    def _run_steps(self, model: SpeechModel) -> None:
        for _ in range(CODES_PER_CHECK):
            self._once(model)

    def _once(self, model: SpeechModel) -> None:
        """One step: sample a code of every stream from the logits, feed it, and get the next logits."""
        from voxgraft.nn.decode_kernels import sample_code_kernel

        state, kind, spec = self.state, self.kind, model.spec
        num_speech_rows = state.logits.shape[1]
        kernel: Any = sample_code_kernel[(kind.num_streams,)]
        kernel(
            state.logits, state.heard.view(torch.uint8), self.noise, self._settings, state.codes, state.num_generated,
            state.stopped.view(torch.uint8), state.cache.filled, self._ids, self._positions, kind.num_streams,
            self.max_codes, kind.first_position, num_speech_rows, spec.num_codes, spec.speech_stop, kind.readable,
            kind.guided, kind.stochastic, kind.top_k, kind.top_p, CODES_PER_CHECK,
            1 << (num_speech_rows - 1).bit_length(), num_warps=16,
        )  # fmt: skip
        hidden = self._step(model.embed_speech(self._ids, self._positions))  # [R, W]
        self.state.logits.copy_(model.speech_logits(hidden))
