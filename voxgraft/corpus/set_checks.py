"""What can be wrong with the clips of a set, as findings: every clip is looked at, nothing is changed.

The same for sets of ours and for those of other trainers. Knows no family: the frame says what its sequences may hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from voxgraft import progress
from voxgraft.corpus.clips import AnyArray, ClipDataset, Int32Array, format_clip_names
from voxgraft.errors import Finding, Level, finding

if TYPE_CHECKING:  # families stand above the corpus; a frame is only looked at
    from voxgraft.families.layout import SequenceSpec

__all__ = ["check_clip_dataset", "count_trailing_run"]

FAULT_ERROR_SHARE = 0.2
"""From this share of clips on, what is a warning for a few becomes an error: training would learn it."""
MAX_TRAILING_RUN_SECONDS = 1.0
"""Recordings end in silence, but rarely in a whole second of one and the same code."""
DURATION_SLACK_SECONDS, DURATION_SLACK_SHARE = 0.25, 0.05
_UNKNOWN_ERROR_SHARE = 0.01


@dataclass(slots=True)
class _FaultTally:
    """One kind of fault: the clips that have it, and what the first one looked like."""

    clips: list[int] = field(default_factory=list)
    values: int = 0
    first: str = ""

    def add(self, clip: int, values: int, shown: str) -> None:
        self.clips.append(clip)
        self.values += values
        self.first = self.first or shown


_FAULT_TEXTS = {
    "clips-text-outside": "{values:,} text ids have no row",
    "clips-text-barred": "{values:,} text ids are ones that the stock program takes out",
    "clips-codes-outside": "{values:,} speech codes are none of the family's",
    "clips-too-long": "longer than the model has positions for",
    "clips-no-content": "no text or no codes",
    "clips-voice-broken": "their voice holds numbers that cannot be used",
    "clips-trailing-run": "their codes end in one code over and over",
    "clips-seconds": "as many codes as another length would have",
    "clips-text-unknown": "{values:,} unknown tokens in their text",
}
_SHARE_DEPENDENT_FAULTS = ("clips-trailing-run", "clips-seconds")


def check_clip_dataset(
    clips: ClipDataset,
    frame: SequenceSpec,
    code_hz: float,
    *,
    unknown_id: int | None = None,
    max_voices: int | None = None,
) -> list[Finding]:
    """Every fault with a count and the first clips that have it.

    Voices are large; with `max_voices` only so many are read, spread over the set.
    """
    seen: dict[str, _FaultTally] = {code: _FaultTally() for code in _FAULT_TEXTS}
    step = 1 if max_voices is None else max(1, -(-len(clips) // max(1, max_voices)))
    with progress.progress_task(f"checking {clips.name}", len(clips)) as advance:
        for clip in range(len(clips)):
            text, codes = clips.text_ids(clip), clips.codes(clip)
            faults = [*_text_faults(text, frame), *_code_faults(codes, frame, code_hz)]
            faults += _duration_faults(clips.infos[clip].seconds, len(codes), code_hz)
            if unknown_id is not None and (unknown := int(np.count_nonzero(text == unknown_id))):
                faults.append(("clips-text-unknown", unknown, f"{unknown} of {len(text)} tokens"))
            if clip % step == 0:
                faults += _voice_faults(clips.voice(clip), frame)
            for code, values, shown in faults:
                seen[code].add(clip, values, shown)
            advance(1)
    return [_fault_finding(code, found, clips) for code, found in seen.items() if found.clips]


def count_trailing_run(codes: AnyArray) -> int:
    """How many times the last code stands at the end."""
    if not len(codes):
        return 0
    different = np.flatnonzero(codes != codes[-1])
    return len(codes) - (int(different[-1]) + 1 if len(different) else 0)


_ClipFault = tuple[str, int, str]


def _text_faults(text: Int32Array, frame: SequenceSpec) -> Iterator[_ClipFault]:
    if not len(text):
        yield "clips-no-content", 0, "no text"
        return
    outside = (text < 0) | (text >= frame.num_text_ids)
    if outside.any():
        shown = f"id {int(text[outside][0])}, and there are 0 to {frame.num_text_ids - 1:,}"
        yield "clips-text-outside", int(outside.sum()), shown
    barred = np.isin(text, list(frame.forbidden_text_ids)) if frame.forbidden_text_ids else np.zeros(len(text), bool)
    if barred.any():
        yield "clips-text-barred", int(barred.sum()), f"id {int(text[barred][0])}"
    if len(text) > frame.max_text:
        yield "clips-too-long", 0, f"{len(text):,} text ids of at most {frame.max_text:,}"


def _code_faults(codes: Int32Array, frame: SequenceSpec, code_hz: float) -> Iterator[_ClipFault]:
    if not len(codes):
        yield "clips-no-content", 0, "no codes"
        return
    outside = (codes < 0) | (codes >= frame.num_codes)
    if outside.any():
        shown = f"code {int(codes[outside][0])}, and there are 0 to {frame.num_codes - 1:,}"
        yield "clips-codes-outside", int(outside.sum()), shown
    if len(codes) > frame.max_codes:
        yield "clips-too-long", 0, f"{len(codes):,} codes of at most {frame.max_codes:,}"
    run = count_trailing_run(codes)
    if run >= MAX_TRAILING_RUN_SECONDS * code_hz:
        yield "clips-trailing-run", run, f"code {int(codes[-1])} for {run:,} of {len(codes):,}"


def _duration_faults(seconds: float, num_codes: int, code_hz: float) -> Iterator[_ClipFault]:
    spoken = num_codes / code_hz
    if abs(spoken - seconds) > max(DURATION_SLACK_SECONDS, DURATION_SLACK_SHARE * seconds):
        yield "clips-seconds", 0, f"{num_codes:,} codes are {spoken:.2f} s, the clip has {seconds:.2f} s"


def _voice_faults(voice: dict[str, AnyArray], frame: SequenceSpec) -> Iterator[_ClipFault]:
    for name, array in voice.items():
        wrong = _count_invalid_numbers(array, frame)
        if wrong:
            yield "clips-voice-broken", wrong, f"{wrong:,} of {array.size:,} numbers of {name}"
        elif not array.size:
            yield "clips-voice-broken", 0, f"{name} is empty"
        elif np.issubdtype(array.dtype, np.floating) and not array.any():
            yield "clips-voice-broken", array.size, f"{name} is all zeros"


def _count_invalid_numbers(array: AnyArray, frame: SequenceSpec) -> int:
    if np.issubdtype(array.dtype, np.floating):
        return int(np.count_nonzero(~np.isfinite(array)))
    return int(np.count_nonzero((array < 0) | (array >= frame.num_codes)))


def _fault_finding(code: str, seen: _FaultTally, clips: ClipDataset) -> Finding:
    """A clip may have a fault twice, in its text and in its codes; it is counted and named once."""
    names = [clips.infos[clip].id for clip in dict.fromkeys(seen.clips)]
    what = _FAULT_TEXTS[code].format(values=seen.values)
    text = f"{len(names):,} of {len(clips):,} clips: {what}; {format_clip_names(names)} (the first: {seen.first})"
    many = code in _SHARE_DEPENDENT_FAULTS and len(names) >= FAULT_ERROR_SHARE * len(clips)
    if code == "clips-text-unknown":
        many = seen.values >= _UNKNOWN_ERROR_SHARE * int(clips.num_text.sum())
    level: Level | None = "error" if many else None
    return finding(code, text, where=clips.name, level=level)
