"""The mark to reach: the error that the listener itself makes on people's recordings, which no speech can be below.

Two kinds: recordings in a folder, each with its text, and held-out clips of the run as the codec gives them back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.wav import read_wav
from voxgraft.corpus.clips import ClipDataset
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.evaluating.hearing import Transcriber, compute_error_rates
from voxgraft.evaluating.scoring import ScoreRow
from voxgraft.evaluating.sentences import EvalSentence, SentenceSet
from voxgraft.evaluating.sound import SpeechRenderer
from voxgraft.families.encoding import Clip
from voxgraft.files import is_file, read_text, require_folder
from voxgraft.listening import Transcript
from voxgraft.preparing.sound import read_resampled_audio

__all__ = [
    "WHO_CODEC",
    "WHO_RECORDINGS",
    "ReferenceRecording",
    "read_reference_recordings",
    "read_sentence_recordings",
    "score_codec_clips",
    "score_recordings",
]

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
        found_all.append(ReferenceRecording(sentence, *read_wav(path)))
    return found_all


def read_sentence_recordings(sentences: Sequence[EvalSentence]) -> list[ReferenceRecording]:
    """Recordings that the sentences name themselves. One that cannot be read is left out: speech is judged anyway."""
    found = []
    for sentence in sentences:
        if sentence.recording is not None:
            with contextlib.suppress(VoxgraftError):
                found.append(
                    ReferenceRecording(
                        sentence, read_resampled_audio(sentence.recording, RECORDING_RATE_HZ), RECORDING_RATE_HZ
                    )
                )
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
    if sound.vocoder is None or ear.why_unsupported(language):
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
