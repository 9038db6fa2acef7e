"""The demonstration, as short as it can be: the real commands on the built-in base, from nothing to a report."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.test_graft_and_extend import run_cli
from tools.random_bases import make_random_base
from voxgraft.config.base import deep_merge
from voxgraft.config.commands import DemoMistake, DemoSettings, GraftSettings
from voxgraft.core.errors import FileError, VoxgraftError, finding
from voxgraft.core.files import compute_sha256
from voxgraft.core.results import Table, plain_text
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.shards import DatasetRole
from voxgraft.demo.command import (
    MISTAKES,
    DemoResult,
    DemoRunner,
    MistakeReport,
    RunYamlChanges,
    _recreate_demo_folder,
    _try_to_train,
    demo,
)
from voxgraft.demo.data import DEMO_LANGUAGE, BundledClip, DemoSetWriter, load_bundled_clips
from voxgraft.evaluation.command import EvaluateResult
from voxgraft.evaluation.judge import Evaluation, LanguageRetention
from voxgraft.evaluation.scores import Score
from voxgraft.evaluation.sentences import load_built_in_sentences, normalize_letters
from voxgraft.graft.command import graft
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.text.encoder import TextEncoder

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "demo.ipynb"


class BriefWriter(DemoSetWriter):
    """Holds fewer clips out, which every validation goes through."""

    def write(
        self, name: str, role: DatasetRole, clips: Sequence[BundledClip], text_encoder: TextEncoder | None = None
    ) -> Path:
        return super().write(name, role, clips[:3] if role == "valid" else clips, text_encoder)


class BriefKeyboard(DemoRunner):
    """Types smaller steps than the demonstration does."""

    def new(self, changes: RunYamlChanges) -> None:
        super().new(
            deep_merge(changes, {"train": {"batch_tokens": 256, "microbatch_tokens": 512, "sample_texts": ["am:ሰ"]}})
        )

    @property
    def writer(self) -> DemoSetWriter:
        usual = super().writer
        return BriefWriter(usual.run, usual.family, usual.files, usual.graft)


def reported_codes(mistake: DemoMistake, folder: Path, steps: int) -> set[tuple[str, str]]:
    """Everything but the listening."""
    settings = DemoSettings(folder=folder, mistake=mistake, steps=steps)
    reported = MistakeReport(mistake, "", MISTAKES[mistake][1])
    MISTAKES[mistake][2](BriefKeyboard(folder), settings, reported)
    assert reported.is_caught, reported.to_json()
    return {(when, item.code) for when, item in reported.caught}


@pytest.mark.long
def test_the_notebook_tells_the_story_from_nothing_to_a_report_and_leaves_the_base_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    before = {path.name: compute_sha256(path) for path in base.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("voxgraft.demo.command.DemoRunner", BriefKeyboard)
    names, shown = run_notebook({"STEPS": 3, "SENTENCES": 2})
    assert "changed weights of the base" in capsys.readouterr().out
    pages = [one._repr_html_() for one in shown if one is not None]
    assert len(pages) == 3
    assert all("<audio" in page for page in pages)
    story = names["result"].to_json()
    assert story["equal"] == {"en": True, "fr": True}
    assert story["base_values_changed"] == 0
    assert {"before", "after", "shuffled", "recordings", "codec"} <= story["languages"]["am"].keys()
    assert story["languages"]["am"]["before"]["phone_error"]["value"] > 0.5
    assert story["languages"]["en"]["after"] == story["languages"]["en"]["before"]
    assert "<audio" in Path(story["report"]).read_text(encoding="utf-8")
    run = tmp_path / "demo" / "am"
    assert [line["step"] for line in RunJournal(run / "journal.jsonl").read() if line["kind"] == "end"] == [3]
    assert load_graft(tmp_path / "demo" / "export").card.adapter is not None
    assert {path.name: compute_sha256(path) for path in base.iterdir()} == before


def run_notebook(parameters: dict[str, int]) -> tuple[dict[str, Any], list[Any]]:
    """All its names, and the values that its cells show."""
    names: dict[str, Any] = {}
    shown: list[Any] = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            shown.append(executed("".join(cell["source"]), names))
        if "parameters" in cell["metadata"].get("tags", ()):
            names |= parameters
    return names, shown


def executed(source: str, names: dict[str, Any]) -> Any:
    """As a notebook does it: the value of a last line that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_a_folder_that_is_not_a_demo_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep")
    with pytest.raises(FileError):
        demo(DemoSettings(folder=tmp_path))
    assert os.listdir(tmp_path) == ["precious.txt"]


