"""Sentences to speech codes, many at once; the same voice and the same draws for every system, so that they compare.

What is spoken beside what does not depend on the system either: two systems that compute alike say the same codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from voxgraft import progress
from voxgraft.corpus import chance
from voxgraft.evaluating.sentences import EvalSentence
from voxgraft.evaluating.systems import SpeakingModel
from voxgraft.families.generate import GenerationPrompt, SpeechGenerator
from voxgraft.training.replay import ReferenceVoice
from voxgraft.training.samples import MAX_PAUSE_SECONDS, MAX_SECONDS_PER_CHARACTER

__all__ = ["SpokenSentence", "synthesize_sentences"]

SYNTHESIS_BATCH_SIZE = 32
"""Utterances that are spoken at once."""


@dataclass(frozen=True, slots=True)
class SpokenSentence:
    """One sentence as one system said it. Without codes it could not be said at all, and `why` tells."""

    sentence: EvalSentence
    voice: ReferenceVoice
    codes: tuple[int, ...] | None
    stopped: bool
    """Came to its end by itself, before its limit."""
    seconds: float
    why: str = ""
    code_hz: float = 25.0
    ids: tuple[int, ...] = ()
    """Text tokens that the model was given."""

    @property
    def is_runaway(self) -> bool:
        return self.codes is not None and not self.stopped


@dataclass(frozen=True, slots=True)
class _SentenceRequest:
    """One sentence on its way."""

    place: int
    sentence: EvalSentence
    voice: ReferenceVoice
    ids: tuple[int, ...]
    max_codes: int
    seed: int
    why: str
    """Why it cannot be said; empty where it can."""


def synthesize_sentences(
    system: SpeakingModel, sentences: Sequence[EvalSentence], voices: Sequence[ReferenceVoice], seed: int, who: str
) -> list[SpokenSentence]:
    """Every sentence, in its order; the voices take turns. All must be of one language."""
    every = [_build_request(system, at, one, voices[at % len(voices)], seed) for at, one in enumerate(sentences)]
    said = {
        one.place: SpokenSentence(one.sentence, one.voice, None, False, 0.0, one.why, ids=one.ids)
        for one in every
        if one.why
    }
    asked = [one for one in every if not one.why]
    asked.sort(key=lambda one: (len(one.sentence.text), one.place))  # who speaks together ends together
    speaker = SpeechGenerator(system.model)
    with progress.progress_task(f"{who} speaks", len(asked)) as advance:
        for first in range(0, len(asked), SYNTHESIS_BATCH_SIZE):
            group = asked[first : first + SYNTHESIS_BATCH_SIZE]
            said |= _synthesize_batch(system, speaker, group)
            advance(len(group))
    return [said[place] for place in range(len(sentences))]


def _build_request(
    system: SpeakingModel, place: int, sentence: EvalSentence, voice: ReferenceVoice, seed: int
) -> _SentenceRequest:
    ids = tuple(system.ids(sentence.text, sentence.language))
    stock = system.family.stock_sampling()
    seconds = MAX_PAUSE_SECONDS + MAX_SECONDS_PER_CHARACTER * len(sentence.text)
    limit = min(round(seconds * system.family.code_hz), stock.max_codes, system.model.frame.max_codes)
    drawn = chance.hash_int("evaluate", seed, sentence.language, sentence.text) >> 1  # torch takes 63 bits
    return _SentenceRequest(place, sentence, voice, ids, limit, drawn, _why_unspeakable(system, ids))


def _synthesize_batch(
    system: SpeakingModel, speaker: SpeechGenerator, group: Sequence[_SentenceRequest]
) -> dict[int, SpokenSentence]:
    longest = max(one.max_codes for one in group)
    sampling = replace(system.family.stock_sampling(), max_codes=longest)
    prompts = [GenerationPrompt(one.ids, system.family.condition(one.voice.clip), one.seed) for one in group]
    with system.set_gate_for(group[0].sentence.language):
        spoken = speaker.speak(prompts, sampling)
    found = {}
    for one, heard in zip(group, spoken, strict=True):
        # A neighbour may have had more time: whoever went past its own limit has run away.
        stopped = heard.stopped and len(heard.codes) <= one.max_codes
        codes = tuple(heard.codes[: one.max_codes])
        seconds, code_hz = len(codes) / system.family.code_hz, system.family.code_hz
        found[one.place] = SpokenSentence(
            one.sentence, one.voice, codes, stopped, seconds, code_hz=code_hz, ids=one.ids
        )
    return found


def _why_unspeakable(system: SpeakingModel, ids: Sequence[int]) -> str:
    if not ids:
        return "the tokenizer has no piece for any of its letters"
    if len(ids) > system.model.frame.max_text:
        return f"it has {len(ids):,} text tokens, and the model takes {system.model.frame.max_text:,}"
    return ""
