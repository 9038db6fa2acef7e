"""Log-mel frames of a batch of waves at 16 kHz, 100 a second: what the tiny codec and the built-in listener hear.

Frames are centred, and the wave has zeros around it, so that padding a wave with zeros changes none of its frames.

Shapes: B waves, S samples, F = S / 160 frames, M mel bands.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxgraft.audio.spectra import mel_filters

__all__ = ["FRAME_HZ", "HOP", "LogMel"]

SAMPLE_RATE = 16_000
FRAME_HZ = 100
HOP = SAMPLE_RATE // FRAME_HZ
STFT_WINDOW = 4 * HOP
POWER_FLOOR = 1e-5
"""Added to the power of each band before the logarithm: what is quieter than this cannot be told from silence."""
LOG_MEL_MEAN, LOG_MEL_STD = -4.0, 4.0
"""About the mean and the deviation of speech, so that what comes out lies around zero."""


class LogMel(nn.Module):
    """Waves to frames. Has no parameters; its tables are made anew wherever it is built."""

    window: Tensor
    filters: Tensor

    def __init__(self, num_mels: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(STFT_WINDOW), persistent=False)
        self.register_buffer("filters", mel_filters(SAMPLE_RATE, STFT_WINDOW, num_mels), persistent=False)  # [M, K]

    def forward(self, waves: Tensor) -> Tensor:
        """[B, S] -> [B, F, M]; S must be a multiple of 160."""
        margin = (STFT_WINDOW - HOP) // 2
        padded = nn.functional.pad(waves.float(), (margin, margin))
        spectrum = torch.stft(
            padded, STFT_WINDOW, HOP, window=self.window, center=False, return_complex=True
        )  # [B, K, F]
        power = torch.view_as_real(spectrum).square().sum(-1)  # [B, K, F]
        with torch.autocast(power.device.type, enabled=False):
            bands = power.transpose(1, 2) @ self.filters.T  # [B, F, M]
        return ((bands + POWER_FLOOR).log() - LOG_MEL_MEAN) / LOG_MEL_STD
