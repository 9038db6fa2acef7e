"""Reading safetensors: the header, strictly checked, so that every tensor lies where it says and nowhere else.

Writing is in `write`.
"""

from __future__ import annotations

from typing import Any

from voxgraft.checkpoints.dtypes import RAW_DTYPES
from voxgraft.checkpoints.model import Checkpoint, TensorInfo, plain_shape, row_major
from voxgraft.checkpoints.source import ByteSource
from voxgraft.errors import CheckpointError, FileError
from voxgraft.files import parse_json

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 16 << 20
"""A header of 10,000 tensors has about 1 MB. More would only serve to fill memory."""


def read_safetensors(source: ByteSource) -> Checkpoint:
    """The checkpoint in a file that looks like safetensors; an error for anything that is not exactly right."""
    header, data_start = _header(source)
    metadata = _metadata(header.pop("__metadata__", None), source)
    tensors = {name: _tensor(name, entry, data_start, source) for name, entry in header.items()}
    _check_layout(tensors, data_start, source)
    return Checkpoint(source, "safetensors", tensors, metadata=metadata)


def _header(source: ByteSource) -> tuple[dict[str, Any], int]:
    if source.size < PREFIX_BYTES + 2:
        raise _error("checkpoint-truncated", f"{source.size} bytes, less than any header", source)
    length = int.from_bytes(source.read(0, PREFIX_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        found = f"a header of {length:,} bytes"
        raise _error("safetensors-header", found, source, expected=f"at most {MAX_HEADER_BYTES:,}")
    if PREFIX_BYTES + length > source.size:
        found = f"a header of {length:,} bytes in a file of {source.size:,}"
        raise _error("checkpoint-truncated", found, source)
    text = source.read(PREFIX_BYTES, length)
    if not text.startswith(b"{"):
        raise _error("safetensors-header", f"the header starts with {text[:8]!r}", source, expected="{")
    return _parsed(text, source), PREFIX_BYTES + length


def _parsed(text: bytes, source: ByteSource) -> dict[str, Any]:
    try:
        header = parse_json(text.decode("utf-8"), source.path)
    except UnicodeDecodeError as error:
        raise _error("safetensors-header", f"byte {error.start} of the header is not UTF-8", source) from None
    except FileError as error:
        code = "safetensors-duplicate" if error.code == "json-duplicate-key" else "safetensors-header"
        raise _error(code, f"the header: {error.finding.found}", source) from None
    assert isinstance(header, dict)  # JSON that starts with a brace
    return header


def _metadata(value: object, source: ByteSource) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _error("safetensors-metadata", f"__metadata__ is {_shown(value)}", source, expected="texts by name")
    return value


def _tensor(name: str, entry: object, data_start: int, source: ByteSource) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        keys = f"has {', '.join(entry) or 'nothing'}" if isinstance(entry, dict) else f"is {_shown(entry)}"
        expected = "dtype, shape and data_offsets"
        raise _error("safetensors-entry", f"the entry of {_shown(name)} {keys}", source, expected=expected)
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in RAW_DTYPES:
        found = f"{_shown(name)} has dtype {_shown(dtype)}"
        raise _error("tensor-dtype", found, source, expected=f"one of {', '.join(RAW_DTYPES)}")
    shape = plain_shape(entry["shape"])
    if shape is None:
        raise _error("tensor-shape", f"{_shown(name)} has shape {_shown(entry['shape'])}", source)
    begin, end = _offsets(name, entry["data_offsets"], source)
    info = TensorInfo(name, dtype, shape, data_start + begin, row_major(shape))
    if end - begin != info.num_bytes:
        found = f"{_shown(name)} is given {end - begin:,} bytes"
        expected = f"{info.num_bytes:,} for {dtype} {list(shape)}"
        raise _error("safetensors-offsets", found, source, expected=expected)
    return info


def _offsets(name: str, value: object, source: ByteSource) -> tuple[int, int]:
    plain = isinstance(value, list) and len(value) == 2 and all(type(at) is int for at in value)
    if plain and isinstance(value, list) and 0 <= value[0] <= value[1]:
        return value[0], value[1]
    raise _error("safetensors-offsets", f"{_shown(name)} has offsets {_shown(value)}", source, expected="[begin, end]")


def _check_layout(tensors: dict[str, TensorInfo], data_start: int, source: ByteSource) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    end = data_start
    for info in sorted(tensors.values(), key=lambda info: (info.start, info.num_bytes)):
        if info.start != end:
            fault = "overlaps the tensor before it" if info.start < end else "leaves a hole before it"
            found = f"{_shown(info.name)} starts at {info.start - data_start:,} and {fault}"
            raise _error("safetensors-offsets", found, source, expected=f"{end - data_start:,}")
        end += info.num_bytes
    if end > source.size:
        found = f"the file has {source.size:,} bytes, its tensors need {end:,}"
        raise _error("checkpoint-truncated", found, source)
    if end < source.size:
        found = f"{source.size - end:,} bytes follow the last tensor"
        raise _error("safetensors-offsets", found, source, expected="none")


def _error(code: str, found: str, source: ByteSource, expected: str = "") -> CheckpointError:
    return CheckpointError(code, found, expected=expected, where=source.path)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
