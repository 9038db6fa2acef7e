"""Held-out recordings of a run, by language, and what two systems make of them: losses, and whether they are read.

Opens sets, never training ones. What cannot be opened is a reason, not an error: speech can be judged without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from voxgraft.config.run import RunSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import is_folder, path_exists
from voxgraft.core.run import RunFolder
from voxgraft.dataset.indextts2_manifest import open_pair_dataset, split_manifest_language
from voxgraft.dataset.sampler import DataSamplerOptions, list_samples
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.dataset.shards import AnyArray, ClipDataset, Int32Array
from voxgraft.evaluation.scores import Score, score_without_interval, unmeasured_score
from voxgraft.evaluation.sentences import normalize_letters
from voxgraft.evaluation.systems import ModelContext, SpeakingModel
from voxgraft.graft.folder import Graft
from voxgraft.models.load import read_tensor_shapes
from voxgraft.text.encoder import TextEncoder, text_rules_identity
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.replay import SELF_REPLAY_NAME as SELF_REPLAY
from voxgraft.training.replay import split_self_replay
from voxgraft.training.validation import Validator

__all__ = ["HeldOutData", "compute_held_out_losses", "measure_recorded_pace", "open_held_out_data"]

LOSS_MEASURES = ("speech_loss", "text_loss", "text_use", "voice_use")
VALIDATION_MICROBATCH_TOKENS = 4_096
NO_RUN_REASON = "no run was given, so there are no held-out recordings"


@dataclass
class HeldOutData:
    """Sets by language; and by language, or of all (""), why there are none."""

    sets: dict[str, tuple[ClipDataset, ...]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    min_prompt_seconds: float = 3.0
    seed: int = 0

    def reason(self, language: str) -> str:
        return self.why.get(language) or self.why.get("") or f"the run has no held-out recordings in {language}"

    @property
    def all_sets(self) -> list[ClipDataset]:
        return [clips for sets in self.sets.values() for clips in sets]


def open_held_out_data(run: RunFolder, settings: RunSettings, place: ModelContext, graft: Graft) -> HeldOutData:
    """What a run holds out: of the new language, of base languages, and of what the base said itself."""
    held_out = HeldOutData(min_prompt_seconds=settings.data.min_prompt_seconds, seed=settings.train.seed)
    opener = _HeldOutLoader(place, graft)
    own = graft.card.language
    for path in settings.data.valid or (run.data_set("valid"),):
        opener.add(held_out, path, own)
    for path in settings.data.replay_valid:
        opener.add(held_out, path, None)
    made = run.data_set(SELF_REPLAY)
    if path_exists(made):
        opener.add_self_replay(held_out, made)
    return held_out


@dataclass(frozen=True, slots=True)
class _HeldOutLoader:
    place: ModelContext
    graft: Graft

    def add(self, held_out: HeldOutData, path: Path, language: str | None) -> None:
        """One set; `language` is the new one's, or None for a set of a base language, which says itself."""
        try:
            clips = self._opened(path, language)
        except VoxgraftError as error:
            held_out.why[language or ""] = f"held-out recordings cannot be used: {error.finding.found}"
            return
        name = clips.header.language
        held_out.sets[name] = (*held_out.sets.get(name, ()), clips)

    def add_self_replay(self, held_out: HeldOutData, path: Path) -> None:
        try:
            _, parts = split_self_replay(open_clip_dataset(path, expected=self._expected(None)))
        except VoxgraftError as error:
            held_out.why[""] = f"what the base said itself cannot be used: {error.finding.found}"
            return
        for language, clips in parts.items():
            held_out.sets.setdefault(language, (clips,))

    def _opened(self, path: Path, language: str | None) -> ClipDataset:
        if is_folder(path) or split_manifest_language(str(path))[0].suffix != ".jsonl":
            return open_clip_dataset(path, expected=self._expected(language))
        manifest, stated = split_manifest_language(str(path))
        base = open_tokenizer(self.place.files.tokenizer)
        spelling = TextEncoder.of(
            self.place.family, base, self.graft.tokenizer, self.graft.card.language, self.graft.card.rules
        )
        family, files = self.place.family, self.place.files
        frame = family.frame(self.graft.tokenizer.size, family.infer_size(files, read_tensor_shapes(files.checkpoint)))
        return open_pair_dataset(
            manifest,
            lambda text: spelling.encode(text, language),
            frame,
            language=stated or language,
            role="valid",
            name=manifest.stem,
        )

    def _expected(self, language: str | None) -> dict[str, object]:
        card = self.graft.card
        tokenizer = card.tokenizer_sha256 if language else card.base["tokenizer_sha256"]
        text = text_rules_identity(card.rules) if language else ""
        made_from = {"tokenizer_sha256": tokenizer, "base_sha256": card.base["checkpoint_sha256"], "text": text}
        return {"family": card.family, **({"language": language} if language else {}), "made_from": made_from}


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
        system.trained, examples, items, VALIDATION_MICROBATCH_TOKENS, is_open=system.is_open(language)
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
