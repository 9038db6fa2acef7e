"""New rows start where the base's own rows say they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.check_files import saved
from tests.support.families import PUBLISHED
from tests.support.fixtures import Fixtures
from voxgraft.checkpoints import open_checkpoint
from voxgraft.config.run import RowInit, RowSettings
from voxgraft.core.errors import CheckpointError, FileError
from voxgraft.core.languages import is_letter
from voxgraft.graft.rows import (
    Float32Array,
    RowCount,
    RowPlan,
    build_row_reports,
    detect_checkpoint_family,
    find_tokenizer_beside,
    init_rows,
    iter_base_tables,
    plan_rows,
    text_table_findings,
)
from voxgraft.models import get_family
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.tokenizers import TextCorpus, open_tokenizer

SENTENCES = ("ሰላም ለዓለም ሁሉ።", "ሰላም ነው ወይ?", "ደህና ነኝ ሰላም ሰላም።") * 4


@pytest.fixture(scope="module", params=PUBLISHED)
def text_encoder(request: pytest.FixtureRequest, fixtures: Fixtures) -> TextEncoder:
    made = get_family(request.param)
    base = open_tokenizer(fixtures.base(request.param).tokenizer)
    plain = TextEncoder.of(made, base, None, "am")
    from voxgraft.config.run import VocabularySettings

    learnt = learn_language_pieces(plain, TextCorpus(SENTENCES), VocabularySettings(pieces=20, min_count=2))
    return TextEncoder.of(made, base, learnt.grown, "am")


def table(text_encoder: TextEncoder) -> Float32Array:
    return np.random.default_rng(0).standard_normal((text_encoder.base.size, 16)).astype(np.float32)


def plan_of(plans: list[RowPlan], piece: str) -> RowPlan:
    return next(plan for plan in plans if plan.piece == piece)


def test_a_romanised_row_is_the_average_of_the_base_rows_that_spell_it(text_encoder: TextEncoder) -> None:
    plans = plan_rows(text_encoder, "romanised")
    plan = plan_of(plans, "ሰ")
    spelled = [text_encoder.base.shown(token).lower() for token in plan.sources]
    assert plan.romanised == "sa"
    assert "".join(spelled) == "sa"
    base = table(text_encoder)
    rows = init_rows(base, plans, RowSettings(noise=0), "embedding")
    expected = base[list(plan.sources)].mean(axis=0)
    np.testing.assert_allclose(rows[plans.index(plan)], expected, rtol=1e-6)


def test_the_report_puts_a_letter_near_its_romanisation(text_encoder: TextEncoder) -> None:
    plans = plan_rows(text_encoder, "romanised")
    base = table(text_encoder)
    rows = init_rows(base, plans, RowSettings(), "embedding")
    reports = build_row_reports(base, rows, plans, text_encoder, limit=len(plans))
    report = next(report for report in reports if report.piece == "ሰ")
    assert report.nearest[0][0].lower() in {"s", "a", "sa"}
    assert report.nearest[0][1] > 0.6


@pytest.mark.parametrize("init", ["romanised", "script-mean", "mean", "random"])
def test_every_way_of_starting_gives_finite_distinct_rows_for_every_new_token(
    text_encoder: TextEncoder, init: RowInit
) -> None:
    assert text_encoder.grown is not None
    plans = plan_rows(text_encoder, init)
    assert [plan.token for plan in plans] == list(range(text_encoder.base.size, text_encoder.grown.size))
    rows = init_rows(table(text_encoder), plans, RowSettings(init=init), "embedding")
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_rows_are_reproducible_by_seed_and_differ_between_embedding_and_head(text_encoder: TextEncoder) -> None:
    plans = plan_rows(text_encoder, "mean")
    base = table(text_encoder)
    once, again = (init_rows(base, plans, RowSettings(init="mean", seed=3), "embedding") for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, init_rows(base, plans, RowSettings(init="mean", seed=4), "embedding"))
    assert not np.array_equal(once, init_rows(base, plans, RowSettings(init="mean", seed=3), "head"))


def test_a_new_tag_starts_as_the_average_of_the_base_tags(fixtures: Fixtures) -> None:
    made = get_family("chatterbox")
    base = open_tokenizer(fixtures.base("chatterbox").tokenizer)
    from voxgraft.config.run import VocabularySettings

    learnt = learn_language_pieces(
        TextEncoder.of(made, base, None, "am"), TextCorpus(SENTENCES), VocabularySettings(pieces=0)
    )
    plans = plan_rows(TextEncoder.of(made, base, learnt.grown, "am"), "romanised")
    plan = plan_of(plans, "[am]")
    assert plan.how == "tags"
    assert {"[en]", "[fr]"} <= {base.shown(token) for token in plan.sources}
    assert not {"[START]", "[STOP]", "[UNK]"} & {base.shown(token) for token in plan.sources}


def test_a_row_without_a_romanisation_starts_from_letters_and_never_from_controls_or_gaps(
    text_encoder: TextEncoder,
) -> None:
    base = text_encoder.base
    usable = tuple(at for at, piece in enumerate(base.pieces) if piece is not None and at not in base.control_ids)
    words = {at: base.shown(at).removeprefix("▁") for at in usable}
    letters = tuple(at for at, word in words.items() if word and all(map(is_letter, word)))
    assert 0 < len(letters) < len(usable) < base.size
    for plan in plan_rows(text_encoder, "script-mean"):
        if plan.piece == "ሰ":  # the base has no letter of this script, so all its letters
            assert (plan.how, plan.sources, plan.romanised) == ("script-mean", letters, "")
    for init in ("mean", "random"):
        for plan in plan_rows(text_encoder, init):
            assert (plan.how, plan.sources) == (init, usable)
    unknown_and_controls = {base.unknown_id, *base.control_ids}
    for plan in plan_rows(text_encoder, "romanised"):
        if plan.how == "romanised":
            assert plan.sources
            assert not unknown_and_controls & set(plan.sources)


PLANS = [
    RowPlan(4, "a", "mean", "", (0, 1, 2)),
    RowPlan(5, "b", "random", "", ()),
    RowPlan(6, "c", "romanised", "c", (3,)),
]
TABLE = np.array([[0, 0], [2, 4], [4, 8], [6, 0]], dtype=np.float32)


PINNED_ROWS = [[2.21165, 4.1165876], [2.7050834, 4.2406693], [6.234101, 0.1140833]]


def test_noise_is_a_share_of_the_spread_of_each_column_and_no_row_depends_on_how_others_start() -> None:
    plain, noisy, twice = (init_rows(TABLE, PLANS, RowSettings(noise=noise), "head") for noise in (0, 0.1, 0.2))
    np.testing.assert_allclose(plain[[0, 2]], [[2, 4], [6, 0]])
    np.testing.assert_allclose(twice - plain, 2 * (noisy - plain), atol=1e-5)
    np.testing.assert_array_equal(noisy[1], plain[1])
    drawn = (noisy - plain)[2] / (0.1 * TABLE.std(axis=0))
    means = [RowPlan(plan.token, plan.piece, "mean", "", plan.sources or (0,)) for plan in PLANS]
    np.testing.assert_array_equal(init_rows(TABLE, means, RowSettings(noise=0.1), "head")[[0, 2]], noisy[[0, 2]])
    assert (np.abs(drawn) < 5).all()
    many = [RowPlan(at, "x", "random", "", ()) for at in range(4000)]
    rows = init_rows(TABLE, many, RowSettings(), "embedding")
    np.testing.assert_allclose(rows.mean(axis=0), TABLE.mean(axis=0), atol=0.2)
    np.testing.assert_allclose(rows.std(axis=0), TABLE.std(axis=0), atol=0.2)
    assert init_rows(TABLE[:, 0], PLANS, RowSettings(), "head-bias").shape == (3,)


def test_the_report_names_the_three_nearest_pieces_and_the_norms(text_encoder: TextEncoder) -> None:
    plans = plan_rows(text_encoder, "romanised")
    base = table(text_encoder)
    rows = 3 * base[: len(plans)]
    reports = build_row_reports(base, rows, plans, text_encoder)
    norms = np.linalg.norm(base, axis=1)
    assert 1 <= len(reports) <= 12
    for report in reports:
        at = next(index for index, plan in enumerate(plans) if plan.piece == report.piece)
        assert len(report.piece) == 1
        assert report.nearest[0] == (text_encoder.base.shown(at), 1.0)
        assert len(report.nearest) == 3
        cosines = [cosine for _, cosine in report.nearest]
        assert cosines == sorted(cosines, reverse=True)
        assert report.norm == pytest.approx(3 * norms[at], rel=1e-5)
        assert report.base_norm == pytest.approx(norms.mean(), rel=1e-5)
    few = build_row_reports(base, rows, plans, text_encoder, limit=2)
    assert [report.piece for report in few] == [reports[0].piece, few[1].piece]
    assert len(few) == 2
    assert not build_row_reports(base, 0 * rows, plans, text_encoder, limit=1)[0].norm


def test_the_rows_of_a_seed_are_the_same_in_all_releases() -> None:
    rows = init_rows(TABLE, PLANS, RowSettings(noise=0.1, seed=7), "head")
    np.testing.assert_allclose(rows, PINNED_ROWS, rtol=1e-5)


def test_the_report_samples_the_languages_own_letters_then_letters_then_any_piece(text_encoder: TextEncoder) -> None:
    def pieces(*shown: str) -> list[str]:
        plans = [RowPlan(at, piece, "mean", "", (0,)) for at, piece in enumerate(shown)]
        base = 0.001 * table(text_encoder)  # of a norm far below 1
        reports = build_row_reports(base, base[: len(plans)], plans, text_encoder)
        assert all(report.nearest[0] == (text_encoder.base.shown(shown.index(report.piece)), 1.0) for report in reports)
        return [report.piece for report in reports]

    assert pieces("ж", "ሰላም", "ሰ", "።", "ለ") == ["ሰ", "ለ"]
    assert pieces("ж", "жж", "!") == ["ж"]
    assert pieces("жж", "!") == ["жж", "!"]
    letters = [chr(ord("ሀ") + at) for at in range(48)]
    assert pieces(*letters) == [letter for letter in letters if letter in pieces(*letters)]
    assert len(pieces(*letters)) == 12
    assert pieces(*letters)[-1] > letters[30], "they are spread over all of them"


def test_pieces_and_rows_are_counted_apart_from_the_spare() -> None:
    count = RowCount(1000, 30, 1)
    assert (count.pieces, count.rows) == (1030, 1031)
    assert count.table().rows == (("1,000", "30", "1,030", "1", "1,031", "1,001", "30"),)
    numbers = {"base_pieces": 1000, "new_pieces": 30, "pieces": 1030, "spare_rows": 1, "table_rows": 1031}
    assert count.to_json() == numbers
    note = count.spare_note()
    assert note is not None
    assert note.startswith("1,031 rows for 1,030 tokens")
    assert RowCount(1000, 30, 0).spare_note() is None


def text_tables(*, embedding: int = 11, head: int = 11, bias: int = 11) -> dict[str, torch.Tensor]:
    """The text tables of an IndexTTS-2 checkpoint, which has one spare row; `saved` writes them."""
    return {
        "text_embedding.weight": torch.ones(embedding, 4),
        "text_head.weight": torch.ones(head, 4),
        "text_head.bias": torch.ones(bias),
    }


@pytest.mark.parametrize(
    ("rows", "pieces", "expected"),
    [
        ({}, 10, []),
        ({}, 9, ["rows-vs-tokenizer"]),
        ({}, 11, ["rows-vs-tokenizer"]),  # every id has a row, but the spare is missing
        ({}, 12, ["ids-past-table"]),
        ({"embedding": 9}, 10, ["embedding-not-grown", "ids-past-table"]),
        ({"head": 9}, 10, ["head-not-grown", "ids-past-table"]),
        ({"head": 9, "bias": 9}, 10, ["head-not-grown", "ids-past-table"]),
        ({"bias": 9}, 10, ["bias-not-grown", "ids-past-table"]),
    ],
)
def test_text_tables_fit_a_tokenizer_only_with_a_row_for_each_piece_and_the_spare(
    rows: dict[str, int], pieces: int, expected: list[str], tmp_path: Path
) -> None:
    path = saved(tmp_path / "gpt.safetensors", text_tables(**rows))
    with open_checkpoint(path) as checkpoint:
        found = text_table_findings(checkpoint, get_family("indextts2"), pieces)
    assert [item.code for item in found] == expected


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("text_head.weight", None, "tensor-missing"),
        ("text_head.weight", torch.ones(11), "tensor-shape"),
        ("text_head.bias", torch.ones(11, 1), "tensor-shape"),
        ("text_embedding.weight", torch.ones(11, 4, dtype=torch.int32), "tensor-shape"),
    ],
)
def test_a_text_table_that_is_missing_or_no_table_is_the_only_one_reported(
    name: str, value: torch.Tensor | None, code: str, tmp_path: Path
) -> None:
    tensors = {key: tensor for key, tensor in text_tables().items() if key != name}
    path = saved(tmp_path / "gpt.safetensors", tensors if value is None else {**tensors, name: value})
    with open_checkpoint(path) as checkpoint:
        (found,) = text_table_findings(checkpoint, get_family("indextts2"), 10)
    assert found.code == code
    assert name in found.found


def test_a_family_is_recognised_by_its_tables_alone_and_taken_as_named(tmp_path: Path) -> None:
    with open_checkpoint(saved(tmp_path / "gpt.safetensors", text_tables())) as checkpoint:
        assert detect_checkpoint_family(checkpoint, None).name == "indextts2"
        assert detect_checkpoint_family(checkpoint, "chatterbox").name == "chatterbox"
    with (
        open_checkpoint(saved(tmp_path / "other.safetensors", {"weight": torch.ones(2)})) as checkpoint,
        pytest.raises(CheckpointError) as refused,
    ):
        detect_checkpoint_family(checkpoint, None)
    assert refused.value.code == "checkpoint-family"


def test_base_tables_are_read_without_the_spare_and_only_if_finite(tmp_path: Path) -> None:
    family, tensors = get_family("indextts2"), text_tables()
    tensors["text_embedding.weight"][10] = float("nan")  # the spare, which starts no row
    half = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    with open_checkpoint(saved(tmp_path / "gpt.safetensors", half)) as checkpoint:
        tables = list(iter_base_tables(checkpoint, family, 10))
    assert [(name, role, values.shape) for name, role, values in tables] == [
        ("text_embedding.weight", "embedding", (10, 4)),
        ("text_head.weight", "head", (10, 4)),
        ("text_head.bias", "head-bias", (10,)),
    ]
    assert {values.dtype for _, _, values in tables} == {np.dtype(np.float32)}
    tensors["text_embedding.weight"][9, 3] = float("inf")
    with (
        open_checkpoint(saved(tmp_path / "broken.safetensors", tensors)) as checkpoint,
        pytest.raises(CheckpointError) as refused,
    ):
        list(iter_base_tables(checkpoint, family, 10))
    assert refused.value.code == "tensor-not-finite"


def test_a_checkpoint_without_its_tokenizer_beside_it_is_told_how_to_name_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "gpt.pth", text_tables())
    with pytest.raises(FileError) as refused:
        find_tokenizer_beside(path, get_family("indextts2"))
    assert "--base-tokenizer" in refused.value.finding.cure
