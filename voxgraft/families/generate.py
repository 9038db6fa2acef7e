"""Speaking: from prompts to speech codes, many utterances at once, with a static cache.

Family-neutral: the model says how ids become vectors and vectors logits. On CUDA in half precision a captured graph
does the work (`families/fast_loop.py`); anywhere else the plain steps here do. Needs torch only.

Shapes: N streams, R rows (N, or 2 N with guidance: those with text first), V speech rows, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from voxgraft.errors import ConfigError, GraftError
from voxgraft.families.fast_loop import FastLoop, LoopKind
from voxgraft.families.layout import lay_out, spoken_position
from voxgraft.families.model import PackedBatch, SpeechModel, hidden_states, pack
from voxgraft.families.stream_state import LOOK_EVERY, StreamState, speaking_dtype
from voxgraft.nn.attention import Prefill, Step
from voxgraft.nn.fast_step import can_step_fast
from voxgraft.nn.packed_body import PackedBody
from voxgraft.nn.sampling import Sampling, draw, guided, penalised, scores

__all__ = ["Prompt", "Speaker", "Spoken", "Streams", "Watch", "generate"]

Watch = Callable[[Tensor], Tensor]
"""Sees what was spoken so far, [N, codes], every few codes, and says who shall stop now. [N] bool"""

MAX_LOOPS = 2
"""Graphs, each with its cache, that a speaker keeps: full batches, and the rest at the end."""
ROOM = 256
"""Caches have room for a multiple of so many codes, so that one serves utterances of many lengths."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One utterance to speak. What it is drawn with depends on its own seed, never on who is spoken beside it."""

    text_ids: Sequence[int]
    condition: Any
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Spoken:
    """The codes of one utterance, without start and stop, and whether it came to its end by itself."""

    codes: list[int]
    stopped: bool


def generate(model: SpeechModel, prompts: Sequence[Prompt], sampling: Sampling) -> list[Spoken]:
    """Speak every prompt, side by side. Who speaks more than once keeps a `Speaker`."""
    return Speaker(model).speak(prompts, sampling)


class Speaker:
    """A model that is ready to speak again and again: it keeps packed weights, caches and captured graphs.

    The model may be trained, and its adapter's gate opened or closed, between two calls. Memory is given back with the
    speaker itself.
    """

    def __init__(self, model: SpeechModel) -> None:
        self.model = model
        self._body: PackedBody | None = None
        self._loops: dict[LoopKind, FastLoop] = {}
        self._places: list[int] = []

    @torch.no_grad()
    def speak(self, prompts: Sequence[Prompt], sampling: Sampling, watch: Watch | None = None) -> list[Spoken]:
        """Speak every prompt. All run side by side until the last has stopped or `max_codes` are spoken."""
        return Streams(self.model, prompts, sampling, self).run(watch)

    @property
    def loops(self) -> list[FastLoop]:
        """The captured graphs that are kept, the last used at the end."""
        return list(self._loops.values())

    def loop(self, kind: LoopKind, longest_prompt: int, max_codes: int) -> FastLoop | None:
        """A graph for streams like these, captured if there is none; None where only plain steps can be taken."""
        model, dtype = self.model, speaking_dtype(self.model)
        if not can_step_fast(model.body, model.device, dtype):
            return None
        self._forget_if_moved(dtype)
        try:
            return self._fast(kind, longest_prompt, max_codes)
        except torch.OutOfMemoryError:  # beside a training there may be no room for a second copy of the body
            self._body = None
            self._loops.clear()
            return None

    def _fast(self, kind: LoopKind, longest_prompt: int, max_codes: int) -> FastLoop:
        model, dtype = self.model, speaking_dtype(self.model)
        if self._body is None:
            self._body = PackedBody(model.body, dtype)
        self._body.refresh(model.body)
        found = self._loops.pop(kind, None)
        needed = longest_prompt + _rounded_up(max_codes, LOOK_EVERY)
        if found is None or found.length < needed or found.max_codes < max_codes:
            room = min(_rounded_up(max_codes, ROOM), model.frame.max_codes)
            length = _rounded_up(longest_prompt, ROOM) + _rounded_up(room, LOOK_EVERY)
            found = None  # its cache makes way for the larger one
            while len(self._loops) >= MAX_LOOPS:
                del self._loops[next(iter(self._loops))]
            rows = kind.num_streams * (2 if kind.guided else 1)
            state = StreamState.of(model, kind.num_streams, rows, length, room)
            found = FastLoop(model, self._body, kind, state)
        self._loops[kind] = found
        return found

    def _forget_if_moved(self, dtype: torch.dtype) -> None:
        """Graphs hold the places of the tables around the body; the body itself they read from the packed copy."""
        inside = {id(parameter) for parameter in self.model.body.parameters()}
        around = (parameter for parameter in self.model.parameters() if id(parameter) not in inside)
        places = [hash(dtype), *(parameter.data_ptr() for parameter in around)]
        if places != self._places:
            self._loops.clear()
            self._body = None
        self._places = places


