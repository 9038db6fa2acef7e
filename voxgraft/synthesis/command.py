"""The command `speak`: texts to sound, or to speech codes, with a base, a run or several grafts beside each other.

Texts are split into chunks that a model can speak at once. All chunks are planned before the first is generated.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import AudioEncoder, encode_audio
from voxgraft.config.commands import SpeakSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, TextError, finding
from voxgraft.core.files import atomic_write, is_folder, require_output_path, write_json
from voxgraft.core.languages import count_letters_by_script, count_scripts, find_exemplar
from voxgraft.core.results import Line, pluralize, style_line
from voxgraft.models.base import Family, Latents, SoundStream, Vocoder
from voxgraft.models.generate import StopCause
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
from voxgraft.synthesis.inputs import (
    ReferenceVoice,
    UtteranceRequest,
    VoiceLoader,
    max_chunk_seconds,
    max_speech_seconds,
    read_utterances,
    split_into_chunks,
)
from voxgraft.text.encoder import EncodedText
from voxgraft.text.spans import remove_markers

# Words in another script inside a text are fine; with a smaller share of its own, the text is of another language.
MIN_OWN_SCRIPT_SHARE = 0.3
SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "guidance")
CODES_FORMAT = "voxgraft-codes-1"
WAV_SUFFIX, JSON_SUFFIX, NPY_SUFFIX = ".wav", ".json", ".npy"
STANDARD_OUTPUT = Path("-")
# By suffix, the name that libsndfile has for the format.
AUDIO_FORMATS = {WAV_SUFFIX: "WAV", ".flac": "FLAC", ".ogg": "OGG", ".mp3": "MP3"}
# Speech that was cut off fades out instead of ending with a click.
FADE_SECONDS = 0.02
# Codes after which a stream first makes sound, and then whenever their number has doubled: every call of the
# vocoder's flow goes over all codes so far, so that calls at even distances would cost more and more.
FIRST_STREAMED_CODES = 24
STOP_DESCRIPTIONS = {"ended": "ended normally", "limit": "cut at the length limit", "loop": "cut: it repeated itself"}
Wave = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpokenChunk:
    """One chunk of an utterance: what is generated, and once it is, the codes and why they ended."""

    text: str
    pause_seconds: float
    """Silence after it."""
    ids: tuple[int, ...]
    """Text tokens that the model is given."""
    max_codes: int
    seed: int
    language: str
    """Selects the gate; another than the utterance's for a chunk that is in a span of another language."""
    closed: Sequence[bool] | None = None
    """By text token: where an open gate is closed."""
    codes: tuple[int, ...] = ()
    stop: StopCause = "ended"
    latents: Latents | None = None
    """For a vocoder that needs them. [codes, width]"""


@dataclass(frozen=True, slots=True)
class SpokenUtterance:
    """One utterance: planned, and after `synthesize` with its codes."""

    utterance: UtteranceRequest
    system: SpeakingModel
    language: str
    voice: ReferenceVoice
    pieces: tuple[SpokenChunk, ...]
    findings: tuple[Finding, ...]

    @property
    def stop(self) -> StopCause:
        """Why it ended: on its own only if every chunk did."""
        return next((one.stop for one in self.pieces if one.stop != "ended"), "ended")

    def seconds(self, code_hz: float) -> float:
        """With the pauses between its chunks."""
        return sum(len(one.codes) / code_hz + one.pause_seconds for one in self.pieces)


