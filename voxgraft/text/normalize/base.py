"""What every normaliser gives: a text, and each change on the way to it, so that nothing happens unseen.

Knows no language and no rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import regex

REMOVAL_SUFFIX = "-removed"
"""How the name of a rule ends that takes characters out and writes nothing, or a space, for them."""
MAX_PASSES = 8
"""A text settles after two or three passes; the bound is for texts that nobody wrote."""


@dataclass(frozen=True, slots=True)
class TextChange:
    """One edit. `place` is where `before` stood in the text as it was when the edit was made."""

    rule: str
    before: str
    after: str
    place: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TextNote:
    """Something that was seen and left alone. `place` is in the normalised text."""

    rule: str
    text: str
    place: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """A normalised text with everything that was done to it, in order, and everything that was left alone."""

    text: str
    changes: tuple[TextChange, ...] = ()
    notes: tuple[TextNote, ...] = ()

    @property
    def removed(self) -> Counter[str]:
        """Characters for which nothing is said: rules that take out are named so."""
        gone: Counter[str] = Counter()
        for change in self.changes:
            if change.rule.endswith(REMOVAL_SUFFIX):
                gone.update(change.before)
        return gone


def replay_changes(original: str, changes: Iterable[TextChange]) -> str:
    """The text that the changes make of an original. ValueError where a change does not fit."""
    text = original
    for change in changes:
        end = change.place + len(change.before)
        if text[change.place : end] != change.before:
            raise ValueError(f"{change} does not fit {text[change.place : end]!r}")
        text = text[: change.place] + change.after + text[end:]
    return text


class Normalizer(Protocol):
    """One language's way from text as people write it to text as people say it."""

    @property
    def language(self) -> str:
        """The language code that it was made for."""

    @property
    def version(self) -> str:
        """Names the rules and the options. Texts of different versions may differ, so it goes into fingerprints."""

    def normalise(self, text: str) -> NormalizedText:
        """The text in the form that is learnt and spoken. Takes any text, never raises, and changes its own output
        no further."""


RewriteMatch = Callable[["regex.Match[str]"], str | None]
"""What is written for a match; None leaves it alone."""
SweepRule = Callable[[str, int], tuple[str, int, str]]
"""At a place of a text: the rule, where the thing read ends, and what is written for it. No rule: step over it."""


@dataclass(slots=True)
class TextEditor:
    """A text in work: every edit goes through here and is written down."""

    text: str
    changes: list[TextChange] = field(default_factory=list)

    def rewrite(self, rule: str, pattern: regex.Pattern[str], written: str | RewriteMatch) -> None:
        """Write something else for every match, left to right."""
        done: list[str] = []
        length = behind = 0
        for match in pattern.finditer(self.text):
            after = written if isinstance(written, str) else written(match)
            if after is None or after == match.group():
                continue
            kept = self.text[behind : match.start()]
            self.changes.append(TextChange(rule, match.group(), after, length + len(kept)))
            done += (kept, after)
            length += len(kept) + len(after)
            behind = match.end()
        if done:
            self.text = "".join(done) + self.text[behind:]

    def translate(self, rule: str, pattern: regex.Pattern[str], table: Mapping[str, str]) -> None:
        """Write the table's entry for every match."""
        self.rewrite(rule, pattern, lambda match: table.get(match.group()))

    def sweep(self, pattern: regex.Pattern[str], read: SweepRule) -> None:
        """Go from left to right to each place that the pattern finds and write what `read` says there."""
        done: list[str] = []
        length = behind = at = 0
        while found := pattern.search(self.text, at):
            rule, end, after = read(self.text, found.start())
            at = max(end, found.start() + 1)
            if not rule:
                continue
            kept, before = self.text[behind : found.start()], self.text[found.start() : end]
            self.changes.append(TextChange(rule, before, after, length + len(kept)))
            done += (kept, after)
            length += len(kept) + len(after)
            behind = end
        self.text = "".join(done) + self.text[behind:]


NormalizationStep = Callable[[TextEditor], None]


def apply_until_stable(
    original: str, steps: Iterable[NormalizationStep], notes: Callable[[str], Iterable[TextNote]]
) -> NormalizedText:
    """Take the steps until they change nothing more: so the result is one that normalising again leaves as it is."""
    steps = tuple(steps)
    draft = TextEditor(original)
    for _ in range(MAX_PASSES):
        before = draft.text
        for step in steps:
            step(draft)
        if draft.text == before:
            break
    return NormalizedText(draft.text, tuple(draft.changes), tuple(notes(draft.text)))


def regex_alternation(words: Iterable[str]) -> str:
    """A pattern for any of the texts, the longest first."""
    return "|".join(regex.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))
