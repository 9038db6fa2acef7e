"""Sentences of an evaluation as a model speaks them, and the voices that it speaks with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voxgraft.audio.files import read_wav
from voxgraft.core import progress, rng
from voxgraft.core.errors import FileError
from voxgraft.core.files import is_file
from voxgraft.dataset.shards import ClipDataset
from voxgraft.evaluation.sentences import EvalSentence
from voxgraft.models.base import BaseFiles, encode_recording, unknown_voice_error
from voxgraft.models.generate import GenerationPrompt, SpeechGenerator
from voxgraft.synthesis.models import SpeakingModel
from voxgraft.synthesis.voices import ReferenceVoice, choose_voices
from voxgraft.training.samples import MAX_PAUSE_SECONDS, MAX_SECONDS_PER_CHARACTER

MAX_EVAL_VOICES = 4


def choose_eval_voices(
    base: SpeakingModel,
    files: BaseFiles,
    names: Sequence[str],
    held_out: Sequence[ClipDataset],
    min_seconds: float,
    seed: int,
) -> list[ReferenceVoice]:
    """Some voices to take turns with; an error that says how to name one where there is none."""
    if names:
        return [_load_requested_voice(base, files, name) for name in names]
    if held_out:
        found = choose_voices(held_out, min_seconds, MAX_EVAL_VOICES * 4, seed)
        return _limit_voices(found)
    own = base.family.voices(files)
    if own:
        return [ReferenceVoice(name, clip) for name, clip in list(own.items())[:MAX_EVAL_VOICES]]
    found_nothing = f"nothing to take a voice from: no held-out clips, and {base.family.name} has no voices of its own"
    raise FileError("evaluate-voice", found_nothing, expected="--voices FILE.wav", where=files.folder)


def _load_requested_voice(base: SpeakingModel, files: BaseFiles, name: str) -> ReferenceVoice:
    own = base.family.voices(files)
    if name in own:
        return ReferenceVoice(name, own[name])
    path = Path(name)
    if not is_file(path):
        raise unknown_voice_error(name, own, files.folder) if own else FileError("file-missing", f"{name} is not there")
    wave, rate = read_wav(path)
    return ReferenceVoice(path.name, encode_recording(base.family.encoder(files, base.model), wave, rate))


def _limit_voices(found: Sequence[ReferenceVoice]) -> list[ReferenceVoice]:
    """`choose_voices` has one clip of every speaker first, so the first ones are of as many speakers as there are."""
    return list(found[:MAX_EVAL_VOICES])


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
    drawn = rng.hash_int("evaluate", seed, sentence.language, sentence.text) >> 1  # torch takes 63 bits
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
