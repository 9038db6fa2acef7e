"""`set.json`: what a set is, what it was made from, and which files belong to it. Strictly read, written last."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from voxgraft.corpus.clips import DatasetHeader, DatasetProvenance, DatasetRole
from voxgraft.corpus.shards import FLOAT_DTYPES, ShardFile, VoiceArraySpec
from voxgraft.errors import FileError, GraftError
from voxgraft.files import is_file, read_json, require_folder, write_json

__all__ = [
    "DATASET_INDEX_NAME",
    "DatasetIndex",
    "ShardEntry",
    "compute_index_checksum",
    "read_dataset_index",
    "require_matching_header",
    "write_dataset_index",
]

DATASET_INDEX_NAME = "set.json"
DATASET_FORMAT = "voxgraft-set-1"
MAX_SHOWN_DIFFERENCES = 8
"""Most lines of a difference that are shown."""
IDENTITY_KEYS = ("family", "language", "role", "code_hz", "made_from.base_sha256")
"""Where these differ, the set was never meant for the run; elsewhere it was, once."""
_SHA256 = re.compile("[0-9a-f]{64}")
CHECKSUM_KEY = "checksum"
"""Of everything else in the file; sets of earlier versions have none."""
_INDEX_KEYS = {"format", "family", "language", "role", "code_hz", "counts", "voice", "made_from", "shards"}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: its two files, and how many clips they hold."""

    arrays: ShardFile
    lines: ShardFile
    clips: int

    @staticmethod
    def names(number: int) -> tuple[str, str]:
        """File names of a shard, arrays and lines."""
        return f"shard-{number:05d}.safetensors", f"shard-{number:05d}.jsonl"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.arrays), "clips": self.clips, "lines": asdict(self.lines)}


@dataclass(frozen=True, slots=True)
class DatasetIndex:
    """All that set.json holds."""

    header: DatasetHeader
    counts: Mapping[str, float]
    voice: Mapping[str, VoiceArraySpec]
    shards: tuple[ShardEntry, ...]

    @property
    def fingerprint(self) -> str:
        """One hash for all bytes of the clips."""
        hashes = "".join(entry.arrays.sha256 + entry.lines.sha256 for entry in self.shards)
        return hashlib.sha256(hashes.encode()).hexdigest()


def write_dataset_index(folder: Path, file: DatasetIndex) -> None:
    """Written last: a folder without it is no set."""
    voice = {name: {"dtype": form.dtype, "shape": form.shape and list(form.shape)} for name, form in file.voice.items()}
    rest = {"counts": dict(file.counts), "voice": voice, "shards": [entry.to_json() for entry in file.shards]}
    document = {"format": DATASET_FORMAT, **asdict(file.header), **rest}
    write_json(folder / DATASET_INDEX_NAME, {**document, CHECKSUM_KEY: compute_index_checksum(document)})


def read_dataset_index(folder: Path) -> DatasetIndex:
    """What set.json says; an error for anything that `write_dataset_index` would not have written."""
    path = require_folder(folder) / DATASET_INDEX_NAME
    if not is_file(path):
        raise FileError("set-incomplete", f"{folder.name} has no {DATASET_INDEX_NAME}", where=folder)
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != DATASET_FORMAT:
        stated = document.get("format") if isinstance(document, dict) else document
        raise FileError("set-format", f"the format {stated!r:.80}", expected=DATASET_FORMAT, where=path)
    stated = document.pop(CHECKSUM_KEY, None)
    if set(document) != _INDEX_KEYS:
        raise _index_error(path, f"the keys {', '.join(map(str, sorted(document)))}", ", ".join(sorted(_INDEX_KEYS)))
    if stated is not None and stated != compute_index_checksum(document):
        found = f"{DATASET_INDEX_NAME} changed since it was written: its {CHECKSUM_KEY} is another"
        raise FileError("set-damaged", found, expected=f"{stated!s:.16}...", where=path)
    shards = _parse_shards(document["shards"], path)
    counts = document["counts"]
    total = sum(entry.clips for entry in shards)
    if not isinstance(counts, dict) or counts.get("clips") != total:
        raise _index_error(path, f"counts {counts!r:.120}", f"{total:,} clips, as the shards have")
    if not shards:
        raise GraftError("set-empty", f"{folder.name} holds no clip", where=path)
    return DatasetIndex(_parse_header(document, path), counts, _parse_voice_specs(document["voice"], path), shards)


