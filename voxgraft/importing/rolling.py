"""Captions that roll: each shows again what the ones before it showed. Only what is new is kept, and what is really
said twice stays twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import regex

from voxgraft.importing.cues import Cue
from voxgraft.importing.problems import SourceProblem

__all__ = ["dedupe_rolling_captions", "has_rolling_captions"]

MAX_CAPTION_GAP_SECONDS = 0.35
"""Captions that roll follow each other at once."""
MIN_CAPTION_SECONDS = 0.1
"""Shorter than anything is said in: a state between two captions."""
MIN_ROLLING_SHARE, MIN_ROLLING_COUNT = 0.25, 3
"""Of the captions that follow at once, and so many at least: people repeat themselves too."""
MIN_REPEATED_SHARE = 0.4
CAPTION_LOOKBACK = 2
"""Captions before one that it may show again: sloppy times can put them out of order."""
MIN_TIME_OVERLAP_SHARE = 0.5
MIN_REPEATED_WORDS = 3
"""So many words in the same order are no chance, where captions overlap in time."""
_NON_WORD_CHARACTERS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_CAPTION_MARKUP = re.compile(r"<[^<>\n]{0,200}>|\{[^{}\n]{0,200}\}")


def dedupe_rolling_captions(cues: Sequence[Cue], name: str) -> tuple[list[Cue], list[SourceProblem]]:
    """Cues with only what is new in each; those with nothing new are told."""
    rolling = has_rolling_captions(cues)
    kept: list[Cue] = []
    problems: list[SourceProblem] = []
    shown: deque[Cue] = deque(maxlen=CAPTION_LOOKBACK)
    for place, cue in enumerate(cues):
        beside = [*shown, *cues[place + 1 : place + 2]]
        flash = cue.end - cue.start < MIN_CAPTION_SECONDS and any(_contains_caption(other, cue) for other in beside)
        words = cue.text.split()
        shared = max((_count_repeated_words(other, cue, rolling=rolling) for other in shown), default=0)
        new = words[shared:]
        if flash or not any(_plain_word(word) for word in new):
            problems.append(SourceProblem("subtitle-repeats", f"{cue.text!r:.120}", name, cue.line, cue.last_line))
            if kept and rolling and not flash:
                kept[-1] = replace(kept[-1], end=max(kept[-1].end, cue.end))
            continue
        if shared and kept:
            kept[-1] = replace(kept[-1], end=min(kept[-1].end, max(cue.start, kept[-1].start + MIN_CAPTION_SECONDS)))
        kept.append(replace(cue, text=" ".join(new)))
        shown.append(cue)
    return kept, problems


def has_rolling_captions(cues: Sequence[Cue]) -> bool:
    """Whether a good share of the captions begin with much of the end of the one before."""
    pairs = [(one, two) for one, two in pairwise(cues) if _follows_closely(one, two)]
    again = sum(_repeats_caption(_caption_words(one.text), _caption_words(two.text)) for one, two in pairs)
    return again >= max(MIN_ROLLING_COUNT, MIN_ROLLING_SHARE * len(pairs))


def _repeats_caption(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether one caption begins with all of another, or with a good part of its end, and goes on."""
    shared = _word_overlap(before, now)
    if not shared or list(before) == list(now):
        return False
    return shared == len(before) or (shared > 1 and shared >= MIN_REPEATED_SHARE * len(before))


def _count_repeated_words(shown: Cue, cue: Cue, *, rolling: bool) -> int:
    """How many words at the beginning were shown before."""
    if not _follows_closely(shown, cue):
        return 0
    before, now = _caption_words(shown.text), _caption_words(cue.text)
    shared = _word_overlap(before, now)
    if rolling:
        return shared
    # Who says a thing twice says it afterwards; a caption that stands twice stands there at the same time.
    together = min(shown.end, cue.end) - cue.start > MIN_TIME_OVERLAP_SHARE * min(
        shown.end - shown.start, cue.end - cue.start
    )
    return shared if together and (shared >= MIN_REPEATED_WORDS or before == now) else 0


def _contains_caption(shown: Cue, cue: Cue) -> bool:
    """Whether a caption near in time shows everything that another does."""
    if cue.start - shown.end > MAX_CAPTION_GAP_SECONDS or shown.start - cue.end > MAX_CAPTION_GAP_SECONDS:
        return False
    return f" {' '.join(_caption_words(cue.text))} " in f" {' '.join(_caption_words(shown.text))} "


def _follows_closely(one: Cue, two: Cue) -> bool:
    return two.start - one.end <= MAX_CAPTION_GAP_SECONDS


def _caption_words(text: str) -> list[str]:
    return [_plain_word(word) for word in _CAPTION_MARKUP.sub("", text).split()]


def _plain_word(word: str) -> str:
    """Without punctuation and case: captions that roll may change both. A dash alone stays, so that places agree."""
    return _NON_WORD_CHARACTERS.sub("", word).lower()


def _word_overlap(before: Sequence[str], now: Sequence[str]) -> int:
    """The most words that end the one and begin the other."""
    for size in range(min(len(before), len(now)), 0, -1):
        if list(before[-size:]) == list(now[:size]):
            return size if any(now[:size]) else 0
    return 0
