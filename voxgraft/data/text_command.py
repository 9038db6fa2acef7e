"""The verb `data text`: shows what the normaliser of a language makes of texts, and why. Writes no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from voxgraft.config.commands import DataTextSettings
from voxgraft.core.errors import ConfigError, TextError
from voxgraft.core.files import is_encodable_text, read_lines
from voxgraft.core.languages import describe_character
from voxgraft.core.results import Line, style_line
from voxgraft.text.normalize import NormalizedText, build_normalizer


@dataclass(frozen=True, slots=True)
class DataTextResult:
    """Texts before and after, in order."""

    language: str
    version: str
    texts: tuple[tuple[str, NormalizedText], ...]
    explain: bool = False
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        texts = [
            {
                "text": text,
                "normalised": done.text,
                "changes": [change.to_json() for change in done.changes],
                "notes": [note.to_json() for note in done.notes],
            }
            for text, done in self.texts
        ]
        return {
            "language": self.language,
            "version": self.version,
            "texts": texts,
            "rules": dict(self._rules()),
            "left": dict(self._left()),
            "removed": dict(self._removed()),
        }

    def lines(self) -> list[Line]:
        if not self.explain:
            return [done.text for _, done in self.texts]
        lines: list[Line] = []
        for text, done in self.texts:
            lines += [text, *_format_changes(done), style_line("  = ", (done.text, "bold"))]
        return [*lines, *self._summary()]

    def _summary(self) -> Iterator[str]:
        yield f"rules {self.version}, {len(self.texts):,} texts; changes: {_format_counts(self._rules())}"
        if left := self._left():
            yield f"left as they are: {_format_counts(left)}"
        if removed := self._removed():
            names = ", ".join(
                f"{describe_character(character)} ({count:,})" for character, count in removed.most_common()
            )
            yield f"removed: {names}"

    def _rules(self) -> Counter[str]:
        return Counter(change.rule for _, done in self.texts for change in done.changes)

    def _left(self) -> Counter[str]:
        return Counter(note.rule for _, done in self.texts for note in done.notes)

    def _removed(self) -> Counter[str]:
        return sum((done.removed for _, done in self.texts), Counter[str]())


def data_text(settings: DataTextSettings) -> DataTextResult:
    """Normalise sentences of the command line and of files."""
    if not settings.text and not settings.texts:
        cure = "give sentences, or --texts with files that have a sentence on each line."
        raise ConfigError("config-missing", "there is no text to normalise", cure=cure)
    normaliser = build_normalizer(settings.language, fold_homophones=settings.fold_homophones)
    texts = tuple((text, normaliser.normalise(text)) for text in _read_input_sentences(settings))
    return DataTextResult(settings.language, normaliser.version, texts, settings.explain)


def _read_input_sentences(settings: DataTextSettings) -> Iterator[str]:
    for text in settings.text:
        if not is_encodable_text(text):  # bytes of the command line that are no character arrive as halves of one
            raise TextError("text-not-utf8", f"the sentence {text!a:.80} is not UTF-8", where="command line")
        yield text
    for path in settings.texts:
        for _, line in read_lines(path):
            yield line


def _format_changes(done: NormalizedText) -> Iterator[Line]:
    for change in done.changes:
        yield style_line(
            f"  {change.place + 1:>5} ", (f"{change.rule}: ", "cyan"), f"{change.before!r} -> {change.after!r}"
        )
    for note in done.notes:
        yield style_line(f"  {note.place + 1:>5} ", (f"{note.rule}: ", "yellow"), f"{note.text!r} stays")


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common()) or "none"