def synthesize(
    speakers: SynthesisModels,
    voices: VoiceLoader,
    utterances: Sequence[UtteranceRequest],
    settings: SpeakSettings,
    vocoder: Vocoder | None = None,
) -> list[SpokenUtterance]:
    """Every utterance, in its order. All are planned, with voice and style, before the first is generated.

    `vocoder` is what will render it, if anything will: it must know the voices, and may need latents.
    """
    planned = [plan_utterance(speakers, voices, item, settings, vocoder) for item in utterances]
    requests: dict[int, dict[tuple[int, int], SynthesisRequest]] = {}
    for utterance_index, plan in enumerate(planned):
        condition = voices.condition(plan.voice)
        for piece_index, item in enumerate(plan.pieces):
            # Chunks of about one length share a batch.
            key = (item.max_codes, utterance_index, piece_index)
            request = build_request(item, condition, key)
            requests.setdefault(id(plan.system), {})[utterance_index, piece_index] = request
    engines = {id(system): _build_engine(system, settings, vocoder) for system in speakers.all}
    results: dict[tuple[int, int], SynthesisResult] = {}
    with progress.progress_task("speaking", sum(map(len, requests.values()))) as advance:
        for system, own in requests.items():
            keys = list(own)
            for batch in engines[system].iterate(list(own.values())):
                results |= {keys[position]: result for position, result in batch}
                advance(len(batch))
    spoken = []
    for utterance_index, plan in enumerate(planned):
        pieces = tuple(
            replace(item, codes=own.codes, stop=own.stop, latents=own.latents)
            for item, own in (
                (item, results[utterance_index, piece_index]) for piece_index, item in enumerate(plan.pieces)
            )
        )
        spoken.append(_complete(plan, pieces))
    return spoken


def _complete(plan: SpokenUtterance, pieces: tuple[SpokenChunk, ...]) -> SpokenUtterance:
    """A planned utterance with its codes, and with a finding if it was cut."""
    findings = plan.findings
    if cut := [piece for piece in pieces if piece.stop != "ended"]:
        causes = {"limit": "reached its length limit", "loop": "repeated itself"}
        found = f"{len(cut)} of {len(pieces)} segments did not end: {cut[0].text!r:.60} {causes[cut[0].stop]}"
        findings = (*findings, finding("speak-cut", found, where=f"utterance {plan.utterance.name}"))
    return replace(plan, pieces=pieces, findings=findings)


def stream_speech(
    speakers: SynthesisModels,
    voices: VoiceLoader,
    utterance: UtteranceRequest,
    settings: SpeakSettings,
    vocoder: Vocoder,
) -> Iterator[Wave]:
    """One utterance as sound, in waveforms that follow each other without a gap, the first as soon as there is one."""
    plan = plan_utterance(speakers, voices, utterance, settings, vocoder)
    engine = _build_engine(plan.system, settings, vocoder)
    return stream_pieces(plan, engine, voices.condition(plan.voice), vocoder)


def build_request(piece: SpokenChunk, condition: Any, sort_key: tuple[int, ...] = ()) -> SynthesisRequest:
    """What the engine is given of a planned chunk."""
    return SynthesisRequest(
        piece.ids,
        condition,
        piece.seed,
        piece.closed,
        max_codes=piece.max_codes,
        language=piece.language,
        sort_key=sort_key,
    )


def _build_engine(system: SpeakingModel, settings: SpeakSettings, vocoder: Vocoder | None) -> SynthesisEngine:
    # Only codes that the decoder can read; the rest as the original program samples, unless the settings say otherwise.
    given = {name: value for name in SAMPLING_SETTINGS if (value := getattr(settings, name)) is not None}
    return SynthesisEngine(
        system.model,
        replace(system.family.upstream_sampling(), readable=True, **given),
        set_gate=system.set_gate_for,
        batch_size=settings.batch,
        loop_code_hz=system.family.code_hz,
        latents=settings.latents or (vocoder is not None and vocoder.needs_latents),
    )


