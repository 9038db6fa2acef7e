"""What models make of held-out recordings: losses, whether text and voice are used, and the pace of speech."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import numpy as np

from voxgraft.dataset.held_out import HeldOutData
from voxgraft.dataset.sampler import DataSamplerOptions, list_samples
from voxgraft.dataset.shards import AnyArray, ClipDataset, Int32Array
from voxgraft.evaluation.scores import Score, score_without_interval, unmeasured_score
from voxgraft.evaluation.sentences import normalize_letters
from voxgraft.synthesis.models import SpeakingModel
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.trainable import TrainableModel
from voxgraft.training.validation import Validator

LOSS_MEASURES = ("speech_loss", "text_loss", "text_use", "voice_use")
VALIDATION_MICROBATCH_TOKENS = 4_096


def compute_held_out_losses(system: SpeakingModel, held_out: HeldOutData, language: str) -> dict[str, Score]:
    """Losses of a system on the held-out recordings of a language, with what it makes of the text and the voice."""
    sets = held_out.sets.get(language)
    if not sets:
        return dict.fromkeys(LOSS_MEASURES, unmeasured_score(held_out.reason(language)))
    spelled = tuple(_RetokenizedClipSet(clips, system, language) for clips in sets)
    usable = tuple(clips for clips in spelled if len(clips))
    if not usable:
        why = f"{system.name} has no piece for any letter of the held-out texts"
        return dict.fromkeys(LOSS_MEASURES, unmeasured_score(why))
    order = DataSamplerOptions(
        min_prompt_seconds=held_out.min_prompt_seconds, num_conditioning=system.model.frame.num_conditioning
    )
    items = list_samples(usable, held_out.seed, order)
    examples = BatchBuilder(system.family, system.model, usable)
    found = Validator(
        TrainableModel(system.model, {}, system.gate),
        examples,
        items,
        VALIDATION_MICROBATCH_TOKENS,
        is_open=system.is_open(language),
    ).run()
    swapped = {
        "text_use": unmeasured_score("there are not two texts to swap"),
        "voice_use": unmeasured_score("there are not two speakers to swap"),
    }
    return {
        name: swapped[name]
        if (value := getattr(found, name)) is None
        else score_without_interval(value, found.num_clips)
        for name in LOSS_MEASURES
    }


def measure_recorded_pace(held_out: HeldOutData, language: str) -> float | None:
    """Seconds that a letter of the language takes in the held-out recordings, in the middle; None without any."""
    paces = []
    for clips in held_out.sets.get(language, ()):
        for place in range(len(clips)):
            count = len(normalize_letters(clips.infos[place].text, language))
            if count:
                paces.append(float(clips.num_codes[place]) / clips.header.code_hz / count)
    return median(paces) if paces else None


class _RetokenizedClipSet(ClipDataset):
    """The clips of a set as a system reads their texts: the base alone has no rows for a grown tokenizer's ids.

    Clips whose text it cannot read at all are left out. Voices that a set brings along stay behind its clips.
    """

    def __init__(self, whole: ClipDataset, system: SpeakingModel, language: str) -> None:
        self._whole, self.name, self.header = whole, whole.name, whole.header
        spelled = {at: system.ids(whole.infos[at].text, language) for at in range(len(whole))}
        most = system.model.frame.max_text
        clips = [at for at, ids in spelled.items() if 0 < len(ids) <= most]
        self._ids = [np.asarray(spelled[at], dtype=np.int32) for at in clips]
        lending = range(len(whole), len(whole.infos))
        self._places = [*clips, *lending]
        self._moved: Mapping[int, int] = {place: at for at, place in enumerate(self._places)}
        self.infos = [whole.infos[place] for place in self._places]
        self.num_text = np.array([len(ids) for ids in self._ids], dtype=np.int64)
        self.num_codes = whole.num_codes[clips]
        self.fingerprint = whole.fingerprint

    def text_ids(self, clip: int) -> Int32Array:
        return self._ids[clip]

    def codes(self, clip: int) -> Int32Array:
        return self._whole.codes(self._places[clip])

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._whole.voice(self._places[clip])

    def prompt_of(self, clip: int) -> int | None:
        given = self._whole.prompt_of(self._places[clip])
        return None if given is None else self._moved.get(given)
