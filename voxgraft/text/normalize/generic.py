"""The rules that are safe for every language: Unicode form, spaces, invisible characters, plain quotes and dashes.

No letter is exchanged. Numbers are read where num2words knows the language; other digits stay, and are noted.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version

import regex

from voxgraft.text.normalize.base import NormalizationStep, NormalizedText, TextEditor, TextNote, apply_until_stable

NUM2WORDS_PACKAGE = "num2words"


@dataclass(frozen=True, slots=True)
class Num2WordsConfig:
    """What is needed to read numbers in one language. An empty word: that kind of number stays in digits."""

    code: str
    """Of num2words."""
    decimal: str
    """The decimal separator, as CLDR gives it; the other one of comma and full stop groups thousands."""
    point: str = ""
    minus: str = ""
    percent: str = ""
    spaced_groups: bool = False
    """Whether thousands are grouped by spaces (CLDR)."""
    apostrophe: str = "'"
    """What the language writes for the apostrophe inside number words."""
    ordinal_before_capital: bool = False
    """Whether "3. " before a capital letter can be an ordinal, as before German months."""
    largest: int = 10**9 - 1


NUM2WORDS_LANGUAGES: Mapping[str, Num2WordsConfig] = {
    "be": Num2WordsConfig("be", ",", "", "мінус", spaced_groups=True),
    "bn": Num2WordsConfig("bn", ".", "দশমিক", "", "শতাংশ"),
    "ca": Num2WordsConfig("ca", ",", "coma", "menys", "per cent"),
    "ce": Num2WordsConfig("ce", ","),
    "cs": Num2WordsConfig("cs", ",", "", "minus", spaced_groups=True),
    # "en millioner" is wrong, so larger numbers stay.
    "da": Num2WordsConfig("da", ",", "komma", "minus", "procent", largest=10**6 - 1),
    "de": Num2WordsConfig("de", ",", "Komma", "minus", "Prozent", ordinal_before_capital=True),
    "de-CH": Num2WordsConfig("de", ".", "", "minus", "Prozent", ordinal_before_capital=True),
    "eo": Num2WordsConfig("eo", ",", "komo", "minus", spaced_groups=True),
    "es": Num2WordsConfig("es", ",", "coma", "menos", "por ciento"),
    "es-419": Num2WordsConfig("es", ".", "punto", "menos", "por ciento"),
    "fa": Num2WordsConfig("fa", ".", "ممیز", "منفی", "درصد"),
    "fi": Num2WordsConfig("fi", ",", "pilkku", "miinus", spaced_groups=True),
    "fr": Num2WordsConfig("fr", ",", "virgule", "moins", "pour cent", spaced_groups=True),
    "he": Num2WordsConfig("he", ".", "נקודה", "מינוס"),
    "hu": Num2WordsConfig("hu", ",", "", "mínusz", "százalék", spaced_groups=True),
    "id": Num2WordsConfig("id", ",", "koma", "minus", "persen"),
    "is": Num2WordsConfig("is", ",", "komma", "mínus", "prósent"),
    "it": Num2WordsConfig("it", ",", "virgola", "meno", "per cento"),
    "it-CH": Num2WordsConfig("it", ".", "", "meno", "per cento"),
    "kk": Num2WordsConfig("kz", ",", "", "минус", "пайыз", spaced_groups=True),
    "ko": Num2WordsConfig("ko", ".", "점", "마이너스", "퍼센트"),
    "lt": Num2WordsConfig("lt", ",", "kablelis", "minus", spaced_groups=True),
    "lv": Num2WordsConfig("lv", ",", "komats", "mīnus", spaced_groups=True),
    "nb": Num2WordsConfig("no", ",", "komma", "minus", "prosent", spaced_groups=True),
    "nl": Num2WordsConfig("nl", ",", "komma", "min", "procent"),
    "no": Num2WordsConfig("no", ",", "komma", "minus", "prosent", spaced_groups=True),
    "pl": Num2WordsConfig("pl", ",", "przecinek", "minus", "procent", spaced_groups=True),
    "pt": Num2WordsConfig("pt", ",", "vírgula", "menos", "por cento", spaced_groups=True),
    "pt-BR": Num2WordsConfig("pt_BR", ",", "vírgula", "menos", "por cento"),
    "ro": Num2WordsConfig("ro", ",", "virgulă", "minus", "la sută"),
    "ru": Num2WordsConfig("ru", ",", "", "минус", spaced_groups=True),
    "sk": Num2WordsConfig("sk", ",", "", "mínus", spaced_groups=True),
    "sl": Num2WordsConfig("sl", ",", "", "minus"),
    # num2words writes Serbian in Latin letters only.
    "sr-Latn": Num2WordsConfig("sr", ",", "zapeta", "minus", "odsto"),
    "sv": Num2WordsConfig("sv", ",", "komma", "minus", "procent", spaced_groups=True),
    "tet": Num2WordsConfig("tet", ","),
    "tg": Num2WordsConfig("tg", ",", "", "минус", "фоиз", spaced_groups=True),
    "th": Num2WordsConfig("th", ".", "จุด", "ลบ", "เปอร์เซ็นต์"),
    "uk": Num2WordsConfig("uk", ",", "кома", "мінус", spaced_groups=True, apostrophe="ʼ"),
}
"""Checked with num2words 0.5.14: 0 to 1,100 and samples up to a billion are read without digits, each in its own words.

