"""The tab Train shows what a real run tells, and its controls say what `voxgraft train` is asked for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, done, form_of, tab_of, words_of
from voxgraft.core.run import RunFolder

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.tabs import train


@pytest.fixture(scope="module")
def context(made_home: Path) -> Iterator[Any]:
    with tab_of(made_home, "train") as found:
        yield found


def shown(
    context: Any,
    known: dict[str, str],
    asked: tuple[str, str] = (train.FIRST_AND_NEWEST, train.ALL_SAMPLES),
) -> dict[str, Any]:
    """What the page is sent, by what it is."""
    names = ("known", "figures", "curves", "newest", "details", "opening", "saved", "step", "language", "samples",
             "choice", "from", "fresh", "elsewhere", "settings")  # fmt: skip
    return dict(zip(names, train._refresh_status(context, PROJECT, known, asked), strict=True))


def is_skipped(value: Any) -> bool:
    return isinstance(value, dict) and value.get("__type__") == "update" and len(value) == 1


def test_a_project_that_was_just_opened_is_trained_with_its_own_values(context: Any) -> None:
    assert words_of(context, "train") == ["train", PROJECT]


def test_what_is_changed_stands_in_the_command_and_nothing_else_does(context: Any) -> None:
    words = words_of(context, "train", train__steps="40", train__lr_rows=0.0005, train__compile="no")
    assert words == ["train", PROJECT, "--train.lr-rows", "0.0005", "--train.steps", "40", "--train.compile", "no"]


def test_a_choice_to_begin_again_ends_with_the_training_it_was_for_even_if_nobody_looked(context: Any) -> None:
    seen = {"project": PROJECT, "samples": "", "job": "0001-train"}
    assert shown(context, seen)["fresh"] is False, "there is another job now than when the choice was made"


@pytest.mark.parametrize(
    ("chosen", "flags"),
    [(train.START_NEWEST, []), ("2", ["--from-step", "2"]), (train.START_FRESH, ["--fresh"]), (None, [])],
)
def test_the_point_to_start_from_becomes_a_flag(context: Any, chosen: str | None, flags: list[str]) -> None:
    step, fresh = train._start_values(chosen)
    assert words_of(context, "train", from_step=step, fresh=fresh) == ["train", PROJECT, *flags]


def test_a_run_is_shown_with_its_state_and_its_reason_its_losses_and_their_levels(context: Any) -> None:
    found = shown(context, {})
    history = train.load_train_status(RunFolder(context.roots.home / PROJECT)).history
    assert history.state is not None
    for part in ("too early", str(history.state.values["why"]), "4 of 4 (100%)", "ended: done", "text use at step 4"):
        assert part in found["figures"]
    for key in ("text_loss", "speech_loss"):
        assert f"{history.initial_loss(key):.3f}" in found["details"]
        assert f"{history.chance[key]:.3f}" in found["details"]
        assert f"chance: {history.chance[key]:.2f}" in found["curves"]
        assert f"step 0: {history.initial_loss(key):.2f}" in found["curves"]
    assert found["curves"].count("<svg") == 3


def test_retention_of_every_old_language_is_shown_against_the_bound(context: Any) -> None:
    status = train.load_train_status(RunFolder(context.roots.home / PROJECT))
    history = status.history
    for step, loss in ((0, 4.0), (4, 4.4)):
        history.valid.setdefault("en", {})[step] = {"set": "en", "speech_loss": loss, "text_loss": 1.0}
    try:
        figures = train.train_figures_html(status, is_running=True, bound=0.05)
        assert re.search(r'vg-bad"><dt>retention of en at step 4</dt><dd>speech loss \+10\.00%', figures)
        figures = train.train_figures_html(status, is_running=True, bound=0.2)
        assert 'vg-good"><dt>retention of en' in figures
        assert "Old languages" in train.train_curves_html(history)
    finally:
        del history.valid["en"]


def test_samples_can_be_heard_by_step_and_language_and_have_codes_where_there_is_no_sound(home: Path) -> None:
    with tab_of(home, "train") as context:
        samples = shown(context, {})["samples"]
        assert samples.count("<audio") == 6  # three languages, the first step and the newest
        assert "step 0, am" in samples
        assert "step 4, am" in samples
        assert "step 2, am" not in samples
        assert "/pages/secret/am/samples/step-000004/am.wav?v=" in samples
        one = train._show_samples(context, PROJECT, "2", "en")
        assert one.count("<audio") == 1
        assert "step 2, en" in one
        assert "Hello world" in one
        (home / PROJECT / "samples" / "step-000002" / "en.wav").unlink()
        silent = train._show_samples(context, PROJECT, "2", "en")
        codes = json.loads((home / PROJECT / "samples" / "step-000002" / "en.json").read_text())["codes"]
        assert "<audio" not in silent
        assert f"{len(codes):,} codes" in silent
        assert " ".join(map(str, codes[:5])) in silent


def test_nothing_is_sent_twice_and_players_are_left_alone_while_losses_come(home: Path) -> None:
    with tab_of(home, "train") as context:
        stamp = train._status_stamp(context, PROJECT)
        assert train._status_stamp(context, PROJECT) == stamp
        first = shown(context, {})
        with (home / PROJECT / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps({"kind": "step", "step": 5, "text_loss": 1.2345, "speech_loss": 2.0}) + "\n")
        assert train._status_stamp(context, PROJECT) != stamp
        second = shown(context, first["known"])
        assert "1.234" in second["details"]
        assert "train (step 5)" in second["details"]
        assert is_skipped(second["samples"])
        assert is_skipped(second["from"]), "a step that somebody has chosen is not unchosen by news"


def test_saved_steps_are_offered_with_size_and_score_and_damaged_ones_are_not(home: Path) -> None:
    (home / PROJECT / "steps" / "step-000002" / "rows.safetensors").write_bytes(b"")
    with tab_of(home, "train") as context:
        found = shown(context, {})
        values = [value for _, value in found["choice"]["choices"]]
        assert values == [train.START_NEWEST, "4", "0", train.START_FRESH]
        words = {value: words for words, value in found["choice"]["choices"]}
        assert re.fullmatch(r"step 4: [\d.]+ [kMG]B, held-out speech loss \d\.\d{3}, the best", words["4"])
        assert "has 0 bytes" in found["saved"]


def test_a_broken_journal_is_reported_and_a_project_without_one_says_so(home: Path) -> None:
    journal = home / PROJECT / "journal.jsonl"
    journal.write_text("{broken\n")
    with tab_of(home, "train") as context:
        assert "journal-broken" in shown(context, {})["figures"]
        journal.unlink()
        assert train.NOT_TRAINED_YET in shown(context, {})["figures"]


def test_the_opening_lines_are_those_of_the_newest_training(home: Path) -> None:
    line = words_line(home)
    job = done(home, "train", line)
    with tab_of(home, "train") as context:
        opening = shown(context, {})["opening"]
    assert job.exit_code == 0, job.tail()
    assert opening.startswith("run:")
    assert "fixed:" in opening
    assert "resumes from step 4" in opening
    assert not any(line.startswith("step ") for line in opening.splitlines())


def words_line(home: Path) -> list[str]:
    """Three more steps, by a command of the form."""
    with tab_of(home, "train") as context:
        return words_of(context, "train", train__steps="7", train__sample_texts="am:ሰ", train__sample_sound=False)


def test_clean_shows_sizes_and_removes_only_after_a_yes(home: Path) -> None:
    with tab_of(home, "train") as context:
        job = done(home, "clean", words_of(context, "clean"))
        assert job.exit_code == 1
        asked = form_of(context, "clean").result_html(PROJECT)
        assert "tick the box and press again" in asked
        assert "step-000002" in asked
        assert "would be removed" in asked
        assert (home / PROJECT / "steps" / "step-000002").is_dir()
        done(home, "clean", words_of(context, "clean", yes=True))
        assert "removed 1 folder" in form_of(context, "clean").result_html(PROJECT)
        assert not (home / PROJECT / "steps" / "step-000002").exists()


def test_a_listener_can_be_chosen_and_a_program_cannot(context: Any) -> None:
    form = form_of(context, "train")
    assert set(form.choices["train.recognizer"]) == {"built-in", "none"}
    with pytest.raises(Exception, match="config-value"):
        words_of(context, "train", train__recognizer="command:/bin/sh")


@contextlib.contextmanager
def training_elsewhere(run: Path, verb: str = "train") -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the run's lock, as a training in a terminal has it."""
    code = (
        "import sys, time; from pathlib import Path; from voxgraft.core.run import RunFolder\n"
        f"with RunFolder(Path({str(run)!r})).lock({verb!r}):\n    print('has it', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"has it\n"
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@pytest.mark.long
def test_a_training_that_was_started_in_a_terminal_is_at_work_and_cannot_be_started_again(home: Path) -> None:
    run = RunFolder(home / PROJECT)
    with tab_of(home, "train") as context:
        start = form_of(context, "train").view
        quiet = train._status_stamp(context, PROJECT)
        with training_elsewhere(run.path) as process:
            assert train._status_stamp(context, PROJECT) != quiet
            found = shown(context, {})
            assert f"process {process.pid} on" in found["elsewhere"]
            assert start.button_update(run.path)["interactive"] is False
            assert " left</dd>" in found["figures"] or "known after" in found["figures"]
            with pytest.raises(Exception, match="run-locked"), run.lock():
                pass
        after = shown(context, {})
        assert after["elsewhere"] == ""
        assert start.button_update(run.path)["interactive"] is True
        assert "ended: done" in after["figures"]


def test_who_prepares_elsewhere_is_reported_and_is_no_training(home: Path) -> None:
    with tab_of(home, "train") as context, training_elsewhere(home / PROJECT, "prepare"):
        found = shown(context, {})
        assert "`voxgraft prepare` is running" in found["elsewhere"]
        assert "ended: done" in found["figures"]


def test_a_training_that_was_killed_is_not_at_work_though_it_left_its_name(home: Path) -> None:
    run = RunFolder(home / PROJECT)
    with tab_of(home, "train") as context:
        with training_elsewhere(run.path) as process:
            assert shown(context, {})["elsewhere"]
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert run.lock_file.read_bytes(), "it did not take its name back"
        assert shown(context, {})["elsewhere"] == ""
        with run.lock():
            pass


def test_a_sample_that_another_project_has_not_is_not_asked_for(context: Any) -> None:
    found = shown(context, {}, ("400", "sw"))
    assert (found["step"]["value"], found["language"]["value"]) == (
        train.FIRST_AND_NEWEST,
        train.ALL_SAMPLES,
    )
    assert found["samples"].count("<audio") == 6
    assert shown(context, {}, ("2", "en"))["step"]["value"] == "2"


def test_a_long_journal_that_grows_all_the_time_is_read_now_and_then(context: Any, home: Path) -> None:
    journal = home / PROJECT / "journal.jsonl"
    now = time.time()
    stamps = set()
    with journal.open("ab") as stream:
        stream.truncate(50_000_000)  # a pause of minutes
        for line in range(10):
            stream.truncate(50_000_000 + 300 * line)
            os.utime(journal, (now - 5 + 0.1 * line, now - 5 + 0.1 * line))
            stamps.add(train._status_stamp(context, PROJECT))
    assert len(stamps) <= 2


def test_the_time_left_of_a_training_that_goes_on_is_reported_by_the_lines_before(home: Path) -> None:
    reported = train.load_train_status(RunFolder(home / PROJECT))
    reported.history.num_steps = 1000
    for step in range(5, 10):
        reported.history.steps[step] = {"positions": 400, "positions_per_second": 200.0}
    assert "33 min left" in train.train_figures_html(reported, is_running=True, bound=None)
