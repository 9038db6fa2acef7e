"""The tensors of IndexTTS-2's checkpoints: every name with its shape, at any size, and the size by looking.

UnifiedVoice is the language model; the semantic codec turns speech features into codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import ConfigError
from voxgraft.models.base import linear_shapes, norm_shapes, prefix_shapes, require_exact_tensors

# Our names of the sizes to the config's.
GPT_SIZE_KEYS = {
    "text_pieces": "number_text_tokens",
    "width": "model_dim",
    "layers": "layers",
    "heads": "heads",
    "speech_rows": "number_mel_codes",
    "max_text": "max_text_tokens",
    "max_speech": "max_mel_tokens",
}
ENCODER_SIZE_KEYS = {
    "width": "output_size",
    "mlp": "linear_units",
    "heads": "attention_heads",
    "blocks": "num_blocks",
    "perceiver_mult": "perceiver_mult",
}
_MAX_BY_KEY = {"layers": 1000, "num_blocks": 1000}
_MAX_SIZE = 1 << 20
# What the published config says and the model is built for.
_REQUIRED_VALUES: dict[str, str | int | bool] = {
    "gpt.condition_type": "conformer_perceiver",
    "gpt.condition_module.input_layer": "conv2d2",
    "gpt.emo_condition_module.input_layer": "conv2d2",
    "gpt.use_mel_codes_as_input": True,
    "gpt.start_text_token": 0,
    "gpt.stop_text_token": 1,
}


def read_config_sizes(
    config: Mapping[Any, Any], section: str, keys: Mapping[str, str], where: str | Path
) -> dict[str, int]:
    """The whole numbers of a section such as `gpt.condition_module`, under our names."""
    section_values = _require_section(config, section, where)
    sizes = {}
    for name, key in keys.items():
        value, largest = section_values.get(key), _MAX_BY_KEY.get(key, _MAX_SIZE)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            found = f"{section}.{key} is {'missing' if value is None else repr(value)[:40]}"
            raise ConfigError("base-config", found, expected=f"a whole number, 1 to {largest:,}", where=where)
        sizes[name] = value
    return sizes


def _require_section(config: Mapping[Any, Any], path: str, where: str | Path) -> Mapping[Any, Any]:
    section: Any = config
    for name in path.split("."):
        section = section.get(name) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping):
        found = f"{path} is {'missing' if section is None else repr(section)[:40]}"
        raise ConfigError("base-config", found, expected="keys with values", where=where)
    return section


# Of the speech features that both conditioning encoders read; fixed in stock code, like the next three.
FEATURE_WIDTH = 1024
EMOTION_WIDTH = 1024
PERCEIVER_HEAD_WIDTH = 64
PERCEIVER_LAYERS = 2
SPEAKER_LATENTS = 32
SINUSOID_ROWS = 5000
DEPTHWISE_KERNEL = 15
GPT_HEAD_WIDTH, MIN_GPT_HEADS = 64, 4
# Names that the original program's module also lists once it has spoken; its loader passes over them, and so do we.
ALIAS_PREFIXES = ("inference_model.", "gpt.wte.")
NUM_SEMANTIC_CODES, SEMANTIC_CODE_WIDTH, CODEC_KERNEL = 8192, 8, 7

_UNIFIED_VOICE_PARTS = {
    "gpt.": "backbone",
    "final_norm.": "backbone",
    "conditioning_encoder.": "voice conditioning",
    "perceiver_encoder.": "voice conditioning",
    "emo_": "emotion conditioning",
    "emovec_layer.": "emotion conditioning",
    "speed_emb.": "speed rows",
    "text_embedding.": "text tables",
    "text_head.": "text tables",
    "mel_embedding.": "speech tables",
    "mel_head.": "speech tables",
    "text_pos_embedding.": "positions",
    "mel_pos_embedding.": "positions",
}


@dataclass(frozen=True, slots=True)
class ConditioningEncoderSize:
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
    heads: int = 0
    """No tensor shows it, config.yaml does; 0 means heads of the published width of 64, and four at least."""
    speech_rows: int = 8194
    max_text: int = 600
    max_speech: int = 1815
    speaker: ConditioningEncoderSize = ConditioningEncoderSize(width=512, mlp=2048, heads=8, blocks=6, perceiver_mult=2)
    emotion: ConditioningEncoderSize = ConditioningEncoderSize(width=512, mlp=1024, heads=4, blocks=4, perceiver_mult=2)

    def __post_init__(self) -> None:
        if not self.heads:
            object.__setattr__(self, "heads", max(MIN_GPT_HEADS, self.width // GPT_HEAD_WIDTH))

    @classmethod
    def of(
        cls,
        config: Mapping[Any, Any],
        shapes: Mapping[str, Shape],
        where: str | Path = "",
        config_path: str | Path = "",
    ) -> UnifiedVoiceSize:
        """The size that a base's config.yaml states, after looking whether the tensors are just that.

        Aliases among the tensors do not count. What is no size in the config is an error, and so is any difference.
        """
        # A model that is built, or begins and ends its sequences, another way than the published one is refused.
        speech_rows = read_config_sizes(config, "gpt", {"rows": "number_mel_codes"}, config_path)["rows"]
        speech_ids = {"gpt.start_mel_token": speech_rows - 2, "gpt.stop_mel_token": speech_rows - 1}
        for path, expected in (_REQUIRED_VALUES | speech_ids).items():
            section, _, key = path.rpartition(".")
            kind = _require_section(config, section, config_path).get(key, expected)
            if kind != expected:
                found = f"{path} is {str(kind)[:40]!r}"
                raise ConfigError("base-config", found, expected=str(expected), where=config_path)
        size = cls(
            **read_config_sizes(config, "gpt", GPT_SIZE_KEYS, config_path),
            speaker=ConditioningEncoderSize(
                **read_config_sizes(config, "gpt.condition_module", ENCODER_SIZE_KEYS, config_path)
            ),
            emotion=ConditioningEncoderSize(
                **read_config_sizes(config, "gpt.emo_condition_module", ENCODER_SIZE_KEYS, config_path)
            ),
        )
        for section, width, heads in (
            ("gpt", size.width, size.heads),
            ("gpt.condition_module", size.speaker.width, size.speaker.heads),
            ("gpt.emo_condition_module", size.emotion.width, size.emotion.heads),
        ):
            if width % heads:
                found = f"{section} is {width:,} wide and has {heads:,} heads"
                raise ConfigError(
                    "base-config",
                    found,
                    expected="a width that is a multiple of the number of heads",
                    where=config_path,
                )
        # Checkpoints that were saved after speaking list some tensors twice.
        own = {name: shape for name, shape in shapes.items() if not is_alias(name)}
        require_exact_tensors(
            own, unified_voice_shapes(size), "UnifiedVoice of the size that config.yaml states", where
        )
        return size


def unified_voice_shapes(size: UnifiedVoiceSize) -> dict[str, Shape]:
    """Names and shapes in the order of the published file: 665 at full depth."""
    width, text_rows = size.width, size.text_pieces + 1
    shapes: dict[str, Shape] = prefix_shapes("conditioning_encoder", _conformer_shapes(size.speaker))
    shapes |= prefix_shapes("perceiver_encoder", perceiver_shapes(size.speaker, width, SPEAKER_LATENTS))
    shapes["speed_emb.weight"] = (2, width)
    shapes |= prefix_shapes("emo_conditioning_encoder", _conformer_shapes(size.emotion))
    shapes |= prefix_shapes("emo_perceiver_encoder", perceiver_shapes(size.emotion, EMOTION_WIDTH, 1))
    shapes["text_embedding.weight"] = (text_rows, width)
    shapes |= linear_shapes("emo_layer", width, width) | linear_shapes("emovec_layer", width, EMOTION_WIDTH)
    shapes["mel_embedding.weight"] = (size.speech_rows, width)
    shapes |= prefix_shapes("gpt", gpt2_shapes(width, size.layers))
    shapes["mel_pos_embedding.emb.weight"] = (size.max_speech + 3, width)
    shapes["text_pos_embedding.emb.weight"] = (size.max_text + 2, width)
    shapes |= norm_shapes("final_norm", width)
    return shapes | linear_shapes("text_head", text_rows, width) | linear_shapes("mel_head", size.speech_rows, width)


def gpt2_shapes(width: int, layers: int) -> dict[str, Shape]:
    """A GPT-2 without tables, in the order and under the names of transformers."""
    block = {
        **norm_shapes("ln_1", width),
        **_gpt_linear_shapes("attn.c_attn", width, 3 * width),
        **_gpt_linear_shapes("attn.c_proj", width, width),
        **norm_shapes("ln_2", width),
        **_gpt_linear_shapes("mlp.c_fc", width, 4 * width),
        **_gpt_linear_shapes("mlp.c_proj", 4 * width, width),
    }
    shapes: dict[str, Shape] = {}
    for layer in range(layers):
        shapes |= prefix_shapes(f"h.{layer}", block)
    return shapes | norm_shapes("ln_f", width)


def _gpt_linear_shapes(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    """GPT-2's own layers store a matrix the other way round."""
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def _conformer_shapes(size: ConditioningEncoderSize) -> dict[str, Shape]:
    width = size.width
    block: dict[str, Shape] = {f"self_attn.pos_bias_{part}": (size.heads, width // size.heads) for part in ("u", "v")}
    for part in ("q", "k", "v", "out"):
        block |= linear_shapes(f"self_attn.linear_{part}", width, width)
    block["self_attn.linear_pos.weight"] = (width, width)
    block |= linear_shapes("feed_forward.w_1", size.mlp, width) | linear_shapes("feed_forward.w_2", width, size.mlp)
    block |= linear_shapes("conv_module.pointwise_conv1", 2 * width, width, 1)
    block |= linear_shapes("conv_module.depthwise_conv", width, 1, DEPTHWISE_KERNEL)
    block |= norm_shapes("conv_module.norm", width)
    block |= linear_shapes("conv_module.pointwise_conv2", width, width, 1)
    for norm in ("ff", "mha", "conv", "final"):
        block |= norm_shapes(f"norm_{norm}", width)
    shapes = linear_shapes("embed.conv.0", width, 1, 3, 3)
    shapes |= linear_shapes("embed.out.0", width, width * ((FEATURE_WIDTH - 1) // 2))
    shapes["embed.pos_enc.pe"] = (1, SINUSOID_ROWS, width)
    shapes |= norm_shapes("after_norm", width)
    for number in range(size.blocks):
        shapes |= prefix_shapes(f"encoders.{number}", block)
    return shapes


def perceiver_shapes(size: ConditioningEncoderSize, width: int, latents: int) -> dict[str, Shape]:
    """A perceiver of that many latents behind an encoder; `width` is its own."""
    attention = size.heads * PERCEIVER_HEAD_WIDTH
    inner = int(width * size.perceiver_mult * 2 / 3)
    shapes: dict[str, Shape] = {"latents": (latents, width)}
    if size.width != width:
        shapes |= linear_shapes("proj_context", width, size.width)
    for layer in range(PERCEIVER_LAYERS):
        shapes[f"layers.{layer}.0.to_q.weight"] = (attention, width)
        shapes[f"layers.{layer}.0.to_kv.weight"] = (2 * attention, width)
        shapes[f"layers.{layer}.0.to_out.weight"] = (width, attention)
        shapes |= linear_shapes(f"layers.{layer}.1.0", 2 * inner, width)
        shapes |= linear_shapes(f"layers.{layer}.1.2", width, inner)
    shapes["norm.gamma"] = (width,)
    return shapes


def unified_voice_part_name(tensor: str) -> str:
    """The part of the model that a tensor belongs to, in a word for people."""
    if tensor.endswith(".pos_enc.pe"):
        return "computed tables"
    return next((part for start, part in _UNIFIED_VOICE_PARTS.items() if tensor.startswith(start)), "other")


def is_alias(tensor: str) -> bool:
    """Whether the name is a second one for a tensor that the model has anyway."""
    return tensor.startswith(ALIAS_PREFIXES)


def is_unified_voice(names: Iterable[str]) -> bool:
    """Whether these are the names of IndexTTS-2's GPT, whole or not. Older and newer generations lack some of them."""
    required = {"text_embedding.weight", "mel_embedding.weight", "speed_emb.weight", "gpt.h.0.attn.c_attn.weight"}
    return required <= set(names)


CONFIG_NAME = "config.yaml"


def read_base_config(config: Path) -> dict[Any, Any]:
    """Everything that the file says."""
    from voxgraft.core.files import read_yaml

    settings = read_yaml(config)
    if not isinstance(settings, dict):
        found = f"{config.name} contains a {type(settings).__name__}"
        raise ConfigError("base-config", found, expected="keys with values", where=config)
    return settings


def get_config_section(settings: dict[Any, Any], name: str, config: Path) -> dict[Any, Any]:
    """One section; empty where it does not exist."""
    section = settings.get(name, {})
    if not isinstance(section, dict):
        found = f"{name} is {str(section)[:40]!r}"
        raise ConfigError("base-config", found, expected="keys with values", where=config)
    return section


def get_config_file_name(section: dict[Any, Any], path: str, config: Path) -> str | None:
    """The file name that a setting gives, if it exists; it may not lead out of the base folder."""
    name = section.get(path.rpartition(".")[2])
    if name is None:
        return None
    expected = "the name of a file in the same folder"
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError("base-config", f"{path} is {str(name)[:80]!r}", expected=expected, where=config)
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        cure = f"put the file into the folder and write its name as {path}."
        found = f"{path} is outside the folder: {name!r}"
        raise ConfigError("base-config", found, expected=expected, where=config, cure=cure)
    return name
