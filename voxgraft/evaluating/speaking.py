"""Sentences to speech codes, many at once; the same voice and the same draws for every system, so that they compare.

What is spoken beside what does not depend on the system either: two systems that compute alike say the same codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from voxgraft import progress
from voxgraft.corpus import chance
from voxgraft.evaluating.sentences import Sentence
from voxgraft.evaluating.systems import System
from voxgraft.families.generate import Prompt, Speaker
from voxgraft.training.replay import Voice
from voxgraft.training.samples import PAUSE_SECONDS, SECONDS_PER_CHARACTER

__all__ = ["Said", "say"]

SIDE_BY_SIDE = 32
"""Utterances that are spoken at once."""


@dataclass(frozen=True, slots=True)
class Said:
    """One sentence as one system said it. Without codes it could not be said at all, and `why` tells."""

    sentence: Sentence
    voice: Voice
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
class _Asked:
    """One sentence on its way."""

    place: int
    sentence: Sentence
    voice: Voice
    ids: tuple[int, ...]
    max_codes: int
    seed: int
    why: str
    """Why it cannot be said; empty where it can."""


def say(system: System, sentences: Sequence[Sentence], voices: Sequence[Voice], seed: int, who: str) -> list[Said]:
    """Every sentence, in its order; the voices take turns. All must be of one language."""
    every = [_asked(system, at, one, voices[at % len(voices)], seed) for at, one in enumerate(sentences)]
    said = {
        one.place: Said(one.sentence, one.voice, None, False, 0.0, one.why, ids=one.ids) for one in every if one.why
    }
    asked = [one for one in every if not one.why]
    asked.sort(key=lambda one: (len(one.sentence.text), one.place))  # who speaks together ends together
    speaker = Speaker(system.model)
    with progress.task(f"{who} speaks", len(asked)) as advance:
        for first in range(0, len(asked), SIDE_BY_SIDE):
            group = asked[first : first + SIDE_BY_SIDE]
            said |= _say_group(system, speaker, group)
            advance(len(group))
    return [said[place] for place in range(len(sentences))]


def _asked(system: System, place: int, sentence: Sentence, voice: Voice, seed: int) -> _Asked:
    ids = tuple(system.ids(sentence.text, sentence.language))
    stock = system.family.stock_sampling()
    seconds = PAUSE_SECONDS + SECONDS_PER_CHARACTER * len(sentence.text)
    limit = min(round(seconds * system.family.code_hz), stock.max_codes, system.model.frame.max_codes)
    drawn = chance.number("evaluate", seed, sentence.language, sentence.text) >> 1  # torch takes 63 bits
    return _Asked(place, sentence, voice, ids, limit, drawn, _unspeakable(system, ids))


def _say_group(system: System, speaker: Speaker, group: Sequence[_Asked]) -> dict[int, Said]:
    longest = max(one.max_codes for one in group)
    sampling = replace(system.family.stock_sampling(), max_codes=longest)
    prompts = [Prompt(one.ids, system.family.condition(one.voice.clip), one.seed) for one in group]
    with system.speaking(group[0].sentence.language):
        spoken = speaker.speak(prompts, sampling)
    found = {}
    for one, heard in zip(group, spoken, strict=True):
        # A neighbour may have had more time: whoever went past its own limit has run away.
        stopped = heard.stopped and len(heard.codes) <= one.max_codes
        codes = tuple(heard.codes[: one.max_codes])
        seconds, code_hz = len(codes) / system.family.code_hz, system.family.code_hz
        found[one.place] = Said(one.sentence, one.voice, codes, stopped, seconds, code_hz=code_hz, ids=one.ids)
    return found


def _unspeakable(system: System, ids: Sequence[int]) -> str:
    if not ids:
        return "the tokenizer has no piece for any of its letters"
    if len(ids) > system.model.frame.max_text:
        return f"it has {len(ids):,} text tokens, and the model takes {system.model.frame.max_text:,}"
    return ""
