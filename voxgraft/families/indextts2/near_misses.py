"""Other generations of IndexTTS, told by their tensors and by the version in their config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxgraft.errors import ConfigError, Finding, finding
from voxgraft.families.description import Shape

MIN_VERSION, FIRST_UNSUPPORTED_VERSION = 2.0, 2.5
EXPECTED_MODEL = "IndexTTS-2: 1,280 wide, 24 layers, an emotion part, speed_emb, a conformer for the voice"
OTHER_VERSION_CURE = "use IndexTTS-2 (IndexTeam/IndexTTS-2: gpt.pth, bpe.model, config.yaml)."
STYLE_WIDTH = 192
"""Of the speaker vector (CAM++) from which 2.5 makes its voice with one linear layer."""
OLDER_VERSION_REASON = "it has no emotion part, and codes of its own that IndexTTS-2's speech parts cannot read"
NEWER_VERSION_REASON = (
    "it has another tokenizer, a language embedding, no speed_emb, and another way from the voice to the model"
)

_GPT_LAYER = re.compile(r"gpt\.h\.(\d{1,4})\.")


def refuse_other_versions(settings: Mapping[Any, Any], config: Path) -> None:
    """Refuse a config that says that it is of another generation."""
    version = settings.get("version")
    if not isinstance(version, int | float) or MIN_VERSION <= version < FIRST_UNSUPPORTED_VERSION:
        return
    reason = OLDER_VERSION_REASON if version < MIN_VERSION else NEWER_VERSION_REASON
    found = f"version is {version}: this is IndexTTS {version}, and {reason}"
    raise ConfigError("base-version", found, expected=f"{MIN_VERSION}", where=config, cure=OTHER_VERSION_CURE)


def check_gpt_lookalike(path: Path, shapes: Mapping[str, Shape]) -> Finding | None:
    """What to say of the GPT of IndexTTS 1.x or 2.5; None for all other files."""
    layers = {match[1] for match in map(_GPT_LAYER.match, shapes) if match}
    if "text_embedding.weight" not in shapes or "mel_embedding.weight" not in shapes or not layers:
        return None
    width = (*shapes["text_embedding.weight"], 0, 0)[1]
    size = f"{width:,} wide, {len(layers)} layers"
    has_emotion = any(name.startswith("emo_") for name in shapes)
    has_speed = any(name.startswith("speed_emb") for name in shapes)
    if not has_emotion and not has_speed:
        found = f"{path.name} is the GPT of IndexTTS 1.0 or 1.5 ({size}): {OLDER_VERSION_REASON}"
        return finding("base-version", found, expected=EXPECTED_MODEL, where=path, cure=OTHER_VERSION_CURE)
    marks = [name for name in shapes if name.startswith("lang_embedding")]
    if not has_speed:
        voice = (width, STYLE_WIDTH)
        marks += [name for name, shape in shapes.items() if shape == voice and not name.startswith("gpt.")]
    if not marks:
        return None
    seen = ", ".join(f"{name[:60]} {list(shapes[name])}" for name in marks[:3])
    found = f"{path.name} is the GPT of IndexTTS-2.5 ({size}; {seen}): {NEWER_VERSION_REASON}"
    return finding("base-version", found, expected=EXPECTED_MODEL, where=path, cure=OTHER_VERSION_CURE)
