"""The tensors of IndexTTS-2's checkpoints: every name with its shape, at any size, and the size by looking.

UnifiedVoice is the language model; the semantic codec turns speech features into codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from voxgraft.core.errors import ConfigError
from voxgraft.models.detect import ShapeLike, require_exact_tensors

GPT_SIZE_KEYS = {
    "text_pieces": "number_text_tokens",
    "width": "model_dim",
    "layers": "layers",
    "heads": "heads",
    "speech_rows": "number_mel_codes",
    "max_text": "max_text_tokens",
    "max_speech": "max_mel_tokens",
}
"""Our names of the sizes to the config's."""
ENCODER_SIZE_KEYS = {
    "width": "output_size",
    "mlp": "linear_units",
    "heads": "attention_heads",
    "blocks": "num_blocks",
    "perceiver_mult": "perceiver_mult",
}
_MAX_BY_KEY = {"layers": 1000, "num_blocks": 1000}
_MAX_SIZE = 1 << 20
_REQUIRED_VALUES: dict[str, str | int | bool] = {
    "gpt.condition_type": "conformer_perceiver",
    "gpt.condition_module.input_layer": "conv2d2",
    "gpt.emo_condition_module.input_layer": "conv2d2",
    "gpt.use_mel_codes_as_input": True,
    "gpt.start_text_token": 0,
    "gpt.stop_text_token": 1,
}
"""What the published config says and the model is built for."""


def read_config_sizes(
    config: Mapping[Any, Any], section: str, keys: Mapping[str, str], where: str | Path
) -> dict[str, int]:
    """The whole numbers of a section such as `gpt.condition_module`, under our names."""
    stated = _require_section(config, section, where)
    return {name: _require_size(stated.get(key), f"{section}.{key}", where) for name, key in keys.items()}


def refuse_other_architectures(config: Mapping[Any, Any], where: str | Path) -> None:
    """Refuse a model that is built, or begins and ends its sequences, another way than the published one."""
    speech_rows = _require_size(
        _require_section(config, "gpt", where).get("number_mel_codes"), "gpt.number_mel_codes", where
    )
    speech_ids = {"gpt.start_mel_token": speech_rows - 2, "gpt.stop_mel_token": speech_rows - 1}
    for path, expected in (_REQUIRED_VALUES | speech_ids).items():
        section, _, key = path.rpartition(".")
        kind = _require_section(config, section, where).get(key, expected)
        if kind != expected:
            raise ConfigError("base-config", f"{path} is {str(kind)[:40]!r}", expected=str(expected), where=where)


def require_divisible_heads(width: int, heads: int, section: str, where: str | Path) -> None:
    """A width is cut into heads of one size each."""
    if width % heads:
        found = f"{section} is {width:,} wide and has {heads:,} heads"
        raise ConfigError("base-config", found, expected="heads that divide the width", where=where)


def _require_section(config: Mapping[Any, Any], path: str, where: str | Path) -> Mapping[Any, Any]:
    section: Any = config
    for name in path.split("."):
        section = section.get(name) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping):
        found = f"{path} is {'missing' if section is None else repr(section)[:40]}"
        raise ConfigError("base-config", found, expected="settings by name", where=where)
    return section


def _require_size(value: Any, path: str, where: str | Path) -> int:
    largest = _MAX_BY_KEY.get(path.rpartition(".")[2], _MAX_SIZE)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        found = f"{path} is {'missing' if value is None else repr(value)[:40]}"
        raise ConfigError("base-config", found, expected=f"a whole number, 1 to {largest:,}", where=where)
    return value


