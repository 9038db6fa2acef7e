"""Self-made replay: what the frozen base says for given sentences, kept as an ordinary set of clips.

Everything random is a function of the seed and the sentence. An utterance that did not come to its end by itself is no
speech and is left out. Knows no settings; which sentences, and when to make the set, is the caller's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from voxgraft import progress
from voxgraft.corpus import chance
from voxgraft.corpus.clips import ClipDataset, ClipInfo, PreparedClip
from voxgraft.corpus.set_checks import count_trailing_run
from voxgraft.corpus.views import DatasetSubset
from voxgraft.errors import GraftError
from voxgraft.families.base import Family
from voxgraft.families.encoding import Clip
from voxgraft.families.generate import GeneratedCodes, GenerationPrompt, SpeechGenerator
from voxgraft.families.layout import SequenceSpec
from voxgraft.families.model import SpeechModel

__all__ = [
    "SELF_REPLAY_ORIGIN",
    "ReferenceVoice",
    "ReplayGenerator",
    "ReplayUtterance",
    "choose_voices",
    "has_only_plain_ids",
    "hash_utterances",
    "is_self_replay",
    "plan_replay",
    "split_self_replay",
]

SELF_REPLAY_ORIGIN = "self-made"
"""What such a set says of where its codes come from."""
HELD_OUT_RECORDING, TRAIN_RECORDING = "held out", "learnt from"
"""The recording that an utterance is said to be of: validation is held out by sentence."""
HELD_OUT_ONE_IN = 8
"""One utterance in so many is held out."""
REPLAY_BATCH_SIZE = 32
"""Utterances that are spoken at once."""
MIN_UTTERANCES_PER_VOICE = 4
MAX_REPLAY_VOICES = 16
EncodeTextFunction = Callable[[str, str], Sequence[int]]
"""Text and language to ids of the base."""


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A clip of the run's own whose voice is borrowed."""

    name: str
    clip: Clip


@dataclass(frozen=True, slots=True)
class ReplayUtterance:
    """One sentence to be said."""

    id: str
    language: str
    text: str
    text_ids: tuple[int, ...]
    held_out: bool


def is_self_replay(clips: ClipDataset) -> bool:
    """Whether a set holds what the base said itself."""
    return clips.header.made_from.front_end.get("codes") == SELF_REPLAY_ORIGIN


