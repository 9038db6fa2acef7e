"""ASS and SSA through pysubs2, with the line of every event, and of those that pysubs2 leaves out."""

from __future__ import annotations

import re
import warnings

import pysubs2
from pysubs2.exceptions import Pysubs2Error

from voxgraft.errors import FileError
from voxgraft.importing.cues import Cue, CueFile
from voxgraft.importing.problems import SourceProblem

__all__ = ["parse_substation"]

_ASS_EVENT = re.compile(r"^\s*(Dialogue|Comment)\s*:", re.IGNORECASE)
_ASS_SECTION = re.compile(r"^\s*\[(.+)\]\s*$")
_ASS_LINE_BREAK = re.compile(r"\\[Nn]")
_ASS_DRAWING = re.compile(r"\{[^}]*\\p[1-9]")
_PYSUBS2_ERRORS = (Pysubs2Error, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError)
"""What pysubs2 raises for events that it cannot read."""


def parse_substation(text: str, name: str) -> CueFile:
    """Cues of the events that are shown; comments and drawings are no speech."""
    lines = re.split(r"\r\n|\n|\r", text)
    head, events = _split_ass_header(lines)
    found = CueFile()
    for number, line in events:
        _parse_ass_event(head, number, line, found, name)
    strays = [
        (number, line)
        for number, line in _lines_outside_events(lines)
        if line.strip() and not line.lstrip().startswith((";", "!")) and ":" not in line
    ]
    for number, line in strays:
        found.problems.append(SourceProblem("subtitle-stray", f"no event: {line.strip()!r:.120}", name, number))
    if not events:
        raise FileError("subtitle-none", f"{name} has no line `Dialogue: ...`", where=name)
    return found


def _split_ass_header(lines: list[str]) -> tuple[list[str], list[tuple[int, str]]]:
    """The head of the file up to the form of its events, and the events."""
    events = [(number, line) for number, line in enumerate(lines, 1) if _ASS_EVENT.match(line)]
    first = events[0][0] - 1 if events else len(lines)
    sections = [place for place, line in enumerate(lines[:first]) if _ASS_SECTION.match(line)]
    # Styles and fonts are of no use here, and a damaged one would spoil every event.
    head = lines[sections[-1] : first] if sections else []
    return ["[Script Info]", "ScriptType: v4.00+", *head], events


def _lines_outside_events(lines: list[str]) -> list[tuple[int, str]]:
    """Lines of the events' part that are neither an event nor the form of one."""
    inside, found = False, []
    for number, line in enumerate(lines, 1):
        section = _ASS_SECTION.match(line)
        if section:
            inside = section[1].strip().lower() == "events"
        elif inside and not _ASS_EVENT.match(line):
            found.append((number, line))
    return found


def _parse_ass_event(head: list[str], number: int, line: str, found: CueFile, name: str) -> None:
    try:
        with warnings.catch_warnings():  # of margins and layers, which are of no use here
            warnings.simplefilter("ignore", RuntimeWarning)
            read = pysubs2.SSAFile.from_string("\n".join([*head, line]), format_="ass").events
    except _PYSUBS2_ERRORS:
        read = []
    if len(read) != 1:
        found.problems.append(SourceProblem("subtitle-time", f"no event that can be read: {line!r:.120}", name, number))
        return
    event = read[0]
    if event.is_comment or _ASS_DRAWING.search(event.text):
        found.problems.append(SourceProblem("subtitle-nothing-said", f"not speech: {line!r:.120}", name, number))
        return
    text = _ASS_LINE_BREAK.sub("\n", event.text).strip()
    if not text:
        found.problems.append(SourceProblem("subtitle-empty", f"{line!r:.120}", name, number))
        return
    speaker = event.name.strip()
    found.cues.append(
        Cue(event.start / 1000, event.end / 1000, text, number, number, speaker, original_text=event.text)
    )
