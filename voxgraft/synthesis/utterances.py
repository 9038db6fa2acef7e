"""Texts to speech codes: every text in pieces, pieces of one language side by side, and how each came to its end.

What an utterance is drawn with depends on its text and the seed, never on who is spoken beside it; languages are never
spoken in one batch, so that each sounds as if the others were not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from voxgraft.config.commands import SpeakSettings
from voxgraft.core import progress, rng
from voxgraft.core.errors import Finding, TextError, finding
from voxgraft.core.languages import count_letters_by_script, count_scripts, find_exemplar
from voxgraft.models.generate import GenerationPrompt, SpeechGenerator, StopCause, StoppingCriteria
from voxgraft.nn.sampling import SamplingParams
from voxgraft.synthesis.models import SpeakingModel, SynthesisModels
from voxgraft.synthesis.segments import (
    TextChunk,
    UtteranceRequest,
    max_chunk_seconds,
    max_speech_seconds,
    split_into_chunks,
)
from voxgraft.synthesis.voices import ReferenceVoice, VoiceLoader

MIN_OWN_SCRIPT_SHARE = 0.3
"""Words in another script inside a text are fine; with a smaller share of its own, the text is of another language."""


def check_text_script(one: UtteranceRequest, language: str) -> list[Finding]:
    """Nothing is said of languages whose letters are not known."""
    entry = find_exemplar(language)
    own = count_scripts(entry.letters) if entry else {}
    letters = count_letters_by_script(Counter(one.text))
    if entry is None or not own or not letters:
        return []
    if sum(letters[script] for script in own) >= MIN_OWN_SCRIPT_SHARE * letters.total():
        return []
    found = f"the text is mostly {letters.most_common(1)[0][0]}: {one.text!r:.60}"
    expected = f"{' or '.join(own)}, in which {entry.name} ({language}) is written"
    return [finding("speak-other-script", found, expected=expected, where=f"utterance {one.name}")]


SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "guidance")


@dataclass(frozen=True, slots=True)
class SpokenChunk:
    """One piece as it was said."""

    piece: TextChunk
    ids: tuple[int, ...]
    """Text tokens that the model was given."""
    codes: tuple[int, ...]
    stop: StopCause
    seed: int


@dataclass(frozen=True, slots=True)
class SpokenUtterance:
    """One utterance as it was said."""

    utterance: UtteranceRequest
    language: str
    voice: ReferenceVoice
    pieces: tuple[SpokenChunk, ...]
    findings: tuple[Finding, ...]

    @property
    def stop(self) -> StopCause:
        """How it came to its end: by itself only if every piece did."""
        return next((one.stop for one in self.pieces if one.stop != "ended"), "ended")

    def seconds(self, code_hz: float) -> float:
        """With the pauses between its pieces."""
        return sum(len(one.codes) / code_hz + one.piece.pause_seconds for one in self.pieces)


@dataclass(frozen=True, slots=True)
class _ChunkRequest:
    """One piece on its way."""

    utterance: int
    place: int
    piece: TextChunk
    ids: list[int]
    max_codes: int
    seed: int


@dataclass(frozen=True, slots=True)
class _UtterancePlan:
    """One utterance before it is said."""

    utterance: UtteranceRequest
    language: str
    voice: ReferenceVoice
    pieces: tuple[_ChunkRequest, ...]
    findings: tuple[Finding, ...]


def synthesize(
    speakers: SynthesisModels, voices: VoiceLoader, utterances: Sequence[UtteranceRequest], settings: SpeakSettings
) -> list[SpokenUtterance]:
    """Every utterance, in its order. All are looked at before the first is said."""
    sampling = build_sampling(speakers, settings)
    planned = [_plan_utterance(speakers, voices, at, one, settings) for at, one in enumerate(utterances)]
    for one in planned:
        voices.condition(one.voice)  # what cannot be done is refused before anybody speaks
    said: dict[tuple[int, int], SpokenChunk] = {}
    by_system = {id(system): SpeechGenerator(system.model) for system in speakers.all}
    with progress.progress_task("speaking", sum(len(one.pieces) for one in planned)) as advance:
        for language in dict.fromkeys(one.language for one in planned):
            system = speakers.system(language)
            speaker = by_system[id(system)]
            own = [asked for one in planned if one.language == language for asked in one.pieces]
            own.sort(key=lambda one: (one.max_codes, one.utterance, one.place))  # who speaks together ends together
            for first in range(0, len(own), settings.batch):
                group = own[first : first + settings.batch]
                conditions = [voices.condition(planned[one.utterance].voice) for one in group]
                with system.set_gate_for(language):
                    said |= _synthesize_batch(speaker, group, conditions, sampling, speakers.place.family.code_hz)
                advance(len(group))
    return [_assemble_utterance(one, said) for one in planned]


def build_sampling(speakers: SynthesisModels, settings: SpeakSettings) -> SamplingParams:
    """As the stock program draws, with what was asked for; only codes that the decoder can read."""
    given = {name: value for name in SAMPLING_SETTINGS if (value := getattr(settings, name)) is not None}
    return replace(speakers.place.family.stock_sampling(), readable=True, **given)


def _synthesize_batch(
    speaker: SpeechGenerator,
    group: Sequence[_ChunkRequest],
    conditions: Sequence[object],
    sampling: SamplingParams,
    code_hz: float,
) -> dict[tuple[int, int], SpokenChunk]:
    frame = speaker.model.frame
    watch = StoppingCriteria([one.max_codes for one in group], frame.speech_stop, code_hz)
    prompts = [GenerationPrompt(one.ids, condition, one.seed) for one, condition in zip(group, conditions, strict=True)]
    longest = replace(sampling, max_codes=max(one.max_codes for one in group))
    found = {}
    for row, (one, spoken) in enumerate(zip(group, speaker.speak(prompts, longest, watch), strict=True)):
        codes, stop = watch.outcome(row, spoken.codes, by_itself=spoken.stopped)
        assert all(0 <= code < frame.num_codes for code in codes)
        found[one.utterance, one.place] = SpokenChunk(one.piece, tuple(one.ids), tuple(codes), stop, one.seed)
    return found


def _plan_utterance(
    speakers: SynthesisModels, voices: VoiceLoader, at: int, one: UtteranceRequest, settings: SpeakSettings
) -> _UtterancePlan:
    language = speakers.language(one.language or settings.language)
    system, family = speakers.system(language), speakers.place.family
    frame = system.model.frame
    most = min(family.stock_sampling().max_codes, frame.max_codes)
    longest = max_chunk_seconds(most / family.code_hz)
    # Numbers and abbreviations first: they take longer to say than to write, and have full stops that end nothing.
    text = system.spelling.normalize_lines(one.text, language)
    pieces = split_into_chunks(text, language, longest, settings.pause) if settings.split else [TextChunk(text)]
    if not pieces:
        pieces = [TextChunk(one.text)]
    spelled = [pair for piece in pieces for pair in _encode_chunk(system, piece, language, split=settings.split)]
    asked = []
    for place, (piece, ids) in enumerate(spelled):
        seconds = settings.max_seconds or max_speech_seconds(piece.text)
        limit = min(max(1, round(seconds * family.code_hz)), frame.max_codes if settings.max_seconds else most)
        seed = rng.hash_int("speak", settings.seed, language, piece.text) >> 1  # torch takes 63 bits
        asked.append(_ChunkRequest(at, place, piece, ids, limit, seed))
    findings = (
        *check_text_script(one, language),
        *_check_text_rules(system, one, text, language),
        *_check_unknown_letters(system, one, language),
    )
    return _UtterancePlan(one, language, voices.voice(one.voice), tuple(asked), findings)


def _encode_chunk(
    system: SpeakingModel, piece: TextChunk, language: str, *, split: bool
) -> list[tuple[TextChunk, list[int]]]:
    """A piece with its ids; in halves where the model takes no text that long."""
    ids, most = system.ids(piece.text, language), system.model.frame.max_text
    if not ids:
        found = f"the tokenizer has no piece for any letter of {piece.text!r:.80}"
        raise TextError("speak-nothing", found, expected=f"a text in {language}")
    if len(ids) <= most:
        return [(piece, ids)]
    smaller = split_into_chunks(piece.text, language, max_speech_seconds(piece.text) / 8, 0.0)
    if not split or len(smaller) < 2:
        found = f"{piece.text!r:.60} has {len(ids):,} text tokens"
        raise TextError("ids-length", found, expected=f"at most {most:,}")
    smaller[-1] = replace(smaller[-1], pause_seconds=piece.pause_seconds)
    return [pair for part in smaller for pair in _encode_chunk(system, part, language, split=True)]


def _check_text_rules(system: SpeakingModel, one: UtteranceRequest, text: str, language: str) -> list[Finding]:
    """Digits that stay in text of the new language, and a graft that states no rules for its text."""
    spelling = system.spelling
    if spelling.grown is None or not spelling.is_new_language(language):
        return []
    where = f"utterance {one.name}"
    if not spelling.rules.is_stated:
        return [
            finding("text-rules-missing", "the graft states no text rules, so the text is read as it is", where=where)
        ]
    if text.strip() and any(map(str.isdecimal, text)):
        shown = next(part for part in text.split() if any(map(str.isdecimal, part)))
        return [finding("text-digits", f"{shown!r:.40} stays in digits", where=where)]
    return []


def _check_unknown_letters(system: SpeakingModel, one: UtteranceRequest, language: str) -> list[Finding]:
    spelling = system.spelling
    is_new = spelling.is_new_language(language) and spelling.grown is not None
    tokenizer = spelling.grown if is_new and spelling.grown else spelling.base
    prepared = spelling.prepare(one.text) if is_new else spelling.prepare_base(one.text, language)
    unknown = "".join(dict.fromkeys(tokenizer.unknown_text(prepared).replace(" ", "")))
    if not unknown:
        return []
    return [finding("speak-unknown-letters", f"no piece for {unknown!r:.80}", where=f"utterance {one.name}")]


def _assemble_utterance(one: _UtterancePlan, said: dict[tuple[int, int], SpokenChunk]) -> SpokenUtterance:
    pieces = tuple(said[asked.utterance, asked.place] for asked in one.pieces)
    cut = [piece for piece in pieces if piece.stop != "ended"]
    findings = list(one.findings)
    if cut:
        why = {"limit": "did not end by itself within its limit", "loop": "went round in a loop"}
        told = f"{len(cut)} of {len(pieces)} pieces cut: {cut[0].piece.text!r:.60} {why[cut[0].stop]}"
        findings.append(finding("speak-cut", told, where=f"utterance {one.utterance.name}"))
    return SpokenUtterance(one.utterance, one.language, one.voice, pieces, tuple(findings))
