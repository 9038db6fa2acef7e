"""The verb `speak`: texts to sound, or to speech codes, with a base, a run or several grafts beside each other.

Texts are split into chunks that a model can speak at once. All chunks are planned before the first is generated.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import encode_audio
from voxgraft.config.commands import SpeakSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, Finding, TextError, finding
from voxgraft.core.files import atomic_write, is_folder, require_output_path, write_json
from voxgraft.core.languages import count_letters_by_script, count_scripts, find_exemplar
from voxgraft.core.results import Line, style_line
from voxgraft.models.base import Family, Vocoder
from voxgraft.models.generate import StopCause
from voxgraft.nn.decode import SamplingParams
from voxgraft.synthesis.engine import (
    SpeakingModel,
    SynthesisEngine,
    SynthesisModels,
    SynthesisRequest,
    SynthesisResult,
    draw_seed,
    limit_codes,
    open_synthesis_models,
)
from voxgraft.synthesis.segments import (
    TextChunk,
    UtteranceRequest,
    max_chunk_seconds,
    max_speech_seconds,
    read_utterances,
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
class _ChunkPlan:
    """One chunk of an utterance before it is spoken."""

    chunk: TextChunk
    ids: tuple[int, ...]
    max_codes: int
    seed: int


@dataclass(frozen=True, slots=True)
class _UtterancePlan:
    """One utterance before it is spoken."""

    utterance: UtteranceRequest
    language: str
    voice: ReferenceVoice
    chunks: tuple[_ChunkPlan, ...]
    findings: tuple[Finding, ...]


def synthesize(
    speakers: SynthesisModels, voices: VoiceLoader, utterances: Sequence[UtteranceRequest], settings: SpeakSettings
) -> list[SpokenUtterance]:
    """Every utterance, in its order. All are planned, with voice and style, before the first is spoken."""
    sampling = build_sampling(speakers, settings)
    planned = [_plan_utterance(speakers, voices, one, settings) for one in utterances]
    requests: dict[str, dict[tuple[int, int], SynthesisRequest]] = {}
    for at, plan in enumerate(planned):
        condition = voices.condition(plan.voice)
        for place, one in enumerate(plan.chunks):
            key = (one.max_codes, at, place)
            request = SynthesisRequest(one.ids, condition, one.seed, one.max_codes, plan.language, key)
            requests.setdefault(plan.language, {})[at, place] = request
    engines = {
        id(system): SynthesisEngine(
            system.model,
            sampling,
            set_gate=system.set_gate_for,
            batch_size=settings.batch,
            loop_code_hz=system.family.code_hz,
        )
        for system in speakers.all
    }
    results: dict[tuple[int, int], SynthesisResult] = {}
    with progress.progress_task("speaking", sum(map(len, requests.values()))) as advance:
        for language, own in requests.items():
            keys = list(own)
            for batch in engines[id(speakers.system(language))].iterate(list(own.values())):
                results |= {keys[position]: result for position, result in batch}
                advance(len(batch))
    return [
        _assemble_utterance(plan, [results[at, place] for place in range(len(plan.chunks))])
        for at, plan in enumerate(planned)
    ]


def build_sampling(speakers: SynthesisModels, settings: SpeakSettings) -> SamplingParams:
    """As the stock program draws, with what was asked for; only codes that the decoder can read."""
    given = {name: value for name in SAMPLING_SETTINGS if (value := getattr(settings, name)) is not None}
    return replace(speakers.place.family.stock_sampling(), readable=True, **given)


def _plan_utterance(
    speakers: SynthesisModels, voices: VoiceLoader, one: UtteranceRequest, settings: SpeakSettings
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
    chunks = []
    for piece, ids in spelled:
        seconds = settings.max_seconds or max_speech_seconds(piece.text)
        limit = limit_codes(seconds, family.code_hz, frame.max_codes if settings.max_seconds else most)
        seed = draw_seed("speak", settings.seed, language, piece.text)
        chunks.append(_ChunkPlan(piece, tuple(ids), limit, seed))
    findings = (
        *check_text_script(one, language),
        *_check_text_rules(system, one, text, language),
        *_check_unknown_letters(system, one, language),
    )
    return _UtterancePlan(one, language, voices.voice(one.voice), tuple(chunks), findings)


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


def _assemble_utterance(one: _UtterancePlan, results: Sequence[SynthesisResult]) -> SpokenUtterance:
    pieces = tuple(
        SpokenChunk(plan.chunk, plan.ids, result.codes, result.stop, plan.seed)
        for plan, result in zip(one.chunks, results, strict=True)
    )
    cut = [piece for piece in pieces if piece.stop != "ended"]
    findings = list(one.findings)
    if cut:
        why = {"limit": "did not end by itself within its limit", "loop": "went round in a loop"}
        told = f"{len(cut)} of {len(pieces)} pieces cut: {cut[0].piece.text!r:.60} {why[cut[0].stop]}"
        findings.append(finding("speak-cut", told, where=f"utterance {one.utterance.name}"))
    return SpokenUtterance(one.utterance, one.language, one.voice, pieces, tuple(findings))


CODES_FORMAT = "voxgraft-codes-1"
WAV_SUFFIX, JSON_SUFFIX, NPY_SUFFIX = ".wav", ".json", ".npy"
AUDIO_FORMATS = {WAV_SUFFIX: "WAV", ".flac": "FLAC", ".ogg": "OGG", ".mp3": "MP3"}
"""By suffix, the name that libsndfile has for it."""
FADE_SECONDS = 0.02
"""Speech that was cut off ends softly instead of with a click."""

Wave = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpeakOutputs:
    """Where things go: a WAV file for each utterance, or one for all of them; and codes."""

    sound: tuple[Path, ...] = ()
    codes: Path | None = None

    @property
    def is_one(self) -> bool:
        return len(self.sound) == 1


def plan_outputs(
    utterances: Sequence[UtteranceRequest], settings: SpeakSettings, family: Family, vocoder: object
) -> SpeakOutputs:
    """All files that will be made; an error if one of them is in the way, or cannot be made at all."""
    output, codes = settings.output, settings.codes
    if vocoder is None and (output is not None or codes is None):
        found = f"{family.name} makes no sound here: what turns its codes into a waveform is missing"
        raise ConfigError("no-waveform-end", found, expected="--codes FILE.json, and no --output")
    if codes is not None:
        _require_codes_name(codes, len(utterances))
    sound: tuple[Path, ...] = ()
    if codes is None or output is not None:
        output = output or Path("speech.wav" if len(utterances) == 1 else "speech")
        is_file = _is_audio_file(output)
        sound = (output,) if is_file else tuple(output / f"{one.name}{WAV_SUFFIX}" for one in utterances)
    for path in (*sound, *([codes] if codes else [])):
        require_output_path(path, overwrite=settings.overwrite)
    return SpeakOutputs(sound, codes)


def _is_audio_file(output: Path) -> bool:
    """Whether the output is one file; else it is a folder, which has no suffix unless it is there already."""
    suffix = output.suffix.lower()
    if suffix in AUDIO_FORMATS or not suffix or is_folder(output):
        return suffix in AUDIO_FORMATS
    expected = f"a name that ends in {', '.join(AUDIO_FORMATS)}, or a folder, without a suffix"
    raise ConfigError(
        "speak-output", f"--output {output.name}: {suffix} is no format that is written", expected=expected
    )


def _require_codes_name(codes: Path, count: int) -> None:
    kind = codes.suffix.lower()
    if kind not in (JSON_SUFFIX, NPY_SUFFIX):
        raise ConfigError(
            "speak-output", f"--codes {codes.name}", expected=f"a name that ends in {JSON_SUFFIX} or {NPY_SUFFIX}"
        )
    if kind == NPY_SUFFIX and count > 1:
        raise ConfigError(
            "speak-output", f"{count} utterances in {codes.name}", expected=f"a name that ends in {JSON_SUFFIX}"
        )


def render_utterance(vocoder: Vocoder, said: SpokenUtterance) -> Wave:
    """The pieces of an utterance, with their pauses between them."""
    rate = vocoder.sample_rate
    parts: list[Wave] = []
    for one in said.pieces:
        (wave,) = vocoder.sound([one.codes], [said.voice.clip])
        parts += [_fade_out_if_cut(wave, one, rate), np.zeros(round(one.piece.pause_seconds * rate), dtype=np.float32)]
    return np.concatenate(parts)


def write_audio_files(
    said: Sequence[SpokenUtterance], vocoder: Vocoder, outputs: SpeakOutputs, settings: SpeakSettings
) -> list[Path]:
    """Files of the utterances: one for each, or the same one for all, with a paragraph's pause between them."""
    rate = vocoder.sample_rate
    between = np.zeros(round(2 * settings.pause * rate), dtype=np.float32)
    together: list[Wave] = []
    joined = outputs.is_one and len(said) > 1
    with progress.progress_task("making sound", len(said)) as advance:
        for at, one in enumerate(said):
            wave = render_utterance(vocoder, one)
            if joined:
                together += [wave, between]
            else:
                _write_audio_file(outputs.sound[at], wave, rate, overwrite=settings.overwrite)
            advance(1)
    if joined:
        _write_audio_file(outputs.sound[0], np.concatenate(together[:-1]), rate, overwrite=settings.overwrite)
    return [outputs.sound[0 if joined else at] for at in range(len(said))]