@pytest.mark.long
def test_a_demo_that_was_killed_while_it_was_replaced_is_replaced_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    _recreate_demo_folder(folder)
    (folder / "old").write_text("of the last time")
    _recreate_demo_folder(folder)
    assert os.listdir(tmp_path) == ["demo"]
    assert not (folder / "old").exists()
    (aside,) = killed_while_removing(folder)
    _recreate_demo_folder(folder)
    assert not aside.exists()
    assert os.listdir(tmp_path) == ["demo"]


def killed_while_removing(folder: Path) -> list[Path]:
    """A real process that is killed at the first file that it removes."""
    code = (
        "import os, pathlib, shutil, signal\n"
        "from voxgraft.demo.command import _recreate_demo_folder\n"
        "shutil.rmtree = lambda path: (next(pathlib.Path(path).iterdir()).unlink(), os.kill(os.getpid(), signal.SIGKILL))\n"
        f"_recreate_demo_folder(pathlib.Path({str(folder)!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    return [path for path in folder.parent.iterdir() if path != folder]


def test_a_link_is_not_taken_for_a_demo_and_what_cannot_be_moved_is_an_error_of_ours(tmp_path: Path) -> None:
    _recreate_demo_folder(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(FileError, match="is a link"):
        demo(DemoSettings(folder=tmp_path / "link"))
    (tmp_path / ".real.replaced-made-by-voxgraft-demo").write_text("in the way")
    with pytest.raises(FileError) as error:
        _recreate_demo_folder(tmp_path / "real")
    assert error.value.code == "file-unwritable"
    assert (tmp_path / "real" / "made-by-voxgraft-demo").is_file()


def test_evaluate_is_typed_with_every_flag_that_is_not_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(DemoRunner, "chapter", lambda _self, title, _lines=(): reported.append(title))
    for sentences, seed in ((100, 0), (7, 3)):
        with pytest.raises(VoxgraftError):  # there is no run
            DemoRunner(tmp_path).evaluate(sentences, seed)
    assert "--max-sentences" not in reported[0]
    assert "--seed" not in reported[0]
    assert reported[1].endswith("--max-sentences 7 --seed 3")


def test_a_demo_in_which_old_languages_were_not_measured_is_a_failure(tmp_path: Path) -> None:
    kept = LanguageRetention("en", True, 0.0, 9, 1, 1, Score(0.0))
    for found, code in (([kept], 0), ([], 1), ([kept._replace(equal=None)], 1), ([kept._replace(equal=False)], 1)):
        evaluated = EvaluateResult(tmp_path, {}, Evaluation("am", kept=found), (), 0)
        assert DemoResult(tmp_path, {}, {}, evaluated).exit_code == code


def test_a_mistake_that_train_lets_through_is_a_failure_whatever_check_said(tmp_path: Path) -> None:
    reported = MistakeReport("padded-codes", "", ("clips-trailing-run",))
    reported.caught.append(("before training", finding("clips-trailing-run", "x")))
    assert reported.to_json()["caught"] is True

    class Lenient(DemoRunner):
        def train(self, flags: str = "", **more: Any) -> Any:
            return None

    _try_to_train(Lenient(tmp_path), reported)
    assert reported.to_json()["caught"] is False
    assert [plain_text(line) for line in reported.verdict() if not isinstance(line, Table)] == ["not refused: train"]


def test_the_speech_that_ships_holds_no_sentence_and_no_rare_word_by_which_speech_is_judged() -> None:
    judged = load_built_in_sentences(DEMO_LANGUAGE)
    assert judged is not None
    texts = [clip.text for role in ("train", "valid") for clip in load_bundled_clips(role, DEMO_LANGUAGE)]
    heard = {word for text in texts for word in normalize_letters(text, DEMO_LANGUAGE).split()}
    whole = {normalize_letters(text, DEMO_LANGUAGE) for text in texts}
    assert not {normalize_letters(one.text, DEMO_LANGUAGE) for one in judged.sentences} & whole
    assert not {normalize_letters(word, DEMO_LANGUAGE) for one in judged.sentences for word in one.rare} & heard
    assert sum(bool(one.rare) for one in judged.sentences) * 2 == len(judged.sentences) == 100


def test_the_speech_that_ships_is_an_hour_in_four_voices_and_nothing_held_out_is_learnt_from() -> None:
    learnt, held_out = load_bundled_clips("train", DEMO_LANGUAGE), load_bundled_clips("valid", DEMO_LANGUAGE)
    assert 45 <= sum(len(clip.codes) for clip in learnt) / 25 / 60 <= 62
    assert {clip.speaker for clip in learnt} == {clip.speaker for clip in held_out} == {"m1", "m3", "f2", "f4"}
    assert not {clip.text for clip in learnt} & {clip.text for clip in held_out}
    assert all(int(clip.codes.min()) >= 0 and int(clip.codes.max()) < 2560 for clip in learnt)


@pytest.mark.long
def test_codes_of_another_codec_are_refused(tmp_path: Path) -> None:
    files = make_random_base("tiny", tmp_path / "base")
    texts = tmp_path / "am.txt"
    texts.write_text("\n".join(clip.text for clip in load_bundled_clips("train", DEMO_LANGUAGE)), encoding="utf-8")
    graft(GraftSettings(run=tmp_path / "run", base=files.folder, language=DEMO_LANGUAGE, texts=(texts,)))
    made = load_graft(tmp_path / "run" / "graft")
    writer = DemoSetWriter(RunFolder(tmp_path / "run"), get_family("tiny"), files, made)
    with pytest.raises(FileError) as error:
        writer.write("train", "train", load_bundled_clips("train", DEMO_LANGUAGE))
    assert error.value.code == "demo-codec"
    assert not (tmp_path / "run" / "data" / "train").exists()


@pytest.mark.long
def test_the_command_tells_of_a_mistake_with_the_seed_that_it_was_given(tmp_path: Path) -> None:
    done = run_cli("demo", tmp_path / "demo", "--mistake", "padded-codes", "--seed", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mistake"]["caught"] is True
    assert "seed: 5" in (tmp_path / "demo" / "am" / "run.yaml").read_text(encoding="utf-8")


@pytest.mark.long(fast="no-single-characters")
@pytest.mark.parametrize("mistake", ["no-single-characters", "wrong-tokenizer"])
def test_a_mistake_in_tokenizer_or_data_is_refused_before_the_first_step(mistake: DemoMistake, tmp_path: Path) -> None:
    result = demo(DemoSettings(folder=tmp_path / "demo", mistake=mistake))
    assert result.exit_code == 0
    assert result.mistake is not None
    assert set(MISTAKES[mistake][1]) <= {item.code for _, item in result.mistake.caught}
    assert any("refuses" in when for when, _ in result.mistake.caught)
    assert not (tmp_path / "demo" / "am" / "steps").exists()


@pytest.mark.long
def test_a_body_that_is_trained_without_replay_is_stopped_and_then_named_by_check(tmp_path: Path) -> None:
    reported = reported_codes("unfrozen-high-rate", tmp_path, steps=21)
    assert ("before training", "replay-missing") in reported
    assert ("while training", "retention-bound") in reported
    assert ("in its output", "body-changed") in reported
    journal = RunJournal(tmp_path / "am" / "journal.jsonl").read()
    assert [line["step"] for line in journal if line["kind"] == "stop-asked"] == [20]
    assert [line["step"] for line in journal if line["kind"] == "end"][-1] == 21


@pytest.mark.long
def test_masked_rows_are_found_shrunk_in_what_the_masked_baseline_left(tmp_path: Path) -> None:
    reported = reported_codes("masked-finetune", tmp_path, steps=12)
    assert {("in its output", "base-rows-shrunk"), ("in its output", "body-changed")} <= reported


def test_a_mistake_that_nothing_tells_of_is_a_failure(tmp_path: Path) -> None:
    silence = MistakeReport("padded-codes", "codes with padding", ("clips-trailing-run",))
    result = DemoResult(tmp_path, {}, {}, None, silence)
    assert result.exit_code == 1
    assert "not detected: clips-trailing-run" in [
        plain_text(line) for line in result.lines() if not isinstance(line, Table)
    ]


def test_a_demonstration_that_trains_at_this_moment_is_not_replaced(tmp_path: Path) -> None:
    _recreate_demo_folder(tmp_path / "demo")
    run = RunFolder(tmp_path / "demo" / DEMO_LANGUAGE)
    run.path.mkdir()
    with run.lock(), pytest.raises(VoxgraftError, match=r"run-locked|in use|locked"):
        _recreate_demo_folder(tmp_path / "demo")
    assert run.path.is_dir()
    _recreate_demo_folder(tmp_path / "demo")
    assert not run.path.exists()
