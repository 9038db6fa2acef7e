"""A run for TensorBoard: event files in `tensorboard/` that say what the journal says, and nothing else.

They follow the journal while a run trains, and are made anew after it was cut. That they cannot be written is worth a
finding, never the end of a training.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from voxgraft.errors import VoxgraftError, finding
from voxgraft.event_file import encode_event, encode_first_event
from voxgraft.files import atomic_write
from voxgraft.history import SPEECH_LOSS, as_finite_float
from voxgraft.run import RunFolder

__all__ = ["TENSORBOARD_FOLDER", "TensorBoardWriter", "encode_journal"]

TENSORBOARD_FOLDER = "tensorboard"
_EVENT_FILE_PATTERN = re.compile(r"events\.out\.tfevents\.([0-9]{10})\.voxgraft")
LOSS_TAGS = {"text_loss": "loss/text", "speech_loss": "loss/speech"}
NON_SCALAR_KEYS = ("step", "wall_time", "num_clips", "best_step")


class TensorBoardWriter:
    """Follows a run's journal. `report` writes a finding into it if that fails; then nothing more is tried."""

    def __init__(self, run: RunFolder, report: Callable[..., None]) -> None:
        self._journal, self._folder, self._report = run.journal, run.path / TENSORBOARD_FOLDER, report
        self._events = EventEncoder()
        self._file: Path | None = None
        self._read = 0
        self._failed = False

    def observe(self, _kind: str, step: int, _values: Mapping[str, Any]) -> None:
        """The journal has a new line."""
        if self._failed:
            return
        try:
            self.follow()
        except (OSError, VoxgraftError) as error:
            self._failed = True
            found = (
                error.finding.found if isinstance(error, VoxgraftError) else f"{TENSORBOARD_FOLDER}: {error.strerror}"
            )
            self._report("finding", step, **finding("tensorboard", found, where=self._folder).to_json())

    def follow(self) -> None:
        """Add what the journal has beyond what was read of it."""
        new = b"".join(self._events.add(entry) for entry in self._new_lines())
        if self._file is None:
            self._file = self._begun(new)
        elif new:
            _append_bytes(self._file, new)

    def _begun(self, data: bytes) -> Path:
        """The file that the journal's events are in: the last one if it fits, else a new one."""
        old = {
            int(match[1]): path
            for path in _list_files(self._folder)
            if (match := _EVENT_FILE_PATTERN.fullmatch(path.name))
        }
        paths = [old[number] for number in sorted(old)]
        before, last = paths[:-1], paths[-1:]
        alone = bool(last) and not any(path.stat().st_size for path in before)
        if alone and data.startswith(known := last[0].read_bytes()):
            _append_bytes(last[0], data[len(known) :])
            return last[0]
        new = self._folder / f"events.out.tfevents.{max(old, default=0) + 1:010d}.voxgraft"
        with atomic_write(new) as stream:
            stream.write(data)
        # A TensorBoard that is running goes on from the file that it reads to one of a later name, which makes void
        # what came before; it would not, were the file gone.
        for path in last:
            os.truncate(path, 0)
        for path in before:
            path.unlink()
        return new

    def _new_lines(self) -> Iterator[Mapping[str, Any]]:
        with self._journal.open("rb") as stream:
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                if (entry := _parse_journal_line(line)) is not None:
                    yield entry


def encode_journal(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """A whole event file from the lines of a journal."""
    events = EventEncoder()
    return b"".join(map(events.add, entries))


class EventEncoder:
    """Lines of a journal as events. Retention needs to know what came before."""

    def __init__(self) -> None:
        self._begun = False
        self._language: str | None = None
        self._first: dict[str, float] = {}

    def add(self, entry: Mapping[str, Any]) -> bytes:
        """The records of one more line."""
        numbers = {"step": _step_scalars, "valid": self._validation_scalars}.get(entry["kind"], _no_scalars)(entry)
        texts = _text_summaries(entry)
        wall_time = as_finite_float(entry.get("wall_time")) or 0.0
        begin = b"" if self._begun else encode_first_event(wall_time)
        self._begun = True
        return begin + (encode_event(wall_time, entry["step"], numbers, texts) if numbers or texts else b"")

    def _validation_scalars(self, entry: Mapping[str, Any]) -> dict[str, float]:
        name = str(entry.get("set", ""))
        self._language = name if self._language is None else self._language
        found = {f"held_out_{name}/{key}": value for key, value in _finite_scalars(entry).items()}
        loss = as_finite_float(entry.get(SPEECH_LOSS))
        if entry["step"] == 0 and loss:
            self._first[name] = loss
        if name != self._language and loss and name in self._first:
            found[f"retention/{name}"] = loss / self._first[name] - 1
        return found


def _parse_journal_line(line: bytes) -> Mapping[str, Any] | None:
    """A line of the journal; one that is broken is the business of who reads the journal itself."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fits = isinstance(entry, dict) and isinstance(entry.get("kind"), str) and type(entry.get("step")) is int
    return entry if fits and entry["step"] >= 0 else None


def _step_scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for key, value in _finite_scalars(entry).items():
        group = "memory" if key.startswith("memory_") else "train"
        found[LOSS_TAGS.get(key, f"{group}/{key.removeprefix('memory_')}")] = value
    for key, parts in entry.items():
        if isinstance(parts, Mapping):
            found |= {f"{key}/{part}": value for part, value in _finite_scalars(parts).items()}
    return found


def _no_scalars(_entry: Mapping[str, Any]) -> dict[str, float]:
    return {}


def _finite_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    known = {key: as_finite_float(value) for key, value in values.items() if key not in NON_SCALAR_KEYS}
    return {key: value for key, value in known.items() if value is not None}


def _text_summaries(entry: Mapping[str, Any]) -> dict[str, str]:
    """What is said in words: findings, the state word, samples, changed settings, the end."""
    kind = entry["kind"]
    texts = {}
    if isinstance(entry.get("state"), str):
        texts["state"] = f"{entry['state']}: {entry.get('why') or ''}"
    if kind == "finding":
        texts["findings"] = f"{entry.get('level')} {entry.get('code')}: {entry.get('found')} {entry.get('cure')}"
    elif kind == "samples":
        spoken = [item for item in entry.get("spoken") or () if isinstance(item, Mapping)]
        said = [f"{item.get('name')}: {item.get('text')} ({item.get('seconds')} s)" for item in spoken]
        texts["samples"] = "  \n".join([str(entry.get("folder", "")), *said])
    elif kind in ("start", "changed", "stop-asked", "end", "interpolation"):
        words = [f"{key} {value}" for key, value in entry.items() if key not in ("kind", "step", "wall_time")]
        texts["run"] = f"{kind}: {', '.join(words)}"
    return texts


def _append_bytes(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as stream:
        while data:
            data = data[stream.write(data) :]


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
