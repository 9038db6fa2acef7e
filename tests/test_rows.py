"""New rows start where the base's own rows say they should."""

from __future__ import annotations

import numpy as np
import pytest

from tests.made_once import MadeOnce
from voxgraft.families import family
from voxgraft.rows import Array, RowPlan, make_rows, plan_rows, report_rows
from voxgraft.run_settings import RowInit, RowSettings
from voxgraft.spelling import Spelling, learn_language
from voxgraft.text.texts import Texts
from voxgraft.tokenizers import open_tokenizer

SENTENCES = ("ሰላም ለዓለም ሁሉ።", "ሰላም ነው ወይ?", "ደህና ነኝ ሰላም ሰላም።") * 4


@pytest.fixture(scope="module", params=["chatterbox", "indextts2"])
def spelling(request: pytest.FixtureRequest, made_once: MadeOnce) -> Spelling:
    made = family(request.param)
    base = open_tokenizer(made_once.base(request.param).tokenizer)
    plain = Spelling.of(made, base, None, "am")
    from voxgraft.run_settings import LearnSettings

    learnt = learn_language(plain, Texts(SENTENCES), LearnSettings(pieces=20, min_count=2))
    return Spelling.of(made, base, learnt.grown, "am")


def table(spelling: Spelling) -> Array:
    return np.random.default_rng(0).standard_normal((spelling.base.size, 16)).astype(np.float32)


def plan_of(plans: list[RowPlan], piece: str) -> RowPlan:
    return next(plan for plan in plans if plan.piece == piece)


def test_a_romanised_row_is_the_average_of_the_base_rows_that_spell_it(spelling: Spelling) -> None:
    plans = plan_rows(spelling, "romanised")
    plan = plan_of(plans, "ሰ")
    spelled = [spelling.base.shown(token).lower() for token in plan.sources]
    assert plan.romanised == "sa"
    assert "".join(spelled) == "sa"
    base = table(spelling)
    rows = make_rows(base, plans, RowSettings(noise=0), "embedding")
    expected = base[list(plan.sources)].mean(axis=0)
    np.testing.assert_allclose(rows[plans.index(plan)], expected, rtol=1e-6)


def test_the_report_puts_a_letter_near_its_romanisation(spelling: Spelling) -> None:
    plans = plan_rows(spelling, "romanised")
    base = table(spelling)
    rows = make_rows(base, plans, RowSettings(), "embedding")
    reports = report_rows(base, rows, plans, spelling, limit=len(plans))
    report = next(report for report in reports if report.piece == "ሰ")
    assert report.nearest[0][0].lower() in {"s", "a", "sa"}
    assert report.nearest[0][1] > 0.6


@pytest.mark.parametrize("init", ["romanised", "script-mean", "mean", "random"])
def test_every_way_of_starting_gives_finite_distinct_rows_for_every_new_token(
    spelling: Spelling, init: RowInit
) -> None:
    assert spelling.grown is not None
    plans = plan_rows(spelling, init)
    assert [plan.token for plan in plans] == list(range(spelling.base.size, spelling.grown.size))
    rows = make_rows(table(spelling), plans, RowSettings(init=init), "embedding")
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_rows_are_reproducible_by_seed_and_differ_between_embedding_and_head(spelling: Spelling) -> None:
    plans = plan_rows(spelling, "mean")
    base = table(spelling)
    once, again = (make_rows(base, plans, RowSettings(init="mean", seed=3), "embedding") for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, make_rows(base, plans, RowSettings(init="mean", seed=4), "embedding"))
    assert not np.array_equal(once, make_rows(base, plans, RowSettings(init="mean", seed=3), "head"))


def test_a_new_tag_starts_as_the_average_of_the_base_tags(made_once: MadeOnce) -> None:
    made = family("chatterbox")
    base = open_tokenizer(made_once.base("chatterbox").tokenizer)
    from voxgraft.run_settings import LearnSettings

    learnt = learn_language(Spelling.of(made, base, None, "am"), Texts(SENTENCES), LearnSettings(pieces=0))
    plans = plan_rows(Spelling.of(made, base, learnt.grown, "am"), "romanised")
    plan = plan_of(plans, "[am]")
    assert plan.how == "tags"
    assert {"[en]", "[fr]"} <= {base.shown(token) for token in plan.sources}
    assert not {"[START]", "[STOP]", "[UNK]"} & {base.shown(token) for token in plan.sources}
