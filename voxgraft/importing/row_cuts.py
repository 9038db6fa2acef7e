"""Sound for rows of a list: a whole file for each, or parts of long ones, each file decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from voxgraft.errors import AudioError, VoxgraftError
from voxgraft.importing.media import Media, Samples
from voxgraft.importing.problems import Problem
from voxgraft.importing.rows import Row, find_audio
from voxgraft.importing.tape import Tape

__all__ = ["row_cuts"]

LONGEST_SECONDS = 300.0
"""Longer ones are whole recordings, and one text does not say what is where."""


class HasRate(Protocol):
    """What is asked of the options."""

    @property
    def rate(self) -> int: ...


def row_cuts(
    rows: Iterable[Row], folder: Path, options: HasRate, problems: list[Problem], name: str
) -> Iterator[tuple[Row, Samples, Media]]:
    """Each row with its sound; rows without any are told. Parts of files come last, by file and in their order."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        if row.data is None and find_audio(folder, row.audio) is None:
            problems.append(Problem("media-missing", f"{row.audio} is not there", *_at(name, row)))
        elif row.is_part:
            own = "" if row.data is None else f"\0{row.line}"  # sounds inside a list may all have one name
            parts.setdefault(row.audio + own, []).append(row)
        else:
            try:
                media = _media(row, folder, options.rate)
                yield row, _whole(media), media
            except VoxgraftError as error:
                problems.append(Problem.of(error, *_at(name, row)))
    for group in parts.values():
        yield from _parts(sorted(group, key=lambda row: row.start), folder, options, problems, name)


def _media(row: Row, folder: Path, rate: int) -> Media:
    path = Path(row.audio) if row.data is not None else find_audio(folder, row.audio)
    assert path is not None
    return Media(path, rate, row.data)


def _whole(media: Media) -> Samples:
    blocks: list[Samples] = []
    for block in media.blocks():
        blocks.append(block)
        if sum(map(len, blocks)) > LONGEST_SECONDS * media.rate:
            found = f"{media.path.name} is longer than {LONGEST_SECONDS:.0f} s, with one text for all of it"
            raise AudioError("audio-too-long", found, where=media.path)
    return np.concatenate(blocks)


def _at(name: str, row: Row) -> tuple[str, int]:
    """Where something is wrong with a row: its line of the list, or its sound where there is no list."""
    return (name, row.line) if name else (row.audio, 0)


def _parts(
    rows: list[Row], folder: Path, options: HasRate, problems: list[Problem], name: str
) -> Iterator[tuple[Row, Samples, Media]]:
    try:
        media = _media(rows[0], folder, options.rate)
    except VoxgraftError as error:
        problems += [Problem.of(error, *_at(name, row)) for row in rows]
        return
    tape = Tape(media.blocks(), options.rate)
    for place, row in enumerate(rows):
        assert row.end is not None
        if row.end - row.start > LONGEST_SECONDS:
            found = f"a part of {row.end - row.start:,.0f} s, expected at most {LONGEST_SECONDS:.0f}"
            problems.append(Problem("table-line", found, *_at(name, row)))
            continue
        try:
            tape.hear_until(row.end, keep_from=row.start - 1.0)
        except VoxgraftError as error:
            problems += [Problem.of(error, *_at(name, other)) for other in rows[place:]]
            return
        yield row, tape.samples(row.start, row.end), media
