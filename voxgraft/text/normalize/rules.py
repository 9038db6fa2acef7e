"""The text rules of a graft: which normaliser reads its language, by version and options. Stored in graft.json.

This module and those that it imports are copied into exports, where voxgraft is not installed: they may import only
the standard library, `regex`, and num2words for languages whose numbers it reads.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

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
    build_generic_normalizer,
    num2words_fingerprint,
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


@dataclass(frozen=True)
class TextRules:
    """How text of one language is normalised, in training and in synthesis."""

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
        if set(value) - {"version", "edition", *kinds}:
            extra = ", ".join(sorted(set(value) - {"version", "edition", *kinds}))
            raise TextRulesError(f"unknown text rules: {extra:.80}", "install a newer voxgraft")
        edition = value.get("edition", {})
        sound = isinstance(edition, dict) and all(isinstance(part, str) for part in edition.values())
        if not sound or not all(isinstance(value.get(name, kind()), kind) for name, kind in kinds.items()):
            raise TextRulesError("a text rule has a value of the wrong kind", "restore graft.json")
        rules = cls(**value)
        if rules.numbers and rules.numbers not in NUM2WORDS_LANGUAGES:
            found = f"numbers are read as in {rules.numbers!r:.20}, which this voxgraft does not read"
            raise TextRulesError(found, "install a newer voxgraft")
        return rules

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "edition": dict(self.edition)}

    @property
    def is_stated(self) -> bool:
        """False for a graft from before rules were stored."""
        return bool(self.language) or not self.is_raw

    @property
    def is_raw(self) -> bool:
        return self.version == NO_RULES

    @property
    def identity(self) -> str:
        """Everything that may change an output, in one word, for fingerprints."""
        return self.normalizer.version

    def require_edition(self) -> None:
        """Raise where the num2words that is installed says other words than the one that the graft was made with."""
        if not self.numbers:
            return
        code, stated = NUM2WORDS_LANGUAGES[self.numbers].code, self.edition
        try:
            installed = num2words_fingerprint(code)
        except ModuleNotFoundError as error:
            raise TextRulesError(
                str(error), f"pip install {NUM2WORDS_PACKAGE}=={stated.get(NUM2WORDS_PACKAGE, '')}".rstrip("=")
            ) from None
        if stated and installed["sha256"] != stated.get("sha256"):
            now, trained = installed[NUM2WORDS_PACKAGE], stated.get(NUM2WORDS_PACKAGE)
            found = f"{NUM2WORDS_PACKAGE} {now} reads numbers otherwise than {trained}, used in training"
            raise TextRulesError(found, f"pip install {NUM2WORDS_PACKAGE}=={stated.get(NUM2WORDS_PACKAGE)}")

    @property
    def normalizer(self) -> Normalizer:
        return _build_normalizer(self)

    def apply(self, text: str) -> str:
        """Text as the original program's front is given it. A text of one letter gets a full stop, since some stock
        programs leave it in its own case; with the stop it is ordinary text."""
        # A command normalises a sentence several times: for coverage, for findings and for its ids.
        return (_apply_rules if len(text) <= _MAX_KEPT_CHARACTERS else _apply_rules.__wrapped__)(self, text)


@lru_cache(maxsize=64)
def _build_normalizer(rules: TextRules) -> Normalizer:
    if rules.version == NO_RULES:
        return Normalizer(rules.language, NO_RULES)
    if rules.version != GENERIC_VERSION:
        return NORMALIZER_BUILDERS[rules.version](rules)
    words = NUM2WORDS_LANGUAGES[rules.numbers] if rules.numbers else None
    edition = rules.edition.get(NUM2WORDS_PACKAGE, "")
    return build_generic_normalizer(rules.language, rules.kept_marks, words, edition, rules.apostrophe)


@lru_cache(maxsize=10_000)
def _apply_rules(rules: TextRules, text: str) -> str:
    text = unicodedata.normalize("NFC", rules.normalizer.normalise(text).text)
    stripped = text.strip()
    return f"{stripped}." if len(stripped) == 1 and stripped.isalpha() else text
