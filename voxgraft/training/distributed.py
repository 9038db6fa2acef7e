"""Training in several processes: rank and world size, the few things that processes must agree on, and a watchdog.

`torchrun` starts the processes; without it there is one, and torch's distributed package is not used. The watchdog ends
all processes when one of them ends, and names that one: torch alone would wait ten minutes and name none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from voxgraft.core.errors import ConfigError, Finding, VoxgraftError, finding

HEARTBEAT_SECONDS = 2.0
# A process without a heartbeat for that long counts as lost. Compiling and saving do not stop heartbeats.
HEARTBEAT_TIMEOUT_SECONDS = 180.0
# Time that a process has to end on its own after another failed: long enough to finish saving a checkpoint.
EXIT_GRACE_SECONDS = 60.0
STORE_CONNECT_SECONDS, STORE_TIMEOUT_SECONDS, STORE_LINGER_SECONDS = 600.0, 5.0, 2.0
# Added to the heartbeats of a process that has ended normally.
FINISHED_HEARTBEAT = 1 << 40
WATCHDOG_EXIT_CODE = 2
# Words in torch's error messages about lost connections; there is no error class of their own for them.
CONNECTION_ERROR_WORDS = ("gloo", "nccl", "connection", "socket", "timed out", "broken pipe")


MAX_DIFFERENCES_SHOWN = 5
# Numbers of a gradient that travel together: 64 MB of float32.
GRADIENT_BUCKET_SIZE = 1 << 24
_INTEGER_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Decision = TypeVar("Decision")


class ProcessError(VoxgraftError):
    """Another process has ended."""


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """This process among all that train together."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main_process(self) -> bool:
        """Whether this one writes: journal, steps, samples."""
        return self.rank == 0

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def any(self, mine: bool, device: torch.device | str = "cpu") -> bool:
        """Whether it holds on any process."""
        if self.world_size == 1:
            return mine
        return bool(self.all_reduce_sum(torch.tensor(float(mine), device=device)) > 0)

    def broadcast_decision(self, local_decision: Decision) -> Decision:
        """The decision of the first process, on every process."""
        if self.world_size == 1:
            return local_decision
        decisions: list[Decision | None] = [local_decision if self.is_main_process else None]
        dist.broadcast_object_list(decisions, src=0)
        decision = decisions[0]
        assert decision is not None
        return decision

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every parameter the sum of its gradients over all processes, in their own precision.

        A parameter without a gradient here counts as zeros; one that has none on any process keeps none.
        """
        if self.world_size == 1 or not parameters:
            return
        device = parameters[0].device
        # All processes must reduce the same tensors in the same order.
        reached = torch.tensor([float(value.grad is not None) for value in parameters], device=device)
        dist.all_reduce(reached, dist.ReduceOp.MAX)
        moved = [value for value, there in zip(parameters, reached.tolist(), strict=True) if there]
        for value in moved:
            if value.grad is None:
                value.grad = torch.zeros_like(value)
        # Neighbours of one precision travel together, in their order, which is the same on every process.
        buckets: list[list[Tensor]] = []
        for gradient in (value.grad for value in moved if value.grad is not None):
            last = buckets[-1] if buckets else []
            full = sum(one.numel() for one in last) + gradient.numel() > GRADIENT_BUCKET_SIZE
            if not last or full or last[0].dtype != gradient.dtype:
                buckets.append([])
            buckets[-1].append(gradient)
        for bucket in buckets:
            row = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(row)
            begin = 0
            for gradient in bucket:
                gradient.copy_(row[begin : begin + gradient.numel()].view_as(gradient))
                begin += gradient.numel()

    def require_same_bits(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Raise on every process if one of them holds other bits than another.

        Checksums are compared, so that almost nothing is sent.
        """
        if self.world_size == 1 or not tensors:
            return
        device = next(iter(tensors.values())).device
        sums = torch.stack([bit_checksum(value).to(device) for value in tensors.values()])
        lowest, highest = sums.clone(), sums
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        wrong = [name for name, one in zip(tensors, (lowest != highest).tolist(), strict=True) if one]
        if wrong:
            more = f" and {len(wrong) - MAX_DIFFERENCES_SHOWN} more" if len(wrong) > MAX_DIFFERENCES_SHOWN else ""
            listed = ", ".join(wrong[:MAX_DIFFERENCES_SHOWN]) + more
            found = f"after step {step:,} the processes have different values of {len(wrong)} tensors: {listed}"
            raise ProcessError("processes-diverged", found, expected="the same bits on every process")

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world_size > 1:
            dist.barrier()

    def require_same(self, local_values: Mapping[str, str]) -> None:
        """Raise on every process if one of them sees other values than the first."""
        if self.world_size == 1:
            return
        gathered: list[dict[str, str]] = [{} for _ in range(self.world_size)]
        dist.all_gather_object(gathered, dict(local_values))
        first = gathered[0]
        differences = [
            f"{key}: {_shorten_value(first.get(key))} for process 0, "
            f"{_shorten_value(other.get(key))} for process {rank}"
            for rank, other in enumerate(gathered)
            for key in dict.fromkeys((*first, *other))
            if first.get(key) != other.get(key)
        ]
        if differences:
            found = "; ".join(differences[:MAX_DIFFERENCES_SHOWN])
            if len(differences) > MAX_DIFFERENCES_SHOWN:
                found += f"; and {len(differences) - MAX_DIFFERENCES_SHOWN} more"
            raise ProcessError("processes-differ", found, expected="the same")


