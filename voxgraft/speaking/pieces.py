"""Long text into pieces that a model can say at once: at sentence ends, then clause marks, then spaces. No torch here.

Knows how long speech takes at most, by the letters; knows nothing of models or tokenizers.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import regex

from voxgraft.text.characters import script_of

__all__ = ["Piece", "can_be_said", "expected_seconds", "limit_seconds", "longest_seconds", "pieces_of"]

PAUSE_SECONDS, SLOWEST = 2.0, 2.5
"""Speech is cut off when it takes longer than a pause and so many times what it usually takes."""
SYLLABLE_SECONDS, LETTER_SECONDS, MARK_SECONDS, DIGIT_SECONDS, SIGN_SECONDS = 0.2, 0.08, 0.06, 0.35, 0.04
SYLLABIC = frozenset("Canadian_Aboriginal Cherokee Ethiopic Han Hangul Hiragana Katakana Vai Yi".split())
"""Scripts of which a character is a syllable or more."""

_CLOSING = r"[\p{Pe}\p{Pf}\p{Pi}\"']*"
_OWN_ENDS = r"፡፡|[\p{Sentence_Terminal}--[.!?]]"
"""Marks that end a sentence wherever they stand; two word spaces are a full stop on old Ethiopic typewriters."""
_SPACED_ENDS = r"[.!?…]"
"""Marks that also stand inside numbers, names and addresses: only with a space behind them do they end a sentence."""
_END = regex.compile(rf"(?V1)(?:{_OWN_ENDS})+{_CLOSING}\s*|{_SPACED_ENDS}+{_CLOSING}(?:\s+|$)")
_GREEK_END = regex.compile(rf"(?V1)(?:{_OWN_ENDS})+{_CLOSING}\s*|[.!?…;;]+{_CLOSING}(?:\s+|$)")
_CLAUSE = regex.compile(
    r"(?V1)[[\p{Terminal_Punctuation}--\p{Sentence_Terminal}]--[,;:፡]]+\s*|[,;:]+\s+|\s*[–—]\s*|\s+-\s+"
)
_SPACE = regex.compile(r"\s+|፡+\s*")
_ABBREVIATION = regex.compile(
    r"(?:^|[\s(\"'«“])(?:\p{L}|(?:mr|mrs|ms|dr|st|prof|jr|sr|vs|etc|no|mme|mlle|mm|art|fig|bzw|ca|evtl|usw)|(?:\p{L}\.)+\p{L})\.$",
    regex.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is said at once, and the silence after it."""

    text: str
    pause_seconds: float = 0.0


def pieces_of(text: str, language: str, longest: float, pause: float) -> list[Piece]:
    """A text in pieces that take `longest` seconds at most; `pause` is that after a sentence.

    A line break is the end of a paragraph. Nothing of the text is lost but spaces.
    """
    found: list[Piece] = []
    for paragraph in filter(str.strip, text.splitlines()):
        for sentence in _with_words(_sentences(paragraph, language)):
            found += _fitting(sentence, longest, pause)
        found[-1:] = [Piece(piece.text, 2 * pause) for piece in found[-1:]]
    found[-1:] = [Piece(piece.text) for piece in found[-1:]]
    return found


def expected_seconds(text: str) -> float:
    """How long a text usually takes to say, by its characters."""
    return sum(map(_seconds, text))


def limit_seconds(text: str) -> float:
    """When whoever still speaks has run away."""
    return PAUSE_SECONDS + SLOWEST * expected_seconds(text)


def longest_seconds(most: float) -> float:
    """What a piece may take so that its limit is within `most` seconds, which a model can speak."""
    return max((most - PAUSE_SECONDS) / SLOWEST, LETTER_SECONDS)


def can_be_said(text: str) -> bool:
    """Whether there is a letter or a digit in it."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


@cache
def _seconds(character: str) -> float:
    kind = unicodedata.category(character)[0]
    if kind == "L":
        return SYLLABLE_SECONDS if script_of(character) in SYLLABIC else LETTER_SECONDS
    return {"M": MARK_SECONDS, "N": DIGIT_SECONDS}.get(kind, SIGN_SECONDS)


def _sentences(text: str, language: str) -> list[str]:
    pattern = _GREEK_END if language.partition("-")[0] == "el" else _END
    cased = any(map(str.isupper, text))
    parts: list[str] = []
    start = 0
    for match in pattern.finditer(text):
        if _ends(text, match.start(), match.end(), cased=cased):
            parts.append(text[start : match.end()])
            start = match.end()
    return [part for part in (*parts, text[start:]) if part.strip()]


def _ends(text: str, start: int, end: int, *, cased: bool) -> bool:
    """Whether a full stop is one: not after an initial or a title, and in cased text not before a small letter."""
    if text[start] != "." or end >= len(text):
        return True
    return not (cased and text[end].islower()) and not _ABBREVIATION.search(text[: start + 1])


def _with_words(parts: Sequence[str]) -> list[str]:
    """Parts without a letter or a digit go to the one before, or to the first after."""
    found: list[str] = []
    for part in parts:
        if found and (not can_be_said(part) or not can_be_said(found[-1])):
            found[-1] += part
        else:
            found.append(part)
    return found


def _fitting(sentence: str, longest: float, pause: float) -> Iterator[Piece]:
    """One sentence in as many pieces as it needs, the last with the sentence's pause."""
    clauses = list(_packed(_with_words(_cut(sentence, _CLAUSE)), longest))
    for number, clause in enumerate(clauses, 1):
        words = list(_packed(_split_words(clause, longest), longest))
        for place, part in enumerate(words, 1):
            inside = 0.0 if place < len(words) else pause / 2
            yield Piece(part.strip(), pause if place == len(words) and number == len(clauses) else inside)


def _split_words(clause: str, longest: float) -> list[str]:
    """Words; of those that are too long by themselves, their letters."""
    if expected_seconds(clause) <= longest:
        return [clause]
    words = _with_words(_cut(clause, _SPACE))
    return [part for word in words for part in ([word] if expected_seconds(word) <= longest else _letters(word))]


def _letters(word: str) -> list[str]:
    found: list[str] = regex.findall(r"\X", word)
    return found


def _cut(text: str, pattern: regex.Pattern[str]) -> list[str]:
    ends = [match.end() for match in pattern.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if start < end]


def _packed(parts: Sequence[str], longest: float, seconds: Callable[[str], float] = expected_seconds) -> Iterator[str]:
    """Neighbours together as far as they fit, in pieces of about one length."""
    total = sum(map(seconds, parts))
    even = total / max(1, math.ceil(total / longest))
    current = ""
    for part in parts:
        if current and (seconds(current) + seconds(part) > longest or seconds(current) >= even):
            yield current
            current = ""
        current += part
    if current:
        yield current
