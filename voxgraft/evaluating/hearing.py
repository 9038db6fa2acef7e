"""What a listener makes of waveforms, and how far that is from what was meant. Knows no models.

A wave without a sample is silence, and nothing is heard in it; very short ones are given to the listener with silence
behind them, since some listeners take no shorter ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from voxgraft import progress
from voxgraft.audio.resample import resample
from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.evaluating.forms import (
    LANGUAGES_WITHOUT_SPACES,
    normalize_letters,
    normalize_phones,
    split_normalized_words,
)
from voxgraft.evaluating.rates import EditCount, Score, compute_error_rate, count_edits, unmeasured_score
from voxgraft.evaluating.sentences import EvalSentence
from voxgraft.listening import Recognizer, Transcript, open_recognizer, whisper
from voxgraft.normalising import build_normalizer

__all__ = [
    "ERROR_MEASURES",
    "Transcriber",
    "compute_error_rates",
    "compute_sentence_errors",
    "format_recognizer_hint",
    "open_transcriber",
    "require_recognizer",
]

Wave = NDArray[np.float32]
ASR_BATCH_SIZE = 16
"""Waves that a listener is given in one call."""
ERROR_MEASURES = ("phone_error", "cer", "wer")
EMPTY_TRANSCRIPT = Transcript("", ())
MIN_ASR_SECONDS = 0.25
BUILT_IN_RECOGNIZER, NO_RECOGNIZER = "built-in", "none"


MAX_LANGUAGES_NAMED = 12
_REGION_SUFFIX = re.compile("-(?:[A-Za-z]{2}|[0-9]{3})$")
RECOGNIZER_CURE = (
    "choose another recogniser: whisper:small, whisper:FOLDER or 'command:PROGRAM {wav}'; none goes without."
)


@dataclass(frozen=True)
class Transcriber:
    """The recogniser; or none, and why. With a recogniser, why there is none for a language that it does not know."""

    listener: Recognizer | None
    why: str = ""

    def why_unsupported(self, language: str) -> str:
        """Why a language is not listened to; empty if it is."""
        if self.listener is None:
            return self.why
        if self.listener.languages is not None and self._find_language_code(language) not in self.listener.languages:
            return self.why or _format_unknown_language(self.listener, language)
        return ""

    def _find_language_code(self, language: str) -> str:
        """The code by which the recogniser knows a language: pt for pt-BR, but not sr for sr-Latn, which it would write
        in other letters."""
        known, plain = self.listener.languages if self.listener else None, _REGION_SUFFIX.sub("", language)
        return plain if known is not None and language not in known and plain in known else language

    def hear(self, waves: Sequence[Wave], rate: int, language: str, who: str) -> list[Transcript]:
        """Every wave, in its order, at a sample rate that the listener takes."""
        assert self.listener is not None
        wanted, code = self.listener.sample_rate or rate, self._find_language_code(language)
        heard = [EMPTY_TRANSCRIPT] * len(waves)
        sounding = [at for at, wave in enumerate(waves) if len(wave)]
        with progress.progress_task(f"listening to {who}", len(sounding)) as advance:
            for first in range(0, len(sounding), ASR_BATCH_SIZE):
                some = sounding[first : first + ASR_BATCH_SIZE]
                filled = [_pad_wave(resample(waves[at], rate, wanted), wanted) for at in some]
                for at, found in zip(some, self.listener.hear(filled, wanted, code), strict=True):
                    heard[at] = found
                advance(len(some))
        return heard


def _format_unknown_language(listener: Recognizer, language: str) -> str:
    known = sorted(listener.languages or ())
    more = f" and {len(known) - MAX_LANGUAGES_NAMED} more" if len(known) > MAX_LANGUAGES_NAMED else ""
    return (
        f"the recogniser {listener.name} does not know {language}, only {', '.join(known[:MAX_LANGUAGES_NAMED])}{more}"
    )


def open_transcriber(setting: str | None, language: str | None = None) -> Transcriber:
    """The recogniser that is named; else the built-in one, or Whisper for a `run_language` that only Whisper knows.

    That there is none is a reason and no error, unless one was named.
    """
    if setting == NO_RECOGNIZER:
        return Transcriber(None, "no recogniser was asked for (none)")
    if setting is not None:
        return Transcriber(open_recognizer(setting))
    try:
        ear = Transcriber(open_recognizer(BUILT_IN_RECOGNIZER))
    except VoxgraftError as error:
        ear = Transcriber(None, f"the built-in recogniser cannot be opened: {error.finding.found}")
    if language is None or not (deaf := ear.why_unsupported(language)):
        return ear
    other = _find_installed_whisper()
    if isinstance(other, str):
        return replace(ear, why=f"{deaf}; {other}")
    return replace(ear, why=f"{deaf}; {unknown}") if (unknown := other.why_unsupported(language)) else other


def require_recognizer(setting: str | None, language: str) -> None:
    """Raise unless a recogniser that is named can be opened and knows the language."""
    if setting in (None, NO_RECOGNIZER):
        return
    ear = open_transcriber(setting)
    if why := ear.why_unsupported(language):
        raise ConfigError("listener-language", why, cure=RECOGNIZER_CURE)


def _find_installed_whisper() -> Transcriber | str:
    """Whisper, where it is installed with a model; else why not."""
    if not whisper.is_whisper_installed():
        return "faster-whisper is not installed"
    model = whisper.find_downloaded_whisper()
    if model is None:
        return "faster-whisper is installed and has no model on this machine"
    try:
        return Transcriber(whisper.WhisperRecognizer(model))
    except VoxgraftError as error:
        return error.finding.found


def format_recognizer_hint(subject: str) -> str:
    """What to do where no recogniser knows the language; `subject` is what is evaluated, as typed."""
    return (
        f"to measure errors, add a recogniser: `pip install faster-whisper`, then "
        f"`voxgraft evaluate {subject} --recogniser whisper:small` (or whisper:FOLDER), or any program that prints "
        "what it hears: `--recogniser 'command:PROGRAM {wav}'`"
    )


def _pad_wave(wave: Wave, rate: int) -> Wave:
    missing = round(MIN_ASR_SECONDS * rate) - len(wave)
    return np.pad(wave, (0, missing)) if missing > 0 else wave


def compute_error_rates(meant: Sequence[EvalSentence], heard: Sequence[Transcript], seed: int) -> dict[str, Score]:
    """Phone, letter and word error over sentences of one language, and the first two of common and rare ones apart."""
    pairs = list(zip(meant, heard, strict=True))
    language = meant[0].language if meant else ""
    found = {
        "phone_error": _compute_phone_error_rate(pairs, seed),
        "cer": compute_error_rate([_count_letter_edits(*pair) for pair in pairs], seed),
        "wer": unmeasured_score(f"{language} is written without spaces between words")
        if language in LANGUAGES_WITHOUT_SPACES
        else compute_error_rate([_count_word_edits(*pair) for pair in pairs], seed),
    }
    rare = [pair for pair in pairs if pair[0].rare]
    common = [pair for pair in pairs if not pair[0].rare]
    if rare and common:
        for name, part in (("common", common), ("rare", rare)):
            found[f"phone_error_{name}"] = _compute_phone_error_rate(part, seed)
            found[f"cer_{name}"] = compute_error_rate([_count_letter_edits(*pair) for pair in part], seed)
    return found


def compute_sentence_errors(meant: EvalSentence, heard: Transcript) -> dict[str, float | None]:
    """The same of one sentence, for whoever looks at it."""
    by_name = {"cer": _count_letter_edits(meant, heard), "phone_error": _count_phone_edits(meant, heard)}
    return {name: one.edits / one.length if one is not None and one.length else None for name, one in by_name.items()}


def _compute_phone_error_rate(pairs: Sequence[tuple[EvalSentence, Transcript]], seed: int) -> Score:
    if not any(meant.phones for meant, _ in pairs):
        return unmeasured_score("the sentences have no phones to compare with")
    if any(heard.phones is None for _, heard in pairs):  # what was not heard at all has no phones with any listener
        return unmeasured_score("the listener writes letters, not phones")
    return compute_error_rate([one for pair in pairs if (one := _count_phone_edits(*pair)) is not None], seed)


def _count_letter_edits(meant: EvalSentence, heard: Transcript) -> EditCount:
    language = meant.language
    return count_edits(
        normalize_letters(_normalize_text(meant.text, language), language),
        normalize_letters(_normalize_text(heard.text, language), language),
    )


def _count_word_edits(meant: EvalSentence, heard: Transcript) -> EditCount:
    language = meant.language
    return count_edits(
        split_normalized_words(_normalize_text(meant.text, language), language),
        split_normalized_words(_normalize_text(heard.text, language), language),
    )


_load_normalizer = lru_cache(maxsize=64)(build_normalizer)


def _normalize_text(text: str, language: str) -> str:
    """Numbers in words, and one form of each apostrophe: recognisers write 2026 where people say words."""
    return _load_normalizer(language).normalise(text).text


def _count_phone_edits(meant: EvalSentence, heard: Transcript) -> EditCount | None:
    if meant.phones is None or heard.phones is None:
        return None
    return count_edits(normalize_phones(meant.phones), normalize_phones(heard.phones))
