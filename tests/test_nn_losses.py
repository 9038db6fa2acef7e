"""Chunked cross-entropy: the number and the gradients of the plain one, with one chunk of logits alive at a time."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from voxgraft.core.errors import ConfigError
from voxgraft.nn import IGNORE_INDEX
from voxgraft.nn.layers import cross_entropy_sum
from voxgraft.nn.rows import GrownHead

POSITIONS, WIDTH, ROWS = 23, 8, 37
CHUNKS = [None, 1, 2, 5, 22, 23, 24, 1000]


def a_head(kind: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    if kind != "grown":
        return nn.Linear(WIDTH, ROWS, bias=kind == "bias", dtype=dtype)
    plain = nn.Linear(WIDTH, ROWS - 6, dtype=dtype)
    return GrownHead.from_base(plain.weight.detach(), 6, 1, bias=plain.bias.detach())


def positions(count: int = POSITIONS, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(count, WIDTH, generator=generator).to(dtype).requires_grad_()
    return hidden, torch.randint(ROWS, (count,), generator=generator)


def plain(head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), targets, reduction="sum")


def gradients(loss: Tensor, head: nn.Module, hidden: Tensor) -> list[Tensor]:
    asking = [parameter for parameter in head.parameters() if parameter.requires_grad]
    # Not 1: the caller divides by its number of valid tokens, and an fp16 scaler multiplies.
    return list(torch.autograd.grad(loss * 0.37, [hidden, *asking]))


@pytest.mark.parametrize("kind", ["plain", "bias", "grown"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_value_and_gradients_are_those_of_the_plain_loss(chunk: int | None, kind: str) -> None:
    head, (hidden, targets) = a_head(kind), positions()
    loss, expected = cross_entropy_sum(head, hidden, targets, chunk=chunk), plain(head, hidden, targets)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    pairs = zip(gradients(loss, head, hidden), gradients(expected, head, hidden), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [None, 4])
def test_gradients_are_right_by_finite_differences(chunk: int | None) -> None:
    hidden, targets = positions(6, torch.float64)
    head = a_head("bias", torch.float64)

    def loss(given: Tensor) -> Tensor:
        return cross_entropy_sum(head, given, targets, chunk=chunk)

    assert loss(hidden).dtype == torch.float64
    assert torch.autograd.gradcheck(loss, hidden)


@pytest.mark.parametrize("chunk", [None, 1, 5, 64])
def test_low_precision_logits_are_summed_in_float32(chunk: int | None) -> None:
    count = 4096
    targets = torch.zeros(count, dtype=torch.long)

    def even(hidden: Tensor) -> Tensor:
        return hidden[:, :1].expand(-1, 2) * 0

    loss = cross_entropy_sum(even, torch.ones(count, WIDTH, dtype=torch.bfloat16), targets, chunk=chunk)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.item(), count * 0.6931472, rtol=1e-5, atol=0)  # a bf16 sum would stop below 512


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("kind", ["bias", "grown"])
def test_autocast_is_the_same_in_the_second_pass_as_in_the_first(kind: str, chunk: int | None) -> None:
    head, (hidden, targets) = a_head(kind), positions()
    seen: list[torch.dtype] = []

    def watched(given: Tensor) -> Tensor:
        logits: Tensor = head(given)
        seen.append(logits.dtype)
        return logits

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, expected = cross_entropy_sum(watched, hidden, targets, chunk=chunk), plain(head, hidden, targets)
    ours, theirs = gradients(loss, head, hidden), gradients(expected, head, hidden)
    assert set(seen) == {torch.bfloat16}
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("chunk", [None, 1, 8])
def test_no_positions_give_zero_and_zero_gradients(chunk: int | None) -> None:
    head, (hidden, targets) = a_head("grown"), positions(0)
    loss = cross_entropy_sum(head, hidden, targets, chunk=chunk)
    assert loss.item() == 0
    found = gradients(loss, head, hidden)  # connected to every parameter, so that DDP does not wait for one
    assert not any(gradient.any() for gradient in found)


@pytest.mark.parametrize("chunk", [None, 5])
def test_ignored_positions_count_nothing(chunk: int | None) -> None:
    head, (hidden, targets) = a_head("bias"), positions()
    kept = torch.arange(POSITIONS) % 3 == 0
    loss = cross_entropy_sum(head, hidden, targets.masked_fill(~kept, IGNORE_INDEX), chunk=chunk)
    torch.testing.assert_close(loss, plain(head, hidden[kept], targets[kept]))
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert not gradient[~kept].any()
    assert gradient[kept].any(dim=1).all()
    nothing = cross_entropy_sum(head, hidden, torch.full_like(targets, IGNORE_INDEX), chunk=chunk)
    assert nothing.item() == 0


@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_of_no_positions_is_refused(chunk: int) -> None:
    with pytest.raises(ConfigError, match=f"a chunk of {chunk} positions"):
        cross_entropy_sum(a_head("bias"), *positions(), chunk=chunk)


# ---- memory --------------------------------------------------------------------------------------------------------


class LiveRows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most rows of logits that exist at once, in tensors of their own (a view counts with what it views).

    Anything as wide as the logits counts; the head's own [W, V] and [1, V] are reported apart by their few rows.
    """

    def __init__(self, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.width, self.now, self.most, self.largest = width, 0, 0, 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if (
                isinstance(tensor, Tensor)
                and tensor.dim() == 2
                and tensor.shape[1] == self.width
                and len(tensor) > WIDTH
            ):
                self._add(tensor.untyped_storage(), tensor.shape[0])
        return result

    def _add(self, storage: torch.UntypedStorage, rows: int) -> None:
        at = storage.data_ptr()
        if at in self.known:
            return
        self.known.add(at)
        self.now += rows
        self.most, self.largest = max(self.most, self.now), max(self.largest, rows)
        weakref.finalize(storage, self._remove, at, rows)

    def _remove(self, at: int, rows: int) -> None:
        self.known.discard(at)
        self.now -= rows


def live_rows(chunk: int | None, count: int = 240) -> LiveRows:
    head, (hidden, targets) = a_head("bias"), positions(count)
    with LiveRows(ROWS) as live:
        cross_entropy_sum(head, hidden, targets, chunk=chunk).backward()  # type: ignore[no-untyped-call]
    assert isinstance(live, LiveRows)
    assert hidden.grad is not None
    return live


def test_no_more_than_one_chunk_of_logits_is_alive_in_either_pass() -> None:
    whole = live_rows(None)
    assert whole.largest == 240
    assert whole.most >= 480, "logits and their softmax are kept for the backward pass"
    for chunk in (12, 50, 120):
        live = live_rows(chunk)
        assert live.largest == chunk
        # Logits, their softmax and the gradient of one chunk; nothing of any other.
        assert live.most <= 3 * chunk
    assert live_rows(12, 2400).most == live_rows(12, 240).most, "it does not grow with the number of positions"


def test_each_chunk_goes_through_the_head_once_more_in_the_backward_pass_and_not_without_one() -> None:
    head, (hidden, targets) = a_head("bias"), positions()
    calls: list[int] = []

    def counted(given: Tensor) -> Tensor:
        calls.append(len(given))
        logits: Tensor = head(given)
        return logits

    loss = cross_entropy_sum(counted, hidden, targets, chunk=10)
    assert calls == [10, 10, 3]
    loss.backward()  # type: ignore[no-untyped-call]
    assert sorted(calls[3:]) == [3, 10, 10]
    calls.clear()
    with torch.no_grad():
        cross_entropy_sum(counted, hidden, targets, chunk=10)
    assert calls == [10, 10, 3]


# ---- compiling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("chunk", [None, 10])
def test_the_loss_compiles_to_one_graph_with_the_same_gradients(chunk: int | None, backend: str) -> None:
    torch.compiler.reset()
    head, (hidden, targets) = a_head("grown"), positions()
    twin = copy.deepcopy(head)

    def loss_of(given: Tensor) -> Tensor:
        return cross_entropy_sum(twin, given, targets, chunk=chunk)

    loss = torch.compile(loss_of, backend=backend, fullgraph=True)(hidden)
    expected = plain(head, hidden, targets)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients(loss, twin, hidden), gradients(expected, head, hidden), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
