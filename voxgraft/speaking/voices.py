"""Whose voice is spoken in, and in which manner: names of a base's own table, recordings through its encoder, emotions.

Every recording is read and encoded once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.audio.wav import read_wav
from voxgraft.corpus.npy import read_npy
from voxgraft.errors import ConfigError, FileError
from voxgraft.families.base import SpeakingStyle, unknown_voice_error
from voxgraft.families.encoding import Clip, ClipEncoder, encode_recording
from voxgraft.files import is_file
from voxgraft.settings import SpeakSettings
from voxgraft.speaking.opening import SynthesisModels
from voxgraft.training.replay import ReferenceVoice, choose_voices

__all__ = ["VoiceLoader"]

_EMOTION_SHARES = re.compile(r"\d*\.?\d+(?:,\d*\.?\d+)+")
"""Numbers with commas between them: shares of named emotions, where else a file is named."""


RECORDING_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a")
NO_IMITATION_CURE = "choose one of these names, or speak with a base that imitates a recording (chatterbox, indextts2)."


def _is_recording_name(name: str) -> bool:
    """Whether somebody means a sound file and no name of a voice."""
    return is_file(Path(name)) or Path(name).suffix.lower() in RECORDING_SUFFIXES


@dataclass
class VoiceLoader:
    """Voices by what they are called, as far as they were asked for."""

    speakers: SynthesisModels
    settings: SpeakSettings
    _found: dict[str | None, ReferenceVoice] = field(default_factory=dict)
    _encoder: ClipEncoder | None = None
    _style: SpeakingStyle | None = None

    def voice(self, asked: str | None) -> ReferenceVoice:
        """The voice of an utterance: its own, that of all, or whatever is there."""
        name = asked or self.settings.voice
        if name not in self._found:
            self._found[name] = self._choose_default_voice() if name is None else self._load_voice(name)
        return self._found[name]

    def condition(self, voice: ReferenceVoice) -> Any:
        """What the model is given."""
        family = self.speakers.place.family
        return family.apply_style(family.condition(voice.clip), self._resolve_style())

    def _load_voice(self, name: str) -> ReferenceVoice:
        place = self.speakers.place
        own = place.family.voices(place.files)
        if name not in own and not place.family.clones_voices and _is_recording_name(name):
            found = f"{place.family.name} speaks with voices of its own and cannot imitate the recording {name}"
            expected = f"one of {', '.join(own)}"
            raise ConfigError(
                "voice-unknown", found, expected=expected, where=place.files.folder, cure=NO_IMITATION_CURE
            )
        if name in own or not place.family.clones_voices:
            return ReferenceVoice(name, place.family.voice(place.files, name))
        if not is_file(Path(name)):
            raise unknown_voice_error(name, own, place.files.folder)
        return ReferenceVoice(Path(name).name, self._encode_recording(Path(name)))

    def _choose_default_voice(self) -> ReferenceVoice:
        speakers = self.speakers
        for name, clip in speakers.place.family.voices(speakers.place.files).items():
            return ReferenceVoice(name, clip)
        if speakers.held_out is not None:
            held_out = speakers.held_out()
            sets = held_out.sets.get(speakers.new_languages[0]) or held_out.all_sets
            if sets:
                return choose_voices(sets, held_out.min_prompt_seconds, 1, held_out.seed)[0]
        found = f"{speakers.place.family.name} has no voices of its own, and none is given"
        raise FileError("speak-voice", found, expected="--voice FILE.wav", where=speakers.place.files.folder)

    def _resolve_style(self) -> SpeakingStyle:
        if self._style is None:
            settings = self.settings
            emotion, weight = None, settings.emotion_weight
            if settings.emotion is not None and _EMOTION_SHARES.fullmatch(str(settings.emotion)):
                emotion, weight = self._mixed(str(settings.emotion), 1.0 if weight is None else weight)
            elif settings.emotion is not None:
                emotion = self._load_emotion(settings.emotion)
            self._style = SpeakingStyle(settings.exaggeration, emotion, weight)
        return self._style

    def _mixed(self, shares: str, weight: float) -> tuple[Clip, float]:
        """Of the family's named emotions; what they leave of the whole is the voice's own."""
        place = self.speakers.place
        emotion, whole = place.family.mix_emotions(place.files, [float(share) for share in shares.split(",")])
        return emotion, whole * weight

    def _load_emotion(self, path: Path) -> Clip:
        """Of a recording, or as a vector of the model's own width, as it is kept of prepared clips."""
        if path.suffix.lower() == ".npy":
            return Clip(np.zeros(0, dtype=np.int64), {"emotion": read_npy(path, "floats").astype(np.float32)})
        family, voice = self.speakers.place.family, self.voice(None).clip
        family.apply_style(
            family.condition(voice), SpeakingStyle(emotion=voice)
        )  # who knows no emotions says so before all else
        return self._encode_recording(path)

    def _encode_recording(self, path: Path) -> Clip:
        samples, rate = read_wav(path)
        if self._encoder is None:
            place = self.speakers.place
            # The encoder of IndexTTS-2 is part of the base; a graft has it unchanged.
            self._encoder = place.family.encoder(place.files, self.speakers.all[-1].model)
        return encode_recording(self._encoder, samples, rate)