FEATURE_WIDTH = 1024
"""Of the speech features that both conditioning encoders read; fixed in stock code, like the next three."""
EMOTION_WIDTH = 1024
PERCEIVER_HEAD_WIDTH = 64
PERCEIVER_LAYERS = 2
SPEAKER_LATENTS = 32
SINUSOID_ROWS = 5000
DEPTHWISE_KERNEL = 15
GPT_HEAD_WIDTH, MIN_GPT_HEADS = 64, 4
ALIAS_PREFIXES = ("inference_model.", "gpt.wte.")
"""Names that the stock program's module also lists once it has spoken; its loader passes over them, and so do we."""
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
    """No tensor shows it, config.yaml does; 0 stands for heads of the published width of 64, and four at least."""
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
        shapes: Mapping[str, ShapeLike],
        where: str | Path = "",
        config_path: str | Path = "",
    ) -> UnifiedVoiceSize:
        """The size that a base's config.yaml states, after looking whether the tensors are just that.

        Aliases among the tensors do not count. What is no size in the config is an error, and so is any difference.
        """
        refuse_other_architectures(config, config_path)
        size = cls(
            **read_config_sizes(config, "gpt", GPT_SIZE_KEYS, config_path),
            speaker=ConditioningEncoderSize(
                **read_config_sizes(config, "gpt.condition_module", ENCODER_SIZE_KEYS, config_path)
            ),
            emotion=ConditioningEncoderSize(
                **read_config_sizes(config, "gpt.emo_condition_module", ENCODER_SIZE_KEYS, config_path)
            ),
        )
        require_divisible_heads(size.width, size.heads, "gpt", config_path)
        require_divisible_heads(size.speaker.width, size.speaker.heads, "gpt.condition_module", config_path)
        require_divisible_heads(size.emotion.width, size.emotion.heads, "gpt.emo_condition_module", config_path)
        own = {name: shape for name, shape in shapes.items() if not is_alias(name)}
        require_exact_tensors(
            own, unified_voice_shapes(size), "UnifiedVoice of the size that config.yaml states", where
        )
        return size


def unified_voice_shapes(size: UnifiedVoiceSize) -> dict[str, ShapeLike]:
    """Names and shapes in the order of the published file: 665 at full depth."""
    width, text_rows = size.width, size.text_pieces + 1
    shapes: dict[str, ShapeLike] = {}
    shapes |= _add_prefix("conditioning_encoder", _conformer_shapes(size.speaker))
    shapes |= _add_prefix("perceiver_encoder", _perceiver_shapes(size.speaker, width, SPEAKER_LATENTS))
    shapes["speed_emb.weight"] = (2, width)
    shapes |= _add_prefix("emo_conditioning_encoder", _conformer_shapes(size.emotion))
    shapes |= _add_prefix("emo_perceiver_encoder", _perceiver_shapes(size.emotion, EMOTION_WIDTH, 1))
    shapes["text_embedding.weight"] = (text_rows, width)
    shapes |= _add_prefix("emo_layer", _linear_shapes(width, width))
    shapes |= _add_prefix("emovec_layer", _linear_shapes(width, EMOTION_WIDTH))
    shapes["mel_embedding.weight"] = (size.speech_rows, width)
    for layer in range(size.layers):
        shapes |= _add_prefix(f"gpt.h.{layer}", _gpt_block_shapes(width))
    shapes |= _add_prefix("gpt.ln_f", _norm_shapes(width))
    shapes["mel_pos_embedding.emb.weight"] = (size.max_speech + 3, width)
    shapes["text_pos_embedding.emb.weight"] = (size.max_text + 2, width)
    shapes |= _add_prefix("final_norm", _norm_shapes(width))
    shapes |= _add_prefix("text_head", _linear_shapes(text_rows, width))
    return shapes | _add_prefix("mel_head", _linear_shapes(size.speech_rows, width))


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
    wanted = {"text_embedding.weight", "mel_embedding.weight", "speed_emb.weight", "gpt.h.0.attn.c_attn.weight"}
    return wanted <= set(names)


