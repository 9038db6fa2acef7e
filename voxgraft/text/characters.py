"""Which characters a language needs, by script: exemplar letters from CLDR, whole scripts, and what texts hold.

Scripts are Unicode's own property. Knows nothing of tokenizers or families.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import regex

from voxgraft.files import parse_json

SHARED_SCRIPTS = frozenset({"Common", "Inherited"})
"""Characters of these belong to no script: digits, general punctuation, symbols, combining accents."""
JOINERS = frozenset("\u200c\u200d")
"""Zero-width joiners and non-joiners stand inside words in several scripts."""
ZERO_WIDTH = JOINERS | {"\u200b"}
"""Joiners, and the zero-width space with which some scripts part their words."""
_SCRIPT_NAMES = (
    "Adlam Arabic Armenian Balinese Bamum Bassa_Vah Batak Bengali Bopomofo Buginese Buhid Canadian_Aboriginal "
    "Chakma Cham Cherokee Coptic Cyrillic Deseret Devanagari Dogra Ethiopic Georgian Glagolitic Gothic Grantha "
    "Greek Gujarati Gunjala_Gondi Gurmukhi Han Hangul Hanifi_Rohingya Hanunoo Hebrew Hiragana Javanese Kaithi "
    "Kannada Katakana Kayah_Li Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Lisu Mahajani Makasar Malayalam "
    "Mandaic Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Miao Modi Mongolian Mro Multani Myanmar "
    "Nag_Mundari New_Tai_Lue Newa Nko Nyiakeng_Puachue_Hmong Ol_Chiki Old_Hungarian Oriya Osage Osmanya "
    "Pahawh_Hmong Pau_Cin_Hau Phags_Pa Rejang Runic Samaritan Saurashtra Sharada Shavian Sinhala Sora_Sompeng "
    "Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Telugu Thaana Thai "
    "Tibetan Tifinagh Tirhuta Toto Vai Vithkuqi Wancho Warang_Citi Yezidi Yi"
).split()
_LAST_CODE_POINT = 0x323AF
_SCRIPT_CODE_LENGTH = 4
_MAX_WHOLE_SCRIPT = 20_000
"""Of a script with more characters than this (Han has a hundred thousand) nobody needs all."""
MIN_SCRIPT_SHARE = 0.1
"""A script with this share of a text's letters gets pieces, whatever CLDR says of the language."""
MAX_STRAY_SHARE = 0.001
"""Letters that CLDR does not give a language, and that are rarer than this in its texts, are strays."""
MIN_CERTAIN_SCRIPT_SHARE = 0.3
"""A script with this share is the language's own beyond doubt: that its letters have no piece is an error."""
_GENERAL_PUNCTUATION = regex.compile(r"[\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Pd}\p{Terminal_Punctuation}\p{Quotation_Mark}…¡¿・]")
_NON_LETTER_MARK = regex.compile(r"[\p{Me}\uFE00-\uFE0F\U000E0100-\U000E01EF]")
"""Marks that dress symbols (a keycap, the emoji form of a heart), not letters."""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """What CLDR says of a language's writing."""

    name: str
    script: str
    letters: str
    punctuation: str
    auxiliary: str = ""
    """Letters of loanwords and older spelling; joiners among them."""
    numbers: str = ""


def find_exemplar(language: str) -> Exemplar | None:
    """CLDR's entry for a language code; None where CLDR has none. `am-ET` falls back to `am`, `sw-Arab` does not."""
    table = _exemplar_table()
    while language:
        if language in table:
            entry = table[language]
            return Exemplar(**{field: entry.get(field, "") for field in Exemplar.__slots__})
        language, _, last = language.rpartition("-")
        if len(last) == _SCRIPT_CODE_LENGTH:  # the same language in another script has other letters
            return None
    return None


@cache
def _exemplar_table() -> dict[str, dict[str, Any]]:
    text = resources.files("voxgraft").joinpath("data/exemplars.json").read_text(encoding="utf-8")
    table = parse_json(text, "exemplars.json")
    return {code: entry for code, entry in table.items() if not code.startswith("_")}


@cache
def _script_patterns() -> dict[str, regex.Pattern[str]]:
    return {name: regex.compile(rf"\p{{Script={name}}}") for name in ("Inherited", "Common", *_SCRIPT_NAMES)}


@cache
def script_of(character: str) -> str:
    """Unicode's script of a character: `Ethiopic`, `Latin`, `Common` ... (`Other` for dead scripts)."""
    return next((name for name, pattern in _script_patterns().items() if pattern.match(character)), "Other")


@cache
def script_characters(script: str) -> tuple[str, ...]:
    """Every assigned character of a script, in code-point order (Ethiopic: 523). None of a script that is too large."""
    if script not in _SCRIPT_NAMES:
        return ()
    everything = "".join(chr(code) for code in range(0x80, _LAST_CODE_POINT) if not 0xD800 <= code <= 0xDFFF)
    found = tuple(_script_patterns()[script].findall(everything))
    return found if len(found) <= _MAX_WHOLE_SCRIPT else ()


def find_language_scripts(letters: str, seen: Mapping[str, int], share: float) -> tuple[str, ...]:
    """The scripts that a language is written in: those of CLDR's letters, and those with this share of its texts."""
    found = count_letters_by_script(seen)
    total = found.total()
    frequent = [script for script, count in found.most_common() if count >= share * total]
    return tuple(dict.fromkeys([*count_scripts(letters), *frequent]))


def count_letters_by_script(seen: Mapping[str, int]) -> Counter[str]:
    """How many letters of each real script were seen."""
    found: Counter[str] = Counter()
    for character, count in seen.items():
        if is_letter(character) and script_of(character) not in SHARED_SCRIPTS:
            found[script_of(character)] += count
    return found


def is_script_letter(character: str, scripts: Iterable[str]) -> bool:
    """A letter or mark of one of the scripts, or one that all scripts share."""
    return is_letter(character) and script_of(character) in {*scripts, *SHARED_SCRIPTS}


def is_letter(character: str) -> bool:
    """Letters and the marks that belong to them."""
    return unicodedata.category(character)[0] in "LM" and not _NON_LETTER_MARK.match(character)


def is_punctuation(character: str) -> bool:
    """Marks of punctuation; not general symbols such as & or @, which Unicode counts among them."""
    if unicodedata.category(character)[0] != "P":
        return False
    return script_of(character) not in SHARED_SCRIPTS or bool(_GENERAL_PUNCTUATION.match(character))


def count_scripts(characters: Iterable[str]) -> dict[str, int]:
    """How many letters of each real script there are, most frequent first."""
    counts: dict[str, int] = {}
    for character in characters:
        if is_letter(character) and (script := script_of(character)) not in SHARED_SCRIPTS:
            counts[script] = counts.get(script, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def printable_text(text: str) -> str:
    """Text for people: a mark at its start is given something to sit on."""
    return f"◌{text}" if text and unicodedata.category(text[0])[0] == "M" else text


def describe_character(character: str) -> str:
    """A character for people: itself, its code point, its Unicode name."""
    return f"{printable_text(character)} U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"
