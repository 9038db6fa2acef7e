"""Families by name, and by the files of a folder. `core/families.py` has the names; code is imported on demand.

Detection reads headers only, no values: the tensors of every checkpoint in a folder, which tokenizer fits one, and what
an unsupported folder is. Where several files would fit, the error lists them; nothing is guessed. Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from voxgraft.checkpoints.base import Shape
from voxgraft.checkpoints.load import open_checkpoint
from voxgraft.core.errors import (
    CheckpointError,
    ConfigError,
    FileError,
    Finding,
    VoxgraftError,
    find_nearest_name,
    finding,
)
from voxgraft.core.families import BUILT_IN_BASES, FAMILIES, FAMILY_NAMES
from voxgraft.core.files import is_file, path_exists, read_json, require_folder
from voxgraft.models.base import Family, SpeakerEncoder


def family_names() -> list[str]:
    """Names of all families, in the order in which they are tried."""
    return list(FAMILY_NAMES)


def get_family(name: str) -> Family:
    """The family of that name."""
    if name not in FAMILIES:
        hint = find_nearest_name(name, family_names())
        cure = f"did you mean `{hint}`?" if hint else f"known families: {', '.join(FAMILY_NAMES)}."
        raise ConfigError("family-unknown", f"there is no family `{name}`", cure=cure)
    family = getattr(import_module(f"voxgraft.models.{name}.family"), FAMILIES[name].class_name)()
    assert isinstance(family, Family)
    return family


def load_speaker_encoder(path: Path) -> SpeakerEncoder:
    """A voice encoder from a file or a base folder, of the first family that has one which works alone."""
    for family in map(get_family, family_names()):
        if (encoder := family.speaker_encoder(path)) is not None:
            return encoder
    raise ConfigError("family-unknown", "no family has a voice encoder that works without its base")


def detect_family(folder: Path) -> Family:
    """The family whose files are in a base folder; never guessed when none or several fit."""
    require_folder(folder)
    failures: dict[Family, FileError] = {}
    refusals: list[VoxgraftError] = []
    for candidate in map(get_family, family_names()):
        try:
            candidate.files(folder)
        except FileError as error:
            failures[candidate] = error
        except VoxgraftError as error:  # its files, but not as they should be; another family may fit anyway
            refusals.append(error)
        else:
            return candidate
    if refusals:
        raise refusals[0]

    refuse_unsupported_folder(folder, failures)
    looked = "".join(f"\n    {candidate.name}: {error.finding.found}" for candidate, error in failures.items())
    raise FileError("base-unknown", f"{folder} is not the folder of a supported base{looked}", where=folder)


def resolve_base_folder(path: Path) -> Path:
    """The folder that was named, or the built-in base of a family for the family's name, where no such folder is."""
    if str(path) in family_names() and not path_exists(path):
        return get_family(str(path)).shipped_folder() or path
    return path


def resolve_base_family(folder: Path, name: str | None) -> Family:
    """The family of a base folder: the one that was named, else the one whose files exist."""
    # Files of a base that ships with voxgraft are known; others are read by every family until one knows them.
    shipped = next((own for own, path in BUILT_IN_BASES.items() if path == folder), None)
    if name is None:
        return get_family(shipped) if shipped else detect_family(folder)
    family = get_family(name)
    try:
        family.files(folder)
    except FileError as error:
        other = None
        if error.code == "base-file-missing":
            with suppress(VoxgraftError):
                other = get_family(shipped) if shipped else detect_family(folder)
        if other is not None and other.name != name:
            found = f"the files of {folder.name} are of the family {other.name}, but `family` is {name}"
            raise ConfigError("base-other-family", found, expected=other.name, where=folder) from None
    except VoxgraftError:
        pass  # whoever opens the files reports this
    return family


CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
# A folder with more checkpoints than this is an archive of runs, and no base.
MAX_SCANNED_FILES = 64
LFS_POINTER_PREFIX = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """One checkpoint file: its tensors, or why it cannot be opened."""

    path: Path
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    refusal: Finding | None = None


def scan_checkpoint(path: Path) -> CheckpointScan:
    """The names and shapes in one file. A file that cannot be opened is no error here: it is reported when used."""
    try:
        with open_checkpoint(path) as checkpoint:
            return CheckpointScan(path, {name: info.shape for name, info in checkpoint.tensors.items()})
    except VoxgraftError as error:
        return CheckpointScan(path, refusal=error.finding)


