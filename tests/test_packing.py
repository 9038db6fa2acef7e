"""What may go into one batch: as many conditions as sequences, and no id or position that the model has no row for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.cases import Case, case_of
from tests.support.fixtures import Fixtures
from voxgraft.core.errors import GraftError
from voxgraft.models import get_family
from voxgraft.models.base import SequencePart, TokenSequence, build_sequence
from voxgraft.models.speech_model import (
    LossSums,
    SpeechModel,
    compute_hidden_states,
    compute_speech_latents,
    pack_batch,
)


@pytest.fixture(scope="module")
def case() -> Case:
    folder = get_family("tiny").shipped_folder()
    assert folder is not None
    return case_of("tiny", folder)


@pytest.fixture(scope="module")
def model(case: Case) -> SpeechModel:
    return case.open()


@pytest.fixture(scope="module")
def condition(case: Case, model: SpeechModel) -> Any:
    return case.condition(model, 0)


@pytest.fixture
def sequence(model: SpeechModel) -> TokenSequence:
    return build_sequence(model.spec, [5, 6, 7], [1, 2])


def code_of(*arguments: Any, **named: Any) -> str:
    with pytest.raises(GraftError) as refused:
        pack_batch(*arguments, **named)
    return refused.value.code


def test_a_batch_needs_a_condition_and_a_mark_for_each_sequence(
    model: SpeechModel, sequence: TokenSequence, condition: Any
) -> None:
    assert code_of(model, [], []) == "packing"
    assert code_of(model, [sequence], []) == "packing"
    assert code_of(model, [sequence], [condition] * 2) == "packing"
    assert code_of(model, [sequence] * 2, [condition] * 2, silent=[True]) == "packing"
    assert code_of(model, [sequence], [condition], silent=[True, False]) == "packing"
    assert pack_batch(model, [sequence], [condition], silent=[False]).silent is None
    silent = pack_batch(model, [sequence] * 2, [condition] * 2, silent=[False, True]).silent
    assert silent is not None
    assert silent.tolist() == [False] * 5 + [True] * 5


def test_a_sequence_of_another_conditioning_is_refused(
    model: SpeechModel, sequence: TokenSequence, condition: Any
) -> None:
    for count in (-1, 1):
        other = replace(sequence, num_conditioning=model.spec.num_conditioning + count)
        assert code_of(model, [sequence, other], [condition] * 2) == "packing"


def changed(sequence: TokenSequence, side: str, **values: int) -> TokenSequence:
    """The same sequence with other values at the second position of its text or speech."""
    part: SequencePart = getattr(sequence, side)
    arrays: dict[str, Any] = {name: getattr(part, name).copy() for name in values}
    for name, value in values.items():
        arrays[name][1] = value
    parts: dict[str, Any] = {side: replace(part, **arrays)}
    return replace(sequence, **parts)


@pytest.mark.parametrize("side", ["text", "speech"])
def test_ids_and_positions_without_a_row_are_refused_wherever_the_sequence_was_made(
    side: str, model: SpeechModel, sequence: TokenSequence, condition: Any
) -> None:
    spec = model.spec
    last_id = spec.num_text_ids - 1 if side == "text" else max(spec.num_codes - 1, spec.speech_start, spec.speech_stop)
    # start, ids and stops
    last_position = spec.max_text + 1 if side == "text" else spec.max_codes + spec.num_speech_stops

    def found(**values: int) -> Callable[[], str]:
        return lambda: code_of(model, [sequence, changed(sequence, side, **values)], [condition] * 2)

    assert found(ids=-1)() == found(ids=last_id + 1)() == "ids-outside"
    assert found(positions=last_position + 1)() == "ids-length"
    edge = changed(sequence, side, ids=last_id, positions=last_position)
    assert pack_batch(model, [edge], [condition])
    assert pack_batch(model, [changed(edge, side, ids=0)], [condition])


def test_what_is_asked_of_a_pack_is_where_its_sequences_have_targets(
    model: SpeechModel, sequence: TokenSequence, condition: Any
) -> None:
    other = build_sequence(model.spec, [8], [3, 4, 5])
    batch = pack_batch(model, [sequence, other], [condition] * 2)
    slots = model.spec.num_conditioning
    text_at = [slots + at for at in range(4)] + [sequence.length + slots + at for at in range(2)]
    assert batch.text.scored.tolist() == text_at
    assert batch.text.targets.tolist() == [5, 6, 7, model.spec.text_stop, 8, model.spec.text_stop]
    speech_at = [slots + 5 + at for at in range(3)] + [sequence.length + slots + 3 + at for at in range(4)]
    assert batch.speech.scored.tolist() == speech_at
    assert batch.speech.targets.tolist() == [1, 2, model.spec.speech_stop, 3, 4, 5, model.spec.speech_stop]
    # Conditioning of both, then text of both, then speech of both: where each position of the pack is among these.
    assert batch.order[:slots].tolist() == list(range(slots))
    assert batch.order[slots : slots + 5].tolist() == [2 * slots + at for at in range(5)]
    assert batch.order[sequence.length - 4 : sequence.length].tolist() == [2 * slots + 8 + at for at in range(4)]
    assert sorted(batch.order.tolist()) == list(range(sequence.length + other.length))


def test_marks_of_the_gate_are_at_the_texts_places_alone(
    model: SpeechModel, sequence: TokenSequence, condition: Any
) -> None:
    marked = build_sequence(model.spec, [8, 9], [3], closed=[True, False])
    assert pack_batch(model, [sequence], [condition]).packing.closed is None
    closed = pack_batch(model, [sequence, marked], [condition] * 2).packing.closed
    assert closed is not None
    assert closed.shape == (sequence.length + marked.length,)
    assert torch.nonzero(closed).flatten().tolist() == [sequence.length + model.spec.num_conditioning + 1]


def test_a_batch_is_on_the_models_device_unless_another_is_named(
    model: SpeechModel, sequence: TokenSequence, condition: Any
) -> None:
    for device, kind in ((None, "cpu"), ("meta", "meta")):
        batch = pack_batch(model, [sequence], [condition], device=device)
        found = (batch.order, batch.text.ids, batch.text.scored, batch.speech.targets, batch.speech.positions)
        assert {tensor.device.type for tensor in found} == {kind}


def test_a_mean_over_nothing_is_nothing() -> None:
    sums = LossSums(torch.tensor(6.0), 3, torch.tensor(0.0), 0)
    assert (sums.text.item(), sums.speech.item()) == (2.0, 0.0)


def test_latents_of_utterances_without_codes_are_empty_and_do_not_move_those_of_others(
    model: SpeechModel, condition: Any
) -> None:
    texts, conditions = [[5, 6], [7], [5, 6, 7]], [condition] * 3
    alone = compute_speech_latents(model, texts[2:], conditions[2:], [[1, 2, 3]])
    found = compute_speech_latents(model, texts, conditions, [[], [4], [1, 2, 3]])
    assert [latents.shape[0] for latents in found] == [0, 1, 3]
    assert found[0].shape[1] == found[1].shape[1]
    np.testing.assert_allclose(found[2].numpy(), alone[0].numpy(), atol=1e-5)
    assert [len(latents) for latents in compute_speech_latents(model, texts[:1], conditions[:1], [[]])] == [0]


@pytest.mark.parametrize("name", ["tiny", "xtts"])
def test_latents_are_the_states_that_predict_the_codes(name: str, fixtures: Fixtures) -> None:
    case = case_of(name, get_family(name).shipped_folder() or fixtures.base(name).folder)
    model = case.open()
    texts, codes, conditions = [[5, 6], [7]], [[1, 2, 3], [4]], [case.condition(model, seed) for seed in (0, 1)]
    found = compute_speech_latents(model, texts, conditions, codes)
    for text, own, condition, latents in zip(texts, codes, conditions, found, strict=True):
        spoken = build_sequence(model.spec, text, own, spoken=True)
        with torch.no_grad():
            hidden = compute_hidden_states(model, pack_batch(model, [spoken], [condition]))
            before = model.spec.num_conditioning + len(text) + 2  # the speech's start, which predicts the first code
            torch.testing.assert_close(latents, model.speech_latents(hidden[before : before + len(own)]))


@pytest.mark.parametrize("name", ["tiny", "xtts"])
def test_the_state_that_predicted_the_stop_is_added_where_the_vocoder_takes_it_and_there_was_one(
    name: str, fixtures: Fixtures
) -> None:
    case = case_of(name, get_family(name).shipped_folder() or fixtures.base(name).folder)
    model = case.open()
    texts, conditions, codes = [[5, 6], [7]], [case.condition(model, 0)] * 2, [[1, 2, 3], [4]]
    assert model.spec.voices_stop == (name == "xtts")
    plain = compute_speech_latents(model, texts, conditions, codes)
    for ended in (None, [False, False], [True, False], [False, True]):
        found = compute_speech_latents(model, texts, conditions, codes, ended=ended)
        more = [model.spec.voices_stop and own for own in ended or [False, False]]
        assert [len(latents) for latents in found] == [3 + more[0], 1 + more[1]]
        assert all(torch.equal(latents[: len(own)], own) for latents, own in zip(found, plain, strict=True))
