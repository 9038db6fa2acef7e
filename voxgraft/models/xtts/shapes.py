"""The tensors of XTTS's checkpoints: every name with its shape, at any size, and the size by looking. Needs no torch.

`model.pth` holds the language model (`gpt.`), the vocoder and the speaker encoder (`hifigan_decoder.`) and the scale of
the mel spectrograms; `dvae.pth` the encoder that turns a recording into codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import CheckpointError, ConfigError
from voxgraft.models.base import (
    count_layers,
    linear_shapes,
    norm_shapes,
    prefix_shapes,
    read_common_side,
    read_dimension,
    require_exact_tensors,
)
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, gpt2_shapes, perceiver_shapes

# Fixed in stock code at every width.
NUM_MELS = 80
VOICE_LATENTS = 32
CONDITIONING_BLOCKS = 6
PERCEIVER_HEADS, PERCEIVER_MULT = 8, 4
SPEAKER_VECTOR_WIDTH = 512
SPEAKER_MELS, SPEAKER_ATTENTION_WIDTH = 64, 128
SPEAKER_BLOCKS = (3, 4, 6, 3)
SPEAKER_FFT, SPEAKER_WINDOW = 512, 400
VOCODER_RATES = (8, 8, 2, 2)
VOCODER_KERNELS = (16, 16, 4, 4)
RESBLOCK_KERNELS = (3, 7, 11)
RESBLOCK_DILATIONS = (1, 3, 5)
VOCODER_ENDS_KERNEL = 7
DVAE_BLOCKS = 3
GPT_HEAD_WIDTH, MIN_GPT_HEADS = 64, 4
# Text rows at and below this id are the special ones that every text begins with.
TEXT_START_ID, TEXT_STOP_ID = 261, 0

DECODER_PREFIX = "hifigan_decoder."
VOCODER_PREFIX = "hifigan_decoder.waveform_decoder."
SPEAKER_ENCODER_PREFIX = "hifigan_decoder.speaker_encoder."
MEL_STATS_NAME = "mel_stats"
# Counts the batches that a batch norm was trained on; whole numbers, and of no use after training.
COUNTER_SUFFIX = ".num_batches_tracked"
# Second names that version 1 files hold.
ALIAS_PREFIXES = ("gpt.gpt_inference.", "gpt.gpt.wte.")

_GPT_LAYER = re.compile(r"gpt\.gpt\.h\.(\d{1,4})\.")
_PARTS = {
    "gpt.gpt.": "backbone",
    "gpt.final_norm.": "backbone",
    "gpt.conditioning_": "voice conditioning",
    "gpt.text_embedding.": "text tables",
    "gpt.text_head.": "text tables",
    "gpt.mel_embedding.": "speech tables",
    "gpt.mel_head.": "speech tables",
    "gpt.text_pos_embedding.": "positions",
    "gpt.mel_pos_embedding.": "positions",
    VOCODER_PREFIX: "vocoder",
    SPEAKER_ENCODER_PREFIX: "speaker encoder",
    MEL_STATS_NAME: "mel statistics",
}


@dataclass(frozen=True, slots=True)
class XTTSSize:
    """The sizes that may differ; as published by default."""

    text_rows: int = 6681
    width: int = 1024
    layers: int = 30
    heads: int = 0
    """No tensor shows it, config.json does; 0 means heads of the published width of 64, and four at least."""
    speech_rows: int = 1026
    text_positions: int = 404
    speech_positions: int = 608
    vocoder_width: int = 512
    """Channels behind the vocoder's first convolution; each of its four stages has half as many."""
    speaker_width: int = 32
    """Channels of the speaker encoder's first stage; each later stage has twice as many."""

    def __post_init__(self) -> None:
        if not self.heads:
            object.__setattr__(self, "heads", max(MIN_GPT_HEADS, self.width // GPT_HEAD_WIDTH))

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], where: str | Path = "", *, heads: int = 0) -> XTTSSize:
        """The size of the XTTS that these tensors are; an error with the differences where they make no whole one.

        Second names and a trainer's own parts do not count.
        """
        published = cls()
        own = {name: shape for name, shape in shapes.items() if not is_alias(name)}
        size = cls(
            text_rows=read_dimension(own, "gpt.text_embedding.weight", 0, published.text_rows),
            width=read_common_side(own, ("ln_1.weight", "ln_2.weight"), published.width),
            layers=count_layers(own, _GPT_LAYER),
            heads=heads,
            speech_rows=read_dimension(own, "gpt.mel_embedding.weight", 0, published.speech_rows),
            text_positions=read_dimension(own, "gpt.text_pos_embedding.emb.weight", 0, published.text_positions),
            speech_positions=read_dimension(own, "gpt.mel_pos_embedding.emb.weight", 0, published.speech_positions),
            vocoder_width=read_dimension(own, f"{VOCODER_PREFIX}conv_pre.weight", 0, published.vocoder_width),
            speaker_width=read_dimension(own, f"{SPEAKER_ENCODER_PREFIX}conv1.weight", 0, published.speaker_width),
        )
        require_exact_tensors(own, xtts_shapes(size), "XTTS", where)
        if not size.layers or not size.width or size.width % size.heads:
            found = f"an XTTS of {size.layers:,} layers that is {size.width:,} wide, with {size.heads:,} heads"
            expected = "at least one layer, and a width that is a multiple of the number of heads"
            raise CheckpointError("tensors-mismatch", found, expected=expected, where=where)
        return size


