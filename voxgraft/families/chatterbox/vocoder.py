"""Chatterbox's waveform end: S3Gen of the stock package, in a companion environment, over a pipe.

The sound of a voice comes from a recording of it; the base's built-in voice has its own in conds.pt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.companions.places import find_environment
from voxgraft.companions.process import CompanionProcess
from voxgraft.errors import CompanionError, GraftError
from voxgraft.families.chatterbox.conditions import CONDITIONS_NAME
from voxgraft.families.chatterbox.describing import S3GEN_FILES
from voxgraft.families.encoding import REFERENCE_AUDIO, Clip
from voxgraft.families.sounding import Vocoder
from voxgraft.families.tensors import read_tensor_shapes
from voxgraft.files import is_file

__all__ = ["S3GenVocoder"]

S3GEN_SAMPLE_RATE = 24_000
S3GEN_PARTS = ("flow.", "mel2wav.", "tokenizer.")
"""What a whole S3Gen has; a file for preparing data may hold the last alone."""


class S3GenVocoder(Vocoder):
    """S3Gen of a base folder."""

    sample_rate = S3GEN_SAMPLE_RATE

    def __init__(self, companion: CompanionProcess, s3gen: Path, conditions: Path | None, device: str) -> None:
        self.companion, self.s3gen, self.conditions, self.device = companion, s3gen, conditions, device

    @classmethod
    def find(cls, folder: Path, device: str = "cpu") -> S3GenVocoder | None:
        """Where the companion was made and the base has a whole S3Gen; nothing is started yet."""
        environment = find_environment("chatterbox")
        s3gen = next((folder / name for name in S3GEN_FILES if is_file(folder / name)), None)
        if environment is None or s3gen is None or not _is_complete_s3gen(s3gen):
            return None
        conditions = folder / CONDITIONS_NAME
        kept = conditions.resolve() if is_file(conditions) else None
        return cls(environment.companion(), s3gen.resolve(), kept, device)

    def why_not(self, voice: Clip) -> str:
        if REFERENCE_AUDIO in voice.voice or self.conditions is not None:
            return ""
        return f"there is neither a recording of the voice nor {CONDITIONS_NAME} in the base folder"

    def sound(self, codes: Sequence[Sequence[int]], voices: Sequence[Clip]) -> list[NDArray[np.float32]]:
        if len(codes) != len(voices):
            raise GraftError("packing", f"{len(codes)} utterances and {len(voices)} voices", expected="as many of each")
        return [self._sound(own, voice) for own, voice in zip(codes, voices, strict=True)]

    def _sound(self, codes: Sequence[int], voice: Clip) -> NDArray[np.float32]:
        if not len(codes):
            return np.zeros(0, dtype=np.float32)
        if why := self.why_not(voice):
            raise CompanionError("companion-voice", why, where=self.s3gen.parent)
        arrays: dict[str, NDArray[np.generic]] = {"codes": np.asarray(list(codes), dtype=np.int64)}
        if REFERENCE_AUDIO in voice.voice:
            arrays[REFERENCE_AUDIO] = np.asarray(voice.voice[REFERENCE_AUDIO], dtype=np.float32)
        conditions = str(self.conditions) if self.conditions else ""
        answer = self.companion.ask(
            "sound", arrays, s3gen=str(self.s3gen), conditions=conditions, device=self.device, seed=0
        )
        samples = answer.get("samples")
        if not isinstance(samples, np.ndarray) or samples.ndim != 1 or not np.isfinite(samples).all():
            raise CompanionError("companion-failed", "chatterbox gave no samples, or some that are not finite")
        return samples.astype(np.float32)


def _is_complete_s3gen(path: Path) -> bool:
    names = list(read_tensor_shapes(path))
    return all(any(name.startswith(part) for name in names) for part in S3GEN_PARTS)
