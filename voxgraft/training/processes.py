"""One process or many: who we are, and the few things that processes must agree on.

`torchrun` starts many; without it there is one, and nothing of torch's distributed package is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Processes", "is_first_of_all", "processes"]


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

    def from_first(self, text: str) -> str:
        """What the first process says."""
        if self.world_size == 1:
            return text
        said = [text]
        dist.broadcast_object_list(said)
        return said[0]


def is_first_of_all() -> bool:
    """Whether this process will be the first, before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def processes(device: torch.device | str) -> Iterator[Processes]:
    """Join the others if `torchrun` has started us, and leave them at the end."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Processes()
        return
    dist.init_process_group("nccl" if torch.device(device).type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        dist.destroy_process_group()
