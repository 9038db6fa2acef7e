"""The fast step: its packed weights anywhere, and on a CUDA device its kernels against the plain steps and float32."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.synthesis import STOP_BIAS, prompts, small_t3, small_voice
from voxgraft.models.generate import (
    CODES_PER_CHECK,
    DecodeSession,
    GeneratedCodes,
    GenerationPrompt,
    SpeechGenerator,
    generate_codes,
)
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.adapter import adapter_state, add_adapter, load_adapter_state, merge_adapter
from voxgraft.nn.attention import DecodeContext, KVCache
from voxgraft.nn.backbones import Backbone, Gpt2Backbone, Gpt2Size, LlamaBackbone, LlamaSize
from voxgraft.nn.decode import (
    MAX_GEMV_ROWS,
    FusedDecodeStep,
    PackedBackbone,
    PackedLayer,
    SamplingParams,
    apply_guidance,
    apply_repetition_penalty,
    filter_logits,
    is_supported_width,
    sample_codes,
    supports_fused_decode,
)

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: no CUDA device")
KINDS = ["llama", "gpt2"]
SAMPLING = SamplingParams(temperature=1.0, repetition_penalty=1.3, max_codes=3 * CODES_PER_CHECK + 1)


def random_body(kind: str, *, heads: int = 4, head_width: int = 64) -> Backbone:
    width = heads * head_width
    body: Backbone = (
        LlamaBackbone(LlamaSize(width, 3, heads, 3 * width))
        if kind == "llama"
        else Gpt2Backbone(Gpt2Size(width, 3, heads))
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in body.requires_grad_(False).parameters():
        values = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(values * parameter.shape[0] ** -0.5 if parameter.dim() > 1 else 1 + 0.2 * values)
    return body.eval()


def product(x: Tensor, part: PackedLayer) -> Tensor:
    return F.linear(x, part.weight, part.bias)


def norm(x: Tensor, part: PackedLayer, packed: PackedBackbone) -> Tensor:
    if packed.kind.norm == "layer":
        return F.layer_norm(x, x.shape[-1:], part.weight, part.bias, packed.kind.eps)
    return F.rms_norm(x, x.shape[-1:], part.weight, packed.kind.eps)


def one_position(packed: PackedBackbone, x: Tensor) -> Tensor:
    """The body over sequences of one position, where attention gives the value: plain mathematics of packed weights."""
    for block in packed.blocks:
        value = product(norm(x, block.first_norm, packed), block.qkv).chunk(3, -1)[2]
        x = x + product(value, block.out)
        hidden = product(norm(x, block.second_norm, packed), block.up)
        if packed.kind.activation == "gated":
            gates, values = hidden.chunk(2, -1)
            hidden = F.silu(gates) * values
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        x = x + product(hidden, block.down)
    return norm(x, packed.final_norm, packed)


def empty_cache(body: Backbone, num_rows: int, length: int = 4, **options: Any) -> KVCache:
    return KVCache((body.num_layers, num_rows, body.num_heads, length, body.head_width), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_are_the_bodys_with_the_adapter_where_it_acts(kind: str) -> None:
    body = random_body(kind)
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    packed = PackedBackbone(body, torch.float32)
    base = one_position(packed, x)
    assert torch.allclose(base, body(x, DecodeContext(empty_cache(body, 3))), atol=1e-5)
    layers = [name for name, module in body.named_modules() if name.endswith(("_proj", "c_attn", "c_fc"))]
    gate = add_adapter(body, layers, rank=2, alpha=2, seed=0)
    state = adapter_state(body)
    load_adapter_state(body, {name: torch.full_like(value, 0.05) for name, value in state.items()})
    packed.refresh(body)
    assert torch.equal(one_position(packed, x), base)
    with gate.opened():
        packed.refresh(body)
        found = one_position(packed, x)
    assert not torch.allclose(found, base, atol=1e-2)
    merge_adapter(body)
    assert torch.allclose(found, body(x, DecodeContext(empty_cache(body, 3))), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_can_be_applied_after_the_product(kind: str) -> None:
    packed = PackedBackbone(random_body(kind), torch.float32)
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    block = packed.blocks[1]
    for before, layer in ((block.first_norm, block.qkv), (block.second_norm, block.up)):
        if layer.moments is None:
            assert kind == "llama"
            continue
        mean, spread = x.mean(-1, keepdim=True), (x.var(-1, correction=0, keepdim=True) + packed.kind.eps).sqrt()
        found = (F.linear(x * before.weight, layer.weight) - mean * layer.moments[0]) / spread + layer.moments[1]
        assert torch.allclose(found, product(norm(x, before, packed), layer), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_body_is_packed_again_into_the_same_places(kind: str) -> None:
    body = random_body(kind)
    packed = PackedBackbone(body, torch.float32)
    held = packed.blocks[2].down.weight
    place, before = held.data_ptr(), held.clone()
    packed.refresh(body)
    assert torch.equal(held, before)
    for parameter in body.parameters():
        parameter.mul_(2)
    packed.refresh(body)
    assert packed.blocks[2].down.weight.data_ptr() == place
    assert torch.equal(held, 2 * before)
    fresh = PackedBackbone(body, torch.float32)
    assert torch.equal(packed.final_norm.weight, fresh.final_norm.weight)
    for block, other in zip(packed.blocks, fresh.blocks, strict=True):
        assert torch.equal(block.qkv.weight, other.qkv.weight)
        if block.qkv.moments is not None:
            assert other.qkv.moments is not None
            assert torch.equal(block.qkv.moments, other.qkv.moments)


def test_widths_that_the_kernels_cannot_cut_into_lanes_take_plain_steps() -> None:
    assert all(map(is_supported_width, (64, 1024, 1280, 4096, 5120)))
    assert not any(map(is_supported_width, (20, 100, 1025, 8 * 33)))


def test_without_a_cuda_device_or_in_float32_plain_steps_are_taken() -> None:
    body = random_body("llama")
    assert not supports_fused_decode(body, torch.device("cpu"), torch.bfloat16)
    assert not supports_fused_decode(body, torch.device("cuda"), torch.float32)


# ---- on a CUDA device --------------------------------------------------------------------------------------


def distance(found: Tensor, want: Tensor) -> float:
    return float((found.float() - want).norm() / want.norm())


CASES = [  # kind, heads, their width, rows, dtype
    ("llama", 4, 64, 1, torch.bfloat16),
    ("llama", 4, 64, MAX_GEMV_ROWS, torch.bfloat16),
    ("llama", 4, 64, MAX_GEMV_ROWS + 1, torch.bfloat16),
    ("llama", 4, 64, 96, torch.bfloat16),
    ("llama", 3, 32, 2, torch.bfloat16),
    ("llama", 2, 128, 1, torch.float16),
    ("llama", 4, 64, 20, torch.float16),
    ("gpt2", 5, 64, 1, torch.bfloat16),
    ("gpt2", 5, 64, MAX_GEMV_ROWS, torch.bfloat16),
    ("gpt2", 5, 64, 20, torch.bfloat16),
    ("gpt2", 4, 16, 1, torch.float16),
]


@cuda
@pytest.mark.parametrize(("kind", "heads", "head_width", "num_rows", "dtype"), CASES)
def test_the_fast_step_is_no_further_from_float32_than_the_plain_step(
    kind: str, heads: int, head_width: int, num_rows: int, dtype: torch.dtype
) -> None:
    half = random_body(kind, heads=heads, head_width=head_width).to("cuda")
    for parameter in half.parameters():
        parameter.data = parameter.data.to(dtype)
    full = copy.deepcopy(half)
    for parameter in full.parameters():
        parameter.data = parameter.data.float()
    generator = torch.Generator("cuda").manual_seed(num_rows)
    fast, plain, exact = (
        empty_cache(half, num_rows, 300, device="cuda", dtype=kind) for kind in (dtype, dtype, torch.float32)
    )
    for name in ("keys", "values"):
        for layer in range(half.num_layers):
            drawn = torch.randn(getattr(fast, name)[layer].shape, generator=generator, device="cuda").to(dtype)
            for memory in (fast, plain, exact):
                getattr(memory, name)[layer].copy_(drawn)
    filled = torch.randint(0, 290, (num_rows,), generator=generator, device="cuda")
    filled[0] = 0
    for memory in (fast, plain, exact):
        memory.filled.copy_(filled)
    step = FusedDecodeStep(PackedBackbone(half, dtype), fast)
    for _ in range(3):
        vectors = torch.randn(num_rows, half.num_heads * half.head_width, generator=generator, device="cuda").to(dtype)
        fast.filled.add_(1)
        found = step(vectors)
        ours, theirs = DecodeContext(plain), DecodeContext(exact)
        plainly, want = half(vectors, ours), full(vectors.float(), theirs)
        ours.finish()
        theirs.finish()
        assert distance(found, want) <= 1.5 * distance(plainly, want)
    assert torch.equal(fast.filled, plain.filled)
    for held, other in zip(fast.keys + fast.values, exact.keys + exact.values, strict=True):
        assert distance(held, other) < 1e-2


def in_half(model: Any) -> Any:
    half = copy.deepcopy(model).to("cuda")
    for parameter in half.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return half


def speaking_models() -> dict[str, SpeechModel]:
    return {"t3": small_t3(width=256), "voice": small_voice(width=256)}


def require_float32s_codes(
    full: SpeechModel, given: list[GenerationPrompt], spoken: list[GeneratedCodes], sampling: SamplingParams
) -> None:
    """Each code is float32's own for what was spoken before it, or behind that by no more than half precision shows."""
    streams = DecodeSession(full, given, sampling)
    for at in range(sampling.max_codes):
        row = streams.penalized_logits()
        codes = torch.tensor([own.codes[at] for own in spoken], device="cuda")
        behind = row.amax(-1) - row.gather(1, codes[:, None])[:, 0]
        spacing = 2.0**-6 * row.amax(-1).abs()  # of two logits in bfloat16, after a body in bfloat16
        assert (behind <= spacing).all(), (at, behind)
        streams.sample_next_codes(None)
        streams.codes[:, at] = codes
        if at + 1 < sampling.max_codes:
            streams.feed_codes()