def plan_replay(
    sentences: Iterable[tuple[str, str]],
    encode: EncodeTextFunction,
    is_plain: Callable[[Sequence[int]], bool],
    count: int,
    seed: int,
) -> list[ReplayUtterance]:
    """About `count` utterances, as many of each language, one in eight held out by its sentence.

    Of every language sentences are taken in an order by chance; those whose ids are not plain text are passed by. Where
    there are fewer sentences than asked for, those that are learnt from are said again, by other voices.
    """
    by_language: dict[str, dict[str, None]] = {}
    for language, text in sentences:
        by_language.setdefault(language, {})[text] = None
    found: list[ReplayUtterance] = []
    for language, texts in sorted(by_language.items()):
        wanted = max(1, round(count / len(by_language)))
        order = sorted(texts, key=lambda text: chance.hash_int("self-replay", seed, language, text))
        spelled = ((text, tuple(encode(text, language))) for text in order)
        usable = list(islice(((text, ids) for text, ids in spelled if is_plain(ids)), wanted))
        num_held_out = max(1, min(wanted, len(usable)) // HELD_OUT_ONE_IN) if len(usable) > 1 else 0
        learnt = islice(cycle(usable[num_held_out:]), wanted - num_held_out)
        chosen = [*((pair, True) for pair in usable[:num_held_out]), *((pair, False) for pair in learnt)]
        found += [
            ReplayUtterance(f"{language}-{number:05d}", language, text, ids, held_out)
            for number, ((text, ids), held_out) in enumerate(chosen)
        ]
    return found


def choose_voices(sets: Sequence[ClipDataset], min_seconds: float, count: int, seed: int) -> list[ReferenceVoice]:
    """Voices of the run's own clips for `count` utterances: of as many speakers as possible, from clips long enough."""
    places = [(clips, place) for clips in sets for place in _find_prompt_clips(clips)]
    long = [(clips, place) for clips, place in places if clips.infos[place].seconds >= min_seconds]
    longest = max(places, key=lambda found: found[0].infos[found[1]].seconds)
    order = sorted(
        long or [longest], key=lambda found: chance.hash_int("voice", seed, found[0].name, found[0].infos[found[1]].id)
    )
    num_before: dict[str, int] = {}
    ranked = []
    for at, (clips, place) in enumerate(order):
        speaker = clips.infos[place].speaker
        num_before[speaker] = num_before.get(speaker, 0) + 1
        ranked.append((num_before[speaker], at, clips, place))
    chosen = sorted(ranked, key=lambda entry: entry[:2])[
        : max(1, min(MAX_REPLAY_VOICES, count // MIN_UTTERANCES_PER_VOICE))
    ]
    return [
        ReferenceVoice(f"{clips.name}/{clips.infos[place].id}", Clip(clips.codes(place), clips.voice(place)))
        for _, _, clips, place in chosen
    ]


class ReplayGenerator:
    """The base saying utterances; afterwards, how many were kept and how many were not."""

    def __init__(self, family: Family, model: SpeechModel, voices: Sequence[ReferenceVoice], seed: int) -> None:
        self.family, self.model, self.voices, self.seed = family, model, voices, seed
        sampling = family.stock_sampling()
        self.sampling = replace(sampling, max_codes=min(sampling.max_codes, model.frame.max_codes))
        self.num_kept = self.num_dropped = 0

    def clips(self, utterances: Sequence[ReplayUtterance]) -> Iterator[PreparedClip]:
        """Every utterance that came to its end. All of an utterance's speaker share one voice: the one it was said in.

        An error when none of the first ones does: such a base cannot teach itself.
        """
        speaker = SpeechGenerator(self.model)
        voiced = [(one, self.voices[at % len(self.voices)]) for at, one in enumerate(utterances)]
        voiced.sort(key=lambda pair: (len(pair[0].text_ids), pair[0].id))  # who speaks together ends together
        with progress.progress_task("the base speaks for replay", len(voiced)) as advance:
            for first in range(0, len(voiced), REPLAY_BATCH_SIZE):
                group = voiced[first : first + REPLAY_BATCH_SIZE]
                spoken = speaker.speak([self._prompt(one, voice) for one, voice in group], self.sampling)
                for (one, voice), said in zip(group, spoken, strict=True):
                    if self._is_speech(said):
                        self.num_kept += 1
                        yield self._clip(one, voice, said)
                    else:
                        self.num_dropped += 1
                advance(len(group))
                if not self.num_kept:
                    found = f"none of {self.num_dropped:,} utterances of the base is speech that comes to an end"
                    raise GraftError("self-replay-runaway", found, expected="utterances that end")

    def _prompt(self, one: ReplayUtterance, voice: ReferenceVoice) -> GenerationPrompt:
        drawn = chance.hash_int("speak", self.seed, one.id, one.text) >> 1  # torch takes 63 bits
        return GenerationPrompt(one.text_ids, self.family.condition(voice.clip), drawn)

    def _is_speech(self, said: GeneratedCodes) -> bool:
        codes = np.asarray(said.codes, dtype=np.int32)
        return said.stopped and len(codes) > 0 and count_trailing_run(codes) < self.family.code_hz

    def _clip(self, one: ReplayUtterance, voice: ReferenceVoice, said: GeneratedCodes) -> PreparedClip:
        recording = HELD_OUT_RECORDING if one.held_out else TRAIN_RECORDING
        info = ClipInfo(one.id, voice.name, recording, len(said.codes) / self.family.code_hz, one.text)
        return PreparedClip(info, one.text_ids, said.codes, voice.clip.voice)


def split_self_replay(clips: ClipDataset) -> tuple[ClipDataset | None, dict[str, ClipDataset]]:
    """A self-made set as what is learnt from, and what is held out by language; either may be nothing."""
    learnt: list[int] = []
    held_out: dict[str, list[int]] = {}
    for place, info in enumerate(clips.infos):
        if info.recording == HELD_OUT_RECORDING:
            held_out.setdefault(info.id.rpartition("-")[0], []).append(place)
        else:
            learnt.append(place)
    own = DatasetSubset(clips, learnt, clips.name, "replay", clips.header.language) if learnt else None
    return own, {
        language: DatasetSubset(clips, places, f"{clips.name}-{language}", "valid", language)
        for language, places in held_out.items()
    }


def has_only_plain_ids(ids: Sequence[int], frame: SequenceSpec, unknown_id: int) -> bool:
    """Whether the base reads these ids as they are written: some, not too many, none unknown or of special meaning."""
    barred = frame.forbidden_text_ids | {unknown_id, frame.text_start, frame.text_stop}
    return 0 < len(ids) <= frame.max_text and barred.isdisjoint(ids)


def hash_utterances(utterances: Sequence[ReplayUtterance]) -> str:
    """One hash for all that is to be said."""
    lines = "".join(f"{one.id}\t{one.text}\t{one.held_out}\n" for one in utterances)
    return hashlib.sha256(lines.encode()).hexdigest()


def _find_prompt_clips(clips: ClipDataset) -> list[int]:
    """Every clip, or, in a set that brings its own prompts, these."""
    given = [clips.prompt_of(clip) for clip in range(len(clips))]
    return sorted({clip if prompt is None else prompt for clip, prompt in enumerate(given)})
