"""The synthesis engine: requests to speech codes, in batches. `speak`, `evaluate`, replay and samples all use it.

It knows no text, no settings and no sentences: callers decide limits, seeds, voices and what goes wrong with a text.
What an utterance is drawn with depends on its own seed. Which requests share a batch depends on the requests alone and
never on the model, so that two models can be compared code for code. Two languages never share a batch, because the
gate of an adapter is set for a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from voxgraft.core import progress
from voxgraft.core.rng import hash_int
from voxgraft.models.generate import GenerationPrompt, SpeechGenerator, StopCause, StoppingCriteria
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.sampling import SamplingParams

BATCH_SIZE = 32
MAX_PAUSE_SECONDS, MAX_SECONDS_PER_CHARACTER = 2.0, 0.4
"""Slow speech takes less than this; a measured sentence that takes longer is cut off."""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """One utterance to generate."""

    text_ids: Sequence[int]
    condition: Any
    """`family.condition(clip)`, with the speaking style applied."""
    seed: int
    max_codes: int
    language: str
    """Selects the gate; requests of one language share batches."""
    sort_key: tuple[Any, ...]
    """Neighbours in this order share a batch: those that end together waste no steps."""


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """The codes of one utterance, cut to its limit or behind the first round of a loop, and why it ended."""

    codes: tuple[int, ...]
    stop: StopCause

    @property
    def ended(self) -> bool:
        """Whether the model itself ended the utterance within its limit."""
        return self.stop == "ended"


class SynthesisEngine:
    """A model that generates requests batch by batch.

    It keeps packed weights, caches and CUDA graphs; all of that memory is freed with the engine.
    """

    def __init__(
        self,
        model: SpeechModel,
        sampling: SamplingParams,
        *,
        set_gate: Callable[[str], AbstractContextManager[None]] = lambda _language: nullcontext(),
        batch_size: int = BATCH_SIZE,
        loop_code_hz: float | None = None,
    ) -> None:
        """`loop_code_hz` is the code rate of a model whose loops are cut off; without it loops are generated too."""
        self._generator, self._sampling = SpeechGenerator(model), sampling
        self._set_gate, self._batch_size, self._loop_code_hz = set_gate, batch_size, loop_code_hz

    def run(self, requests: Sequence[SynthesisRequest], label: str) -> list[SynthesisResult]:
        """Generate all requests; the results are in the order of the requests."""
        found: dict[int, SynthesisResult] = {}
        with progress.progress_task(label, len(requests)) as advance:
            for batch in self.iterate(requests):
                found.update(batch)
                advance(len(batch))
        return [found[position] for position in range(len(requests))]

    def iterate(self, requests: Sequence[SynthesisRequest]) -> Iterator[list[tuple[int, SynthesisResult]]]:
        """Generate batch by batch: the position of each request with its result."""
        for language in dict.fromkeys(one.language for one in requests):
            own = [at for at, one in enumerate(requests) if one.language == language]
            own.sort(key=lambda at: requests[at].sort_key)
            for first in range(0, len(own), self._batch_size):
                positions = own[first : first + self._batch_size]
                batch = [requests[at] for at in positions]
                with self._set_gate(language):
                    results = self._generate(batch)
                yield list(zip(positions, results, strict=True))

    def _generate(self, batch: Sequence[SynthesisRequest]) -> list[SynthesisResult]:
        prompts = [GenerationPrompt(one.text_ids, one.condition, one.seed) for one in batch]
        sampling = replace(self._sampling, max_codes=max(one.max_codes for one in batch))
        frame = self._generator.model.frame
        if self._loop_code_hz is None:
            results = []
            for one, spoken in zip(batch, self._generator.speak(prompts, sampling), strict=True):
                # The batch runs up to its longest limit, so an utterance can end behind its own.
                ended = spoken.stopped and len(spoken.codes) <= one.max_codes
                results.append(SynthesisResult(tuple(spoken.codes[: one.max_codes]), "ended" if ended else "limit"))
            return results
        criteria = StoppingCriteria([one.max_codes for one in batch], frame.speech_stop, self._loop_code_hz)
        results = []
        for row, spoken in enumerate(self._generator.speak(prompts, sampling, criteria)):
            codes, stop = criteria.outcome(row, spoken.codes, by_itself=spoken.stopped)
            assert not sampling.readable or all(0 <= code < frame.num_codes for code in codes)
            results.append(SynthesisResult(tuple(codes), stop))
        return results


def draw_seed(purpose: str, *parts: int | str) -> int:
    """The seed of one utterance, a function of its purpose and of what identifies it. torch takes 63 bits."""
    return hash_int(purpose, *parts) >> 1


def limit_codes(seconds: float, code_hz: float, most: int) -> int:
    """The number of codes that so many seconds take: at least 1, at most `most`."""
    return min(max(1, round(seconds * code_hz)), most)


def max_sentence_seconds(text: str) -> float:
    """The longest that a sentence may take while it is measured."""
    return MAX_PAUSE_SECONDS + MAX_SECONDS_PER_CHARACTER * len(text)
