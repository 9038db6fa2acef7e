"""The tensors of an IndexTTS-2 GPT checkpoint (UnifiedVoice): every name with its shape, at any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FEATURE_WIDTH = 1024
"""Of the speech features that both conditioning encoders read; fixed in stock code, like the next three."""
EMOTION_WIDTH = 1024
PERCEIVER_HEAD_WIDTH = 64
PERCEIVER_LAYERS = 2
SPEAKER_LATENTS = 32
SINUSOID_ROWS = 5000
DEPTHWISE_KERNEL = 15

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncoderSize:
    """One conditioning encoder: a conformer and the perceiver behind it."""

    width: int
    mlp: int
    heads: int
    blocks: int
    perceiver_mult: int


@dataclass(frozen=True, slots=True)
class UnifiedVoiceSize:
    """The sizes that config.yaml states; as published by default. The text table has one row more than pieces."""

    text_pieces: int = 12000
    width: int = 1280
    layers: int = 24
    speech_rows: int = 8194
    max_text: int = 600
    max_speech: int = 1815
    speaker: EncoderSize = EncoderSize(width=512, mlp=2048, heads=8, blocks=6, perceiver_mult=2)
    emotion: EncoderSize = EncoderSize(width=512, mlp=1024, heads=4, blocks=4, perceiver_mult=2)


def unified_voice_shapes(size: UnifiedVoiceSize) -> dict[str, Shape]:
    """Names and shapes in the order of the published file: 665 at full depth."""
    width, text_rows = size.width, size.text_pieces + 1
    shapes: dict[str, Shape] = {}
    shapes |= _under("conditioning_encoder", _conformer(size.speaker))
    shapes |= _under("perceiver_encoder", _perceiver(size.speaker, width, SPEAKER_LATENTS))
    shapes["speed_emb.weight"] = (2, width)
    shapes |= _under("emo_conditioning_encoder", _conformer(size.emotion))
    shapes |= _under("emo_perceiver_encoder", _perceiver(size.emotion, EMOTION_WIDTH, 1))
    shapes["text_embedding.weight"] = (text_rows, width)
    shapes |= _under("emo_layer", _linear(width, width))
    shapes |= _under("emovec_layer", _linear(width, EMOTION_WIDTH))
    shapes["mel_embedding.weight"] = (size.speech_rows, width)
    for layer in range(size.layers):
        shapes |= _under(f"gpt.h.{layer}", _gpt_block(width))
    shapes |= _under("gpt.ln_f", _norm(width))
    shapes["mel_pos_embedding.emb.weight"] = (size.max_speech + 3, width)
    shapes["text_pos_embedding.emb.weight"] = (size.max_text + 2, width)
    shapes |= _under("final_norm", _norm(width))
    shapes |= _under("text_head", _linear(text_rows, width))
    return shapes | _under("mel_head", _linear(size.speech_rows, width))


def _under(prefix: str, parts: Iterator[tuple[str, Shape]]) -> dict[str, Shape]:
    return {f"{prefix}.{name}": shape for name, shape in parts}


def _linear(outputs: int, inputs: int, *kernel: int) -> Iterator[tuple[str, Shape]]:
    yield "weight", (outputs, inputs, *kernel)
    yield "bias", (outputs,)


def _norm(width: int) -> Iterator[tuple[str, Shape]]:
    yield "weight", (width,)
    yield "bias", (width,)


def _conformer(size: EncoderSize) -> Iterator[tuple[str, Shape]]:
    width = size.width
    yield from _under("embed.conv.0", _linear(width, 1, 3, 3)).items()
    yield from _under("embed.out.0", _linear(width, width * ((FEATURE_WIDTH - 1) // 2))).items()
    yield "embed.pos_enc.pe", (1, SINUSOID_ROWS, width)
    yield from _under("after_norm", _norm(width)).items()
    for block in range(size.blocks):
        yield from _under(f"encoders.{block}", _conformer_block(size)).items()


def _conformer_block(size: EncoderSize) -> Iterator[tuple[str, Shape]]:
    width = size.width
    for part in ("u", "v"):
        yield f"self_attn.pos_bias_{part}", (size.heads, width // size.heads)
    for part in ("q", "k", "v", "out"):
        yield from _under(f"self_attn.linear_{part}", _linear(width, width)).items()
    yield "self_attn.linear_pos.weight", (width, width)
    yield from _under("feed_forward.w_1", _linear(size.mlp, width)).items()
    yield from _under("feed_forward.w_2", _linear(width, size.mlp)).items()
    yield from _under("conv_module.pointwise_conv1", _linear(2 * width, width, 1)).items()
    yield from _under("conv_module.depthwise_conv", _linear(width, 1, DEPTHWISE_KERNEL)).items()
    yield from _under("conv_module.norm", _norm(width)).items()
    yield from _under("conv_module.pointwise_conv2", _linear(width, width, 1)).items()
    for place in ("ff", "mha", "conv", "final"):
        yield from _under(f"norm_{place}", _norm(width)).items()


def _perceiver(size: EncoderSize, width: int, latents: int) -> Iterator[tuple[str, Shape]]:
    attention = size.heads * PERCEIVER_HEAD_WIDTH
    inner = int(width * size.perceiver_mult * 2 / 3)
    yield "latents", (latents, width)
    if size.width != width:
        yield from _under("proj_context", _linear(width, size.width)).items()
    for layer in range(PERCEIVER_LAYERS):
        yield f"layers.{layer}.0.to_q.weight", (attention, width)
        yield f"layers.{layer}.0.to_kv.weight", (2 * attention, width)
        yield f"layers.{layer}.0.to_out.weight", (width, attention)
        yield from _under(f"layers.{layer}.1.0", _linear(2 * inner, width)).items()
        yield from _under(f"layers.{layer}.1.2", _linear(width, inner)).items()
    yield "norm.gamma", (width,)


def _gpt_block(width: int) -> Iterator[tuple[str, Shape]]:
    yield from _under("ln_1", _norm(width)).items()
    yield from _under("attn.c_attn", _gpt_linear(width, 3 * width)).items()
    yield from _under("attn.c_proj", _gpt_linear(width, width)).items()
    yield from _under("ln_2", _norm(width)).items()
    yield from _under("mlp.c_fc", _gpt_linear(width, 4 * width)).items()
    yield from _under("mlp.c_proj", _gpt_linear(4 * width, width)).items()


def _gpt_linear(inputs: int, outputs: int) -> Iterator[tuple[str, Shape]]:
    """GPT-2's own layers store a matrix the other way round."""
    yield "weight", (inputs, outputs)
    yield "bias", (outputs,)