def xtts_shapes(size: XTTSSize) -> dict[str, Shape]:
    """Names and shapes in the order of the published file: 963 at full depth."""
    shapes: dict[str, Shape] = {MEL_STATS_NAME: (NUM_MELS,)}
    shapes |= prefix_shapes("gpt", _gpt_shapes(size))
    shapes |= prefix_shapes(
        VOCODER_PREFIX.removesuffix("."), vocoder_shapes(size.width, size.vocoder_width, SPEAKER_VECTOR_WIDTH)
    )
    return shapes | prefix_shapes(SPEAKER_ENCODER_PREFIX.removesuffix("."), speaker_encoder_shapes(size.speaker_width))


def _gpt_shapes(size: XTTSSize) -> dict[str, Shape]:
    width = size.width
    shapes = linear_shapes("conditioning_encoder.init", width, NUM_MELS, 1)
    for number in range(CONDITIONING_BLOCKS):
        block = f"conditioning_encoder.attn.{number}"
        shapes |= norm_shapes(f"{block}.norm", width)
        shapes |= linear_shapes(f"{block}.qkv", 3 * width, width, 1)
        shapes |= linear_shapes(f"{block}.proj_out", width, width, 1)
    shapes["text_embedding.weight"] = (size.text_rows, width)
    shapes["mel_embedding.weight"] = (size.speech_rows, width)
    shapes |= prefix_shapes("gpt", gpt2_shapes(width, size.layers))
    shapes["mel_pos_embedding.emb.weight"] = (size.speech_positions, width)
    shapes["text_pos_embedding.emb.weight"] = (size.text_positions, width)
    shapes |= norm_shapes("final_norm", width)
    shapes |= linear_shapes("text_head", size.text_rows, width) | linear_shapes("mel_head", size.speech_rows, width)
    return shapes | prefix_shapes(
        "conditioning_perceiver", perceiver_shapes(conditioning_perceiver_size(width), width, VOICE_LATENTS)
    )


def conditioning_perceiver_size(width: int) -> ConditioningEncoderSize:
    """The perceiver behind the conditioning encoder, which is as wide as the model."""
    return ConditioningEncoderSize(width, mlp=0, heads=PERCEIVER_HEADS, blocks=0, perceiver_mult=PERCEIVER_MULT)


