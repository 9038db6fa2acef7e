"""`check` on loose checkpoints: base rows, new rows and the body, against the base and against the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.check_files import checked, codes, extended_sentencepiece, found, saved, state_of
from tests.support.families import PUBLISHED
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.config.commands import ExtendSettings
from voxgraft.graft.command import extend
from voxgraft.models.base import BaseFiles

SIZES = {
    "chatterbox": RandomBaseSize(16, 1, 640),
    "indextts2": RandomBaseSize(16, 1, 1000),
    "xtts": RandomBaseSize(16, 1, 640),
}
PIECES = 1565


@dataclass(frozen=True)
class Grown:
    """A base, an extended tokenizer, and the base's checkpoint grown to it."""

    base: BaseFiles
    tokenizer: Path
    grown: Path

    def loose(self, **more: Any) -> dict[str, Any]:
        return {"base": self.base.folder, "tokenizer": self.tokenizer, "checkpoint": self.grown, **more}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseFiles]:
    folder = tmp_path_factory.mktemp("bases")
    return {name: make_random_base(name, folder / name, size=SIZES[name]) for name in PUBLISHED}


@pytest.fixture(scope="module")
def index(bases: dict[str, BaseFiles], tmp_path_factory: pytest.TempPathFactory) -> Grown:
    base, folder = bases["indextts2"], tmp_path_factory.mktemp("grown")
    tokenizer = extended_sentencepiece(base.tokenizer, folder / "grown.model", PIECES)
    grown = folder / "grown.pth"
    values = {"checkpoint": base.checkpoint, "tokenizer": tokenizer, "output": grown, "rows": {"init": "mean"}}
    extend(ExtendSettings.model_validate(values))
    return Grown(base, tokenizer, grown)


def test_an_embedding_that_grew_without_its_head_and_bias_is_reported(index: Grown, tmp_path: Path) -> None:
    small, large = state_of(index.base), torch.load(index.grown, weights_only=True)
    state = {**small, "text_embedding.weight": large["text_embedding.weight"]}
    result = checked(tokenizer=index.tokenizer, checkpoint=saved(tmp_path / "half.pth", state))
    assert "head-not-grown" in codes(result, "error")
    assert "text_head.bias has 1,001 rows" in found(result, "head-not-grown")


def test_a_base_checkpoint_with_a_grown_tokenizer_ends_past_the_table(index: Grown) -> None:
    result = checked(tokenizer=index.tokenizer, checkpoint=index.base.checkpoint)
    assert codes(result, "error") == {"ids-past-table"}


def test_a_checkpoint_of_another_family_is_named(bases: dict[str, BaseFiles]) -> None:
    result = checked(base=bases["indextts2"].folder, checkpoint=bases["chatterbox"].checkpoint)
    assert codes(result, "error") == {"checkpoint-family"}
    assert "t3_mtl23ls_v2.safetensors has the text embedding of chatterbox | indextts2" in found(
        result, "checkpoint-family"
    )


@pytest.mark.parametrize(
    ("fill", "code"), [("zero", "new-rows-zero"), ("equal", "new-rows-equal"), ("long", "new-rows-scale")]
)
def test_new_rows_that_were_never_trained_apart_are_reported(
    fill: str, code: str, index: Grown, tmp_path: Path
) -> None:
    state = torch.load(index.grown, weights_only=True)
    rows = state["text_embedding.weight"][1000:-1]
    rows.copy_({"zero": torch.zeros_like(rows), "equal": rows[:1].expand_as(rows), "long": 1000 * rows}[fill])
    result = checked(**index.loose(checkpoint=saved(tmp_path / "odd.pth", state)))
    assert result.exit_code == 0
    assert f"of {len(rows):,} new rows of text_embedding.weight" in found(result, code) or fill == "long"
    assert "text_head" not in found(result, code)
    assert code in codes(result)


def test_a_checkpoint_in_half_precision_holds_the_base_rows_rounded(
    bases: dict[str, BaseFiles], tmp_path: Path
) -> None:
    state = {name: tensor.half() for name, tensor in state_of(bases["chatterbox"]).items()}
    result = checked(base=bases["chatterbox"].folder, checkpoint=saved(tmp_path / "half.safetensors", state))
    assert result.exit_code == 0
    assert "base-rows-rounded" in codes(result, "note")
    assert "base-rows-same" not in codes(result)


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_flipped_bit_anywhere_is_found(name: str, bases: dict[str, BaseFiles], tmp_path: Path) -> None:
    base = bases[name]
    table, body = {
        "chatterbox": ("text_head.weight", "tfmr.layers.0.mlp.up_proj.weight"),
        "indextts2": ("text_head.weight", "gpt.h.0.mlp.c_fc.weight"),
        "xtts": ("gpt.text_head.weight", "gpt.gpt.h.0.mlp.c_fc.weight"),
    }[name]
    for tensor, code in ((table, "base-rows-changed"), (body, "body-changed")):
        state = {key: value.clone() for key, value in state_of(base).items()}
        state[tensor].view(torch.int32)[7, 3] ^= 1
        result = checked(base=base.folder, checkpoint=saved(tmp_path / f"{tensor}{base.checkpoint.suffix}", state))
        assert codes(result) & {"base-rows-changed", "body-changed"} == {code}
        assert "1 of " in found(result, code)


def test_a_checkpoint_that_lacks_tensors_of_the_base_is_reported(bases: dict[str, BaseFiles], tmp_path: Path) -> None:
    state = state_of(bases["chatterbox"])
    del state["speech_head.weight"]
    result = checked(base=bases["chatterbox"].folder, checkpoint=saved(tmp_path / "t3.safetensors", state))
    assert codes(result, "error") == {"body-missing"}
    assert "body-same" not in codes(result)


def test_rows_that_are_not_finite_are_reported(index: Grown, tmp_path: Path) -> None:
    state = torch.load(index.grown, weights_only=True)
    state["text_head.weight"][5, 2] = float("nan")
    state["text_embedding.weight"][1010] = float("inf")
    result = checked(**index.loose(checkpoint=saved(tmp_path / "nan.pth", state)))
    said = found(result, "tensor-not-finite")
    assert "rows of text_head.weight are not finite, the first is row 5" in said
    assert "rows of text_embedding.weight are not finite, the first is row 1,010" in said


def test_a_wrapper_s_name_before_all_others_is_reported_and_looked_past(index: Grown, tmp_path: Path) -> None:
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in state_of(index.base).items()}
    result = checked(base=index.base.folder, checkpoint=saved(tmp_path / "wrapped.pth", wrapped))
    assert "starts with 'module._orig_mod.'" in found(result, "checkpoint-prefixed")
    assert "base-rows-same" in codes(result)
    mixed = checked(
        base=index.base.folder, checkpoint=saved(tmp_path / "mixed.pth", {**wrapped, "loss": torch.zeros(1)})
    )
    assert "the file has 1 tensors of other models" in found(mixed, "checkpoint-prefixed")
    assert "base-rows-same" in codes(mixed)


def test_a_tensor_of_another_form_or_with_nothing_left_in_it_is_reported(index: Grown, tmp_path: Path) -> None:
    state = state_of(index.base)
    state["mel_head.weight"] = torch.zeros_like(state["mel_head.weight"])
    state["mel_head.bias"] = state["mel_head.bias"][:-1]
    result = checked(base=index.base.folder, checkpoint=saved(tmp_path / "odd.pth", state))
    assert "(mel_head.weight)" in found(result, "body-lost")
    assert "(mel_head.bias)" in found(result, "body-form")
