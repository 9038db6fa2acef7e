"""Do the shards of a set still have the bytes that were written? Compared beside training, before anything is saved.

A shard is read through a map of its file, page by page, in the order of the data; comparing its hash first would keep a
training with large voices waiting for as long as it takes to read all of it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from voxgraft.corpus.clips import ClipDataset
from voxgraft.errors import FileError
from voxgraft.files import format_error_reason

__all__ = ["ShardVerifier", "require_shard_hash"]

HASH_CHUNK_BYTES = 4 << 20


def require_shard_hash(path: Path, stated: str, found: str) -> None:
    """Raise, naming the shard, unless it has the hash that its set states."""
    if found != stated:
        text = f"the bytes of {path.name} have the hash {found[:16]}..."
        raise FileError("set-damaged", text, expected=f"{stated[:16]}..., as the set states", where=path)


class ShardVerifier:
    """Hashes shards on a thread of its own, held-out sets first, each file once."""

    def __init__(self, held_out: Iterable[ClipDataset], learnt: Iterable[ClipDataset]) -> None:
        first, second = _collect_shard_files(held_out), _collect_shard_files(learnt)
        self._parts = (first, {path: stated for path, stated in second.items() if path not in first})
        self._done = (threading.Event(), threading.Event())
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._verify, name="verification", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nobody needs the answer any more."""
        self._stopped.set()

    def look(self) -> None:
        """Raise what was found so far; waits for nothing."""
        if self._error is not None:
            raise self._error

    def wait(self, *, held_out_only: bool = False) -> None:
        """Until all files are compared, or those of the held-out sets; raise what was found."""
        self._done[0 if held_out_only else 1].wait()
        self.look()

    def _verify(self) -> None:
        try:
            for files, done in zip(self._parts, self._done, strict=True):
                for path, stated in files.items():
                    found = self._hash_file(path)
                    if found is None:
                        return
                    require_shard_hash(path, stated, found)
                done.set()
        except Exception as error:
            self._error = error  # raised by who looks or waits
        finally:
            for done in self._done:
                done.set()

    def _hash_file(self, path: Path) -> str | None:
        """None once nobody waits for it."""
        digest = hashlib.sha256()
        try:
            with path.open("rb", buffering=0) as stream:
                while chunk := stream.read(HASH_CHUNK_BYTES):
                    if self._stopped.is_set():
                        return None
                    digest.update(chunk)  # lets other threads run
        except OSError as error:
            raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
        return digest.hexdigest()


def _collect_shard_files(sets: Iterable[ClipDataset]) -> Mapping[Path, str]:
    return {path: stated for clips in sets for path, stated in clips.shard_files().items()}
