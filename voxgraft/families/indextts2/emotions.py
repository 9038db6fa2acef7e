"""IndexTTS-2's eight named emotions: the vectors that come with the base, and what shares of them make together.

The base also has the voices behind these vectors (feat1.pt), for a speaker model that is not here (CAM++): so the mean
of all vectors of an emotion is taken, whoever spoke them. The stock program may choose otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_file import read_torch_tensor
from voxgraft.errors import CheckpointError, ConfigError, FileError
from voxgraft.families.base import BaseFiles
from voxgraft.families.encoding import Clip
from voxgraft.families.indextts2.config_file import get_config_file_name, read_base_config
from voxgraft.files import is_file

__all__ = ["EMOTIONS", "VECTORS_PER_EMOTION", "mix_emotions"]

EMOTIONS = ("happy", "angry", "sad", "afraid", "disgusted", "melancholic", "surprised", "calm")
VECTORS_PER_EMOTION = (3, 17, 2, 8, 4, 5, 10, 24)
"""Vectors of each emotion, one after another in the file, unless the config says otherwise."""
EMOTION_MATRIX_NAME = "feat2.pt"


def mix_emotions(files: BaseFiles, shares: Sequence[float]) -> tuple[Clip, float]:
    """The emotion that shares of the eight make, and how much of the whole it is; the rest stays the voice's own."""
    if len(shares) != len(EMOTIONS) or not all(0 <= share <= 1 for share in shares) or not any(shares):
        found, expected = ", ".join(f"{share:g}" for share in shares), f"a number from 0 to 1 for {', '.join(EMOTIONS)}"
        raise ConfigError("manner-unknown", f"the emotions {found}", expected=expected)
    vectors, counts = _read_emotion_vectors(files)
    means = [vectors[first:last].mean(axis=0) for first, last in pairwise([0, *accumulate(counts)])]
    total = sum(shares)
    vector = sum((share / total * mean for share, mean in zip(shares, means, strict=True)), np.zeros(1, np.float32))
    return Clip(np.zeros(0, dtype=np.int64), {"emotion": np.asarray(vector, np.float32)}), min(total, 1.0)


def _read_emotion_vectors(files: BaseFiles) -> tuple[NDArray[np.float32], tuple[int, ...]]:
    config = files.config
    settings = read_base_config(config) if config is not None else {}
    counts = _parse_emotion_counts(settings.get("emo_num"))
    name = (get_config_file_name(settings, "emo_matrix", config) if config is not None else None) or EMOTION_MATRIX_NAME
    path = files.folder / name
    if not is_file(path):
        cure = "put it beside the base's checkpoint: `voxgraft download indextts2` fetches it. Or name a recording."
        raise FileError("base-file-missing", f"{name}, the emotion vectors, is not in the base", where=path, cure=cure)
    vectors = np.asarray(read_torch_tensor(ByteSource(path)), dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != sum(counts) or not np.isfinite(vectors).all():
        found, expected = f"{name} holds {list(vectors.shape)}", f"{sum(counts)} vectors of finite numbers"
        raise CheckpointError("tensors-mismatch", found, expected=expected, where=path)
    return vectors, counts


def _parse_emotion_counts(given: Any) -> tuple[int, ...]:
    sound = (
        isinstance(given, list) and len(given) == len(EMOTIONS) and all(type(one) is int and one > 0 for one in given)
    )
    return tuple(given) if sound else VECTORS_PER_EMOTION
