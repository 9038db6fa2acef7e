"""The contract of every family: what does not belong is refused before a device sees it, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.cases import Case, batch, layout
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.config.commands import ShowSettings
from voxgraft.core.errors import CheckpointError, ConfigError, GraftError
from voxgraft.inspect.show import show_base
from voxgraft.models.base import build_sequence
from voxgraft.models.generate import GenerationPrompt, generate_codes
from voxgraft.models.speech_model import compute_hidden_states, compute_losses, load_model, pack_batch
from voxgraft.nn.decode import SamplingParams


def rewritten(case: Case, folder: Path, change: dict[str, np.ndarray | None]) -> Path:
    """The case's base with some tensors changed or (None) left out."""
    folder.mkdir()
    for file in case.files.folder.iterdir():
        if file.is_file() and file != case.files.checkpoint:
            (folder / file.name).write_bytes(file.read_bytes())
    with open_checkpoint(case.files.checkpoint) as checkpoint:
        tensors = {name: checkpoint.read(name) for name in checkpoint.tensors}
    kept = {name: change.get(name, tensor) for name, tensor in tensors.items()}
    written = {name: TensorBytes.of(tensor) for name, tensor in kept.items() if tensor is not None}
    path = folder / case.files.checkpoint.name
    with path.open("wb") as stream:
        (write_safetensors if path.suffix == ".safetensors" else write_torch)(stream, written)
    return folder


def a_body_tensor(case: Case) -> str:
    model = case.open()
    layer = model.adapter_layers()[0]
    return f"{layer}.weight"


def test_a_missing_tensor_is_named(case: Case, tmp_path: Path) -> None:
    name = a_body_tensor(case)
    folder = rewritten(case, tmp_path / "base", {name: None})
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_model(case.family, case.family.files(folder))


def test_a_tensor_of_another_size_is_named_with_both_sizes(case: Case, tmp_path: Path) -> None:
    name = a_body_tensor(case)
    folder = rewritten(case, tmp_path / "base", {name: np.zeros((5, 3), dtype=np.float32)})
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")) as refused:
        load_model(case.family, case.family.files(folder))
    assert "[5, 3]" in str(refused.value)


def test_a_tensor_of_whole_numbers_is_named_even_where_tensors_are_kept_as_stored(case: Case, tmp_path: Path) -> None:
    name = a_body_tensor(case)
    whole = np.zeros(case.open().state_dict()[name].shape, dtype=np.int8)
    folder = rewritten(case, tmp_path / "base", {name: whole})
    for dtype in (torch.float32, None):
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")) as refused:
            load_model(case.family, case.family.files(folder), dtype=dtype)
        assert refused.value.finding.code == "tensors-mismatch"
    report = show_base(ShowSettings(base=folder, fingerprint=False))
    assert report.exit_code == 1
    assert [(item.code, name in item.found) for item in report.findings] == [("tensors-mismatch", True)]


def test_ids_out_of_range_are_refused(case: Case) -> None:
    model = case.open()
    spec = model.spec
    with pytest.raises(GraftError, match=f"text id {spec.num_text_ids} at position 1"):
        build_sequence(spec, [5, spec.num_text_ids], [1, 2])
    with pytest.raises(GraftError, match="speech code -1"):
        build_sequence(spec, [5], [1, -1])
    for unused in (spec.num_codes, spec.speech_start, spec.speech_stop):
        with pytest.raises(GraftError, match=f"speech code {unused}"):
            build_sequence(spec, [5], [1, unused])


def test_a_layout_made_for_a_larger_text_table_is_refused(case: Case) -> None:
    model, _ = case.grafted()
    base = case.open()
    one = build_sequence(model.spec, [model.num_text_ids - 1, 5], [1, 2])
    assert pack_batch(model, [one], [case.condition(model, 0)])
    with pytest.raises(GraftError, match=f"text id {model.num_text_ids - 1}"):
        pack_batch(base, [one], [case.condition(base, 0)])


