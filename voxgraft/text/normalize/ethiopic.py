"""The normalizers of Amharic and Tigrinya: words of numbers, dates, times, money and measures; abbreviations; marks.

Amharic: `docs/text.md` names the sources. Two spellings are in use for several numbers (ሶስት and ሦስት, ሃያ and ሀያ); one
is written here, always the same. Tigrinya: after F. Gaim, "Tigrinya Number Verbalization" (arXiv 2601.03403) and CLDR
48; what they do not settle is left as it is (fractions, months of unnamed calendars, sums).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import ClassVar

import regex

from voxgraft.text.normalize import generic, reader
from voxgraft.text.normalize.generic import Normalizer, TextEditor, TextNote, regex_alternation
from voxgraft.text.normalize.reader import (
    ETHIOPIC_LETTER,
    LATIN_WORD,
    Calendar,
    NumberExpander,
    NumberVerbalizer,
    is_same_consonant,
)

AMHARIC_ONES = "ዜሮ አንድ ሁለት ሶስት አራት አምስት ስድስት ሰባት ስምንት ዘጠኝ".split()
AMHARIC_TENS = "አስር ሃያ ሰላሳ አርባ ሃምሳ ስልሳ ሰባ ሰማንያ ዘጠና".split()
AMHARIC_TEN_AND = "አስራ"
AMHARIC_HUNDRED = "መቶ"
AMHARIC_SCALES = ((10**12, "ትሪሊዮን"), (10**9, "ቢሊዮን"), (10**6, "ሚሊዮን"), (10**3, "ሺህ"))
AMHARIC_ORDINAL_ENDING = "ኛ"
# Words that end in a consonant take a vowel before the ending; all others only the ending.
AMHARIC_ORDINALS = {
    "አንድ": "አንደኛ",
    "ሁለት": "ሁለተኛ",
    "ሶስት": "ሶስተኛ",
    "አራት": "አራተኛ",
    "አምስት": "አምስተኛ",
    "ስድስት": "ስድስተኛ",
    "ሰባት": "ሰባተኛ",
    "ስምንት": "ስምንተኛ",
    "ዘጠኝ": "ዘጠነኛ",
    "አስር": "አስረኛ",
}
ETHIOPIAN_MONTHS = "መስከረም ጥቅምት ኅዳር ታኅሣሥ ጥር የካቲት መጋቢት ሚያዝያ ግንቦት ሰኔ ሐምሌ ነሐሴ ጳጉሜን".split()
# Both as CLDR 48 gives them.
GREGORIAN_MONTHS = "ጃንዋሪ ፌብሩዋሪ ማርች ኤፕሪል ሜይ ጁን ጁላይ ኦገስት ሴፕቴምበር ኦክቶበር ኖቬምበር ዲሴምበር".split()
GREGORIAN_ERA_PHRASES = ("ኤውሮፓውያን አቆጣጠር", "አውሮፓውያን አቆጣጠር", "ጎርጎርዮሳውያን አቆጣጠር", "ግሪጎሪያን አቆጣጠር")
ETHIOPIAN_ERA_PHRASES = ("ኢትዮጵያ አቆጣጠር", "ኢትዮጵያውያን አቆጣጠር")
YEAR_OF_MERCY = ("ዓመተ ምህረት", "ዓመተ ምሕረት", "አመተ ምህረት")


class AmharicVerbalizer(NumberVerbalizer):
    """Cardinals as news readers say them: አንድ is spoken before መቶ and ሺህ, and years are spoken as other numbers."""

    prefixes: ClassVar = frozenset("በ ከ ለ የ ስለ እንደ በየ ለየ ከየ የበ የከ የለ".split())
    suffix: ClassVar = "(?:ዎች|ዎቹ|ዎቹን|ቱ|ቷ|ቶቹ|ዱ|ዷ|ሩ|ሯ|ኙ|ው|ዋ|ያ)?(?:ንም|ንና|ምና|ን|ም|ና|ስ)?"
    ordinal_suffix: ClassVar = "-?[ተደነረ]?ኛ"
    scales: ClassVar[Mapping[str, str]] = {
        **{word: word for _, word in AMHARIC_SCALES},
        "ሺ": "ሺህ",
        "ሚሊየን": "ሚሊዮን",
        "ሚልዮን": "ሚሊዮን",
        "ቢሊየን": "ቢሊዮን",
        "ቢልዮን": "ቢሊዮን",
        "ትሪሊየን": "ትሪሊዮን",
        "million": "ሚሊዮን",
        "billion": "ቢሊዮን",
        "trillion": "ትሪሊዮን",
    }
    currencies: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("ብር", "ETB", "Br", "Br.", "Birr", "birr"), "ብር"),
        **dict.fromkeys(("ዶላር", "$", "US$", "USD"), "ዶላር"),
        **dict.fromkeys(("ዩሮ", "€", "EUR"), "ዩሮ"),
        **dict.fromkeys(("ፓውንድ", "£", "GBP"), "ፓውንድ"),
        **dict.fromkeys(("የን", "¥", "JPY"), "የን"),
    }
    units: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("km", "Km", "KM", "ኪሜ"), "ኪሎሜትር"),
        **dict.fromkeys(("m", "ሜ"), "ሜትር"),
        **dict.fromkeys(("cm", "ሴሜ"), "ሴንቲሜትር"),
        **dict.fromkeys(("mm", "ሚሜ"), "ሚሊሜትር"),
        **dict.fromkeys(("kg", "Kg", "KG", "ኪግ"), "ኪሎግራም"),
        **dict.fromkeys(("g", "ግ"), "ግራም"),
        **dict.fromkeys(("l", "L"), "ሊትር"),
        **dict.fromkeys(("ml", "mL"), "ሚሊ ሊትር"),
        **dict.fromkeys(("km²", "km2"), "ካሬ ኪሎሜትር"),
        **dict.fromkeys(("m²", "m2"), "ካሬ ሜትር"),
        **dict.fromkeys(("km/h", "kmh"), "ኪሎሜትር በሰዓት"),
        **dict.fromkeys(("°C", "℃"), "ዲግሪ ሴልሺየስ"),
        "°": "ዲግሪ",
        "ha": "ሄክታር",
        "W": "ዋት",
        "kW": "ኪሎዋት",
        "MW": "ሜጋ ዋት",
        "MB": "ሜጋባይት",
        "MHz": "ሜጋኸርዝ",
    }
    hours: ClassVar = ("ሰዓት", "ሰአት", "ሰኣት")
    from_words: ClassVar = ("ከ", "በ", "የ", "ለ")
    point: ClassVar = "ነጥብ"
    operators: ClassVar[Mapping[str, str]] = {"+": "ሲደመር", "=": "እኩል ይሆናል", "×": "ሲባዛ", "÷": "ሲካፈል"}
    minus: ClassVar = "አሉታዊ"
    percents: ClassVar[Mapping[str, str]] = {"%": "በመቶ", "‰": "በሺህ"}
    interval: ClassVar = ("ከ", "እስከ")

    def cardinal(self, number: int) -> str:
        parts = []
        for size, word in AMHARIC_SCALES:
            count, number = divmod(number, size)
            if count:
                parts.append(f"{self.cardinal(count)} {word}")
        hundreds, rest = divmod(number, 100)
        if hundreds:
            parts.append(f"{AMHARIC_ONES[hundreds]} {AMHARIC_HUNDRED}")
        tens, ones = divmod(rest, 10)
        if tens:
            parts.append(AMHARIC_TEN_AND if tens == 1 and ones else AMHARIC_TENS[tens - 1])
        if ones or not parts:
            parts.append(AMHARIC_ONES[ones])
        return " ".join(parts)

    def ordinal(self, number: int, suffix: str) -> str:  # noqa: ARG002 (the ending is the same for both genders)
        before, _, last = self.cardinal(number).rpartition(" ")
        return f"{before} {AMHARIC_ORDINALS.get(last, last + AMHARIC_ORDINAL_ENDING)}".strip()

    def money(self, whole: int, cents: int, currency: str) -> str:
        small = f"{self.cardinal(cents)} {'ፔንስ' if currency == 'ፓውንድ' else 'ሳንቲም'}"
        if not whole and cents:
            return small
        words = f"{self.cardinal(whole)} {currency}"
        return f"{words} ከ{small}" if cents else words

    def fraction(self, whole: int | None, above: int, below: int) -> str:
        if whole is not None and (above, below) == (1, 2):
            return f"{self.cardinal(whole)} ተኩል"
        known = {(1, 2): "ግማሽ", (1, 4): "ሩብ"}
        words = known.get((above, below)) or f"{self.cardinal(above)} {self.ordinal(below, AMHARIC_ORDINAL_ENDING)}"
        return f"{self.cardinal(whole)} ከ{words}" if whole is not None else words

    def clock(self, hour: int, minute: int, second: int) -> str:
        words = f"{self.cardinal(hour)} {self.hours[0]}"
        if (minute, second) == (30, 0):
            return f"{words} ተኩል"
        words += f" ከ{self.cardinal(minute)} ደቂቃ" if minute else ""
        return words + (f" ከ{self.cardinal(second)} ሰከንድ" if second else "")

    def date(self, day: int, month: int, year: int, calendar: Calendar | None) -> str | None:
        if calendar is None:
            return f"{self.cardinal(day)} {self.cardinal(month)} {self.cardinal(year)}"
        months = ETHIOPIAN_MONTHS if calendar == "ethiopian" else GREGORIAN_MONTHS
        return f"{months[month - 1]} {self.cardinal(day)} ቀን {self.cardinal(year)}"

    def calendar(self, before: str, after: str) -> Calendar | None:
        """European reckoning is named before or behind; ዓመተ ምህረት without it is the Ethiopian one."""
        if any(word in before or word in after for word in GREGORIAN_ERA_PHRASES):
            return "gregorian"
        named = any(word in before or word in after for word in ETHIOPIAN_ERA_PHRASES)
        return "ethiopian" if named or after.lstrip().startswith(YEAR_OF_MERCY) else None

    def join(self, words: str, suffix: str) -> str:
        """The article is written with the number's last consonant (3ቱ is ሶስቱ, 10ሩ is አስሩ)."""
        if suffix and is_same_consonant(words[-1], suffix[0]):
            return words[:-1] + suffix
        return words + suffix


