"""Spans of another language in a text: `ሰላም [en]my friend[/en]`. Here: what a span is, and text cut at its spans.

`voxgraft/text/encoder.py` decides what a part of a text means for a model. This module is copied into exports, so it
imports the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from voxgraft.text.normalize.rules import TextRules

Parts = list[tuple[str | None, str]]
"""A text in parts: the language of a span in lower case, or None outside of spans, and the text without markers."""

_MARKER = re.compile(r"\[(?P<close>/?)(?P<code>[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*)\]")
# Around a span: spaces, and one Ethiopic word space; two of them are a full stop.
_SEAM = re.compile(r"(\s*(?:፡(?!፡)\s*)?)(.*?)((?:(?<!፡)፡)?\s*)", re.DOTALL)


class SpanError(ValueError):
    """A text whose spans cannot be read; `position` counts characters from 1."""

    def __init__(self, found: str, position: int, expected: str) -> None:
        super().__init__(f"{found} at character {position} (expected: {expected})")
        self.found, self.position, self.expected = found, position, expected


def closing_codes(text: str) -> frozenset[str]:
    """Codes whose closing marker is in a text: only with one can there be a span."""
    return frozenset(found["code"].lower() for found in _MARKER.finditer(text) if found["close"])


def split_spans(text: str, is_language: Callable[[str], bool]) -> Parts | None:
    """The parts of a text; None if it has no span. Refused if a marker of a span has no counterpart or no meaning.

    `is_language` knows codes in lower case. What only looks like a marker is text: `[sad]` without `[/sad]`, and an
    insertion such as `he gave [it] away`, which is a word and not before one.
    """
    markers = [(found, found["code"].lower()) for found in _MARKER.finditer(text)]
    closed = closing_codes(text)
    parts: Parts = []
    language, begin, end = "", 0, 0  # of the span that is open; the end of the last marker
    for found, code in markers:
        at = found.start() + 1
        if found["close"]:
            if not language and is_language(code):
                raise SpanError(f"{found[0]} has no opening marker", at, f"[{code}] before it")
            if language and language != code and is_language(code):
                raise SpanError(f"{found[0]} cannot end a span that begins with [{language}]", at, f"[/{language}]")
            if not language or language != code:
                continue
            if not any(map(str.isalnum, text[end : found.start()])):
                raise SpanError(f"nothing between [{code}] and {found[0]}", begin, "words")
            parts.append((language, text[end : found.start()]))
            language = ""
        else:
            if code not in closed and not (is_language(code) and text[found.end() : found.end() + 1].isalnum()):
                continue
            if language:
                raise SpanError(f"{found[0]} inside the span [{language}]", at, f"[/{language}] before it")
            if not is_language(code):
                raise SpanError(f"{found[0]} names no language of the model", at, "a language of the base or the graft")
            parts.append((None, text[end : found.start()]))
            language, begin = code, at
        end = found.end()
    if language:
        raise SpanError(f"the span [{language}] does not end", begin, f"[/{language}] after its words, or no brackets")
    return [part for part in (*parts, (None, text[end:])) if part[1]] if parts else None


def find_spans(text: str, is_language: Callable[[str], bool] | None = None) -> Parts | None:
    """The same, but text whose spans cannot be read has none: it is read as it always was. Default: any language."""
    try:
        return split_spans(text, is_language or closing_codes(text).__contains__)
    except SpanError:
        return None


def remove_markers(text: str) -> str:
    """The words of a text alone, as they are counted and compared."""
    return "".join(part for _, part in find_spans(text) or [(None, text)])


def join_spans(parts: Sequence[tuple[str | None, str]], language: str | None) -> str:
    """Text with markers around every part that is not of this language."""
    return "".join(text if code in (None, language) else f"[{code}]{text}[/{code}]" for code, text in parts)


def split_seams(text: str) -> tuple[str, str, str]:
    """A part of a text without the spaces at its ends, and these: they belong to no language."""
    found = _SEAM.fullmatch(text)
    assert found is not None  # the middle takes anything
    before, inner, after = found.groups()
    return before, inner, after


def rewrite_parts(text: str, is_language: Callable[[str], bool], rewrite: Callable[[str | None, str], str]) -> str:
    """The text with every part rewritten and its markers and the spaces beside them kept.

    Without spans the whole text is one part, rewritten as it is.
    """
    parts = find_spans(text, is_language)
    if parts is None:
        return rewrite(None, text)
    rewritten: Parts = []
    for code, part in parts:
        before, inner, after = split_seams(part)
        rewritten.append((code, before + (rewrite(code, inner) if inner else "") + after))
    return join_spans(rewritten, None)


def read_spans(text: str, languages: Collection[str], rules: TextRules) -> str:
    """Text of the new language for a program that knows no spans: by its rules, without markers.

    `languages` are the base's. What is in a span of these stays as it is written.
    """
    own = rules.language.lower()
    parts = split_spans(text, lambda code: code in languages or code == own)
    if parts is None:
        return rules.apply(text)
    if not any(map(str.isalnum, "".join(part for code, part in parts if code in (None, own)))):
        raise SpanError("all words are in spans", 1, "words of the new language; load another language for this text")
    words = ""
    for code, part in parts:
        before, inner, after = split_seams(part)
        inner = rules.normalizer.normalise(inner).text if code in (None, own) else inner
        words += (" " if before else "") + inner + (" " if after else "")
    return words.strip()
