"""Attention in tiles: its work lists anywhere, and its kernels under Triton's interpreter against a dense reference."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support.kernels import run_interpreted
from voxgraft.nn import attention
from voxgraft.nn.attention import Packing, choose_attention_backend

LENGTHS = [1, 63, 64, 65, 300]
Way = tuple[int, int, bool, bool, torch.dtype]
WAYS: list[Way] = [  # rows of a tile and of a block, a loop without a mask, heads first
    (64, 64, True, False, torch.float32),
    (64, 64, False, True, torch.float16),
    (64, 32, True, False, torch.float16),
    (32, 64, True, True, torch.float32),
    (128, 64, False, False, torch.float32),
]


def dense(qkv: Tensor, lengths: list[int]) -> Tensor:
    """[T, 3, H, D] -> [T, H, D]"""
    q, k, v = qkv.unbind(1)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (rows[:, None] == rows) & torch.ones(len(rows), len(rows)).tril().bool()
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[Way, tuple[Tensor, Tensor]]:
    """Output and gradient of `given` in every way, from a process in which Triton interprets its kernels."""
    path = tmp_path_factory.mktemp("tiles") / "values"
    qkv, d_out = numbers()
    torch.save({"qkv": qkv, "d_out": d_out, "lengths": LENGTHS, "ways": WAYS}, path)
    return dict(zip(WAYS, run_interpreted("tiles", path), strict=True))


def numbers() -> tuple[Tensor, Tensor]:
    """A fused projection of two heads, and the gradient of the output. In float16 they are the same numbers."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 3, 2, 64, generator=generator)
    d_out = torch.randn(sum(LENGTHS), 2, 64, generator=generator)
    return qkv.half().float(), d_out.half().float()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_tiles_give_the_output_and_gradients_of_dense_attention(
    interpreted: dict[Way, tuple[Tensor, Tensor]], way: Way
) -> None:
    qkv, d_out = numbers()
    expected = dense(qkv.requires_grad_(), LENGTHS)
    [gradient] = torch.autograd.grad(expected, qkv, d_out)
    tolerance = 1e-5 if way[-1] == torch.float32 else 5e-3
    found, found_gradient = interpreted[way]
    torch.testing.assert_close(found.float(), expected.detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found_gradient.float(), gradient, rtol=tolerance, atol=tolerance)


lengths_of_packs = st.lists(st.integers(1, 700), min_size=1, max_size=40)


@given(lengths_of_packs)
def test_work_lists_hold_every_position_once_and_most_work_first(lengths: list[int]) -> None:
    ends = np.cumsum(lengths)
    begins = dict(zip(ends.tolist(), (ends - lengths).tolist(), strict=True))
    made = attention.build_work_lists(np.asarray(lengths)).numpy()
    for line, cut, from_end in zip(
        made,
        (attention.FORWARD_TILES, attention.QUERY_GRADIENT_TILES, attention.KEY_GRADIENT_TILES),
        (False, False, True),
        strict=True,
    ):
        used = line[line[:, 2] > 0]
        rows = np.concatenate([np.arange(first, min(first + cut.tile, end)) for first, _, end in used])
        assert np.array_equal(np.sort(rows), np.arange(sum(lengths)))
        assert all(begins[int(end)] == begin for _, begin, end in used)
        work = used[:, 2] - used[:, 0] if from_end else used[:, 0] - used[:, 1]
        assert np.all(np.diff(work) <= 0)


@given(lengths_of_packs, st.integers(0, 9))
def test_a_list_for_every_pack_of_a_size_is_long_enough_and_otherwise_empty(lengths: list[int], empty: int) -> None:
    most = attention.max_num_tiles(sum(lengths), len(lengths) + empty)
    exact, longer = (attention.build_work_lists(np.asarray(lengths), size) for size in (None, most))
    assert longer.shape == (3, most, 3)
    assert torch.equal(longer[:, : exact.shape[1]], exact)
    assert not longer[:, exact.shape[1] :].any()


def test_tiles_are_left_to_devices_they_were_cut_for() -> None:
    has_triton = find_spec("triton") is not None
    assert attention.supports_tiled_attention((9, 0), torch.bfloat16, 64) == has_triton
    assert not attention.supports_tiled_attention((8, 0), torch.bfloat16, 64)
    assert not attention.supports_tiled_attention((9, 0), torch.float32, 64)
    assert not attention.supports_tiled_attention((9, 0), torch.float16, 80)
    assert choose_attention_backend("cpu", torch.bfloat16, 64) == "sdpa"


def test_a_pack_takes_its_work_lists_along() -> None:
    packing = Packing.of(LENGTHS, backend="tiles")
    assert packing.tiles is not None
    moved = packing.to("meta").tiles
    assert moved is not None
    assert moved.device.type == "meta"
    assert Packing.of(LENGTHS, backend="varlen").tiles is None
