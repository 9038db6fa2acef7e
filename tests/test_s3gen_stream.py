"""S3Gen while codes still come: exact joins however they are cut, and every frame once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.support import s3gen
from tests.support.run_folders import error_of
from voxgraft.models.chatterbox.s3gen import CONTEXT, F0_CONTEXT, S3Gen, S3GenNoise, S3GenReference, S3GenStream

CODES = [(91 * at + 17) % 6561 for at in range(60)]


@pytest.fixture(scope="module")
def model() -> S3Gen:
    return s3gen.random_model().double()


@pytest.fixture(scope="module")
def reference() -> S3GenReference:
    return s3gen.random_reference(6, 13, 5)


def noise_for(reference: S3GenReference, num_codes: int) -> S3GenNoise:
    return S3GenNoise.draw(torch.Generator().manual_seed(0), num_codes, reference)


def streamed(stream: S3GenStream, cuts: list[int]) -> list[Tensor]:
    places = [0, *cuts]
    pieces = [stream.feed(CODES[start:end]) for start, end in pairwise(places)]
    return [*pieces, stream.finish(CODES[places[-1] :])]


def waveform_of(model: S3Gen, stream: S3GenStream, noise: S3GenNoise) -> Tensor:
    """The whole vocoder on the mel that a stream has kept."""
    samples = 480 * stream.mel.shape[1]
    phases, source = noise.phases[None].double(), noise.source[None, :, :samples].double()
    with torch.no_grad():
        wave: Tensor = model.mel2wav(stream.mel[None], phases, source)[0][0]
    wave[:960] *= model.fade
    return wave


@pytest.mark.long(fast=("cuts0", "cuts1"))
@pytest.mark.parametrize("cuts", [[30], [14, 28, 42], [1, 2, 3, 50], list(range(5, 60, 5)), [60]])
def test_streamed_pieces_are_the_waveform_of_the_kept_mel_wherever_they_are_cut(
    model: S3Gen, reference: S3GenReference, cuts: list[int]
) -> None:
    noise = noise_for(reference, 70)
    stream = S3GenStream(model, reference, noise)
    pieces = streamed(stream, cuts)
    whole, joined = waveform_of(model, stream, noise), torch.cat(pieces)
    assert joined.shape == whole.shape == (480 * (2 * len(CODES) - 1),)
    assert float((joined - whole).abs().max()) < 1e-7
    # At the joins the step between two samples is the waveform's own.
    for place in torch.tensor([len(piece) for piece in pieces]).cumsum(0)[:-1].tolist():
        if 0 < place < len(whole):
            steps = [wave[place] - wave[place - 1] for wave in (joined, whole)]
            assert float((steps[0] - steps[1]).abs()) < 1e-7


def test_a_sentence_that_comes_at_once_is_what_it_is_without_a_stream(model: S3Gen, reference: S3GenReference) -> None:
    noise = noise_for(reference, len(CODES))
    found = S3GenStream(model, reference, noise).finish(CODES)
    (wave,) = model.generate([CODES], [reference], [noise])
    assert float((found - wave).abs().max()) < 1e-8


def test_the_context_is_as_far_as_the_vocoder_sees(model: S3Gen) -> None:
    """A change beyond the context moves nothing: else the joins were not exact."""
    torch.manual_seed(3)
    mel, source = torch.randn(1, 80, 4 * CONTEXT).double(), torch.randn(1, 480 * 4 * CONTEXT).double() * 0.1
    other = mel.clone()
    other[..., 3 * CONTEXT :] += 1.0
    sounding = torch.cat([source[:, : 480 * 3 * CONTEXT], torch.randn(1, 480 * CONTEXT).double()], dim=1)
    with torch.no_grad():
        before, after = model.mel2wav.decode(mel, source), model.mel2wav.decode(other, sounding)
        pitch, moved = model.mel2wav.f0_predictor(mel), model.mel2wav.f0_predictor(other)
    assert torch.equal(before[:, : 480 * 2 * CONTEXT], after[:, : 480 * 2 * CONTEXT])
    assert not torch.equal(before, after)
    edge = 3 * CONTEXT - F0_CONTEXT
    assert torch.equal(pitch[:, :edge], moved[:, :edge])
    assert not torch.equal(pitch[:, edge], moved[:, edge])


def test_sound_begins_after_fourteen_codes_and_no_frame_is_changed_later(
    model: S3Gen, reference: S3GenReference
) -> None:
    stream = S3GenStream(model, reference, noise_for(reference, 60))
    first = next(count for count in range(1, 60) if len(stream.feed(CODES[count - 1 : count])))
    assert first == 3 + (CONTEXT + F0_CONTEXT + 1) // 2 + 1
    kept, source = stream.mel.clone(), stream.source.clone()
    stream.feed(CODES[first:40])
    assert torch.equal(stream.mel[:, : kept.shape[1]], kept)
    assert torch.equal(stream.source[: len(source)], source)


def test_a_stream_refuses_what_it_has_no_noise_for_and_what_comes_after_its_end(
    model: S3Gen, reference: S3GenReference
) -> None:
    stream = S3GenStream(model, reference, noise_for(reference, 5))
    assert error_of(lambda: stream.feed(CODES[:6])).code == "codes-outside"
    stream = S3GenStream(model, reference, noise_for(reference, 5))
    assert len(stream.finish(CODES[:5])) == 480 * 9
    assert error_of(lambda: stream.feed(CODES[:1])).code == "packing"
    assert len(S3GenStream(model, reference, noise_for(reference, 5)).finish()) == 0
