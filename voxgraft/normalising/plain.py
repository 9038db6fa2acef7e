"""The rules that are safe for every language: Unicode form, spaces, invisible characters, plain quotes and dashes.

No letter is exchanged. Numbers are read where num2words knows the language; other digits stay, and are noted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import regex

from voxgraft.normalising.base import NormalizationStep, NormalizedText, TextEditor, TextNote, apply_until_stable
from voxgraft.normalising.numbers import NUM2WORDS_PACKAGE, Num2WordsConfig, Num2WordsExpander

GENERIC_VERSION = "generic-2"

_WORD = regex.compile(r"[^ ]+")
_EXCESS_COMBINING_MARKS = regex.compile(r"(?<=\p{M}{16})\p{M}+")
"""No letter has so many; sorting a megabyte of them would take for ever."""
_ODD_SPACE = regex.compile(r"[\p{Zs}\p{Zl}\p{Zp}\t\n\v\f\r\x85--[ ]]+", regex.V1)
_INVISIBLE_CHARACTER = regex.compile(
    r"[[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\uFE00-\uFE0F\U000E0100-\U000E01EF]--[\t\n\v\f\r\x85]]", regex.V1
)
_JOINER_IN_WORD = regex.compile(r"(?<=[\p{L}\p{M}])[\u200c\u200d](?=[\p{L}\p{M}])")
"""In Persian, Hindi and others it tells words apart, so there it stays."""
_EXTRA_SPACES = regex.compile(r"^ +| +$| {2,}")
_DIGIT_RUN = regex.compile(r"\p{N}+")

TYPOGRAPHIC_MARKS = {
    **dict.fromkeys("“”„‟«»〝〞＂", '"'),
    **dict.fromkeys("‘’‚‛‹›′´`＇", "'"),
    **dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"),
    "…": "...",
    "‼": "!!",
    "⁇": "??",
    "⁈": "?!",
    "⁉": "!?",
}
"""Quotes, dashes and dots that have a plain cousin, with it. Never a letter: U+02BC is one in many languages."""
_TYPOGRAPHIC_MARK = regex.compile("[" + "".join(TYPOGRAPHIC_MARKS) + "]")
REVERSED_MARKS = {"⹁": ",", "⸲": ",", "⸴": ",", "⹌": ",", "⁏": ";", "⸵": ";", "⸮": "?"}
"""Punctuation of Adlam and other scripts from right to left, which is the common one turned round."""
_APOSTROPHE_IN_WORD = regex.compile(r"(?<=\p{L}\p{M}*)'(?=\p{L})")
_REVERSED_MARK = regex.compile("[" + "".join(REVERSED_MARKS) + "]")


@dataclass(frozen=True, slots=True)
class GenericNormalizer:
    """For every language that has no normaliser of its own."""

    language: str
    kept_marks: str = ""
    """Quotes and dashes that are letters of the language."""
    numbers: Num2WordsConfig | None = None
    edition: str = ""
    """Version of num2words, which the words of numbers come from."""
    apostrophe: str = ""
    """The letter that apostrophes inside words stand for."""

    @property
    def version(self) -> str:
        kept = "".join(f"+{ord(mark):04X}" for mark in self.kept_marks)
        kept += f"+'{ord(self.apostrophe):04X}" if self.apostrophe else ""
        return GENERIC_VERSION + kept + (f"+{NUM2WORDS_PACKAGE}-{self.edition}" if self.numbers else "")

    def normalise(self, text: str) -> NormalizedText:
        # Numbers after marks and invisible characters, which may stand inside them.
        read: tuple[NormalizationStep, ...] = (Num2WordsExpander(self.numbers),) if self.numbers else ()
        return apply_until_stable(
            text, (clean_characters, self._plain_marks, *read, collapse_spaces), note_remaining_digits
        )

    def _plain_marks(self, draft: TextEditor) -> None:
        kept = self.kept_marks
        draft.rewrite(
            "plain-mark",
            _TYPOGRAPHIC_MARK,
            lambda found: None if found.group() in kept else TYPOGRAPHIC_MARKS[found.group()],
        )
        draft.translate("turned-mark", _REVERSED_MARK, REVERSED_MARKS)
        if self.apostrophe:
            draft.rewrite("apostrophe", _APOSTROPHE_IN_WORD, self.apostrophe)


def clean_characters(draft: TextEditor, *, joiners: bool = True) -> None:
    """One kind of space, no invisible characters, then composed letters: a removal may bring a mark to its letter."""
    draft.rewrite("odd-space", _ODD_SPACE, " ")
    draft.rewrite(
        "invisible-removed",
        _INVISIBLE_CHARACTER,
        lambda match: match.group() if joiners and _JOINER_IN_WORD.match(match.string, match.start()) else "",
    )
    draft.rewrite("heap-of-marks-removed", _EXCESS_COMBINING_MARKS, "")
    if not unicodedata.is_normalized("NFC", draft.text):
        # A space never composes with anything, so words can be composed one by one.
        draft.rewrite("unicode-form", _WORD, lambda match: unicodedata.normalize("NFC", match.group()))


def collapse_spaces(draft: TextEditor) -> None:
    """No space at the ends, one between words."""
    draft.rewrite("spaces", _EXTRA_SPACES, lambda match: "" if _touches_text_edge(match) else " ")


def note_remaining_digits(text: str) -> Iterator[TextNote]:
    """Numbers that nobody read out."""
    for match in _DIGIT_RUN.finditer(text):
        yield TextNote("digits-left", match.group(), match.start())


def _touches_text_edge(match: regex.Match[str]) -> bool:
    return match.start() == 0 or match.end() == len(match.string)
