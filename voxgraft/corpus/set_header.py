"""`set.json`: what a set is, what it was made from, and which files belong to it. Strictly read, written last."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from voxgraft.corpus.clips import MadeFrom, Role, SetHeader
from voxgraft.corpus.shards import FLOATS, VoiceForm, WrittenFile
from voxgraft.errors import FileError, GraftError
from voxgraft.files import existing_folder, is_file, read_json, write_json

__all__ = ["SET_FILE", "SetFile", "ShardEntry", "checksum_of", "read_set_file", "refuse_differences", "write_set_file"]

SET_FILE = "set.json"
FORMAT = "voxgraft-set-1"
MAX_ROWS = 8
"""Most lines of a difference that are shown."""
OTHER_WORLD = ("family", "language", "role", "code_hz", "made_from.base_sha256")
"""Where these differ, the set was never meant for the run; elsewhere it was, once."""
_HASH = re.compile("[0-9a-f]{64}")
CHECKSUM = "checksum"
"""Of everything else in the file; sets of earlier versions have none."""
_KEYS = {"format", "family", "language", "role", "code_hz", "counts", "voice", "made_from", "shards"}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: its two files, and how many clips they hold."""

    arrays: WrittenFile
    lines: WrittenFile
    clips: int

    @staticmethod
    def names(number: int) -> tuple[str, str]:
        """File names of a shard, arrays and lines."""
        return f"shard-{number:05d}.safetensors", f"shard-{number:05d}.jsonl"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.arrays), "clips": self.clips, "lines": asdict(self.lines)}


@dataclass(frozen=True, slots=True)
class SetFile:
    """All that set.json holds."""

    header: SetHeader
    counts: Mapping[str, float]
    voice: Mapping[str, VoiceForm]
    shards: tuple[ShardEntry, ...]

    @property
    def fingerprint(self) -> str:
        """One hash for all bytes of the clips."""
        hashes = "".join(entry.arrays.sha256 + entry.lines.sha256 for entry in self.shards)
        return hashlib.sha256(hashes.encode()).hexdigest()


def write_set_file(folder: Path, file: SetFile) -> None:
    """Written last: a folder without it is no set."""
    voice = {name: {"dtype": form.dtype, "shape": form.shape and list(form.shape)} for name, form in file.voice.items()}
    rest = {"counts": dict(file.counts), "voice": voice, "shards": [entry.to_json() for entry in file.shards]}
    document = {"format": FORMAT, **asdict(file.header), **rest}
    write_json(folder / SET_FILE, {**document, CHECKSUM: checksum_of(document)})


def read_set_file(folder: Path) -> SetFile:
    """What set.json says; an error for anything that `write_set_file` would not have written."""
    path = existing_folder(folder) / SET_FILE
    if not is_file(path):
        raise FileError("set-incomplete", f"{folder.name} has no {SET_FILE}", where=folder)
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        stated = document.get("format") if isinstance(document, dict) else document
        raise FileError("set-format", f"the format {stated!r:.80}", expected=FORMAT, where=path)
    stated = document.pop(CHECKSUM, None)
    if set(document) != _KEYS:
        raise _wrong(path, f"the keys {', '.join(map(str, sorted(document)))}", ", ".join(sorted(_KEYS)))
    if stated is not None and stated != checksum_of(document):
        found = f"{SET_FILE} changed since it was written: its {CHECKSUM} is another"
        raise FileError("set-damaged", found, expected=f"{stated!s:.16}...", where=path)
    shards = _shards(document["shards"], path)
    counts = document["counts"]
    total = sum(entry.clips for entry in shards)
    if not isinstance(counts, dict) or counts.get("clips") != total:
        raise _wrong(path, f"counts {counts!r:.120}", f"{total:,} clips, as the shards have")
    if not shards:
        raise GraftError("set-empty", f"{folder.name} holds no clip", where=path)
    return SetFile(_header(document, path), counts, _voice(document["voice"], path), shards)


