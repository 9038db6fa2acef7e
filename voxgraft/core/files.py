"""Reading and writing files safely: bounded, strict, whole or absent; and the lock between processes.

Knows nothing of models or tokenizers. Every reader raises one of our errors for anything that is not right. PyYAML is
imported on use, so that models can be opened where it is not installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from copy import deepcopy
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, TextError, VoxgraftError, WriteError

if TYPE_CHECKING:
    import yaml

FAILPOINT_VARIABLE = "VOXGRAFT_FAULT"
FAILPOINT_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
# How often each fault's point was passed since the variable got its present value.
_hit_counts: dict[str, int] = {}
_active_spec = ""


def failpoint(name: str) -> None:
    """A point at which tests can ask for a fault: VOXGRAFT_FAULT holds POINT:COUNT:ACTION, separated by commas.

    The action, at the COUNT-th passage, is kill, stop, or the name of a system error (enospc, eio).
    """
    global _active_spec
    fault_spec = os.environ.get(FAILPOINT_VARIABLE, "")
    if fault_spec != _active_spec:
        _hit_counts.clear()
        _active_spec = fault_spec
    for fault in filter(None, fault_spec.split(",")):
        point, count, action = fault.split(":")
        if point in (name, "*"):
            _hit_counts[fault] = _hit_counts.get(fault, 0) + 1
            if _hit_counts[fault] != int(count):
                continue
            if action in FAILPOINT_SIGNALS:
                os.kill(os.getpid(), FAILPOINT_SIGNALS[action])
            else:
                number = int(getattr(errno, action.upper()))
                raise OSError(number, f"{os.strerror(number)} (asked for at {name})")


# Parsed values take up to thirty times the memory of their text.
MAX_JSON_BYTES = 16 << 20
MAX_TEXT_BYTES = 2 << 30
MAX_LINE_BYTES = 1 << 20
MAX_NESTING_DEPTH = 64
# Longer numbers cannot be printed (Python limits str(int)), and no file of voxgraft holds any.
MAX_NUMBER_DIGITS = 100
CHUNK_BYTES = 1 << 20
# Ends the hidden name of a folder that is complete and about to replace another.
FINISHED_SUFFIX = ".new"
# AT_FDCWD and RENAME_EXCHANGE of Linux's renameat2, which Python does not offer.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# Sandboxes refuse unknown system calls (EPERM); layered file systems may not exchange (EXDEV). If a folder cannot be
# renamed at all, the plain renames that follow report it.
_EXCHANGE_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_RUST_OS_ERROR = re.compile(r"\(os error (\d{1,4})\)")

# Not the methods of Path: those raise for a name that is too long, and these answer False.
path_exists, is_file, is_folder = os.path.exists, os.path.isfile, os.path.isdir


def require_file(path: Path) -> Path:
    """The path, if it is a readable, non-empty regular file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileError("file-missing", f"{path.name} does not exist", where=path) from None
    except (OSError, ValueError) as error:
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    if not path.is_file():
        raise FileError("not-a-file", f"{path.name} is not a regular file", where=path)
    if status.st_size == 0:
        raise FileError("file-empty", f"{path.name} is empty", where=path)
    return path


def require_folder(path: Path) -> Path:
    """The path, if it is a readable folder."""
    try:
        if not path.exists():
            raise FileError("file-missing", f"folder {path.name or path} does not exist", where=path)
        if not path.is_dir():
            raise FileError("not-a-file", f"{path.name} is not a folder", where=path)
    except (OSError, ValueError) as error:
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    if not os.access(path, os.R_OK | os.X_OK):
        raise FileError("file-unreadable", f"folder {path.name} cannot be read (permissions)", where=path)
    return path


