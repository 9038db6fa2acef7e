"""The editor that every normalizer works with, and the rules that are safe for every language.

Every edit is recorded, so that nothing happens unseen. The safe rules are Unicode form, spaces, invisible characters,
plain quotes and dashes; no letter is exchanged. Numbers are read where num2words knows the language; other digits stay,
and are noted.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import version

import regex

# Ends the name of a rule that removes characters and writes nothing, or a space, for them.
REMOVAL_SUFFIX = "-removed"
# A text settles after two or three passes; the bound is for texts that nobody wrote.
MAX_PASSES = 8


@dataclass(frozen=True, slots=True)
class TextChange:
    """One edit. `place` is where `before` was in the text at the time of the edit."""

    rule: str
    before: str
    after: str
    place: int


@dataclass(frozen=True, slots=True)
class TextNote:
    """Something that was seen and left alone. `place` is in the normalized text."""

    rule: str
    text: str
    place: int


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """A normalized text with everything that was done to it, in order, and everything that was left alone."""

    text: str
    changes: tuple[TextChange, ...] = ()
    notes: tuple[TextNote, ...] = ()

    @property
    def removed(self) -> Counter[str]:
        """Characters for which nothing is spoken."""
        return Counter(
            character for change in self.changes if change.rule.endswith(REMOVAL_SUFFIX) for character in change.before
        )


def replay_changes(original: str, changes: Iterable[TextChange]) -> str:
    """The text that the changes make of an original. ValueError where a change does not fit."""
    text = original
    for change in changes:
        end = change.place + len(change.before)
        if text[change.place : end] != change.before:
            raise ValueError(f"{change} does not fit {text[change.place : end]!r}")
        text = text[: change.place] + change.after + text[end:]
    return text


# What is written for a match; None leaves it alone.
RewriteMatch = Callable[["regex.Match[str]"], str | None]
# At a place of a text: the rule, where the thing read ends, and what is written for it. No rule: skip it.
SweepRule = Callable[[str, int], tuple[str, int, str]]


@dataclass(slots=True)
class TextEditor:
    """A text in work: every edit goes through here and is recorded."""

    text: str
    changes: list[TextChange] = field(default_factory=list)

    def rewrite(self, rule: str, pattern: regex.Pattern[str], written: str | RewriteMatch) -> None:
        """Write something else for every match, left to right."""
        found = (
            (rule, match.start(), match.end(), written if isinstance(written, str) else written(match))
            for match in pattern.finditer(self.text)
        )
        self._apply(found)

    def sweep(self, pattern: regex.Pattern[str], read: SweepRule) -> None:
        """Go from left to right to each place that the pattern finds and write what `read` says there."""

        def edits() -> Iterator[tuple[str, int, int, str | None]]:
            at = 0
            while found := pattern.search(self.text, at):
                start = found.start()
                rule, end, after = read(self.text, start)
                at = max(end, start + 1)
                yield rule, start, end, after if rule else None

        self._apply(edits())

    def _apply(self, edits: Iterable[tuple[str, int, int, str | None]]) -> None:
        """Make edits (rule, start, end, new text), in order of their places; None changes nothing."""
        parts: list[str] = []
        length = previous_end = 0  # characters of the new text so far; end of the last edit in the old text
        for rule, start, end, after in edits:
            before = self.text[start:end]
            if after is None or after == before:
                continue
            unchanged = self.text[previous_end:start]
            self.changes.append(TextChange(rule, before, after, length + len(unchanged)))
            parts += (unchanged, after)
            length += len(unchanged) + len(after)
            previous_end = end
        if parts:
            self.text = "".join(parts) + self.text[previous_end:]


NormalizationStep = Callable[[TextEditor], None]


@dataclass(frozen=True, slots=True)
class Normalizer:
    """One language's way from text as people write it to text as people say it."""

    language: str
    version: str
    """Names the rules and the options. Texts of different versions may differ, so it goes into fingerprints."""
    steps: tuple[NormalizationStep, ...] = ()
    """Functions of a module or objects, not closures: worker processes get normalizers pickled."""
    notes: Callable[[str], Iterable[TextNote]] | None = None

    def normalise(self, text: str) -> NormalizedText:
        """The text as it is learned and spoken. Takes any text and never raises.

        The steps are repeated until they change nothing, so that normalizing the result again changes nothing.
        """
        draft = TextEditor(text)
        for _ in range(MAX_PASSES):
            before = draft.text
            for step in self.steps:
                step(draft)
            if draft.text == before:
                break
        return NormalizedText(draft.text, tuple(draft.changes), tuple(self.notes(draft.text) if self.notes else ()))


NO_MATCH = "(?!)"


