"""Voices to speak with: of the base by name, of a recording, or borrowed from clips of a run; and speaking styles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voxgraft.audio.files import read_audio
from voxgraft.config.commands import SpeakSettings
from voxgraft.core.errors import ConfigError, FileError
from voxgraft.core.files import is_file
from voxgraft.core.rng import hash_int
from voxgraft.models.base import Clip, ClipEncoder, SpeakingStyle, encode_recording, unknown_voice_error
from voxgraft.synthesis.engine import SynthesisModels

if TYPE_CHECKING:
    from voxgraft.dataset.shards import ClipDataset

MIN_UTTERANCES_PER_VOICE = 4
MAX_REPLAY_VOICES = 16
_EMOTION_SHARES = re.compile(r"\d*\.?\d+(?:,\d*\.?\d+)+")
"""Numbers with commas between them: shares of named emotions; anything else names a file."""
RECORDING_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a")
NO_IMITATION_CURE = "choose one of these names, or speak with a base that imitates a recording (chatterbox, indextts2)."


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A voice to speak with: a clip, of a run or of the base, and its name."""

    name: str
    clip: Clip


def choose_voices(sets: Sequence[ClipDataset], min_seconds: float, count: int, seed: int) -> list[ReferenceVoice]:
    """Voices of the run's own clips for `count` utterances: of as many speakers as possible, from clips long enough."""
    places = [(clips, place) for clips in sets for place in _find_prompt_clips(clips)]
    long = [(clips, place) for clips, place in places if clips.infos[place].seconds >= min_seconds]
    longest = max(places, key=lambda found: found[0].infos[found[1]].seconds)
    order = sorted(
        long or [longest], key=lambda found: hash_int("voice", seed, found[0].name, found[0].infos[found[1]].id)
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


def _find_prompt_clips(clips: ClipDataset) -> list[int]:
    """Every clip, or, in a set that brings its own prompts, these."""
    given = [clips.prompt_of(clip) for clip in range(len(clips))]
    return sorted({clip if prompt is None else prompt for clip, prompt in enumerate(given)})


def _is_recording_name(name: str) -> bool:
    """Whether a name means an audio file and not a voice of the base."""
    return is_file(Path(name)) or Path(name).suffix.lower() in RECORDING_SUFFIXES


@dataclass
class VoiceLoader:
    """Voices by what they are called, as far as they were asked for."""

    speakers: SynthesisModels
    settings: SpeakSettings
    _found: dict[str | None, ReferenceVoice] = field(default_factory=dict)
    _encoder: ClipEncoder | None = None
    _emotion: Clip | None = None

    def voice(self, asked: str | None) -> ReferenceVoice:
        """The voice of an utterance: its own, that of all, or whatever is there."""
        name = asked or self.settings.voice
        if name not in self._found:
            self._found[name] = self._choose_default_voice() if name is None else self._load_voice(name)
        return self._found[name]

    def condition(self, voice: ReferenceVoice) -> Any:
        """What the model is given."""
        family = self.speakers.place.family
        return family.apply_style(family.condition(voice.clip), self._resolve_style(voice))

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

    def _resolve_style(self, voice: ReferenceVoice) -> SpeakingStyle:
        """How that voice shall speak: named emotions depend on it, a recording's does not."""
        settings, place = self.settings, self.speakers.place
        if settings.emotion is not None and _EMOTION_SHARES.fullmatch(str(settings.emotion)):
            shares = [float(share) for share in str(settings.emotion).split(",")]
            weight = 1.0 if settings.emotion_weight is None else settings.emotion_weight
            mixed = place.family.mix_emotions(place.files, shares, weight, voice.clip)
            return SpeakingStyle(settings.exaggeration, mixed)
        if settings.emotion is not None and self._emotion is None:
            self._emotion = self._load_emotion(settings.emotion)
        return SpeakingStyle(settings.exaggeration, self._emotion, settings.emotion_weight)

    def _load_emotion(self, path: Path) -> Clip:
        """Of a recording, or as a vector of the model's own width, as it is kept of prepared clips."""
        if path.suffix.lower() == ".npy":
            from voxgraft.dataset.indextts2_manifest import read_npy

            return Clip(np.zeros(0, dtype=np.int64), {"emotion": read_npy(path, "floats").astype(np.float32)})
        family, voice = self.speakers.place.family, self.voice(None).clip
        # A family without emotions refuses here, before the recording is read.
        family.apply_style(family.condition(voice), SpeakingStyle(emotion=voice))
        return self._encode_recording(path)

    def _encode_recording(self, path: Path) -> Clip:
        samples, rate = read_audio(path, code="wav-form")
        if self._encoder is None:
            place = self.speakers.place
            # The encoder of IndexTTS-2 is part of the base; a graft has it unchanged.
            self._encoder = place.family.encoder(place.files, self.speakers.all[-1].model)
        return encode_recording(self._encoder, samples, rate)