def make_path_relative(folder: Path, path: Path) -> Path:
    """A path as a file in `folder` states it: absolute as it is; relative from there, unless they share no folder."""
    if path.is_absolute():
        return path
    # `..` goes up from where a link leads, so both ends must be real; the last name is kept, as people know it.
    start = os.path.realpath(folder)
    target = os.path.join(os.path.realpath(path.parent), path.name) if path.name else os.path.realpath(path)
    if os.path.commonpath([start, target]) == os.path.sep:
        return Path(target)
    return Path(os.path.relpath(target, start))


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The whole file, refused if it is larger than `max_bytes`."""
    require_file(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    if len(data) > max_bytes:
        raise FileError(
            "file-too-large", f"{path.name} has over {max_bytes:,} bytes", expected=f"at most {max_bytes:,}", where=path
        )
    return data


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """The whole file as strict UTF-8, without a byte-order mark."""
    return decode_utf8(read_bytes(path, max_bytes), path)


def text_lines(text: str) -> list[str]:
    """The lines of a text as `read_lines` counts them: only a line feed or a carriage return ends one.

    `str.splitlines` also splits at U+2028, U+0085 and control characters, which text rules take for spaces or remove.
    """
    return re.split(r"\r\n|\n|\r", text)


def decode_utf8(data: bytes, where: Path | str, line: int | None = None) -> str:
    """Strict UTF-8; names the line of the first wrong byte. A byte-order mark at the start is dropped."""
    if b"\x00" in data:
        # Half of the bytes of Latin text in UTF-16 are NUL; other scripts are known by the byte-order mark.
        many = max(data[::2].count(0), data[1::2].count(0)) * 3 > len(data) > 3
        if data.startswith((b"\xff\xfe", b"\xfe\xff")) or many:
            cure = "convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW."
            raise TextError("text-not-utf8", "the file is UTF-16", expected="UTF-8", where=where, cure=cure)
        raise TextError("text-binary", "the file contains NUL bytes", where=where)
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        at = line if line is not None else data[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise TextError(
            "text-not-utf8", f"line {at} contains byte 0x{byte:02x}, which is not UTF-8", where=where
        ) from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a text file of any size with their numbers, stripped, empty ones left out. Strict UTF-8."""
    size = require_file(path).stat().st_size
    if size > MAX_TEXT_BYTES:
        raise FileError(
            "file-too-large", f"{path.name} has {size:,} bytes", expected=f"at most {MAX_TEXT_BYTES:,}", where=path
        )
    try:
        with path.open("rb") as stream, progress.progress_task(f"reading {path.name}", size) as advance:
            number = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    found = f"line {number} has over {MAX_LINE_BYTES:,} bytes"
                    raise TextError("text-line-too-long", found, where=path)
                advance(len(line))
                if text := decode_utf8(line, path, number).strip():
                    yield number, text
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None


MANIFEST_HEADER_KEY = "voxgraft_manifest"


def is_manifest_header(values: object) -> bool:
    """Whether the first line of JSON lines says that a dataset's manifest follows."""
    return isinstance(values, dict) and MANIFEST_HEADER_KEY in values


def is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of a dataset, by its first line."""
    try:
        return any(is_manifest_header(parse_json(line, path)) for _, line in islice(read_lines(path), 1))
    except VoxgraftError:
        return False


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES, *, constants: bool = False) -> Any:
    """Strict JSON: no duplicate keys, no NaN, bounded size and depth.

    `constants` accepts the bare words NaN and Infinity, which Python's own writer leaves in other programs' files.
    """
    return parse_json(read_text(path, max_bytes), path, constants=constants)


def parse_json(text: str, where: Path | str, *, constants: bool = False) -> Any:
    """JSON text to Python values, with the same strictness as `read_json`."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FileError("json-duplicate-key", f"the key {twice!r} appears twice", where=where)
        return found

    def constant(name: str) -> Any:
        if constants:
            return float(name)
        raise FileError("json-broken", f"{name} is not a JSON value", where=where)

    def short_int(digits: str) -> int:
        if len(digits) > MAX_NUMBER_DIGITS:
            raise FileError("json-broken", f"it contains a number of {len(digits):,} digits", where=where)
        return int(digits)

    try:
        value = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=constant, parse_int=short_int)
    except json.JSONDecodeError as error:
        found = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise FileError("json-broken", found, where=where) from None
    except RecursionError:
        raise FileError("json-too-deep", "nested too deep to read", where=where) from None
    # At most as many levels as opening brackets: short lines of journals and manifests need no second look.
    if text.count("{") + text.count("[") > MAX_NESTING_DEPTH:
        layer = [value]
        for _ in range(MAX_NESTING_DEPTH + 1):
            containers = [node for node in layer if isinstance(node, dict | list)]
            layer = [item for node in containers for item in (node.values() if isinstance(node, dict) else node)]
        if layer:
            raise FileError("json-too-deep", f"it is nested more than {MAX_NESTING_DEPTH} levels deep", where=where)
    if _ESCAPED_SURROGATE.search(text) and not is_encodable_text(json.dumps(value, ensure_ascii=False)):
        raise FileError("json-broken", "a string contains half of a character (a lone surrogate)", where=where)
    return value


