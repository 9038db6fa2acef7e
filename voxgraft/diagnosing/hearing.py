"""What a base and a checkpoint on it sound like to a listener: phone errors by language, the same sentences for all.

Only for families with a waveform end here. Knows no verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from voxgraft.errors import ConfigError
from voxgraft.evaluating.hearing import Transcriber, compute_error_rates, open_transcriber
from voxgraft.evaluating.sentences import SentenceSet, load_sentence_sets
from voxgraft.evaluating.sound import SpeechRenderer, open_speech_renderer
from voxgraft.evaluating.speaking import synthesize_sentences
from voxgraft.evaluating.systems import ModelContext, SpeakingModel, open_base_model
from voxgraft.evaluating.voices import choose_eval_voices
from voxgraft.families.base import BaseFiles, Family
from voxgraft.graft_folder import find_text_rules
from voxgraft.normalising import NO_RULES, TextRules
from voxgraft.spelling import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.replay import ReferenceVoice

__all__ = ["ListeningTest", "PhoneErrors", "open_listening_test", "phone_error_rows"]

PhoneErrors = dict[str, float]
"""Phone errors, by language."""


@dataclass(frozen=True)
class ListeningTest:
    """A base with everything that is needed to listen to it and to what was made of it."""

    place: ModelContext
    base: SpeakingModel
    sets: dict[str, SentenceSet]
    voices: list[ReferenceVoice]
    sound: SpeechRenderer
    ear: Transcriber
    tokenizer: Path | None
    language: str | None
    """The new language; None where only old ones are spoken."""
    seed: int

    def base_errors(self) -> PhoneErrors:
        """Of the languages that the base knows."""
        return self._errors(self.base, [name for name in self.sets if name != self.language])

    def errors(self, checkpoint: Path, who: str) -> PhoneErrors:
        """Of a checkpoint of the same family; an error of ours where it makes no whole model."""
        files = replace(self.place.files, checkpoint=checkpoint, tokenizer=self.tokenizer or self.place.files.tokenizer)
        own = open_tokenizer(self.place.files.tokenizer)
        grown = open_tokenizer(self.tokenizer) if self.tokenizer else None
        # Nothing is known of how others normalised their texts, so they are read as they are.
        rules = (find_text_rules(self.tokenizer) if self.tokenizer else None) or TextRules(NO_RULES)
        spelling = TextEncoder.of(self.place.family, own, grown, self.language if grown else None, rules)
        system = SpeakingModel(who, self.place.family, self.place.model(files), spelling, None, "checkpoint")
        return self._errors(system, list(self.sets))

    def _errors(self, system: SpeakingModel, languages: list[str]) -> PhoneErrors:
        found: PhoneErrors = {}
        for language in languages:
            sentences = self.sets[language].sentences
            who = f"{system.name}, {language}"
            said = synthesize_sentences(system, sentences, self.voices, self.seed, who)
            heard = self.ear.hear(self.sound.waves(said, who), self.sound.rate, language, who)
            value = compute_error_rates(sentences, heard, self.seed)["phone_error"].value
            if value is not None:
                found[language] = value
        return found


def open_listening_test(
    family: Family, files: BaseFiles, tokenizer: Path | None, language: str | None, sentences: int, seed: int
) -> ListeningTest:
    """Everything opened; an error that says what is missing where nothing could be heard."""
    place = ModelContext(family, files, "cpu", torch.float32)
    sound, ear = open_speech_renderer(place), open_transcriber(None)
    if why := sound.why or ear.why:
        raise ConfigError("nothing-to-hear", why)
    languages = [*family.languages, *([language] if language and tokenizer else [])]
    sets = load_sentence_sets([name for name in languages if not ear.why_unsupported(name)], (), sentences)
    if not sets:
        raise ConfigError("nothing-to-hear", f"there are no sentences in {', '.join(languages)}")
    new = language if language in sets and language not in family.languages else None
    base = open_base_model(place)
    voices = choose_eval_voices(base, files, (), (), 0.0, seed)
    return ListeningTest(place, base, sets, voices, sound, ear, tokenizer, new, seed)


def phone_error_rows(hearing: ListeningTest, checkpoint: Path) -> list[dict[str, Any]]:
    """Phone errors of base and checkpoint, line by line."""
    by_who = {"base": hearing.base_errors(), "checkpoint": hearing.errors(checkpoint, "checkpoint")}
    return [
        {
            "language": language,
            "who": who,
            "sentences": len(hearing.sets[language].sentences),
            "phone_error": error,
        }
        for who, errors in by_who.items()
        for language, error in errors.items()
    ]
