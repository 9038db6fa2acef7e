"""Which sentences a training speaks on the way: those that are asked for, else one in the new language and two others.

`training/samples.py` speaks them.
"""

from __future__ import annotations

from collections.abc import Sequence

from voxgraft.corpus import chance
from voxgraft.corpus.clips import ClipDataset
from voxgraft.errors import ConfigError
from voxgraft.spelling import TextEncoder
from voxgraft.training.samples import SampleSentence

__all__ = ["build_sample_sentences", "collect_texts"]

NEW_LANGUAGE_SAMPLES = {"am": "ሰላም ለዓለም"}
BASE_LANGUAGE_SAMPLES = {"en": "Hello world", "fr": "Bonjour le monde", "zh": "你好，世界"}
"""By language; the first two that the base speaks are spoken."""
NUM_BASE_SAMPLES = 2
MIN_SAMPLE_CHARACTERS = 8
"""Of a held-out sentence that stands in for a language that we have no sentence of."""


def build_sample_sentences(
    spelling: TextEncoder, requested: Sequence[str], held_out: Sequence[str], seed: int
) -> list[SampleSentence]:
    """The texts that are asked for as LANGUAGE:TEXT, or the usual ones, spelled as their language is.

    `held_out` are texts of recordings that are never learnt from; the shortest stands in where we have none.
    """
    found: list[SampleSentence] = []
    for language, text in (
        [_parse_sample_text(text) for text in requested] if requested else _default_samples(spelling, held_out)
    ):
        is_new = spelling.is_new_language(language)
        language = str(spelling.language) if is_new else language  # ff-adlm is ff-Adlm
        if not is_new and language not in spelling.family.languages:
            spoken = ", ".join((str(spelling.language), *spelling.family.languages))
            raise ConfigError("sample-text", f"a sentence in {language!r}: {text!r:.80}", expected=f"one of {spoken}")
        same = sum(one.language == language for one in found)
        name = f"{language}-{same + 1}" if same else language
        ids = tuple(spelling.encode(text, language))
        own_seed = chance.hash_int("sample", seed, language, text) % 2**31
        found.append(SampleSentence(name, language, text, ids, is_new, own_seed))
    return found


def collect_texts(sets: Sequence[ClipDataset]) -> list[str]:
    """Texts of some sets, as people write them."""
    return [info.text.strip() for clips in sets for info in clips.infos[: len(clips)]]


def _parse_sample_text(asked: str) -> tuple[str, str]:
    language, colon, text = asked.partition(":")
    if not colon or not language.strip() or not text.strip():
        raise ConfigError("sample-text", f"{asked!r:.80}", expected="LANGUAGE:TEXT, such as en:Hello world")
    return language.strip(), text.strip()


def _default_samples(spelling: TextEncoder, held_out: Sequence[str]) -> list[tuple[str, str]]:
    own = str(spelling.language)
    long_enough = sorted(
        (text for text in held_out if len(text) >= MIN_SAMPLE_CHARACTERS), key=lambda text: (len(text), text)
    )
    new = NEW_LANGUAGE_SAMPLES.get(own) or next(iter(long_enough), None)
    old = [
        (language, BASE_LANGUAGE_SAMPLES[language])
        for language in BASE_LANGUAGE_SAMPLES
        if language in spelling.family.languages and language != own
    ]
    return ([(own, new)] if new else []) + old[:NUM_BASE_SAMPLES]
