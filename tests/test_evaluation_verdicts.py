"""The checklist: every point is ticked or crossed by what was measured, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from voxgraft.evaluation.judge import Evaluation, LanguageRetention
from voxgraft.evaluation.report import (
    build_checklist,
    choose_main_error,
    find_worst_change,
    is_unreached_goal,
    list_figures,
    summarize_retention,
)
from voxgraft.evaluation.scores import Score, ScoreRow, format_score, unmeasured_score


class Graft:
    """What the checklist asks of a system."""

    def __init__(self, mode: str = "gated") -> None:
        self.mode, self.keeps_base, self.gate = mode, mode == "gated", None


def measured(value: float, spread: float = 0.01) -> Score:
    return Score(value, value - spread, value + spread, 100)


def row(who: str, language: str = "am", **scores: float | Score) -> ScoreRow:
    made = {name: one if isinstance(one, Score) else measured(one) for name, one in scores.items()}
    return ScoreRow(language, who, who, made)


def kept(language: str = "en", *, equal: bool | None = True) -> LanguageRetention:
    return LanguageRetention(
        language, equal, 0.0 if equal else 0.3, 1000, 10, 10, measured(0.0), "" if equal is not None else "mute"
    )


def found(*rows: ScoreRow, kept_languages: tuple[LanguageRetention, ...] = (kept(),), changed: int = 0) -> Evaluation:
    change = {"changed": changed, "total": 5000, "tensors": [], "compared": "two files"}
    return Evaluation("am", list(rows), list(kept_languages), change)


def answers(evaluation: Evaluation, mode: str = "gated") -> dict[str, str]:
    return {point.name: point.answer for point in build_checklist(evaluation, Graft(mode))}  # type: ignore[arg-type]


GOOD: dict[str, Any] = {
    "phone_error": 0.04,
    "text_use": 1.2,
    "runaway": Score(0.0, 0, 0, 100),
    "cut": 0.01,
    "duration": 1.02,
    "repeats": 0.0,
}


def test_a_graft_that_speaks_and_loses_nothing_has_every_point() -> None:
    rows = (row("after", **GOOD), row("before", phone_error=0.9), row("shuffled", phone_error=0.85))
    assert answers(found(*rows, row("codec", phone_error=0.02))) == dict.fromkeys(
        ("base-values", "old-languages", "speaks", "near-mark", "reads", "stops", "repeats", "pace"), "yes"
    )


def test_speech_that_is_no_better_than_the_controls_is_not_understood() -> None:
    for control in ("before", "shuffled"):
        rows = (row("after", phone_error=0.5), row(control, phone_error=0.505))
        assert answers(found(*rows))["speaks"] == "no"
    assert answers(found(row("after", phone_error=0.5)))["speaks"] == "unknown"


def test_what_was_not_measured_is_neither_ticked_nor_crossed_and_says_why() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("phone_error", "cer", "text_use", "runaway"), unmeasured_score("no sound"))
    silent = row("after", **nothing)
    evaluation = found(silent, kept_languages=())
    assert answers(evaluation) == {
        "base-values": "yes",
        "old-languages": "unknown",
        "speaks": "unknown",
        "near-mark": "unknown",
        "reads": "unknown",
        "stops": "unknown",
        "repeats": "unknown",
        "pace": "unknown",
    }
    assert all(point.found for point in build_checklist(evaluation, Graft()))  # type: ignore[arg-type]
    assert summarize_retention(evaluation) == "not measured"
    assert summarize_retention(found(silent, kept_languages=(kept(), kept("fr", equal=None)))) == "not measured"
    assert choose_main_error(evaluation) is None


def test_a_mark_that_the_listener_does_not_reach_itself_is_no_mark() -> None:
    rows = (row("after", cer=0.98), row("recordings", cer=0.97))
    assert answers(found(*rows))["near-mark"] == "unknown"
    judged = found(row("after", cer=0.2), row("recordings", cer=0.1))
    assert answers(judged)["near-mark"] == "no"
    (point,) = [point for point in build_checklist(judged, Graft()) if point.name == "near-mark"]  # type: ignore[arg-type]
    assert point.found.startswith("not yet: ")
    assert is_unreached_goal(point), "a goal that is not reached breaks nothing"


def test_the_headline_holds_an_error_against_a_mark_of_the_same_error_alone() -> None:
    after = row("after", phone_error=0.3, cer=0.4)
    alike = str(list_figures({}, found(after, row("codec", phone_error=0.02, cer=0.05))))
    assert "reference, phone error" in alike
    assert "no reference" not in alike
    letters = str(list_figures({}, found(after, row("codec", cer=0.05))))
    assert "reference, letter error" in letters
    assert "now 40.0 % (no reference for phone error)" in letters
    assert "reference," not in str(list_figures({}, found(after)))


def test_a_pace_says_what_it_is_held_against() -> None:
    judged = found(row("after", **{**GOOD, "duration": 0.5}))
    judged.paces["am"] = "lengths are held against held-out recordings"
    (point,) = [point for point in build_checklist(judged, Graft()) if point.name == "pace"]  # type: ignore[arg-type]
    assert point.answer == "no"
    assert "0.50 times the usual length" in point.found
    assert judged.paces["am"] in point.found


def test_a_promise_that_is_broken_is_crossed_and_where_none_was_made_the_change_decides() -> None:
    broken = (kept(), kept("fr", equal=False))
    rows = (row("before", "fr", phone_error=0.06), row("after", "fr", phone_error=0.065), row("after", **GOOD))
    assert answers(found(*rows, kept_languages=broken, changed=3))["old-languages"] == "no"
    assert answers(found(*rows, kept_languages=broken, changed=3))["base-values"] == "no"
    assert answers(found(*rows, kept_languages=broken, changed=3), "merged")["old-languages"] == "yes"
    lost = (row("before", "fr", phone_error=0.06), row("after", "fr", phone_error=0.5), row("after", **GOOD))
    assert answers(found(*lost, kept_languages=broken), "merged")["old-languages"] == "no"


def test_the_worst_change_is_the_highest_and_nothing_where_logits_are_equal() -> None:
    rows = (
        row("before", "en", cer=0.1),
        row("after", "en", cer=0.2),
        row("before", "fr", cer=0.1),
        row("after", "fr", cer=0.15),
    )
    unequal = (kept("en", equal=False), kept("fr", equal=False))
    worst, _ = find_worst_change(found(*rows, kept_languages=unequal), "cer")
    assert worst is not None
    assert worst[0] == "en"
    assert worst[1] == pytest.approx(0.1)
    assert find_worst_change(found(*rows, kept_languages=(kept("en"), kept("fr"))), "cer") == (("en", 0.0), [])
    assert find_worst_change(found(*rows, kept_languages=()), "cer") == (None, [])


def test_a_base_language_that_has_changed_and_was_not_heard_is_named_and_leaves_the_point_open() -> None:
    rows = (row("before", "fr", phone_error=0.06), row("after", "fr", phone_error=0.06), row("after", **GOOD))
    deaf = found(*rows, kept_languages=(kept("fr", equal=False), kept("en", equal=False)))
    assert find_worst_change(deaf, "phone_error")[1] == ["en"]
    assert answers(deaf, "merged")["old-languages"] == "unknown"


def test_failures_to_stop_and_a_wrong_pace_are_crossed() -> None:
    assert answers(found(row("after", runaway=0.03, cut=0.0)))["stops"] == "no"
    assert answers(found(row("after", runaway=0.0, cut=0.05)))["stops"] == "no"
    assert answers(found(row("after", duration=1.6)))["pace"] == "no"
    assert answers(found(row("after", text_use=0.05)))["reads"] == "no"


def test_scores_are_written_as_people_read_them() -> None:
    assert format_score("cer", Score(0.0463)) == "4.6 %"
    assert format_score("kl", Score(-0.00001)) == "0.000"
    assert format_score("duration", Score(1.0)) == "1.00"
    assert format_score("cer", unmeasured_score("no")) == "–"