def plan_utterance(
    speakers: SynthesisModels,
    voices: VoiceLoader,
    one: UtteranceRequest,
    settings: SpeakSettings,
    vocoder: Vocoder | None = None,
) -> SpokenUtterance:
    """An utterance in chunks that the model can speak, each with its limit and its seed, but without codes.

    Refused if the vocoder cannot sound like the voice.
    """
    language = speakers.language(one.language or settings.language)
    system, family = speakers.system_for(one.text, language), speakers.context.family
    system.text_encoder.require_spans(one.text, f"utterance {one.name}")
    spec = system.model.spec
    most = min(family.upstream_sampling().max_codes, spec.max_codes)
    longest = max_chunk_seconds(most / family.code_hz)
    # Numbers and abbreviations first: they take longer to say than to write, and have full stops that end nothing.
    text = system.text_encoder.normalize_lines(one.text, language)
    pieces = [(text, 0.0)]
    if settings.split:
        split = partial(split_into_chunks, language=language, max_seconds=longest, pause_seconds=settings.pause)
        pieces = system.text_encoder.map_chunks(text, language, split)
    chunks = []
    encoded = [_encode_chunk(system, *piece, language, split=settings.split) for piece in pieces or [(one.text, 0.0)]]
    for part, pause, own in chain(*encoded):
        seconds = settings.max_seconds or max_speech_seconds(remove_markers(part))
        limit = limit_codes(seconds, family.code_hz, spec.max_codes if settings.max_seconds else most)
        seed = draw_seed("speak", settings.seed, language, part)
        gate_language = own.language or language
        chunks.append(SpokenChunk(part, pause, tuple(own.ids), limit, seed, gate_language, own.closed))
    findings, voice = tuple(_check_text(system, one, text, language)), voices.voice(one.voice)
    if vocoder is not None and (why := vocoder.why_not(voice.clip)):
        raise GraftError("vocoder-voice", why, where=f"voice {voice.name}")
    return SpokenUtterance(one, system, language, voice, tuple(chunks), findings)


def _encode_chunk(
    system: SpeakingModel, text: str, pause_seconds: float, language: str, *, split: bool
) -> list[tuple[str, float, EncodedText]]:
    """A chunk, its pause and its ids; in smaller chunks where the model takes no text that long."""
    encoded, most = system.encode(text, language), system.model.spec.max_text
    if not encoded.ids:
        found = f"the tokenizer has no token for any letter of {text!r:.80}"
        raise TextError("speak-nothing", found, expected=f"a text in {language}")
    if len(encoded.ids) <= most:
        return [(text, pause_seconds, encoded)]
    # The limit is over twice the usual time, so an eighth of it is about a third of the chunk.
    shorter = partial(
        split_into_chunks,
        language=language,
        max_seconds=max_speech_seconds(remove_markers(text)) / 8,
        pause_seconds=0.0,
    )
    smaller = system.text_encoder.map_chunks(text, language, shorter)
    if not split or len(smaller) < 2:
        found = f"{text!r:.60} has {len(encoded.ids):,} text tokens"
        raise TextError("ids-length", found, expected=f"at most {most:,}")
    smaller[-1] = (smaller[-1][0], pause_seconds)
    return [found for part in smaller for found in _encode_chunk(system, *part, language, split=True)]


def _check_text(system: SpeakingModel, utterance: UtteranceRequest, text: str, language: str) -> Iterator[Finding]:
    """What is suspicious in the text of an utterance: its script, digits that stay, letters without a piece."""
    where, text_encoder = f"utterance {utterance.name}", system.text_encoder
    language_of_sentence, parts = text_encoder.split(utterance.text, language)
    own_text = " ".join(part for code, part in parts if code == language_of_sentence)
    # No finding for languages whose letters are not known.
    language = language_of_sentence or language
    entry = find_exemplar(language)
    own = count_scripts(entry.letters) if entry else {}
    letters = count_letters_by_script(Counter(own_text))
    num_own = sum(letters[script] for script in own)
    if entry is not None and own and letters and num_own < MIN_OWN_SCRIPT_SHARE * letters.total():
        found = f"the text is mostly {letters.most_common(1)[0][0]}: {utterance.text!r:.60}"
        expected = f"{' or '.join(own)}, the script of {entry.name} ({language})"
        yield finding("speak-other-script", found, expected=expected, where=where)
    grown = text_encoder.grown if text_encoder.is_new_language(language) else None
    if grown is not None and not text_encoder.rules.is_stated:
        found = "the graft states no text rules, so the text is not normalized"
        yield finding("text-rules-missing", found, where=where)
    elif grown is not None and any(map(str.isdecimal, text := text_encoder.own_text(text))):
        example = next(part for part in text.split() if any(map(str.isdecimal, part)))
        yield finding("text-digits", f"{example!r:.40} stays as digits", where=where)
    unknown = ""
    for code, part in parts:
        is_new = text_encoder.grown is not None and text_encoder.is_new_language(code)
        tokenizer = text_encoder.grown if is_new and text_encoder.grown is not None else text_encoder.base
        prepared = text_encoder.prepare(part) if is_new else text_encoder.prepare_base(part, code)
        unknown += tokenizer.unknown_text(prepared).replace(" ", "")
    if unknown := "".join(dict.fromkeys(unknown)):
        yield finding(
            "speak-unknown-letters", f"the tokenizer has no token for these characters: {unknown:.80}", where=where
        )


