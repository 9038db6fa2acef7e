"""Whose voice the sentences are spoken in: the one that was asked for, else held-out clips of the run, else the base's.

Every system speaks with the same voices. Reads waveforms; makes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voxgraft.audio.wav import read_wav
from voxgraft.corpus.clips import ClipSet
from voxgraft.errors import FileError
from voxgraft.evaluating.systems import System
from voxgraft.families.base import BaseFiles, voice_unknown
from voxgraft.families.encoding import recording_clip
from voxgraft.files import is_file
from voxgraft.training.replay import Voice, chosen_voices

__all__ = ["MOST_VOICES", "voices_of"]

MOST_VOICES = 4


def voices_of(
    base: System, files: BaseFiles, asked: Sequence[str], held_out: Sequence[ClipSet], min_seconds: float, seed: int
) -> list[Voice]:
    """Some voices to take turns with; an error that says how to name one where there is none."""
    if asked:
        return [_asked(base, files, name) for name in asked]
    if held_out:
        found = chosen_voices(held_out, min_seconds, MOST_VOICES * 4, seed)
        return _of_different_speakers(found)
    own = base.family.voices(files)
    if own:
        return [Voice(name, clip) for name, clip in list(own.items())[:MOST_VOICES]]
    found_nothing = f"nothing to take a voice from: no held-out clips, and {base.family.name} has no voices of its own"
    raise FileError("evaluate-voice", found_nothing, expected="--voices FILE.wav", where=files.folder)


def _asked(base: System, files: BaseFiles, name: str) -> Voice:
    own = base.family.voices(files)
    if name in own:
        return Voice(name, own[name])
    path = Path(name)
    if not is_file(path):
        raise voice_unknown(name, own, files.folder) if own else FileError("file-missing", f"{name} is not there")
    wave, rate = read_wav(path)
    return Voice(path.name, recording_clip(base.family.encoder(files, base.model), wave, rate))


def _of_different_speakers(found: Sequence[Voice]) -> list[Voice]:
    """`chosen_voices` has one clip of every speaker first, so the first ones are of as many speakers as there are."""
    return list(found[:MOST_VOICES])
