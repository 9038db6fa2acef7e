"""What of a text and of phones is compared: letters in one form, without what cannot be heard. Reads no files."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

__all__ = ["LANGUAGES_WITHOUT_SPACES", "normalize_letters", "normalize_phones", "split_normalized_words"]

LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "yue"})
"""Languages that are written without spaces between words."""
IGNORED_PHONE_MARKS = str.maketrans("", "", "ˈˌːˑ.‿͡")
"""Stress, length, syllables and ties: how a phone is said or written, not which one it is."""
_LETTERS_PER_ROW = 7
"""Letters of a row that every row has."""
_HOMOPHONE_ROWS = {"am": (("ሐ", "ሀ"), ("ኀ", "ሀ"), ("ኸ", "ሀ"), ("ሠ", "ሰ"), ("ዐ", "አ"), ("ፀ", "ጸ"))}
"""By language: rows of letters that are one sound today, each with the row that stands for it. Tigrinya keeps them."""
_HOMOPHONE_LETTERS = {"am": {"ሃ": "ሀ", "ኣ": "አ"}}
"""Of these two rows the first and the fourth letter sound alike."""


def normalize_letters(text: str, language: str) -> str:
    """The text as it is compared: composed, lower case, letters, marks and digits with single spaces between words.

    Letters that are one sound in the language are one letter here, since nobody can hear which of them was meant.
    """
    lower = unicodedata.normalize("NFC", text.casefold())
    kept = "".join(character if unicodedata.category(character)[0] in "LMN" else " " for character in lower)
    return " ".join(kept.split()).translate(_build_homophone_table(language))


def split_normalized_words(text: str, language: str) -> list[str]:
    """The words of `normalize_letters`."""
    return normalize_letters(text, language).split()


def normalize_phones(phones: Sequence[str]) -> list[str]:
    """Phones as they are compared: without marks that are not heard, and without those that were only marks."""
    bare = (unicodedata.normalize("NFD", phone).translate(IGNORED_PHONE_MARKS) for phone in phones)
    return [phone for phone in bare if phone.strip()]


def _build_homophone_table(language: str) -> dict[int, str]:
    table: dict[int, str] = {}
    for row, same in _HOMOPHONE_ROWS.get(language, ()):
        table |= {ord(row) + at: chr(ord(same) + at) for at in range(_LETTERS_PER_ROW)}
    one_letter = _HOMOPHONE_LETTERS.get(language, {})
    table = {code: one_letter.get(letter, letter) for code, letter in table.items()}
    return table | {ord(letter): same for letter, same in one_letter.items()}
