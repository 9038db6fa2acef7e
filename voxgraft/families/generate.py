"""Speaking: from prompts to speech codes, many utterances at once, with a static cache.

Family-neutral: the model says how ids become vectors and vectors logits. Needs torch only.

Shapes: N streams, R rows (N, or 2 N with guidance: those with text first), V speech rows, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from voxgraft.errors import ConfigError, GraftError
from voxgraft.families.layout import lay_out, spoken_position
from voxgraft.families.model import SpeechModel, hidden_states, pack
from voxgraft.nn.attention import Cache, Prefill, Step
from voxgraft.nn.sampling import Sampling, draw, guided, penalised, scores

__all__ = ["Prompt", "Spoken", "Streams", "generate"]

LOOK_EVERY = 16
"""Codes between two looks at whether everybody has stopped; a look waits for the device."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One utterance to speak. Its codes depend on its own seed, never on who is spoken beside it."""

    text_ids: Sequence[int]
    condition: Any
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Spoken:
    """The codes of one utterance, without start and stop, and whether it came to its end by itself."""

    codes: list[int]
    stopped: bool


@torch.no_grad()
def generate(model: SpeechModel, prompts: Sequence[Prompt], sampling: Sampling) -> list[Spoken]:
    """Speak every prompt. All run side by side until the last has stopped or `max_codes` are spoken."""
    return Streams(model, prompts, sampling).run()


class Streams:
    """N utterances in the course of being spoken. Everything that a step touches stays on the device."""

    def __init__(self, model: SpeechModel, prompts: Sequence[Prompt], sampling: Sampling) -> None:
        if not prompts:
            raise GraftError("packing", "no prompts", expected="at least one")
        frame = model.frame
        if sampling.max_codes > frame.max_codes:
            found = f"max_codes is {sampling.max_codes:,}"
            raise ConfigError("sampling", found, expected=f"at most {frame.max_codes:,}, as the model has positions")
        self.model, self.frame, self.sampling = model, frame, sampling
        self.num_streams, device = len(prompts), model.device
        self.logits = self._prefill(prompts)  # [R, V] of every row, as the head gives them
        num_rows = self.logits.shape[-1]
        self.heard = torch.zeros(self.num_streams, num_rows, dtype=torch.bool, device=device)
        self.heard[:, list(frame.heard_before)] = True
        self.codes = torch.full((self.num_streams, sampling.max_codes), frame.speech_stop, device=device)
        self.num_spoken = torch.zeros(1, dtype=torch.long, device=device)
        self.stopped = torch.zeros(self.num_streams, dtype=torch.bool, device=device)
        ids = torch.arange(num_rows, device=device)
        self._unreadable = (ids >= frame.num_codes) & (ids != frame.speech_stop)
        self._generators = [torch.Generator(device).manual_seed(prompt.seed) for prompt in prompts]

    def run(self) -> list[Spoken]:
        """Speak to the end."""
        limit = self.sampling.max_codes
        for first in range(0, limit, LOOK_EVERY):
            count = min(LOOK_EVERY, limit - first)
            noise = self._noise(count)
            for at in range(count):
                self.speak(None if noise is None else noise[at])
                if first + at + 1 < limit:
                    self.listen()
            if bool(self.stopped.all()):
                break
        return self._result()

    def penalised(self) -> Tensor:
        """What the next codes are drawn from, before temperature and cuts. [N, V]"""
        logits = self.logits.float()
        if self.sampling.guidance > 0:
            logits = guided(logits, self.sampling.guidance)
        logits = penalised(logits, self.heard, self.sampling.repetition_penalty)
        return logits.masked_fill(self._unreadable, -torch.inf) if self.sampling.readable else logits

    def speak(self, noise: Tensor | None) -> None:
        """Draw the next code of every stream; a stream that has stopped stays so."""
        chosen = draw(scores(self.penalised(), self.sampling), noise)  # [N]
        chosen = torch.where(self.stopped, self.frame.speech_stop, chosen)
        self.codes.index_copy_(1, self.num_spoken, chosen[:, None])
        self.heard.scatter_(1, chosen[:, None], True)
        self.stopped |= chosen == self.frame.speech_stop
        self.num_spoken += 1

    def listen(self) -> None:
        """Feed the codes just drawn, and get the logits of the next."""
        last = self.num_spoken - 1
        first_position = spoken_position(self.frame, 0, stock=self.sampling.stock)
        vectors = self.model.embed_speech(self.codes.index_select(1, last)[:, 0], last + first_position)  # [N, W]
        step = Step(self.cache)
        hidden = self.model.body(vectors.repeat(len(self.logits) // self.num_streams, 1), step)
        step.finish()
        self.logits = self.model.speech_logits(hidden)

    def _prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Conditioning, text and start of every row; fills the cache."""
        twice = 2 if self.sampling.guidance > 0 else 1
        layouts = [lay_out(self.frame, prompt.text_ids, stock=self.sampling.stock) for prompt in prompts] * twice
        conditions = [prompt.condition for prompt in prompts] * twice
        silent = [row >= len(prompts) for row in range(len(layouts))]
        batch = pack(self.model, layouts, conditions, silent=silent)
        body, length = self.model.body, batch.packing.longest + self.sampling.max_codes
        shape = (body.num_layers, len(layouts), body.num_heads, length, body.head_width)
        self.cache = Cache(shape, self.model.device, next(body.parameters()).dtype)
        context = Prefill(batch.packing, self.cache)
        hidden = hidden_states(self.model, batch, context)
        context.finish()
        return self.model.speech_logits(hidden[batch.packing.last])

    def _noise(self, count: int) -> Tensor | None:
        """Exponential draws for the next codes; each stream's come from its own seed. [count, N, V]"""
        if self.sampling.temperature == 0:
            return None
        shape = (count, self.logits.shape[-1])
        drawn = [
            torch.empty(shape, device=self.model.device).exponential_(generator=generator)
            for generator in self._generators
        ]
        return torch.stack(drawn, 1)

    def _result(self) -> list[Spoken]:
        spoken = []
        for row, stopped in zip(self.codes[:, : int(self.num_spoken)].tolist(), self.stopped.tolist(), strict=True):
            end = row.index(self.frame.speech_stop) if stopped else len(row)
            spoken.append(Spoken(row[:end], stopped))
        return spoken
