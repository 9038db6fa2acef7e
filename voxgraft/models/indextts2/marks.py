"""Punctuation that IndexTTS-2 does not read, and what is written for it. Two tables: the base's own, and ours.

The base's tokenizer has the marks , . ? ! ' - and … and no other; anything else would become an unknown token. This
module is copied into exports, so it imports the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

STOCK_PUNCTUATION = {
    "：": ",",
    "；": ",",
    ";": ",",
    "，": ",",
    "。": ".",
    "！": "!",
    "？": "?",
    "\n": " ",
    "·": "-",
    "、": ",",
    "...": "…",
    ",,,": "…",
    "……": "…",
    "“": "'",
    "”": "'",
    '"': "'",
    "‘": "'",
    "’": "'",
    "（": "'",
    "）": "'",
    "(": "'",
    ")": "'",
    "《": "'",
    "》": "'",
    "【": "'",
    "】": "'",
    "[": "'",
    "]": "'",
    "—": "-",
    "～": "-",
    "~": "-",
    "「": "'",
    "」": "'",
    ":": ",",
}
"""The original program's own map. It also writes "." for "$" in text that it takes for Chinese."""

_PUNCTUATION_BY_SCRIPT: dict[str, dict[str, str]] = {
    # The single wordspace is between words; doubled it is the full stop.
    "Ethiopic": {"፡፡": ".", "፡": " ", "።": ".", "፣": ",", "፤": ",", "፥": ",", "፦": ",", "፧": "?", "፨": "."},
    "Khmer": {"។": ".", "៕": ".", "៖": ",", "៚": "."},
    "Devanagari and its neighbours": {"।": ".", "॥": "."},
    "Arabic": {"،": ",", "؛": ",", "؟": "?", "۔": ".", "؝": ".", "؞": "…"},
    "Armenian": {"։": ".", "՝": ",", "֊": "-"},
    "Hebrew": {"׃": ".", "־": "-", "׳": "'", "״": "'"},
    "Burmese": {"၊": ",", "။": "."},
    # The tsheg between syllables is no mark but part of the spelling, and stays.
    "Tibetan": {"།": ".", "༎": ".", "༏": ".", "༐": ".", "༑": ".", "༔": ","},
    "Thai": {"๚": ".", "๛": "."},
    "Sinhala": {"෴": "."},
    "Georgian": {"჻": "."},
    # Greek writes its question mark like a semicolon; this is the code point that means nothing else.
    "Greek": {"\u037e": "?", "\u0387": ","},
    "Mongolian": {"᠂": ",", "᠃": ".", "᠄": ",", "᠅": ".", "᠈": ",", "᠉": "."},
    "Syriac": {"܀": ".", "܁": ".", "܂": ".", "܃": ",", "܄": ",", "܅": ",", "܆": ",", "܇": ",", "܈": ",", "܉": ","},
    "N'Ko": {"߸": ",", "߹": "!"},
    "Canadian syllabics": {"᙮": "."},
    "Philippine scripts": {"᜵": ",", "᜶": "."},
    "Javanese": {"꧇": ",", "꧈": ",", "꧉": "."},
    "Balinese": {"᭚": ".", "᭛": ".", "᭝": ",", "᭞": ",", "᭟": "."},
    "Ol Chiki": {"᱾": ".", "᱿": "."},
    "Meetei Mayek": {"꯫": ".", "꫰": ",", "꫱": "?"},
    "Chakma": {"𑅁": ".", "𑅂": ".", "𑅃": "?"},
    "Lepcha": {"᰻": ".", "᰼": "."},
    "Limbu": {"᥄": "!", "᥅": "?"},
    "Cham": {"꩝": ".", "꩞": ".", "꩟": "."},
    "Kayah Li": {"꤯": "."},
    "Tai Tham": {"᪨": ".", "᪩": ".", "᪪": ".", "᪫": "."},
    "Lisu": {"꓾": ",", "꓿": "."},
    "Vai": {"꘍": ",", "꘎": ".", "꘏": "?"},
    "Bamum": {"꛳": ".", "꛴": ",", "꛵": ",", "꛶": ",", "꛷": "?"},
    "Adlam": {"⹁": ",", "⹌": ",", "𞥞": "!", "𞥟": "?"},
    "quotation marks": dict.fromkeys("«»‹›„‟‚‛『』〈〉", "'"),
    "dashes": dict.fromkeys("–‒―‐‑−", "-"),
}

SCRIPT_PUNCTUATION: dict[str, str] = {
    mark: written for marks in _PUNCTUATION_BY_SCRIPT.values() for mark, written in marks.items()
}
"""Ours: the marks of scripts that the base has never met, and quotation marks and dashes that it cannot spell."""

IN_WORD_PUNCTUATION: dict[str, str] = {"՞": "?", "՜": "!", "՛": ""}
"""Armenian sets these on a vowel of the word that they mark; what is written for them goes behind the word."""


def plain_marks(text: str) -> str:
    """Marks of scripts that the base has never met as marks that it reads, and Cherokee in capitals.

    The original program takes small Cherokee letters for Chinese characters and splits them, but not their capitals.
    """
    text = _WORD_WITH_INNER_MARK.sub(_move_marks_behind_word, text)
    text = _ETHIOPIC_DOUBLE_COLON.sub(".", text)
    text = _SMALL_CHEROKEE.sub(lambda found: found.group().upper(), text)
    return _SCRIPT_PUNCTUATION_PATTERN.sub(lambda found: SCRIPT_PUNCTUATION[found.group()], text)


def compile_alternatives(marks: Mapping[str, str]) -> re.Pattern[str]:
    """Longest first, so that a doubled mark is not read as two."""
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))


_SCRIPT_PUNCTUATION_PATTERN = compile_alternatives(SCRIPT_PUNCTUATION)
_SMALL_CHEROKEE = re.compile("[\u13f8-\u13fd\uab70-\uabbf]+")
_ETHIOPIC_DOUBLE_COLON = re.compile("(?<=[\u1200-\u135f\u1380-\u139f\u2d80-\u2ddf\uab00-\uab2f])::")
_WORD_WITH_INNER_MARK = re.compile(rf"(?<!\w)\w*+(?:[{''.join(IN_WORD_PUNCTUATION)}]\w*+)++")
"""Tried once per word and without stepping back: otherwise a word without end would take for ever."""


def _move_marks_behind_word(found: re.Match[str]) -> str:
    """A word without the marks inside it, and what is written for them after it."""
    word = found.group()
    letters = "".join(character for character in word if character not in IN_WORD_PUNCTUATION)
    return letters + "".join(IN_WORD_PUNCTUATION.get(character, "") for character in word)