def is_encodable_text(value: object) -> bool:
    """Whether the value is a text that can be written as UTF-8 (files can hold halves of characters)."""
    return isinstance(value, str) and not _SURROGATE.search(value)


def free_disk_bytes(path: Path) -> int | None:
    """Free bytes on the disk of a path, which may not exist yet or be a mount point; None if unknown."""
    whole = path.absolute()
    there = next((one for one in (whole, *whole.parents) if is_folder(one)), None)
    return shutil.disk_usage(there).free if there else None


def require_disk_space(
    path: Path, num_bytes: int, what: str, *, where: Path | None = None, slack: int = 64 << 20, cure: str = ""
) -> None:
    """Refuse what will not fit on the disk of `path`, before hours of work; `slack` is for headers and such."""
    free = free_disk_bytes(path)
    if free is not None and free < num_bytes + slack:
        found = f"{what} needs {num_bytes:,} bytes, {free:,} are free"
        raise FileError("disk-too-small", found, where=where or path, cure=cure)


# See `reuse_hashes`: hashes by device, inode, size and time of change.
HashCache = dict[tuple[int, int, int, int], str]
_reused_hashes: ContextVar[HashCache | None] = ContextVar("reused_hashes", default=None)
# A file that was written just now can change again within the resolution of the clock.
MIN_REUSED_AGE_SECONDS = 2.0


@contextlib.contextmanager
def reuse_hashes(known: HashCache) -> Iterator[None]:
    """Within the block, `compute_sha256` does not read a file again that `known` has, and adds what it reads.

    For a page that looks at gigabytes again and again. Commands must read: damage to a disk changes none of the keys.
    """
    token = _reused_hashes.set(known)
    try:
        yield
    finally:
        _reused_hashes.reset(token)


def compute_sha256(path: Path) -> str:
    """SHA-256 of a file of any size, in hex."""
    digest, known = hashlib.sha256(), _reused_hashes.get()
    try:
        status = require_file(path).stat()
        size, key = status.st_size, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if known is not None and key in known:
            return known[key]
        with path.open("rb") as stream, progress.progress_task(f"hashing {path.name}", size) as advance:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                advance(len(chunk))
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    if known is not None and time.time() - status.st_mtime > MIN_REUSED_AGE_SECONDS:
        known[key] = digest.hexdigest()
    return digest.hexdigest()


