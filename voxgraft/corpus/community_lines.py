"""The lines of the community's IndexTTS-2 manifests, and where the files that they name really are.

Reads manifests only; what is in the `.npy` files is `community`'s business.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import is_file, parse_json, read_lines

__all__ = ["PromptTargetPair", "read_pair_manifest", "read_sibling_durations", "split_manifest_language"]

PAIR_KEYS = ("prompt_condition_path", "target_codes_path")
"""By these the trainers know a line of pairs from a line of single utterances."""
SINGLE_UTTERANCE_KEY = "codes_path"
LANGUAGE_KEYS = ("target_language", "language", "prompt_language")
SINGLE_UTTERANCE_MANIFESTS = ("train_manifest.jsonl", "val_manifest.jsonl")
_LANGUAGE_CODE = re.compile("[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class PromptTargetPair:
    """One line: the text and codes of a target, the voice of a prompt. Paths lead to where the files are."""

    line: int
    id: str
    speaker: str
    language: str | None
    target: str
    prompt: str
    text: str
    codes: Path
    text_ids: Path | None
    condition: Path
    prompt_emotion: Path | None
    target_emotion: Path | None
    num_codes: int | None
    """The number of codes that the line states."""
    target_seconds: float | None
    prompt_seconds: float | None


def split_manifest_language(spec: str) -> tuple[Path, str | None]:
    """A manifest with its language behind `::`, `@` or `=`, as the trainers' command lines have it."""
    if not os.path.exists(spec):
        for mark in ("::", "@", "="):
            path, _, language = spec.rpartition(mark)
            if path and _LANGUAGE_CODE.fullmatch(language):
                return Path(path), language.lower()
    return Path(spec), None


def read_pair_manifest(manifest: Path) -> list[PromptTargetPair]:
    """Every line of a manifest of pairs; an error that names the line for anything else."""
    files = _FileLocator(manifest.parent)
    pairs = [
        _parse_pair(parse_json(text, f"{manifest}, line {line}"), line, manifest, files)
        for line, text in read_lines(manifest)
    ]
    if not pairs:
        raise FileError("pairs-empty", f"{manifest.name} has no line", where=manifest)
    lines: dict[str, int] = {}
    for pair in pairs:
        if pair.id in lines:
            found = f"lines {lines[pair.id]} and {pair.line} both have the id {pair.id!r}"
            raise FileError("pairs-duplicate", found, where=f"{manifest}, line {pair.line}")
        lines[pair.id] = pair.line
    return pairs


def read_sibling_durations(manifest: Path) -> dict[str, float]:
    """Seconds by utterance, from the manifests of single utterances that the same program wrote into the folder.

    A help where they are there and whole; pairs themselves do not state how long their targets are.
    """
    seconds: dict[str, float] = {}
    for path in (manifest.parent / name for name in SINGLE_UTTERANCE_MANIFESTS):
        if not is_file(path):
            continue
        try:
            for line, text in read_lines(path):
                entry = parse_json(text, f"{path}, line {line}")
                found = _positive_or_none(entry.get("duration")) if isinstance(entry, dict) else None
                if found is not None and isinstance(entry.get("id"), str):
                    seconds[entry["id"]] = found
        except VoxgraftError:
            continue  # not needed, and nobody asked for this file
    return seconds


class _FileLocator:
    """Finds the files that lines name: as stated, or in the usual folder beside a manifest that was moved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[tuple[str, str], Path] = {}

    def find(self, stated: str, usual: str) -> Path:
        """The first place where it is; the stated one if it is nowhere."""
        key = (stated, usual)
        if key not in self._found:
            plain = stated.replace("\\", "/")  # written on Windows
            places = [self._folder / stated, self._folder / plain, self._folder / usual / plain.rsplit("/", 1)[-1]]
            self._found[key] = next((place for place in places if os.path.isfile(place)), places[0])
        return self._found[key]


def _parse_pair(entry: Any, line: int, manifest: Path, files: _FileLocator) -> PromptTargetPair:
    where = f"{manifest}, line {line}"
    _require_pair_entry(entry, manifest, where)
    condition, codes = (str(entry[key]) for key in PAIR_KEYS)
    text = entry.get("target_text")
    if text is not None and not isinstance(text, str):
        raise FileError("pairs-line", f"target_text is {text!r:.60}", expected="a text", where=where)
    target = _utterance_name(entry, "target_id", codes)
    prompt = _utterance_name(entry, "prompt_id", condition)
    return PromptTargetPair(
        line=line,
        id=str(entry.get("id") or f"{target}__{prompt}"),
        speaker=str(entry.get("speaker") or ""),
        language=next((str(entry[key]).lower() for key in LANGUAGE_KEYS if entry.get(key)), None),
        target=target,
        prompt=prompt,
        text=text or "",
        codes=files.find(codes, "codes"),
        text_ids=_find_optional_file(entry, "target_text_ids_path", "text_ids", files),
        condition=files.find(condition, "condition"),
        prompt_emotion=_find_optional_file(entry, "prompt_emo_vec_path", "emo_vec", files),
        target_emotion=_find_optional_file(entry, "target_emo_vec_path", "emo_vec", files),
        num_codes=entry["target_code_len"] if type(entry.get("target_code_len")) is int else None,
        target_seconds=_positive_or_none(entry.get("target_duration")),
        prompt_seconds=_positive_or_none(entry.get("prompt_duration")),
    )


def _require_pair_entry(entry: Any, manifest: Path, where: str) -> None:
    expected = " and ".join(PAIR_KEYS)
    if not isinstance(entry, dict):
        raise FileError("pairs-line", f"the line holds {entry!r:.60}", expected=expected, where=where)
    if isinstance(entry.get(SINGLE_UTTERANCE_KEY), str) and not any(key in entry for key in PAIR_KEYS):
        beside = manifest.parent / manifest.name.replace("manifest", "pairs")
        cure = f"give {beside.name} instead; it stands beside it." if beside != manifest and is_file(beside) else ""
        raise FileError(
            "pairs-single", "the line is one utterance without a prompt", expected=expected, where=where, cure=cure
        )
    wrong = [key for key in PAIR_KEYS if not _is_path_string(entry.get(key))]
    if wrong:
        found = f"{wrong[0]} is {entry.get(wrong[0])!r:.60}"
        raise FileError("pairs-line", found, expected=expected, where=where)


def _find_optional_file(entry: Mapping[str, Any], key: str, usual: str, files: _FileLocator) -> Path | None:
    return files.find(str(entry[key]), usual) if _is_path_string(entry.get(key)) else None


def _is_path_string(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value and len(value) < 4096


def _utterance_name(entry: Mapping[str, Any], key: str, path: str) -> str:
    """The utterance's name; where it is not stated, its files are named after it."""
    stated = entry.get(key)
    return (
        stated
        if isinstance(stated, str) and stated
        else path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".npy")
    )


def _positive_or_none(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e7 and math.isfinite(value) else None
