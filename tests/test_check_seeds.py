"""The mismatches that people met, rebuilt as files: what `check` says of each, and what it must not say.

Seed 000: 24,001 rows for 24,000 tokens. 001: rows started from noise, "frozen" rows that drift. 002: 887 / 2,535 / 3,000.
003: a resume whose optimizer state belongs to another table. 004: the base's rows overwritten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.check_files import (
    LETTERS,
    State,
    checked,
    codes,
    extended_sentencepiece,
    flat_map,
    found,
    grown_state,
    old_yaml,
    saved,
    state_of,
)
from tests.support.shared import shared
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.config.commands import ExtendSettings
from voxgraft.graft.command import extend
from voxgraft.models.base import BaseFiles

TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")


@pytest.fixture(scope="module")
def t3(tmp_path_factory: pytest.TempPathFactory) -> BaseFiles:
    return make_random_base("chatterbox", tmp_path_factory.mktemp("t3") / "base", size=RandomBaseSize(16, 1, 2454))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> BaseFiles:
    return make_random_base("indextts2", tmp_path_factory.mktemp("index") / "base", size=RandomBaseSize(16, 1, 12_000))


@pytest.fixture(scope="module")
def amharic(index: BaseFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizers") / "amharic_extended_bpe.model"
    return extended_sentencepiece(index.tokenizer, path, 24_000)


@pytest.fixture(scope="module")
def forked(index: BaseFiles) -> State:
    """What the fork's trainer builds: 24,001 rows, of which the first 12,001 are the base's, its spare among them."""
    return grown_state(state_of(index), TABLES, 24_001, copied=12_001)


# ---- seed 000 ---------------------------------------------------------------------------------------------------------


def test_seed_000_24001_rows_for_24000_pieces_is_right_and_says_why(
    forked: State, amharic: Path, tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path / "latest.pth", {"model": forked})
    result = checked(tokenizer=amharic, checkpoint=checkpoint)
    assert result.exit_code == 0
    assert codes(result) == {"spare-row"}
    assert "24,001 rows for 24,000 tokens is correct" in found(result, "spare-row")


@pytest.mark.long
def test_seed_000_a_checkpoint_grown_by_extend_passes_against_its_base(
    index: BaseFiles, amharic: Path, tmp_path: Path
) -> None:
    grown = tmp_path / "grown.pth"
    extend(
        ExtendSettings.model_validate(
            {"checkpoint": index.checkpoint, "tokenizer": amharic, "output": grown, "rows": {"init": "mean"}}
        )
    )
    result = checked(base=index.folder, tokenizer=amharic, checkpoint=grown)
    assert result.exit_code == 0
    assert {"spare-row", "base-rows-same", "body-same"} <= codes(result, "note")
    assert not codes(result, "warning")


def test_seed_000_the_forks_later_24002_rows_are_named_as_a_doubled_spare(
    index: BaseFiles, amharic: Path, tmp_path: Path
) -> None:
    state = grown_state(state_of(index), TABLES, 24_002, copied=12_000)
    checkpoint = saved(tmp_path / "gpt.pth", {"model": state})
    config = old_yaml(tmp_path / "config.yaml", gpt={"number_text_tokens": 24_001})
    result = checked(tokenizer=amharic, checkpoint=checkpoint, training_config=config)
    assert codes(result, "error") == {"spare-counted-twice"}
    assert "24,002 rows for 24,000 tokens" in found(result, "spare-counted-twice")
    assert "gpt.number_text_tokens is 24,001" in found(result, "spare-counted-twice")


def test_a_config_that_was_never_grown_is_named_against_tokenizer_and_rows(
    index: BaseFiles, forked: State, amharic: Path, tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path / "gpt.pth", {"model": forked})
    assert index.config is not None
    result = checked(tokenizer=amharic, checkpoint=checkpoint, training_config=index.config)
    assert codes(result, "error") == {"config-vs-tokenizer", "config-vs-rows"}
    assert "gpt.number_text_tokens is 12,000, text_embedding.weight has 24,001 rows" in found(result, "config-vs-rows")


@pytest.mark.parametrize("seed", ["000_9b6d774a7302bbb4", "001_971b5c72b9d5f010", "003_3dfabdd3e5ad279b"])
def test_the_rate_that_the_seed_documents_recommend_is_below_the_range(seed: str, index: BaseFiles) -> None:
    result = checked(base=index.folder, training_config=shared(f"seeds/{seed}.txt"))
    assert "train_gpt_v2 --learning-rate" in found(result, "rate-out-of-range")
    assert "is 5e-06, below the range" in found(result, "rate-out-of-range")


# ---- seed 001 ---------------------------------------------------------------------------------------------------------


def trained(state: State, *, masked: bool, steps: int = 60) -> State:
    """The fork's optimizer on the text tables: AdamW with decay, and base rows whose gradient is set to zero."""
    parameters = {name: torch.nn.Parameter(state[name].clone()) for name in TABLES}
    optimizer = torch.optim.AdamW(parameters.values(), lr=2e-5, weight_decay=0.01)
    generator = torch.Generator().manual_seed(2)
    gradients = {name: torch.randn(state[name].shape, generator=generator) for name in TABLES}
    if masked:
        for gradient in gradients.values():
            gradient[:12_000] = 0
    for _ in range(steps):
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        optimizer.step()
    return {**state, **{name: parameter.detach() for name, parameter in parameters.items()}}