def bit_checksum(tensor: Tensor) -> Tensor:
    """A sum of the bits as integers, weighted by row and by column, so that two errors do not cancel. []"""
    bits = tensor.detach().contiguous().view(_INTEGER_DTYPES[tensor.element_size()])
    table = bits.reshape(-1, bits.shape[-1]) if bits.dim() > 1 else bits.reshape(-1, 1)
    rows, columns = (table.sum(dim, dtype=torch.int64) for dim in (1, 0))
    # Sums wrap around modulo 2 ** 64. An odd weight is invertible there, so no single difference is lost.
    weights = (2 * torch.arange(max(len(rows), len(columns)), device=tensor.device) + 1) * 0x9E3779B1
    return (rows * weights[: len(rows)]).sum() + (columns * weights[: len(columns)]).sum()


def is_main_process() -> bool:
    """Whether this process will be the first, before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def join_distributed(device: torch.device | str) -> Iterator[DistributedContext]:
    """Join the other processes if `torchrun` has started us, and leave them at the end.

    When one of them ends before that, all end, and the error says which and why. On CUDA each process of a machine has
    a device of its own.
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world_size == 1:
        yield DistributedContext()
        return
    watchdog = ProcessWatchdog(rank, world_size)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    kind = torch.device(device).type
    on_cuda = kind == "cuda"
    try:
        with watchdog:
            first = watchdog.first_published("device", kind)
            if first != kind:  # processes on two kinds of devices would wait for each other for ever
                found = f"process {rank} trains on {kind}, but an earlier process on {first}"
                expected = "the same device type everywhere: check CUDA on every machine, or set train.device"
                raise ProcessError("processes-differ", found, expected=expected)
            if on_cuda:
                # Each process has a device of its own; from here on `cuda` means that one.
                count = torch.cuda.device_count()
                if torch.device(device).index is not None:
                    found = f"train.device is {str(device)!r}, but several processes train"
                    raise ConfigError(
                        "device", found, expected="cuda: each process uses its own device", where="train.device"
                    )
                if local_rank >= count:
                    found = f"this machine has {count} CUDA devices, but starts process {local_rank + 1}"
                    raise ConfigError("device", found, expected=f"--nproc-per-node of at most {count}")
                torch.cuda.set_device(local_rank)
            backend = "nccl" if on_cuda else "gloo"
            dist.init_process_group(backend, store=watchdog.rendezvous_store(), rank=rank, world_size=world_size)
            yield DistributedContext(rank, world_size, local_rank)
    finally:
        # After a failure NCCL would wait for processes that wait for us.
        if dist.is_initialized() and not (on_cuda and watchdog.failed):
            dist.destroy_process_group()


def _shorten_value(value: str | None) -> str:
    text = "nothing" if value is None else value
    return text if len(text) <= 60 else f"{text[:57]}..."


