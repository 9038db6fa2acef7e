"""Reading safetensors: the header, strictly checked, so that every tensor lies where it says and nowhere else.

Writing is in `write`.
"""

from __future__ import annotations

from typing import Any

from voxgraft.checkpoints.dtypes import RAW_DTYPES
from voxgraft.checkpoints.model import Checkpoint, TensorInfo, parse_shape, row_major_strides
from voxgraft.checkpoints.source import ByteSource
from voxgraft.errors import CheckpointError, FileError
from voxgraft.files import parse_json

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 16 << 20
"""A header of 10,000 tensors has about 1 MB. More would only serve to fill memory."""


def read_safetensors(source: ByteSource) -> Checkpoint:
    """The checkpoint in a file that looks like safetensors; an error for anything that is not exactly right."""
    header, data_start = _read_header(source)
    metadata = _parse_metadata(header.pop("__metadata__", None), source)
    tensors = {name: _parse_tensor_entry(name, entry, data_start, source) for name, entry in header.items()}
    _check_layout(tensors, data_start, source)
    return Checkpoint(source, "safetensors", tensors, metadata=metadata)


def _read_header(source: ByteSource) -> tuple[dict[str, Any], int]:
    if source.size < PREFIX_BYTES + 2:
        raise _safetensors_error("checkpoint-truncated", f"{source.size} bytes, less than any header", source)
    length = int.from_bytes(source.read(0, PREFIX_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        found = f"a header of {length:,} bytes"
        raise _safetensors_error("safetensors-header", found, source, expected=f"at most {MAX_HEADER_BYTES:,}")
    if PREFIX_BYTES + length > source.size:
        found = f"a header of {length:,} bytes in a file of {source.size:,}"
        raise _safetensors_error("checkpoint-truncated", found, source)
    text = source.read(PREFIX_BYTES, length)
    if not text.startswith(b"{"):
        raise _safetensors_error("safetensors-header", f"the header starts with {text[:8]!r}", source, expected="{")
    return _parse_header(text, source), PREFIX_BYTES + length


def _parse_header(text: bytes, source: ByteSource) -> dict[str, Any]:
    try:
        header = parse_json(text.decode("utf-8"), source.path)
    except UnicodeDecodeError as error:
        raise _safetensors_error(
            "safetensors-header", f"byte {error.start} of the header is not UTF-8", source
        ) from None
    except FileError as error:
        code = "safetensors-duplicate" if error.code == "json-duplicate-key" else "safetensors-header"
        raise _safetensors_error(code, f"the header: {error.finding.found}", source) from None
    assert isinstance(header, dict)  # JSON that starts with a brace
    return header


def _parse_metadata(value: object, source: ByteSource) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _safetensors_error(
            "safetensors-metadata", f"__metadata__ is {_short_repr(value)}", source, expected="texts by name"
        )
    return value


def _parse_tensor_entry(name: str, entry: object, data_start: int, source: ByteSource) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        keys = f"has {', '.join(entry) or 'nothing'}" if isinstance(entry, dict) else f"is {_short_repr(entry)}"
        expected = "dtype, shape and data_offsets"
        raise _safetensors_error(
            "safetensors-entry", f"the entry of {_short_repr(name)} {keys}", source, expected=expected
        )
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in RAW_DTYPES:
        found = f"{_short_repr(name)} has dtype {_short_repr(dtype)}"
        raise _safetensors_error("tensor-dtype", found, source, expected=f"one of {', '.join(RAW_DTYPES)}")
    shape = parse_shape(entry["shape"])
    if shape is None:
        raise _safetensors_error("tensor-shape", f"{_short_repr(name)} has shape {_short_repr(entry['shape'])}", source)
    begin, end = _parse_offsets(name, entry["data_offsets"], source)
    info = TensorInfo(name, dtype, shape, data_start + begin, row_major_strides(shape))
    if end - begin != info.num_bytes:
        found = f"{_short_repr(name)} is given {end - begin:,} bytes"
        expected = f"{info.num_bytes:,} for {dtype} {list(shape)}"
        raise _safetensors_error("safetensors-offsets", found, source, expected=expected)
    return info


def _parse_offsets(name: str, value: object, source: ByteSource) -> tuple[int, int]:
    plain = isinstance(value, list) and len(value) == 2 and all(type(at) is int for at in value)
    if plain and isinstance(value, list) and 0 <= value[0] <= value[1]:
        return value[0], value[1]
    raise _safetensors_error(
        "safetensors-offsets", f"{_short_repr(name)} has offsets {_short_repr(value)}", source, expected="[begin, end]"
    )


def _check_layout(tensors: dict[str, TensorInfo], data_start: int, source: ByteSource) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    end = data_start
    for info in sorted(tensors.values(), key=lambda info: (info.start, info.num_bytes)):
        if info.start != end:
            fault = "overlaps the tensor before it" if info.start < end else "leaves a hole before it"
            found = f"{_short_repr(info.name)} starts at {info.start - data_start:,} and {fault}"
            raise _safetensors_error("safetensors-offsets", found, source, expected=f"{end - data_start:,}")
        end += info.num_bytes
    if end > source.size:
        found = f"the file has {source.size:,} bytes, its tensors need {end:,}"
        raise _safetensors_error("checkpoint-truncated", found, source)
    if end < source.size:
        found = f"{source.size - end:,} bytes follow the last tensor"
        raise _safetensors_error("safetensors-offsets", found, source, expected="none")


def _safetensors_error(code: str, found: str, source: ByteSource, expected: str = "") -> CheckpointError:
    return CheckpointError(code, found, expected=expected, where=source.path)


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
