"""The rules that are safe for every language: Unicode form, spaces, invisible characters, plain quotes and dashes.

No letter is exchanged. Numbers are read where num2words knows the language; other digits stay, and are noted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import regex

from voxgraft.normalising.base import Draft, Normalised, Note, Step, settle
from voxgraft.normalising.numbers import PACKAGE, NumberReader, NumberWords

VERSION = "generic-2"

_WORD_NOT_COMPOSED = regex.compile(r"[^ ]+")
_MARKS_IN_A_HEAP = regex.compile(r"(?<=\p{M}{16})\p{M}+")
"""No letter has so many; sorting a megabyte of them would take for ever."""
_ODD_SPACE = regex.compile(r"[\p{Zs}\p{Zl}\p{Zp}\t\n\v\f\r\x85--[ ]]+", regex.V1)
_INVISIBLE = regex.compile(
    r"[[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\uFE00-\uFE0F\U000E0100-\U000E01EF]--[\t\n\v\f\r\x85]]", regex.V1
)
_JOINER_INSIDE_A_WORD = regex.compile(r"(?<=[\p{L}\p{M}])[\u200c\u200d](?=[\p{L}\p{M}])")
"""In Persian, Hindi and others it tells words apart, so there it stays."""
_SPACES = regex.compile(r"^ +| +$| {2,}")
_DIGITS = regex.compile(r"\p{N}+")

MARKS = {
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
_MARKS = regex.compile("[" + "".join(MARKS) + "]")
TURNED_MARKS = {"⹁": ",", "⸲": ",", "⸴": ",", "⹌": ",", "⁏": ";", "⸵": ";", "⸮": "?"}
"""Punctuation of Adlam and other scripts from right to left, which is the common one turned round."""
_INSIDE_A_WORD = regex.compile(r"(?<=\p{L}\p{M}*)'(?=\p{L})")
_TURNED_MARKS = regex.compile("[" + "".join(TURNED_MARKS) + "]")


@dataclass(frozen=True, slots=True)
class GenericNormaliser:
    """For every language that has no normaliser of its own."""

    language: str
    kept_marks: str = ""
    """Quotes and dashes that are letters of the language."""
    numbers: NumberWords | None = None
    edition: str = ""
    """Version of num2words, which the words of numbers come from."""
    apostrophe: str = ""
    """The letter that apostrophes inside words stand for."""

    @property
    def version(self) -> str:
        kept = "".join(f"+{ord(mark):04X}" for mark in self.kept_marks)
        kept += f"+'{ord(self.apostrophe):04X}" if self.apostrophe else ""
        return VERSION + kept + (f"+{PACKAGE}-{self.edition}" if self.numbers else "")

    def normalise(self, text: str) -> Normalised:
        # Numbers after marks and invisible characters, which may stand inside them.
        read: tuple[Step, ...] = (NumberReader(self.numbers),) if self.numbers else ()
        return settle(text, (clean, self._plain_marks, *read, single_spaces), digits_left)

    def _plain_marks(self, draft: Draft) -> None:
        kept = self.kept_marks
        draft.rewrite("plain-mark", _MARKS, lambda found: None if found.group() in kept else MARKS[found.group()])
        draft.translate("turned-mark", _TURNED_MARKS, TURNED_MARKS)
        if self.apostrophe:
            draft.rewrite("apostrophe", _INSIDE_A_WORD, self.apostrophe)


def clean(draft: Draft, *, joiners: bool = True) -> None:
    """One kind of space, no invisible characters, then composed letters: a removal may bring a mark to its letter."""
    draft.rewrite("odd-space", _ODD_SPACE, " ")
    draft.rewrite(
        "invisible-removed",
        _INVISIBLE,
        lambda match: match.group() if joiners and _JOINER_INSIDE_A_WORD.match(match.string, match.start()) else "",
    )
    draft.rewrite("heap-of-marks-removed", _MARKS_IN_A_HEAP, "")
    if not unicodedata.is_normalized("NFC", draft.text):
        # A space never composes with anything, so words can be composed one by one.
        draft.rewrite("unicode-form", _WORD_NOT_COMPOSED, lambda match: unicodedata.normalize("NFC", match.group()))


def single_spaces(draft: Draft) -> None:
    """No space at the ends, one between words."""
    draft.rewrite("spaces", _SPACES, lambda match: "" if _at_an_end(match) else " ")


def digits_left(text: str) -> Iterator[Note]:
    """Numbers that nobody read out."""
    for match in _DIGITS.finditer(text):
        yield Note("digits-left", match.group(), match.start())


def _at_an_end(match: regex.Match[str]) -> bool:
    return match.start() == 0 or match.end() == len(match.string)
