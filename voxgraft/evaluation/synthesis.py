"""What an evaluation listens to: sentences spoken by a model, their sound, and recordings to compare them with."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import MAX_CLIP_SECONDS, MEDIA_SUFFIXES, read_audio
from voxgraft.core import progress
from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.core.files import is_file, read_text, require_folder
from voxgraft.dataset.shards import ClipDataset
from voxgraft.evaluation.sentences import EvalSentence
from voxgraft.models.base import BaseFiles, Clip, Latents, Vocoder, unknown_voice_error
from voxgraft.synthesis.engine import (
    ModelContext,
    SpeakingModel,
    SynthesisEngine,
    SynthesisRequest,
    draw_seed,
    limit_codes,
    max_sentence_seconds,
)
from voxgraft.synthesis.inputs import ReferenceVoice, choose_voices

Wave = NDArray[np.float32]
MAX_EVAL_VOICES = 4
# Utterances in one call of a vocoder.
VOCODER_BATCH_SIZE = 16
# Rate at which recordings of a data set are read: more than any recogniser takes, and enough for listening.
RECORDING_RATE_HZ = 24_000
# Of more recordings than these, some are chosen that are spread evenly over all.
MAX_RECORDINGS = 100
# What is spoken in a recording, its samples and their rate.
ReferenceRecording = tuple[EvalSentence, Wave, int]


@dataclass(frozen=True, slots=True)
class SpokenSentence:
    """One sentence as one system said it. Without codes it could not be spoken at all, and `why` is the reason."""

    sentence: EvalSentence
    voice: ReferenceVoice
    codes: tuple[int, ...] | None
    stopped: bool
    """The model ended the speech itself, before the limit."""
    seconds: float
    why: str = ""
    code_hz: float = 25.0
    ids: tuple[int, ...] = ()
    """Text tokens that the model was given."""
    latents: Latents | None = None
    """For a vocoder that needs them. [codes, width]"""

    @property
    def is_runaway(self) -> bool:
        return self.codes is not None and not self.stopped


def choose_eval_voices(
    base: SpeakingModel,
    files: BaseFiles,
    names: Sequence[str],
    held_out: Sequence[ClipDataset],
    min_seconds: float,
    seed: int,
) -> list[ReferenceVoice]:
    """Voices to rotate through: those named, else of held-out clips, else the base's own; an error without any."""
    if not names and held_out:
        # One clip of every speaker comes first, so the first voices are of as many speakers as there are.
        return choose_voices(held_out, min_seconds, MAX_EVAL_VOICES * 4, seed)[:MAX_EVAL_VOICES]
    own = base.family.voices(files)
    if not names and own:
        return [ReferenceVoice(name, clip) for name, clip in list(own.items())[:MAX_EVAL_VOICES]]
    if not names:
        found = f"no voice: no held-out clips, and {base.family.name} has no named voices"
        raise FileError("evaluate-voice", found, expected="--voices FILE.wav", where=files.folder)
    voices = []
    for name in names:
        if name in own:
            voices.append(ReferenceVoice(name, own[name]))
            continue
        path = Path(name)
        if not is_file(path):
            missing = FileError("file-missing", f"{name} does not exist")
            raise unknown_voice_error(name, own, files.folder) if own else missing
        wave, rate = read_audio(path, code="wav-form")
        clip = base.family.encoder(files, base.model).encode_voice(wave, rate)
        voices.append(ReferenceVoice(path.name, clip))
    return voices


def synthesize_sentences(
    system: SpeakingModel,
    sentences: Sequence[EvalSentence],
    voices: Sequence[ReferenceVoice],
    seed: int,
    who: str,
    *,
    latents: bool = False,
) -> list[SpokenSentence]:
    """Every sentence, in its order, with rotating voices. Loops are not cut: they are among what is measured."""
    family, stock = system.family, system.family.stock_sampling()
    said: list[SpokenSentence] = []
    requests: dict[int, SynthesisRequest] = {}
    for at, sentence in enumerate(sentences):
        voice = voices[at % len(voices)]
        request = _build_request(system, at, sentence, voice, seed)
        why = system.why_unspeakable(request.text_ids)
        said.append(SpokenSentence(sentence, voice, None, False, 0.0, why, ids=tuple(request.text_ids)))
        if not why:
            requests[at] = request
    # A new engine for every call: inside training its memory must be given back.
    engine = SynthesisEngine(system.model, stock, set_gate=system.set_gate_for, latents=latents)
    results = engine.run(list(requests.values()), f"{who} speaks")
    for at, result in zip(requests, results, strict=True):
        seconds = len(result.codes) / family.code_hz
        said[at] = replace(said[at], codes=result.codes, stopped=result.ended, latents=result.latents)
        said[at] = replace(said[at], seconds=seconds, code_hz=family.code_hz)
    return said


