"""The text rules of a graft: which normalizer reads its language, by version and options. Stored in graft.json.

This module and those that it imports are copied into exports, where voxgraft is not installed: they may import only
the standard library, `regex`, and num2words for languages whose numbers it reads.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import regex

from voxgraft.text.normalize.ethiopic import (
    AMHARIC_VERSION,
    TIGRINYA_VERSION,
    build_amharic_normalizer,
    build_tigrinya_normalizer,
)
from voxgraft.text.normalize.generic import (
    GENERIC_VERSION,
    NUM2WORDS_LANGUAGES,
    NUM2WORDS_PACKAGE,
    Normalizer,
    TextEditor,
    build_generic_normalizer,
    num2words_fingerprint,
    regex_alternation,
)

# Languages that have a normalizer of their own, and the version of its rules. Raise it when an output changes.
LANGUAGE_VERSIONS = {"am": AMHARIC_VERSION, "ti": TIGRINYA_VERSION}
# By version: the function that builds the normalizer. Old versions stay, for the grafts that were trained with them.
NORMALIZER_BUILDERS: dict[str, Callable[[TextRules], Normalizer]] = {
    AMHARIC_VERSION: lambda rules: build_amharic_normalizer(rules.fold_homophones),
    TIGRINYA_VERSION: lambda _: build_tigrinya_normalizer(),
}
# Version of a graft that was made before text rules were stored: its texts were read as they are.
NO_RULES = "none"
# Texts up to this length are remembered with their result; a whole book in one line is not.
_MAX_KEPT_CHARACTERS = 1_000
KNOWN_VERSIONS = (GENERIC_VERSION, *NORMALIZER_BUILDERS, NO_RULES)


class TextRulesError(ValueError):
    """Text rules that cannot be followed here; `fix` says what to do."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(f"{found} ({fix})")
        self.found, self.fix = found, fix


@dataclass(frozen=True, slots=True)
class PronunciationList:
    """The last step of a normalizer: whole words, in any case, are written as they are spoken."""

    words: tuple[tuple[str, str], ...]
    """Word as `fold_word` writes it, and its respelling."""

    def __call__(self, draft: TextEditor) -> None:
        words = self._by_key()
        draft.rewrite("pronunciation", _whole_words(self.words), lambda match: words.get(caseless_key(match[0])))

    def find_respelled(self) -> str | None:
        """A word whose respelling holds a listed word: it would change again each time a text is read."""
        for word, respelling in self.words:
            found = _whole_words(self.words).search(respelling)
            if found and self._by_key().get(caseless_key(found[0]), found[0]) != found[0]:
                return word
        return None

    def _by_key(self) -> dict[str, str]:
        return {caseless_key(word): said for word, said in self.words}


def caseless_key(word: str) -> str:
    """The same for every case of a word, in composed letters: `Straße` and `STRASSE` are one word."""
    return unicodedata.normalize("NFC", word.casefold())


def fold_word(word: str) -> str:
    """A listed word in lower case. Letters that lower case would write as several, such as İ, stay as they are."""
    simple = (next((form for form in (one.casefold(), one.lower()) if len(form) == 1), one) for one in word)
    return "".join(simple)


def _case_forms(word: str) -> set[str]:
    """The spellings of a word that IGNORECASE, which compares letter by letter, does not find by one of them."""
    if word.casefold() == word:
        return {word}  # also every word of a graft from before, so that its list has the meaning that it had
    return {unicodedata.normalize("NFC", form) for form in (word, word.casefold(), word.lower(), word.upper())}


@lru_cache(maxsize=16)
def _whole_words(words: tuple[tuple[str, str], ...]) -> regex.Pattern[str]:
    letter = r"[\p{L}\p{M}\p{N}]"
    listed = regex_alternation({form for word, _ in words for form in _case_forms(word)})
    return regex.compile(f"(?<!{letter})(?:{listed})(?!{letter})", regex.IGNORECASE)


