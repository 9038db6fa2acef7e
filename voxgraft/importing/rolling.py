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
from voxgraft.importing.problems import Problem

__all__ = ["is_rolling", "unrolled"]

CLOSE_SECONDS = 0.35
"""Captions that roll follow each other at once."""
FLASH_SECONDS = 0.1
"""Shorter than anything is said in: a state between two captions."""
ROLLING_SHARE, LEAST_ROLLING = 0.25, 3
"""Of the captions that follow at once, and so many at least: people repeat themselves too."""
SHOWN_AGAIN_SHARE = 0.4
NUM_SHOWN = 2
"""Captions before one that it may show again: sloppy times can put them out of order."""
TOGETHER_SHARE = 0.5
MANY_WORDS = 3
"""So many words in the same order are no chance, where captions overlap in time."""
_BARE = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_TAGS = re.compile(r"<[^<>\n]{0,200}>|\{[^{}\n]{0,200}\}")


def unrolled(cues: Sequence[Cue], name: str) -> tuple[list[Cue], list[Problem]]:
    """Cues with only what is new in each; those with nothing new are told."""
    rolling = is_rolling(cues)
    kept: list[Cue] = []
    problems: list[Problem] = []
    shown: deque[Cue] = deque(maxlen=NUM_SHOWN)
    for place, cue in enumerate(cues):
        beside = [*shown, *cues[place + 1 : place + 2]]
        flash = cue.end - cue.start < FLASH_SECONDS and any(_holds(other, cue) for other in beside)
        words = cue.text.split()
        shared = max((_shared_words(other, cue, rolling=rolling) for other in shown), default=0)
        new = words[shared:]
        if flash or not any(_plain(word) for word in new):
            problems.append(Problem("subtitle-repeats", f"{cue.text!r:.120}", name, cue.line, cue.last_line))
            if kept and rolling and not flash:
                kept[-1] = replace(kept[-1], end=max(kept[-1].end, cue.end))
            continue
        if shared and kept:
            kept[-1] = replace(kept[-1], end=min(kept[-1].end, max(cue.start, kept[-1].start + FLASH_SECONDS)))
        kept.append(replace(cue, text=" ".join(new)))
        shown.append(cue)
    return kept, problems


def is_rolling(cues: Sequence[Cue]) -> bool:
    """Whether a good share of the captions begin with much of the end of the one before."""
    pairs = [(one, two) for one, two in pairwise(cues) if _follows(one, two)]
    again = sum(_shows_again(_words(one.text), _words(two.text)) for one, two in pairs)
    return again >= max(LEAST_ROLLING, ROLLING_SHARE * len(pairs))


def _shows_again(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether one caption begins with all of another, or with a good part of its end, and goes on."""
    shared = _overlap(before, now)
    if not shared or list(before) == list(now):
        return False
    return shared == len(before) or (shared > 1 and shared >= SHOWN_AGAIN_SHARE * len(before))


def _shared_words(shown: Cue, cue: Cue, *, rolling: bool) -> int:
    """How many words at the beginning were shown before."""
    if not _follows(shown, cue):
        return 0
    before, now = _words(shown.text), _words(cue.text)
    shared = _overlap(before, now)
    if rolling:
        return shared
    # Who says a thing twice says it afterwards; a caption that stands twice stands there at the same time.
    together = min(shown.end, cue.end) - cue.start > TOGETHER_SHARE * min(shown.end - shown.start, cue.end - cue.start)
    return shared if together and (shared >= MANY_WORDS or before == now) else 0


def _holds(shown: Cue, cue: Cue) -> bool:
    """Whether a caption near in time shows everything that another does."""
    if cue.start - shown.end > CLOSE_SECONDS or shown.start - cue.end > CLOSE_SECONDS:
        return False
    return f" {' '.join(_words(cue.text))} " in f" {' '.join(_words(shown.text))} "


def _follows(one: Cue, two: Cue) -> bool:
    return two.start - one.end <= CLOSE_SECONDS


def _words(text: str) -> list[str]:
    return [_plain(word) for word in _TAGS.sub("", text).split()]


def _plain(word: str) -> str:
    """Without punctuation and case: captions that roll may change both. A dash alone stays, so that places agree."""
    return _BARE.sub("", word).lower()


def _overlap(before: Sequence[str], now: Sequence[str]) -> int:
    """The most words that end the one and begin the other."""
    for size in range(min(len(before), len(now)), 0, -1):
        if list(before[-size:]) == list(now[:size]):
            return size if any(now[:size]) else 0
    return 0
