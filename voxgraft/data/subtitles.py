"""Subtitle files to cues: SRT and VTT line by line, ASS and other formats through pysubs2.

Every line with text is in a cue or in a problem: nothing is left out in silence. Does not clean texts.
"""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pysubs2
from pysubs2.exceptions import Pysubs2Error

from voxgraft.core.errors import ConfigError, FileError, TextError, VoxgraftError
from voxgraft.core.files import read_bytes
from voxgraft.data.manifest import SourceProblem


@dataclass(frozen=True, slots=True)
class Cue:
    """What one subtitle says, and when, in seconds."""

    start: float
    end: float
    text: str
    """Lines as they were shown, with line breaks; cleaned once `cleaning` has seen it."""
    line: int = 0
    """Line of the source that its time stands on."""
    last_line: int = 0
    speaker: str = ""
    original_text: str = ""
    marks: tuple[str, ...] = ()
    """Reasons against it that its text shows: sung, two voices."""

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


@dataclass(slots=True)
class CueFile:
    """Every cue of a subtitle file, and every line that gave none."""

    cues: list[Cue] = field(default_factory=list)
    problems: list[SourceProblem] = field(default_factory=list)


MAX_TEXT_BYTES = 64 << 20
MAX_UNDECODABLE_SHARE = 0.2
"""Share of lines that may be in another encoding than their file."""
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""The longer marks first: one of UTF-16 begins one of UTF-32."""


def read_encoded_text(path: Path, encoding: str | None = None) -> str:
    """A whole text file; `encoding` is what the user says of files that do not say it themselves."""
    return decode_text(read_bytes(path, MAX_TEXT_BYTES), path, encoding)


def decode_text(data: bytes, where: Path | str, encoding: str | None = None) -> str:
    """Bytes as text, strictly; an error names the line of the first byte that does not fit."""
    name = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if name is not None:
        data = data.removeprefix(next(mark for mark, own in BYTE_ORDER_MARKS if own == name))
    chosen = name or _choose_encoding(data, encoding)
    try:
        text = data.decode(chosen)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TextError("text-encoding", f"line {line} holds {_describe_bad_byte(data, error)}", where=where) from None
    if "\x00" in text:
        raise TextError("text-binary", "the file holds NUL characters", where=where)
    return text


def read_text_skipping_bad_lines(path: Path, encoding: str | None = None) -> tuple[str, dict[int, str]]:
    """A text file in which single lines may have another encoding: these become empty and are given by number.

    Where many lines are undecodable the file as a whole has another encoding, which is an error.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return decode_text(data, path, encoding), {}
    except TextError as error:
        if error.code != "text-encoding" or not _is_line_decodable(data, encoding):
            raise
        lines, broken = data.removeprefix(codecs.BOM_UTF8).split(b"\n"), dict[int, str]()
        for at, line in enumerate(lines):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as fault:
                broken[at + 1] = (
                    f"{line.decode('utf-8', 'replace').strip()!r:.60} holds {_describe_bad_byte(line, fault)}"
                )
                lines[at] = b""
        if len(broken) > max(1, MAX_UNDECODABLE_SHARE * sum(map(bool, lines))):
            raise
        return decode_text(b"\n".join(lines), path), broken


def parse_error_line(error: VoxgraftError) -> int:
    """The line that an error of this module names; 0 where it names none."""
    found = re.match(r"line (\d+) ", error.finding.found)
    return int(found[1]) if found else 0


def _describe_bad_byte(data: bytes, error: UnicodeDecodeError) -> str:
    return f"byte 0x{data[error.start]:02x}, which is not {error.encoding.upper()}"


def _choose_encoding(data: bytes, encoding: str | None) -> str:
    """UTF-8 where the bytes are that, else what the user says: a folder may hold files of both kinds.

    Only encodings of one byte a letter give way. Text in the others (UTF-16, GBK, ISO-2022) can look like UTF-8.
    """
    name = _resolve_encoding(encoding)
    if name is None:
        return "utf-8"
    if len(bytes(range(256)).decode(name, "replace")) != 256:
        return name
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return name
    return "utf-8"


def _is_line_decodable(data: bytes, encoding: str | None) -> bool:
    """Whether the file is to be read as UTF-8, in which every line can be decoded by itself."""
    mark = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    return mark == "utf-8" or (mark is None and encoding is None)


def _resolve_encoding(encoding: str | None) -> str | None:
    if encoding is None:
        return None
    try:
        info = codecs.lookup(encoding)
        if not info._is_text_encoding:
            raise LookupError
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise ConfigError("text-encoding-unknown", f"there is no encoding {encoding!a:.40}") from None
    return info.name


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


SUBTITLE_SUFFIXES = (".srt", ".vtt", ".webvtt", ".ass", ".ssa")
MAX_CUE_SECONDS = 120.0
"""Nobody speaks so long without a pause; such cues are notes about the film, or their end is wrong."""
MAX_QUOTED_CHARACTERS = 120

