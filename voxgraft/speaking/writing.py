"""Speech into files: WAV of 16 bits, FLAC, OGG or MP3, one for each utterance or one for all; codes as JSON or NumPy.

Nothing that is there is replaced unless that was asked for; a file is whole or not there.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft import progress
from voxgraft.audio.wav import encode_wav
from voxgraft.errors import ConfigError
from voxgraft.families.base import Family
from voxgraft.families.sounding import Vocoder
from voxgraft.files import atomic_write, is_folder, require_output_path, write_json
from voxgraft.settings import SpeakSettings
from voxgraft.speaking.saying import SpokenChunk, SpokenUtterance
from voxgraft.speaking.texts import UtteranceRequest

__all__ = ["CODES_FORMAT", "SpeakOutputs", "plan_outputs", "render_utterance", "write_audio_files", "write_codes_file"]

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
    name = AUDIO_FORMATS[path.suffix.lower()]
    if name == "WAV":
        data = encode_wav(wave, rate)
    else:
        import soundfile  # needed for these formats alone

        stream = io.BytesIO()
        soundfile.write(stream, np.clip(np.nan_to_num(wave), -1, 1), rate, format=name)
        data = stream.getvalue()
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(data)