def compute_index_checksum(document: Mapping[str, Any]) -> str:
    """Of the values, however they are laid out in the file."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def require_matching_header(folder: Path, header: DatasetHeader, expected: Mapping[str, Any]) -> None:
    """Raise with both columns unless the set is what the run expects; only what `expected` names is compared."""
    found, wanted = _flatten(asdict(header)), _flatten(expected)
    # Whole groups are compared as groups: a setting that only one side has is a difference too.
    groups = {key for key in ("made_from.front_end", "made_from.settings") if _has_nested_key(expected, key)}
    keys = dict.fromkeys(wanted) | dict.fromkeys(key for key in found if any(key.startswith(g + ".") for g in groups))
    rows = [
        (key, found.get(key, "-"), wanted.get(key, "-")) for key in keys if found.get(key, "-") != wanted.get(key, "-")
    ]
    if not rows:
        return
    width = max(len(key) for key, _, _ in rows[:MAX_SHOWN_DIFFERENCES])
    lines = [
        f"{key:<{width}}  {_shorten_value(one):<20}  {_shorten_value(other)}"
        for key, one, other in rows[:MAX_SHOWN_DIFFERENCES]
    ]
    lines += [f"and {len(rows) - MAX_SHOWN_DIFFERENCES} more"] if len(rows) > MAX_SHOWN_DIFFERENCES else []
    head = f"{'':<{width}}  {'the set':<20}  this run"
    code = "set-foreign" if any(key in IDENTITY_KEYS for key, _, _ in rows) else "set-stale"
    found_text = f"{folder.name} differs from this run:\n    " + "\n    ".join([head, *lines])
    raise GraftError(code, found_text, where=folder)


def _has_nested_key(expected: Mapping[str, Any], key: str) -> bool:
    outer, inner = key.split(".")
    return isinstance(expected.get(outer), Mapping) and inner in expected[outer]


def _flatten(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested values by dotted names, as the JSON text of each."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{before}{key}.")
        else:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
            flat[before + key] = json.dumps(number, ensure_ascii=False, default=str)
    return flat


def _shorten_value(text: str) -> str:
    text = text.strip('"')
    return f"{text[:16]}..." if _SHA256.fullmatch(text) else text if len(text) <= 40 else f"{text[:37]}..."


def _parse_header(document: dict[str, Any], path: Path) -> DatasetHeader:
    family, language, role, code_hz = (document[key] for key in ("family", "language", "role", "code_hz"))
    made = document["made_from"]
    plain = isinstance(family, str) and isinstance(language, str) and role in get_args(DatasetRole)
    if not plain or not isinstance(code_hz, int | float) or not 0 < code_hz < 1e6:
        found = f"family {family!r:.40}, language {language!r:.40}, role {role!r:.40}, code_hz {code_hz!r:.40}"
        raise _index_error(path, found, f"names, one of {', '.join(get_args(DatasetRole))}, and codes per second")
    names = set(DatasetProvenance.__slots__)
    if not isinstance(made, dict) or set(made) | {"text"} != names:  # sets from before do not state text rules
        raise _index_error(path, f"made_from {made!r:.120}", ", ".join(sorted(names)))
    hashes = all(isinstance(made[name], str) for name in ("tokenizer_sha256", "base_sha256", "text") if name in made)
    if not hashes or not all(isinstance(made[name], dict) for name in ("front_end", "settings")):
        raise _index_error(path, f"made_from {made!r:.120}", "two hashes, and what was set")
    return DatasetHeader(family, language, role, float(code_hz), DatasetProvenance(**made))


def _parse_voice_specs(value: Any, path: Path) -> dict[str, VoiceArraySpec]:
    forms: dict[str, VoiceArraySpec] = {}
    if not isinstance(value, dict):
        raise _index_error(path, f"voice {value!r:.80}", "arrays by name")
    for name, entry in value.items():
        dtype, shape = (entry.get("dtype"), entry.get("shape", 0)) if isinstance(entry, dict) else (None, 0)
        sizes = isinstance(shape, list) and all(type(size) is int and 0 < size < 1 << 20 for size in shape)
        if not ((sizes and dtype in FLOAT_DTYPES) or (shape is None and dtype == "I32")):
            raise _index_error(path, f"the voice array {name!r:.40} as {entry!r:.80}", "dtype and shape")
        forms[name] = VoiceArraySpec(str(dtype), tuple(shape) if isinstance(shape, list) else None)
    return forms


def _parse_shards(value: Any, path: Path) -> tuple[ShardEntry, ...]:
    if not isinstance(value, list):
        raise _index_error(path, f"shards {value!r:.80}", "a list")
    entries = []
    for number, entry in enumerate(value):
        arrays_name, lines_name = ShardEntry.names(number)
        plain = isinstance(entry, dict) and type(entry.get("clips")) is int and entry["clips"] > 0
        arrays = _parse_file_entry(entry, arrays_name) if plain else None
        lines = _parse_file_entry(entry.get("lines"), lines_name) if plain else None
        if arrays is None or lines is None:
            raise _index_error(
                path, f"shard {number}: {entry!r:.120}", f"{arrays_name} and {lines_name}, sizes and hashes"
            )
        entries.append(ShardEntry(arrays, lines, entry["clips"]))
    return tuple(entries)


def _parse_file_entry(entry: Any, name: str) -> ShardFile | None:
    """The names are ours alone, so that a set never leads out of its folder."""
    if not isinstance(entry, dict) or entry.get("file") != name or type(entry.get("bytes")) is not int:
        return None
    if not isinstance(entry.get("sha256"), str) or not _SHA256.fullmatch(entry["sha256"]):
        return None
    return ShardFile(name, entry["bytes"], entry["sha256"])


def _index_error(path: Path, found: str, expected: str) -> FileError:
    return FileError("set-format", found, expected=expected, where=path)