def regex_alternation(texts: Iterable[str]) -> str:
    """A pattern for any of the texts, the longest first; without texts, a pattern that matches nothing."""
    return "|".join(regex.escape(text) for text in sorted(texts, key=lambda text: (-len(text), text))) or NO_MATCH


GENERIC_VERSION = "generic-2"

_WORD = regex.compile(r"[^ ]+")
# No letter has so many; sorting a megabyte of them into canonical order would take forever.
_EXCESS_COMBINING_MARKS = regex.compile(r"(?<=\p{M}{16})\p{M}+")
_ODD_SPACE = regex.compile(r"[\p{Zs}\p{Zl}\p{Zp}\t\n\v\f\r\x85--[ ]]+", regex.V1)
_INVISIBLE_CHARACTER = regex.compile(
    r"[[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\uFE00-\uFE0F\U000E0100-\U000E01EF]--[\t\n\v\f\r\x85]]", regex.V1
)
# In Persian, Hindi and others a joiner distinguishes words, so inside words it stays.
_JOINER_IN_WORD = regex.compile(r"(?<=[\p{L}\p{M}])[\u200c\u200d](?=[\p{L}\p{M}])")
_EXTRA_SPACES = regex.compile(r"^ +| +$| {2,}")
_DIGIT_RUN = regex.compile(r"\p{N}+")

# Quotes, dashes and dots that have a plain cousin, with it. Never a letter: U+02BC is one in many languages.
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
_TYPOGRAPHIC_MARK = regex.compile("[" + "".join(TYPOGRAPHIC_MARKS) + "]")
# Punctuation of Adlam and other scripts from right to left, which is the common one turned round.
REVERSED_MARKS = {"⹁": ",", "⸲": ",", "⸴": ",", "⹌": ",", "⁏": ";", "⸵": ";", "⸮": "?"}
_APOSTROPHE_IN_WORD = regex.compile(r"(?<=\p{L}\p{M}*)'(?=\p{L})")
_REVERSED_MARK = regex.compile("[" + "".join(REVERSED_MARKS) + "]")


def build_generic_normalizer(
    language: str, kept_marks: str, numbers: Num2WordsConfig | None, edition: str, apostrophe: str
) -> Normalizer:
    """For every language that has no normalizer of its own; the arguments are those of `TextRules`."""
    suffix = "".join(f"+{ord(mark):04X}" for mark in kept_marks)
    suffix += f"+'{ord(apostrophe):04X}" if apostrophe else ""
    name = GENERIC_VERSION + suffix + (f"+{NUM2WORDS_PACKAGE}-{edition}" if numbers else "")
    # Numbers come after marks and invisible characters, which may be inside them.
    read: tuple[NormalizationStep, ...] = (Num2WordsExpander(numbers),) if numbers else ()
    plain_marks = partial(replace_marks, kept=kept_marks, apostrophe=apostrophe)
    return Normalizer(language, name, (clean_characters, plain_marks, *read, collapse_spaces), note_remaining_digits)


def replace_marks(draft: TextEditor, *, kept: str, apostrophe: str) -> None:
    """Plain marks for typographic ones, except `kept`; the letter `apostrophe` inside words, if there is one."""
    marks = {mark: plain for mark, plain in TYPOGRAPHIC_MARKS.items() if mark not in kept}
    draft.rewrite("plain-mark", _TYPOGRAPHIC_MARK, lambda match: marks.get(match.group()))
    draft.rewrite("turned-mark", _REVERSED_MARK, lambda match: REVERSED_MARKS[match.group()])
    if apostrophe:
        draft.rewrite("apostrophe", _APOSTROPHE_IN_WORD, apostrophe)


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
    draft.rewrite(
        "spaces", _EXTRA_SPACES, lambda match: " " if match.start() > 0 and match.end() < len(match.string) else ""
    )


def note_remaining_digits(text: str) -> Iterator[TextNote]:
    """Digits that no rule has read."""
    for match in _DIGIT_RUN.finditer(text):
        yield TextNote("digits-left", match.group(), match.start())


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
# Codes whose decimal separator is not that of their language (CLDR), with the entry that has theirs.
REGION_ENTRIES: Mapping[str, str] = {
    "de-li": "de-CH",
    **{f"es-{region}": "es-419" for region in "br bz cu do gt hn mx ni pa pe pr sv us".split()},
}
# Numbers whose words tell one edition of num2words from another.
_LARGE_FINGERPRINT_NUMBERS = "101 110 199 200 345 999 1000 1001 2026 12345 100000 987654".split()
FINGERPRINT_NUMBERS = (*range(31), *range(40, 101, 10), *map(int, _LARGE_FINGERPRINT_NUMBERS))