def vocoder_shapes(latent_width: int = 1024, width: int = 512, speaker: int = SPEAKER_VECTOR_WIDTH) -> dict[str, Shape]:
    """The HiFi-GAN, without VOCODER_PREFIX: 241 tensors. A weight norm is a gain per first axis and a direction."""
    shapes: dict[str, Shape] = {
        "conv_pre.bias": (width,),
        "conv_pre.weight": (width, latent_width, VOCODER_ENDS_KERNEL),
    }
    channels = [width >> stage for stage in range(len(VOCODER_RATES) + 1)]
    for stage, kernel in enumerate(VOCODER_KERNELS):
        # The first axis of a transposed convolution is its input.
        shapes |= _weight_norm_shapes(f"ups.{stage}", (channels[stage], channels[stage + 1], kernel), transposed=True)
    for stage in range(len(VOCODER_RATES)):
        own = channels[stage + 1]
        for number, kernel in enumerate(RESBLOCK_KERNELS):
            block = f"resblocks.{stage * len(RESBLOCK_KERNELS) + number}"
            for part in ("convs1", "convs2"):
                for layer in range(len(RESBLOCK_DILATIONS)):
                    shapes |= _weight_norm_shapes(f"{block}.{part}.{layer}", (own, own, kernel))
    shapes["conv_post.weight"] = (1, channels[-1], VOCODER_ENDS_KERNEL)
    shapes |= linear_shapes("cond_layer", width, speaker, 1)
    for stage in range(len(VOCODER_RATES)):
        shapes |= linear_shapes(f"conds.{stage}", channels[stage + 1], speaker, 1)
    return shapes


def _weight_norm_shapes(name: str, shape: Shape, *, transposed: bool = False) -> dict[str, Shape]:
    weight = f"{name}.parametrizations.weight"
    outputs = shape[1] if transposed else shape[0]
    return {
        f"{name}.bias": (outputs,),
        f"{weight}.original0": (shape[0], 1, 1),
        f"{weight}.original1": shape,
    }