def write_codes_file(said: Sequence[SpokenUtterance], path: Path, family: Family, *, overwrite: bool) -> None:
    """JSON with all that a waveform end needs, or the bare codes of one utterance, its pieces one after another."""
    if path.suffix.lower() == NPY_SUFFIX:
        stream = io.BytesIO()
        np.save(stream, np.array([code for piece in said[0].pieces for code in piece.codes], dtype=np.int32))
        with atomic_write(path, overwrite=overwrite) as file:
            file.write(stream.getvalue())
        return
    document = {
        "format": CODES_FORMAT,
        "family": family.name,
        "code_hz": family.code_hz,
        "utterances": [_utterance_json(one) for one in said],
    }
    write_json(path, document, overwrite=overwrite)


def _utterance_json(said: SpokenUtterance) -> dict[str, Any]:
    return {
        "name": said.utterance.name,
        "language": said.language,
        "text": said.utterance.text,
        "voice": said.voice.name,
        "pieces": [
            {
                "text": one.piece.text,
                "text_ids": list(one.ids),
                "codes": list(one.codes),
                "stop": one.stop,
                "seed": one.seed,
                "pause_seconds": one.piece.pause_seconds,
            }
            for one in said.pieces
        ],
    }


def _fade_out_if_cut(wave: Wave, one: SpokenChunk, rate: int) -> Wave:
    if one.stop == "ended":
        return wave
    count = min(len(wave), round(FADE_SECONDS * rate))
    faded = wave.copy()
    faded[len(wave) - count :] *= np.linspace(1, 0, count, dtype=np.float32)
    return faded


