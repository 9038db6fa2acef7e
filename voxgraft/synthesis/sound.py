"""Spoken utterances as sound: waveforms in batches or while codes still come; audio files and code files."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import encode_audio
from voxgraft.core import progress
from voxgraft.core.errors import Finding
from voxgraft.core.files import atomic_write, write_json
from voxgraft.models.base import Family, Latents, SoundStream, Vocoder
from voxgraft.models.generate import StopCause
from voxgraft.synthesis.engine import SynthesisEngine, SynthesisRequest
from voxgraft.synthesis.inputs import ReferenceVoice, TextChunk, UtteranceRequest

CODES_FORMAT = "voxgraft-codes-1"
WAV_SUFFIX, JSON_SUFFIX, NPY_SUFFIX = ".wav", ".json", ".npy"
# By suffix, the name that libsndfile has for the format.
AUDIO_FORMATS = {WAV_SUFFIX: "WAV", ".flac": "FLAC", ".ogg": "OGG", ".mp3": "MP3"}
# Speech that was cut off fades out instead of ending with a click.
FADE_SECONDS = 0.02
# Codes after which a stream first makes sound. Then after as many again, and twice as many each time: every call of
# the vocoder's flow goes over all codes so far, so that calls at even distances would cost more and more.
FIRST_STREAMED_CODES = 24
STOP_DESCRIPTIONS = {"ended": "ended by itself", "limit": "cut at its limit", "loop": "cut: it went round in a loop"}
Wave = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpokenChunk:
    """One chunk of an utterance: what is generated, and once it is, the codes and why they ended."""

    piece: TextChunk
    ids: tuple[int, ...]
    """Text tokens that the model is given."""
    max_codes: int
    seed: int
    codes: tuple[int, ...] = ()
    stop: StopCause = "ended"
    latents: Latents | None = None
    """For a vocoder that needs them. [codes, width]"""


@dataclass(frozen=True, slots=True)
class SpokenUtterance:
    """One utterance: planned, and after `synthesize` with its codes."""

    utterance: UtteranceRequest
    language: str
    voice: ReferenceVoice
    pieces: tuple[SpokenChunk, ...]
    findings: tuple[Finding, ...]

    @property
    def stop(self) -> StopCause:
        """Why it ended: by itself only if every chunk did."""
        return next((one.stop for one in self.pieces if one.stop != "ended"), "ended")

    def seconds(self, code_hz: float) -> float:
        """With the pauses between its chunks."""
        return sum(len(one.codes) / code_hz + one.piece.pause_seconds for one in self.pieces)


def render_pieces(said: Sequence[SpokenUtterance], vocoder: Vocoder, batch: int) -> Iterator[list[Wave]]:
    """The sentences of each utterance as waveforms, in the order of the utterances; `batch` go to the vocoder at once.

    Each waveform is what it would be alone, up to rounding.
    """
    pieces = [(one, utterance.voice.clip) for utterance in said for one in utterance.pieces]
    waves: list[Wave] = []  # of pieces whose utterance is not complete yet
    place = 0
    for utterance in said:
        while len(waves) < len(utterance.pieces):
            some = pieces[place : place + batch]
            place += len(some)
            codes, voices = [one.codes for one, _ in some], [voice for _, voice in some]
            latents = [np.zeros((0, 0)) if one.latents is None else one.latents for one, _ in some]
            found = vocoder.sound(codes, voices, latents if vocoder.needs_latents else None)
            waves += [
                _fade_out(wave, vocoder.sample_rate) if one.stop != "ended" else wave
                for (one, _), wave in zip(some, found, strict=True)
            ]
        yield waves[: len(utterance.pieces)]
        del waves[: len(utterance.pieces)]


def stream_pieces(
    utterance: SpokenUtterance, engine: SynthesisEngine, condition: Any, vocoder: Vocoder
) -> Iterator[Wave]:
    """The sound of a planned utterance as soon as there is some, with the pauses between its sentences.

    A vocoder that can sounds while a sentence is still being generated; any other sounds sentence by sentence, and
    those waveforms are the ones that `render_pieces` gives.
    """
    rate = vocoder.sample_rate
    for one in utterance.pieces:
        request = SynthesisRequest(one.ids, condition, one.seed, one.max_codes, utterance.language, ())
        stream = vocoder.stream(utterance.voice.clip, one.max_codes)
        if stream is not None:
            yield from stream_sentence(engine, request, stream, rate)
        else:
            [[(_, result)]] = engine.iterate([request])
            spoken = replace(one, codes=result.codes, stop=result.stop, latents=result.latents)
            ((wave,),) = render_pieces([replace(utterance, pieces=(spoken,))], vocoder, 1)
            yield wave
        if one.piece.pause_seconds:
            yield np.zeros(round(one.piece.pause_seconds * rate), dtype=np.float32)


def stream_sentence(
    engine: SynthesisEngine, request: SynthesisRequest, stream: SoundStream, rate: int
) -> Iterator[Wave]:
    """One sentence while it is being generated, in waveforms that follow each other."""
    waiting: list[int] = []
    wanted, stop = FIRST_STREAMED_CODES, "ended"
    for codes, cause in engine.stream(request):
        waiting, stop = waiting + codes, cause
        if len(waiting) >= wanted:
            if len(wave := stream.feed(waiting)):
                yield wave
            waiting, wanted = [], 2 * wanted
    last = stream.finish(waiting)
    if len(last):
        yield last if stop == "ended" else _fade_out(last, rate)


def _fade_out(wave: Wave, rate: int) -> Wave:
    """A copy whose last 20 ms fade to zero."""
    count = min(len(wave), round(FADE_SECONDS * rate))
    faded = wave.copy()
    faded[len(wave) - count :] *= np.linspace(1, 0, count, dtype=np.float32)
    return faded


def write_audio_files(
    said: Sequence[SpokenUtterance],
    vocoder: Vocoder,
    files: Sequence[Path],
    *,
    pause: float = 0.3,
    batch: int = 16,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """The file of each utterance: its own, or the same one for all, with a paragraph's pause between them."""
    rate = vocoder.sample_rate
    together: list[Wave] = []
    joined = len(files) == 1 and len(said) > 1

    def silence(seconds: float) -> Wave:
        return np.zeros(round(seconds * rate), dtype=np.float32)

    def write(path: Path, parts: Sequence[Wave]) -> None:
        data = encode_audio(np.concatenate(parts), rate, AUDIO_FORMATS[path.suffix.lower()])
        with atomic_write(path, overwrite=overwrite) as file:
            file.write(data)

    with progress.progress_task("making sound", len(said)) as advance:
        for at, (utterance, waves) in enumerate(zip(said, render_pieces(said, vocoder, batch), strict=True)):
            pauses = [silence(one.piece.pause_seconds) for one in utterance.pieces]
            parts = [part for pair in zip(waves, pauses, strict=True) for part in pair]
            if joined:
                together += [*parts, silence(2 * pause)]
            else:
                write(files[at], parts)
            advance(1)
    if joined:
        write(files[0], together[:-1])
    return tuple(files[0 if joined else at] for at in range(len(said)))


def write_codes_file(
    said: Sequence[SpokenUtterance], path: Path, family: Family, *, latents: bool = False, overwrite: bool = False
) -> None:
    """JSON with all that a vocoder needs, or the bare codes of one utterance, its chunks one after another.

    With `latents` each piece has the language model's states too: float16, row by row, base64.
    """
    if path.suffix.lower() == NPY_SUFFIX:
        stream = io.BytesIO()
        np.save(stream, np.array([code for piece in said[0].pieces for code in piece.codes], dtype=np.int32))
        with atomic_write(path, overwrite=overwrite) as file:
            file.write(stream.getvalue())
        return
    utterances = []
    for utterance in said:
        pieces = []
        for one in utterance.pieces:
            piece = {
                "text": one.piece.text,
                "text_ids": list(one.ids),
                "codes": list(one.codes),
                "stop": one.stop,
                "seed": one.seed,
                "pause_seconds": one.piece.pause_seconds,
            }
            if latents:
                states = np.zeros((0, 0)) if one.latents is None else one.latents
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
