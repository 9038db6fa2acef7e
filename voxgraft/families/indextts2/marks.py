"""Punctuation that IndexTTS-2 does not read, and what is written for it. Two tables: the base's own, and ours.

The base's tokenizer has the marks , . ? ! ' - and … and no other; anything else would become an unknown token.
"""

from __future__ import annotations

STOCK_MARKS = {
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
"""The stock program's own map. It also writes "." for "$" in text that it takes for Chinese."""

_NEW_BY_SCRIPT: dict[str, dict[str, str]] = {
    # The single wordspace stands between words; doubled it is the full stop.
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
    "quotation marks": dict.fromkeys("«»‹›„‟‚‛『』〈〉", "'"),
    "dashes": dict.fromkeys("–‒―‐‑−", "-"),
}

NEW_MARKS: dict[str, str] = {mark: written for marks in _NEW_BY_SCRIPT.values() for mark, written in marks.items()}
"""Ours: the marks of scripts that the base has never met, and quotation marks and dashes that it cannot spell."""

MARKS_INSIDE_WORDS: dict[str, str] = {"՞": "?", "՜": "!", "՛": ""}
"""Armenian sets these on a vowel of the word that they mark; what is written for them goes behind the word."""