def _plan_files(
    utterances: Sequence[UtteranceRequest], settings: SpeakSettings, family: Family, vocoder: Vocoder | None
) -> tuple[Path, ...]:
    """Sound files: one for each utterance, or one for all, or none. Raises if any file, codes included, is refused."""
    output, codes = settings.output, settings.codes
    if vocoder is None and (output is not None or codes is None):
        found = f"{family.name} cannot produce sound here: the base has no vocoder"
        raise ConfigError("no-waveform-end", found, expected="--codes FILE.json without --output")
    if codes is not None:
        kind = codes.suffix.lower()
        if kind not in (JSON_SUFFIX, NPY_SUFFIX):
            expected = f"a name that ends in {JSON_SUFFIX} or {NPY_SUFFIX}"
            found, cure = (
                f"--codes {codes.name}: {kind or 'no suffix'} is not a format for codes",
                "use a supported format, for example --codes codes.json.",
            )
            raise ConfigError("speak-output", found, expected=expected, cure=cure)
        if kind == NPY_SUFFIX and len(utterances) > 1:
            found = f"{codes.name} can hold one utterance only, but there are {len(utterances)}"
            cure = "use a .json file, for example --codes codes.json."
            raise ConfigError("speak-output", found, expected=f"a name that ends in {JSON_SUFFIX}", cure=cure)
    if settings.latents and (codes is None or codes.suffix.lower() != JSON_SUFFIX):
        found, cure = "--latents needs a .json file to write to", "add, for example, --codes codes.json."
        raise ConfigError("speak-output", found, expected=f"--codes NAME{JSON_SUFFIX}", cure=cure)
    sound: tuple[Path, ...] = ()
    if output == STANDARD_OUTPUT:
        if codes is not None:
            found, cure = "--output - writes sound only", "write the codes with a second command."
            raise ConfigError("speak-output", found, expected="--output - without --codes", cure=cure)
        if sys.stdout is None or sys.stdout.isatty():  # None: the caller has closed it
            place = "closed" if sys.stdout is None else "a terminal"
            found, cure = (
                f"--output - writes sound, and standard output is {place}",
                "send it to a program, for example | aplay.",
            )
            raise ConfigError("speak-output", found, expected="a pipe or a file", cure=cure)
        return (STANDARD_OUTPUT,)
    if codes is None or output is not None:
        output = output or Path("speech.wav" if len(utterances) == 1 else "speech")
        suffix = output.suffix.lower()
        # A folder has no suffix, unless it exists already.
        if suffix and suffix not in AUDIO_FORMATS and not is_folder(output):
            found = f"--output {output.name}: {suffix} is not a supported output format"
            expected = f"a file name that ends in {', '.join(AUDIO_FORMATS)}; or a folder name, without a suffix"
            raise ConfigError("speak-output", found, expected=expected)
        in_folder = tuple(output / f"{one.name}{WAV_SUFFIX}" for one in utterances)
        sound = (output,) if suffix in AUDIO_FORMATS else in_folder
    for path in (*sound, *([codes] if codes else [])):
        require_output_path(path, overwrite=settings.overwrite)
    return sound


