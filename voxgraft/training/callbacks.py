"""Callbacks: the one way to take part in training from outside; and the one that writes TensorBoard's event files.

The event files in `tensorboard/` say what the journal says, and nothing else. They follow the journal while a run
trains, and are written again after it was cut. Failing to write them is a finding, never the end of a training.
"""

# ruff: noqa: ARG002 (hooks of the base class do nothing)

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxgraft.core.errors import VoxgraftError, finding
from voxgraft.core.files import atomic_write
from voxgraft.core.run import SPEECH_LOSS, RunFolder, as_finite_float

if TYPE_CHECKING:  # callbacks that only write files, such as TensorBoard's, need no torch
    from voxgraft.training.validation import ValidationMetrics

TENSORBOARD_FOLDER = "tensorboard"
_EVENT_FILE_PATTERN = re.compile(r"events\.out\.tfevents\.([0-9]{10})\.voxgraft")
LOSS_TAGS = {"text_loss": "loss/text", "speech_loss": "loss/speech"}
NON_SCALAR_KEYS = ("step", "wall_time", "num_clips", "best_step")


class Callback:
    """Base of all callbacks. Override the hooks that are needed; the others do nothing.

    A `Trainer` calls the callbacks in the order of its list. With several processes, each has callbacks of its own:
    hooks of validation run in all of them, the others only in the process that writes.
    """

    def on_log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """The journal has a new line."""

    def on_validation(self, step: int, metrics: dict[str, ValidationMetrics]) -> Mapping[str, Any]:
        """Before a validation is written: values to add to the line of the new language."""
        return {}

    def stop_reason(self, step: int, metrics: dict[str, ValidationMetrics]) -> str | None:
        """After a validation is written: why training has to stop, or None."""
        return None

    def on_sample(self, step: int) -> Mapping[str, Any] | None:
        """Samples are due: speak, and return the values of a line of samples."""
        return None

    def compare_steps(self, best: int, last: int) -> Mapping[str, Any] | None:
        """At the end, where the loss prefers the saved step `best`: `better` says whether `last` speaks better."""
        return None


class LogCallback(Callback):
    """Passes every line of the journal to a function."""

    def __init__(self, report: Callable[[str, int, dict[str, Any]], None]) -> None:
        self._report = report

    def on_log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        self._report(kind, step, values)


class TensorBoardWriter(Callback):
    """Follows a run's journal. `report` writes a finding into it if that fails; then nothing more is tried."""

    def __init__(self, run: RunFolder, report: Callable[..., None]) -> None:
        self._journal, self._folder, self._report = run.journal, run.path / TENSORBOARD_FOLDER, report
        self._events = EventEncoder()
        self._file: Path | None = None
        self._num_read = 0
        self._failed = False

    def on_log(self, _kind: str, step: int, _values: dict[str, Any]) -> None:
        if self._failed:
            return
        try:
            self.follow()
        except (OSError, VoxgraftError) as error:
            self._failed = True
            if isinstance(error, VoxgraftError):
                found = error.finding.found
            else:
                found = f"{TENSORBOARD_FOLDER}: {error.strerror}"
            self._report("finding", step, **finding("tensorboard", found, where=self._folder).to_json())

    def follow(self) -> None:
        """Add what the journal has beyond what was read of it."""
        new = b"".join(self._events.add(entry) for entry in self._new_lines())
        if self._file is not None:
            if new:
                _append_bytes(self._file, new)
            return
        # The file that the journal's events are in: the last one if it fits, else a new one.
        files = [path for path in self._folder.iterdir() if path.is_file()] if self._folder.is_dir() else []
        old = {int(match[1]): path for path in files if (match := _EVENT_FILE_PATTERN.fullmatch(path.name))}
        paths = [old[number] for number in sorted(old)]
        before, last = paths[:-1], paths[-1:]
        alone = bool(last) and not any(path.stat().st_size for path in before)
        if alone and new.startswith(known := last[0].read_bytes()):
            _append_bytes(last[0], new[len(known) :])
            self._file = last[0]
            return
        path = self._folder / f"events.out.tfevents.{max(old, default=0) + 1:010d}.voxgraft"
        with atomic_write(path) as stream:
            stream.write(new)
        # A TensorBoard that is running continues from the file that it reads to one of a later name, whose first event
        # makes earlier ones void. It would not if the file it reads were removed, so that one is only emptied.
        for old_path in last:
            os.truncate(old_path, 0)
        for old_path in before:
            old_path.unlink()
        self._file = path

    def _new_lines(self) -> Iterator[Mapping[str, Any]]:
        """Complete, well-formed lines of the journal; reporting a broken line is left to the journal's own reader."""
        with self._journal.open("rb") as stream:
            stream.seek(self._num_read)
            for line in stream:
                if not line.endswith(b"\n"):  # still being written
                    return
                self._num_read += len(line)
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                fits = isinstance(entry, dict) and isinstance(entry.get("kind"), str)
                if fits and type(entry.get("step")) is int and entry["step"] >= 0:
                    yield entry