Left out on purpose: am (loops for ever from 1100 on; voxgraft has its own words), ar (sets "and" apart), az (11,000 is
read as 10,000), cy (counts in twenties), ja (needs no words: its readers know the digits' characters), kn and te (lakhs
are wrong), sr in Cyrillic (Latin words), tr (all words run together), vi (2026 lacks its hundreds).
"""
REGION_ENTRIES: Mapping[str, str] = {
    "de-li": "de-CH",
    **{f"es-{region}": "es-419" for region in "br bz cu do gt hn mx ni pa pe pr sv us".split()},
}
"""Codes whose decimal separator is not that of their language (CLDR), with the entry that has theirs."""
FINGERPRINT_NUMBERS = (
    *range(31),
    *range(40, 101, 10),
    101,
    110,
    199,
    200,
    345,
    999,
    1000,
    1001,
    2026,
    12_345,
    100_000,
    987_654,
)
"""Numbers whose words tell one edition of num2words from another."""

_NUMBER_RUN = regex.compile(
    r"(?<![\p{L}\p{M}\p{N}]|\p{N}['’])(?P<minus>(?<=^|[\s(\"'])-)?"
    r"(?P<run>\p{Nd}+(?:[.,٫٬:/-]\p{Nd}+)*)(?P<percent>\s?[%٪])?"
    r"(?![\p{L}\p{M}\p{N}%٪]|[-'’:]\p{L}|['’]\p{N}|\.\s\p{Ll})"
)
"""Digits that touch no letter: MP3, 1-й and 2026:ssa need more than a cardinal, and stay. So do 1'500 and a number with
a full stop before a small letter, which ends no sentence: it is an ordinal (3. května) or part of an abbreviation."""
_ORDINAL_CONTEXT = regex.compile(r"\.\s(\p{Lu}\p{L}*)")
_WORD_BEFORE = regex.compile(r"(\p{L}+) $")
_STARTS = frozenset(
    "Aber Als Auch Da Dabei Daher Damals Danach Dann Darum Das Der Deshalb Die Dies Diese Dieser Dieses Doch Dort Du "
    "Er Es Hier Ich Ihr Inzwischen Jetzt Man Nachdem Noch Nun Obwohl Seitdem Sie Trotzdem Und Vorher Wann Warum Was "
    "Weil Wenn Wer Wie Wir Wo".split()
)
_LEADS = frozenset(
    "ab am beim bis das dem den der des die ein eine einem einen einer eines im jede jedem jeden jeder seit vom zum "
    "zur".split()
)
"""German: words that begin a sentence and never follow an ordinal, and words that may stand before one. So "wurde 25.
Danach" ends a sentence with a number, and "am 25. Danach" and "am 25. Mai" have ordinals, which stay in digits."""
_SPACE_GROUPED_NUMBER = regex.compile(r"(?<![\p{N}.,:/-])[1-9]\d{0,2}(?: \d{3})+(?![\p{N}\p{L}])")
_FOREIGN_DIGIT = regex.compile(r"[\p{Nd}--[0-9]]", regex.V1)
_TIME = regex.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_DATE = regex.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})|(\d{4})-(\d\d)-(\d\d)")
_RANGE = regex.compile(r"(\d+)-(\d+)")
_MAX_SPELLED_DIGITS = 20
_MAX_ORDINAL_DIGITS = 2
_LONGEST_LEAD = 40
"""Characters in which the word before a number is looked for."""


def find_num2words_config(language: str) -> Num2WordsConfig | None:
    """The entry of a language code: `nl-BE` like `nl`, but the same language in another script (`uz-Arab`) is not."""
    by_code = {code.lower(): words for code, words in NUM2WORDS_LANGUAGES.items()}
    code = language.lower().replace("_", "-")
    while code:
        if (own := REGION_ENTRIES.get(code, code).lower()) in by_code:
            return by_code[own]
        code, _, last = code.rpartition("-")
        if len(last) == 4:  # a script
            return None
    return None