def render_pieces(utterances: Sequence[SpokenUtterance], vocoder: Vocoder, batch: int) -> Iterator[list[Wave]]:
    """The sentences of each utterance as waveforms, in the order of the utterances; `batch` go to the vocoder at once.

    Each waveform is what it would be alone, up to rounding.
    """
    pieces = [(piece, utterance.voice.clip) for utterance in utterances for piece in utterance.pieces]
    waves: list[Wave] = []  # of pieces whose utterance is not complete yet
    start = 0
    for utterance in utterances:
        while len(waves) < len(utterance.pieces):
            piece_batch = pieces[start : start + batch]
            start += len(piece_batch)
            codes, voices = [piece.codes for piece, _ in piece_batch], [voice for _, voice in piece_batch]
            latents = [np.zeros((0, 0)) if piece.latents is None else piece.latents for piece, _ in piece_batch]
            found = vocoder.sound(codes, voices, latents if vocoder.needs_latents else None)
            waves += [
                _fade_out(wave, vocoder.sample_rate) if piece.stop != "ended" else wave
                for (piece, _), wave in zip(piece_batch, found, strict=True)
            ]
        yield waves[: len(utterance.pieces)]
        del waves[: len(utterance.pieces)]


def stream_pieces(
    utterance: SpokenUtterance, engine: SynthesisEngine, condition: Any, vocoder: Vocoder
) -> Generator[Wave, None, SpokenUtterance]:
    """The sound of a planned utterance as soon as there is some, with the pauses between its sentences.

    A vocoder that can sounds while a sentence is still being generated; any other sounds sentence by sentence, and
    those waveforms are the ones that `render_pieces` gives. Returns the utterance with its codes.
    """
    rate = vocoder.sample_rate
    spoken = []
    for piece in utterance.pieces:
        request = build_request(piece, condition, ())
        stream = vocoder.stream(utterance.voice.clip, piece.max_codes)
        if stream is not None:
            codes, stop = yield from stream_sentence(engine, request, stream, rate)
            spoken.append(replace(piece, codes=codes, stop=stop))
        else:
            [[(_, result)]] = engine.iterate([request])
            spoken.append(replace(piece, codes=result.codes, stop=result.stop, latents=result.latents))
            ((wave,),) = render_pieces([replace(utterance, pieces=(spoken[-1],))], vocoder, 1)
            yield wave
        if piece.pause_seconds:
            yield np.zeros(round(piece.pause_seconds * rate), dtype=np.float32)
    return _complete(utterance, tuple(spoken))


def stream_sentence(
    engine: SynthesisEngine, request: SynthesisRequest, stream: SoundStream, rate: int
) -> Generator[Wave, None, tuple[tuple[int, ...], StopCause]]:
    """One sentence while it is being generated, in waveforms that follow each other. Returns codes and why they end."""
    waiting: list[int] = []
    spoken: list[int] = []
    num_needed, num_fed = FIRST_STREAMED_CODES, 0
    stop: StopCause = "ended"
    for codes, cause in engine.stream(request):
        waiting, stop = waiting + codes, cause
        spoken += codes
        if len(waiting) >= num_needed:
            if len(wave := stream.feed(waiting)):
                yield wave
            num_fed += len(waiting)
            waiting, num_needed = [], num_fed
    last = stream.finish(waiting)
    if len(last):
        yield last if stop == "ended" else _fade_out(last, rate)
    return tuple(spoken), stop


def _fade_out(wave: Wave, rate: int) -> Wave:
    """A copy whose last 20 ms fade to zero."""
    count = min(len(wave), round(FADE_SECONDS * rate))
    faded = wave.copy()
    faded[len(wave) - count :] *= np.linspace(1, 0, count, dtype=np.float32)
    return faded


