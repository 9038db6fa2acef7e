"""The normalisers of languages that have their own: Amharic and Tigrinya, on one Ethiopic base."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import regex

from voxgraft.text.normalize import generic, reader
from voxgraft.text.normalize.amharic import AmharicVerbalizer
from voxgraft.text.normalize.base import (
    NormalizationStep,
    NormalizedText,
    TextEditor,
    TextNote,
    apply_until_stable,
    regex_alternation,
)
from voxgraft.text.normalize.reader import ETHIOPIC_LETTER, LATIN_WORD, NumberExpander
from voxgraft.text.normalize.tigrinya import TigrinyaVerbalizer

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
    suffixes = regex_alternation(ABBREVIATION_SUFFIXES)
    ending = rf"(?={suffixes})(?:{suffixes})(?!{ETHIOPIC_LETTER})"
    stop = rf"(?P<dot>\.)(?!{ETHIOPIC_LETTER}[./])|(?!{ETHIOPIC_LETTER})|(?={ending})"
    pattern = rf"{_ABBREVIATION_START}(?P<short>{shorts})(?:{stop})"
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


AMHARIC_VERSION, TIGRINYA_VERSION = "amharic-1", "tigrinya-1"
ETHIOPIC_TEXT_MARKS = {**generic.TYPOGRAPHIC_MARKS, "ʼ": "'"}
"""Neither language has the letter U+02BC; there it is an apostrophe."""
_ETHIOPIC_TEXT_MARK = regex.compile("[" + "".join(ETHIOPIC_TEXT_MARKS) + "]")
_NUMBER_SIGN = regex.compile(r"[\p{No}\p{Nl}--[½⅓⅔¼¾⅕⅛²³፩-፼]]", regex.V1)
_SUPERSCRIPT_DIGIT = regex.compile("[²³]")
_AMPERSAND = regex.compile(r"(?<![\p{Script=Latin}])&(?![\p{Script=Latin}])")
_KEPT_MARKS = r".,?!;:'\"()-"
_SYMBOL = regex.compile(rf"(?P<fraction>\d+/\d+)|(?P<mark>[\u135d-\u135f])|[^\p{{L}}\p{{M}}\p{{N}} {_KEPT_MARKS}]")
"""Fractions that were not read stay whole. The marks are those of length, which no book of today has."""
_OTHER_SCRIPT = regex.compile(r"[\p{L}--[\p{Script=Ethiopic}\p{Script=Latin}]]+", regex.V1)
_DIGIT_GROUP = regex.compile(r"\p{N}+(?:[/.,:]\p{N}+)*")

HOMOPHONE_ROWS = {"ሐ": "ሀ", "ኀ": "ሀ", "ሠ": "ሰ", "ዐ": "አ", "ፀ": "ጸ"}
"""Rows of letters that are one sound in Amharic. Tigrinya keeps most of them apart."""
HOMOPHONE_LETTERS = {"ሃ": "ሀ", "ኣ": "አ"}
"""Of these two rows the first and the fourth letter sound alike in Amharic."""
_HOMOPHONE_TABLE = reader.build_folding_table(HOMOPHONE_ROWS, HOMOPHONE_LETTERS)
_HOMOPHONES = regex.compile("[" + "".join(map(chr, _HOMOPHONE_TABLE)) + "]+")


@dataclass(frozen=True, slots=True)
class EthiopicNormalizer:
    """Text in Ethiopic script as it is said: plain marks, no abbreviations, no digits."""

    language: str
    version: str
    steps: tuple[NormalizationStep, ...]

    def normalise(self, text: str) -> NormalizedText:
        return apply_until_stable(text, self.steps, _collect_notes)


def build_amharic_normalizer(fold_homophones: bool = False) -> EthiopicNormalizer:
    """Amharic; `fold_homophones` writes one letter for those that sound alike."""
    steps = (
        _clean_without_joiners,
        _replace_typographic_marks,
        AbbreviationExpander(AMHARIC_ABBREVIATIONS, AMHARIC_PREFIX_ABBREVIATIONS),
        _convert_number_signs,
        reader.convert_to_ascii_digits,
        reader.replace_ethiopic_marks,
        NumberExpander(AmharicVerbalizer()),
        _convert_superscripts,
        _replace_ampersand,
        _remove_symbols,
        reader.fix_mark_spacing,
        generic.collapse_spaces,
    )
    if not fold_homophones:
        return EthiopicNormalizer("am", AMHARIC_VERSION, steps)
    return EthiopicNormalizer("am", f"{AMHARIC_VERSION}+homophones", (*steps, _fold_homophones))


def build_tigrinya_normalizer() -> EthiopicNormalizer:
    """Tigrinya."""
    steps = (
        _clean_without_joiners,
        _replace_typographic_marks,
        AbbreviationExpander(TIGRINYA_ABBREVIATIONS),
        _convert_number_signs,
        reader.convert_to_ascii_digits,
        reader.replace_ethiopic_marks,
        NumberExpander(TigrinyaVerbalizer()),
        _convert_superscripts,
        _remove_symbols,
        reader.fix_mark_spacing,
        generic.collapse_spaces,
    )
    return EthiopicNormalizer("ti", TIGRINYA_VERSION, steps)


def _clean_without_joiners(draft: TextEditor) -> None:
    generic.clean_characters(draft, joiners=False)


def _replace_typographic_marks(draft: TextEditor) -> None:
    draft.translate("plain-mark", _ETHIOPIC_TEXT_MARK, ETHIOPIC_TEXT_MARKS)


def _convert_number_signs(draft: TextEditor) -> None:
    """Signs such as ① and Ⅳ as digits, where they are whole numbers."""
    draft.rewrite("number-sign", _NUMBER_SIGN, _sign_to_digits)


def _convert_superscripts(draft: TextEditor) -> None:
    """A raised 2 or 3 that no unit has taken is a number of its own."""
    draft.rewrite("number-sign", _SUPERSCRIPT_DIGIT, _sign_to_digits)


def _sign_to_digits(match: regex.Match[str]) -> str:
    value = unicodedata.numeric(match.group(), -1.0)
    return f" {int(value)} " if value >= 0 and value == int(value) else match.group()


def _replace_ampersand(draft: TextEditor) -> None:
    draft.rewrite("and-sign", _AMPERSAND, " እና ")


def _remove_symbols(draft: TextEditor) -> None:
    """Signs that nobody says are taken out, and words that they joined are parted."""
    draft.rewrite("symbol-removed", _SYMBOL, _symbol_replacement)


def _symbol_replacement(match: regex.Match[str]) -> str:
    if match["fraction"]:
        return match.group()
    return "" if match["mark"] else " "


def _fold_homophones(draft: TextEditor) -> None:
    draft.rewrite("homophone", _HOMOPHONES, lambda match: match.group().translate(_HOMOPHONE_TABLE))


def _collect_notes(text: str) -> Iterator[TextNote]:
    """What was left alone: Latin words, other scripts, digits, unknown abbreviations."""
    patterns = {
        "latin-word": LATIN_WORD,
        "other-script": _OTHER_SCRIPT,
        "digits-left": _DIGIT_GROUP,
        "abbreviation-unknown": UNKNOWN_ABBREVIATION,
    }
    found = [
        TextNote(rule, match.group(), match.start())
        for rule, pattern in patterns.items()
        for match in pattern.finditer(text)
    ]
    yield from sorted(found, key=lambda note: note.place)
