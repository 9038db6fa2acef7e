"""One process or many: who we are, and the few things that processes must agree on.

`torchrun` starts many; without it there is one, and nothing of torch's distributed package is touched. What becomes of
the rest when one of them ends is the business of `lookout.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from voxgraft.errors import ConfigError
from voxgraft.training.lookout import ProcessError, ProcessWatchdog

__all__ = ["DistributedContext", "ProcessError", "is_main_process", "join_distributed"]

MAX_DIFFERENCES_SHOWN = 5
GRADIENT_BUCKET_SIZE = 1 << 24
"""Numbers of a gradient that travel together: 64 MB of float32."""
_INTEGER_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Decision = TypeVar("Decision")


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

    def broadcast_decision(self, mine: Decision) -> Decision:
        """What the first process has decided. The others take its word, whatever they found themselves."""
        if self.world_size == 1:
            return mine
        said: list[Decision | None] = [mine if self.is_main_process else None]
        dist.broadcast_object_list(said, src=0)
        decision = said[0]
        assert decision is not None
        return decision

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every parameter the sum of its gradients over all processes, in their own precision.

        A parameter without a gradient here counts as zeros; one that has none on any process keeps none.
        """
        if self.world_size == 1 or not parameters:
            return
        device = parameters[0].device
        reached = torch.tensor([float(value.grad is not None) for value in parameters], device=device)
        dist.all_reduce(reached, dist.ReduceOp.MAX)
        moved = [value for value, there in zip(parameters, reached.tolist(), strict=True) if there]
        for value in moved:
            if value.grad is None:
                value.grad = torch.zeros_like(value)
        for bucket in _gradient_buckets([value.grad for value in moved if value.grad is not None]):
            row = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(row)
            begin = 0
            for gradient in bucket:
                gradient.copy_(row[begin : begin + gradient.numel()].view_as(gradient))
                begin += gradient.numel()

    def require_same_bits(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Refuse, on every process, to go on if one of them holds other bits than another.

        Sums of the bits as whole numbers are compared, so that next to nothing travels.
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
            found = f"after step {step:,} the processes hold different values of {len(wrong)} tensors: {listed}"
            raise ProcessError("processes-diverged", found, expected="the same bits on every process")

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
            f"{key}: {_shorten_value(first.get(key))} for process 0, {_shorten_value(other.get(key))} for process {rank}"
            for rank, other in enumerate(said)
            for key in dict.fromkeys((*first, *other))
            if first.get(key) != other.get(key)
        ]
        if differences:
            more = (
                f"; and {len(differences) - MAX_DIFFERENCES_SHOWN} more"
                if len(differences) > MAX_DIFFERENCES_SHOWN
                else ""
            )
            raise ProcessError(
                "processes-differ", "; ".join(differences[:MAX_DIFFERENCES_SHOWN]) + more, expected="the same"
            )


def bit_checksum(tensor: Tensor) -> Tensor:
    """A sum of the bits as whole numbers, weighted by row and by column, so that two errors do not cancel. []"""
    bits = tensor.detach().contiguous().view(_INTEGER_DTYPES[tensor.element_size()])
    table = bits.reshape(-1, bits.shape[-1]) if bits.dim() > 1 else bits.reshape(-1, 1)
    rows, columns = (table.sum(dim, dtype=torch.int64) for dim in (1, 0))
    weights = (2 * torch.arange(max(len(rows), len(columns)), device=tensor.device) + 1) * 0x9E3779B1
    return (rows * weights[: len(rows)]).sum() + (columns * weights[: len(columns)]).sum()


def _gradient_buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one precision that travel together, in their order, which is the same on every process."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        full = sum(one.numel() for one in bucket) + gradient.numel() > GRADIENT_BUCKET_SIZE
        if bucket and (full or bucket[0].dtype != gradient.dtype):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


def is_main_process() -> bool:
    """Whether this process will be the first, before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def join_distributed(device: torch.device | str) -> Iterator[DistributedContext]:
    """Join the others if `torchrun` has started us, and leave them at the end.

    When one of them ends before that, so do all, and the error says which and why. On CUDA each process of a machine
    has a device of its own.
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world_size == 1:
        yield DistributedContext()
        return
    lookout = ProcessWatchdog(rank, world_size)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    on_cuda = torch.device(device).type == "cuda"
    try:
        with lookout:
            _require_same_device_type(lookout, torch.device(device).type)
            if on_cuda:
                _select_local_device(device, local_rank)
            backend = "nccl" if on_cuda else "gloo"
            dist.init_process_group(backend, store=lookout.rendezvous_store(), rank=rank, world_size=world_size)
            yield DistributedContext(rank, world_size, local_rank)
    finally:
        # NCCL would wait for those that wait for us.
        if dist.is_initialized() and not (on_cuda and lookout.failed):
            dist.destroy_process_group()


def _require_same_device_type(lookout: ProcessWatchdog, kind: str) -> None:
    """Processes on devices of two kinds would wait for each other in vain."""
    first = lookout.first_published("device", kind)
    if first != kind:
        found = f"process {lookout.rank} trains on {kind}, and one before it on {first}"
        raise ProcessError(
            "processes-differ", found, expected="the same: see that every machine has CUDA, or train.device"
        )


def _select_local_device(device: torch.device | str, local_rank: int) -> None:
    """The device that this process has for itself; from here on `cuda` means that one."""
    count = torch.cuda.device_count()
    if torch.device(device).index is not None:
        found = f"train.device is {str(device)!r}, and several processes train"
        raise ConfigError("device", found, expected="cuda: each process takes a device of its own")
    if local_rank >= count:
        found = f"process {local_rank + 1} of this machine, which has {count} CUDA devices"
        raise ConfigError("device", found, expected=f"--nproc-per-node of at most {count}")
    torch.cuda.set_device(local_rank)


def _shorten_value(value: str | None) -> str:
    text = "nothing" if value is None else value
    return text if len(text) <= 60 else f"{text[:57]}..."
