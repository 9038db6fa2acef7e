"""Speech codes to sound, where the family has a waveform end; and whose voice that sound has. Writes no files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.asr import Transcript
from voxgraft.audio.files import MAX_CLIP_SECONDS, read_audio, resample
from voxgraft.core import progress
from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.core.files import is_file, read_text, require_folder
from voxgraft.dataset.shards import ClipDataset
from voxgraft.evaluation.scores import (
    Score,
    ScoreRow,
    Transcriber,
    compute_error_rates,
    compute_voice_similarity,
    unmeasured_score,
)
from voxgraft.evaluation.sentences import EvalSentence, SentenceSet
from voxgraft.evaluation.synthesis import SpokenSentence
from voxgraft.models.base import REFERENCE_AUDIO, Clip, ClipEncoder, Vocoder
from voxgraft.synthesis.engine import ModelContext, SpeakingModel
from voxgraft.synthesis.voices import ReferenceVoice

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

    @property
    def needs_latents(self) -> bool:
        return self.vocoder is not None and self.vocoder.needs_latents

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
                codes, voices = [one.codes or () for one in some], [one.voice.clip for one in some]
                latents = [np.zeros((0, 0)) if one.latents is None else one.latents for one in some]
                found += self.vocoder.sound(codes, voices, latents if self.needs_latents else None)
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


WHO_RECORDINGS, WHO_CODEC = "recordings", "codec"
GIVEN_RECORDINGS_TITLE, ORIGINAL_RECORDINGS_TITLE = "recordings that were given", "original recordings of the sentences"
RECORDING_RATE_HZ = 24_000
"""Of recordings that clips of a data set lend: more than any recogniser takes, and enough for the ear."""
MAX_RECORDINGS = 100
"""Recordings that are listened to, spread over all that there are."""


@dataclass(frozen=True, slots=True)
class ReferenceRecording:
    """One recording and what is said in it."""

    sentence: EvalSentence
    wave: NDArray[np.float32]
    rate: int


def read_reference_recordings(folder: Path, language: str) -> list[ReferenceRecording]:
    """NAME.wav with NAME.txt beside it, and NAME.phones where the phones are known."""
    paths = sorted(require_folder(folder).glob("*.wav"))
    if not paths:
        raise FileError("recordings-missing", f"no *.wav in {folder.name}", where=folder)
    if alone := [path.name for path in paths if not is_file(path.with_suffix(".txt"))]:
        found = f"{len(alone)} of {len(paths)} recordings have no text beside them, such as {alone[0]}"
        raise FileError("recordings-missing", found, expected="NAME.txt beside NAME.wav", where=folder)
    chosen = (
        [paths[at * len(paths) // MAX_RECORDINGS] for at in range(MAX_RECORDINGS)]
        if len(paths) > MAX_RECORDINGS
        else paths
    )
    found_all = []
    for path in chosen:
        phones = path.with_suffix(".phones")
        known = tuple(read_text(phones).split()) if is_file(phones) else None
        sentence = EvalSentence(language, read_text(path.with_suffix(".txt")).strip(), phones=known)
        found_all.append(ReferenceRecording(sentence, *read_audio(path, code="wav-form")))
    return found_all


def read_sentence_recordings(sentences: Sequence[EvalSentence]) -> list[ReferenceRecording]:
    """Recordings that the sentences name themselves. One that cannot be read is left out: speech is judged anyway."""
    found = []
    for sentence in sentences:
        if sentence.recording is not None:
            with contextlib.suppress(VoxgraftError):
                wave, rate = read_audio(sentence.recording, RECORDING_RATE_HZ, max_seconds=MAX_CLIP_SECONDS)
                found.append(ReferenceRecording(sentence, wave, rate))
    return found


def score_recordings(
    recordings: Sequence[ReferenceRecording], ear: Transcriber, seed: int, title: str = GIVEN_RECORDINGS_TITLE
) -> ScoreRow | None:
    """The listener's error on recordings as they are; nothing where it does not understand their language."""
    language = recordings[0].sentence.language if recordings else ""
    if not recordings or ear.why_unsupported(language):
        return None
    heard: list[tuple[ReferenceRecording, Transcript]] = []
    for rate in sorted({one.rate for one in recordings}):
        some = [one for one in recordings if one.rate == rate]
        heard += zip(some, ear.hear([one.wave for one in some], rate, language, "recordings"), strict=True)
    errors = compute_error_rates([one.sentence for one, _ in heard], [found for _, found in heard], seed)
    return ScoreRow(language, WHO_RECORDINGS, f"mark: {title}", errors)


def score_codec_clips(
    sets: Sequence[ClipDataset],
    language: str,
    sound: SpeechRenderer,
    ear: Transcriber,
    known: Mapping[str, SentenceSet],
    seed: int,
) -> ScoreRow | None:
    """The listener's error on held-out clips as the codec gives them back; nothing where that makes no sound."""
    # Codes of a recording have no latents: those are of a model that speaks.
    if sound.vocoder is None or sound.needs_latents or ear.why_unsupported(language):
        return None
    places = [(clips, place) for clips in sets for place in range(len(clips))]
    chosen = (
        [places[at * len(places) // MAX_RECORDINGS] for at in range(MAX_RECORDINGS)]
        if len(places) > MAX_RECORDINGS
        else places
    )
    if not chosen:
        return None
    phones = {one.text: one.phones for found in known.values() for one in found.sentences}
    texts = [clips.infos[place].text.strip() for clips, place in chosen]
    sentences = [EvalSentence(language, text, phones=phones.get(text)) for text in texts]
    codes = [clips.codes(place).tolist() for clips, place in chosen]
    voices = [Clip(clips.codes(place), clips.voice(place)) for clips, place in chosen]
    if (vocoder := sound.restrict_to_voices(voices).vocoder) is None:
        return None
    waves = vocoder.sound(codes, voices)
    heard = ear.hear(waves, sound.rate, language, "held-out clips")
    return ScoreRow(
        language, WHO_CODEC, "mark: held-out clips through the codec", compute_error_rates(sentences, heard, seed)
    )
