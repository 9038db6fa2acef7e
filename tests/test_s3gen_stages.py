"""S3Gen, stage by stage: what the original gave for the same weights and the same random numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from tests.support import s3gen
from tests.support.shared import difference, formula
from voxgraft.audio.features import hifigan_mel, mel_filters, resample_sinc
from voxgraft.models.chatterbox.flow import CodeToMel, FlowSize, step_times
from voxgraft.models.chatterbox.hift import HarmonicSource, HiFT, HiftSize, fold_weight_norm, published_shapes
from voxgraft.nn.attention import build_key_mask

SMALL_FLOW = FlowSize(1, 64, width=64, inner=32, head_width=16, transformers=1, mid_blocks=2)
FLOWS = {"small": SMALL_FLOW, "full": FlowSize()}
HIFTS = {"small": HiftSize(64, 32), "full": HiftSize()}
KINDS = ["small", pytest.param("full", marks=pytest.mark.long)]
ROOT = math.sqrt(3)
"""Uniform numbers up to this have a variance of one and stand for normal ones."""
FRAMES, HIFT_FRAMES = 37, 24

FLOW_LIMIT, ESTIMATOR_LIMIT, MEL_LIMIT = 2e-5, 1e-4, 2e-4
F0_LIMIT, DECODE_LIMIT, SOURCE_LIMIT, OWN_SOURCE_LIMIT = 5e-3, 1e-4, 1e-4, 4e-3


@cache
def flow(kind: str, *, meanflow: bool = False) -> CodeToMel:
    network = CodeToMel(replace(FLOWS[kind], meanflow=meanflow)).requires_grad_(False).eval()
    network.load_state_dict(s3gen.state(f"s3gen_{kind}{'_meanflow' if meanflow else ''}", "flow."))
    return network


@cache
def hift(kind: str) -> HiFT:
    network = HiFT(HIFTS[kind]).requires_grad_(False).eval()
    network.load_state_dict(fold_weight_norm(s3gen.state(f"s3gen_{kind}", "mel2wav.")))
    return network


def estimator_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, mean and prompt [2, 37, 80], speaker [2, 80]"""
    x, mean, prompt = (
        s3gen.floats(f"est.{name}", (2, 80, FRAMES), ROOT).transpose(1, 2) for name in ("x", "mu", "cond")
    )
    return x, mean, prompt, s3gen.floats("est.spks", (2, 80), 1.0)


@pytest.mark.parametrize("kind", FLOWS)
def test_names_and_shapes_are_the_published_ones(kind: str) -> None:
    with torch.device("meta"):
        networks = {"flow.": CodeToMel(replace(FLOWS[kind], meanflow=True)), "mel2wav.": HiFT(HIFTS[kind])}
    found = {prefix + name: shape for prefix, own in networks.items() for name, shape in published_shapes(own).items()}
    known = s3gen.shapes(f"s3gen_{kind}_meanflow")
    assert found == {name: shape for name, shape in known.items() if name.startswith(tuple(networks))}


@pytest.mark.parametrize(("name", "seconds"), [("w1", 3.0), ("w2", 2.07)])
def test_the_features_of_a_reference_are_the_originals(name: str, seconds: float) -> None:
    golden = s3gen.golden()
    wave = torch.from_numpy(formula().golden_wave(seconds, 24_000))
    filters = mel_filters(24_000, 1920, 80, 8000.0)
    assert difference(filters, golden["mel24_filters"]) < 1e-8
    assert difference(hifigan_mel(wave, filters, 1920, 480).T, golden[f"{name}.mel24"]) < 5e-4
    resampled = resample_sinc(wave, 24_000, 16_000)
    assert len(resampled) == int(golden[f"{name}.resampled16_len"][0])
    pieces = {"first400": resampled[:400], "8000to9000": resampled[8000:9000], "last400": resampled[-400:]}
    for piece, found in pieces.items():
        assert difference(found, golden[f"{name}.resampled16_{piece}"]) < 1e-6


