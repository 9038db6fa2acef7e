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
from voxgraft.audio.resample import resampled
from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.evaluating.forms import SPACELESS, letters, phones_form, words
from voxgraft.evaluating.rates import Score, Tally, error_rate, tally, unmeasured
from voxgraft.evaluating.sentences import Sentence
from voxgraft.listening import Heard, Listener, open_listener, whisper
from voxgraft.normalising import normaliser_of

__all__ = ["ERRORS", "Ear", "errors_of", "how_to_add", "open_ear", "require_recogniser", "sentence_error"]

Wave = NDArray[np.float32]
AT_ONCE = 16
"""Waves that a listener is given in one call."""
ERRORS = ("phone_error", "cer", "wer")
NOTHING = Heard("", ())
MIN_SECONDS = 0.25
BUILT_IN, NOBODY = "built-in", "none"


MOST_NAMED = 12
_REGION = re.compile("-(?:[A-Za-z]{2}|[0-9]{3})$")
RECOGNISERS = "choose another recogniser: whisper:small, whisper:FOLDER or 'command:PROGRAM {wav}'; none goes without."


@dataclass(frozen=True)
class Ear:
    """The recogniser; or none, and why. With a recogniser, why there is none for a language that it does not know."""

    listener: Listener | None
    why: str = ""

    def deaf_to(self, language: str) -> str:
        """Why a language is not listened to; empty if it is."""
        if self.listener is None:
            return self.why
        if self.listener.languages is not None and self._code(language) not in self.listener.languages:
            return self.why or _unknown_language(self.listener, language)
        return ""

    def _code(self, language: str) -> str:
        """The code by which the recogniser knows a language: pt for pt-BR, but not sr for sr-Latn, which it would write
        in other letters."""
        known, plain = self.listener.languages if self.listener else None, _REGION.sub("", language)
        return plain if known is not None and language not in known and plain in known else language

    def hear(self, waves: Sequence[Wave], rate: int, language: str, who: str) -> list[Heard]:
        """Every wave, in its order, at a sample rate that the listener takes."""
        assert self.listener is not None
        wanted, code = self.listener.sample_rate or rate, self._code(language)
        heard = [NOTHING] * len(waves)
        sounding = [at for at, wave in enumerate(waves) if len(wave)]
        with progress.task(f"listening to {who}", len(sounding)) as advance:
            for first in range(0, len(sounding), AT_ONCE):
                some = sounding[first : first + AT_ONCE]
                filled = [_filled(resampled(waves[at], rate, wanted), wanted) for at in some]
                for at, found in zip(some, self.listener.hear(filled, wanted, code), strict=True):
                    heard[at] = found
                advance(len(some))
        return heard


def _unknown_language(listener: Listener, language: str) -> str:
    known = sorted(listener.languages or ())
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return f"the recogniser {listener.name} does not know {language}, only {', '.join(known[:MOST_NAMED])}{more}"


def open_ear(setting: str | None, language: str | None = None) -> Ear:
    """The recogniser that is named; else the built-in one, or Whisper for a `language` that only Whisper knows.

    That there is none is a reason and no error, unless one was named.
    """
    if setting == NOBODY:
        return Ear(None, "no recogniser was asked for (none)")
    if setting is not None:
        return Ear(open_listener(setting))
    try:
        ear = Ear(open_listener(BUILT_IN))
    except VoxgraftError as error:
        ear = Ear(None, f"the built-in recogniser cannot be opened: {error.finding.found}")
    if language is None or not (deaf := ear.deaf_to(language)):
        return ear
    other = _installed_whisper()
    if isinstance(other, str):
        return replace(ear, why=f"{deaf}; {other}")
    return replace(ear, why=f"{deaf}; {unknown}") if (unknown := other.deaf_to(language)) else other


def require_recogniser(setting: str | None, language: str) -> None:
    """Raise unless a recogniser that is named can be opened and knows the language."""
    if setting in (None, NOBODY):
        return
    ear = open_ear(setting)
    if why := ear.deaf_to(language):
        raise ConfigError("listener-language", why, cure=RECOGNISERS)


def _installed_whisper() -> Ear | str:
    """Whisper, where it is installed with a model; else why not."""
    if not whisper.is_installed():
        return "faster-whisper is not installed"
    model = whisper.downloaded_model()
    if model is None:
        return "faster-whisper is installed and has no model on this machine"
    try:
        return Ear(whisper.Whisper(model))
    except VoxgraftError as error:
        return error.finding.found


def how_to_add(subject: str) -> str:
    """What to do where no recogniser knows the language; `subject` is what is evaluated, as typed."""
    return (
        f"to measure errors, add a recogniser: `pip install faster-whisper`, then "
        f"`voxgraft evaluate {subject} --recogniser whisper:small` (or whisper:FOLDER), or any program that prints "
        "what it hears: `--recogniser 'command:PROGRAM {wav}'`"
    )


def _filled(wave: Wave, rate: int) -> Wave:
    missing = round(MIN_SECONDS * rate) - len(wave)
    return np.pad(wave, (0, missing)) if missing > 0 else wave


def errors_of(meant: Sequence[Sentence], heard: Sequence[Heard], seed: int) -> dict[str, Score]:
    """Phone, letter and word error over sentences of one language, and the first two of common and rare ones apart."""
    pairs = list(zip(meant, heard, strict=True))
    language = meant[0].language if meant else ""
    found = {
        "phone_error": _phone_error(pairs, seed),
        "cer": error_rate([_letters(*pair) for pair in pairs], seed),
        "wer": unmeasured(f"{language} is written without spaces between words")
        if language in SPACELESS
        else error_rate([_words(*pair) for pair in pairs], seed),
    }
    rare = [pair for pair in pairs if pair[0].rare]
    common = [pair for pair in pairs if not pair[0].rare]
    if rare and common:
        for name, part in (("common", common), ("rare", rare)):
            found[f"phone_error_{name}"] = _phone_error(part, seed)
            found[f"cer_{name}"] = error_rate([_letters(*pair) for pair in part], seed)
    return found


def sentence_error(meant: Sentence, heard: Heard) -> dict[str, float | None]:
    """The same of one sentence, for whoever looks at it."""
    by_name = {"cer": _letters(meant, heard), "phone_error": _phones(meant, heard)}
    return {name: one.edits / one.length if one is not None and one.length else None for name, one in by_name.items()}


def _phone_error(pairs: Sequence[tuple[Sentence, Heard]], seed: int) -> Score:
    if not any(meant.phones for meant, _ in pairs):
        return unmeasured("the sentences have no phones to compare with")
    if any(heard.phones is None for _, heard in pairs):  # what was not heard at all has no phones with any listener
        return unmeasured("the listener writes letters, not phones")
    return error_rate([one for pair in pairs if (one := _phones(*pair)) is not None], seed)


def _letters(meant: Sentence, heard: Heard) -> Tally:
    language = meant.language
    return tally(letters(_read(meant.text, language), language), letters(_read(heard.text, language), language))


def _words(meant: Sentence, heard: Heard) -> Tally:
    language = meant.language
    return tally(words(_read(meant.text, language), language), words(_read(heard.text, language), language))


_normaliser = lru_cache(maxsize=64)(normaliser_of)


def _read(text: str, language: str) -> str:
    """Numbers in words, and one form of each apostrophe: recognisers write 2026 where people say words."""
    return _normaliser(language).normalise(text).text


def _phones(meant: Sentence, heard: Heard) -> Tally | None:
    if meant.phones is None or heard.phones is None:
        return None
    return tally(phones_form(meant.phones), phones_form(heard.phones))
