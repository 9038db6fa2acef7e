"""The tab Evaluate shows the scores of a real evaluation as its own table does, and plays what the report plays."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, done, form_of, tab_of, words_of
from voxgraft.evaluation.scores import Score, format_score

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.tabs import evaluate

FOLDER = f"{PROJECT}/eval/default"


@pytest.fixture
def context(home: Path) -> Iterator[Any]:
    with tab_of(home, "evaluate") as found:
        yield found


def opened(context: Any) -> dict[str, Any]:
    return dict(
        zip(
            ("chosen", "shown", "language", "players", "checklist"),
            evaluate._open_evaluations(context, PROJECT),
            strict=True,
        )
    )


def test_a_goal_that_is_not_reached_yet_is_no_fault_as_in_the_report(context: Any, home: Path) -> None:
    names = ("base-values", "old-languages", "speaks", "near-mark", "reads", "stops", "repeats", "pace")
    path = home / FOLDER / "scores.json"
    scores = json.loads(path.read_text())
    assert {point["name"] for point in scores["checklist"]} == set(names)
    scores["checklist"] = [{"name": "near-mark", "question": "Clear?", "answer": "no", "found": "not yet"}]
    path.write_text(json.dumps(scores))
    assert '<div class="vg-note vg-yet" role="status">Clear? not yet</div>' in opened(context)["checklist"]


def test_the_project_is_judged_unless_something_else_is_named(context: Any) -> None:
    assert words_of(context, "evaluate") == ["evaluate", PROJECT, "--json"]
    words = words_of(
        context, "evaluate", step="2", max_sentences=5, recognizer="none", languages="en\nfr", name="early"
    )
    assert words[2:] == ["--step", "2", "--languages", "en", "fr", "--max-sentences", "5", "--recognizer", "none", "--name",
                         "early", "--json"]  # fmt: skip


def test_scores_checklist_and_links_of_the_newest_evaluation_are_shown(context: Any, home: Path) -> None:
    found = opened(context)
    scores = json.loads((home / FOLDER / "scores.json").read_text())
    assert found["chosen"]["value"] == FOLDER
    assert f'href="/pages/secret/{FOLDER}/report.html"' in found["shown"]
    assert f'href="/pages/secret/{FOLDER}/report.html#blind"' in found["shown"]
    assert "with and without the graft are equal" in found["shown"]
    for point in scores["checklist"]:
        assert point["question"] in found["checklist"]
    for row in scores["rows"]:
        for name in ("phone_error", "speech_loss"):
            value = row["scores"].get(name, {}).get("value")
            assert f"<td>{format_score(name, Score(value))}</td>" in found["shown"]


def test_the_same_sentences_are_played_before_and_after_in_the_chosen_language(context: Any) -> None:
    found = opened(context)
    assert found["language"]["value"] == "am"
    assert set(found["language"]["choices"]) == {"am", "en"}
    titles = re.findall(r"<strong>([^<]+)</strong>", found["players"])
    assert titles == ["before (am)", "after (am)"] * 2
    assert len(re.findall(r"<small>\d+\.\d s", found["players"])) == 4
    for data in re.findall(r'src="data:audio/wav;base64,([^"]+)"', found["players"]):
        assert base64.b64decode(data)[:4] == b"RIFF"
    english = evaluate._report_players(context, FOLDER, "en")
    assert "<audio" in english
    assert "(am)" not in english


def test_a_report_from_elsewhere_puts_no_markup_into_the_page(context: Any, home: Path) -> None:
    wav = base64.b64encode(b"RIFF").decode()
    sound = 'data-language="am" data-who="&lt;b&gt;x" data-text="&quot;&gt;&lt;script&gt;1&lt;/script&gt;"'
    (home / FOLDER / "report.html").write_text(
        f'<audio {sound} src="data:audio/wav;base64,{wav}"></audio><audio {sound} src="javascript:alert(1)"></audio>'
    )
    players = evaluate._report_players(context, FOLDER, "am")
    assert players.count("<audio") == 1
    assert "<script" not in players
    assert "<b>" not in players
    assert "javascript:" not in players


def test_a_broken_scores_file_is_reported_and_breaks_nothing(context: Any, home: Path) -> None:
    for text in ("{", "[]", '{"rows": [1]}', '{"rows": [], "retention": 3}'):
        (home / FOLDER / "scores.json").write_text(text)
        assert "vg-bad" in opened(context)["shown"]


def test_a_refused_evaluation_says_why(context: Any, home: Path) -> None:
    done(home, "evaluate", words_of(context, "evaluate", languages="xx"))
    assert "evaluate-language" in opened(context)["shown"]


def test_two_evaluations_are_compared_in_a_picture_and_a_table(context: Any, home: Path) -> None:
    shutil.copytree(home / FOLDER, home / PROJECT / "eval" / "second")
    words = words_of(context, "compare", runs=[FOLDER, f"{PROJECT}/eval/second"], measure="speech_loss")
    job = done(home, "compare", words)
    shown = form_of(context, "compare").result_html(PROJECT)
    assert f'src="/pages/secret/{PROJECT}/compared.png' in shown, job.tail()
    assert "default" in shown
    assert "second" in shown
    assert "speech loss, new language" in shown


@pytest.mark.long
def test_curves_of_runs_are_drawn_beside_what_is_there(context: Any, home: Path) -> None:
    (home / PROJECT / "plotted.png").write_bytes(b"mine")
    done(home, "plot", words_of(context, "plot"))
    assert f'src="/pages/secret/{PROJECT}/plotted-2.png' in form_of(context, "plot").result_html(PROJECT)
    assert (home / PROJECT / "plotted.png").read_bytes() == b"mine"