# Digits that touch no letter: MP3, 1-й and 2026:ssa need more than a cardinal, and stay. So do 1'500 and a number with
# a full stop before a small letter, which ends no sentence: it is an ordinal (3. května) or part of an abbreviation.
_NUMBER_RUN = regex.compile(
    r"(?<![\p{L}\p{M}\p{N}]|\p{N}['’])(?P<minus>(?<=^|[\s(\"'])-)?"
    r"(?P<run>\p{Nd}+(?:[.,٫٬:/-]\p{Nd}+)*)(?P<percent>\s?[%٪])?"
    r"(?![\p{L}\p{M}\p{N}%٪]|[-'’:]\p{L}|['’]\p{N}|\.\s\p{Ll})"
)
_ORDINAL_CONTEXT = regex.compile(r"\.\s(\p{Lu}\p{L}*)")
_WORD_BEFORE = regex.compile(r"(\p{L}+) $")
# German: words that begin a sentence and never follow an ordinal, and words that may precede one. So "wurde 25. Danach"
# ends a sentence with a number, and "am 25. Danach" and "am 25. Mai" have ordinals, which stay in digits.
_STARTS = frozenset(
    "Aber Als Auch Da Dabei Daher Damals Danach Dann Darum Das Der Deshalb Die Dies Diese Dieser Dieses Doch Dort Du "
    "Er Es Hier Ich Ihr Inzwischen Jetzt Man Nachdem Noch Nun Obwohl Seitdem Sie Trotzdem Und Vorher Wann Warum Was "
    "Weil Wenn Wer Wie Wir Wo".split()
)
_LEADS = frozenset(
    "ab am beim bis das dem den der des die ein eine einem einen einer eines im jede jedem jeden jeder seit vom zum "
    "zur".split()
)
_SPACE_GROUPED_NUMBER = regex.compile(r"(?<![\p{N}.,:/-])[1-9]\d{0,2}(?: \d{3})+(?![\p{N}\p{L}])")
_FOREIGN_DIGIT = regex.compile(r"[\p{Nd}--[0-9]]", regex.V1)
_TIME = regex.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_DATE = regex.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})|(\d{4})-(\d\d)-(\d\d)")
_RANGE = regex.compile(r"(\d+)-(\d+)")
_MAX_SPELLED_DIGITS = 20
_MAX_ORDINAL_DIGITS = 2
# Characters in which the word before a number is searched.
_LONGEST_LEAD = 40


def find_num2words_config(language: str) -> Num2WordsConfig | None:
    """The entry of a language code: `nl-BE` like `nl`, but the same language in another script (`uz-Arab`) is not."""
    by_code = {code.lower(): config for code, config in NUM2WORDS_LANGUAGES.items()}
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
    sample_text = "\n".join(num2words_cardinal(code, number) for number in FINGERPRINT_NUMBERS)
    return {NUM2WORDS_PACKAGE: version(NUM2WORDS_PACKAGE), "sha256": hashlib.sha256(sample_text.encode()).hexdigest()}


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
        config = self.words
        if (match["minus"] and not config.minus) or (match["percent"] and not config.percent):
            return None
        run = _to_ascii_digits(match["run"], config.decimal)
        spoken = self._said(run) if run is not None else None
        following = _ORDINAL_CONTEXT.match(match.string, match.end())
        if config.ordinal_before_capital and len(match["run"]) <= _MAX_ORDINAL_DIGITS and following:
            before = _WORD_BEFORE.search(match.string[: match.start()][-_LONGEST_LEAD:])
            if following[1] not in _STARTS or before is None or before[1].lower() in _LEADS:
                return None
        if spoken is None:
            return None
        parts = (config.minus if match["minus"] else "", spoken, config.percent if match["percent"] else "")
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
            # Number by number: how dates and times are spoken differs too much from language to language.
            parts = [part for part in match.groups() if part and part.isdecimal()]
            spoken = [self._whole(part.lstrip("0") or "0") for part in parts]
            return None if None in spoken else " ".join(filter(None, spoken))
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
        words = (num2words_cardinal(self.words.code, int(digit)) for digit in digits)
        return " ".join(words).replace("'", self.words.apostrophe)


def _to_ascii_digits(run: str, decimal: str) -> str | None:
    """With the digits 0 to 9; None where Python's Unicode is older than the digit."""
    converted = []
    for character in run:
        if character in ".,:/-":
            converted.append(character)
        elif character in "٫٬":  # the Arabic separators, decimal and group
            converted.append(decimal if character == "٫" else "." if decimal == "," else ",")
        elif (value := unicodedata.decimal(character, None)) is not None:
            converted.append(str(value))
        else:
            return None
    return "".join(converted)