class EventEncoder:
    """Lines of a journal as events. Keeps the first losses, which retention is relative to."""

    def __init__(self) -> None:
        self._has_begun = False
        self._language: str | None = None
        self._first: dict[str, float] = {}

    def add(self, entry: Mapping[str, Any]) -> bytes:
        """The records of one more line."""
        numbers: dict[str, float] = {}
        if entry["kind"] == "step":
            for key, value in _finite_scalars(entry).items():
                group = "memory" if key.startswith("memory_") else "train"
                numbers[LOSS_TAGS.get(key, f"{group}/{key.removeprefix('memory_')}")] = value
            for key, parts in entry.items():
                if isinstance(parts, Mapping):
                    numbers |= {f"{key}/{part}": value for part, value in _finite_scalars(parts).items()}
        elif entry["kind"] == "valid":
            name = str(entry.get("set", ""))
            # The first validation in a journal is that of the new language, which has no retention.
            self._language = name if self._language is None else self._language
            numbers = {f"held_out_{name}/{key}": value for key, value in _finite_scalars(entry).items()}
            loss = as_finite_float(entry.get(SPEECH_LOSS))
            if entry["step"] == 0 and loss:
                self._first[name] = loss
            if name != self._language and loss and name in self._first:
                numbers[f"retention/{name}"] = loss / self._first[name] - 1
        texts = _text_summaries(entry)
        wall_time = as_finite_float(entry.get("wall_time")) or 0.0
        begin = b"" if self._has_begun else encode_first_event(wall_time)
        self._has_begun = True
        return begin + (encode_event(wall_time, entry["step"], numbers, texts) if numbers or texts else b"")


def _finite_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    known = {key: as_finite_float(value) for key, value in values.items() if key not in NON_SCALAR_KEYS}
    return {key: value for key, value in known.items() if value is not None}


def _text_summaries(entry: Mapping[str, Any]) -> dict[str, str]:
    """Texts of a line: findings, the learning state, samples, changed settings, the end."""
    kind = entry["kind"]
    texts = {}
    if isinstance(entry.get("state"), str):
        texts["state"] = f"{entry['state']}: {entry.get('why') or ''}"
    if kind == "finding":
        texts["findings"] = f"{entry.get('level')} {entry.get('code')}: {entry.get('found')} {entry.get('cure')}"
    elif kind == "samples":
        spoken = [item for item in entry.get("spoken") or () if isinstance(item, Mapping)]
        sample_lines = [f"{item.get('name')}: {item.get('text')} ({item.get('seconds')} s)" for item in spoken]
        texts["samples"] = "  \n".join([str(entry.get("folder", "")), *sample_lines])
    elif kind in ("start", "changed", "stop-asked", "end", "interpolation"):
        details = [f"{key} {value}" for key, value in entry.items() if key not in ("kind", "step", "wall_time")]
        texts["run"] = f"{kind}: {', '.join(details)}"
    return texts


def _append_bytes(path: Path, data: bytes) -> None:
    # Unbuffered, so that a reader never sees half a record longer than one write takes.
    with path.open("ab", buffering=0) as stream:
        while data:
            data = data[stream.write(data) :]


# The file format: records of TFRecord, each a protocol buffer of tensorflow/core/util/event.proto. The numbers below
# are the field numbers of Event (wall_time 1, step 2, file_version 3, summary 5, session_log 7), of Summary.Value
# (tag 1, simple_value 2, tensor 8, metadata 9) and of TensorProto (dtype 1, tensor_shape 2, string_val 8).
EVENT_FILE_VERSION = b"brain.Event:2"
DT_STRING = 7  # the type of a tensor of texts
SESSION_START = 1  # the state of a session that has begun
WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 0, 1, 2, 5
CRC32C_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
CRC_MASK_DELTA = 0xA282EAD8  # added to a rotated checksum by the TFRecord format


def encode_first_event(wall_time: float) -> bytes:
    """What every file begins with: its version, and a session start, which makes other files void from step 0 on."""
    time, session = _encode_field(1, wall_time), _encode_field(7, _encode_field(1, SESSION_START))
    return _encode_record(time + _encode_field(3, EVENT_FILE_VERSION)) + _encode_record(time + session)


def encode_event(wall_time: float, step: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> bytes:
    """One record of everything that belongs to a step. Numbers that are too large for 32 bits become infinite."""
    values = []
    for tag, number in numbers.items():
        try:
            packed = struct.pack("<f", number)
        except OverflowError:
            packed = struct.pack("<f", math.copysign(math.inf, number))
        simple_value = _encode_varint(2 << 3 | WIRE_FIXED32) + packed
        values.append(_encode_field(1, _encode_field(1, tag.encode()) + simple_value))
    for tag, text in texts.items():
        # A tensor of one text, with the name of the plugin that shows it.
        plugin = _encode_field(1, _encode_field(1, b"text"))
        shape = _encode_field(2, _encode_field(1, 1))
        content = _encode_field(8, text.encode("utf-8", "replace"))
        tensor = _encode_field(1, DT_STRING) + _encode_field(2, shape) + content
        values.append(
            _encode_field(1, _encode_field(1, tag.encode()) + _encode_field(9, plugin) + _encode_field(8, tensor))
        )
    return _encode_record(_encode_field(1, wall_time) + _encode_field(2, step) + _encode_field(5, b"".join(values)))


def _encode_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc32c(length)) + data + struct.pack("<I", _masked_crc32c(data))


def _encode_field(number: int, value: float | bytes) -> bytes:
    """A field of a protocol buffer: a varint for an int, a double for a float, else bytes with their length."""
    if isinstance(value, bytes):
        return _encode_varint(number << 3 | WIRE_BYTES) + _encode_varint(len(value)) + value
    if isinstance(value, int):
        return _encode_varint(number << 3 | WIRE_VARINT) + _encode_varint(value)
    return _encode_varint(number << 3 | WIRE_FIXED64) + struct.pack("<d", value)


def _encode_varint(value: int) -> bytes:
    """A whole number, seven bits to a byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + CRC_MASK_DELTA) & 0xFFFFFFFF


_CRC_TABLE = list(range(256))
for _ in range(8):
    _CRC_TABLE = [entry >> 1 ^ (CRC32C_POLYNOMIAL if entry & 1 else 0) for entry in _CRC_TABLE]