def test_too_long_and_empty_utterances_are_refused(case: Case) -> None:
    spec = case.open().spec
    build_sequence(spec, [5] * spec.max_text, [1] * spec.max_codes)
    for text, codes in (([5] * (spec.max_text + 1), [1]), ([5], [1] * (spec.max_codes + 1)), ([], [1]), ([5], [])):
        with pytest.raises(GraftError) as error:
            build_sequence(spec, text, codes)
        assert error.value.code == "ids-length"


def test_the_longest_utterance_that_is_allowed_can_be_computed(case: Case) -> None:
    model = case.open()
    whole = layout(model, model.spec.max_text, model.spec.max_codes, 0)
    with torch.no_grad():
        assert torch.isfinite(compute_losses(model, pack_batch(model, [whole], [case.condition(model, 0)])).speech_sum)


def test_ids_that_the_stock_program_deletes_are_refused(case: Case) -> None:
    spec = case.open().spec
    for barred in case.family.deleted_ids:
        with pytest.raises(GraftError, match="the text contains the ids"):
            build_sequence(spec, [5, barred], [1])


def test_a_condition_of_the_wrong_form_is_refused(case: Case) -> None:
    model = case.open()
    good = case.condition(model, 0)
    # A condition is an array, or has several by name.
    values = {"": good} if isinstance(good, np.ndarray) else {name: getattr(good, name) for name in good.__slots__}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    assert arrays
    one = layout(model, 4, 4, 0)
    for name, array in arrays.items():
        other_kind = array.astype(np.float64 if array.dtype.kind == "i" else np.int64)
        impossible = np.full_like(array, -5) if array.dtype.kind == "i" else array * np.nan
        for bad in (array[None], array[:0], impossible, other_kind, array.astype(str)):
            with pytest.raises(GraftError) as refused:
                pack_batch(model, [one], [replace(good, **{name: bad}) if name else bad])
            assert refused.value.finding.code == "condition-form"


def test_targets_are_codes_and_stop_alone(case: Case) -> None:
    model = case.open()
    targets = batch(case, model).speech.targets
    spec = model.spec
    assert bool(((targets < spec.num_codes) | (targets == spec.speech_stop)).all())
    assert int((targets == spec.speech_stop).sum()) == 5 * spec.num_speech_stops


def test_a_silent_text_keeps_its_positions_and_leaves_the_text_loss(case: Case) -> None:
    model = case.open()
    layouts = [layout(model, 6, 12, 0), layout(model, 6, 12, 1)]
    conditions = [case.condition(model, 0), case.condition(model, 1)]
    heard = pack_batch(model, layouts, conditions)
    half = pack_batch(model, layouts, conditions, silent=[False, True])
    assert len(half.text.targets) == len(heard.text.targets) // 2
    assert len(half.speech.targets) == len(heard.speech.targets)
    other_words = pack_batch(
        model,
        [layouts[0], build_sequence(model.spec, [7] * 6, layouts[1].speech.ids[1:13])],
        conditions,
        silent=[False, True],
    )
    with torch.no_grad():
        assert torch.equal(compute_hidden_states(model, half), compute_hidden_states(model, other_words))
        assert not torch.equal(compute_hidden_states(model, half), compute_hidden_states(model, heard))


def test_speaking_settings_that_make_no_sense_are_refused(case: Case) -> None:
    model = case.open()
    prompt = GenerationPrompt([5, 6], case.condition(model, 0))
    with pytest.raises(ConfigError, match="max_codes"):
        generate_codes(model, [prompt], SamplingParams(max_codes=model.spec.max_codes + 1))
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 1.0}, {"repetition_penalty": 0.0}, {"top_k": -1}):
        with pytest.raises(ConfigError):
            SamplingParams(**wrong)
    with pytest.raises(GraftError):
        generate_codes(model, [], SamplingParams())