def require_output_path(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a path that `atomic_write` would refuse. Long commands call it before they start to work."""
    _require_valid_name(path)
    if path_exists(path) and not overwrite:
        raise FileError("file-exists", f"{path.name} exists already", where=path)
    if is_folder(path):
        raise FileError("not-a-file", f"{path.name} is a folder", where=path)
    _require_folder_above(path)


def _require_folder_above(path: Path) -> None:
    """Refuse `FILE/name`, which the system reports as `File exists` or `Not a directory`."""
    above = next((folder for folder in path.parents if path_exists(folder)), None)
    if above is not None and not is_folder(above):
        found = f"{above.name} is a file, so it cannot contain {path.relative_to(above)}"
        raise WriteError("not-a-file", found, expected="a folder", where=above)


@contextlib.contextmanager
def _made_parents(path: Path) -> Iterator[None]:
    """Make the folders above `path`; remove the new ones again if the block fails. OSErrors become our WriteError."""
    created = [folder for folder in path.parents if not path_exists(folder)]  # the lowest first
    _require_folder_above(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
        created = []
        fsync_folder(path.parent)  # without it a power cut can undo the rename
    except OSError as error:
        raise build_write_error(error, path) from None
    finally:
        for folder in created:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def atomic_write(path: Path, *, overwrite: bool = False) -> Iterator[IO[bytes]]:
    """A binary stream whose bytes become `path` when the block ends well, synced and in one rename; else nothing."""
    require_output_path(path, overwrite=overwrite)
    with _made_parents(path):
        temporary: Path | None = None
        try:
            # In the same folder: a rename is atomic only inside one file system.
            with tempfile.NamedTemporaryFile(
                "wb", dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
            ) as stream:
                temporary = Path(stream.name)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # tempfile makes files that only their owner can read
            os.replace(temporary, path)
            temporary = None
        finally:
            if temporary is not None:
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_write_folder(path: Path) -> Iterator[Path]:
    """A new folder that becomes `path` when the block ends well. What existed before is kept as `NAME.previous`."""
    _require_valid_name(path)
    with _made_parents(path):
        temporary: Path | None = None
        try:
            temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
            yield temporary
            os.chmod(temporary, 0o777 & ~_umask())
            recover_folder(path)
            finished, temporary = temporary, None
            _swap_into_place(finished, path)
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)


def recover_folder(path: Path) -> bool:
    """Rename a finished folder whose process ended before it could do that itself; whether there was one.

    If the path exists, nothing was lost and nothing is done.
    """
    finished = path.with_name(f".{path.name}{FINISHED_SUFFIX}")
    if path_exists(path) or not is_folder(finished):
        return False
    try:
        os.rename(finished, path)
    except OSError:  # another process did it, or this one may not write here: read what there is
        return path_exists(path)
    return True


def recover_folders(folder: Path) -> None:
    """The same for every folder in this one."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(".") and entry.name.endswith(FINISHED_SUFFIX)]
        for name in names:
            recover_folder(folder / name[1 : -len(FINISHED_SUFFIX)])


def _swap_into_place(new: Path, path: Path) -> None:
    """Give a finished folder its name; what had it before becomes NAME.previous.

    In one instant where the system can exchange two names. Elsewhere the name is free between two renames: the finished
    folder first gets a name by which `recover_folder` finds it, in case the process ends there.
    """
    previous = path.with_name(path.name + ".previous")
    finished = path.with_name(f".{path.name}{FINISHED_SUFFIX}")
    shutil.rmtree(finished, ignore_errors=True)  # left by a process that ended before it had moved anything
    in_the_way = path_exists(path)
    if in_the_way and _exchange_names(new, path):
        failpoint("folder.exchanged")
        with contextlib.suppress(OSError):  # the new folder is in its place, whatever becomes of the old one
            shutil.rmtree(previous, ignore_errors=True)
            os.replace(new, previous)
        return
    try:
        os.replace(new, finished if in_the_way else path)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if not in_the_way:
        return
    failpoint("folder.finished")
    try:
        shutil.rmtree(previous, ignore_errors=True)
        os.replace(path, previous)
        failpoint("folder.moved")
        os.rename(finished, path)
    except OSError:
        if path_exists(path) and not path_exists(finished):
            return  # another process has found it finished and has renamed it
        if not path_exists(path):
            with contextlib.suppress(OSError):
                os.rename(previous, path)
        if path_exists(path):
            shutil.rmtree(finished, ignore_errors=True)
        raise


def _exchange_names(one: Path, other: Path) -> bool:
    """Exchange two names in one instant; False if the system or the file system cannot."""
    try:
        failpoint("folder.exchange")
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            return False
        if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        if error.errno not in _EXCHANGE_UNSUPPORTED:
            shutil.rmtree(one, ignore_errors=True)
            raise
        return False
    return True


# How file systems without locks answer; EBADF is what NFS says to the lock of a folder.
LOCK_UNSUPPORTED_ERRNOS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
LOCK_POLL_SECONDS = 0.1
_open_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """The program's only lock between processes: flock on a file or a folder, held until the block ends.

    The operating system releases it with the last process that has the open file, however that process ends: there is
    no stale lock to clean up, and what a killed process has left in the file means nothing.

    Three races to keep in mind where it is used:
    - Never remove the file of a lock: one process would hold the removed file, and the next one a new file of the same
      name. If the locked thing itself can be renamed or replaced, compare it again after `acquire` (`is_at`).
    - A process that makes a locked thing visible (a rename) must lock it before, or others take it for abandoned.
    - A test of the lock holds it for a moment, so that an `acquire` without a timeout may fail in that moment. Tests
      take it shared, and so do not hinder each other.
    """

    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        # Python opens without inheritance: a child process has the lock only if it is passed on (`pass_fds`).
        self.descriptor = os.open(path, flags, 0o666)
        _open_locks.add(self)

    def acquire(self, *, shared: bool = False, timeout: float | None = 0.0) -> None:
        """Take the lock; BlockingIOError if others still hold it after `timeout` seconds (None: no limit).

        Any other OSError says why this file system cannot lock (LOCK_UNSUPPORTED_ERRNOS).
        """
        try:
            import fcntl
        except ImportError:  # Windows has no flock: the user must not start two commands on one folder
            return
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(self.descriptor, kind if deadline is None else kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if deadline is None or time.monotonic() >= deadline:
                    raise
            time.sleep(LOCK_POLL_SECONDS)

    def is_at(self, path: Path) -> bool:
        """Whether the path still leads to what is locked: between `open` and `acquire` others may have replaced it."""
        return os.path.samestat(os.fstat(self.descriptor), os.stat(path))

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1  # the number may soon belong to another file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock; not where the file is missing or cannot be locked."""
    try:
        with FileLock(path, os.O_RDONLY) as lock:
            lock.acquire(shared=True)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _close_locks_after_fork() -> None:
    # A fork shares the lock: a worker that outlives its killed parent would hold it on.
    for lock in list(_open_locks):
        with contextlib.suppress(OSError):
            lock.close()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_locks_after_fork)


def write_text(path: Path, text: str, *, overwrite: bool = False) -> None:
    """Write UTF-8 text, whole or not at all."""
    with atomic_write(path, overwrite=overwrite) as stream:
        stream.write(text.encode("utf-8"))


def write_json(path: Path, value: Any, *, overwrite: bool = False) -> None:
    """Write readable JSON, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n", overwrite=overwrite)


def fsync_folder(path: Path) -> None:
    """Make a rename in this folder last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_valid_name(path: Path) -> None:
    """Refuse a name that no file can have, before anything is made."""
    try:
        is_valid = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise FileError("file-unreadable", f"no file can have the name {path.name!r}", where=ascii(path))


def _umask() -> int:
    # There is no call that only reads it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Errors of the system whose cause is the same whatever was done. Not every system has all of the names.
_DISK_FAULTS = "EIO ENXIO ENODEV ESTALE EREMOTEIO ENOMEDIUM ENOTCONN ESHUTDOWN EHOSTDOWN EUCLEAN".split()
_CODES_BY_ERRNO = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "disk-full"),
    errno.EFBIG: "file-size-limit",
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ), "file-name"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOLCK, errno.EMLINK), "system-limit"),
    errno.ENOMEM: "memory-full",
    **{getattr(errno, name): "disk-fault" for name in _DISK_FAULTS if hasattr(errno, name)},
}
# What these mean depends on what was done, so only `convert_system_error` uses them.
_FALLBACK_CODES_BY_ERRNO = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "no-permission"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR), "not-a-file"),
    **dict.fromkeys((errno.EBUSY, errno.ETXTBSY, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS), "system-error"),
}


