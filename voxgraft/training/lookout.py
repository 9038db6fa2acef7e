"""Looks out for the other processes of a training, so that none waits for ever for one that has ended.

Every process gives signs of life where all can read them, and one that meets an error says there what it was. Who can
still raise, raises that; who hangs in a call that nothing breaks off is ended, with the cause on standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from voxgraft.errors import Finding, VoxgraftError, finding

__all__ = ["ProcessError", "ProcessWatchdog"]

HEARTBEAT_SECONDS = 2.0
HEARTBEAT_TIMEOUT_SECONDS = 180.0
"""Who has given no sign of life for that long is taken for lost. Compiling and saving do not stop the signs."""
EXIT_GRACE_SECONDS = 60.0
"""From the news to the end of a process that does not end by itself: a step that is being saved may be saved."""
STORE_CONNECT_SECONDS, STORE_TIMEOUT_SECONDS, STORE_LINGER_SECONDS = 600.0, 5.0, 2.0
FINISHED_HEARTBEAT = 1 << 40
"""Signs of life of a process that has ended as it should."""
WATCHDOG_EXIT_CODE = 2
CONNECTION_ERROR_WORDS = ("gloo", "nccl", "connection", "socket", "timed out", "broken pipe")
"""Words in what torch's packages for processes say; they have no class of error of their own for it."""


class ProcessError(VoxgraftError):
    """Another process has ended."""


@dataclass
class ProcessWatchdog:
    """Of one process, from its first step to its last: to be entered before it joins the others."""

    rank: int
    world_size: int
    failed: bool = False
    """Whether the block has ended with an error."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)
    _heard: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Signs of life of the others, and when there was one more."""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch_peers, name="lookout", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.failed = error is not None
        self._stop.set()
        if error is None:
            self._thread.join(STORE_TIMEOUT_SECONDS)
            return
        if isinstance(error, RuntimeError) and not isinstance(error, VoxgraftError):
            # Who ends says why before its lines are cut, so there is nothing to wait for.
            trouble = self._told() or (
                _process_lost_finding(f"another process is gone ({_shorten_error(error)})")
                if _is_connection_error(error)
                else None
            )
            if trouble is not None:
                self._keep_store_alive()
                raise ProcessError.of(trouble) from error
        self._tell(error)
        self._keep_store_alive()

    def rendezvous_store(self) -> PrefixStore:
        """Where the processes find each other; the first keeps it if torchrun does not.

        torchrun keeps one store for all its tries, and torch would look in it for processes of the one before.
        """
        keeps = self.rank == 0 and not _is_store_owned_by_torchrun()
        return PrefixStore(self._store_key("group"), _connect_store(STORE_CONNECT_SECONDS, is_master=keeps))

    def _keep_store_alive(self) -> None:
        """Without torchrun the first process keeps the store, and takes it along: let the others read it before."""
        if self.rank == 0 and not _is_store_owned_by_torchrun():
            time.sleep(STORE_LINGER_SECONDS)

    def first_published(self, name: str, value: str) -> str:
        """The value that was given first by any process, where a store is there before the processes have joined."""
        if not _is_store_owned_by_torchrun():
            return value
        first: bytes = _connect_store(STORE_CONNECT_SECONDS).compare_set(self._store_key(name), "", value)
        return first.decode()

    def _tell(self, error: BaseException) -> None:
        """Say what has ended this process; who says it first is believed."""
        cause = f"{error.code}: {error.finding.found}" if isinstance(error, VoxgraftError) else repr(error)
        text = json.dumps({"rank": self.rank, "cause": cause})
        with contextlib.suppress(RuntimeError):
            _connect_store(STORE_TIMEOUT_SECONDS).compare_set(self._store_key("failed"), "", text)

    def _told(self, store: TCPStore | None = None) -> Finding | None:
        """What another process has said of its end."""
        try:
            store = store or _connect_store(STORE_TIMEOUT_SECONDS)
            if not store.check([self._store_key("failed")]):
                return None
            said = json.loads(store.get(self._store_key("failed")))
        except RuntimeError:
            return None
        if said["rank"] == self.rank:
            return None
        return finding("process-failed", f"process {said['rank']} of {self.world_size} ended: {said['cause']}")

    def _watch_peers(self) -> None:
        """Until this process leaves, or hears that another has not."""
        trouble = None
        try:
            store = _connect_store(STORE_CONNECT_SECONDS)
            while trouble is None:
                trouble = self._told(store) or next(self._find_silent_peers(store), None)
                if trouble is None and self._stop.wait(HEARTBEAT_SECONDS):
                    self._publish_finished(store)
                    return
        except RuntimeError as error:
            trouble = _process_lost_finding(f"the process that all report to is gone ({_shorten_error(error)})")
        if trouble is not None and not self._stop.wait(EXIT_GRACE_SECONDS):
            sys.stderr.write("\n".join(["", *trouble.lines(), ""]))
            sys.stderr.flush()
            os._exit(WATCHDOG_EXIT_CODE)

    def _publish_finished(self, store: TCPStore) -> None:
        """As it should be: nobody shall wait for further signs. Who keeps the store may have left before."""
        if not self.failed:
            with contextlib.suppress(RuntimeError):
                store.add(self._store_key(self.rank), FINISHED_HEARTBEAT)

    def _find_silent_peers(self, store: TCPStore) -> Iterator[Finding]:
        """Give a sign of life, and look for those of the others. One that was never heard of is still to come."""
        now = time.monotonic()
        store.add(self._store_key(self.rank), 1)
        for rank in range(self.world_size):
            count = store.add(self._store_key(rank), 0) if rank != self.rank else 0
            known, since = self._heard.get(rank, (0, now))
            self._heard[rank] = (count, now if count != known else since)
            if 0 < count < FINISHED_HEARTBEAT and now - self._heard[rank][1] > HEARTBEAT_TIMEOUT_SECONDS:
                yield _process_lost_finding(
                    f"process {rank} of {self.world_size} was not heard of for {now - since:.0f} seconds"
                )

    def _store_key(self, name: str | int) -> str:
        """torchrun keeps its store when it starts processes again; what was said before that is not for these."""
        return f"voxgraft/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


def _is_store_owned_by_torchrun() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _connect_store(seconds: float, *, is_master: bool = False) -> TCPStore:
    """A line of one's own to the store that all processes share: one line serves one thread at a time."""
    place, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    return TCPStore(place, port, is_master=is_master, timeout=timedelta(seconds=seconds), wait_for_workers=False)


def _is_connection_error(error: RuntimeError) -> bool:
    """Whether it tells of the lines between processes."""
    return isinstance(error, DistError) or any(word in str(error).lower() for word in CONNECTION_ERROR_WORDS)


def _shorten_error(error: RuntimeError) -> str:
    """What is said of a line, without the place in torch's own sources and without the advice behind it."""
    return re.sub(r"\[[^\]]*\.cc:[0-9]+\] ", "", str(error)).splitlines()[0].partition(". ")[0]


def _process_lost_finding(found: str) -> Finding:
    return finding("process-lost", found)
