"""Which characters a language needs, by script: exemplar letters from CLDR, whole scripts, and what texts hold.

Scripts are Unicode's own property. Knows nothing of tokenizers or families.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

import regex

from voxgraft.files import parse_json

SHARED_SCRIPTS = frozenset({"Common", "Inherited"})
"""Characters of these belong to no script: digits, general punctuation, symbols, combining accents."""
_SCRIPT_NAMES = (
    "Adlam Arabic Armenian Balinese Batak Bengali Bopomofo Buginese Canadian_Aboriginal Cham Cherokee Coptic Cyrillic "
    "Devanagari Ethiopic Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul Hanifi_Rohingya Hebrew Hiragana "
    "Javanese Kannada Katakana Kayah_Li Khmer Lao Latin Lepcha Limbu Lisu Malayalam Mandaic Meetei_Mayek Mende_Kikakui "
    "Mongolian Myanmar New_Tai_Lue Nko Nyiakeng_Puachue_Hmong Ol_Chiki Oriya Osage Osmanya Pahawh_Hmong Saurashtra "
    "Sinhala Sundanese Syloti_Nagri Syriac Tagalog Tai_Le Tai_Tham Tai_Viet Takri Tamil Telugu Thaana Thai Tibetan "
    "Tifinagh Vai Wancho Yi"
).split()
_SCRIPT_PATTERNS = {name: regex.compile(rf"\p{{Script={name}}}") for name in _SCRIPT_NAMES}
_INHERITED = regex.compile(r"\p{Script=Inherited}")
_LAST_CODE_POINT = 0x323AF


@dataclass(frozen=True, slots=True)
class Exemplar:
    """What CLDR says of a language's writing."""

    name: str
    script: str
    letters: str
    punctuation: str


def exemplar(language: str) -> Exemplar | None:
    """CLDR's entry for a language code; None where CLDR has none. `am-ET` falls back to `am`."""
    table = _exemplar_table()
    while language:
        if language in table:
            entry = table[language]
            return Exemplar(entry["name"], entry["script"], entry["letters"], entry.get("punctuation", ""))
        language = language.rpartition("-")[0]
    return None


@cache
def _exemplar_table() -> dict[str, dict[str, str]]:
    text = resources.files("voxgraft").joinpath("data/exemplars.json").read_text(encoding="utf-8")
    table = parse_json(text, "exemplars.json")
    return {code: entry for code, entry in table.items() if not code.startswith("_")}


@cache
def script_of(character: str) -> str:
    """Unicode's script of a character: `Ethiopic`, `Latin`, `Common` ... (`Other` for the rare rest)."""
    if _INHERITED.match(character):
        return "Inherited"
    for name, pattern in _SCRIPT_PATTERNS.items():
        if pattern.match(character):
            return name
    return "Common" if regex.match(r"\p{Script=Common}", character) else "Other"


@cache
def script_characters(script: str) -> tuple[str, ...]:
    """Every assigned character of a script, in code-point order (Ethiopic: 523)."""
    pattern = _SCRIPT_PATTERNS[script]
    everything = "".join(chr(code) for code in range(0x80, _LAST_CODE_POINT) if not 0xD800 <= code <= 0xDFFF)
    return tuple(pattern.findall(everything))


def is_letter(character: str) -> bool:
    """Letters and the marks that belong to them."""
    return unicodedata.category(character)[0] in "LM"


def is_punctuation(character: str) -> bool:
    """Marks of punctuation; not symbols such as & or arrows."""
    return unicodedata.category(character)[0] == "P"


def scripts_of(characters: Iterable[str]) -> dict[str, int]:
    """How many letters of each real script there are, most frequent first."""
    counts: dict[str, int] = {}
    for character in characters:
        if is_letter(character) and (script := script_of(character)) not in SHARED_SCRIPTS:
            counts[script] = counts.get(script, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def named(character: str) -> str:
    """A character for people: itself, its code point, its Unicode name."""
    shown = f"◌{character}" if unicodedata.category(character)[0] == "M" else character
    return f"{shown} U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"
