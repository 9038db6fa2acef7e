"""Speech codes to sound, where the family has a waveform end; and whose voice that sound has. Writes no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxgraft import progress
from voxgraft.audio.resample import resample
from voxgraft.errors import VoxgraftError
from voxgraft.evaluating.rates import Score, unmeasured_score
from voxgraft.evaluating.scoring import compute_voice_similarity
from voxgraft.evaluating.speaking import SpokenSentence
from voxgraft.evaluating.systems import ModelContext, SpeakingModel
from voxgraft.families.encoding import REFERENCE_AUDIO, Clip, ClipEncoder
from voxgraft.families.sounding import Vocoder
from voxgraft.training.replay import ReferenceVoice

__all__ = ["SpeechRenderer", "VoiceComparer", "open_speech_renderer", "open_voice_comparer"]

Wave = NDArray[np.float32]
VOCODER_BATCH_SIZE = 16
MIN_SIMILARITY_SECONDS = 0.5
"""A shorter sound has no voice to speak of."""


@dataclass(frozen=True)
class SpeechRenderer:
    """A waveform end; or none, and why."""

    vocoder: Vocoder | None
    why: str = ""

    @property
    def rate(self) -> int:
        assert self.vocoder is not None
        return self.vocoder.sample_rate

    def restrict_to_voices(self, voices: Sequence[Clip]) -> SpeechRenderer:
        """The same, or none if it cannot sound like one of the voices."""
        why = next((told for voice in voices if self.vocoder and (told := self.vocoder.why_not(voice))), "")
        return SpeechRenderer(None, why) if why else self

    def waves(self, said: Sequence[SpokenSentence], who: str) -> list[Wave]:
        """Every utterance as sound; what could not be said is silence without a sample."""
        assert self.vocoder is not None
        found: list[Wave] = []
        with progress.progress_task(f"making sound of {who}", len(said)) as advance:
            for first in range(0, len(said), VOCODER_BATCH_SIZE):
                some = said[first : first + VOCODER_BATCH_SIZE]
                found += self.vocoder.sound([one.codes or () for one in some], [one.voice.clip for one in some])
                advance(len(some))
        return found


@dataclass(frozen=True)
class VoiceComparer:
    """The family's own voice encoder; or none that can be used, and why."""

    encoder: ClipEncoder | None
    why: str = ""

    def score_similarity(self, said: Sequence[SpokenSentence], waves: Sequence[Wave], rate: int, seed: int) -> Score:
        """How like the voices that were asked for the spoken ones are."""
        if self.encoder is None:
            return unmeasured_score(self.why)
        long = [at for at, wave in enumerate(waves) if len(wave) >= MIN_SIMILARITY_SECONDS * rate]
        if not long:
            return unmeasured_score("no utterance is long enough to have a voice")
        try:
            clips = self.encoder.encode([resample(waves[at], rate, self.encoder.sample_rate) for at in long])
        except VoxgraftError as error:
            return unmeasured_score(f"the voice encoder refused the speech: {error.finding.found}")
        wanted = [np.asarray(said[at].voice.clip.voice["speaker"]) for at in long]
        return compute_voice_similarity([np.asarray(clip.voice["speaker"]) for clip in clips], wanted, seed)


def open_speech_renderer(place: ModelContext) -> SpeechRenderer:
    """The waveform end of a base. That a family has none is no error: codes can be judged too."""
    vocoder = place.family.vocoder(place.files, place.device)
    if vocoder is None:
        return SpeechRenderer(None, f"the waveform end of {place.family.name} is not here, so its codes make no sound")
    return SpeechRenderer(vocoder)


def open_voice_comparer(base: SpeakingModel, place: ModelContext, voices: Sequence[ReferenceVoice]) -> VoiceComparer:
    """The base's voice encoder, where a voice is a vector that it hears and the sound has the voices asked for."""
    vector = voices[0].clip.voice.get("speaker")
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind != "f":
        return VoiceComparer(None, f"voices of {place.family.name} are not told by ear")
    try:
        encoder = place.family.encoder(place.files, base.model)
    except VoxgraftError as error:
        return VoiceComparer(None, f"the base's voice encoder cannot be opened: {error.finding.found}")
    own = place.family.voices(place.files)
    sounding = all(voice.name in own or REFERENCE_AUDIO in voice.clip.voice for voice in voices)
    if encoder.reference_rate is not None and not sounding:
        why = "held-out clips lend their voice without its sound, and the base's own is heard (--voices FILE.wav)"
        return VoiceComparer(None, why)
    return VoiceComparer(encoder)