def test_seed_001_masked_rows_that_weight_decay_shrank_are_found_with_the_random_new_rows(
    index: BaseFiles, forked: State, amharic: Path, tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path / "model_step60.pth", {"model": trained(forked, masked=True), "step": 60})
    result = checked(base=index.folder, tokenizer=amharic, checkpoint=checkpoint)
    assert result.exit_code == 1
    assert codes(result, "error") == {"base-rows-shrunk"}
    assert "12,000 of 12,000 base rows of text_embedding.weight all shrank to 0.9999" in found(
        result, "base-rows-shrunk"
    )
    assert {"new-rows-random", "spare-row"} <= codes(result, "note")
    assert "row 12,000 (first new token, ሀ) started as a copy of the base's unused row" in found(
        result, "spare-row-copied"
    )


def test_seed_001_rows_that_were_trained_without_a_mask_are_changed_and_not_shrunk(
    index: BaseFiles, forked: State, amharic: Path, tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path / "model_step60.pth", {"model": trained(forked, masked=False)})
    result = checked(base=index.folder, tokenizer=amharic, checkpoint=checkpoint)
    assert codes(result, "error") == {"base-rows-changed"}
    assert "overwritten" not in found(result, "base-rows-changed")


def test_seed_001_the_spare_row_on_the_first_new_piece_is_named(
    index: BaseFiles, forked: State, amharic: Path, tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path / "gpt.pth", {"model": forked})
    result = checked(base=index.folder, tokenizer=amharic, checkpoint=checkpoint)
    assert codes(result, "error") == {"spare-row-copied"}
    assert found(result, "spare-row-copied").startswith(
        "row 12,000 (first new token, ሀ) is a bit-identical copy of the base's unused row in " + ", ".join(TABLES)
    )


# ---- seed 002 ---------------------------------------------------------------------------------------------------------


def test_seed_002_all_three_pairs_of_887_2535_and_3000_are_named(t3: BaseFiles, tmp_path: Path) -> None:
    merged = flat_map(t3.tokenizer, tmp_path / "Am_tokenizer_merged.json", [*LETTERS, *(f"ph{n}" for n in range(17))])
    extended = grown_state(state_of(t3), ["text_emb.weight"], 3000, copied=2454, std=1.0)
    checkpoint = saved(tmp_path / "chatterbox_extended.pt", extended)
    config = old_yaml(
        tmp_path / "training_config.yaml",
        model={"n_vocab": 887, "freeze_original_embeddings": True, "freeze_until_index": 704},
        training={"learning_rate": 2e-4, "weight_decay": 0.01, "max_steps": 500_000},
    )
    result = checked(base=t3.folder, tokenizer=merged, checkpoint=checkpoint, training_config=config)
    assert result.exit_code == 1
    assert "model.n_vocab is 887, but the tokenizer has 2,535 tokens (ids 0 to 2,534)" in found(
        result, "config-vs-tokenizer"
    )
    assert "model.n_vocab is 887, text_emb.weight has 3,000 rows" in found(result, "config-vs-rows")
    assert "text_emb.weight has 3,000 rows, but the tokenizer has 2,535 tokens" in found(result, "rows-vs-tokenizer")
    assert "text_emb.weight has 3,000 rows, text_head.weight has 2,454 rows" in found(result, "head-not-grown")
    assert "base rows 704 to 2,453 are trained" in found(result, "freeze-boundary")
    assert "a masked row shrinks to 36.79% in 500,000 steps" in found(result, "freeze-leaks")
    assert {"tokenizer-flat-map", "proof-changed"} <= codes(result, "error")
    assert {"new-rows-scale", "rate-out-of-range"} <= codes(result, "warning")
    assert "base-rows-same" in codes(result, "note")


