"""Our T3 against the original program's, for weights made by formula, at the tolerances of the golden page."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.shared import difference, expected, formula, golden_state, names, shared
from voxgraft.models.base import build_sequence
from voxgraft.models.chatterbox.family import T3Size
from voxgraft.models.chatterbox.model import T3, T3Condition
from voxgraft.models.generate import DecodeSession, GenerationPrompt
from voxgraft.models.speech_model import compute_hidden_states, compute_losses, pack_batch
from voxgraft.nn.decode import SamplingParams

TOLERANCE = 5e-5
REDUCED = T3Size(layers=2, mlp=512)
UTTERANCES = {"a": (150, 0.5), "b": (60, 0.8)}


@pytest.fixture(scope="module")
def model() -> T3:
    made = T3(REDUCED)
    made.load_state_dict(golden_state(names("chatterbox", "t3_reduced")), strict=True)
    return made.eval()


@cache
def golden() -> dict[str, np.ndarray[Any, Any]]:
    return expected("chatterbox")


def condition(utterance: str) -> T3Condition:
    num_prompt, emotion = UTTERANCES[utterance]
    voice = np.abs(formula().golden_floats("input.chatterbox.speaker", (256,), 1.0)).astype(np.float64)
    voice /= np.sqrt((voice**2).sum())
    prompt = formula().golden_ints(f"input.chatterbox.prompt.{utterance}", num_prompt, 0, 6561)
    assert np.array_equal(prompt, golden()[f"prompt_{utterance}"])
    return T3Condition(voice.astype(np.float32), prompt, emotion)


def text_ids(utterance: str) -> np.ndarray[Any, Any]:
    """Without start and stop, which the layout puts around them."""
    return golden()[f"text_{utterance}"][1:-1].astype(np.int64)


def codes(utterance: str) -> np.ndarray[Any, Any]:
    return golden()[f"speech_{utterance}"][1:-1].astype(np.int64)


@pytest.mark.parametrize("utterance", ["a", "b"])
def test_layout_is_the_original_programs(model: T3, utterance: str) -> None:
    layout = build_sequence(model.spec, text_ids(utterance), codes(utterance))
    assert np.array_equal(layout.text.ids, golden()[f"text_{utterance}"])
    assert np.array_equal(layout.speech.ids, golden()[f"speech_{utterance}"])


@pytest.mark.parametrize("utterance", ["a", "b"])
def test_conditioning_and_logits_match_the_original(model: T3, utterance: str) -> None:
    want = golden()
    layout = build_sequence(model.spec, text_ids(utterance), codes(utterance))
    batch = pack_batch(model, [layout], [condition(utterance)])
    with torch.no_grad():
        assert difference(model.embed_conditions(batch.conditions)[0], want[f"cond_{utterance}"]) < TOLERANCE
        hidden = compute_hidden_states(model, batch)
        text = model.text_logits(hidden[34 : 34 + len(layout.text.ids)])
        speech = model.speech_logits(hidden[34 + len(layout.text.ids) :])
    assert difference(hidden[-len(speech) :, :8], want[f"speech_latents_{utterance}_first8"]) < TOLERANCE
    for part, logits in (("text", text), ("speech", speech)):
        columns = torch.from_numpy(want[f"{part}_cols"]).long()
        assert difference(logits[:, columns], want[f"{part}_logits_{utterance}"]) < TOLERANCE
        assert difference(logits.logsumexp(-1), want[f"{part}_lse_{utterance}"]) < TOLERANCE
        assert np.array_equal(logits.argmax(-1).numpy(), want[f"{part}_argmax_{utterance}"])


@pytest.mark.parametrize("utterance", ["a", "b"])
def test_losses_match_the_original(model: T3, utterance: str) -> None:
    batch = pack_batch(
        model, [build_sequence(model.spec, text_ids(utterance), codes(utterance))], [condition(utterance)]
    )
    with torch.no_grad():
        found = compute_losses(model, batch)
    assert abs(float(found.text) - float(golden()[f"text_loss_{utterance}"])) < TOLERANCE
    assert abs(float(found.speech) - float(golden()[f"speech_loss_{utterance}"])) < TOLERANCE


def test_gradients_match_the_original(model: T3) -> None:
    norms = json.loads(shared("golden/chatterbox/grad_norms.json").read_text())
    for utterance, want in norms.items():
        model.zero_grad()
        batch = pack_batch(
            model, [build_sequence(model.spec, text_ids(utterance), codes(utterance))], [condition(utterance)]
        )
        found = compute_losses(model, batch, chunk=16)
        torch.autograd.backward(found.text + found.speech)
        for name, parameter in model.named_parameters():
            if name == "cond_enc.perceiver.attn.to_k.bias":
                continue  # zero in theory; the original's norm is rounding noise
            norm = 0.0 if parameter.grad is None else float(parameter.grad.double().norm())
            assert norm == pytest.approx(want.get(name, 0.0), rel=1e-4), (utterance, name)


def test_rotary_frequencies_are_llama_3s(model: T3) -> None:
    frequencies = model.tfmr.frequencies_on(torch.device("cpu"))
    assert difference(frequencies, golden()["rope_inv_freq"]) < 1e-9


@pytest.mark.parametrize("utterance", ["a", "b"])
@pytest.mark.parametrize(("guidance", "prefix"), [(0.5, "cfg05"), (0.0, "cfg0")])
def test_decoding_gives_the_originals_tokens_and_logits(
    model: T3, utterance: str, guidance: float, prefix: str
) -> None:
    want = {key.removeprefix(f"{prefix}_{utterance}_"): value for key, value in golden().items()}
    sampling = SamplingParams(temperature=0, repetition_penalty=2.0, guidance=guidance, max_codes=20, readable=False)
    columns = torch.from_numpy(golden()["speech_cols"]).long()
    with torch.no_grad():
        streams = DecodeSession(model, [GenerationPrompt(text_ids(utterance).tolist(), condition(utterance))], sampling)
        for step in range(20):
            rows = streams.logits
            assert difference(rows[0, columns], want["cond_logits"][step]) < TOLERANCE
            assert difference(rows[-1, columns], want["uncond_logits"][step]) < TOLERANCE
            assert difference(streams.penalized_logits()[0, columns], want["penalised_logits"][step]) < TOLERANCE
            streams.sample_next_codes(None)
            assert int(streams.codes[0, step]) == want["tokens"][step]
            if step < 19:
                streams.feed_codes()
