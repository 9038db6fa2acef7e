"""Chatterbox's voice encoder: whose voice a clip has, as 256 numbers of length one. Tensor names are upstream's.

Takes 16 kHz; does not resample. Frozen: it is never trained here.

Shapes: N samples, F frames, M = 40 mel bands, W windows of 160 frames, E = 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor, nn

from voxgraft.audio.exact import exact_float32
from voxgraft.audio.spectra import QUIETEST_POWER, loudest_frame, mel_filters, power_spectrum, sound_bounds
from voxgraft.audio.waves import Limits, Wave, mono_wave, mono_waves
from voxgraft.errors import AudioError
from voxgraft.nn.unfilled import undrawn

__all__ = ["VoiceEncoder"]

SAMPLE_RATE = 16_000
FRAME = 400
HOP = 160
NUM_MELS = 40
WINDOW_FRAMES = 160
STEP_FRAMES = 77
"""1.3 windows a second."""
MIN_FILLED = 0.8
"""A last window that the clip does not fill counts if this much of it is filled."""
TRIM_DB = 20.0
VOICE_WIDTH = 256
NUM_LAYERS = 3
WINDOWS_AT_ONCE = 256
LIMITS = Limits(SAMPLE_RATE, min_samples=FRAME)


class VoiceEncoder(nn.Module):
    """Three LSTM layers over windows of 1.6 s; a clip's voice is the mean of its windows."""

    mel_filters: Tensor
    hann: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(NUM_MELS, VOICE_WIDTH, NUM_LAYERS, batch_first=True)
        self.proj = nn.Linear(VOICE_WIDTH, VOICE_WIDTH)
        # Only upstream's training reads these two, but its files hold them.
        self.similarity_weight = nn.Parameter(torch.tensor([10.0]))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.0]))
        self.register_buffer("mel_filters", mel_filters(SAMPLE_RATE, FRAME, NUM_MELS), persistent=False)
        self.register_buffer("hann", torch.hann_window(FRAME), persistent=False)
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, place: Path) -> VoiceEncoder:
        """From a file, or from the base folder that holds it."""
        from voxgraft.families.chatterbox.describing import VOICE_ENCODER
        from voxgraft.families.tensors import part_file, read_tensors

        with undrawn():
            encoder = cls()
        shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
        encoder.load_state_dict(read_tensors(part_file(place, VOICE_ENCODER), shapes))
        return encoder

    @torch.no_grad()
    def embed(self, waves: Sequence[Wave], *, trim: bool = True, step_frames: int = STEP_FRAMES) -> Tensor:
        """The voice of each clip, as if it were alone. 16 kHz waveforms -> [clips, E]

        A clip shorter than a window is filled up with silence, as upstream does; one without any sound is refused.
        """
        device = self.proj.weight.device
        windows = []
        for number, wave in enumerate(mono_waves(waves, LIMITS), 1):
            sounding = _sounding(wave, f"clip {number} of {len(waves)}", trim=trim)
            windows.append(window_mel(self.mel(sounding), step_frames))
        if not windows:
            return torch.zeros(0, VOICE_WIDTH, device=device)
        chunks = torch.split(torch.cat(windows), WINDOWS_AT_ONCE)
        voices = torch.cat([self(chunk.to(device)) for chunk in chunks])  # [all W, E]
        means = [own.mean(0) for own in torch.split(voices, [len(own) for own in windows])]
        return F.normalize(torch.stack(means), dim=-1)

    def forward(self, windows: Tensor) -> Tensor:
        """The voice in each window. [W, 160, M] -> [W, E]"""
        with exact_float32():
            _, (last_states, _) = self.lstm(windows)  # [layers, W, E]
            return F.normalize(torch.relu(self.proj(last_states[-1])), dim=-1)

    def mel(self, wave: Tensor) -> Tensor:
        """Mel power, not its logarithm. [N] on the CPU -> [F, M] on the CPU"""
        power = power_spectrum(wave, self.hann.cpu(), HOP)  # [201, F]
        with exact_float32():
            return (self.mel_filters.cpu() @ power).T


def window_mel(mel: Tensor, step_frames: int = STEP_FRAMES) -> Tensor:
    """Overlapping windows: every full one, and the next if it is filled enough. [F, M] -> [W, 160, M]"""
    num_frames = len(mel)
    num_windows = max(0, (num_frames - WINDOW_FRAMES) // step_frames + 1)
    left = num_frames - num_windows * step_frames
    if num_windows == 0 or left >= MIN_FILLED * WINDOW_FRAMES:
        num_windows += 1
    needed = (num_windows - 1) * step_frames + WINDOW_FRAMES
    filled = F.pad(mel, (0, 0, 0, max(0, needed - num_frames)))
    return filled.unfold(0, WINDOW_FRAMES, step_frames)[:num_windows].transpose(1, 2)


def _sounding(wave: Tensor, where: str, *, trim: bool) -> Tensor:
    """The clip without the silence at its ends; refused if it is nothing but silence. [N] -> [at most N]"""
    if loudest_frame(wave) <= QUIETEST_POWER:
        found = f"{LIMITS.told(len(wave))}, all of them silent"
        raise AudioError("audio-silent", found, expected="a voice", where=where)
    if not trim:
        return wave
    start, end = sound_bounds(wave, TRIM_DB)
    return mono_wave(wave[start:end], LIMITS, f"{where}, without the silence at its ends")
