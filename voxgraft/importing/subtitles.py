"""Subtitle files to cues: SRT and VTT line by line, ASS and other formats through pysubs2.

Every line with text is in a cue or in a problem: nothing is left out in silence. Does not clean texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from voxgraft.errors import FileError
from voxgraft.importing.cues import Cue, CueFile
from voxgraft.importing.encodings import read_encoded_text, read_text_skipping_bad_lines
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.substation import parse_substation

__all__ = ["SUBTITLE_SUFFIXES", "parse_subtitles", "read_subtitles"]

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
