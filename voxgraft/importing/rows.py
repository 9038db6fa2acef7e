"""A row: one recording, or a part of one, with its text, as tables and lists of other programs have it.

What such lists call their columns is here, and where they mean their files to lie. Reads no list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.files import is_encodable_text, is_file
from voxgraft.importing.media import AUDIO_SUFFIXES

__all__ = ["COLUMN_ALIASES", "TranscriptRow", "find_audio_file", "infer_recordings", "parse_transcript_row"]

COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "audio": (
        "audio",
        "audio_path",
        "audio_filepath",
        "audio_file",
        "file_name",
        "filename",
        "file",
        "path",
        "wav",
        "wav_path",
    ),
    "text": ("text", "normalized_text", "normalised_text", "sentence", "transcription", "transcript", "raw_text"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "spk", "client_id"),
    "recording": ("recording", "source_file", "recording_id", "session"),
    "start": ("start", "start_time", "offset"),
    "end": ("end", "end_time"),
    "seconds": ("duration", "seconds"),
    "language": ("language", "lang", "locale"),
    "id": ("id", "segment_id", "utt_id", "utt"),
}
"""What the columns are called in lists that people have, the first that is there counts."""
AUDIO_FOLDERS = ("", "wavs", "wav", "audio", "clips", "audios")
MIN_RECORDINGS = 3


@dataclass(frozen=True, slots=True)
class TranscriptRow:
    """One line of a list."""

    line: int
    audio: str
    """As the list has it."""
    text: str
    original_text: str = ""
    speaker: str = ""
    recording: str = ""
    language: str = ""
    """As the list says it; empty where it does not."""
    start: float = 0.0
    end: float | None = None
    """None means: the whole file."""
    data: bytes | None = None
    """The sound file itself, where the list holds it."""

    @property
    def is_part(self) -> bool:
        return self.end is not None


def parse_transcript_row(values: Mapping[str, Any], line: int) -> TranscriptRow | str:
    """A row by the names of its columns, or what is wrong with it."""
    given = {str(name).strip().lower(): value for name, value in values.items() if value not in (None, "")}
    found = {
        kind: next((given[name] for name in names if name in given), None) for kind, names in COLUMN_ALIASES.items()
    }
    audio: Any = found["audio"]
    data: bytes | None = None
    if isinstance(audio, Mapping):  # as the datasets library keeps sound
        data = audio.get("bytes")
        if data is not None and not isinstance(data, bytes):
            return f"the bytes of its sound are {data!r:.40}, which are none"
        audio = audio.get("path") or f"row-{line}.wav"
    audio = audio or found["id"]
    if not is_encodable_text(audio) or not is_encodable_text(found["text"]):
        missing = "no recording" if not is_encodable_text(audio) else "no text"
        return f"{missing} among {', '.join(map(repr, values))}"
    times = _parse_row_times(found)
    if isinstance(times, str):
        return times
    # Speakers are often numbers, and the first of them is 0.
    names = {
        name: "" if found[name] is None else str(found[name]).strip() for name in ("speaker", "recording", "language")
    }
    if not all(map(is_encodable_text, names.values())):
        return "a name holds half of a character"
    text = str(found["text"])
    start, end = times
    return TranscriptRow(line, str(audio), text, text, **names, start=start, end=end, data=data)


def _parse_row_times(found: Mapping[str, Any]) -> tuple[float, float | None] | str:
    """Where in the file the row lies. A duration alone says nothing new of a whole file."""
    numbers: dict[str, float] = {}
    for name in ("start", "end", "seconds"):
        if found[name] is None:
            continue
        try:
            numbers[name] = float(found[name])
        except (TypeError, ValueError, OverflowError):
            return f"{name} is {found[name]!r:.40}, which is no number of seconds"
        if not math.isfinite(numbers[name]) or numbers[name] < 0:
            return f"{name} is {found[name]!r:.40}, which is no number of seconds"
    if "start" not in numbers and "end" not in numbers:
        return 0.0, None
    start = numbers.get("start", 0.0)
    end = numbers.get("end", start + numbers["seconds"] if "seconds" in numbers else None)
    if end is None:
        return f"a start ({start} s) without an end or a duration"
    return (start, end) if end > start else f"it ends at {end} s, before it begins at {start} s"


def find_audio_file(folder: Path, name: str) -> Path | None:
    """The file that a list means; endings and the usual folders may be left out. An absolute path is itself."""
    given = Path(name.replace("\\", "/") if "/" not in name else name)
    for place in AUDIO_FOLDERS:
        for ending in ("", *AUDIO_SUFFIXES):
            path = folder / place / (str(given) + ending)
            if is_file(path):
                return path
    return None


def infer_recordings(rows: Sequence[TranscriptRow]) -> dict[int, str]:
    """The recording that each row was cut from, by its line: its own word, else its name without the number at its end.

    Where that would make hardly any recordings of many files, every file is one.
    """
    stems = {row.line: Path(row.recording or row.audio).stem or row.audio for row in rows}
    short = {row.line: stems[row.line] if row.recording else _strip_trailing_number(stems[row.line]) for row in rows}
    useful = all(short.values()) and len(set(short.values())) >= min(MIN_RECORDINGS, len(set(stems.values())))
    return short if useful else stems


def _strip_trailing_number(stem: str) -> str:
    """A name without the number at its end. No pattern: it would go through a long run of digits again and again."""
    end = len(stem)
    while end and stem[end - 1].isdecimal():
        end -= 1
    return stem if end == len(stem) else stem[:end].rstrip("-_. \t\r\n\f\v")
