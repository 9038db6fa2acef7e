"""Held-out recordings of a run, by language. Opens sets, never training ones.

What cannot be opened is a reason, not an error: speech can be judged without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from voxgraft.checkpoints.tensors import read_tensor_shapes
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import is_folder, path_exists
from voxgraft.core.run import RunFolder
from voxgraft.dataset.indextts2_manifest import open_pair_dataset, split_manifest_language
from voxgraft.dataset.run_data import DataRequirements
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.dataset.shards import ClipDataset, DatasetSubset
from voxgraft.graft.folder import Graft
from voxgraft.models.base import BaseFiles, Family
from voxgraft.tokenizers import open_tokenizer

SELF_REPLAY_NAME = "self-replay"
SELF_REPLAY_ORIGIN = "self-made"
"""What such a set says of where its codes come from."""
HELD_OUT_RECORDING, TRAIN_RECORDING = "held out", "learnt from"
"""The recording that an utterance is said to be of: validation is held out by sentence."""
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


def open_held_out_data(
    run: RunFolder, settings: RunSettings, family: Family, files: BaseFiles, graft: Graft
) -> HeldOutData:
    """What a run holds out: of the new language, of base languages, and of what the base said itself."""
    base = (family, files, open_tokenizer(files.tokenizer))
    wanted = DataRequirements.of(run, settings, graft, base, read_tensor_shapes(files.checkpoint))
    held_out = HeldOutData(min_prompt_seconds=settings.data.min_prompt_seconds, seed=settings.train.seed)
    for path in settings.data.valid or (run.data_set("valid"),):
        _add_set(held_out, wanted, path, wanted.language)
    for path in settings.data.replay_valid:
        _add_set(held_out, wanted, path, None)
    made = run.data_set(SELF_REPLAY_NAME)
    if path_exists(made):
        _add_self_replay(held_out, wanted, made)
    return held_out


def _add_set(held_out: HeldOutData, wanted: DataRequirements, path: Path, language: str | None) -> None:
    """One set; `language` is the new one's, or None for a set of a base language, which states its own."""
    try:
        clips = _open_set(wanted, path, language)
    except VoxgraftError as error:
        held_out.why[language or ""] = f"held-out recordings cannot be used: {error.finding.found}"
        return
    name = clips.header.language
    held_out.sets[name] = (*held_out.sets.get(name, ()), clips)


def _open_set(wanted: DataRequirements, path: Path, language: str | None) -> ClipDataset:
    manifest, stated = split_manifest_language(str(path))
    if is_folder(path) or manifest.suffix != ".jsonl":
        return open_clip_dataset(path, expected=wanted.header(of_base=language is None))
    return open_pair_dataset(
        manifest,
        lambda text: wanted.spelling.encode(text, language),
        wanted.frame,
        language=stated or language,
        role="valid",
        name=manifest.stem,
    )


def _add_self_replay(held_out: HeldOutData, wanted: DataRequirements, path: Path) -> None:
    try:
        _, parts = split_self_replay(open_clip_dataset(path, expected=wanted.header(of_base=True)))
    except VoxgraftError as error:
        held_out.why[""] = f"what the base said itself cannot be used: {error.finding.found}"
        return
    for language, clips in parts.items():
        held_out.sets.setdefault(language, (clips,))


def is_self_replay(clips: ClipDataset) -> bool:
    """Whether a set holds what the base said itself."""
    return clips.header.made_from.front_end.get("codes") == SELF_REPLAY_ORIGIN


def split_self_replay(clips: ClipDataset) -> tuple[ClipDataset | None, dict[str, ClipDataset]]:
    """A self-made set as what is learnt from, and what is held out by language; either may be nothing."""
    learnt: list[int] = []
    held_out: dict[str, list[int]] = {}
    for place, info in enumerate(clips.infos):
        if info.recording == HELD_OUT_RECORDING:
            held_out.setdefault(info.id.rpartition("-")[0], []).append(place)
        else:
            learnt.append(place)
    own = DatasetSubset(clips, learnt, clips.name, "replay", clips.header.language) if learnt else None
    return own, {
        language: DatasetSubset(clips, places, f"{clips.name}-{language}", "valid", language)
        for language, places in held_out.items()
    }
