"""The model of a saved step, built without the trainer, is the trainer's own model bit for bit, in every mode."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import CheckpointError
from voxgraft.models import get_family
from voxgraft.models.speech_model import SpeechModel, load_model
from voxgraft.nn.rows import GrownLayer
from voxgraft.synthesis.engine import _load_trained_parts
from voxgraft.training.trainable import TrainableModel, make_trainable

NUM_ROWS = 3
MODES = {
    "gated": TrainOptions(mode="gated", rank=2, alpha=4.0),
    "rows-only": TrainOptions(mode="rows-only"),
    "merged": TrainOptions(mode="merged", rank=2, alpha=4.0, seed=5),
    "full body": TrainOptions(mode="merged", full_backbone=True),
    "as in the seeds": TrainOptions(mode="masked-finetune"),
}


def base_model(dtype: torch.dtype) -> SpeechModel:
    family = get_family("tiny")
    folder = family.shipped_folder()
    assert folder is not None
    return load_model(family, family.files(folder), dtype=dtype)


def trained_model(options: TrainOptions, dtype: torch.dtype) -> tuple[TrainableModel, dict[str, torch.Tensor]]:
    """A model whose trained values have all moved, and the rows that it began with."""
    model, width = base_model(dtype), 256
    generator = torch.Generator().manual_seed(7)
    names = [f"{name}.weight" for name in (model.text_embedding_name, model.text_head_name)]
    rows = {name: torch.randn(NUM_ROWS, width, generator=generator) for name in names}
    trained = make_trainable(model, rows, options)
    moved = {
        part: {name: value + 0.01 * torch.randn(value.shape, generator=generator) for name, value in group.items()}
        for part, group in trained.tensors().items()
    }
    trained.restore(moved)
    return trained, rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_saved_step_gives_the_trainers_model(mode: str, dtype: torch.dtype) -> None:
    options = MODES[mode]
    trained, rows = trained_model(options, dtype)
    groups = trained.tensors()
    model = base_model(dtype)
    gate = _load_trained_parts(model, groups.get("rows") or rows, groups, asdict(options))
    assert (gate is None) == (trained.gate is None)
    expected, found = ({**dict(one.named_parameters()), **dict(one.named_buffers())} for one in (trained.model, model))
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []
    layers = [name for name, layer in model.named_modules() if isinstance(layer, GrownLayer)]
    assert layers == [name for name, layer in trained.model.named_modules() if isinstance(layer, GrownLayer)]


def test_a_step_without_a_part_of_its_mode_is_refused() -> None:
    options = MODES["gated"]
    trained, rows = trained_model(options, torch.float32)
    groups = {name: group for name, group in trained.tensors().items() if name != "adapter"}
    with pytest.raises(CheckpointError) as caught:
        _load_trained_parts(base_model(torch.float32), rows, groups, asdict(options))
    assert caught.value.code == "step-parts"
    other = MODES["full body"]
    body = trained_model(other, torch.float32)[0].tensors()
    smaller = {**body, "body": dict(list(body["body"].items())[1:])}
    with pytest.raises(CheckpointError):
        _load_trained_parts(base_model(torch.float32), rows, smaller, asdict(other))