def semantic_codec_shapes(width: int = 384, mlp: int = 2048, layers: int = 12) -> dict[str, ShapeLike]:
    """The semantic codec (RepCodec), in the order of its file: 239 tensors at the published size."""
    shapes: dict[str, ShapeLike] = {}
    for side in ("encoder", "decoder"):
        shapes |= _add_prefix(f"{side}.0", _codec_side_shapes(width, mlp, layers))
        shapes |= _add_prefix(f"{side}.1", _linear_shapes(FEATURE_WIDTH, width))
    quantizer = "quantizer.quantizers.0"
    for place, outputs, inputs in (
        ("in", SEMANTIC_CODE_WIDTH, FEATURE_WIDTH),
        ("out", FEATURE_WIDTH, SEMANTIC_CODE_WIDTH),
    ):
        project = f"{quantizer}.{place}_project"
        shapes[f"{project}.bias"] = (outputs,)
        shapes[f"{project}.weight_g"] = (outputs, 1, 1)
        shapes[f"{project}.weight_v"] = (outputs, inputs, 1)
    return shapes | {f"{quantizer}.codebook.weight": (NUM_SEMANTIC_CODES, SEMANTIC_CODE_WIDTH)}


def _codec_side_shapes(width: int, mlp: int, layers: int) -> Iterator[tuple[str, ShapeLike]]:
    yield from _add_prefix("embed", _linear_shapes(width, FEATURE_WIDTH, CODEC_KERNEL)).items()
    yield from _add_prefix("norm", _norm_shapes(width)).items()
    for layer in range(layers):
        block = f"convnext.{layer}"
        yield f"{block}.gamma", (width,)
        yield from _add_prefix(f"{block}.dwconv", _linear_shapes(width, 1, CODEC_KERNEL)).items()
        yield from _add_prefix(f"{block}.norm", _norm_shapes(width)).items()
        yield from _add_prefix(f"{block}.pwconv1", _linear_shapes(mlp, width)).items()
        yield from _add_prefix(f"{block}.pwconv2", _linear_shapes(width, mlp)).items()
    yield from _add_prefix("final_layer_norm", _norm_shapes(width)).items()


def _add_prefix(prefix: str, parts: Iterator[tuple[str, ShapeLike]]) -> dict[str, ShapeLike]:
    return {f"{prefix}.{name}": shape for name, shape in parts}


def _linear_shapes(outputs: int, inputs: int, *kernel: int) -> Iterator[tuple[str, ShapeLike]]:
    yield "weight", (outputs, inputs, *kernel)
    yield "bias", (outputs,)


def _norm_shapes(width: int) -> Iterator[tuple[str, ShapeLike]]:
    yield "weight", (width,)
    yield "bias", (width,)