def scan_folder(folder: Path) -> list[CheckpointScan]:
    """Every checkpoint in a folder, by its name; nothing where there are too many to be a base."""
    paths = list_files_with_suffix(folder, CHECKPOINT_SUFFIXES)
    return [scan_checkpoint(path) for path in paths] if len(paths) <= MAX_SCANNED_FILES else []


def list_files_with_suffix(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder whose names end so, in order."""
    names = sorted(os.listdir(require_folder(folder)))
    return [folder / name for name in names if name.endswith(suffixes) and is_file(folder / name)]


def refuse_lookalike_files(family: Family, checkpoint: Path, tokenizer: Path) -> None:
    """Raise if files that have the family's names are another model's, or are only pointers to files in a git
    repository."""
    seen = scan_checkpoint(checkpoint)
    if seen.refusal is not None and seen.refusal.code == "checkpoint-lfs":
        raise CheckpointError.of(seen.refusal)
    # A clone without git-lfs leaves a small text file in the place of each large one.
    with suppress(OSError):  # whoever opens the file reports whatever else is wrong with it
        with tokenizer.open("rb") as stream:
            start = stream.read(len(LFS_POINTER_PREFIX))
        if start == LFS_POINTER_PREFIX:
            raise CheckpointError(
                "checkpoint-lfs", f"{tokenizer.name} is a Git LFS pointer, not the file itself", where=tokenizer
            )
    if item := family.check_lookalike(seen.path, seen.shapes):
        raise CheckpointError.of(item)


def find_files_by_content(family: Family, folder: Path, missing: FileError) -> tuple[Path, Path]:
    """Checkpoint and tokenizer of a base whose files have names of their own, by what is in them.

    Where no file holds the family's tensors this raises what the family mistook one for, else `missing`.
    """
    around = scan_folder(folder)
    # By tensor names, not by file names: people rename checkpoints.
    candidates = [seen for seen in around if family.matches_tensors(seen.shapes)]
    if not candidates:
        mistaken = (family.check_lookalike(seen.path, seen.shapes) for seen in around)
        if item := next(filter(None, mistaken), None):
            raise CheckpointError.of(item)
        raise missing
    if len(candidates) > 1:
        listed = ", ".join(f"{seen.path.name} ({_count_text_rows(family, seen):,} text rows)" for seen in candidates)
        cure = f"rename the right file to {family.checkpoint_names[0]}, or move the other files to another folder."
        raise FileError("base-several", f"several files contain the model: {listed}", where=folder, cure=cure)
    return candidates[0].path, find_matching_tokenizer(family, candidates[0])


def find_matching_tokenizer(family: Family, seen: CheckpointScan) -> Path:
    """The one tokenizer beside a checkpoint that has a piece for each of its rows; an error if that is none or two."""
    from voxgraft.tokenizers import open_tokenizer

    folder, pieces = seen.path.parent, _count_text_rows(family, seen) - family.spare_rows
    others: list[str] = []
    fitting: list[Path] = []
    for path in list_files_with_suffix(folder, tuple({Path(name).suffix for name in family.tokenizer_names}))[
        :MAX_SCANNED_FILES
    ]:
        try:
            tokenizer = open_tokenizer(path)
        except VoxgraftError:
            continue  # other JSON files lie about in every folder
        # As many pieces is not enough: special pieces must have the ids that the model was trained with.
        specials = all(tokenizer.ids.get(piece) == at for piece, at in family.special_ids.items())
        if tokenizer.size == pieces and specials and tokenizer.kind != "flat-map":
            fitting.append(path)
        else:
            others.append(f"{path.name} has {tokenizer.size:,}")
    if len(fitting) == 1:
        return fitting[0]
    found = f"{seen.path.name} has text rows for {pieces:,} tokens, but "
    if fitting:
        found += f"several tokenizers have this number of tokens: {', '.join(path.name for path in fitting)}"
        raise FileError("base-several", found, where=folder)
    found += "no tokenizer in the folder has this number" + (f" ({', '.join(others)})" if others else "")
    raise FileError("base-file-missing", found, expected="the tokenizer that belongs to the checkpoint", where=folder)


def check_tensor_prefix(seen: CheckpointScan, tables: tuple[str, ...]) -> Finding | None:
    """What to say of a file whose names all follow a prefix, as a wrapper around the model saves them."""
    longest_first = sorted(tables, key=len, reverse=True)  # one table's name may be the end of another's
    for name in seen.shapes:
        for table in longest_first:
            if name.endswith(f".{table}"):
                prefix = name.removesuffix(table)
                found = f"{seen.path.name} has {name}, but every tensor name starts with {prefix[:40]!r}"
                return finding("checkpoint-prefixed", found, expected=table, where=seen.path)
    return None


def _count_text_rows(family: Family, seen: CheckpointScan) -> int:
    shape = seen.shapes.get(family.graft_points[0].tensor, ())
    return shape[0] if shape else 0


LORA_NAME_PARTS = (".lora_A.", ".lora_B.", "lora_down.", "lora_up.")


def refuse_unsupported_folder(folder: Path, failures: Mapping[Family, FileError]) -> None:
    """Raise what a folder that no family takes is instead; nothing where that is not known.

    `failures` is why each family did not take it: one whose model exists says best what is missing.
    """
    around = scan_folder(folder)
    for family, failure in failures.items():
        if any(family.matches_tensors(seen.shapes) for seen in around):
            raise failure
    for seen in around:
        if seen.refusal is not None and seen.refusal.code == "checkpoint-lfs":
            raise FileError.of(seen.refusal)
    marked = [
        seen.path.name for seen in around if any(mark in name for name in seen.shapes for mark in LORA_NAME_PARTS)
    ]
    named = [name for name in ("adapter_config.json",) if is_file(folder / name)]
    if marked or named:
        base = _short_text(_read_json_settings(folder / "adapter_config.json").get("base_model_name_or_path"))
        about = f"a LoRA adapter{f' for {base}' if base else ''}, without a model"
        raise FileError("base-adapter", f"{', '.join([*marked, *named])}: {about}", where=folder)
    for seen in around:
        if item := check_tensor_prefix(seen, tuple(family.graft_points[0].tensor for family in failures)):
            raise FileError.of(item)
    parts = {
        seen.path.name: what
        for seen in around
        for facts in FAMILIES.values()
        for what, starts in facts.speech_part_prefixes.items()
        if any(name.startswith(tuple(starts)) for name in seen.shapes)
    }
    files = {name: what for facts in FAMILIES.values() for name, what in facts.speech_part_files.items()}
    parts |= {name: what for name, what in files.items() if is_file(folder / name)}
    if parts:
        listed = ", ".join(f"{name} ({what})" for name, what in sorted(parts.items()))
        found = f"the folder has only speech encoders or vocoders: {listed}"
        raise FileError("base-speech-parts", found, where=folder)
    # Models of the large libraries name themselves.
    if pipeline := _short_text(_read_json_settings(folder / "model_index.json").get("_class_name")):
        found = f"model_index.json describes a diffusers pipeline, {pipeline}"
        raise FileError("base-other-model", found, where=folder)
    config = _read_json_settings(folder / "config.json")
    architectures = config.get("architectures")
    kind = _short_text(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if kind := kind or _short_text(config.get("model_type")):
        found = f"config.json describes a transformers model, {kind}"
        raise FileError("base-other-model", found, where=folder)
    known = dict.fromkeys(name for family in failures for name in family.tokenizer_names)
    names = [name for name in known if is_file(folder / name)]
    names += [path.name for path in list_files_with_suffix(folder, (".model",)) if path.name not in names]
    if names and not around:
        found = f"the folder has a tokenizer ({', '.join(names)}) but no checkpoint"
        expected = " or ".join(family.checkpoint_names[0] for family in failures)
        raise FileError("base-tokenizer-only", found, expected=expected, where=folder)


def _read_json_settings(path: Path) -> dict[Any, Any]:
    """A JSON file of settings by name; nothing where it does not exist or holds something else."""
    if not path_exists(path):
        return {}
    try:
        settings = read_json(path)
    except VoxgraftError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _short_text(value: object) -> str:
    return value[:80] if isinstance(value, str) else ""


STAND_IN_PARTS = ("transformer_encoder.", "mel_decoder.", "duration_predictor.")
STAND_IN_TABLE = "text_embedding.weight"


def has_stand_in_tensors(names: Iterable[str]) -> bool:
    """Whether these are a stand-in's tensors."""
    names = set(names)
    return STAND_IN_TABLE in names and all(any(name.startswith(part) for name in names) for part in STAND_IN_PARTS)


def stand_in_parts(names: Iterable[str]) -> str:
    """What such a file holds, for people."""
    return ", ".join(sorted({name.split(".")[0] for name in names}))
