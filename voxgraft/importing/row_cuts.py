"""Sound for rows of a list: a whole file for each, or parts of long ones, each file decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from voxgraft.errors import AudioError, VoxgraftError
from voxgraft.importing.media import AudioSamples, MediaReader
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.rows import TranscriptRow, find_audio_file
from voxgraft.importing.tape import RollingAudioBuffer

__all__ = ["read_row_audio"]

MAX_ROW_SECONDS = 300.0
"""Longer ones are whole recordings, and one text does not say what is where."""


class HasSampleRate(Protocol):
    """What is asked of the options."""

    @property
    def rate(self) -> int: ...


def read_row_audio(
    rows: Iterable[TranscriptRow], folder: Path, options: HasSampleRate, problems: list[SourceProblem], name: str
) -> Iterator[tuple[TranscriptRow, AudioSamples, MediaReader]]:
    """Each row with its sound; rows without any are told. Parts of files come last, by file and in their order."""
    parts: dict[str, list[TranscriptRow]] = {}
    for row in rows:
        if row.data is None and find_audio_file(folder, row.audio) is None:
            problems.append(SourceProblem("media-missing", f"{row.audio} is not there", *_row_location(name, row)))
        elif row.is_part:
            own = "" if row.data is None else f"\0{row.line}"  # sounds inside a list may all have one name
            parts.setdefault(row.audio + own, []).append(row)
        else:
            try:
                media = _open_row_media(row, folder, options.rate)
                yield row, _read_whole_media(media), media
            except VoxgraftError as error:
                problems.append(SourceProblem.of(error, *_row_location(name, row)))
    for group in parts.values():
        yield from _read_row_parts(sorted(group, key=lambda row: row.start), folder, options, problems, name)


def _open_row_media(row: TranscriptRow, folder: Path, rate: int) -> MediaReader:
    path = Path(row.audio) if row.data is not None else find_audio_file(folder, row.audio)
    assert path is not None
    return MediaReader(path, rate, row.data)


def _read_whole_media(media: MediaReader) -> AudioSamples:
    blocks: list[AudioSamples] = []
    for block in media.blocks():
        blocks.append(block)
        if sum(map(len, blocks)) > MAX_ROW_SECONDS * media.rate:
            found = f"{media.path.name} is longer than {MAX_ROW_SECONDS:.0f} s, with one text for all of it"
            raise AudioError("audio-too-long", found, where=media.path)
    return np.concatenate(blocks)


def _row_location(name: str, row: TranscriptRow) -> tuple[str, int]:
    """Where something is wrong with a row: its line of the list, or its sound where there is no list."""
    return (name, row.line) if name else (row.audio, 0)


def _read_row_parts(
    rows: list[TranscriptRow], folder: Path, options: HasSampleRate, problems: list[SourceProblem], name: str
) -> Iterator[tuple[TranscriptRow, AudioSamples, MediaReader]]:
    try:
        media = _open_row_media(rows[0], folder, options.rate)
    except VoxgraftError as error:
        problems += [SourceProblem.of(error, *_row_location(name, row)) for row in rows]
        return
    tape = RollingAudioBuffer(media.blocks(), options.rate)
    for place, row in enumerate(rows):
        assert row.end is not None
        if row.end - row.start > MAX_ROW_SECONDS:
            found = f"a part of {row.end - row.start:,.0f} s, expected at most {MAX_ROW_SECONDS:.0f}"
            problems.append(SourceProblem("table-line", found, *_row_location(name, row)))
            continue
        try:
            tape.read_until(row.end, keep_from=row.start - 1.0)
        except VoxgraftError as error:
            problems += [SourceProblem.of(error, *_row_location(name, other)) for other in rows[place:]]
            return
        yield row, tape.samples(row.start, row.end), media
