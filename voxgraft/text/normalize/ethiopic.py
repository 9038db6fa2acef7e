"""The normalisers of languages that have their own: Amharic and Tigrinya, on one Ethiopic base."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, partial

import regex

from voxgraft.text.normalize import generic, reader
from voxgraft.text.normalize.amharic import AmharicVerbalizer
from voxgraft.text.normalize.generic import Normalizer, TextEditor, TextNote, regex_alternation
from voxgraft.text.normalize.reader import ETHIOPIC_LETTER, LATIN_WORD, NumberExpander
from voxgraft.text.normalize.tigrinya import TigrinyaVerbalizer

SPACY = "spaCy, lang/am/tokenizer_exceptions.py"
SPACY_COPY = "an extended copy of spaCy's list in a public repository"
ETNLTK = "etnltk 0.0.22, shortened_expansions_dict.json (spelling ours)"
CLDR = "CLDR 48, am: eras"
CLDR_UNITS = "CLDR 48, am: units"
CLDR_TI = "CLDR 48, ti: eras"
USAGE = "general usage in the Ethiopian press and offices"


# Short form, full form, source. The short form is written with dots here; a stroke in place of each dot is the same.
Abbreviations = tuple[tuple[str, str, str], ...]
AMHARIC_ABBREVIATIONS: Abbreviations = (
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
# The last word is written in full, or its beginning: its ending stays as it is (ት/ቤቶች is ትምህርት ቤቶች).
AMHARIC_PREFIX_ABBREVIATIONS: Abbreviations = (
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
TIGRINYA_ABBREVIATIONS: Abbreviations = (
    ("ዓ.ም", "ዓመተ ምሕረት", CLDR_TI),
    ("ኪ.ሜ", "ኪሎ ሜትር", "CLDR 48, ti: units"),
    ("ኪ.ግ", "ኪሎግራም", "CLDR 48, ti: units"),
    ("ዶ.ር", "ዶክተር", USAGE),
    ("ወ.ሮ", "ወይዘሮ", "spaCy, lang/ti/tokenizer_exceptions.py"),
    ("ወ.ሪ", "ወይዘሪት", "spaCy, lang/ti/tokenizer_exceptions.py"),
)
ABBREVIATION_PREFIXES = ("በ", "ከ", "ለ", "የ", "ስለ", "እንደ", "ብ", "ን")
ABBREVIATION_SUFFIXES = ("ን", "ም", "ና", "ው", "ዋ", "ንና")
UNKNOWN_ABBREVIATION = regex.compile(
    rf"(?<!{ETHIOPIC_LETTER}){ETHIOPIC_LETTER}{{1,2}}(?:[./]{ETHIOPIC_LETTER}{{1,2}})+(?!{ETHIOPIC_LETTER})", regex.V1
)


# Nothing, or a preposition.
_ABBREVIATION_START = (
    rf"(?<=(?<!{ETHIOPIC_LETTER}|[./])|(?<!{ETHIOPIC_LETTER})(?:{regex_alternation(ABBREVIATION_PREFIXES)}))"
)


@cache
def _abbreviation_pattern(entries: Abbreviations, with_endings: bool) -> tuple[regex.Pattern[str], Mapping[str, str]]:
    """The pattern, and by short form the full one. `with_endings`: only before the end of a word, or a known ending."""
    shorts = []
    for short in sorted((entry[0] for entry in entries), key=lambda short: -len(short)):
        first, *others = short.split(".")
        # A space behind a dot is common where the parts are single letters.
        between = r"(?:[./]|\. )" if all(len(part) == 1 for part in (first, *others)) else "[./]"
        shorts.append(regex.escape(first) + "".join(between + regex.escape(part) for part in others))
    stop = r"(?P<dot>(?!)){0}"
    if with_endings:
        suffixes = regex_alternation(ABBREVIATION_SUFFIXES)
        ending = rf"(?={suffixes})(?:{suffixes})(?!{ETHIOPIC_LETTER})"
        stop = rf"(?:(?P<dot>\.)(?!{ETHIOPIC_LETTER}[./])|(?!{ETHIOPIC_LETTER})|(?={ending}))"
    pattern = rf"{_ABBREVIATION_START}(?P<short>{'|'.join(shorts)}){stop}"
    return regex.compile(pattern, regex.V1), {short: full for short, full, _ in entries}


AMHARIC_VERSION, TIGRINYA_VERSION = "amharic-1", "tigrinya-1"
# Neither language has the letter U+02BC; there it is an apostrophe.
ETHIOPIC_TEXT_MARKS = {**generic.TYPOGRAPHIC_MARKS, "ʼ": "'"}
_ETHIOPIC_TEXT_MARK = regex.compile("[" + "".join(ETHIOPIC_TEXT_MARKS) + "]")
_NUMBER_SIGN = regex.compile(r"[\p{No}\p{Nl}--[½⅓⅔¼¾⅕⅛²³፩-፼]]", regex.V1)
_SUPERSCRIPT_DIGIT = regex.compile("[²³]")
_DOUBLED_COLON_FULL_STOP = regex.compile(rf"(?:(?:፡ ?፡)+|(?<={ETHIOPIC_LETTER}):{{2,}})+", regex.V1)
_MARK_BETWEEN_DIGITS = regex.compile(r"(?<=[\d፩-፼])[፡፥](?=[\d፩-፼])")
_ETHIOPIC_MARK = regex.compile("[፡።፣፤፥፦፧፨]")
# What a base language has for them, so that the rows of these marks bring their pauses along.
ETHIOPIC_MARKS = {"፡": " ", "።": ".", "፣": ",", "፤": ";", "፥": ":", "፦": ":", "፧": "?", "፨": "."}
_SPACE_BEFORE_A_MARK = regex.compile(r" +(?=[.,;:?!)](?:\s|[.,;:?!)]|$))")
_SPACE_AFTER_A_MARK = regex.compile(rf"(?<={ETHIOPIC_LETTER}[.,;:?!])(?={ETHIOPIC_LETTER}{{2}})", regex.V1)
_AMPERSAND = regex.compile(r"(?<![\p{Script=Latin}])&(?![\p{Script=Latin}])")
_KEPT_MARKS = r".,?!;:'\"()-"
# Fractions that were not read stay whole. The marks are those of length, which modern texts do not have.
_SYMBOL = regex.compile(rf"(?P<fraction>\d+/\d+)|(?P<mark>[\u135d-\u135f])|[^\p{{L}}\p{{M}}\p{{N}} {_KEPT_MARKS}]")
_OTHER_SCRIPT = regex.compile(r"[\p{L}--[\p{Script=Ethiopic}\p{Script=Latin}]]+", regex.V1)
_DIGIT_GROUP = regex.compile(r"\p{N}+(?:[/.,:]\p{N}+)*")

# Rows of letters that are one sound in Amharic. Tigrinya keeps most of them apart.
HOMOPHONE_ROWS = {"ሐ": "ሀ", "ኀ": "ሀ", "ሠ": "ሰ", "ዐ": "አ", "ፀ": "ጸ"}
# Of these two rows the first and the fourth letter sound alike in Amharic.
HOMOPHONE_LETTERS = {"ሃ": "ሀ", "ኣ": "አ"}
_HOMOPHONE_TABLE = reader.build_folding_table(HOMOPHONE_ROWS, HOMOPHONE_LETTERS)
_HOMOPHONES = regex.compile("[" + "".join(map(chr, _HOMOPHONE_TABLE)) + "]+")


def build_amharic_normalizer(fold_homophones: bool = False) -> Normalizer:
    """Amharic; `fold_homophones` writes one letter for those that sound alike."""
    before = partial(_prepare, whole=AMHARIC_ABBREVIATIONS, fronts=AMHARIC_PREFIX_ABBREVIATIONS)
    after = partial(_finish, and_word="እና", fold_homophones=fold_homophones)
    version = f"{AMHARIC_VERSION}+homophones" if fold_homophones else AMHARIC_VERSION
    return Normalizer("am", version, (before, NumberExpander(AmharicVerbalizer()), after), _collect_notes)


def build_tigrinya_normalizer() -> Normalizer:
    """Tigrinya."""
    before = partial(_prepare, whole=TIGRINYA_ABBREVIATIONS)
    return Normalizer("ti", TIGRINYA_VERSION, (before, NumberExpander(TigrinyaVerbalizer()), _finish), _collect_notes)


def _prepare(draft: TextEditor, *, whole: Abbreviations, fronts: Abbreviations = ()) -> None:
    """Everything before numbers are read: plain characters and marks, full words, digits 0 to 9."""
    generic.clean_characters(draft, joiners=False)
    draft.rewrite("plain-mark", _ETHIOPIC_TEXT_MARK, lambda match: ETHIOPIC_TEXT_MARKS[match.group()])

    def expand(match: regex.Match[str]) -> str:
        # A dot that ends the abbreviation stays if it ends the text too.
        ends = match["dot"] is not None and not match.string[match.end() :].strip()
        return table[match["short"].replace(" ", "").replace("/", ".")] + ("." if ends else "")

    for entries, with_endings in ((whole, True), (fronts, False)):
        if entries:
            pattern, table = _abbreviation_pattern(entries, with_endings)
            draft.rewrite("abbreviation", pattern, expand)
    draft.rewrite("number-sign", _NUMBER_SIGN, _sign_to_digits)
    reader.convert_to_ascii_digits(draft)
    # Ethiopic punctuation as plain marks; the word separator becomes a space.
    draft.rewrite("full-stop", _DOUBLED_COLON_FULL_STOP, ".")
    draft.rewrite("mark-between-digits", _MARK_BETWEEN_DIGITS, lambda match: ":" if match.group() == "፡" else " ")
    draft.rewrite("ethiopic-mark", _ETHIOPIC_MARK, lambda match: ETHIOPIC_MARKS[match.group()])


def _finish(draft: TextEditor, *, and_word: str = "", fold_homophones: bool = False) -> None:
    """Everything after numbers are read: no symbols, and spaces where they belong."""
    # A raised 2 or 3 that no unit has taken is a number of its own.
    draft.rewrite("number-sign", _SUPERSCRIPT_DIGIT, _sign_to_digits)
    if and_word:
        draft.rewrite("and-sign", _AMPERSAND, f" {and_word} ")
    # Signs that nobody says go, and the words that they joined are separated.
    draft.rewrite(
        "symbol-removed", _SYMBOL, lambda match: match.group() if match["fraction"] else "" if match["mark"] else " "
    )
    draft.rewrite("space-before-mark", _SPACE_BEFORE_A_MARK, "")
    draft.rewrite("space-after-mark", _SPACE_AFTER_A_MARK, " ")
    generic.collapse_spaces(draft)
    if fold_homophones:
        draft.rewrite("homophone", _HOMOPHONES, lambda match: match.group().translate(_HOMOPHONE_TABLE))


def _sign_to_digits(match: regex.Match[str]) -> str:
    """A sign such as ① or Ⅳ as digits, if it is a whole number."""
    value = unicodedata.numeric(match.group(), -1.0)
    return f" {int(value)} " if value >= 0 and value == int(value) else match.group()


def _collect_notes(text: str) -> Iterator[TextNote]:
    """What was left alone: Latin words, other scripts, digits, unknown abbreviations."""
    patterns = {
        "latin-word": LATIN_WORD,
        "other-script": _OTHER_SCRIPT,
        "digits-left": _DIGIT_GROUP,
        "abbreviation-unknown": UNKNOWN_ABBREVIATION,
    }
    found = [(rule, match) for rule, pattern in patterns.items() for match in pattern.finditer(text)]
    for rule, match in sorted(found, key=lambda pair: pair[1].start()):
        yield TextNote(rule, match.group(), match.start())