@dataclass(frozen=True)
class TextRules:
    """How text of one language is normalized, in training and in synthesis."""

    version: str
    language: str = ""
    fold_homophones: bool = False
    kept_marks: str = ""
    """Quotes and dashes that are letters of the language, and so stay."""
    numbers: str = ""
    """Entry of `NUM2WORDS_LANGUAGES` that numbers are read with; empty: digits stay."""
    apostrophe: str = ""
    """The letter that apostrophes inside words mean: keyboards lack U+02BC and U+02BB."""
    edition: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The num2words that the graft was made with: its version, and a hash of its words."""
    pronunciations: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Words of the language and how they are written for the model, by `pronunciations.tsv`."""

    @classmethod
    def from_json(cls, value: Any) -> TextRules:
        """Rules as graft.json states them; None for grafts from before. Refused where they cannot be followed."""
        if value is None:
            return cls(NO_RULES)
        if not isinstance(value, dict) or not isinstance(value.get("version"), str):
            raise TextRulesError("the text rules have no version", "restore graft.json")
        if value["version"] not in KNOWN_VERSIONS:
            found = f"text rules {value['version']!r:.40}, and this voxgraft knows {', '.join(KNOWN_VERSIONS)}"
            raise TextRulesError(found, "install the voxgraft that made the graft, or make the graft again")
        kinds: dict[str, type] = dict.fromkeys(("language", "kept_marks", "numbers", "apostrophe"), str)
        kinds["fold_homophones"] = bool
        if extra_keys := set(value) - {"version", "edition", "pronunciations", *kinds}:
            extra = ", ".join(sorted(extra_keys))
            raise TextRulesError(f"unknown text rules: {extra:.80}", "install a newer voxgraft")
        tables = value.get("edition", {}), value.get("pronunciations", {})
        sound = all(isinstance(one, dict) and all(isinstance(part, str) for part in one.values()) for one in tables)
        sound = sound and all(word.strip() and said.strip() for word, said in tables[1].items())
        if not sound or not all(isinstance(value.get(name, kind()), kind) for name, kind in kinds.items()):
            raise TextRulesError("a text rule has a value of the wrong kind", "restore graft.json")
        rules = cls(**value)
        if rules.numbers and rules.numbers not in NUM2WORDS_LANGUAGES:
            found = f"numbers are read as in {rules.numbers!r:.20}, which this voxgraft does not read"
            raise TextRulesError(found, "install a newer voxgraft")
        if (word := rules.pronunciation_list.find_respelled()) is not None:
            found = f"the pronunciation of {word!r:.60} contains a word of the list"
            raise TextRulesError(found, "write that word as it is spoken too")
        return rules

    def to_json(self) -> dict[str, Any]:
        values = {**asdict(self), "edition": dict(self.edition), "pronunciations": dict(self.pronunciations)}
        if not self.pronunciations:  # older versions do not know the key
            del values["pronunciations"]
        return values

    @property
    def pronunciation_list(self) -> PronunciationList:
        return PronunciationList(tuple(sorted((fold_word(word), said) for word, said in self.pronunciations.items())))

    def normalize_word(self, word: str) -> str:
        """A word for the list as it is in texts when the list is applied: after the language's own steps."""
        return fold_word(_build_normalizer(replace(self, pronunciations={})).normalise(word).text.strip())

    @property
    def is_stated(self) -> bool:
        """False for a graft from before rules were stored."""
        return bool(self.language) or not self.is_raw

    @property
    def is_raw(self) -> bool:
        return self.version == NO_RULES and not self.pronunciations

    @property
    def identity(self) -> str:
        """Everything that may change an output, in one word, for fingerprints."""
        return self.normalizer.version

    def require_edition(self) -> None:
        """Raise where the num2words that is installed says other words than the one that the graft was made with."""
        if not self.numbers:
            return
        code, recorded = NUM2WORDS_LANGUAGES[self.numbers].code, self.edition
        try:
            installed = num2words_fingerprint(code)
        except ModuleNotFoundError as error:
            raise TextRulesError(
                str(error), f"pip install {NUM2WORDS_PACKAGE}=={recorded.get(NUM2WORDS_PACKAGE, '')}".rstrip("=")
            ) from None
        if recorded and installed["sha256"] != recorded.get("sha256"):
            now, trained = installed[NUM2WORDS_PACKAGE], recorded.get(NUM2WORDS_PACKAGE)
            found = f"{NUM2WORDS_PACKAGE} {now} reads numbers otherwise than {trained}, used in training"
            raise TextRulesError(found, f"pip install {NUM2WORDS_PACKAGE}=={recorded.get(NUM2WORDS_PACKAGE)}")

    @property
    def normalizer(self) -> Normalizer:
        return _build_normalizer(self)

    def apply(self, text: str) -> str:
        """Text as the original program's front is given it. A text of one letter gets a full stop, since some stock
        programs leave it in its own case; with the stop it is ordinary text."""
        # A command normalizes a sentence several times: for coverage, for findings and for its ids.
        return (_apply_rules if len(text) <= _MAX_KEPT_CHARACTERS else _apply_rules.__wrapped__)(self, text)


@lru_cache(maxsize=64)
def _build_normalizer(rules: TextRules) -> Normalizer:
    """The language's own steps, and the pronunciations behind them."""
    if rules.pronunciations:
        own, listed = _build_normalizer(replace(rules, pronunciations={})), rules.pronunciation_list
        digest = hashlib.sha256(json.dumps(listed.words).encode()).hexdigest()[:8]
        return replace(own, version=f"{own.version}+pronunciations-{digest}", steps=(*own.steps, listed))
    if rules.version == NO_RULES:
        return Normalizer(rules.language, NO_RULES)
    if rules.version != GENERIC_VERSION:
        return NORMALIZER_BUILDERS[rules.version](rules)
    number_config = NUM2WORDS_LANGUAGES[rules.numbers] if rules.numbers else None
    edition = rules.edition.get(NUM2WORDS_PACKAGE, "")
    return build_generic_normalizer(rules.language, rules.kept_marks, number_config, edition, rules.apostrophe)


@lru_cache(maxsize=10_000)
def _apply_rules(rules: TextRules, text: str) -> str:
    text = unicodedata.normalize("NFC", rules.normalizer.normalise(text).text)
    stripped = text.strip()
    return f"{stripped}." if len(stripped) == 1 and stripped.isalpha() else text
