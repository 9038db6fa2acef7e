"""One process or many: who we are, and the few things that processes must agree on.

`torchrun` starts many; without it there is one, and nothing of torch's distributed package is touched. What becomes of
the rest when one of them ends is the business of `lookout.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from voxgraft.errors import ConfigError
from voxgraft.training.lookout import Lookout, ProcessError

__all__ = ["ProcessError", "Processes", "is_first_of_all", "processes"]

MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among all that train together."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this one writes: journal, steps, samples."""
        return self.rank == 0

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def any(self, mine: bool, device: torch.device | str = "cpu") -> bool:
        """Whether it holds on any process."""
        if self.world_size == 1:
            return mine
        return bool(self.summed(torch.tensor(float(mine), device=device)) > 0)

    def wait(self) -> None:
        """Until all have come here."""
        if self.world_size > 1:
            dist.barrier()

    def require_same(self, seen: Mapping[str, str]) -> None:
        """Refuse, on every process, to go on if one of them sees another thing than the first does."""
        if self.world_size == 1:
            return
        said: list[dict[str, str]] = [{} for _ in range(self.world_size)]
        dist.all_gather_object(said, dict(seen))
        first = said[0]
        differences = [
            f"{key}: {_brief(first.get(key))} for process 0, {_brief(other.get(key))} for process {rank}"
            for rank, other in enumerate(said)
            for key in dict.fromkeys((*first, *other))
            if first.get(key) != other.get(key)
        ]
        if differences:
            more = f"; and {len(differences) - MAX_SHOWN} more" if len(differences) > MAX_SHOWN else ""
            raise ProcessError("processes-differ", "; ".join(differences[:MAX_SHOWN]) + more, expected="the same")


def is_first_of_all() -> bool:
    """Whether this process will be the first, before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def processes(device: torch.device | str) -> Iterator[Processes]:
    """Join the others if `torchrun` has started us, and leave them at the end.

    When one of them ends before that, so do all, and the error says which and why. On CUDA each process of a machine
    has a device of its own.
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world_size == 1:
        yield Processes()
        return
    lookout = Lookout(rank, world_size)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    on_cuda = torch.device(device).type == "cuda"
    try:
        with lookout:
            _require_same_kind(lookout, torch.device(device).type)
            if on_cuda:
                _take_device(device, local_rank)
            backend = "nccl" if on_cuda else "gloo"
            dist.init_process_group(backend, store=lookout.meeting_place(), rank=rank, world_size=world_size)
            yield Processes(rank, world_size, local_rank)
    finally:
        # NCCL would wait for those that wait for us.
        if dist.is_initialized() and not (on_cuda and lookout.failed):
            dist.destroy_process_group()


def _require_same_kind(lookout: Lookout, kind: str) -> None:
    """Processes on devices of two kinds would wait for each other in vain."""
    first = lookout.agreed("device", kind)
    if first != kind:
        found = f"process {lookout.rank} trains on {kind}, and one before it on {first}"
        raise ProcessError(
            "processes-differ", found, expected="the same: see that every machine has CUDA, or train.device"
        )


def _take_device(device: torch.device | str, local_rank: int) -> None:
    """The device that this process has for itself; from here on `cuda` means that one."""
    count = torch.cuda.device_count()
    if torch.device(device).index is not None:
        found = f"train.device is {str(device)!r}, and several processes train"
        raise ConfigError("device", found, expected="cuda: each process takes a device of its own")
    if local_rank >= count:
        found = f"process {local_rank + 1} of this machine, which has {count} CUDA devices"
        raise ConfigError("device", found, expected=f"--nproc-per-node of at most {count}")
    torch.cuda.set_device(local_rank)


def _brief(value: str | None) -> str:
    text = "nothing" if value is None else value
    return text if len(text) <= 60 else f"{text[:57]}..."
