"""Folders that are no base of any family: what they are instead, by name, and why that does not do.

Told by the files that stand in them and by the names of their tensors. What a family itself is mistaken for is in
its own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxgraft.errors import FileError, VoxgraftError
from voxgraft.families.base import Family
from voxgraft.families.looking import CheckpointScan, check_tensor_prefix, list_files_with_suffix, scan_folder
from voxgraft.files import is_file, path_exists, read_json

SPEECH_MODEL_PREFIXES = {
    "Chatterbox's waveform model S3Gen": ("flow.", "mel2wav.", "tokenizer.encoder."),
    "Chatterbox's voice encoder": ("lstm.weight_ih_l0", "similarity_weight"),
    "IndexTTS-2's semantic codec": ("quantizer.quantizers.0.codebook.", "encoder.0.convnext."),
}
"""The speech ends of a base, by the beginnings of names that each of them has; any one is enough."""
SPEECH_MODEL_FILES = {
    "s2mel.pth": "IndexTTS-2's waveform model",
    "wav2vec2bert_stats.pt": "IndexTTS-2's feature statistics",
}
LORA_NAME_PARTS = (".lora_A.", ".lora_B.", "lora_down.", "lora_up.")


def refuse_unsupported_folder(folder: Path, failures: Mapping[Family, FileError]) -> None:
    """Raise what a folder that no family takes is instead; nothing where that cannot be told.

    `failures` is why each family did not take it: one whose model is there all the same says best what is missing.
    """
    around = scan_folder(folder)
    for family, failure in failures.items():
        if any(family.matches_tensors(seen.shapes) for seen in around):
            raise failure
    for seen in around:
        if seen.refusal is not None and seen.refusal.code == "checkpoint-lfs":
            raise FileError.of(seen.refusal)
    _refuse_adapter(folder, around)
    for seen in around:
        if item := check_tensor_prefix(seen, tuple(family.graft_points[0].tensor for family in failures)):
            raise FileError.of(item)
    _refuse_speech_parts(folder, around)
    _refuse_other_library_model(folder)
    _refuse_tokenizer_only(folder, list(failures), around)


def _refuse_adapter(folder: Path, around: list[CheckpointScan]) -> None:
    marked = [seen.path.name for seen in around if _count_lora_tensors(seen)]
    named = [name for name in ("adapter_config.json",) if is_file(folder / name)]
    if marked or named:
        base = _short_text(_read_json_settings(folder / "adapter_config.json").get("base_model_name_or_path"))
        found = (
            f"{', '.join([*marked, *named])}: a LoRA adapter{f' for {base}' if base else ''}, and no model beside it"
        )
        raise FileError("base-adapter", found, where=folder)


def _refuse_speech_parts(folder: Path, around: list[CheckpointScan]) -> None:
    parts = {
        seen.path.name: what
        for seen in around
        for what, starts in SPEECH_MODEL_PREFIXES.items()
        if any(name.startswith(starts) for name in seen.shapes)
    }
    parts |= {name: what for name, what in SPEECH_MODEL_FILES.items() if is_file(folder / name)}
    if parts:
        listed = ", ".join(f"{name} ({what})" for name, what in sorted(parts.items()))
        found = f"the folder has only parts that hear or voice speech: {listed}"
        raise FileError("base-speech-parts", found, where=folder)


def _refuse_other_library_model(folder: Path) -> None:
    pipeline = _short_text(_read_json_settings(folder / "model_index.json").get("_class_name"))
    if pipeline:
        raise _other_model_error(folder, f"model_index.json says that this is a diffusers pipeline, {pipeline}")
    config = _read_json_settings(folder / "config.json")
    architectures = config.get("architectures")
    kind = _short_text(architectures[0]) if isinstance(architectures, list) and architectures else ""
    kind = kind or _short_text(config.get("model_type"))
    if kind:
        raise _other_model_error(folder, f"config.json says that this is a transformers model, {kind}")


def _refuse_tokenizer_only(folder: Path, families: list[Family], around: list[CheckpointScan]) -> None:
    known = dict.fromkeys(name for family in families for name in family.tokenizer_names)
    names = [name for name in known if is_file(folder / name)]
    names += [path.name for path in list_files_with_suffix(folder, (".model",)) if path.name not in names]
    if names and not around:
        found = f"the folder has a tokenizer ({', '.join(names)}) and no checkpoint"
        expected = " or ".join(family.checkpoint_names[0] for family in families)
        raise FileError("base-tokenizer-only", found, expected=expected, where=folder)


def _count_lora_tensors(seen: CheckpointScan) -> int:
    return sum(any(mark in name for mark in LORA_NAME_PARTS) for name in seen.shapes)


def _other_model_error(folder: Path, found: str) -> FileError:
    return FileError("base-other-model", found, where=folder)


def _read_json_settings(path: Path) -> dict[Any, Any]:
    """A JSON file of settings by name; nothing where it is not there or holds something else."""
    if not path_exists(path):
        return {}
    try:
        settings = read_json(path)
    except VoxgraftError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _short_text(value: object) -> str:
    return value[:80] if isinstance(value, str) else ""