def checksum_of(document: Mapping[str, Any]) -> str:
    """Of the values, however they are laid out in the file."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_differences(folder: Path, header: SetHeader, expected: Mapping[str, Any]) -> None:
    """Raise with both columns unless the set is what the run expects; only what `expected` names is compared."""
    found, wanted = _flat(asdict(header)), _flat(expected)
    # Whole groups are compared as groups: a setting that only one side has is a difference too.
    groups = {key for key in ("made_from.front_end", "made_from.settings") if _has(expected, key)}
    keys = dict.fromkeys(wanted) | dict.fromkeys(key for key in found if any(key.startswith(g + ".") for g in groups))
    rows = [
        (key, found.get(key, "-"), wanted.get(key, "-")) for key in keys if found.get(key, "-") != wanted.get(key, "-")
    ]
    if not rows:
        return
    width = max(len(key) for key, _, _ in rows[:MAX_ROWS])
    lines = [f"{key:<{width}}  {_short(one):<20}  {_short(other)}" for key, one, other in rows[:MAX_ROWS]]
    lines += [f"and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
    head = f"{'':<{width}}  {'the set':<20}  this run"
    code = "set-foreign" if any(key in OTHER_WORLD for key, _, _ in rows) else "set-stale"
    found_text = f"{folder.name} differs from this run:\n    " + "\n    ".join([head, *lines])
    raise GraftError(code, found_text, where=folder)


def _has(expected: Mapping[str, Any], key: str) -> bool:
    outer, inner = key.split(".")
    return isinstance(expected.get(outer), Mapping) and inner in expected[outer]


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested values by dotted names, as the JSON text of each."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}.")
        else:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
            flat[before + key] = json.dumps(number, ensure_ascii=False, default=str)
    return flat


def _short(text: str) -> str:
    text = text.strip('"')
    return f"{text[:16]}..." if _HASH.fullmatch(text) else text if len(text) <= 40 else f"{text[:37]}..."


def _header(document: dict[str, Any], path: Path) -> SetHeader:
    family, language, role, code_hz = (document[key] for key in ("family", "language", "role", "code_hz"))
    made = document["made_from"]
    plain = isinstance(family, str) and isinstance(language, str) and role in get_args(Role)
    if not plain or not isinstance(code_hz, int | float) or not 0 < code_hz < 1e6:
        found = f"family {family!r:.40}, language {language!r:.40}, role {role!r:.40}, code_hz {code_hz!r:.40}"
        raise _wrong(path, found, f"names, one of {', '.join(get_args(Role))}, and codes per second")
    names = set(MadeFrom.__slots__)
    if not isinstance(made, dict) or set(made) | {"text"} != names:  # sets from before do not state text rules
        raise _wrong(path, f"made_from {made!r:.120}", ", ".join(sorted(names)))
    hashes = all(isinstance(made[name], str) for name in ("tokenizer_sha256", "base_sha256", "text") if name in made)
    if not hashes or not all(isinstance(made[name], dict) for name in ("front_end", "settings")):
        raise _wrong(path, f"made_from {made!r:.120}", "two hashes, and what was set")
    return SetHeader(family, language, role, float(code_hz), MadeFrom(**made))


def _voice(value: Any, path: Path) -> dict[str, VoiceForm]:
    forms: dict[str, VoiceForm] = {}
    if not isinstance(value, dict):
        raise _wrong(path, f"voice {value!r:.80}", "arrays by name")
    for name, entry in value.items():
        dtype, shape = (entry.get("dtype"), entry.get("shape", 0)) if isinstance(entry, dict) else (None, 0)
        sizes = isinstance(shape, list) and all(type(size) is int and 0 < size < 1 << 20 for size in shape)
        if not ((sizes and dtype in FLOATS) or (shape is None and dtype == "I32")):
            raise _wrong(path, f"the voice array {name!r:.40} as {entry!r:.80}", "dtype and shape")
        forms[name] = VoiceForm(str(dtype), tuple(shape) if isinstance(shape, list) else None)
    return forms


def _shards(value: Any, path: Path) -> tuple[ShardEntry, ...]:
    if not isinstance(value, list):
        raise _wrong(path, f"shards {value!r:.80}", "a list")
    entries = []
    for number, entry in enumerate(value):
        arrays_name, lines_name = ShardEntry.names(number)
        plain = isinstance(entry, dict) and type(entry.get("clips")) is int and entry["clips"] > 0
        arrays = _file(entry, arrays_name) if plain else None
        lines = _file(entry.get("lines"), lines_name) if plain else None
        if arrays is None or lines is None:
            raise _wrong(path, f"shard {number}: {entry!r:.120}", f"{arrays_name} and {lines_name}, sizes and hashes")
        entries.append(ShardEntry(arrays, lines, entry["clips"]))
    return tuple(entries)


def _file(entry: Any, name: str) -> WrittenFile | None:
    """The names are ours alone, so that a set never leads out of its folder."""
    if not isinstance(entry, dict) or entry.get("file") != name or type(entry.get("bytes")) is not int:
        return None
    if not isinstance(entry.get("sha256"), str) or not _HASH.fullmatch(entry["sha256"]):
        return None
    return WrittenFile(name, entry["bytes"], entry["sha256"])


def _wrong(path: Path, found: str, expected: str) -> FileError:
    return FileError("set-format", found, expected=expected, where=path)