def write_audio_files(
    utterances: Sequence[SpokenUtterance],
    vocoder: Vocoder,
    files: Sequence[Path],
    *,
    pause: float = 0.3,
    batch: int = 16,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """The file of each utterance: its own, or the same one for all, with a paragraph's pause between them."""
    rate = vocoder.sample_rate
    joined_parts: list[Wave] = []
    joined = len(files) == 1 and len(utterances) > 1

    def silence(seconds: float) -> Wave:
        return np.zeros(round(seconds * rate), dtype=np.float32)

    def write(path: Path, parts: Sequence[Wave]) -> None:
        data = encode_audio(np.concatenate(parts), rate, AUDIO_FORMATS[path.suffix.lower()])
        with atomic_write(path, overwrite=overwrite) as file:
            file.write(data)

    with progress.progress_task("vocoding", len(utterances)) as advance:
        for index, (utterance, waves) in enumerate(
            zip(utterances, render_pieces(utterances, vocoder, batch), strict=True)
        ):
            pauses = [silence(piece.pause_seconds) for piece in utterance.pieces]
            parts = [part for pair in zip(waves, pauses, strict=True) for part in pair]
            if joined:
                joined_parts += [*parts, silence(2 * pause)]
            else:
                write(files[index], parts)
            advance(1)
    if joined:
        write(files[0], joined_parts[:-1])
    return tuple(files[0 if joined else index] for index in range(len(utterances)))


def write_codes_file(
    spoken: Sequence[SpokenUtterance], path: Path, family: Family, *, latents: bool = False, overwrite: bool = False
) -> None:
    """JSON with all that a vocoder needs, or the bare codes of one utterance, its chunks one after another.

    With `latents` each piece has the language model's states too: float16, row by row, base64.
    """
    if path.suffix.lower() == NPY_SUFFIX:
        stream = io.BytesIO()
        np.save(stream, np.array([code for piece in spoken[0].pieces for code in piece.codes], dtype=np.int32))
        with atomic_write(path, overwrite=overwrite) as file:
            file.write(stream.getvalue())
        return
    utterances = []
    for utterance in spoken:
        pieces = []
        for spoken_piece in utterance.pieces:
            piece = {
                "text": spoken_piece.text,
                "text_ids": list(spoken_piece.ids),
                "codes": list(spoken_piece.codes),
                "stop": spoken_piece.stop,
                "seed": spoken_piece.seed,
                "pause_seconds": spoken_piece.pause_seconds,
            }
            if latents:
                states = np.zeros((0, 0)) if spoken_piece.latents is None else spoken_piece.latents
                values = np.ascontiguousarray(states, dtype="<f2")
                data = base64.b64encode(values.tobytes()).decode("ascii")
                piece["latents"] = {"dtype": "float16", "shape": list(values.shape), "data": data}
            pieces.append(piece)
        utterances.append(
            {
                "name": utterance.utterance.name,
                "language": utterance.language,
                "text": utterance.utterance.text,
                "voice": utterance.voice.name,
                "pieces": pieces,
            }
        )
    document = {"format": CODES_FORMAT, "family": family.name, "code_hz": family.code_hz, "utterances": utterances}
    write_json(path, document, overwrite=overwrite)


def write_stdout(
    speakers: SynthesisModels,
    voices: VoiceLoader,
    utterances: Sequence[UtteranceRequest],
    settings: SpeakSettings,
    vocoder: Vocoder,
) -> list[SpokenUtterance]:
    """All utterances as one WAV on standard output, each part as soon as it is spoken.

    From here on, all that the process prints goes to standard error, so that it does not get into the sound.
    """
    planned = [plan_utterance(speakers, voices, item, settings, vocoder) for item in utterances]
    spoken: list[SpokenUtterance] = []

    def waves() -> Iterator[Wave]:
        for plan in planned:
            if spoken:
                yield np.zeros(round(2 * settings.pause * vocoder.sample_rate), dtype=np.float32)
            engine = _build_engine(plan.system, settings, vocoder)
            spoken.append((yield from stream_pieces(plan, engine, voices.condition(plan.voice), vocoder)))

    encoder = AudioEncoder("wav", vocoder.sample_rate)
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        with output:
            for wave in waves():
                output.write(encoder.write(wave))
                output.flush()
            output.write(encoder.finish())
    except BrokenPipeError:
        raise FileError(
            "speak-pipe", "the program that reads standard output has ended", where="standard output"
        ) from None
    return spoken


@dataclass(frozen=True, slots=True)
class SpeakResult:
    """What was spoken, how it ended, and where it is."""

    family: Family
    base: Path
    said: tuple[SpokenUtterance, ...]
    sound: tuple[Path, ...]
    """The file of each utterance; none where only codes were requested."""
    codes: Path | None
    notes: tuple[Finding, ...] = ()
    """Findings about the speakers, whatever was spoken."""

    @property
    def cut(self) -> list[SpokenUtterance]:
        """Utterances that did not end on their own."""
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
            segments = f", {len(one.pieces)} segments" if len(one.pieces) > 1 else ""
            where = f": {self.sound[at]}" if self.sound else ""
            stop = (STOP_DESCRIPTIONS[one.stop], "green" if one.stop == "ended" else "bold yellow")
            head = f"{one.utterance.name}  {one.language}  {self._seconds(one):.1f} s{segments}, "
            lines.append(style_line(head, stop, where))
        lines += [text for item in self.findings for text in item.lines()]
        total = sum(map(self._seconds, self.said))
        cut = f"; {len(self.cut)} did not end and {'was' if len(self.cut) == 1 else 'were'} cut" if self.cut else ""
        lines.append(f"{pluralize(len(self.said), 'utterance')}, {total:.1f} s{cut}")
        return [*lines, *([f"codes: {self.codes}"] if self.codes else [])]

    def _seconds(self, one: SpokenUtterance) -> float:
        return round(one.seconds(self.family.code_hz), 2)


def speak(settings: SpeakSettings) -> SpeakResult:
    """Generate all utterances, then write them."""
    utterances = read_utterances(settings.text, settings.file)
    speakers = open_synthesis_models(settings, {utterance.language or settings.language for utterance in utterances})
    family, files = speakers.context.family, speakers.context.files
    vocoder = speakers.context.vocoder()
    outputs = _plan_files(utterances, settings, family, vocoder)
    output_vocoder = vocoder if outputs else None
    if output_vocoder is not None:
        output_vocoder.validate()
    voices = VoiceLoader(speakers, settings, vocoder=output_vocoder)
    is_streamed = outputs == (STANDARD_OUTPUT,)
    if output_vocoder is not None and is_streamed:
        spoken = write_stdout(speakers, voices, utterances, settings, output_vocoder)
    else:
        spoken = synthesize(speakers, voices, utterances, settings, output_vocoder)
    # New languages that are spoken by a graft as it was made, before any step of training. A graft from elsewhere may
    # have an adapter and not say how it was trained.
    untrained = [
        name
        for name in sorted({utterance.language for utterance in spoken})
        if (system := speakers.system(name)).text_encoder.is_new_language(name)
        and (system.step == 0 or (system.step is None and system.gate is None))
    ]
    notes = []
    if untrained:
        notes.append(finding("speak-untrained", f"the graft of {', '.join(untrained)} was not trained yet"))
    audio_files: tuple[Path, ...] = ()
    if output_vocoder is not None:
        audio_files = (
            outputs * len(spoken)
            if is_streamed
            else write_audio_files(
                spoken,
                output_vocoder,
                outputs,
                pause=settings.pause,
                batch=settings.batch,
                overwrite=settings.overwrite,
            )
        )
        notes += output_vocoder.findings()
    if settings.codes is not None:
        write_codes_file(spoken, settings.codes, family, latents=settings.latents, overwrite=settings.overwrite)
    return SpeakResult(family, files.folder, tuple(spoken), audio_files, settings.codes, tuple(notes))