class ProcessWatchdog:
    """The watchdog of one process: a context manager, to be entered before the process joins the others.

    A thread publishes heartbeats in torch's store and looks at those of the others. A process that fails publishes why,
    before its connections are closed.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        # Whether the block ended with an error.
        self.failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch_peers, name="watchdog", daemon=True)
        # Heartbeats of the others, and when the last new one was seen.
        self._heard: dict[int, tuple[int, float]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.failed = error is not None
        self._stop.set()
        if error is None:
            self._thread.join(STORE_TIMEOUT_SECONDS)
            return
        if isinstance(error, RuntimeError) and not isinstance(error, VoxgraftError):
            # A process publishes why it failed before its connections close, so there is nothing to wait for.
            failure = self._read_failure()
            message = str(error).lower()
            if failure is None and (
                isinstance(error, DistError) or any(phrase in message for phrase in CONNECTION_ERROR_WORDS)
            ):
                failure = finding("process-lost", f"another process has ended ({_shorten_error(error)})")
            if failure is not None:
                self._keep_store_alive()
                raise ProcessError.of(failure) from error
        # Publish what has ended this process; the first one to do so is taken for the cause.
        cause = f"{error.code}: {error.finding.found}" if isinstance(error, VoxgraftError) else repr(error)
        text = json.dumps({"rank": self.rank, "cause": cause})
        with contextlib.suppress(RuntimeError):
            _connect_store(STORE_TIMEOUT_SECONDS).compare_set(self._store_key("failed"), "", text)
        self._keep_store_alive()

    def rendezvous_store(self) -> PrefixStore:
        """Where the processes find each other; the first process keeps it if torchrun does not.

        torchrun keeps one store for all its restarts, and torch would find processes of an earlier one in it.
        """
        keeps = self.rank == 0 and not _is_store_owned_by_torchrun()
        return PrefixStore(self._store_key("group"), _connect_store(STORE_CONNECT_SECONDS, is_master=keeps))

    def _keep_store_alive(self) -> None:
        """Without torchrun the store ends with the first process: let the others read it before."""
        if self.rank == 0 and not _is_store_owned_by_torchrun():
            time.sleep(STORE_LINGER_SECONDS)

    def first_published(self, name: str, value: str) -> str:
        """The value that any process published first, where there is a store before the processes have joined."""
        if not _is_store_owned_by_torchrun():
            return value
        first: bytes = _connect_store(STORE_CONNECT_SECONDS).compare_set(self._store_key(name), "", value)
        return first.decode()

    def _read_failure(self, store: TCPStore | None = None) -> Finding | None:
        """What another process has published about its failure."""
        try:
            store = store or _connect_store(STORE_TIMEOUT_SECONDS)
            if not store.check([self._store_key("failed")]):
                return None
            failure = json.loads(store.get(self._store_key("failed")))
        except RuntimeError:
            return None
        if failure["rank"] == self.rank:
            return None
        return finding("process-failed", f"process {failure['rank']} of {self.world_size} ended: {failure['cause']}")

    def _watch_peers(self) -> None:
        """Run until this process leaves or another fails; then end this process, unless it does so in time."""
        trouble = None
        try:
            store = _connect_store(STORE_CONNECT_SECONDS)
            while trouble is None:
                trouble = self._read_failure(store) or next(self._find_silent_peers(store), None)
                if trouble is None and self._stop.wait(HEARTBEAT_SECONDS):
                    if not self.failed:  # the process that keeps the store may have left before
                        with contextlib.suppress(RuntimeError):
                            store.add(self._store_key(self.rank), FINISHED_HEARTBEAT)
                    return
        except RuntimeError as error:
            trouble = finding("process-lost", f"the coordinating process has ended ({_shorten_error(error)})")
        if trouble is not None and not self._stop.wait(EXIT_GRACE_SECONDS):
            sys.stderr.write("\n".join(["", *trouble.lines(), ""]))
            sys.stderr.flush()
            os._exit(WATCHDOG_EXIT_CODE)

    def _find_silent_peers(self, store: TCPStore) -> Iterator[Finding]:
        """Publish a heartbeat and look at those of the others. A process without any has not started yet."""
        now = time.monotonic()
        store.add(self._store_key(self.rank), 1)
        for rank in range(self.world_size):
            count = store.add(self._store_key(rank), 0) if rank != self.rank else 0
            known, since = self._heard.get(rank, (0, now))
            self._heard[rank] = (count, now if count != known else since)
            if 0 < count < FINISHED_HEARTBEAT and now - self._heard[rank][1] > HEARTBEAT_TIMEOUT_SECONDS:
                found = f"process {rank} of {self.world_size} sent no heartbeat for {now - since:.0f} seconds"
                yield finding("process-lost", found)

    def _store_key(self, name: str | int) -> str:
        """torchrun keeps its store when it restarts processes; keys of an earlier start must not be read."""
        return f"voxgraft/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


def _is_store_owned_by_torchrun() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _connect_store(seconds: float, *, is_master: bool = False) -> TCPStore:
    """A connection to the store that all processes share, one for each thread: a connection is not thread-safe."""
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    return TCPStore(host, port, is_master=is_master, timeout=timedelta(seconds=seconds), wait_for_workers=False)


def _shorten_error(error: RuntimeError) -> str:
    """torch's message without the place in its sources and without the advice at its end."""
    return re.sub(r"\[[^\]]*\.cc:[0-9]+\] ", "", str(error)).splitlines()[0].partition(". ")[0]