@lru_cache(maxsize=4096)
def num2words_cardinal(code: str, number: int) -> str:
    """A whole number in num2words' words."""
    try:
        package = import_module(NUM2WORDS_PACKAGE)
    except ModuleNotFoundError:
        name = NUM2WORDS_PACKAGE
        message = f"numbers of this language are read with {name}, which is not installed: pip install {name}"
        raise ModuleNotFoundError(message, name=NUM2WORDS_PACKAGE) from None
    return " ".join(str(package.num2words(number, lang=code)).split())


def num2words_fingerprint(code: str) -> dict[str, str]:
    """The edition of num2words that is installed, and a hash of what it says in a language."""
    said = "\n".join(num2words_cardinal(code, number) for number in FINGERPRINT_NUMBERS)
    return {NUM2WORDS_PACKAGE: version(NUM2WORDS_PACKAGE), "sha256": hashlib.sha256(said.encode()).hexdigest()}


@dataclass(frozen=True, slots=True)
class Num2WordsExpander:
    """The step that writes numbers in words."""

    words: Num2WordsConfig

    def __call__(self, draft: TextEditor) -> None:
        if self.words.spaced_groups:
            draft.rewrite(
                "grouped-digits", _SPACE_GROUPED_NUMBER, lambda match: "".join(filter(str.isdecimal, match.group()))
            )
        draft.rewrite("number", _NUMBER_RUN, self._read)
        # Digits that stay are those that every base has.
        draft.rewrite("other-digits", _FOREIGN_DIGIT, lambda match: _to_ascii_digits(match.group(), self.words.decimal))

    def _read(self, match: regex.Match[str]) -> str | None:
        words = self.words
        run = _to_ascii_digits(match["run"], words.decimal)
        said = self._said(run) if run is not None else None
        if words.ordinal_before_capital and len(match["run"]) <= _MAX_ORDINAL_DIGITS:
            said = None if _may_be_ordinal(match) else said
        if said is None or (match["minus"] and not words.minus) or (match["percent"] and not words.percent):
            return None
        parts = (words.minus if match["minus"] else "", said, words.percent if match["percent"] else "")
        return " ".join(filter(None, parts))

    def _said(self, run: str) -> str | None:
        if run.isdecimal():
            return self._whole(run)
        group = "." if self.words.decimal == "," else ","
        decimals = rf"(?:{regex.escape(self.words.decimal)}(?P<point>\d+))?"
        if match := regex.fullmatch(rf"(?P<whole>\d{{1,3}}(?:{regex.escape(group)}\d{{3}})+|\d+){decimals}", run):
            whole, point = self._whole(match["whole"].replace(group, "")), match["point"]
            if point is None or whole is None:
                return whole
            digits = self._digits(point)
            return f"{whole} {self.words.point} {digits}" if self.words.point and digits else None
        if match := _DATE.fullmatch(run) or _TIME.fullmatch(run) or _RANGE.fullmatch(run):
            return self._spell_parts([part for part in match.groups() if part and part.isdecimal()])
        return None

    def _whole(self, digits: str) -> str | None:
        if len(digits) > 1 and digits.startswith("0"):
            return self._digits(digits)
        if len(digits) > len(str(self.words.largest)) or int(digits) > self.words.largest:
            return None
        return num2words_cardinal(self.words.code, int(digits)).replace("'", self.words.apostrophe)

    def _digits(self, digits: str) -> str | None:
        if len(digits) > _MAX_SPELLED_DIGITS:
            return None
        return " ".join(
            num2words_cardinal(self.words.code, int(digit)).replace("'", self.words.apostrophe) for digit in digits
        )

    def _spell_parts(self, parts: list[str]) -> str | None:
        """Dates and times, number by number: how they are said differs too much from language to language."""
        said = [self._whole(part.lstrip("0") or "0") for part in parts]
        return None if None in said else " ".join(word for word in said if word is not None)


def _may_be_ordinal(match: regex.Match[str]) -> bool:
    following = _ORDINAL_CONTEXT.match(match.string, match.end())
    if following is None:
        return False
    before = _WORD_BEFORE.search(match.string[: match.start()][-_LONGEST_LEAD:])
    return following[1] not in _STARTS or before is None or before[1].lower() in _LEADS


def _to_ascii_digits(run: str, decimal: str) -> str | None:
    """With the digits 0 to 9; None where Python's Unicode is older than the digit."""
    made = []
    for character in run:
        if character in ".,:/-":
            made.append(character)
        elif character in "٫٬":  # the Arabic separators, decimal and group
            made.append(decimal if character == "٫" else "." if decimal == "," else ",")
        elif (value := unicodedata.decimal(character, None)) is not None:
            made.append(str(value))
        else:
            return None
    return "".join(made)


GENERIC_VERSION = "generic-2"