TIGRINYA_ONES = "ዜሮ ሓደ ክልተ ሰለስተ ኣርባዕተ ሓሙሽተ ሽዱሽተ ሸውዓተ ሸሞንተ ትሽዓተ".split()
TIGRINYA_TENS = "ዓሰርተ ዕስራ ሰላሳ ኣርብዓ ሓምሳ ሱሳ ሰብዓ ሰማንያ ቴስዓ".split()
TIGRINYA_HUNDRED, TIGRINYA_HUNDRED_IN_COMPOUNDS = "ሚእቲ", "ሚእት"
TIGRINYA_SCALES = ((10**12, "ትሪልዮን"), (10**9, "ቢልዮን"), (10**6, "ሚልዮን"), (10**3, "ሽሕ"))
# Written at every part of a number that has several.
TIGRINYA_AND_SUFFIX = "ን"
TIGRINYA_MASCULINE_ORDINALS = "ቀዳማይ ካልኣይ ሳልሳይ ራብዓይ ሓሙሻይ ሻድሻይ ሻውዓይ ሻምናይ ታሽዓይ ዓስራይ".split()
TIGRINYA_FEMININE_ORDINALS = "ቀዳመይቲ ካልአይቲ ሳልሰይቲ ራብዐይቲ ሓሙሸይቲ ሻድሸይቲ ሻውዐይቲ ሻምነይቲ ታሽዐይቲ ዓስረይቲ".split()
TIGRINYA_MONTHS = "ጥሪ ለካቲት መጋቢት ሚያዝያ ግንቦት ሰነ ሓምለ ነሓሰ መስከረም ጥቅምቲ ሕዳር ታሕሳስ".split()
_LARGEST_SINGLE_WORD = 10


