"""Whose voice the sentences are spoken in: the one that was asked for, else held-out clips of the run, else the base's.

Every system speaks with the same voices. Reads waveforms; makes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voxgraft.audio.wav import read_wav
from voxgraft.corpus.clips import ClipDataset
from voxgraft.errors import FileError
from voxgraft.evaluating.systems import SpeakingModel
from voxgraft.families.base import BaseFiles, unknown_voice_error
from voxgraft.families.encoding import encode_recording
from voxgraft.files import is_file
from voxgraft.training.replay import ReferenceVoice, choose_voices

__all__ = ["MAX_EVAL_VOICES", "choose_eval_voices"]

MAX_EVAL_VOICES = 4


def choose_eval_voices(
    base: SpeakingModel,
    files: BaseFiles,
    names: Sequence[str],
    held_out: Sequence[ClipDataset],
    min_seconds: float,
    seed: int,
) -> list[ReferenceVoice]:
    """Some voices to take turns with; an error that says how to name one where there is none."""
    if names:
        return [_load_requested_voice(base, files, name) for name in names]
    if held_out:
        found = choose_voices(held_out, min_seconds, MAX_EVAL_VOICES * 4, seed)
        return _limit_voices(found)
    own = base.family.voices(files)
    if own:
        return [ReferenceVoice(name, clip) for name, clip in list(own.items())[:MAX_EVAL_VOICES]]
    found_nothing = f"nothing to take a voice from: no held-out clips, and {base.family.name} has no voices of its own"
    raise FileError("evaluate-voice", found_nothing, expected="--voices FILE.wav", where=files.folder)


def _load_requested_voice(base: SpeakingModel, files: BaseFiles, name: str) -> ReferenceVoice:
    own = base.family.voices(files)
    if name in own:
        return ReferenceVoice(name, own[name])
    path = Path(name)
    if not is_file(path):
        raise unknown_voice_error(name, own, files.folder) if own else FileError("file-missing", f"{name} is not there")
    wave, rate = read_wav(path)
    return ReferenceVoice(path.name, encode_recording(base.family.encoder(files, base.model), wave, rate))


def _limit_voices(found: Sequence[ReferenceVoice]) -> list[ReferenceVoice]:
    """`choose_voices` has one clip of every speaker first, so the first ones are of as many speakers as there are."""
    return list(found[:MAX_EVAL_VOICES])
