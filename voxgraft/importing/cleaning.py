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
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.sound_words import NARRATOR_LABELS, NON_SPEAKER_LABELS, sound_words_for

__all__ = ["SUNG", "TWO_VOICES", "CaptionCleaner", "clean_cues"]

SUNG = "sung"
TWO_VOICES = "two-voices"
MIN_SPEAKER_LABEL_COUNT = 3
MIN_SPEAKER_LABEL_SHARE = 0.04
"""A name before a colon that begins so many subtitles of a file is a speaker's."""

_VOICE_TAG = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_MARKUP_TAG = re.compile(r"</?[^<>\n]{0,200}>")
_ASS_OVERRIDE = re.compile(r"\{[^{}\n]{0,200}\}")
_MUSIC_NOTES = re.compile(r"[♩♪♫♬♭♮♯🎵🎶🎼]")
_SQUARE_BRACKETS = re.compile(r"[\[【［][^\[\]【】［］]*[\]】］]")
_ROUND_BRACKETS = re.compile(r"[(（][^()（）]*[)）]")
_ASTERISK_TEXT = re.compile(r"\*[^*\n]{1,80}\*")
_LEADING_DASH = re.compile(r"^\s*(?:[-‐-―−]|>>+|»)\s*")
_BIDI_MARKS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_COLON = r"(?:[:፦：]|፡(?=\s|$))"
_SPEAKER_LABEL = regex.compile(
    r"^\s*(?P<name>[\p{L}\p{M}][\p{L}\p{M}\p{N} .'’\-]{0,40}?)\s*" + _COLON + r"\s*(?![:፡\d/])(?=\S|$)"
)
_COLON_AFTER_BRACKET = regex.compile(r"^ *" + _COLON)
_ETHIOPIC_WORDSPACE = re.compile("(?<!፡)፡(?!፡)")
_ALL_CAPS = regex.compile(r"^[\p{Lu}][\p{Lu}\p{M}\p{N} .'’\-]+$")
_WHITESPACE = re.compile(r"\s+")
_LETTER_OR_DIGIT = regex.compile(r"[\p{L}\p{N}]")
MAX_LABEL_WORDS = 3


@dataclass(frozen=True, slots=True)
class CaptionCleaner:
    """The rules for one file: its language, and the names that were seen to be speakers'."""

    sounds: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, texts: Sequence[str], language: str) -> CaptionCleaner:
        """The rules for a file with these texts."""
        own = NARRATOR_LABELS.get(language.lower().partition("-")[0], ())
        known = {name.lower() for words in (NARRATOR_LABELS["en"], own) for name in words}
        seen: Counter[str] = Counter()
        for text in texts:
            seen.update(
                {
                    label
                    for line in _strip_markup(text).split("\n")
                    if (label := _find_speaker_label(_LEADING_DASH.sub("", line)))
                }
            )
        least = max(MIN_SPEAKER_LABEL_COUNT, MIN_SPEAKER_LABEL_SHARE * len(texts))
        often = {name.lower() for name, times in seen.items() if times >= least} - NON_SPEAKER_LABELS
        return cls(sound_words_for(language), frozenset(known | often))

    def clean(self, cue: Cue) -> Cue:
        """The cue with only what is said; its text is empty if nothing is."""
        voices = [name.strip() for name in _VOICE_TAG.findall(cue.text)]
        text = _strip_markup(cue.text)
        marks = {SUNG} if _MUSIC_NOTES.search(text) else set()
        text = _MUSIC_NOTES.sub(" ", text)
        text = _ASTERISK_TEXT.sub(" ", _SQUARE_BRACKETS.sub(self._replace_square_bracket, text))
        text = _ROUND_BRACKETS.sub(self._remove_sound_description, text)
        speakers = list(voices)
        parts, turns = [], 0
        for line in text.split("\n"):
            own, turn, label = self._line(line)
            turns += turn
            if label:
                speakers.append(label)
            if _LETTER_OR_DIGIT.search(own):
                parts.append(own)
        if len(set(speakers)) > 1 or turns > 1:
            marks.add(TWO_VOICES)
        said = _WHITESPACE.sub(" ", " ".join(parts)).strip()
        speaker = speakers[0] if speakers else cue.speaker
        return replace(cue, text=said, speaker=speaker, marks=(*cue.marks, *sorted(marks)))

    def _line(self, line: str) -> tuple[str, bool, str]:
        """What is said on a line, whether it begins a turn, and who is named."""
        bare = _LEADING_DASH.sub("", line, count=1)
        label = _find_speaker_label(bare)
        if label and not (_ALL_CAPS.match(label) or label.lower() in self.names):
            label = ""
        if label:
            bare = _SPEAKER_LABEL.sub("", bare, count=1)
        return bare.strip(), bare != line and bool(_LEADING_DASH.match(line)), label

    def _replace_square_bracket(self, found: re.Match[str]) -> str:
        """Square brackets are never said; one that stands before a colon or alone may name who speaks."""
        inside = found.group()[1:-1].strip()
        named = _COLON_AFTER_BRACKET.match(found.string[found.end() :])
        return inside if named and len(inside.split()) <= MAX_LABEL_WORDS else " "

    def _remove_sound_description(self, found: re.Match[str]) -> str:
        inside = found.group()[1:-1]
        words = {word.lower() for word in regex.findall(r"[\p{L}\p{M}']+", inside)}
        line = found.string[found.string.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
        alone = not _LETTER_OR_DIGIT.search(line.replace(found.group(), ""))
        return " " if alone or words & self.sounds or not words or inside.isupper() else found.group()


def clean_cues(cues: Sequence[Cue], language: str, name: str) -> tuple[list[Cue], list[SourceProblem]]:
    """Every cue with only what is said; those in which nothing is are told."""
    cleaner = CaptionCleaner.of([cue.text for cue in cues], language)
    kept: list[Cue] = []
    problems: list[SourceProblem] = []
    for cue in cues:
        cleaned = cleaner.clean(cue)
        if cleaned.text:
            kept.append(cleaned)
        else:
            problems.append(SourceProblem("subtitle-nothing-said", f"{cue.text!r:.120}", name, cue.line, cue.last_line))
    return kept, problems


def _strip_markup(text: str) -> str:
    """Without markup, entities and marks of direction; line breaks stay."""
    text = _ASS_OVERRIDE.sub("", _MARKUP_TAG.sub("", text))
    return _BIDI_MARKS.sub("", html.unescape(text)).replace("\xa0", " ")


def _find_speaker_label(line: str) -> str:
    """The name before a colon. A second ፡ in the line shows that it stands between words, as it did of old."""
    found = _SPEAKER_LABEL.match(line) if len(_ETHIOPIC_WORDSPACE.findall(line)) < 2 else None
    name = found["name"].strip() if found else ""
    return name if len(name.split()) <= MAX_LABEL_WORDS else ""