def build_write_error(error: OSError, path: Path) -> WriteError:
    """Our error for a write that the system refused."""
    if isinstance(error, shutil.Error) and (number := re.search(r"\[Errno (\d+)\]", str(error))):
        # A copied tree reports all its files at once, as texts: the first tells the cause.
        error = OSError(int(number[1]), os.strerror(int(number[1])))
    code = _CODES_BY_ERRNO.get(error.errno or 0, "file-unwritable")
    if code == "disk-full":
        return WriteError(code, f"no disk space to write {path.name}", where=path)
    return WriteError(code, f"cannot write {path.name}: {format_error_reason(error)}", where=path)


def convert_system_error(error: BaseException) -> VoxgraftError | None:
    """An error of the disk, of permissions or of a limit that no one nearer to it has reported; None for others.

    The CLI and the web interface call it last, so that a full disk is never reported as a bug. A missing file is not
    among them: code that opens a file which may be missing reports it, and any other case is a bug.
    """
    if isinstance(error, MemoryError):
        return FileError("memory-full", f"no memory left: {format_error_reason(error)}")
    # Libraries keep the system's error as the cause of their own, or in the words of Rust's standard library.
    for cause in (error, error.__cause__):
        written = _RUST_OS_ERROR.search(str(cause)) if cause is not None and not isinstance(cause, OSError) else None
        number = int(written[1]) if written else getattr(cause, "errno", None)
        code = _CODES_BY_ERRNO.get(number) or _FALLBACK_CODES_BY_ERRNO.get(number) if isinstance(number, int) else None
        if cause is not None and code is not None:
            names = (getattr(cause, "filename", None), getattr(cause, "filename2", None))
            paths = [os.fsdecode(name) for name in names if isinstance(name, str | bytes)]
            return FileError(code, format_error_reason(cause), where=" -> ".join(paths))
    return None


