"""S3Gen of a base folder, run by the published program in its companion: what voxgraft's own is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.companions.environments import CompanionProcess, find_environment
from voxgraft.models.base import REFERENCE_AUDIO, Clip
from voxgraft.models.chatterbox.family import CONDITIONS_NAME, S3GEN_FILES


class CompanionVocoder:
    """Codes to samples, one utterance at a time."""

    def __init__(self, companion: CompanionProcess, s3gen: Path, conditions: Path) -> None:
        self.companion, self.s3gen, self.conditions = companion, s3gen, conditions

    @classmethod
    def find(cls, folder: Path) -> CompanionVocoder | None:
        """Where the companion was made and the base has an S3Gen; nothing is started yet."""
        environment = find_environment("chatterbox")
        s3gen = next((folder / name for name in S3GEN_FILES if (folder / name).is_file()), None)
        if environment is None or s3gen is None:
            return None
        return cls(environment.companion(), s3gen.resolve(), (folder / CONDITIONS_NAME).resolve())

    def sound(self, codes: Sequence[int], voice: Clip) -> NDArray[np.float32]:
        """Samples of an utterance, in the voice of a recording or else in the base's own."""
        arrays: dict[str, NDArray[np.generic]] = {"codes": np.asarray(codes, dtype=np.int64)}
        if REFERENCE_AUDIO in voice.voice:
            arrays[REFERENCE_AUDIO] = np.asarray(voice.voice[REFERENCE_AUDIO], dtype=np.float32)
        conditions = str(self.conditions) if self.conditions.is_file() else ""
        answer = self.companion.ask("sound", arrays, s3gen=str(self.s3gen), conditions=conditions, device="cpu", seed=0)
        samples: NDArray[np.float32] = answer["samples"].astype(np.float32)
        assert samples.ndim == 1
        assert np.isfinite(samples).all()
        return samples