_WORD = regex.compile(r"[^ ]+")
_EXCESS_COMBINING_MARKS = regex.compile(r"(?<=\p{M}{16})\p{M}+")
"""No letter has so many; sorting a megabyte of them would take for ever."""
_ODD_SPACE = regex.compile(r"[\p{Zs}\p{Zl}\p{Zp}\t\n\v\f\r\x85--[ ]]+", regex.V1)
_INVISIBLE_CHARACTER = regex.compile(
    r"[[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\uFE00-\uFE0F\U000E0100-\U000E01EF]--[\t\n\v\f\r\x85]]", regex.V1
)
_JOINER_IN_WORD = regex.compile(r"(?<=[\p{L}\p{M}])[\u200c\u200d](?=[\p{L}\p{M}])")
"""In Persian, Hindi and others it tells words apart, so there it stays."""
_EXTRA_SPACES = regex.compile(r"^ +| +$| {2,}")
_DIGIT_RUN = regex.compile(r"\p{N}+")

TYPOGRAPHIC_MARKS = {
    **dict.fromkeys("“”„‟«»〝〞＂", '"'),
    **dict.fromkeys("‘’‚‛‹›′´`＇", "'"),
    **dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"),
    "…": "...",
    "‼": "!!",
    "⁇": "??",
    "⁈": "?!",
    "⁉": "!?",
}
"""Quotes, dashes and dots that have a plain cousin, with it. Never a letter: U+02BC is one in many languages."""
_TYPOGRAPHIC_MARK = regex.compile("[" + "".join(TYPOGRAPHIC_MARKS) + "]")
REVERSED_MARKS = {"⹁": ",", "⸲": ",", "⸴": ",", "⹌": ",", "⁏": ";", "⸵": ";", "⸮": "?"}
"""Punctuation of Adlam and other scripts from right to left, which is the common one turned round."""
_APOSTROPHE_IN_WORD = regex.compile(r"(?<=\p{L}\p{M}*)'(?=\p{L})")
_REVERSED_MARK = regex.compile("[" + "".join(REVERSED_MARKS) + "]")


@dataclass(frozen=True, slots=True)
class GenericNormalizer:
    """For every language that has no normaliser of its own."""

    language: str
    kept_marks: str = ""
    """Quotes and dashes that are letters of the language."""
    numbers: Num2WordsConfig | None = None
    edition: str = ""
    """Version of num2words, which the words of numbers come from."""
    apostrophe: str = ""
    """The letter that apostrophes inside words stand for."""

    @property
    def version(self) -> str:
        kept = "".join(f"+{ord(mark):04X}" for mark in self.kept_marks)
        kept += f"+'{ord(self.apostrophe):04X}" if self.apostrophe else ""
        return GENERIC_VERSION + kept + (f"+{NUM2WORDS_PACKAGE}-{self.edition}" if self.numbers else "")

    def normalise(self, text: str) -> NormalizedText:
        # Numbers after marks and invisible characters, which may stand inside them.
        read: tuple[NormalizationStep, ...] = (Num2WordsExpander(self.numbers),) if self.numbers else ()
        return apply_until_stable(
            text, (clean_characters, self._plain_marks, *read, collapse_spaces), note_remaining_digits
        )

    def _plain_marks(self, draft: TextEditor) -> None:
        kept = self.kept_marks
        draft.rewrite(
            "plain-mark",
            _TYPOGRAPHIC_MARK,
            lambda found: None if found.group() in kept else TYPOGRAPHIC_MARKS[found.group()],
        )
        draft.translate("turned-mark", _REVERSED_MARK, REVERSED_MARKS)
        if self.apostrophe:
            draft.rewrite("apostrophe", _APOSTROPHE_IN_WORD, self.apostrophe)


def clean_characters(draft: TextEditor, *, joiners: bool = True) -> None:
    """One kind of space, no invisible characters, then composed letters: a removal may bring a mark to its letter."""
    draft.rewrite("odd-space", _ODD_SPACE, " ")
    draft.rewrite(
        "invisible-removed",
        _INVISIBLE_CHARACTER,
        lambda match: match.group() if joiners and _JOINER_IN_WORD.match(match.string, match.start()) else "",
    )
    draft.rewrite("heap-of-marks-removed", _EXCESS_COMBINING_MARKS, "")
    if not unicodedata.is_normalized("NFC", draft.text):
        # A space never composes with anything, so words can be composed one by one.
        draft.rewrite("unicode-form", _WORD, lambda match: unicodedata.normalize("NFC", match.group()))


def collapse_spaces(draft: TextEditor) -> None:
    """No space at the ends, one between words."""
    draft.rewrite("spaces", _EXTRA_SPACES, lambda match: "" if _touches_text_edge(match) else " ")


def note_remaining_digits(text: str) -> Iterator[TextNote]:
    """Numbers that nobody read out."""
    for match in _DIGIT_RUN.finditer(text):
        yield TextNote("digits-left", match.group(), match.start())


def _touches_text_edge(match: regex.Match[str]) -> bool:
    return match.start() == 0 or match.end() == len(match.string)