def _conformer_shapes(size: ConditioningEncoderSize) -> Iterator[tuple[str, ShapeLike]]:
    width = size.width
    yield from _add_prefix("embed.conv.0", _linear_shapes(width, 1, 3, 3)).items()
    yield from _add_prefix("embed.out.0", _linear_shapes(width, width * ((FEATURE_WIDTH - 1) // 2))).items()
    yield "embed.pos_enc.pe", (1, SINUSOID_ROWS, width)
    yield from _add_prefix("after_norm", _norm_shapes(width)).items()
    for block in range(size.blocks):
        yield from _add_prefix(f"encoders.{block}", _conformer_block_shapes(size)).items()


def _conformer_block_shapes(size: ConditioningEncoderSize) -> Iterator[tuple[str, ShapeLike]]:
    width = size.width
    for part in ("u", "v"):
        yield f"self_attn.pos_bias_{part}", (size.heads, width // size.heads)
    for part in ("q", "k", "v", "out"):
        yield from _add_prefix(f"self_attn.linear_{part}", _linear_shapes(width, width)).items()
    yield "self_attn.linear_pos.weight", (width, width)
    yield from _add_prefix("feed_forward.w_1", _linear_shapes(size.mlp, width)).items()
    yield from _add_prefix("feed_forward.w_2", _linear_shapes(width, size.mlp)).items()
    yield from _add_prefix("conv_module.pointwise_conv1", _linear_shapes(2 * width, width, 1)).items()
    yield from _add_prefix("conv_module.depthwise_conv", _linear_shapes(width, 1, DEPTHWISE_KERNEL)).items()
    yield from _add_prefix("conv_module.norm", _norm_shapes(width)).items()
    yield from _add_prefix("conv_module.pointwise_conv2", _linear_shapes(width, width, 1)).items()
    for place in ("ff", "mha", "conv", "final"):
        yield from _add_prefix(f"norm_{place}", _norm_shapes(width)).items()


def _perceiver_shapes(size: ConditioningEncoderSize, width: int, latents: int) -> Iterator[tuple[str, ShapeLike]]:
    attention = size.heads * PERCEIVER_HEAD_WIDTH
    inner = int(width * size.perceiver_mult * 2 / 3)
    yield "latents", (latents, width)
    if size.width != width:
        yield from _add_prefix("proj_context", _linear_shapes(width, size.width)).items()
    for layer in range(PERCEIVER_LAYERS):
        yield f"layers.{layer}.0.to_q.weight", (attention, width)
        yield f"layers.{layer}.0.to_kv.weight", (2 * attention, width)
        yield f"layers.{layer}.0.to_out.weight", (width, attention)
        yield from _add_prefix(f"layers.{layer}.1.0", _linear_shapes(2 * inner, width)).items()
        yield from _add_prefix(f"layers.{layer}.1.2", _linear_shapes(width, inner)).items()
    yield "norm.gamma", (width,)


def _gpt_block_shapes(width: int) -> Iterator[tuple[str, ShapeLike]]:
    yield from _add_prefix("ln_1", _norm_shapes(width)).items()
    yield from _add_prefix("attn.c_attn", _gpt_linear_shapes(width, 3 * width)).items()
    yield from _add_prefix("attn.c_proj", _gpt_linear_shapes(width, width)).items()
    yield from _add_prefix("ln_2", _norm_shapes(width)).items()
    yield from _add_prefix("mlp.c_fc", _gpt_linear_shapes(width, 4 * width)).items()
    yield from _add_prefix("mlp.c_proj", _gpt_linear_shapes(4 * width, width)).items()


def _gpt_linear_shapes(inputs: int, outputs: int) -> Iterator[tuple[str, ShapeLike]]:
    """GPT-2's own layers store a matrix the other way round."""
    yield "weight", (inputs, outputs)
    yield "bias", (outputs,)


CONFIG_NAME = "config.yaml"


def read_base_config(config: Path) -> dict[Any, Any]:
    """Everything that the file says."""
    from voxgraft.core.yaml_files import read_yaml

    settings = read_yaml(config)
    if not isinstance(settings, dict):
        found = f"{config.name} holds a {type(settings).__name__}"
        raise ConfigError("base-config", found, expected="settings by name", where=config)
    return settings


def get_config_section(settings: dict[Any, Any], name: str, config: Path) -> dict[Any, Any]:
    """One section; empty where it is not there."""
    section = settings.get(name, {})
    if not isinstance(section, dict):
        found = f"{name} is {str(section)[:40]!r}"
        raise ConfigError("base-config", found, expected="settings by name", where=config)
    return section


def get_config_file_name(section: dict[Any, Any], path: str, config: Path) -> str | None:
    """The file name that a setting gives, if it is there; it may not lead out of the base folder."""
    name = section.get(path.rpartition(".")[2])
    if name is None:
        return None
    expected = "the name of a file in the same folder"
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError("base-config", f"{path} is {str(name)[:80]!r}", expected=expected, where=config)
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        cure = f"put the file into the folder and write its name as {path}."
        found = f"{path} leads out of the folder: {name!r}"
        raise ConfigError("base-config", found, expected=expected, where=config, cure=cure)
    return name
