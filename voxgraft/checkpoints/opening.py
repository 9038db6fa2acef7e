"""Opening a checkpoint by what its first bytes say, and naming what is often saved under a checkpoint's name.

The name of the file is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from voxgraft.checkpoints.legacy import LEGACY_MAGIC, list_legacy_globals, read_legacy_torch
from voxgraft.checkpoints.model import Checkpoint
from voxgraft.checkpoints.pickle_names import SAFE_GLOBALS, find_unsafe_globals
from voxgraft.checkpoints.pickles import MAX_PICKLE_BYTES
from voxgraft.checkpoints.safetensors_file import PREFIX_BYTES, read_safetensors
from voxgraft.checkpoints.shards import find_shards, list_shard_files, open_shards
from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_file import read_data_pickle, read_torch_archive
from voxgraft.errors import CheckpointError

HEAD_BYTES = 512
TAR_MAGIC_OFFSET = 257
WEB_PAGE_STARTS = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<error")
OTHER_FORMATS = {
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array file",
    b"\x1f\x8b": "a gzip archive",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"\x7fELF": "a program",
    b"RIFF": "an audio or video file",
    b"{": "a JSON file",
    b"[": "a JSON file",
}


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a safetensors or torch file, checked through its whole structure; its values are not read."""
    source = ByteSource(path)
    try:
        return _choose_reader(source)(source)
    except BaseException:
        source.close()
        raise


def open_any_checkpoint(path: Path) -> Checkpoint:
    """As `open_checkpoint`, and also what trainers leave behind and no base is published as: a torch file from before
    the archives, and a model in several files (its folder, its index, or one of them).
    """
    if (shards := find_shards(path)) is not None:
        return open_shards(shards)
    source = ByteSource(path)
    try:
        return read_legacy_torch(source) if _is_legacy(source) else _choose_reader(source)(source)
    except BaseException:
        source.close()
        raise


def find_dangerous_globals(path: Path) -> list[str]:
    """Names that a pickle in this file would import and that are not known to be harmless, such as `posix.system`.

    Empty for safetensors. Works for torch archives, for torch files from before the archives and for bare pickles.
    """
    if (shards := find_shards(path)) is not None:
        return list(
            dict.fromkeys(name for file in list_shard_files(shards) for name in _find_dangerous_globals_in_file(file))
        )
    return _find_dangerous_globals_in_file(path)


def _find_dangerous_globals_in_file(path: Path) -> list[str]:
    source = ByteSource(path)
    try:
        if _is_legacy(source):
            return [name for name in list_legacy_globals(source) if name not in SAFE_GLOBALS]
        head = source.read(0, min(source.size, HEAD_BYTES))
        if head.startswith(b"PK"):
            return find_unsafe_globals([read_data_pickle(source)])
        if _is_safetensors(head):
            return []
        return find_unsafe_globals([source.read(0, min(source.size, MAX_PICKLE_BYTES))])
    finally:
        source.close()


def _choose_reader(source: ByteSource) -> Callable[[ByteSource], Checkpoint]:
    head = source.read(0, min(source.size, HEAD_BYTES))
    if head.startswith(b"PK\x03\x04"):
        return read_torch_archive
    start = head.lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        raise _format_error("checkpoint-lfs", f"a git-lfs pointer of {source.size} bytes", source)
    if start.startswith(WEB_PAGE_STARTS):
        raise _format_error("checkpoint-page", f"a web page: {start[:40]!r}", source)
    if head[TAR_MAGIC_OFFSET : TAR_MAGIC_OFFSET + 5] == b"ustar":
        raise _format_error("checkpoint-tar", "a tar archive", source)
    if _is_legacy(source):
        raise _format_error("checkpoint-legacy", "a torch file from before torch 1.6", source)
    if _is_safetensors(head):
        return read_safetensors
    if _is_pickle(head):
        raise _format_error("checkpoint-pickle", "a bare pickle", source)
    kind = next((kind for magic, kind in OTHER_FORMATS.items() if head.startswith(magic)), "")
    found = kind or f"a file that starts with {head[:12]!r}"
    raise _format_error("checkpoint-unknown", found, source)


def _is_legacy(source: ByteSource) -> bool:
    head = source.read(0, min(source.size, HEAD_BYTES))
    return LEGACY_MAGIC in head[:32] and _is_pickle(head)


def _is_safetensors(head: bytes) -> bool:
    """A length in eight bytes, then JSON. A file that is JSON from its first byte has no such length."""
    prefix, brace = head[:PREFIX_BYTES], head[PREFIX_BYTES : PREFIX_BYTES + 1]
    return brace == b"{" and not (prefix.isascii() and b"\x00" not in prefix)


def _is_pickle(head: bytes) -> bool:
    return len(head) > 1 and head[0] == 0x80 and head[1] <= 5


def _format_error(code: str, found: str, source: ByteSource) -> CheckpointError:
    return CheckpointError(code, f"{source.path.name} is {found}", where=source.path)
