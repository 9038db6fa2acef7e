"""IndexTTS-2's text front: punctuation to what the base can spell, CJK characters apart, all in capitals.

The stock program also reads numbers out, in Chinese or English, with a package that is not used here: numbers of a new
language are to be written out before this front sees them.
"""

from __future__ import annotations

import re

from voxgraft.families.base import Front
from voxgraft.families.indextts2.marks import STOCK_MARKS, any_of, plain_marks

_CJK = re.compile(
    "([\u1100-\u11ff\u2e80-\ua4cf\ua840-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff65-\uffdc\U00020000-\U0002ffff])"
)
_CONTRACTION = re.compile(r"(what|where|who|which|how|t?here|it|s?he|that|this)'s", re.IGNORECASE)
_PINYIN_WRITTEN_WITH_V = re.compile(r"(?<![a-z])([jqx])[uü](e|n|an)?([1-5])", re.IGNORECASE)
_HAN = re.compile("[\u4e00-\u9fff]")
_LATIN = re.compile("[a-zA-Z]")
_STOCK = any_of(STOCK_MARKS)


class IndexFront(Front):
    """The stock wrapper's text steps, and before them our own table for marks of new scripts."""

    def clean(self, text: str) -> str:
        if _is_single(text):
            return text
        text = plain_marks(text)
        if _taken_for_chinese(text):
            text = text.rstrip().replace("$", ".")
        text = _CONTRACTION.sub(r"\1 is", text)
        text = _PINYIN_WRITTEN_WITH_V.sub(_pinyin_with_v, text)
        return _STOCK.sub(lambda found: STOCK_MARKS[found.group()], text)

    def prepare(self, text: str, language: str | None) -> str:  # noqa: ARG002 (this family has no tags)
        if _is_single(text):
            return text
        parts = (part.strip() for part in _CJK.split(text.strip()))
        return " ".join(part.upper() for part in parts if part)


def _is_single(text: str) -> bool:
    """The stock wrapper gives a text of one character (and an empty one) to the tokenizer untouched."""
    return len(text.strip()) == 1 or not text


def _taken_for_chinese(text: str) -> bool:
    """The stock program's choice: a text with a Han character, and one without any Latin letter, is Chinese."""
    return bool(_HAN.search(text)) or not _LATIN.search(text)


def _pinyin_with_v(found: re.Match[str]) -> str:
    initial, rest, tone = found.groups(default="")
    return f"{initial}v{rest}{tone}".upper()
