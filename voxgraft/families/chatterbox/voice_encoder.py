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
from voxgraft.audio.spectra import (
    SILENCE_POWER,
    compute_peak_frame_power,
    find_sound_bounds,
    mel_filters,
    power_spectrum,
)
from voxgraft.audio.waves import Waveform, WaveformLimits, validate_waveform, validate_waveforms
from voxgraft.errors import AudioError
from voxgraft.nn.unfilled import no_init_weights

__all__ = ["VoiceEncoder"]

VOICE_SAMPLE_RATE = 16_000
VOICE_FRAME = 400
VOICE_HOP = 160
NUM_VOICE_MELS = 40
WINDOW_FRAMES = 160
STEP_FRAMES = 77
"""1.3 windows a second."""
MIN_WINDOW_FILL = 0.8
"""A last window that the clip does not fill counts if this much of it is filled."""
TRIM_DB = 20.0
EMBEDDING_WIDTH = 256
NUM_LSTM_LAYERS = 3
WINDOWS_PER_BATCH = 256
VOICE_LIMITS = WaveformLimits(VOICE_SAMPLE_RATE, min_samples=VOICE_FRAME)


class VoiceEncoder(nn.Module):
    """Three LSTM layers over windows of 1.6 s; a clip's voice is the mean of its windows."""

    mel_filters: Tensor
    hann: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(NUM_VOICE_MELS, EMBEDDING_WIDTH, NUM_LSTM_LAYERS, batch_first=True)
        self.proj = nn.Linear(EMBEDDING_WIDTH, EMBEDDING_WIDTH)
        # Only upstream's training reads these two, but its files hold them.
        self.similarity_weight = nn.Parameter(torch.tensor([10.0]))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.0]))
        self.register_buffer(
            "mel_filters", mel_filters(VOICE_SAMPLE_RATE, VOICE_FRAME, NUM_VOICE_MELS), persistent=False
        )
        self.register_buffer("hann", torch.hann_window(VOICE_FRAME), persistent=False)
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, place: Path) -> VoiceEncoder:
        """From a file, or from the base folder that holds it."""
        from voxgraft.families.chatterbox.describing import VOICE_ENCODER_FILES
        from voxgraft.families.tensors import find_part_file, read_tensors

        with no_init_weights():
            encoder = cls()
        shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
        encoder.load_state_dict(read_tensors(find_part_file(place, VOICE_ENCODER_FILES), shapes))
        return encoder

    @torch.no_grad()
    def embed(self, waves: Sequence[Waveform], *, trim: bool = True, step_frames: int = STEP_FRAMES) -> Tensor:
        """The voice of each clip, as if it were alone. 16 kHz waveforms -> [clips, E]

        A clip shorter than a window is filled up with silence, as upstream does; one without any sound is refused.
        """
        device = self.proj.weight.device
        windows = []
        for number, wave in enumerate(validate_waveforms(waves, VOICE_LIMITS), 1):
            sounding = _trim_silence(wave, f"clip {number} of {len(waves)}", trim=trim)
            windows.append(split_into_windows(self.mel(sounding), step_frames))
        if not windows:
            return torch.zeros(0, EMBEDDING_WIDTH, device=device)
        chunks = torch.split(torch.cat(windows), WINDOWS_PER_BATCH)
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
        power = power_spectrum(wave, self.hann.cpu(), VOICE_HOP)  # [201, F]
        with exact_float32():
            return (self.mel_filters.cpu() @ power).T


def split_into_windows(mel: Tensor, step_frames: int = STEP_FRAMES) -> Tensor:
    """Overlapping windows: every full one, and the next if it is filled enough. [F, M] -> [W, 160, M]"""
    num_frames = len(mel)
    num_windows = max(0, (num_frames - WINDOW_FRAMES) // step_frames + 1)
    left = num_frames - num_windows * step_frames
    if num_windows == 0 or left >= MIN_WINDOW_FILL * WINDOW_FRAMES:
        num_windows += 1
    needed = (num_windows - 1) * step_frames + WINDOW_FRAMES
    filled = F.pad(mel, (0, 0, 0, max(0, needed - num_frames)))
    return filled.unfold(0, WINDOW_FRAMES, step_frames)[:num_windows].transpose(1, 2)


def _trim_silence(wave: Tensor, where: str, *, trim: bool) -> Tensor:
    """The clip without the silence at its ends; refused if it is nothing but silence. [N] -> [at most N]"""
    if compute_peak_frame_power(wave) <= SILENCE_POWER:
        found = f"{VOICE_LIMITS.told(len(wave))}, all of them silent"
        raise AudioError("audio-silent", found, expected="a voice", where=where)
    if not trim:
        return wave
    start, end = find_sound_bounds(wave, TRIM_DB)
    return validate_waveform(wave[start:end], VOICE_LIMITS, f"{where}, without the silence at its ends")