class Streams:
    """N utterances in the course of being spoken. Everything that a step touches stays on the device.

    Those of one speaker share its room: begin new ones when the old are done.
    """

    @torch.no_grad()
    def __init__(
        self, model: SpeechModel, prompts: Sequence[Prompt], sampling: Sampling, speaker: Speaker | None = None
    ) -> None:
        if not prompts:
            raise GraftError("packing", "no prompts", expected="at least one")
        frame = model.frame
        if sampling.max_codes > frame.max_codes:
            found = f"max_codes is {sampling.max_codes:,}"
            raise ConfigError("sampling", found, expected=f"at most {frame.max_codes:,}, as the model has positions")
        if sampling.guidance > 0 and not frame.guided:
            found = f"guidance is {sampling.guidance:g}, and this model was never taught to read without text"
            raise ConfigError("sampling", found, expected="0")
        self.model, self.frame, self.sampling = model, frame, sampling
        self.num_streams = len(prompts)
        self._first_position = spoken_position(frame, 0, stock=sampling.stock)
        batch = self._batch(prompts)
        self.loop, self.state = self._room(batch.packing.longest, speaker)
        self.state.begin(frame)
        self._prefill(batch)
        ids = torch.arange(self.state.logits.shape[1], device=model.device)
        self._unreadable = (ids >= frame.num_codes) & (ids != frame.speech_stop)
        self._generators = [torch.Generator(model.device).manual_seed(prompt.seed) for prompt in prompts]

    @property
    def logits(self) -> Tensor:
        """What the head gave for every row. [R, V]"""
        return self.state.logits

    @property
    def codes(self) -> Tensor:
        """What was spoken so far, then stops. [N, most codes]"""
        return self.state.codes

    @property
    def num_spoken(self) -> Tensor:
        """How many codes that is. [N]"""
        return self.state.num_spoken

    @torch.no_grad()
    def run(self, watch: Watch | None = None) -> list[Spoken]:
        """Speak to the end. Whoever `watch` stops counts as stopped: who asked for it knows whom."""
        limit = self.sampling.max_codes
        for first in range(0, limit, LOOK_EVERY):
            if self.loop is None:
                self._plain_steps(limit - first)
            else:
                self._draw_noise(self.loop.noise)
                self.loop.advance()
            if watch is not None:
                self.state.stopped.logical_or_(watch(self.codes[:, : min(first + LOOK_EVERY, limit)]))
            if bool(self.state.stopped.all()):
                break
        return self._result()

    def penalised(self) -> Tensor:
        """What the next codes are drawn from, before temperature and cuts. [N, V]"""
        logits = self.logits
        if self.sampling.guidance > 0:
            logits = guided(logits, self.sampling.guidance)
        logits = penalised(logits, self.state.heard, self.sampling.repetition_penalty)
        return logits.masked_fill(self._unreadable, -torch.inf) if self.sampling.readable else logits

    def speak(self, noise: Tensor | None) -> None:
        """Draw the next code of every stream; a stream that has stopped stays so."""
        state = self.state
        chosen = draw(scores(self.penalised(), self.sampling), noise)  # [N]
        chosen = torch.where(state.stopped, self.frame.speech_stop, chosen)
        state.codes.scatter_(1, state.num_spoken[:, None], chosen[:, None])
        state.heard.scatter_(1, chosen[:, None], True)
        state.stopped.logical_or_(chosen == self.frame.speech_stop)
        state.num_spoken.add_(1)

    def listen(self) -> None:
        """Feed the codes just drawn, and get the logits of the next."""
        state = self.state
        last = state.num_spoken - 1  # [N]
        ids = state.codes.gather(1, last[:, None])[:, 0]
        vectors = self.model.embed_speech(ids, last + self._first_position)  # [N, W]
        step = Step(state.cache)
        hidden = self.model.body(vectors.repeat(len(state.logits) // self.num_streams, 1), step)
        step.finish()
        state.logits.copy_(self.model.speech_logits(hidden))

    def _batch(self, prompts: Sequence[Prompt]) -> PackedBatch:
        """Conditioning, text and start of every row."""
        twice = 2 if self.sampling.guidance > 0 else 1
        layouts = [lay_out(self.frame, prompt.text_ids, stock=self.sampling.stock) for prompt in prompts] * twice
        conditions = [prompt.condition for prompt in prompts] * twice
        silent = [row >= len(prompts) for row in range(len(layouts))]
        return pack(self.model, layouts, conditions, silent=silent)

    def _room(self, longest: int, speaker: Speaker | None) -> tuple[FastLoop | None, StreamState]:
        sampling = self.sampling
        if speaker is not None:
            kind = LoopKind.of(self.num_streams, sampling, self._first_position)
            loop = speaker.loop(kind, longest, sampling.max_codes)
            if loop is not None:
                loop.set(sampling)
                return loop, loop.state
        rows = self.num_streams * (2 if sampling.guidance > 0 else 1)
        length = longest + sampling.max_codes
        return None, StreamState.of(self.model, self.num_streams, rows, length, sampling.max_codes)

    def _prefill(self, batch: PackedBatch) -> None:
        context = Prefill(batch.packing, self.state.cache)
        hidden = hidden_states(self.model, batch, context)
        context.finish()
        self.state.logits.copy_(self.model.speech_logits(hidden[batch.packing.last]))

    def _plain_steps(self, num_left: int) -> None:
        """Speak and feed up to `LOOK_EVERY` codes; the very last is not fed, since nothing comes after it."""
        noise = self.logits.new_empty(self.num_streams, LOOK_EVERY, self.logits.shape[1])
        self._draw_noise(noise)
        for at in range(min(LOOK_EVERY, num_left)):
            self.speak(noise[:, at] if self.sampling.temperature > 0 else None)
            if at + 1 < num_left:
                self.listen()

    def _draw_noise(self, noise: Tensor) -> None:
        """Exponential draws for the next codes, always as many, each stream's from its own seed. [N, count, V]"""
        if self.sampling.temperature > 0:
            for own, generator in zip(noise, self._generators, strict=True):
                own.exponential_(generator=generator)

    def _result(self) -> list[Spoken]:
        num_spoken = min(int(self.num_spoken[0]), self.sampling.max_codes)
        stop, spoken = self.frame.speech_stop, []
        for row in self.codes[:, :num_spoken].tolist():
            stopped = stop in row
            spoken.append(Spoken(row[: row.index(stop)] if stopped else row, stopped))
        return spoken


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
