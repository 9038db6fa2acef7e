"""The contract of every family: what a graft must leave alone, to the last bit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.contract.cases import NUM_NEW, Case, batch, prompts
from voxgraft.models.generate import generate_codes
from voxgraft.models.speech_model import compute_hidden_states, compute_losses, grow_model, load_model, save_model
from voxgraft.nn.adapter import add_adapter
from voxgraft.nn.decode import SamplingParams
from voxgraft.nn.rows import GrownHead, compute_base_fingerprint, freeze_base, hash_base_tensors, require_same_base

SAMPLED = SamplingParams(temperature=0.9, min_p=0.02, repetition_penalty=1.3, max_codes=12)


@torch.no_grad()
def test_growth_leaves_the_speech_logits_of_base_text_equal_bit_for_bit(case: Case) -> None:
    base, grown = case.open(), case.open()
    pieces = base.num_text_ids
    grow_model(grown, NUM_NEW)
    before = compute_hidden_states(base, batch(case, base))
    after = compute_hidden_states(grown, batch(case, grown, below=pieces))
    assert torch.equal(base.speech_logits(before), grown.speech_logits(after))
    head = grown.get_submodule(grown.text_head_name)
    assert isinstance(head, GrownHead)
    text = base.text_logits(before)
    assert torch.equal(text[:, :pieces], grown.text_logits(after)[:, :pieces])


@torch.no_grad()
def test_with_the_gate_off_a_graft_is_not_there_bit_for_bit(case: Case) -> None:
    base = case.open()
    grafted, gate = case.grafted()
    pieces = base.num_text_ids
    want = base.speech_logits(compute_hidden_states(base, batch(case, base)))
    mine = batch(case, grafted, below=pieces)
    with gate.closed():
        assert torch.equal(grafted.speech_logits(compute_hidden_states(grafted, mine)), want)
    with gate.opened():
        assert not torch.equal(grafted.speech_logits(compute_hidden_states(grafted, mine)), want)


def test_a_graft_without_rows_keeps_every_promise(case: Case, tmp_path: Path) -> None:
    """A language whose letters the base has adds no row at all."""
    base, grafted = case.open(), case.open()
    grow_model(grafted, 0)
    gate = add_adapter(grafted, grafted.adapter_layers(), rank=2, alpha=2, seed=0)
    trained = freeze_base(grafted)
    step = batch(case, grafted)
    with torch.no_grad():
        want, found = compute_hidden_states(base, step), compute_hidden_states(grafted, step)
        assert torch.equal(grafted.speech_logits(found), base.speech_logits(want))
        assert torch.equal(grafted.text_logits(found), base.text_logits(want))
    with gate.opened():
        learnt = compute_losses(grafted, step)
        torch.autograd.backward(learnt.text + learnt.speech)
    torch.optim.AdamW(trained.values(), lr=1e-2).step()
    assert generate_codes(grafted, prompts(case, grafted), SAMPLED) == generate_codes(
        base, prompts(case, base), SAMPLED
    )
    saved = tmp_path / case.files.checkpoint.name
    save_model(grafted, saved)
    again = load_model(case.family, replace(case.files, checkpoint=saved))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in base.state_dict().items())


def test_with_the_gate_off_the_same_codes_are_spoken(case: Case) -> None:
    base = case.open()
    grafted, gate = case.grafted()
    guidance = case.family.upstream_sampling().guidance
    sampling = SamplingParams(temperature=0.9, min_p=0.02, guidance=guidance, max_codes=12)
    want = generate_codes(base, prompts(case, base), sampling)
    with gate.closed():
        assert generate_codes(grafted, prompts(case, grafted, below=base.num_text_ids), sampling) == want
    with gate.opened():
        assert generate_codes(grafted, prompts(case, grafted, below=base.num_text_ids), sampling) != want


def test_base_rows_and_body_are_the_same_bits_after_training_with_weight_decay(case: Case) -> None:
    fingerprint = compute_base_fingerprint(case.open())
    model, gate = case.grafted()
    trained = freeze_base(model)
    digests = hash_base_tensors(model)
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.3)
    start = {name: parameter.detach().clone() for name, parameter in trained.items()}
    step = batch(case, model)
    with gate.opened():
        for _ in range(3):
            optimizer.zero_grad()
            found = compute_losses(model, step)
            torch.autograd.backward(found.text + found.speech)
            optimizer.step()
    require_same_base(model, digests)
    assert compute_base_fingerprint(model) == fingerprint
    assert all(not torch.equal(parameter, start[name]) for name, parameter in trained.items())


@pytest.mark.long(fast="tiny")
def test_a_model_trained_whole_learns_utterances_by_heart(case: Case) -> None:
    """So gradients reach what they should: a random body under fixed random heads could not be moved this far."""
    model = case.open().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = batch(case, model)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        found = compute_losses(model, step, chunk=64)
        torch.autograd.backward(found.text + found.speech)
        optimizer.step()
        values.append((found.text.item(), found.speech.item()))
    assert values[-1][0] < 0.5 * values[0][0]
    assert values[-1][1] < 0.5 * values[0][1]


def test_a_grown_model_is_saved_and_opened_again_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    base, grafted = case.open(), case.grafted()[0]
    folder = tmp_path / "grown"
    folder.mkdir()
    for file in case.files.folder.iterdir():
        if file.is_file() and file != case.files.checkpoint:
            (folder / file.name).write_bytes(file.read_bytes())
    saved = folder / case.files.checkpoint.name
    save_model(grafted, saved)
    if case.files.config is not None:
        config = folder / case.files.config.name
        pieces = base.num_text_ids
        written = re.sub(rf": {pieces}(,?)\n", rf": {pieces + NUM_NEW}\1\n", config.read_text())
        config.write_text(written)
    again = load_model(case.family, case.family.files(folder))
    assert again.num_text_ids == base.num_text_ids + NUM_NEW
    want = grafted.state_dict()
    assert list(again.state_dict()) == list(base.state_dict())
    assert all(torch.equal(tensor, want[name]) for name, tensor in again.state_dict().items())