# Spaces are bounded: without an end to them a line of nothing else would be looked through again and again.
_OPTIONAL_SPACES = r"\s{0,4}"
_TIMESTAMP = rf"(?:(\d{{1,3}}){_OPTIONAL_SPACES}:{_OPTIONAL_SPACES})?(\d{{1,2}}){_OPTIONAL_SPACES}:{_OPTIONAL_SPACES}(\d{{1,2}})(?:{_OPTIONAL_SPACES}[,.]{_OPTIONAL_SPACES}(\d{{1,3}}))?"
_TIMING_LINE = re.compile(
    rf"^{_OPTIONAL_SPACES}{_TIMESTAMP}{_OPTIONAL_SPACES}-{{1,4}}{_OPTIONAL_SPACES}>{_OPTIONAL_SPACES}{_TIMESTAMP}(?=\s|$)",
    re.ASCII,
)
_ARROW = re.compile(rf"-{_OPTIONAL_SPACES}>")
_CUE_NUMBER = re.compile(r"^\s*\d+\s*$")
_VTT_HEADER = re.compile(r"^WEBVTT(?:[ \t]|$)")
_VTT_BLOCKS = re.compile(r"^(NOTE|STYLE|REGION)(?:[ \t]|$)")
_TIME_LIKE = re.compile(rf"\d{_OPTIONAL_SPACES}:{_OPTIONAL_SPACES}\d")

NumberedLines = list[tuple[int, str]]
"""Lines of a file with their numbers."""


def read_subtitles(path: Path, encoding: str | None = None) -> CueFile:
    """The cues of a subtitle file in their order; an error if there is none."""
    text, broken = read_text_skipping_bad_lines(path, encoding)
    found = parse_subtitles(text, path.suffix.lower(), path.name)
    found.problems += [SourceProblem("text-encoding", told, path.name, line) for line, told in broken.items()]
    if not found.cues:
        read_encoded_text(path, encoding)  # raises where the encoding is why
        seen = "; ".join(problem.found for problem in found.problems[:3])
        raise FileError("subtitle-none", f"no subtitle in {path.name}" + (f": {seen}" if seen else ""), where=path)
    return found


def parse_subtitles(text: str, ending: str, name: str) -> CueFile:
    """The cues of a text; `ending` says which format it is."""
    if ending in (".ass", ".ssa"):
        found = parse_substation(text, name)
    else:
        found = CueFile()
        for block in _split_blocks(text):
            _parse_block(block, found, name, is_vtt=ending in (".vtt", ".webvtt"))
    _drop_bad_times(found, name)
    found.cues.sort(key=lambda cue: (cue.start, cue.end))
    return found


def _split_blocks(text: str) -> Iterator[NumberedLines]:
    """Runs of lines that are not empty."""
    block: NumberedLines = []
    # Only real line ends: `splitlines` also breaks at characters that may stand inside a text.
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _parse_block(block: NumberedLines, found: CueFile, name: str, *, is_vtt: bool) -> None:
    """One run of lines: usually one cue, several where an empty line was forgotten."""
    if is_vtt and (_VTT_BLOCKS.match(block[0][1]) or (block[0][0] == 1 and _VTT_HEADER.match(block[0][1]))):
        # Notes hold no times: where one follows, the empty line between was forgotten.
        times = [place for place, (_, line) in enumerate(block) if _is_timing_line(line)]
        if not times:
            return
        block = block[times[0] :]
    heads = [place for place, (_, line) in enumerate(block) if _is_timing_line(line)]
    if not heads:
        found.problems.append(_stray_problem(block, name))
        return
    first = heads[0]
    if first > 1 or (first == 1 and not is_vtt and not _CUE_NUMBER.match(block[0][1])):
        found.problems.append(_stray_problem(block[:first], name))
    for place, head in enumerate(heads):
        after = heads[place + 1] if place + 1 < len(heads) else len(block)
        body = block[head + 1 : after]
        if place + 1 < len(heads) and body and _CUE_NUMBER.match(body[-1][1]):
            body = body[:-1]  # the number of the next one
        _parse_cue(block[head], body, found, name)


def _is_timing_line(line: str) -> bool:
    return bool(_TIMING_LINE.match(line)) or (bool(_ARROW.search(line)) and bool(_TIME_LIKE.search(line)))


def _parse_cue(head: tuple[int, str], body: NumberedLines, found: CueFile, name: str) -> None:
    number, line = head
    last = body[-1][0] if body else number
    text = "\n".join(text.strip() for _, text in body)
    times = _TIMING_LINE.match(line)
    if not times:
        shown = f"{line.strip()!r:.80} is no pair of times" + (
            f"; its text: {text!r:.{MAX_QUOTED_CHARACTERS}}" if text else ""
        )
        found.problems.append(SourceProblem("subtitle-time", shown, name, number, last))
    elif not text:
        found.problems.append(SourceProblem("subtitle-empty", f"{line.strip():.80}", name, number, last))
    else:
        parts = times.groups()
        found.cues.append(
            Cue(_parse_timestamp(parts[:4]), _parse_timestamp(parts[4:]), text, number, last, original_text=text)
        )


def _parse_timestamp(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    thousandths = int((fraction or "0").ljust(3, "0"))
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0) + thousandths / 1000


def _stray_problem(lines: NumberedLines, name: str) -> SourceProblem:
    text = " / ".join(line.strip() for _, line in lines)
    return SourceProblem(
        "subtitle-stray", f"no time for {text!r:.{MAX_QUOTED_CHARACTERS}}", name, lines[0][0], lines[-1][0]
    )


def _drop_bad_times(found: CueFile, name: str) -> None:
    kept: list[Cue] = []
    for cue in found.cues:
        seconds = cue.end - cue.start
        if 0 < seconds <= MAX_CUE_SECONDS:
            kept.append(cue)
            continue
        code = "subtitle-time" if seconds <= 0 else "subtitle-too-long"
        told = f"from {cue.start:.3f} s to {cue.end:.3f} s: {cue.text!r:.{MAX_QUOTED_CHARACTERS}}"
        found.problems.append(SourceProblem(code, told, name, cue.line, cue.last_line))
    found.cues = kept