class TigrinyaVerbalizer(NumberVerbalizer):
    """The Eritrean words, which the paper takes as its standard."""

    prefixes: ClassVar = frozenset("ብ ን".split())
    suffix: ClassVar = "(?:ን)?"
    ordinal_suffix: ClassVar = "-?(?:ይ|ቲ)"
    scales: ClassVar[Mapping[str, str]] = {
        **{word: word for _, word in TIGRINYA_SCALES},
        "ሽሕ": "ሽሕ",
        "ሚሊዮን": "ሚልዮን",
        "ቢሊዮን": "ቢልዮን",
        "million": "ሚልዮን",
        "billion": "ቢልዮን",
    }
    currencies: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("ናቕፋ", "ERN", "Nfk"), "ናቕፋ"),
        **dict.fromkeys(("ብር", "ETB", "Br", "Br."), "ብር"),
        **dict.fromkeys(("ዶላር", "$", "US$", "USD"), "ዶላር"),
        **dict.fromkeys(("ዩሮ", "€", "EUR"), "ዩሮ"),
    }
    units: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("km", "Km", "KM", "ኪሜ"), "ኪሎ ሜትር"),
        **dict.fromkeys(("kg", "Kg", "KG", "ኪግ"), "ኪሎግራም"),
        "g": "ግራም",
        "ha": "ሄክታር",
        "W": "ዋት",
        "kW": "ኪሎዋት",
        "MW": "ሜጋዋት",
        "MB": "ሜጋባይት",
        "GB": "ጊጋባይት",
        "°": "ዲግሪ",
    }
    hours: ClassVar = ("ሰዓት",)
    from_words: ClassVar = ("ካብ", "ብ", "ን")
    point: ClassVar = "ነጥቢ"
    operators: ClassVar[Mapping[str, str]] = {}
    minus: ClassVar = "ኣሉታ"
    percents: ClassVar[Mapping[str, str]] = {"%": "ሚእታዊት"}
    interval: ClassVar = ("ካብ ", "ክሳብ")

    def cardinal(self, number: int) -> str:
        return _join_with_and(_number_parts(number))

    def ordinal(self, number: int, suffix: str) -> str:
        if not 1 <= number <= _LARGEST_SINGLE_WORD:
            return f"መበል {self.cardinal(number)}"
        return (TIGRINYA_FEMININE_ORDINALS if suffix.endswith("ቲ") else TIGRINYA_MASCULINE_ORDINALS)[number - 1]

    def money(self, whole: int, cents: int, currency: str) -> str:
        small = f"{self.cardinal(cents)} ሳንቲም"
        words = f"{self.cardinal(whole)} {currency}"
        if not cents:
            return words
        return f"{words}{TIGRINYA_AND_SUFFIX} {small}{TIGRINYA_AND_SUFFIX}" if whole else small

    def fraction(self, whole: int | None, above: int, below: int) -> None:  # noqa: ARG002 (no source for them)
        return None

    def clock(self, hour: int, minute: int, second: int) -> str:
        words = f"{self.hours[0]} {self.cardinal(hour)}"
        if not minute and not second:
            return words
        words += TIGRINYA_AND_SUFFIX + (f" {self.cardinal(minute)} ደቒቕ{TIGRINYA_AND_SUFFIX}" if minute else "")
        return words + (f" {self.cardinal(second)} ካልኢት{TIGRINYA_AND_SUFFIX}" if second else "")

    def date(self, day: int, month: int, year: int, calendar: Calendar | None) -> str | None:
        """Month names are the same in both calendars and begin at different days, so only a named one is read."""
        if calendar is None:
            return f"{self.cardinal(day)} {self.cardinal(month)} {self.cardinal(year)}"
        if calendar == "ethiopian":
            return None
        return f"{TIGRINYA_MONTHS[month - 1]} {self.cardinal(day)} {self.cardinal(year)}"

    def calendar(self, before: str, after: str) -> Calendar | None:  # noqa: ARG002 (era words are used for both)
        return None