@pytest.mark.parametrize("rates", [(24_000, 16_000), (22_050, 16_000), (16_000, 24_000), (44_100, 48_000)])
def test_sinc_resampling_keeps_a_tone(rates: tuple[int, int]) -> None:
    before, after = (torch.sin(2 * math.pi * 440 * torch.arange(rate // 5).double() / rate).float() for rate in rates)
    found = resample_sinc(before, *rates)
    assert len(found) == -(-len(before) * rates[1] // rates[0])
    inner = slice(200, min(len(found), len(after)) - 200)
    assert float((found[inner] - after[inner]).abs().max()) < 5e-3


@pytest.mark.long(fast="*-small")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "codes"), [("a", 25), ("b", 18)])
def test_the_encoders_mean_is_the_originals(kind: str, name: str, codes: int) -> None:
    golden, network = s3gen.golden(), flow(kind)
    ids = torch.tensor([s3gen.token_ids(f"prompt_tokens.{name}", 20) + s3gen.token_ids(f"tokens.{name}", codes)])
    states = network.encoder(network.input_embedding(ids))[0]
    assert len(states) == int(golden[f"{kind}.{name}.h_length"][0])
    assert difference(states[:, :32], golden[f"{kind}.{name}.h_first32"]) < FLOW_LIMIT
    assert difference(network.encode(ids)[0].T, golden[f"{kind}.{name}.mu"]) < FLOW_LIMIT
    speaker = s3gen.floats(f"embedding.{name}", (192,), 1.0)
    assert difference(network.project_speaker(speaker[None])[0], golden[f"{kind}.{name}.spk"]) < FLOW_LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_row_has_the_states_that_the_original_has_for_it_alone(kind: str) -> None:
    network = flow(kind)
    rows = [s3gen.token_ids("tokens.a", 25), s3gen.token_ids("tokens.b", 18)]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = torch.arange(25) < torch.tensor([25, 18])[:, None]
    states = network.encoder(network.input_embedding(ids), mask)
    assert difference(states[1, :36, :32], s3gen.golden()[f"{kind}.solo_h_b_first32"]) < FLOW_LIMIT


@pytest.mark.long(fast="*-small")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meanflow", [False, True])
def test_the_velocity_is_the_originals(kind: str, meanflow: bool) -> None:
    unet = flow(kind, meanflow=meanflow).decoder.estimator
    x, mean, prompt, speaker = estimator_inputs()
    given = torch.cat([mean, speaker[:, None].expand(-1, FRAMES, -1), prompt], dim=-1)
    tau = unet.embed_times(torch.tensor([0.3, 0.7]), torch.tensor([0.8, 1.0]) if meanflow else None)
    found = unet(x, given, tau, build_key_mask(torch.arange(FRAMES) < torch.tensor([37, 29])[:, None]))
    name = f"{kind}{'.meanflow' if meanflow else ''}.estimator"
    assert difference(found.transpose(1, 2), s3gen.golden()[name]) < ESTIMATOR_LIMIT


@pytest.mark.long(fast="*-small")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 3, 10, None])
def test_the_solution_is_the_originals(kind: str, steps: int | None) -> None:
    _, mean, prompt, speaker = (one[:1] for one in estimator_inputs())
    noise = s3gen.floats("cfm.z", (1, 80, FRAMES), ROOT).transpose(1, 2)
    found = flow(kind, meanflow=steps is None).decoder.solve(noise, mean, speaker, prompt, steps=steps)
    name = f"{kind}.solve{steps}" if steps else f"{kind}.meanflow.solve2"
    assert difference(found[0].T, s3gen.golden()[name]) < MEL_LIMIT


def test_steps_grow_towards_the_end_and_are_even_for_the_mean_flow() -> None:
    assert difference(step_times(10, meanflow=False), s3gen.golden()["t_span_cosine10"]) < 1e-6
    assert step_times(2, meanflow=True).tolist() == [0.0, 0.5, 1.0]


def hift_draws() -> tuple[Tensor, Tensor]:
    return s3gen.floats("phase.hift", (1, 9, 1), math.pi), s3gen.floats("sine_noise.hift", (1, 9, 11520), ROOT)


@pytest.mark.parametrize("kind", KINDS)
def test_pitch_and_decoder_are_the_originals(kind: str) -> None:
    golden, network = s3gen.golden(), hift(kind)
    mel = s3gen.floats("hift.mel", (1, 80, HIFT_FRAMES), 2.0)
    source = s3gen.floats("hift.source", (1, 1, 11520), 0.1)
    assert difference(network.f0_predictor(mel)[0], golden[f"{kind}.hift.f0"]) < F0_LIMIT
    assert difference(network.decode(mel, source[0])[0], golden[f"{kind}.hift.decode"]) < DECODE_LIMIT


def test_the_source_of_a_given_pitch_is_the_originals() -> None:
    golden, network = s3gen.golden(), hift("small")
    pitch = (s3gen.floats("hift.f0", (1, HIFT_FRAMES), 150) + 100).clamp_min(0)
    assert difference(network.m_source(pitch, *hift_draws())[0], golden["hift.source_of_given_f0"]) < SOURCE_LIMIT
    sines = network.m_source.sines(pitch, *hift_draws())[0]
    assert difference(sines[:, ::16], golden["hift.sines_every16"]) < SOURCE_LIMIT


def test_the_source_of_a_long_utterance_keeps_its_phase() -> None:
    pitch, frames = torch.tensor(123.4), 4000
    none = torch.zeros(1, 9, 480 * frames)
    sines = HarmonicSource().sines(pitch.expand(1, frames), torch.zeros(1, 9, 1), none)
    cycles = torch.arange(480 * frames - 479, 480 * frames + 1).double() * (pitch * 9 / 24_000).double()
    assert float((sines[0, 8, -480:].double() - 0.1 * torch.sin(2 * math.pi * (cycles % 1))).abs().max()) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_waveform_of_a_mel_is_the_originals_also_with_the_start_of_a_source(kind: str) -> None:
    golden = s3gen.golden()
    mel = s3gen.floats("hift.mel", (1, 80, HIFT_FRAMES), 2.0)
    wave, source = hift(kind)(mel, *hift_draws())
    assert difference(source[0], golden[f"{kind}.hift.source"]) < OWN_SOURCE_LIMIT
    assert s3gen.signal_to_noise(wave[0], golden[f"{kind}.hift.wave"]) > 40
    cached, _ = hift(kind)(mel, *hift_draws(), None, s3gen.floats("hift.cache", (1, 1, 1920), 0.1)[0])
    assert s3gen.signal_to_noise(cached[0], golden[f"{kind}.hift.cached_wave"]) > 40
