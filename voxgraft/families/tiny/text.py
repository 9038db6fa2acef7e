"""The tiny family's text front: lower case, letters and simple punctuation, a language tag before it.

The tokenizer is told of spaces by a piece of their own, as Chatterbox's multilingual one is.
"""

from __future__ import annotations

import re
import unicodedata

from voxgraft.families.base import TextFrontend

SPACE_TOKEN = "[SPACE]"
SIMPLE_PUNCTUATION = ".,?!'-"
PUNCTUATION_REWRITES = str.maketrans(
    {
        "’": "'",
        "‘": "'",
        "ʼ": "'",
        "`": "'",
        "–": "-",
        "—": "-",
        "‐": "-",
        "…": ".",
        ";": ",",
        ":": ",",
    }
)
"""What is written for punctuation that has a simple cousin."""
_FIRST_NON_LATIN_SIGN = 0x0300
"""Below this, punctuation is ASCII's and Latin-1's; above, a script's own, which a new language may need."""
_GENERAL_PUNCTUATION = range(0x2000, 0x2070)
_SPACE_BEFORE_PUNCTUATION = re.compile(r" (?=[.,?!])")
"""As French writes it before some signs, and as quotes leave it."""


class TinyTextFrontend(TextFrontend):
    """Letters, marks and digits of any script stay; of punctuation the simple signs, and those of other scripts."""

    def clean(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text).translate(PUNCTUATION_REWRITES)
        kept = " ".join(text.translate(_CHARACTER_FILTER).split())
        return _SPACE_BEFORE_PUNCTUATION.sub("", kept)

    def prepare(self, text: str, language: str | None) -> str:
        tag = f"[{language.lower()}]" if language else ""
        return tag + unicodedata.normalize("NFC", text.lower()).replace(" ", SPACE_TOKEN)


class _CharacterFilter(dict[int, int]):
    """What becomes of a character, by its number: itself, or a space. Filled as characters are met."""

    def __missing__(self, at: int) -> int:
        self[at] = at if _is_kept_character(chr(at)) else ord(" ")
        return self[at]


_CHARACTER_FILTER = _CharacterFilter()


def _is_kept_character(character: str) -> bool:
    kind = unicodedata.category(character)[0]
    if kind in "LMN" or character in SIMPLE_PUNCTUATION:
        return True
    at = ord(character)
    return kind == "P" and at >= _FIRST_NON_LATIN_SIGN and at not in _GENERAL_PUNCTUATION
