"""IndexTTS-2's emotions: from the voice, from another recording, or from eight sliders.

The eight are rows of `feat2.pt`, chosen by whose voice in `feat1.pt` is nearest to the speaker's. The original's fourth
way, emotion from a text, needs another language model (a fine-tuned Qwen) and is left out.

Shapes: K = 73 rows, S = 192 style width, W width of the GPT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import ByteSource
from voxgraft.checkpoints.torch_file import read_torch_tensor
from voxgraft.core.errors import CheckpointError, ConfigError, FileError, GraftError
from voxgraft.core.files import is_file
from voxgraft.models.base import BaseFiles, Clip
from voxgraft.models.indextts2.family import CONFIG_NAMED_FILES
from voxgraft.models.indextts2.shapes import get_config_file_name, read_base_config

STYLE = "style"
"""Among a voice's arrays: the vector that CAM++ computes of it. [192]"""
SPEAKER_EMOTION = "speaker_emotion"
"""Among a voice's arrays: the emotion that another one is blended with (see `encoder`). [W]"""

EMOTIONS = ("happy", "angry", "sad", "afraid", "disgusted", "melancholic", "surprised", "calm")
# Vectors of each emotion, one after another in the file, unless the config says otherwise.
VECTORS_PER_EMOTION: tuple[int, ...] = (3, 17, 2, 8, 4, 5, 10, 24)
# The original's page weighs the sliders before it hands them on, since some emotions are stronger than others, and
# lets them take at most 0.8 of the whole. Its library does neither.
SLIDER_BIAS = (0.9375, 0.875, 1.0, 1.0, 0.9375, 0.9375, 0.6875, 0.5625)
MAX_SLIDER_SUM = 0.8

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmotionTable:
    """`feat1.pt` and `feat2.pt`: voices, and the emotion vector that goes with each."""

    voices: Vector  # [K, S]
    vectors: Vector  # [K, W]
    counts: tuple[int, ...] = VECTORS_PER_EMOTION

    def choose_rows(self, style: NDArray[np.floating]) -> list[int]:
        """Of each emotion, the row whose voice has the greatest cosine with a style; the first of equal ones. [S]"""
        voices, wanted = self.voices.astype(np.float64), np.asarray(style, np.float64)
        lengths = np.linalg.norm(voices, axis=1) * np.linalg.norm(wanted)
        likeness = voices @ wanted / np.maximum(lengths, 1e-8)
        return [first + int(likeness[first:last].argmax()) for first, last in pairwise([0, *accumulate(self.counts)])]

    def blend(self, shares: Sequence[float], style: NDArray[np.floating], own: Vector) -> Vector:
        """Shares of the eight, and of the voice's own emotion what they leave of 1. [S], [W] -> [W]

        As in the original's library, nothing is capped here: beyond a sum of 1 the voice's own emotion gets a negative
        weight, which changes the sound and so is reproduced. Sliders never get there (`weigh_sliders`).
        """
        chosen = self.vectors[self.choose_rows(style)]  # [8, W]
        weights = np.asarray(shares, np.float32)
        mixed: Vector = (weights[:, None] * chosen).sum(0) + (np.float32(1) - weights.sum()) * own
        return mixed.astype(np.float32)

    @classmethod
    def load(cls, files: BaseFiles) -> EmotionTable:
        """From the base folder, under the names that its config gives."""
        config = files.config
        settings = read_base_config(config) if config is not None else {}
        stated, counts = settings.get("emo_num"), VECTORS_PER_EMOTION
        if isinstance(stated, list) and len(stated) == len(EMOTIONS) and all(type(n) is int and n > 0 for n in stated):
            counts = tuple(stated)

        def read(key: str) -> Vector:
            published, what = CONFIG_NAMED_FILES[key]
            name = get_config_file_name(settings, key, config) if config is not None else None
            return _read_matrix(files.folder / (name or published), what, sum(counts))

        return cls(read("spk_matrix"), read("emo_matrix"), counts)


def _read_matrix(path: Path, what: str, rows: int) -> Vector:
    if not is_file(path):
        cure = "put it next to the base's checkpoint (`voxgraft download indextts2` downloads it), or give a recording."
        raise FileError("base-file-missing", f"{path.name}, {what}, is missing from the base", where=path, cure=cure)
    source = ByteSource(path)
    try:
        matrix = np.asarray(read_torch_tensor(source), dtype=np.float32)
    finally:
        source.close()
    if matrix.ndim != 2 or len(matrix) != rows or not np.isfinite(matrix).all():
        found, expected = f"{path.name} has shape {list(matrix.shape)}", f"{rows} vectors of finite numbers"
        raise CheckpointError("tensors-mismatch", found, expected=expected, where=path)
    return matrix


def weigh_sliders(sliders: Sequence[float], *, bias: bool = True) -> list[float]:
    """Sliders as the original's page hands them on: weighed, and brought down where they take more than 0.8."""
    shares = [value * weight for value, weight in zip(sliders, SLIDER_BIAS, strict=True)] if bias else list(sliders)
    total = sum(shares)
    return [share * (MAX_SLIDER_SUM / total) for share in shares] if total > MAX_SLIDER_SUM else shares


def scale_shares(shares: Sequence[float], weight: float) -> list[float]:
    """Shares times the strength, from 0 to 1; cut to four decimals unless it is 1, as in the original."""
    weight = min(max(weight, 0.0), 1.0)
    return list(shares) if weight == 1 else [int(share * weight * 10_000) / 10_000 for share in shares]


def mix_emotions(files: BaseFiles, sliders: Sequence[float], weight: float, voice: Clip) -> Clip:
    """The emotion of a voice with eight sliders set, each from 0 to 1; `weight` is the strength of all of them.

    A slider outside of 0 to 1, or none that is set, is a mistake of the user and refused; the original takes both.
    """
    if len(sliders) != len(EMOTIONS) or not all(0 <= slider <= 1 for slider in sliders) or not any(sliders):
        found = ", ".join(f"{slider:g}" for slider in sliders)
        raise ConfigError(
            "manner-unknown", f"the emotions {found}", expected=f"a number from 0 to 1 for {', '.join(EMOTIONS)}"
        )
    table, own = EmotionTable.load(files), np.asarray(voice.voice["emotion"], np.float32)
    if STYLE not in voice.voice:
        raise GraftError("emotion-voice", "the nearest stored voice is not known", where=files.folder)
    style = np.asarray(voice.voice[STYLE], np.float32)
    if table.voices.shape[1:] != style.shape or table.vectors.shape[1:] != own.shape:
        found = f"emotion files {list(table.voices.shape)} and {list(table.vectors.shape)}"
        expected = f"{len(style)} and {len(own)} wide, as in the voice and the base"
        raise CheckpointError("tensors-mismatch", found, expected=expected, where=files.folder)
    vector = table.blend(scale_shares(weigh_sliders(sliders), weight), style, own)
    return Clip(np.zeros(0, dtype=np.int64), {"emotion": vector})