def format_error_reason(error: BaseException) -> str:
    """What went wrong in one line, as the system or a library says it."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]


# A settings file has a few kilobytes, and YAML is slow to parse.
MAX_YAML_BYTES = 1 << 17


def read_yaml(path: Path) -> Any:
    """YAML without aliases, tags or duplicate keys: only plain values, lists and mappings."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES), path)


def parse_yaml(text: str, where: Path | str) -> Any:
    """YAML text to Python values, with the same strictness as `read_yaml`."""
    return deepcopy(_parse_yaml_cached(text, where))


def find_yaml_keys(text: str) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys of the first two levels, dotted, with their nodes: `start_mark.index` and `end_mark.index` are offsets.

    Edits at these offsets keep comments, order and layout, which loading and dumping the values would lose.
    """
    import yaml

    found: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}

    def visit(node: yaml.Node, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                found[prefix + key.value] = (key, value)
                if not prefix:
                    visit(value, f"{key.value}.")

    visit(yaml.compose(text, yaml.SafeLoader), "")
    return found


@lru_cache(maxsize=16)
def _parse_yaml_cached(text: str, where: Path | str) -> Any:
    # Every stage of `go` reads the run's settings again, and YAML is slow to parse.
    import yaml

    try:
        return yaml.load(text, _make_strict_loader(where))  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError("yaml-broken", f"{at}{problem}", where=where) from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise ConfigError("yaml-broken", format_error_reason(error), where=where) from None


def _make_strict_loader(where: Path | str) -> type[yaml.SafeLoader]:
    import yaml

    class StrictLoader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ConfigError("yaml-alias", f"line {line} uses an anchor or alias", where=where)
            if getattr(event, "tag", None):
                raise ConfigError("yaml-tag", f"line {line} uses the tag {event.tag}", where=where)
            self.depth += 1
            if self.depth > MAX_NESTING_DEPTH:
                raise ConfigError("yaml-broken", f"it is nested more than {MAX_NESTING_DEPTH} levels deep", where=where)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            if len(node.value) > MAX_NUMBER_DIGITS:
                raise ConfigError("yaml-broken", f"it contains a number of {len(node.value):,} digits", where=where)
            return super().construct_yaml_int(node)

        def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
            if not is_encodable_text(node.value):
                line = node.start_mark.line + 1
                found = f"line {line} contains half of a character (a lone surrogate)"
                raise ConfigError("yaml-broken", found, where=where)
            return str(super().construct_yaml_str(node))

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if len(keys) != keys.total():
                twice = keys.most_common(1)[0][0]
                raise ConfigError("yaml-duplicate-key", f"the key {twice!r} appears twice", where=where)
            return super().construct_mapping(node, deep)

    StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)
    StrictLoader.add_constructor("tag:yaml.org,2002:str", StrictLoader.construct_yaml_str)
    return StrictLoader
