"""The voices of a tiny base: a table of speakers in its folder, by name. Who is not in it has no voice: no cloning.

The place in the table is the speaker's number for the model and for the codec. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voxgraft.errors import FileError
from voxgraft.families.base import unknown_voice_error
from voxgraft.files import read_json, require_file, write_json

VOICES_NAME = "voices.json"
VOICES_FORMAT = "voxgraft-voices-1"


def read_voices(folder: Path) -> tuple[str, ...]:
    """Names of the speakers, by their numbers."""
    path = require_file(folder / VOICES_NAME)
    document = read_json(path)
    names = document.get("speakers") if isinstance(document, dict) and document.get("format") == VOICES_FORMAT else None
    named = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    if not named or not names or len(set(names)) != len(names):
        found = f"{VOICES_NAME} holds no table of speakers"
        expected = f'{{"format": "{VOICES_FORMAT}", "speakers": [different names]}}'
        raise FileError("voices-broken", found, expected=expected, where=path)
    return tuple(names)


def write_voices(folder: Path, speakers: Sequence[str]) -> None:
    """Write the table, whole or not at all."""
    write_json(folder / VOICES_NAME, {"format": VOICES_FORMAT, "speakers": list(speakers)}, overwrite=True)


def find_speaker_index(speakers: Sequence[str], name: str, where: Path | str = "") -> int:
    """The number of a speaker; an error that names those who are there for one who is not."""
    if name not in speakers:
        raise unknown_voice_error(name, speakers, where)
    return list(speakers).index(name)


def require_same_speakers(speakers: Sequence[str], others: Sequence[str], what: str, where: Path) -> None:
    """Raise unless a part of the base has the speakers of the table, in its order."""
    if tuple(speakers) != tuple(others):
        found = f"{VOICES_NAME} names {', '.join(speakers)}"
        raise FileError("voices-broken", found, expected=f"{', '.join(others)}, as {what} has", where=where)
