"""Made-up utterances of realistic length in memory, for benchmarks: 2 to 15 seconds, most of them around six."""

from __future__ import annotations

import numpy as np

from voxgraft.dataset.shards import AnyArray, ClipDataset, ClipInfo, DatasetHeader, DatasetProvenance, Int32Array
from voxgraft.models.base import SequenceSpec

MEDIAN_SECONDS, SPREAD, SHORTEST, LONGEST = 6.0, 0.5, 2.0, 15.0
TEXT_IDS_PER_SECOND = 11.0
CLIPS_PER_SPEAKER = 50


class MadeUpSet(ClipDataset):
    """Clips that are drawn when they are asked for; the same for the same seed."""

    def __init__(
        self, family_name: str, frame: SequenceSpec, code_hz: float, width: int, *, clips: int, seed: int = 0
    ) -> None:
        draw = np.random.default_rng(seed)
        seconds = np.clip(np.exp(np.log(MEDIAN_SECONDS) + SPREAD * draw.standard_normal(clips)), SHORTEST, LONGEST)
        self.name, self.fingerprint = "made-up", f"made-up-{seed}-{clips}"
        self.header = DatasetHeader(family_name, "am", "train", code_hz, DatasetProvenance("", ""))
        self.num_codes = np.minimum((seconds * code_hz).astype(np.int64), frame.max_codes)
        self.num_text = np.minimum((seconds * TEXT_IDS_PER_SECOND).astype(np.int64), frame.max_text)
        self.infos = [
            ClipInfo(f"c{at}", f"s{at // CLIPS_PER_SPEAKER}", f"r{at}", float(length), "")
            for at, length in enumerate(seconds)
        ]
        self._frame, self._seed = frame, seed
        low = 3  # past the ids that a text may not hold
        self._text = draw.integers(low, frame.num_text_ids, int(self.num_text.max()) + clips, dtype=np.int32)
        self._text[self._text == frame.text_start] = low
        self._codes = draw.integers(0, frame.num_codes, int(self.num_codes.max()) + clips, dtype=np.int32)
        self._voices = _voices(family_name, width, frame, draw)

    def text_ids(self, clip: int) -> Int32Array:
        return self._text[clip : clip + int(self.num_text[clip])]

    def codes(self, clip: int) -> Int32Array:
        return self._codes[clip : clip + int(self.num_codes[clip])]

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._voices[clip % len(self._voices)]


def _voices(family_name: str, width: int, frame: SequenceSpec, draw: np.random.Generator) -> list[dict[str, AnyArray]]:
    made: list[dict[str, AnyArray]] = []
    for _ in range(32):
        if family_name == "chatterbox":
            speaker = np.abs(draw.standard_normal(256, dtype=np.float32))
            prompt = draw.integers(0, frame.num_codes, 150).astype(np.int32)
            made.append({"speaker": speaker / np.linalg.norm(speaker), "prompt": prompt})
        else:
            latents = 0.1 * draw.standard_normal((32, width), dtype=np.float32)
            made.append({"latents": latents, "emotion": 0.1 * draw.standard_normal(width, dtype=np.float32)})
    return made