def _build_request(
    system: SpeakingModel, at: int, sentence: EvalSentence, voice: ReferenceVoice, seed: int
) -> SynthesisRequest:
    most = min(system.family.stock_sampling().max_codes, system.model.frame.max_codes)
    return SynthesisRequest(
        tuple(system.ids(sentence.text, sentence.language)),
        system.family.condition(voice.clip),
        # The seed belongs to the sentence, so that a sentence sounds the same in a larger or smaller set.
        draw_seed("evaluate", seed, sentence.language, sentence.text),
        limit_codes(max_sentence_seconds(sentence.text), system.family.code_hz, most),
        sentence.language,
        sort_key=(len(sentence.text), at),
    )


@dataclass(frozen=True)
class SpeechRenderer:
    """A vocoder; or none, and why."""

    vocoder: Vocoder | None
    why: str = ""

    @property
    def rate(self) -> int:
        assert self.vocoder is not None
        return self.vocoder.sample_rate

    def restrict_to_voices(self, voices: Sequence[Clip]) -> SpeechRenderer:
        """The same, or none if the vocoder cannot render one of the voices."""
        reasons = (self.vocoder.why_not(voice) for voice in voices) if self.vocoder else ()
        why = next(filter(None, reasons), "")
        return SpeechRenderer(None, why) if why else self

    @property
    def needs_latents(self) -> bool:
        return self.vocoder is not None and self.vocoder.needs_latents

    def waves(self, said: Sequence[SpokenSentence], who: str) -> list[Wave]:
        """Every utterance as sound; an empty wave for what could not be spoken."""
        assert self.vocoder is not None
        found: list[Wave] = []
        with progress.progress_task(f"vocoding {who}", len(said)) as advance:
            for first in range(0, len(said), VOCODER_BATCH_SIZE):
                some = said[first : first + VOCODER_BATCH_SIZE]
                codes, voices = [one.codes or () for one in some], [one.voice.clip for one in some]
                latents = [np.zeros((0, 0)) if one.latents is None else one.latents for one in some]
                found += self.vocoder.sound(codes, voices, latents if self.needs_latents else None)
                advance(len(some))
        return found


def open_speech_renderer(place: ModelContext) -> SpeechRenderer:
    """The vocoder of a base. A family without one is no error: codes can be evaluated too."""
    vocoder = place.vocoder()
    missing = f"the vocoder of {place.family.name} is missing, so there is no sound"
    return SpeechRenderer(vocoder, "" if vocoder else missing)


def read_reference_recordings(folder: Path, language: str) -> list[ReferenceRecording]:
    """Audio or video files NAME.* with NAME.txt beside them, and NAME.phones where the phones are known."""
    files = sorted(require_folder(folder).iterdir())
    paths = [path for path in files if path.suffix.lower() in MEDIA_SUFFIXES and is_file(path)]
    if not paths:
        found = f"no audio file (*.wav, *.flac, *.mp3 ...) in {folder.name}"
        raise FileError("recordings-missing", found, where=folder)
    if alone := [path.name for path in paths if not is_file(path.with_suffix(".txt"))]:
        found = f"{len(alone)} of {len(paths)} recordings have no text file next to them, such as {alone[0]}"
        raise FileError("recordings-missing", found, expected=f"NAME.txt next to {alone[0]}", where=folder)
    if len(paths) > MAX_RECORDINGS:
        paths = [paths[at * len(paths) // MAX_RECORDINGS] for at in range(MAX_RECORDINGS)]
    recordings = []
    for path in paths:
        phones = path.with_suffix(".phones")
        known = tuple(read_text(phones).split()) if is_file(phones) else None
        sentence = EvalSentence(language, read_text(path.with_suffix(".txt")).strip(), phones=known)
        recordings.append((sentence, *read_audio(path, code="wav-form")))
    return recordings


def read_sentence_recordings(sentences: Sequence[EvalSentence]) -> list[ReferenceRecording]:
    """The recordings that sentences name. Unreadable ones are left out: speech is evaluated without them too."""
    found = []
    for sentence in sentences:
        if sentence.recording is not None:
            with contextlib.suppress(VoxgraftError):
                audio = read_audio(sentence.recording, RECORDING_RATE_HZ, max_seconds=MAX_CLIP_SECONDS)
                found.append((sentence, *audio))
    return found
