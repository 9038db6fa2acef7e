"""What is said, out of what captions show: no tags, sound descriptions or music notes; names before a colon apart.

Works on a whole file, since a name that stands before a colon again and again is a speaker. Normalises nothing.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import regex

from voxgraft.importing.cues import Cue
from voxgraft.importing.problems import Problem
from voxgraft.importing.sound_words import NARRATORS, NO_NAMES, sound_words

__all__ = ["SUNG", "TWO_VOICES", "Cleaner", "clean_cues"]

SUNG = "sung"
TWO_VOICES = "two-voices"
MIN_TIMES_SEEN = 3
MIN_SHARE_SEEN = 0.04
"""A name before a colon that begins so many subtitles of a file is a speaker's."""

_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_TAG = re.compile(r"</?[^<>\n]{0,200}>")
_OVERRIDE = re.compile(r"\{[^{}\n]{0,200}\}")
_NOTES = re.compile(r"[♩♪♫♬♭♮♯🎵🎶🎼]")
_SQUARE = re.compile(r"[\[【［][^\[\]【】［］]*[\]】］]")
_ROUND = re.compile(r"[(（][^()（）]*[)）]")
_STARS = re.compile(r"\*[^*\n]{1,80}\*")
_DASH = re.compile(r"^\s*(?:[-‐-―−]|>>+|»)\s*")
_DIRECTIONS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_COLON = r"(?:[:፦：]|፡(?=\s|$))"
_LABEL = regex.compile(
    r"^\s*(?P<name>[\p{L}\p{M}][\p{L}\p{M}\p{N} .'’\-]{0,40}?)\s*" + _COLON + r"\s*(?![:፡\d/])(?=\S|$)"
)
_NAMED = regex.compile(r"^ *" + _COLON)
_WORD_SPACE = re.compile("(?<!፡)፡(?!፡)")
_CAPITALS = regex.compile(r"^[\p{Lu}][\p{Lu}\p{M}\p{N} .'’\-]+$")
_SPACES = re.compile(r"\s+")
_SAID = regex.compile(r"[\p{L}\p{N}]")
MAX_LABEL_WORDS = 3


@dataclass(frozen=True, slots=True)
class Cleaner:
    """The rules for one file: its language, and the names that were seen to be speakers'."""

    sounds: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, texts: Sequence[str], language: str) -> Cleaner:
        """The rules for a file with these texts."""
        own = NARRATORS.get(language.lower().partition("-")[0], ())
        known = {name.lower() for words in (NARRATORS["en"], own) for name in words}
        seen: Counter[str] = Counter()
        for text in texts:
            seen.update({label for line in _bare(text).split("\n") if (label := _label(_DASH.sub("", line)))})
        least = max(MIN_TIMES_SEEN, MIN_SHARE_SEEN * len(texts))
        often = {name.lower() for name, times in seen.items() if times >= least} - NO_NAMES
        return cls(sound_words(language), frozenset(known | often))

    def clean(self, cue: Cue) -> Cue:
        """The cue with only what is said; its text is empty if nothing is."""
        voices = [name.strip() for name in _VOICE.findall(cue.text)]
        text = _bare(cue.text)
        marks = {SUNG} if _NOTES.search(text) else set()
        text = _NOTES.sub(" ", text)
        text = _STARS.sub(" ", _SQUARE.sub(self._bracket, text))
        text = _ROUND.sub(self._without_sounds, text)
        speakers = list(voices)
        parts, turns = [], 0
        for line in text.split("\n"):
            own, turn, label = self._line(line)
            turns += turn
            if label:
                speakers.append(label)
            if _SAID.search(own):
                parts.append(own)
        if len(set(speakers)) > 1 or turns > 1:
            marks.add(TWO_VOICES)
        said = _SPACES.sub(" ", " ".join(parts)).strip()
        speaker = speakers[0] if speakers else cue.speaker
        return replace(cue, text=said, speaker=speaker, marks=(*cue.marks, *sorted(marks)))

    def _line(self, line: str) -> tuple[str, bool, str]:
        """What is said on a line, whether it begins a turn, and who is named."""
        bare = _DASH.sub("", line, count=1)
        label = _label(bare)
        if label and not (_CAPITALS.match(label) or label.lower() in self.names):
            label = ""
        if label:
            bare = _LABEL.sub("", bare, count=1)
        return bare.strip(), bare != line and bool(_DASH.match(line)), label

    def _bracket(self, found: re.Match[str]) -> str:
        """Square brackets are never said; one that stands before a colon or alone may name who speaks."""
        inside = found.group()[1:-1].strip()
        named = _NAMED.match(found.string[found.end() :])
        return inside if named and len(inside.split()) <= MAX_LABEL_WORDS else " "

    def _without_sounds(self, found: re.Match[str]) -> str:
        inside = found.group()[1:-1]
        words = {word.lower() for word in regex.findall(r"[\p{L}\p{M}']+", inside)}
        line = found.string[found.string.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
        alone = not _SAID.search(line.replace(found.group(), ""))
        return " " if alone or words & self.sounds or not words or inside.isupper() else found.group()


def clean_cues(cues: Sequence[Cue], language: str, name: str) -> tuple[list[Cue], list[Problem]]:
    """Every cue with only what is said; those in which nothing is are told."""
    cleaner = Cleaner.of([cue.text for cue in cues], language)
    kept: list[Cue] = []
    problems: list[Problem] = []
    for cue in cues:
        cleaned = cleaner.clean(cue)
        if cleaned.text:
            kept.append(cleaned)
        else:
            problems.append(Problem("subtitle-nothing-said", f"{cue.text!r:.120}", name, cue.line, cue.last_line))
    return kept, problems


def _bare(text: str) -> str:
    """Without markup, entities and marks of direction; line breaks stay."""
    text = _OVERRIDE.sub("", _TAG.sub("", text))
    return _DIRECTIONS.sub("", html.unescape(text)).replace("\xa0", " ")


def _label(line: str) -> str:
    """The name before a colon. A second ፡ in the line shows that it stands between words, as it did of old."""
    found = _LABEL.match(line) if len(_WORD_SPACE.findall(line)) < 2 else None
    name = found["name"].strip() if found else ""
    return name if len(name.split()) <= MAX_LABEL_WORDS else ""