@cuda
@pytest.mark.parametrize("num_streams", [1, 2, 9])
@pytest.mark.parametrize("name", ["t3", "voice"])
def test_fast_greedy_codes_are_float32s_wherever_half_precision_can_tell(name: str, num_streams: int) -> None:
    half = in_half(speaking_models()[name])
    full = copy.deepcopy(half)
    for parameter in full.parameters():
        parameter.data = parameter.data.float()
    sampling = SamplingParams(temperature=0, max_codes=4 * CODES_PER_CHECK)
    given = prompts(half, [4 + n for n in range(num_streams)])
    speaker = SpeechGenerator(half)
    spoken = speaker.speak(given, sampling)
    assert len(speaker.graphs) == 1
    require_float32s_codes(full, given, spoken, sampling)


@cuda
def test_a_float32_model_under_autocast_is_stepped_fast_and_leaves_nothing_dangling() -> None:
    full = small_t3(width=256).to("cuda").requires_grad_(True)
    sampling = SamplingParams(temperature=0, max_codes=4 * CODES_PER_CHECK)
    given, speaker = prompts(full, (4, 9)), SpeechGenerator(full)
    with torch.autocast("cuda", torch.bfloat16):
        spoken = speaker.speak(given, sampling)
        loop = speaker.graphs[-1]
    overwritten = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(64)]
    with torch.autocast("cuda", torch.bfloat16):
        assert speaker.speak(given, sampling) == spoken
    assert speaker.graphs == [loop]
    del overwritten
    rounded = copy.deepcopy(full).requires_grad_(False)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    require_float32s_codes(rounded, given, spoken, sampling)


