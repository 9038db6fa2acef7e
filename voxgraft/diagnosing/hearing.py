"""What a base and a checkpoint on it sound like to a listener: phone errors by language, the same sentences for all.

Only for families with a waveform end here. Knows no verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from voxgraft.errors import ConfigError
from voxgraft.evaluating.hearing import Ear, errors_of, open_ear
from voxgraft.evaluating.sentences import SentenceSet, sets_of
from voxgraft.evaluating.sound import Sound, open_sound
from voxgraft.evaluating.speaking import say
from voxgraft.evaluating.systems import Place, System, base_system
from voxgraft.evaluating.voices import voices_of
from voxgraft.families.base import BaseFiles, Family
from voxgraft.graft_folder import rules_beside
from voxgraft.normalising import NO_RULES, TextRules
from voxgraft.spelling import Spelling
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.replay import Voice

__all__ = ["Errors", "Hearing", "heard_lines", "open_hearing"]

Errors = dict[str, float]
"""Phone errors, by language."""


@dataclass(frozen=True)
class Hearing:
    """A base with everything that is needed to listen to it and to what was made of it."""

    place: Place
    base: System
    sets: dict[str, SentenceSet]
    voices: list[Voice]
    sound: Sound
    ear: Ear
    tokenizer: Path | None
    language: str | None
    """The new language; None where only old ones are spoken."""
    seed: int

    def base_errors(self) -> Errors:
        """Of the languages that the base knows."""
        return self._errors(self.base, [name for name in self.sets if name != self.language])

    def errors(self, checkpoint: Path, who: str) -> Errors:
        """Of a checkpoint of the same family; an error of ours where it makes no whole model."""
        files = replace(self.place.files, checkpoint=checkpoint, tokenizer=self.tokenizer or self.place.files.tokenizer)
        own = open_tokenizer(self.place.files.tokenizer)
        grown = open_tokenizer(self.tokenizer) if self.tokenizer else None
        # Nothing is known of how others normalised their texts, so they are read as they are.
        rules = (rules_beside(self.tokenizer) if self.tokenizer else None) or TextRules(NO_RULES)
        spelling = Spelling.of(self.place.family, own, grown, self.language if grown else None, rules)
        system = System(who, self.place.family, self.place.model(files), spelling, None, "checkpoint")
        return self._errors(system, list(self.sets))

    def _errors(self, system: System, languages: list[str]) -> Errors:
        found: Errors = {}
        for language in languages:
            sentences = self.sets[language].sentences
            who = f"{system.name}, {language}"
            said = say(system, sentences, self.voices, self.seed, who)
            heard = self.ear.hear(self.sound.waves(said, who), self.sound.rate, language, who)
            value = errors_of(sentences, heard, self.seed)["phone_error"].value
            if value is not None:
                found[language] = value
        return found


def open_hearing(
    family: Family, files: BaseFiles, tokenizer: Path | None, language: str | None, sentences: int, seed: int
) -> Hearing:
    """Everything opened; an error that says what is missing where nothing could be heard."""
    place = Place(family, files, "cpu", torch.float32)
    sound, ear = open_sound(place), open_ear(None)
    if why := sound.why or ear.why:
        raise ConfigError("nothing-to-hear", why)
    languages = [*family.languages, *([language] if language and tokenizer else [])]
    sets = sets_of([name for name in languages if not ear.deaf_to(name)], (), sentences)
    if not sets:
        raise ConfigError("nothing-to-hear", f"there are no sentences in {', '.join(languages)}")
    new = language if language in sets and language not in family.languages else None
    base = base_system(place)
    voices = voices_of(base, files, (), (), 0.0, seed)
    return Hearing(place, base, sets, voices, sound, ear, tokenizer, new, seed)


def heard_lines(hearing: Hearing, checkpoint: Path) -> list[dict[str, Any]]:
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
