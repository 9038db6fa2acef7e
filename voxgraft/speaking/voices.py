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
from voxgraft.families.base import Manner, voice_unknown
from voxgraft.families.encoding import Clip, ClipEncoder, recording_clip
from voxgraft.files import is_file
from voxgraft.settings import SpeakSettings
from voxgraft.speaking.opening import Speakers
from voxgraft.training.replay import Voice, chosen_voices

__all__ = ["Voices"]

_SHARES = re.compile(r"\d*\.?\d+(?:,\d*\.?\d+)+")
"""Numbers with commas between them: shares of named emotions, where else a file is named."""


RECORDINGS = (".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a")
NO_IMITATION = "choose one of these names, or speak with a base that imitates a recording (chatterbox, indextts2)."


def _is_recording(name: str) -> bool:
    """Whether somebody means a sound file and no name of a voice."""
    return is_file(Path(name)) or Path(name).suffix.lower() in RECORDINGS


@dataclass
class Voices:
    """Voices by what they are called, as far as they were asked for."""

    speakers: Speakers
    settings: SpeakSettings
    _found: dict[str | None, Voice] = field(default_factory=dict)
    _encoder: ClipEncoder | None = None
    _manner: Manner | None = None

    def voice(self, asked: str | None) -> Voice:
        """The voice of an utterance: its own, that of all, or whatever is there."""
        name = asked or self.settings.voice
        if name not in self._found:
            self._found[name] = self._usual() if name is None else self._asked(name)
        return self._found[name]

    def condition(self, voice: Voice) -> Any:
        """What the model is given."""
        family = self.speakers.place.family
        return family.in_manner(family.condition(voice.clip), self._asked_manner())

    def _asked(self, name: str) -> Voice:
        place = self.speakers.place
        own = place.family.voices(place.files)
        if name not in own and not place.family.imitates and _is_recording(name):
            found = f"{place.family.name} speaks with voices of its own and cannot imitate the recording {name}"
            expected = f"one of {', '.join(own)}"
            raise ConfigError("voice-unknown", found, expected=expected, where=place.files.folder, cure=NO_IMITATION)
        if name in own or not place.family.imitates:
            return Voice(name, place.family.voice(place.files, name))
        if not is_file(Path(name)):
            raise voice_unknown(name, own, place.files.folder)
        return Voice(Path(name).name, self._encoded(Path(name)))

    def _usual(self) -> Voice:
        speakers = self.speakers
        for name, clip in speakers.place.family.voices(speakers.place.files).items():
            return Voice(name, clip)
        if speakers.held_out is not None:
            held_out = speakers.held_out()
            sets = held_out.sets.get(speakers.new_languages[0]) or held_out.all_sets
            if sets:
                return chosen_voices(sets, held_out.min_prompt_seconds, 1, held_out.seed)[0]
        found = f"{speakers.place.family.name} has no voices of its own, and none is given"
        raise FileError("speak-voice", found, expected="--voice FILE.wav", where=speakers.place.files.folder)

    def _asked_manner(self) -> Manner:
        if self._manner is None:
            settings = self.settings
            emotion, weight = None, settings.emotion_weight
            if settings.emotion is not None and _SHARES.fullmatch(str(settings.emotion)):
                emotion, weight = self._mixed(str(settings.emotion), 1.0 if weight is None else weight)
            elif settings.emotion is not None:
                emotion = self._emotion(settings.emotion)
            self._manner = Manner(settings.exaggeration, emotion, weight)
        return self._manner

    def _mixed(self, shares: str, weight: float) -> tuple[Clip, float]:
        """Of the family's named emotions; what they leave of the whole is the voice's own."""
        place = self.speakers.place
        emotion, whole = place.family.mixed_emotion(place.files, [float(share) for share in shares.split(",")])
        return emotion, whole * weight

    def _emotion(self, path: Path) -> Clip:
        """Of a recording, or as a vector of the model's own width, as it is kept of prepared clips."""
        if path.suffix.lower() == ".npy":
            return Clip(np.zeros(0, dtype=np.int64), {"emotion": read_npy(path, "floats").astype(np.float32)})
        family, voice = self.speakers.place.family, self.voice(None).clip
        family.in_manner(
            family.condition(voice), Manner(emotion=voice)
        )  # who knows no emotions says so before all else
        return self._encoded(path)

    def _encoded(self, path: Path) -> Clip:
        samples, rate = read_wav(path)
        if self._encoder is None:
            place = self.speakers.place
            # The encoder of IndexTTS-2 is part of the base; a graft has it unchanged.
            self._encoder = place.family.encoder(place.files, self.speakers.all[-1].model)
        return recording_clip(self._encoder, samples, rate)