@cuda
@pytest.mark.parametrize("name", ["t3", "voice"])
def test_a_speakers_graph_serves_again_and_follows_weights_and_gate(name: str) -> None:
    model = in_half(speaking_models()[name])
    speaker, sampling = SpeechGenerator(model), replace(SAMPLING, temperature=0)
    first = speaker.speak(prompts(model, (4, 9)), sampling)
    loop = speaker.graphs[-1]
    assert (
        speaker.speak(prompts(model, (4, 9)), sampling)
        == first
        == generate_codes(model, prompts(model, (4, 9)), sampling)
    )
    speaker.speak(prompts(model, (20, 2)), replace(sampling, repetition_penalty=1.1, max_codes=30))
    gate = add_adapter(model, model.adapter_layers(), rank=2, alpha=2, seed=0)
    state = adapter_state(model)
    load_adapter_state(model, {key: 0.05 * torch.randn_like(value) for key, value in state.items()})
    assert speaker.speak(prompts(model, (4, 9)), sampling) == first
    with gate.opened():
        other = speaker.speak(prompts(model, (4, 9)), sampling)
        assert other == generate_codes(model, prompts(model, (4, 9)), sampling)
    assert other != first
    with torch.no_grad():
        for parameter in model.body.parameters():
            parameter.mul_(1.1)
    assert (
        speaker.speak(prompts(model, (4, 9)), sampling)
        == generate_codes(model, prompts(model, (4, 9)), sampling)
        != first
    )
    assert speaker.graphs == [loop]


