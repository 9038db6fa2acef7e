"""The sizes that IndexTTS-2's config.yaml states: read strictly, from its parsed contents.

Knows no tensors; `build_shape_patterns` builds them from these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxgraft.errors import ConfigError

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
