"""S3Gen while the codes are still being drawn: sound of a sentence's start before its end is known.

Each call of the flow sees the reference and all codes so far. Its last codes wait for the three that they look ahead
at; the frames before them are kept as they are, and later calls only add frames. The vocoder then works on a mel that
grows at its end: it decodes each piece with enough frames on both sides that no sample depends on where the pieces
were cut. Joins are exact: the streamed sound is the waveform of the kept mel, without any fading over.

The kept mel is not the mel of the whole sentence at once: attention in encoder and U-Net sees all codes in both
directions, so that early frames would still change with late codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.core.errors import AudioError, GraftError
from voxgraft.models.chatterbox.flow import FRAMES_PER_CODE, LOOKAHEAD, NUM_MELS
from voxgraft.models.chatterbox.hift import (
    DILATIONS,
    F0_LAYERS,
    HOP,
    RESIDUAL_KERNELS,
    SAMPLE_RATE,
    SOURCE_DOWNSAMPLES,
    SOURCE_KERNELS,
    STFT_HOP,
    STFT_WINDOW,
    UPSAMPLES,
)
from voxgraft.models.chatterbox.s3gen import S3Gen, S3GenNoise, S3GenReference, validate_codes

# The pitch of a frame depends on one frame for each layer on either side.
F0_CONTEXT = F0_LAYERS


def _decoder_context() -> int:
    """Mel frames on either side that a sample depends on, through the mel or through the source."""
    reach = {kernel: kernel // 2 * (sum(DILATIONS) + len(DILATIONS)) for kernel in (*RESIDUAL_KERNELS, *SOURCE_KERNELS)}
    spectra = HOP // STFT_HOP
    through_mel, through_source, rate = 3.0, 0.0, 1  # conv_pre
    for (kernel, stride, _), (down, _, _), own in zip(UPSAMPLES, SOURCE_DOWNSAMPLES, SOURCE_KERNELS, strict=True):
        through_mel += kernel / stride / rate
        through_source += kernel / stride / rate
        rate *= stride
        through_source = max(through_source, down / spectra + reach[own] / rate)
        through_mel += reach[max(RESIDUAL_KERNELS)] / rate
        through_source += reach[max(RESIDUAL_KERNELS)] / rate
    # conv_post, and the windows of both transforms.
    return math.ceil(max(through_mel, through_source) + (3 + 2 * STFT_WINDOW / STFT_HOP) / spectra)


CONTEXT = _decoder_context()


class S3GenStream:
    """One utterance: feed it codes as they come, and finish it. Each call gives the samples that are certain."""

    def __init__(self, model: S3Gen, reference: S3GenReference, noise: S3GenNoise) -> None:
        """`noise` is that of the longest utterance there may be; a shorter one uses its start."""
        self.model, self.reference, self.noise = model, reference, noise
        self.codes: list[int] = []
        self.mel = model.fade.new_zeros(NUM_MELS, 0)  # [80, frames that are kept]
        self.source = model.fade.new_zeros(0)  # [samples whose pitch is certain]
        self._cycles: Tensor | float = 0.0  # of each harmonic, [1, 9, 1]
        self._sounded = 0
        self._ended = False

    def feed(self, codes: Sequence[int]) -> Tensor:
        """More codes. -> [samples], often none at first"""
        return self._go_on(codes, last=False)

    def finish(self, codes: Sequence[int] = ()) -> Tensor:
        """The last codes, if there are more, and all samples that are left. -> [samples]"""
        return self._go_on(codes, last=True)

    @torch.no_grad()
    def _go_on(self, codes: Sequence[int], *, last: bool) -> Tensor:
        if self._ended:
            raise GraftError("packing", "codes for an utterance that was finished", expected="a new stream")
        if len(codes):
            self.codes += validate_codes(codes).tolist()
        longest = (self.noise.flow.shape[1] - FRAMES_PER_CODE * len(self.reference.codes)) // FRAMES_PER_CODE
        if len(self.codes) > longest:
            found = f"{len(self.codes):,} codes in one utterance"
            raise AudioError("codes-outside", found, expected=f"at most {longest:,}, for which noise was drawn")
        self._ended = last
        with self.model.precision():
            self._grow_mel(last=last)
            self._grow_source(last=last)
            return self._sound(last=last)

    def _grow_mel(self, *, last: bool) -> None:
        ready = len(self.codes) if last else len(self.codes) - LOOKAHEAD
        if ready <= 0 or self.reference.num_frames(ready) <= self.mel.shape[1]:
            return
        frames = FRAMES_PER_CODE * (len(self.reference.codes) + len(self.codes))
        noise = S3GenNoise(self.noise.flow[:, :frames], self.noise.phases, self.noise.source)
        (mel,) = self.model.generate_mels([self.codes], [self.reference], [noise])
        fresh = mel[self.mel.shape[1] : self.reference.num_frames(ready)].T
        self.mel = torch.cat([self.mel, fresh], dim=1)

    def _grow_source(self, *, last: bool) -> None:
        """Pitch and source of the frames that no later frame can change."""
        start, known = self.source.shape[0] // HOP, self.mel.shape[1]
        end = known if last else known - F0_CONTEXT
        if end <= start:
            return
        first = max(0, start - F0_CONTEXT)
        pitch = self.model.mel2wav.f0_predictor(self.mel[None, :, first:])[
            :, start - first : end - first
        ]  # [1, frames]
        noise = self.noise.source[None, :, HOP * start : HOP * end].to(self.source)
        source = self.model.mel2wav.m_source(pitch, self.noise.phases[None].to(self.source), noise, self._cycles)
        self._cycles = self._cycles + self.model.mel2wav.m_source.count_cycles(pitch)
        self.source = torch.cat([self.source, source[0]])

    def _sound(self, *, last: bool) -> Tensor:
        known = self.source.shape[0] // HOP
        end = known if last else known - CONTEXT
        if end <= self._sounded:
            return self.source[:0]
        first, begin = max(0, self._sounded - CONTEXT), self._sounded
        wave = self.model.mel2wav.decode(self.mel[None, :, first:known], self.source[None, HOP * first :])[0]
        wave = wave[HOP * (begin - first) : HOP * (end - first)]
        fade = self.model.fade[HOP * begin :][: len(wave)]
        wave[: len(fade)] *= fade
        self._sounded = end
        return wave


# Samples before a piece that the watermark is computed with, so that it does not begin anew at every join.
MARK_CONTEXT = SAMPLE_RATE // 2


class S3GenSoundStream:
    """A stream as the engine takes it: samples in memory of the CPU, with the watermark where there is one."""

    def __init__(self, model: S3Gen, reference: S3GenReference, noise: S3GenNoise, mark: Any | None = None) -> None:
        self._stream, self._mark = S3GenStream(model, reference, noise), mark
        self._before = np.zeros(0, dtype=np.float32)

    def feed(self, codes: Sequence[int]) -> NDArray[np.float32]:
        return self._marked(self._stream.feed(codes))

    def finish(self, codes: Sequence[int] = ()) -> NDArray[np.float32]:
        return self._marked(self._stream.finish(codes))

    def _marked(self, wave: Tensor) -> NDArray[np.float32]:
        samples: NDArray[np.float32] = wave.float().cpu().numpy()
        if self._mark is None or not len(samples):
            return samples
        known = np.concatenate([self._before, samples])
        marked = self._mark.apply_watermark(known, sample_rate=SAMPLE_RATE)
        self._before = known[-MARK_CONTEXT:]
        return np.asarray(marked, dtype=np.float32)[len(known) - len(samples) :]
