"""New rows start where the base's own rows say they should."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.families import PUBLISHED
from tests.support.fixtures import Fixtures
from voxgraft.config.run import RowInit, RowSettings
from voxgraft.graft.rows import Float32Array, RowPlan, build_row_reports, init_rows, plan_rows
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
