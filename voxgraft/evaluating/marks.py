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
from voxgraft.corpus.clips import ClipSet
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.evaluating.hearing import Ear, errors_of
from voxgraft.evaluating.scoring import Row
from voxgraft.evaluating.sentences import Sentence, SentenceSet
from voxgraft.evaluating.sound import Sound
from voxgraft.families.encoding import Clip
from voxgraft.files import existing_folder, is_file, read_text
from voxgraft.listening import Heard
from voxgraft.preparing.sound import read_sound

__all__ = [
    "CODEC",
    "RECORDINGS",
    "Recording",
    "codec_mark",
    "read_recordings",
    "recordings_mark",
    "sentence_recordings",
]

RECORDINGS, CODEC = "recordings", "codec"
GIVEN, OF_SENTENCES = "recordings that were given", "original recordings of the sentences"
RATE_HZ = 24_000
"""Of recordings that clips of a data set lend: more than any recogniser takes, and enough for the ear."""
MOST = 100
"""Recordings that are listened to, spread over all that there are."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording and what is said in it."""

    sentence: Sentence
    wave: NDArray[np.float32]
    rate: int


def read_recordings(folder: Path, language: str) -> list[Recording]:
    """NAME.wav with NAME.txt beside it, and NAME.phones where the phones are known."""
    paths = sorted(existing_folder(folder).glob("*.wav"))
    if not paths:
        raise FileError("recordings-missing", f"no *.wav in {folder.name}", where=folder)
    if alone := [path.name for path in paths if not is_file(path.with_suffix(".txt"))]:
        found = f"{len(alone)} of {len(paths)} recordings have no text beside them, such as {alone[0]}"
        raise FileError("recordings-missing", found, expected="NAME.txt beside NAME.wav", where=folder)
    chosen = [paths[at * len(paths) // MOST] for at in range(MOST)] if len(paths) > MOST else paths
    found_all = []
    for path in chosen:
        phones = path.with_suffix(".phones")
        known = tuple(read_text(phones).split()) if is_file(phones) else None
        sentence = Sentence(language, read_text(path.with_suffix(".txt")).strip(), phones=known)
        found_all.append(Recording(sentence, *read_wav(path)))
    return found_all


def sentence_recordings(sentences: Sequence[Sentence]) -> list[Recording]:
    """Recordings that the sentences name themselves. One that cannot be read is left out: speech is judged anyway."""
    found = []
    for sentence in sentences:
        if sentence.recording is not None:
            with contextlib.suppress(VoxgraftError):
                found.append(Recording(sentence, read_sound(sentence.recording, RATE_HZ), RATE_HZ))
    return found


def recordings_mark(recordings: Sequence[Recording], ear: Ear, seed: int, title: str = GIVEN) -> Row | None:
    """The listener's error on recordings as they are; nothing where it does not understand their language."""
    language = recordings[0].sentence.language if recordings else ""
    if not recordings or ear.deaf_to(language):
        return None
    heard: list[tuple[Recording, Heard]] = []
    for rate in sorted({one.rate for one in recordings}):
        some = [one for one in recordings if one.rate == rate]
        heard += zip(some, ear.hear([one.wave for one in some], rate, language, "recordings"), strict=True)
    errors = errors_of([one.sentence for one, _ in heard], [found for _, found in heard], seed)
    return Row(language, RECORDINGS, f"mark: {title}", errors)


def codec_mark(
    sets: Sequence[ClipSet], language: str, sound: Sound, ear: Ear, known: Mapping[str, SentenceSet], seed: int
) -> Row | None:
    """The listener's error on held-out clips as the codec gives them back; nothing where that makes no sound."""
    if sound.vocoder is None or ear.deaf_to(language):
        return None
    places = [(clips, place) for clips in sets for place in range(len(clips))]
    chosen = [places[at * len(places) // MOST] for at in range(MOST)] if len(places) > MOST else places
    if not chosen:
        return None
    phones = {one.text: one.phones for found in known.values() for one in found.sentences}
    texts = [clips.infos[place].text.strip() for clips, place in chosen]
    sentences = [Sentence(language, text, phones=phones.get(text)) for text in texts]
    codes = [clips.codes(place).tolist() for clips, place in chosen]
    voices = [Clip(clips.codes(place), clips.voice(place)) for clips, place in chosen]
    if (vocoder := sound.in_voices(voices).vocoder) is None:
        return None
    waves = vocoder.sound(codes, voices)
    heard = ear.hear(waves, sound.rate, language, "held-out clips")
    return Row(language, CODEC, "mark: held-out clips through the codec", errors_of(sentences, heard, seed))
