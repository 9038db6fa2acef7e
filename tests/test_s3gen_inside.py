"""S3Gen, module by module: corners of what the original's modules gave, and the pieces between mel and waveform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support import s3gen
from tests.support.shared import difference, formula
from tests.test_s3gen import UTTERANCES, golden_model, golden_utterance
from tests.test_s3gen_stages import (
    DECODE_LIMIT,
    F0_LIMIT,
    FRAMES,
    HIFT_FRAMES,
    KINDS,
    OWN_SOURCE_LIMIT,
    estimator_inputs,
)
from voxgraft.audio.features import _sinc_kernel
from voxgraft.models.campplus import kaldi_fbank
from voxgraft.models.chatterbox.hift import VOICED_HZ
from voxgraft.nn.attention import build_key_mask

CORNER_LIMIT = 5e-4
UNET = "flow.decoder.estimator."
# What is no module here: the time's sinusoids, and mean and deviation over time.
NO_MODULES = ("time_embeddings", "xvector.stats")


def corner(found: Tensor) -> Tensor:
    """Of the first item: the first and the last eight rows and columns, or of one axis the first and last eight."""
    item = found[0]
    if item.dim() == 1:
        return torch.cat([item[:8], item[-8:]])
    if item.dim() == 3:
        item = item.flatten(0, 1)
    return torch.cat([item[:8, :8].flatten(), item[-8:, -8:].flatten()])


def is_transposed(name: str) -> bool:
    """Whether the original has channels before time where ours has time first."""
    in_unet = (
        name.startswith(UNET) and ".1." not in name.removeprefix(UNET).partition(".")[2][1:] and "time" not in name
    )
    return in_unet or name == "flow.encoder.up_layer"


@contextmanager
def watched(model: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    seen: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _given: Any, found: Tensor | tuple[Tensor, Tensor]) -> None:
        found = found if isinstance(found, Tensor) else found[0] + found[1]  # a block and what is still to be added
        seen[name] = found.transpose(-1, -2) if is_transposed(name) and found.dim() > 2 else found

    hooks = [model.get_submodule(name).register_forward_hook(partial(keep, name)) for name in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def run_parts(kind: str, *, meanflow: bool) -> dict[str, Callable[[], object]]:
    """What has to be called for the modules under each prefix to be seen."""
    model = golden_model(kind, meanflow=meanflow)

    def encode() -> object:
        codes, reference, _ = golden_utterance("a")
        return model.flow.encode(torch.cat([reference.codes, torch.tensor(codes)])[None])

    def estimate() -> object:
        unet = model.flow.decoder.estimator
        x, mean, prompt, speaker = estimator_inputs()
        given = torch.cat([mean, speaker[:, None].expand(-1, FRAMES, -1), prompt], dim=-1)
        tau = unet.embed_times(torch.tensor([0.3, 0.7]), torch.tensor([0.8, 1.0]) if meanflow else None)
        return unet(x, given, tau, build_key_mask(torch.arange(FRAMES) < torch.tensor([37, 29])[:, None]))

    def decode() -> object:
        mel = s3gen.floats("hift.mel", (1, 80, HIFT_FRAMES), 2.0)
        return model.mel2wav.decode(mel, s3gen.floats("hift.source", (1, 1, 11520), 0.1)[0])

    def embed() -> object:
        fbank = kaldi_fbank(torch.from_numpy(formula().golden_wave(3.0, 16_000)))
        return model.speaker_encoder((fbank - fbank.mean(0))[None])

    return {"flow.encoder.": encode, UNET: estimate, "mel2wav.": decode, "speaker_encoder.": embed}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meanflow", [False, True])
def test_every_module_gives_what_the_originals_gives(kind: str, meanflow: bool) -> None:
    prefix = f"{kind}{'.meanflow' if meanflow else ''}.at."
    golden = {name.removeprefix(prefix): array for name, array in s3gen.golden().items() if name.startswith(prefix)}
    names = [name for name in golden if not name.endswith(NO_MODULES)]
    model, compared = golden_model(kind, meanflow=meanflow), 0
    for part, run in run_parts(kind, meanflow=meanflow).items():
        own = [name for name in names if name.startswith(part)]
        with watched(model, own) as seen, torch.no_grad():
            run()
        for name in own:
            # The original's layer ends with the activation.
            found = seen[name].relu() if name.endswith("xvector.tdnn") else seen[name]
            assert difference(corner(found), golden[name]) < CORNER_LIMIT, name
            compared += 1
    assert compared == len(names) >= (14 if meanflow else 45)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", UTTERANCES)
def test_between_mel_and_waveform_every_piece_is_the_originals(kind: str, name: str) -> None:
    """From the original's own mel: only from the pitch on does rounding grow, in the sum of phases."""
    golden, model = s3gen.golden(), golden_model(kind)
    mel = torch.from_numpy(golden[f"{kind}.{name}.mel"])[None]
    source = torch.from_numpy(golden[f"{kind}.{name}.source"])[None]
    _, _, noise = golden_utterance(name)
    with torch.no_grad():
        pitch = model.mel2wav.f0_predictor(mel)
        own = model.mel2wav.m_source(pitch, noise.phases[None], noise.source[None])
        wave = model.mel2wav.decode(mel, source)[0]
    assert difference(pitch, golden[f"{kind}.{name}.f0"]) < F0_LIMIT
    assert difference(own[0], source[0].numpy()) < OWN_SOURCE_LIMIT
    wave[: len(model.fade)] *= model.fade
    assert difference(wave, golden[f"{kind}.{name}.wave"]) < DECODE_LIMIT


def test_voiced_frames_and_the_resamplers_kernel_are_the_originals() -> None:
    golden = s3gen.golden()
    pitch = (s3gen.floats("hift.f0", (1, HIFT_FRAMES), 150) + 100).clamp_min(0)
    assert np.array_equal((pitch[0] > VOICED_HZ).float().numpy(), golden["hift.uv_per_frame"].astype(np.float32))
    kernel, _ = _sinc_kernel(24_000, 16_000)
    assert difference(kernel.reshape(2, -1), golden["resample_kernel_24_16"]) < 1e-6
