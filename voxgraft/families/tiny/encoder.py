"""The tiny family's front end: codes from the codec; whose voice a clip has is told by name, never heard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from voxgraft.audio.exact import exact_float32
from voxgraft.audio.waves import Waveform, WaveformLimits, batch_by_length, validate_waveforms
from voxgraft.errors import GraftError
from voxgraft.families.encoding import Clip, ClipEncoder
from voxgraft.families.tiny.codec import CODE_HZ, SAMPLE_RATE, TinyCodec
from voxgraft.families.tiny.family import CODEC_NAME
from voxgraft.families.tiny.model import TinyCondition
from voxgraft.families.tiny.voices import find_speaker_index, read_voices, require_same_speakers

__all__ = ["TinyClipEncoder", "build_tiny_condition", "build_voice_clip", "load_codec"]

BATCH_SAMPLES = 60 * SAMPLE_RATE
CODEC_LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=SAMPLE_RATE // CODE_HZ)


class TinyClipEncoder(ClipEncoder):
    """The codec of a base folder, and the names of its speakers."""

    sample_rate = SAMPLE_RATE

    def __init__(self, codec: TinyCodec, speakers: Sequence[str]) -> None:
        self.codec, self.speakers = codec, tuple(speakers)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> TinyClipEncoder:
        """From the base folder: codec.safetensors and voices.json."""
        codec, speakers = load_codec(folder, device)
        return cls(codec, speakers)

    def encode(self, waves: Sequence[Waveform], speakers: Sequence[str] | None = None) -> list[Clip]:
        """`speakers` says by name who speaks in each; without it all are the first of the table."""
        names = [self.speakers[0]] * len(waves) if speakers is None else list(speakers)
        if len(names) != len(waves):
            raise GraftError("packing", f"{len(waves)} clips and {len(names)} speakers", expected="as many of each")
        voices = [build_voice_clip(find_speaker_index(self.speakers, name)).voice for name in names]
        checked = validate_waveforms(waves, CODEC_LIMITS)
        codes: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        for places in batch_by_length([len(wave) for wave in checked], BATCH_SAMPLES):
            codes.update(zip(places, self._codes([checked[place] for place in places]), strict=True))
        return [Clip(codes[place], voice) for place, voice in enumerate(voices)]

    @torch.no_grad()
    def _codes(self, waves: list[torch.Tensor]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        device = next(self.codec.parameters()).device
        lengths = torch.tensor([len(wave) for wave in waves], device=device)
        batch = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True).to(device)
        with exact_float32():
            codes, num_codes = self.codec.encode(batch, lengths)
        return [
            row[:count].astype(np.int64) for row, count in zip(codes.cpu().numpy(), num_codes.tolist(), strict=True)
        ]


def load_codec(folder: Path, device: torch.device | str = "cpu") -> tuple[TinyCodec, tuple[str, ...]]:
    """Codec and speakers of a base folder, which must be the same ones in the same order."""
    from voxgraft.families.tensors import find_part_file

    speakers = read_voices(folder)
    codec = TinyCodec.open(find_part_file(folder, (CODEC_NAME,))).to(device)
    require_same_speakers(speakers, codec.speakers, CODEC_NAME, folder)
    return codec, speakers


def build_voice_clip(number: int) -> Clip:
    """A voice that comes from no recording."""
    return Clip(np.zeros(0, dtype=np.int64), {"speaker": np.array([number], dtype=np.int32)})


def build_tiny_condition(prompt: Clip) -> TinyCondition:
    """To sound like the speaker of that clip."""
    return TinyCondition(np.asarray(prompt.voice["speaker"]))
