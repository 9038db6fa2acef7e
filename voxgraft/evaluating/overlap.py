"""Whether sentences are really held out: which of them, and which of their rare words, stand in the training texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from voxgraft.corpus.sets import open_clip_dataset
from voxgraft.errors import VoxgraftError
from voxgraft.evaluating.forms import normalize_letters, split_normalized_words
from voxgraft.evaluating.sentences import SentenceSet
from voxgraft.files import is_folder
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings

__all__ = ["TrainingOverlap", "TrainingTexts", "find_training_overlap", "load_training_texts"]


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """What a run was trained on, in words; None where that is not known, and why."""

    language: str
    texts: tuple[str, ...] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TrainingOverlap:
    """Sentences, and words that were meant to be unheard, which training has had."""

    seen: tuple[str, ...]
    heard: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"seen_in_training": list(self.seen), "rare_words_in_training": list(self.heard)}


def load_training_texts(run: RunFolder, settings: RunSettings, language: str) -> TrainingTexts:
    """Texts of the training sets of a run, as far as they are sets of ours."""
    texts: list[str] = []
    for place in settings.data.train or (run.data_set("train"),):
        if not is_folder(place):
            return TrainingTexts(language, None, f"{place.name} is no set that voxgraft has made")
        try:
            texts += [info.text for info in open_clip_dataset(place, verify="sizes").infos]
        except VoxgraftError as error:
            return TrainingTexts(language, None, f"the training set cannot be opened: {error.finding.found}")
    return TrainingTexts(language, tuple(texts))


def find_training_overlap(found: SentenceSet, texts: Iterable[str]) -> TrainingOverlap:
    """What of a set stands in these texts, letters compared as scores compare them."""
    seen: set[str] = set()
    heard: set[str] = set()
    for text in texts:
        seen.add(normalize_letters(text, found.language))
        heard.update(split_normalized_words(text, found.language))
    rare = dict.fromkeys(word for one in found.sentences for word in one.rare)
    return TrainingOverlap(
        tuple(one.text for one in found.sentences if normalize_letters(one.text, found.language) in seen),
        tuple(word for word in rare if normalize_letters(word, found.language) in heard),
    )
