"""Attention in tiles on a CUDA device: near float32, the same bits every time, compiled and replayed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.test_attention_tiles import dense
from voxgraft.nn.attention import AttentionBackend, Packing, max_num_tiles, tiled_attention

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("triton") is None or torch.cuda.get_device_capability() < (8, 0),
    reason="NOT TESTED: no CUDA device with Triton",
)
LENGTHS = [1, 63, 64, 65, 300, 129, 128, 1000, 17, 256]
HEADS = 4


def numbers(dtype: torch.dtype, lengths: list[int] = LENGTHS, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3, HEADS, 64, generator=generator, device="cuda").to(dtype)
    d_out = torch.randn(sum(lengths), HEADS, 64, generator=generator, device="cuda").to(dtype)
    return qkv, d_out


def both_passes(qkv: Tensor, d_out: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    fused = qkv.detach().requires_grad_()
    q, k, v = fused.unbind(1)
    out = packing.attend(0, q, k, v)
    [gradient] = torch.autograd.grad(out, fused, d_out)
    return out.detach(), gradient


def exactly(qkv: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor]:
    exact = qkv.cpu().float().requires_grad_()
    out = dense(exact, LENGTHS)
    [gradient] = torch.autograd.grad(out, exact, d_out.cpu().float())
    return out.detach().cuda(), gradient.cuda()


def distance(found: Tensor, want: Tensor) -> float:
    return float((found.float() - want).double().square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiles_are_no_further_from_float32_than_torchs_own_kernel(dtype: torch.dtype) -> None:
    qkv, d_out = numbers(dtype)
    expected = exactly(qkv, d_out)
    distances: dict[str, list[float]] = {}
    backends: tuple[AttentionBackend, ...] = ("tiles", "varlen")
    for backend in backends:
        found = both_passes(qkv, d_out, Packing.of(LENGTHS, "cuda", backend))
        distances[backend] = [distance(one, want) for one, want in zip(found, expected, strict=True)]
        torch.testing.assert_close(found[0].float(), expected[0], rtol=0.02, atol=0.02)
        torch.testing.assert_close(found[1].float(), expected[1], rtol=0.03, atol=0.06)
    print(f"\n{dtype}: {distances}")
    assert all(ours <= 1.05 * theirs for ours, theirs in zip(*distances.values(), strict=True))


def test_two_runs_give_the_same_bits() -> None:
    qkv, d_out = numbers(torch.bfloat16)
    packing = Packing.of(LENGTHS, "cuda", "tiles")
    first, second = both_passes(qkv, d_out, packing), both_passes(qkv, d_out, packing)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_a_sequence_gets_the_same_bits_in_any_company() -> None:
    qkv, d_out = numbers(torch.bfloat16)
    whole = both_passes(qkv, d_out, Packing.of(LENGTHS, "cuda", "tiles"))
    begin = sum(LENGTHS[:4])
    inside = slice(begin, begin + LENGTHS[4])
    alone = both_passes(qkv[inside], d_out[inside], Packing.of(LENGTHS[4:5], "cuda", "tiles"))
    assert torch.equal(whole[0][inside], alone[0])
    assert torch.equal(whole[1][inside], alone[1])


def test_compiled_for_any_length_it_is_one_graph_with_the_same_gradients() -> None:
    def block(fused: Tensor, packing: Packing) -> Tensor:
        q, k, v = (2 * fused).unbind(1)
        return packing.attend(0, q, k, v) + 1

    compiled = torch.compile(block, dynamic=True, fullgraph=True)
    for lengths in (LENGTHS, [70, 3, 500], [64] * 9):
        qkv, d_out = numbers(torch.bfloat16, lengths)
        packing = Packing.of(lengths, "cuda", "tiles")
        found = []
        for way in (block, compiled):
            fused = qkv.detach().requires_grad_()
            out = way(fused, packing)
            found += [out.detach(), *torch.autograd.grad(out, fused, d_out)]
        torch.testing.assert_close(found[2], found[0], rtol=0.02, atol=0.02)
        torch.testing.assert_close(found[3], found[1], rtol=0.02, atol=0.02)


def test_a_recording_serves_other_packs_of_its_size() -> None:
    total, packs = 900, ([300, 300, 300], [1, 63, 65, 771], [450, 450])
    most = max_num_tiles(total, 5)
    kept, entries = torch.zeros(total, 3, HEADS, 64, device="cuda", dtype=torch.bfloat16), torch.zeros(3, most, 3)
    tiles = entries.int().cuda()
    d_out = numbers(torch.bfloat16, [total])[1]

    def step() -> tuple[Tensor, Tensor]:
        fused = kept.detach().requires_grad_()
        q, k, v = fused.unbind(1)
        out = tiled_attention(q, k, v, tiles)
        [gradient] = torch.autograd.grad(out, fused, d_out)
        return out.detach(), gradient

    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = step()
    for seed, lengths in enumerate(packs):
        qkv, _ = numbers(torch.bfloat16, lengths, seed)
        packing = Packing.of(lengths, "cuda", "tiles")
        assert packing.tiles is not None
        kept.copy_(qkv)
        tiles.copy_(F.pad(packing.tiles, (0, 0, 0, most - packing.tiles.shape[1])))
        graph.replay()
        expected = both_passes(qkv, d_out, packing)
        assert torch.equal(replayed[0], expected[0])
        assert torch.equal(replayed[1], expected[1])
