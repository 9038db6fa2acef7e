"""Abbreviations of Amharic and Tigrinya with what is said for them, and how they are found at prefixes and endings.

Every entry carries its source; `docs/text.md` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import regex

from voxgraft.normalising.base import TextEditor, regex_alternation
from voxgraft.normalising.ethiopic import ETHIOPIC_LETTER

SPACY = "spaCy, lang/am/tokenizer_exceptions.py"
SPACY_COPY = "an extended copy of spaCy's list in a public repository"
ETNLTK = "etnltk 0.0.22, shortened_expansions_dict.json (spelling ours)"
CLDR = "CLDR 48, am: eras"
CLDR_UNITS = "CLDR 48, am: units"
CLDR_TI = "CLDR 48, ti: eras"
USAGE = "general usage in the Ethiopian press and offices"


@dataclass(frozen=True, slots=True)
class Abbreviation:
    """`short` is written with dots; a stroke in place of each dot is the same."""

    short: str
    full: str
    source: str


AMHARIC_ABBREVIATIONS = tuple(
    Abbreviation(*entry)
    for entry in (
        ("ዓ.ም", "ዓመተ ምህረት", ETNLTK),
        ("አ.ም", "ዓመተ ምህረት", ETNLTK),
        ("ዓ.ዓ", "ዓመተ ዓለም", CLDR),
        ("እ.ኤ.አ", "እንደ ኤውሮፓውያን አቆጣጠር", USAGE),
        ("እ.አ.አ", "እንደ አውሮፓውያን አቆጣጠር", USAGE),
        ("እ.ኤ.ኣ", "እንደ ኤውሮፓውያን አቆጣጠር", USAGE),
        ("እ.ኢ.አ", "እንደ ኢትዮጵያ አቆጣጠር", USAGE),
        ("ቅ.ል.ክ", "ቅድመ ልደተ ክርስቶስ", USAGE),
        ("ዶ.ር", "ዶክተር", ETNLTK),
        ("ፕ.ር", "ፕሮፌሰር", USAGE),
        ("ፕ.ሮ", "ፕሮፌሰር", SPACY_COPY),
        ("ኢ.ር", "ኢንጂነር", USAGE),
        ("መ.ር", "መምህር", USAGE),
        ("ወ.ሮ", "ወይዘሮ", SPACY),
        ("ወ.ሪት", "ወይዘሪት", USAGE),
        ("ወ.ሪ", "ወይዘሪት", "spaCy, lang/ti/tokenizer_exceptions.py"),
        ("ጠ.ሚ", "ጠቅላይ ሚኒስትር", ETNLTK),
        ("ጄ.ል", "ጄኔራል", USAGE),
        ("ኮ.ል", "ኮሎኔል", USAGE),
        ("ሆ.ል", "ሆስፒታል", SPACY_COPY),
        ("ቤ.ክ", "ቤተ ክርስቲያን", SPACY_COPY),
        ("አ.አ", "አዲስ አበባ", ETNLTK),
        ("ስ.ቁ", "ስልክ ቁጥር", USAGE),
        ("ተ.ቁ", "ተራ ቁጥር", USAGE),
        ("ፖ.ሳ.ቁ", "ፖስታ ሳጥን ቁጥር", USAGE),
        ("አ.ማ", "አክሲዮን ማህበር", USAGE),
        ("ወ.ዘ.ተ", "ወዘተ", USAGE),
        ("ኪ.ሜ", "ኪሎሜትር", "etnltk 0.0.22 and CLDR 48, am: units"),
        ("ሴ.ሜ", "ሴንቲሜትር", CLDR_UNITS),
        ("ሳ.ሜ", "ሴንቲሜትር", CLDR_UNITS),
        ("ሚ.ሜ", "ሚሊሜትር", CLDR_UNITS),
        ("ኪ.ግ", "ኪሎግራም", CLDR_UNITS),
        ("ካ.ሜ", "ካሬ ሜትር", CLDR_UNITS),
        ("ካ.ኪ.ሜ", "ካሬ ኪሎሜትር", CLDR_UNITS),
        ("ተ.መ.ድ", "የተባበሩት መንግስታት ድርጅት", USAGE),
    )
)
AMHARIC_PREFIX_ABBREVIATIONS = tuple(
    Abbreviation(*entry)
    for entry in (
        ("ት.ቤ", "ትምህርት ቤ", SPACY),
        ("ጽ.ቤ", "ጽህፈት ቤ", SPACY),
        ("ፅ.ቤ", "ጽህፈት ቤ", SPACY),
        ("መ.ቤ", "መስሪያ ቤ", SPACY),
        ("ም.ቤ", "ምክር ቤ", SPACY),
        ("ፍ.ቤ", "ፍርድ ቤ", SPACY),
        ("ጠ.ሚኒስ", "ጠቅላይ ሚኒስ", USAGE),
        ("ክ.ከተማ", "ክፍለ ከተማ", USAGE),
        ("ክ.ሀገር", "ክፍለ ሀገር", USAGE),
        ("ክ.ዘመን", "ክፍለ ዘመን", USAGE),
        ("ቤ.ክርስቲያን", "ቤተ ክርስቲያን", USAGE),
        ("ገ.ማርያም", "ገብረ ማርያም", USAGE),
        ("ገ.ሥላሴ", "ገብረ ሥላሴ", USAGE),
        ("ገ.መድህን", "ገብረ መድህን", USAGE),
        ("ኃ.ማርያም", "ኃይለ ማርያም", USAGE),
        ("ኃ.ሥላሴ", "ኃይለ ሥላሴ", USAGE),
        ("ወ.ማርያም", "ወልደ ማርያም", USAGE),
        ("ወ.ጊዮርጊስ", "ወልደ ጊዮርጊስ", USAGE),
        ("ተ.ሃይማኖት", "ተክለ ሃይማኖት", USAGE),
    )
)
"""The last word is written in full, or begins so: its ending stays as it is (ት/ቤቶች is ትምህርት ቤቶች)."""
TIGRINYA_ABBREVIATIONS = tuple(
    Abbreviation(*entry)
    for entry in (
        ("ዓ.ም", "ዓመተ ምሕረት", CLDR_TI),
        ("ኪ.ሜ", "ኪሎ ሜትር", "CLDR 48, ti: units"),
        ("ኪ.ግ", "ኪሎግራም", "CLDR 48, ti: units"),
        ("ዶ.ር", "ዶክተር", USAGE),
        ("ወ.ሮ", "ወይዘሮ", "spaCy, lang/ti/tokenizer_exceptions.py"),
        ("ወ.ሪ", "ወይዘሪት", "spaCy, lang/ti/tokenizer_exceptions.py"),
    )
)
ABBREVIATION_PREFIXES = ("በ", "ከ", "ለ", "የ", "ስለ", "እንደ", "ብ", "ን")
ABBREVIATION_SUFFIXES = ("ን", "ም", "ና", "ው", "ዋ", "ንና")
UNKNOWN_ABBREVIATION = regex.compile(
    rf"(?<!{ETHIOPIC_LETTER}){ETHIOPIC_LETTER}{{1,2}}(?:[./]{ETHIOPIC_LETTER}{{1,2}})+(?!{ETHIOPIC_LETTER})", regex.V1
)


@dataclass(frozen=True, slots=True)
class AbbreviationExpander:
    """The step that writes abbreviations out."""

    whole: tuple[Abbreviation, ...]
    fronts: tuple[Abbreviation, ...] = ()

    def __call__(self, draft: TextEditor) -> None:
        """A dot that ends the abbreviation stays where it ends the text too."""
        pattern, table = _abbreviation_pattern(self.whole)
        draft.rewrite("abbreviation", pattern, lambda match: _expand_abbreviation(match, table))
        if self.fronts:
            fronts, table_of_fronts = _prefix_abbreviation_pattern(self.fronts)
            draft.rewrite("abbreviation", fronts, lambda match: table_of_fronts[_abbreviation_key(match.group())])


@cache
def _abbreviation_pattern(entries: tuple[Abbreviation, ...]) -> tuple[regex.Pattern[str], Mapping[str, str]]:
    shorts = "|".join(
        _dot_or_slash_pattern(entry.short) for entry in sorted(entries, key=lambda entry: -len(entry.short))
    )
    ending = rf"(?={regex_alternation(ABBREVIATION_SUFFIXES)})(?:{regex_alternation(ABBREVIATION_SUFFIXES)})(?!{ETHIOPIC_LETTER})"
    pattern = rf"{_ABBREVIATION_START}(?P<short>{shorts})(?:(?P<dot>\.)(?!{ETHIOPIC_LETTER}[./])|(?!{ETHIOPIC_LETTER})|(?={ending}))"
    return regex.compile(pattern, regex.V1), {entry.short: entry.full for entry in entries}


@cache
def _prefix_abbreviation_pattern(entries: tuple[Abbreviation, ...]) -> tuple[regex.Pattern[str], Mapping[str, str]]:
    shorts = "|".join(
        _dot_or_slash_pattern(entry.short) for entry in sorted(entries, key=lambda entry: -len(entry.short))
    )
    return regex.compile(rf"{_ABBREVIATION_START}(?:{shorts})", regex.V1), {
        entry.short: entry.full for entry in entries
    }


_ABBREVIATION_START = (
    rf"(?<=(?<!{ETHIOPIC_LETTER}|[./])|(?<!{ETHIOPIC_LETTER})(?:{regex_alternation(ABBREVIATION_PREFIXES)}))"
)
"""Nothing, or a preposition."""


def _dot_or_slash_pattern(short: str) -> str:
    """With dots or strokes; a space behind a dot is common where the parts are single letters."""
    first, *others = short.split(".")
    single = all(len(part) == 1 for part in (first, *others))
    return regex.escape(first) + "".join(
        (r"(?:[./]|\. )" if single else "[./]") + regex.escape(part) for part in others
    )


def _abbreviation_key(found: str) -> str:
    return found.replace(" ", "").replace("/", ".")


def _expand_abbreviation(match: regex.Match[str], table: Mapping[str, str]) -> str:
    ends = match["dot"] is not None and not match.string[match.end() :].strip()
    return table[_abbreviation_key(match["short"])] + ("." if ends else "")