def _number_parts(number: int, compound: bool = False) -> list[str]:
    """The parts that are joined by "and": one for each scale, the hundreds, the tens, the ones."""
    counted = []
    for size, word in TIGRINYA_SCALES:
        count, number = divmod(number, size)
        if count:
            counted.append((count, word))
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    if tens == 1 and ones:
        small = [f"{TIGRINYA_TENS[0]} {TIGRINYA_ONES[ones]}"]  # eleven to nineteen are one part
    else:
        small = [*([TIGRINYA_TENS[tens - 1]] if tens else []), *([TIGRINYA_ONES[ones]] if ones else [])]
    if not (counted or hundreds or small):
        small = [TIGRINYA_ONES[0]]
    # In a number of several parts the hundreds have another form.
    compound = compound or len(counted) + bool(hundreds) + len(small) > 1
    parts = [f"{_join_with_and(_number_parts(count, compound))} {word}" for count, word in counted]
    if hundreds:
        parts.append(f"{TIGRINYA_ONES[hundreds]} {TIGRINYA_HUNDRED_IN_COMPOUNDS if compound else TIGRINYA_HUNDRED}")
    return parts + small


def _join_with_and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else " ".join(part + TIGRINYA_AND_SUFFIX for part in parts)


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
    """Unchanged: Latin words, other scripts, digits, unknown abbreviations."""
    patterns = {
        "latin-word": LATIN_WORD,
        "other-script": _OTHER_SCRIPT,
        "digits-left": _DIGIT_GROUP,
        "abbreviation-unknown": UNKNOWN_ABBREVIATION,
    }
    found = [(rule, match) for rule, pattern in patterns.items() for match in pattern.finditer(text)]
    for rule, match in sorted(found, key=lambda pair: pair[1].start()):
        yield TextNote(rule, match.group(), match.start())
