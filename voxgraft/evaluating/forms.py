"""What of a text and of phones is compared: letters in one form, without what cannot be heard. Reads no files."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

__all__ = ["SPACELESS", "letters", "phones_form", "words"]

SPACELESS = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "yue"})
"""Languages that are written without spaces between words."""
UNHEARD_MARKS = str.maketrans("", "", "ˈˌːˑ.‿͡")
"""Stress, length, syllables and ties: how a phone is said or written, not which one it is."""
_SYLLABLES = 7
"""Letters of a row that every row has."""
_SAME_SOUND = {"am": (("ሐ", "ሀ"), ("ኀ", "ሀ"), ("ኸ", "ሀ"), ("ሠ", "ሰ"), ("ዐ", "አ"), ("ፀ", "ጸ"))}
"""By language: rows of letters that are one sound today, each with the row that stands for it. Tigrinya keeps them."""
_SAME_LETTER = {"am": {"ሃ": "ሀ", "ኣ": "አ"}}
"""Of these two rows the first and the fourth letter sound alike."""


def letters(text: str, language: str) -> str:
    """The text as it is compared: composed, lower case, letters, marks and digits with single spaces between words.

    Letters that are one sound in the language are one letter here, since nobody can hear which of them was meant.
    """
    lower = unicodedata.normalize("NFC", text.casefold())
    kept = "".join(character if unicodedata.category(character)[0] in "LMN" else " " for character in lower)
    return " ".join(kept.split()).translate(_folding(language))


def words(text: str, language: str) -> list[str]:
    """The words of `letters`."""
    return letters(text, language).split()


def phones_form(phones: Sequence[str]) -> list[str]:
    """Phones as they are compared: without marks that are not heard, and without those that were only marks."""
    bare = (unicodedata.normalize("NFD", phone).translate(UNHEARD_MARKS) for phone in phones)
    return [phone for phone in bare if phone.strip()]


def _folding(language: str) -> dict[int, str]:
    table: dict[int, str] = {}
    for row, same in _SAME_SOUND.get(language, ()):
        table |= {ord(row) + at: chr(ord(same) + at) for at in range(_SYLLABLES)}
    one_letter = _SAME_LETTER.get(language, {})
    table = {code: one_letter.get(letter, letter) for code, letter in table.items()}
    return table | {ord(letter): same for letter, same in one_letter.items()}
