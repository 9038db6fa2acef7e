"""Chatterbox's text front: what its program does to text before its tokenizer file sees it.

Two wrappers were published. The multilingual one lower-cases, decomposes and tags; the English one does none of that.
Steps that the stock program takes only with optional packages of its own (Chinese word boundaries, Hebrew vowel signs,
Russian stress) are left out, as it does without them; Japanese is read with pykakasi where that is installed.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from voxgraft.core.errors import FileError
from voxgraft.core.files import read_json
from voxgraft.text import TextFrontend

CANGJIE_NAME = "Cangjie5_TC.json"
SPACE_TOKEN = "[SPACE]"
# The stock program says this when it is given no text at all.
EMPTY_TEXT_REPLACEMENT = "You need to add some text for me to talk."

# What the clean-up writes for rare punctuation. Applied one after the other over the whole text, in this order.
PUNCTUATION_REWRITES = (
    ("...", ", "),
    ("…", ", "),
    (":", ","),
    (" - ", ", "),
    (";", ", "),
    ("—", "-"),
    ("–", "-"),
    (" ,", ","),
    ("“", '"'),
    ("”", '"'),
    ("‘", "'"),
    ("’", "'"),
)

KANJI = range(0x4E00, 0xA000)
PARTICLE_LIKE_KANA = ("は", "へ")


class ChatterboxTextFrontend(TextFrontend):
    """The multilingual wrapper. `cangjie` maps a Han character to its tokens; without it Han stays as it is."""

    sentence_enders: ClassVar[tuple[str, ...]] = (".", "!", "?", "-", ",", "、", "，", "。", "？", "！")

    def __init__(self, cangjie: Mapping[str, str] | None = None) -> None:
        self._cangjie = cangjie or {}

    def clean(self, text: str) -> str:
        if not text:
            return EMPTY_TEXT_REPLACEMENT
        if text[0].islower():
            text = text[0].upper() + text[1:]
        text = " ".join(text.split())
        for found, written in PUNCTUATION_REWRITES:
            text = text.replace(found, written)
        text = text.rstrip(" ")
        return text if text.endswith(self.sentence_enders) else text + "."

    def prepare(self, text: str, language: str | None) -> str:
        code = (language or "").lower()
        # Lower-casing first is the stock order: the capitals that NFKD makes out of signs (™) stay capitals.
        text = unicodedata.normalize("NFKD", text.lower())
        if code == "zh":
            text = "".join(self._cangjie.get(character, character) for character in text)
        elif code == "ja":
            text = _kanji_to_kana(text)
        elif code == "ko":  # NFKD has already taken syllables apart into jamo; all that is left is the stock strip
            text = text.strip()
        return _add_language_tag(text, code)


class ChatterboxEnglishFrontend(ChatterboxTextFrontend):
    """The English wrapper: no case folding, no decomposition, and no tag for English itself."""

    sentence_enders: ClassVar[tuple[str, ...]] = (".", "!", "?", "-", ",")

    def prepare(self, text: str, language: str | None) -> str:
        code = (language or "").lower()
        return _add_language_tag(text, "" if code == "en" else code)


def read_cangjie(path: Path) -> dict[str, str]:
    """The Cangjie table as character to tokens. A code that several share gets a digit from the second one on."""
    entries = read_json(path)
    if not isinstance(entries, list):
        raise FileError(
            "json-shape", f"{path.name} is not a list", expected="a list of 'character<TAB>code'", where=path
        )
    codes: dict[str, str] = {}
    sharers: Counter[str] = Counter()
    places: dict[tuple[str, str], int] = {}
    for number, entry in enumerate(entries):
        parts = entry.split("\t") if isinstance(entry, str) else []
        if len(parts) < 2:
            found = f"entry {number} is {str(entry)[:40]!r}"
            raise FileError("json-shape", found, expected="'character<TAB>code'", where=path)
        glyph, code = parts[:2]
        codes[glyph] = code
        places.setdefault((code, glyph), sharers[code])
        sharers[code] += 1
    tokens: dict[str, str] = {}
    for glyph, code in codes.items():
        if len(glyph) == 1 and unicodedata.category(glyph) == "Lo":  # the wrapper looks up no other characters
            place = places[code, glyph]
            keys = code + (str(place) if place else "")
            tokens[glyph] = "".join(f"[cj_{key}]" for key in (*keys, "."))
    return tokens


def _add_language_tag(text: str, code: str) -> str:
    tag = f"[{code}]" if code else ""
    return (tag + text).replace(" ", SPACE_TOKEN)


@lru_cache(maxsize=1 << 12)  # a tokenizer's proof reads the same sentences again, and reading them is slow
def _kanji_to_kana(text: str) -> str:
    """Words with kanji as hiragana, everything else as written; without pykakasi all of it as written."""
    converter = _load_kana_converter()
    if converter is None:
        return text
    words = []
    for word in converter.convert(text):
        kana = word["orig"]
        if any(ord(character) in KANJI for character in kana):
            # A space keeps these from being taken for the particles that are pronounced otherwise.
            kana = f" {word['hira']}" if word["hira"].startswith(PARTICLE_LIKE_KANA) else word["hira"]
        words.append(kana)
    return unicodedata.normalize("NFKD", "".join(words))


@cache
def _load_kana_converter() -> Any | None:
    """Made once: it loads a dictionary. None where the optional package is not installed."""
    try:
        return import_module("pykakasi").kakasi()
    except ModuleNotFoundError:
        return None