# ---- seed 003 ---------------------------------------------------------------------------------------------------------


def optimizer_state(rows: int) -> dict[str, object]:
    parameters = [torch.nn.Parameter(torch.zeros(rows, 16)), torch.nn.Parameter(torch.zeros(8))]
    optimizer = torch.optim.AdamW(parameters, lr=5e-6)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(("rows", "warned"), [(24_000, True), (24_001, False)])
def test_seed_003_an_optimizer_state_for_another_table_is_reported_from_one_that_fits(
    rows: int, warned: bool, forked: State, amharic: Path, tmp_path: Path
) -> None:
    checkpoint = saved(
        tmp_path / "latest.pth",
        {
            "model": forked,
            "optimizer": optimizer_state(rows),
            "scheduler": {"last_epoch": 38_000},
            "epoch": 3,
            "step": 38_000,
            "rng_state": {"torch_cpu": torch.get_rng_state(), "numpy": np.random.RandomState(1).get_state()},
        },
    )
    result = checked(tokenizer=amharic, checkpoint=checkpoint)
    assert result.exit_code == 0
    listed = found(result, "checkpoint-extras")
    assert all(f"{name} (" in listed for name in ("optimizer", "scheduler", "epoch", "step", "rng_state"))
    assert "step (int 38000)" in listed
    assert ("moments-mismatch" in codes(result, "warning")) == warned
    if warned:
        assert "moments of shape [24000, 16], but text_embedding.weight is [24001, 16]" in found(
            result, "moments-mismatch"
        )


# ---- seed 004 ---------------------------------------------------------------------------------------------------------


def test_seed_004_an_overwritten_embedding_table_is_found_row_by_row(t3: BaseFiles, tmp_path: Path) -> None:
    state = grown_state(state_of(t3), ["text_emb.weight", "text_head.weight"], 2535, copied=2454)
    state["text_emb.weight"] = torch.randn(2535, 16)
    config = old_yaml(
        tmp_path / "training_config.yaml",
        model={"n_vocab": 2535, "freeze_original_embeddings": False, "freeze_until_index": 2454},
        training={"learning_rate": 2e-4},
    )
    checkpoint = saved(tmp_path / "checkpoint_best.pt", {"model_state_dict": state})
    result = checked(base=t3.folder, checkpoint=checkpoint, training_config=config)
    said = found(result, "base-rows-changed")
    assert "2,454 of 2,454 base rows of text_emb.weight differ from the base" in said
    assert "overwritten, not trained" in said
    assert "all 2,454 base rows of text_head.weight are the same bits as in the base" in found(result, "base-rows-same")
    assert {"freeze-off", "base-rows-changed"} <= codes(result, "error")
    assert "freeze-needless" in codes(result, "note")
    assert "body-same" in codes(result, "note")


def test_seed_004_a_stand_in_that_never_spoke_is_named_as_one(t3: BaseFiles, tmp_path: Path) -> None:
    state = {
        "text_embedding.weight": torch.randn(2535, 16),
        "pos_encoding.pe": torch.zeros(1, 100, 16),
        "transformer_encoder.layers.0.linear1.weight": torch.randn(32, 16),
        "mel_decoder.0.weight": torch.randn(80, 16),
        "duration_predictor.0.weight": torch.randn(1, 16),
    }
    merged = flat_map(t3.tokenizer, tmp_path / "Am_tokenizer_merged.json", [*LETTERS, *(f"ph{n}" for n in range(17))])
    checkpoint = saved(tmp_path / "checkpoint_latest.pt", {"model_state_dict": state, "epoch": 1000})
    result = checked(base=t3.folder, tokenizer=merged, checkpoint=checkpoint)
    assert {"checkpoint-stand-in", "base-rows-changed", "tokenizer-flat-map"} <= codes(result, "error")
    assert "rows-vs-tokenizer" not in codes(result)
    assert "body-missing" not in codes(result)
