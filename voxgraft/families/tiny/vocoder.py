"""The tiny family's waveform end: its codec's decoder, with the speaker's number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from voxgraft.audio.exact import exact_float32
from voxgraft.errors import GraftError
from voxgraft.families.encoding import Clip
from voxgraft.families.sounding import Vocoder
from voxgraft.families.tiny.codec import SAMPLE_RATE, TinyCodec
from voxgraft.families.tiny.encoder import load_codec

__all__ = ["TinyVocoder"]


class TinyVocoder(Vocoder):
    """The codec of a base folder."""

    sample_rate = SAMPLE_RATE

    def __init__(self, codec: TinyCodec, speakers: Sequence[str]) -> None:
        self.codec, self.speakers = codec, tuple(speakers)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> TinyVocoder:
        """From the base folder: codec.safetensors and voices.json."""
        return cls(*load_codec(folder, device))

    @torch.no_grad()
    def sound(self, codes: Sequence[Sequence[int]], voices: Sequence[Clip]) -> list[NDArray[np.float32]]:
        """One utterance after another: their neighbours' padding would colour their ends."""
        if len(codes) != len(voices):
            raise GraftError("packing", f"{len(codes)} utterances and {len(voices)} voices", expected="as many of each")
        return [self._sound(own, int(voice.voice["speaker"][0])) for own, voice in zip(codes, voices, strict=True)]

    def _sound(self, codes: Sequence[int], speaker: int) -> NDArray[np.float32]:
        if not len(codes):
            return np.zeros(0, dtype=np.float32)
        device = next(self.codec.parameters()).device
        with exact_float32():
            wave = self.codec.decode(torch.tensor(list(codes), device=device), self.speakers[speaker])
        return wave.reshape(-1).float().cpu().numpy()
