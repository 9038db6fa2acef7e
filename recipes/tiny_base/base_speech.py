"""Speech of a tiny base for the recipe's scores: sentences to waves, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.tiny_base.tokenizer import Speller
from voxgraft.core.files import read_json
from voxgraft.models import get_family
from voxgraft.models.base import Vocoder
from voxgraft.models.generate import GeneratedCodes, GenerationPrompt, SpeechGenerator
from voxgraft.models.speech_model import load_model
from voxgraft.models.tiny.family import TOKENIZER_NAME

__all__ = ["BaseSpeech"]

BATCH = 128


class BaseSpeech:
    """An opened base for repeated synthesis."""

    def __init__(self, folder: Path, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.family = get_family("tiny")
        self.files = self.family.files(folder)
        self.speaker = SpeechGenerator(load_model(self.family, self.files, device=self.device))
        self.speller = Speller(read_json(folder / TOKENIZER_NAME))
        self.voices = self.family.voices(self.files)

    @cached_property
    def vocoder(self) -> Vocoder:
        found = self.family.vocoder(self.files, self.device)
        assert found is not None
        return found

    def codes(self, sentences: Sequence[str], language: str, voice: str, seed: int = 0) -> list[GeneratedCodes]:
        """Codes of the sentences, with the family's default sampling and one seed per sentence."""
        condition = self.family.condition(self.family.voice(self.files, voice))
        ids = [self.speller.ids(sentence, language) for sentence in sentences]
        places = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        spoken: dict[int, GeneratedCodes] = {}
        for first in range(0, len(places), BATCH):
            some = places[first : first + BATCH]
            prompts = [GenerationPrompt(ids[place], condition, seed + place) for place in some]
            spoken.update(zip(some, self.speaker.speak(prompts, self.family.upstream_sampling()), strict=True))
        return [spoken[place] for place in range(len(ids))]

    def waves(self, sentences: Sequence[str], language: str, voice: str, seed: int = 0) -> list[NDArray[np.float32]]:
        """Waves at the codec's sample rate."""
        spoken = self.codes(sentences, language, voice, seed)
        clip = self.family.voice(self.files, voice)
        return self.vocoder.sound([one.codes for one in spoken], [clip] * len(spoken))