def speaker_encoder_shapes(width: int = 32) -> dict[str, Shape]:
    """The ResNet, without SPEAKER_ENCODER_PREFIX: 295 tensors, of which three are computed and 37 are counters."""
    shapes = linear_shapes("conv1", width, 1, 3, 3) | _batch_norm_shapes("bn1", width)
    inputs = width
    for stage, num_blocks in enumerate(SPEAKER_BLOCKS):
        own = width << stage
        squeezed = max(1, own // 8)
        for number in range(num_blocks):
            block = f"layer{stage + 1}.{number}"
            shapes[f"{block}.conv1.weight"] = (own, inputs, 3, 3)
            shapes |= _batch_norm_shapes(f"{block}.bn1", own)
            shapes[f"{block}.conv2.weight"] = (own, own, 3, 3)
            shapes |= _batch_norm_shapes(f"{block}.bn2", own)
            shapes |= linear_shapes(f"{block}.se.fc.0", squeezed, own)
            shapes |= linear_shapes(f"{block}.se.fc.2", own, squeezed)
            if stage and not number:
                shapes[f"{block}.downsample.0.weight"] = (own, inputs, 1, 1)
                shapes |= _batch_norm_shapes(f"{block}.downsample.1", own)
            inputs = own
    # Three stages halve the bins; channels and bins are then laid flat.
    flat = inputs * (SPEAKER_MELS >> (len(SPEAKER_BLOCKS) - 1))
    shapes |= {
        "torch_spec.0.filter": (1, 1, 2),
        "torch_spec.1.spectrogram.window": (SPEAKER_WINDOW,),
        "torch_spec.1.mel_scale.fb": (SPEAKER_FFT // 2 + 1, SPEAKER_MELS),
    }
    shapes |= linear_shapes("attention.0", SPEAKER_ATTENTION_WIDTH, flat, 1)
    shapes |= _batch_norm_shapes("attention.2", SPEAKER_ATTENTION_WIDTH)
    shapes |= linear_shapes("attention.3", flat, SPEAKER_ATTENTION_WIDTH, 1)
    return shapes | linear_shapes("fc", SPEAKER_VECTOR_WIDTH, 2 * flat)


def _batch_norm_shapes(name: str, width: int) -> dict[str, Shape]:
    shapes = norm_shapes(name, width)
    return shapes | {
        f"{name}.running_mean": (width,),
        f"{name}.running_var": (width,),
        name + COUNTER_SUFFIX: (),
    }


def dvae_shapes(hidden: int = 512, code_width: int = 512, num_codes: int = 1024) -> dict[str, Shape]:
    """The tensors of dvae.pth that matter: its state of training is left out."""
    inner = 2 * hidden

    def block(name: str) -> dict[str, Shape]:
        return (
            linear_shapes(f"{name}.net.0", inner, inner, 3)
            | linear_shapes(f"{name}.net.2", inner, inner, 3)
            | linear_shapes(f"{name}.net.4", inner, inner, 1)
        )

    shapes = linear_shapes("encoder.0.0", hidden, NUM_MELS, 3) | linear_shapes("encoder.1.0", inner, hidden, 3)
    for number in range(DVAE_BLOCKS):
        shapes |= block(f"encoder.{number + 2}")
    shapes |= linear_shapes("encoder.5", code_width, inner, 1) | linear_shapes("decoder.0", inner, code_width, 1)
    for number in range(DVAE_BLOCKS):
        shapes |= block(f"decoder.{number + 1}")
    shapes |= linear_shapes("decoder.4.0.conv", inner, inner, 3) | linear_shapes("decoder.5.0.conv", hidden, inner, 3)
    shapes |= linear_shapes("decoder.6", NUM_MELS, hidden, 1)
    return shapes | {"codebook.embed": (code_width, num_codes)}


def xtts_part_name(tensor: str) -> str | None:
    """The part of the model that a tensor belongs to, in a word for people; None for a second name."""
    if is_alias(tensor):
        return None
    if is_computed(tensor):
        return "computed tables"
    return next((part for start, part in _PARTS.items() if tensor.startswith(start)), "other")


def is_alias(tensor: str) -> bool:
    """Whether the name is a second one for a tensor that the model has anyway."""
    return tensor.startswith(ALIAS_PREFIXES)


def is_computed(tensor: str) -> bool:
    """Whether the program computes it and stores it with its weights, or counts something in it."""
    return tensor.startswith(f"{SPEAKER_ENCODER_PREFIX}torch_spec.") or tensor.endswith(COUNTER_SUFFIX)


def is_xtts(names: Iterable[str]) -> bool:
    """Whether these are the names of an XTTS with a perceiver, whole or not."""
    required = {
        "gpt.text_embedding.weight",
        "gpt.mel_embedding.weight",
        "gpt.conditioning_perceiver.latents",
    }
    return required <= set(names)


CONFIG_NAME = "config.json"
_MAX_SIZE = 1 << 20


def read_xtts_config(config: Path) -> dict[str, Any]:
    """Everything that the file says. It may hold the bare word `Infinity`, which is no JSON."""
    from voxgraft.core.files import read_json

    settings = read_json(config, constants=True)
    if not isinstance(settings, dict):
        found = f"{config.name} contains a {type(settings).__name__}"
        raise ConfigError("base-config", found, expected="keys with values", where=config)
    return settings


def get_config_int(settings: Mapping[str, Any], name: str, config: Path) -> int | None:
    """A whole number of `model_args`; None where the file does not state it."""
    section = settings.get("model_args", {})
    value = section.get(name) if isinstance(section, Mapping) else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_SIZE:
        found = f"model_args.{name} is {value!r:.40}"
        raise ConfigError("base-config", found, expected=f"a whole number, 0 to {_MAX_SIZE:,}", where=config)
    return value