def _write_audio_file(path: Path, wave: Wave, rate: int, *, overwrite: bool) -> None:
    data = encode_audio(wave, rate, AUDIO_FORMATS[path.suffix.lower()])
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(data)


STOP_DESCRIPTIONS = {"ended": "ended by itself", "limit": "cut at its limit", "loop": "cut: it went round in a loop"}


@dataclass(frozen=True, slots=True)
class SpeakResult:
    """What was said, how it ended, and where it is."""

    family: Family
    base: Path
    said: tuple[SpokenUtterance, ...]
    sound: tuple[Path, ...]
    """The file of each utterance; none where only codes were asked for."""
    codes: Path | None
    notes: tuple[Finding, ...] = ()
    """What is to be said of the speakers, whatever they said."""

    @property
    def cut(self) -> list[SpokenUtterance]:
        """Utterances that did not come to their end by themselves."""
        return [one for one in self.said if one.stop != "ended"]

    @property
    def findings(self) -> list[Finding]:
        return [*self.notes, *(item for one in self.said for item in one.findings)]

    @property
    def exit_code(self) -> int:
        return 1 if self.cut else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "family": self.family.name,
            "base": str(self.base),
            "codes": str(self.codes) if self.codes else None,
            "utterances": [
                {
                    "name": one.utterance.name,
                    "language": one.language,
                    "text": one.utterance.text,
                    "voice": one.voice.name,
                    "seconds": self._seconds(one),
                    "stop": one.stop,
                    "pieces": len(one.pieces),
                    "file": str(self.sound[at]) if self.sound else None,
                }
                for at, one in enumerate(self.said)
            ],
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        for at, one in enumerate(self.said):
            pieces = f", {len(one.pieces)} pieces" if len(one.pieces) > 1 else ""
            where = f": {self.sound[at]}" if self.sound else ""
            stop = (STOP_DESCRIPTIONS[one.stop], "green" if one.stop == "ended" else "bold yellow")
            head = f"{one.utterance.name}  {one.language}  {self._seconds(one):.1f} s{pieces}, "
            lines.append(style_line(head, stop, where))
        lines += [text for item in self.findings for text in item.lines()]
        total = sum(map(self._seconds, self.said))
        lines.append(f"{len(self.said)} said, {total:.1f} s in all; {len(self.cut)} did not end by themselves")
        return [*lines, *([f"codes: {self.codes}"] if self.codes else [])]

    def _seconds(self, one: SpokenUtterance) -> float:
        return round(one.seconds(self.family.code_hz), 2)


def speak(settings: SpeakSettings) -> SpeakResult:
    """Say everything, then write it."""
    utterances = read_utterances(settings.text, settings.file)
    speakers = open_synthesis_models(settings, {one.language or settings.language for one in utterances})
    family, files = speakers.place.family, speakers.place.files
    vocoder = family.vocoder(files, speakers.place.device)
    outputs = plan_outputs(utterances, settings, family, vocoder)
    if vocoder is not None and outputs.sound:
        vocoder.validate()
    said = synthesize(speakers, VoiceLoader(speakers, settings), utterances, settings)
    sound: Sequence[Path] = ()
    notes = _untrained(speakers, {one.language for one in said})
    if vocoder is not None and outputs.sound:
        sound = write_audio_files(said, vocoder, outputs, settings)
        notes += vocoder.findings()
    if outputs.codes is not None:
        write_codes_file(said, outputs.codes, family, overwrite=settings.overwrite)
    return SpeakResult(family, files.folder, tuple(said), tuple(sound), outputs.codes, tuple(notes))


def _untrained(speakers: SynthesisModels, languages: set[str]) -> list[Finding]:
    """New languages that are spoken by a graft as it was made, before any step of training."""
    spoken = {name: speakers.system(name) for name in sorted(languages)}
    own = {name: system for name, system in spoken.items() if system.spelling.is_new_language(name)}
    # A graft that others made may have an adapter and not say how it was trained.
    names = [name for name, one in own.items() if one.step == 0 or (one.step is None and one.gate is None)]
    return [finding("speak-untrained", f"the graft of {', '.join(names)} was not trained yet")] if names else []