@cuda
def test_fast_streams_stop_and_are_cut_like_plain_ones() -> None:
    model = in_half(small_voice(stop_bias=STOP_BIAS, width=256))
    given, speaker = prompts(model, (4,) * 8), SpeechGenerator(model)
    whole = speaker.speak(given, replace(SAMPLING, max_codes=60))
    assert len({len(spoken.codes) for spoken in whole}) > 2
    for spoken in whole:
        assert model.spec.speech_stop not in spoken.codes
        assert spoken.stopped == (len(spoken.codes) < 60)
    for cut, spoken in zip(speaker.speak(given, replace(SAMPLING, max_codes=11)), whole, strict=True):
        assert cut.codes == spoken.codes[:11]
        assert cut.stopped == (spoken.stopped and len(spoken.codes) < 11)


@cuda
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0, guidance=0.7, repetition_penalty=2.0),
        SamplingParams(temperature=0.7, guidance=0.5, min_p=0.05, repetition_penalty=1.2),
        SamplingParams(temperature=0.8, top_k=30, top_p=0.8, repetition_penalty=10.0),
        SamplingParams(temperature=1.3, top_p=0.6, readable=False),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_k=100_000, min_p=0.3),
    ],
)
def test_the_draw_is_the_plain_one(sampling: SamplingParams) -> None:
    model = in_half(small_t3(width=256) if sampling.guidance else small_voice(width=128))
    num_streams = 64
    speaker = SpeechGenerator(model)
    streams = DecodeSession(model, prompts(model, (4,) * num_streams), replace(sampling, max_codes=16), speaker)
    assert streams.graph is not None
    generator = torch.Generator("cuda").manual_seed(0)
    streams.logits.copy_(3 * torch.randn(streams.logits.shape, generator=generator, device="cuda"))
    streams.state.heard.copy_(torch.rand(streams.state.heard.shape, generator=generator, device="cuda") < 0.3)
    streams.graph.noise.exponential_(generator=generator)
    noise = streams.graph.noise[:, 0].clone() if sampling.temperature > 0 else None
    row = apply_guidance(streams.logits, sampling.guidance) if sampling.guidance else streams.logits.clone()
    row = apply_repetition_penalty(row, streams.state.heard, sampling.repetition_penalty)
    if sampling.readable:
        ids = torch.arange(row.shape[1], device="cuda")
        row[:, (ids >= model.spec.num_codes) & (ids != model.spec.speech_stop)] = -torch.inf
    want = sample_codes(filter_logits(row, sampling), noise)
    streams.graph.advance()
    assert int((streams.codes[:, 0] != want).sum()) <= 1  # two codes may tie but for rounding
    assert streams.state.heard.gather(1, streams.codes[:, :1]).all()
    assert (streams.state.num_generated == CODES_PER_CHECK).all()
