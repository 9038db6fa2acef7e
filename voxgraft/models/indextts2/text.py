"""IndexTTS-2's text front: punctuation to what the base can spell, CJK characters apart, all in capitals.

The stock program also reads numbers out, in Chinese or English, with a package that is not used here: numbers of a new
language are to be written out before this front sees them.
"""

from __future__ import annotations

import re

from voxgraft.models.indextts2.marks import STOCK_PUNCTUATION, compile_alternatives, plain_marks
from voxgraft.text import TextFrontend

_CJK = re.compile(
    "([\u1100-\u11ff\u2e80-\ua4cf\ua840-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff65-\uffdc\U00020000-\U0002ffff])"
)
_CONTRACTION = re.compile(r"(what|where|who|which|how|t?here|it|s?he|that|this)'s", re.IGNORECASE)
_PINYIN_WITH_U = re.compile(r"(?<![a-z])([jqx])[uü](e|n|an)?([1-5])", re.IGNORECASE)
_HAN = re.compile("[\u4e00-\u9fff]")
_LATIN = re.compile("[a-zA-Z]")
_STOCK_PUNCTUATION_PATTERN = compile_alternatives(STOCK_PUNCTUATION)


class IndexTTS2TextFrontend(TextFrontend):
    """The stock wrapper's text steps, and before them our own table for marks of new scripts."""

    def clean(self, text: str) -> str:
        if _is_single_character(text):
            return text
        text = plain_marks(text)
        if _is_treated_as_chinese(text):
            text = text.rstrip().replace("$", ".")
        text = _CONTRACTION.sub(r"\1 is", text)
        text = _PINYIN_WITH_U.sub(_write_pinyin_with_v, text)
        return _STOCK_PUNCTUATION_PATTERN.sub(lambda found: STOCK_PUNCTUATION[found.group()], text)

    def prepare(self, text: str, language: str | None) -> str:  # noqa: ARG002 (this family has no tags)
        if _is_single_character(text):
            return text
        parts = (part.strip() for part in _CJK.split(text.strip()))
        return " ".join(part.upper() for part in parts if part)


def _is_single_character(text: str) -> bool:
    """The stock wrapper gives a text of one character (and an empty one) to the tokenizer untouched."""
    return len(text.strip()) == 1 or not text


def _is_treated_as_chinese(text: str) -> bool:
    """The stock program's choice: a text with a Han character, and one without any Latin letter, is Chinese."""
    return bool(_HAN.search(text)) or not _LATIN.search(text)


def _write_pinyin_with_v(found: re.Match[str]) -> str:
    initial, rest, tone = found.groups(default="")
    return f"{initial}v{rest}{tone}".upper()
