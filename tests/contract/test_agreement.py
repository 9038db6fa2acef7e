"""The contract of every family: the ways to compute the same thing give the same thing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.contract.cases import LENGTHS, TOLERANCE, Case, batch, layout, prompts, text_ids
from voxgraft.models.base import build_sequence, code_position
from voxgraft.models.generate import DecodeSession, GenerationPrompt, generate_codes
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, compute_losses, pack_batch
from voxgraft.nn.attention import AttentionBackend, Packing, choose_attention_backend, supports_varlen
from voxgraft.nn.decode import SamplingParams


def alone(case: Case, model: SpeechModel) -> list[torch.Tensor]:
    """The body's output of each utterance of `batch`, one by one."""
    return [
        compute_hidden_states(model, pack_batch(model, [layout(model, *lengths, seed)], [case.condition(model, seed)]))
        for seed, lengths in enumerate(LENGTHS)
    ]


@torch.no_grad()
def test_a_pack_gives_what_its_utterances_give_one_by_one(case: Case) -> None:
    model, gate = case.grafted()
    for state in (gate.opened(), gate.closed()):
        with state:
            packed, single = compute_hidden_states(model, batch(case, model)), torch.cat(alone(case, model))
            assert (packed - single).abs().max() < TOLERANCE
            assert (model.speech_logits(packed) - model.speech_logits(single)).abs().max() < TOLERANCE


def test_losses_of_a_pack_are_the_sums_of_its_utterances(case: Case) -> None:
    model = case.open()
    whole = compute_losses(model, batch(case, model), chunk=8)
    parts = [
        compute_losses(model, pack_batch(model, [layout(model, *lengths, seed)], [case.condition(model, seed)]))
        for seed, lengths in enumerate(LENGTHS)
    ]
    assert whole.text_count == sum(part.text_count for part in parts) == sum(text + 1 for text, _ in LENGTHS)
    stops = model.spec.num_speech_stops
    assert whole.speech_count == sum(part.speech_count for part in parts) == sum(codes + stops for _, codes in LENGTHS)
    assert float(whole.text_sum) == pytest.approx(sum(float(part.text_sum) for part in parts), rel=1e-5)
    assert float(whole.speech_sum) == pytest.approx(sum(float(part.speech_sum) for part in parts), rel=1e-5)


@torch.no_grad()
def test_attention_backends_agree(case: Case) -> None:
    model = case.open()
    want = compute_hidden_states(model, batch(case, model, backend="sdpa"))
    assert (compute_hidden_states(model, batch(case, model, backend="flex")) - want).abs().max() < TOLERANCE


def test_attention_without_padding_is_left_to_devices_that_have_the_kernel() -> None:
    assert choose_attention_backend("cpu", torch.bfloat16) == "sdpa"
    assert supports_varlen((8, 0), torch.bfloat16)
    assert supports_varlen((9, 0), torch.float16)
    assert not supports_varlen((7, 5), torch.float16)
    assert not supports_varlen((9, 0), torch.float32)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_attention_is_causal_within_each_sequence_and_blind_to_others(backend: AttentionBackend) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 17, 1, 9, 16]
    q, k, v = (torch.randn(sum(lengths), 2, 16, generator=generator) for _ in range(3))
    found = Packing.of(lengths, backend=backend).attend(0, q, k, v)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (rows[:, None] == rows) & torch.ones(len(rows), len(rows)).tril().bool()
    shares = (torch.einsum("qhd,khd->hqk", q, k) / 4).masked_fill(~seen, -torch.inf).softmax(-1)
    assert (found - torch.einsum("hqk,khd->qhd", shares, v)).abs().max() < 1e-5


@torch.no_grad()
def test_decoding_with_a_cache_gives_the_logits_of_a_full_forward(case: Case) -> None:
    model = case.open()
    sampling = SamplingParams(temperature=0, max_codes=8, readable=True, stock=False)
    given = prompts(case, model)
    streams = DecodeSession(model, given, sampling)
    steps = [streams.logits.clone()]
    for _ in range(7):
        streams.sample_next_codes(None)
        streams.feed_codes()
        steps.append(streams.logits.clone())
    for row, prompt in enumerate(given):
        codes = streams.codes[row, :7].tolist()
        assert model.spec.speech_stop not in codes  # a base for which all of it is compared
        sequence = build_sequence(model.spec, prompt.text_ids, codes)
        full = pack_batch(model, [sequence], [prompt.condition])
        hidden = compute_hidden_states(model, full)[-len(sequence.speech.ids) :]
        logits = model.speech_logits(hidden)[: len(codes) + 1]
        cached = torch.stack([step[row] for step in steps[: len(codes) + 1]])
        assert (logits - cached).abs().max() < TOLERANCE


def test_utterances_spoken_together_are_those_spoken_alone(case: Case) -> None:
    """Greedy codes may part only where the best two logits lie within 1e-3 of one another."""
    model = case.open()
    guidance = case.family.upstream_sampling().guidance
    for sampling in (
        SamplingParams(temperature=0, guidance=guidance, repetition_penalty=1.5, max_codes=16),
        SamplingParams(temperature=0.8, min_p=0.05, guidance=guidance, max_codes=16),
    ):
        together = generate_codes(model, prompts(case, model), sampling)
        for spoken, prompt in zip(together, prompts(case, model), strict=True):
            single = generate_codes(model, [prompt], sampling)[0]
            if single != spoken:
                assert sampling.temperature == 0
                assert _gap_where_they_part(model, prompt, sampling, spoken.codes) < 1e-3


@torch.no_grad()
def _gap_where_they_part(
    model: SpeechModel, prompt: GenerationPrompt, sampling: SamplingParams, other: list[int]
) -> float:
    streams = DecodeSession(model, [prompt], sampling)
    for code in other:
        best = streams.penalized_logits()[0].topk(2).values
        streams.sample_next_codes(None)
        if int(streams.codes[0, int(streams.num_generated) - 1]) != code:
            return float(best[0] - best[1])
        streams.feed_codes()
    return float("inf")


def test_preparing_and_speaking_lay_text_and_speech_out_alike(case: Case) -> None:
    model = case.open()
    ids = text_ids(model, 9, 1)
    learnt = build_sequence(model.spec, ids, [5, 6, 7])
    spoken = build_sequence(model.spec, ids, stock=False)
    assert np.array_equal(learnt.text.ids, spoken.text.ids)
    assert np.array_equal(learnt.text.positions, spoken.text.positions)
    assert learnt.speech.ids[0] == spoken.speech.ids[0]
    assert learnt.speech.positions[0] == spoken.speech.positions[0]
    after = [code_position(model.spec, index, stock=False) for index in range(3)]
    assert learnt.speech.positions[1:4].tolist() == after


def test_the_family_and_its_model_lay_out_alike_at_published_size(case: Case) -> None:
    model = case.open()
    mine, published = model.spec, case.family.sequence_spec(model.num_text_ids)
    assert (mine.text_start, mine.text_stop, mine.num_text_ids) == (
        published.text_start,
        published.text_stop,
        published.num_text_ids,
    )
    assert (mine.num_codes, mine.speech_start, mine.speech_stop) == (
        published.num_codes,
        published.speech_start,
        published.speech_stop,
    )
    assert mine.upstream_start_positions == published.upstream_start_positions
    assert mine.forbidden_text_ids == published.forbidden_text_ids == case.family.deleted_ids
