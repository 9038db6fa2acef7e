"""Companions: real processes that are really killed and really hang; a clear error each time, no orphan, and the next call works."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.companion_vocoder import CompanionVocoder
from tests.support.fixtures import Fixtures
from tests.support.run_folders import error_of
from voxgraft.cli.app import run_cli
from voxgraft.companions.environments import COMPANIONS_VARIABLE, WORKER_PATH, CompanionProcess, find_environment
from voxgraft.core.families import FAMILIES
from voxgraft.models import get_family
from voxgraft.models.base import REFERENCE_AUDIO, Clip
from voxgraft.models.chatterbox.model import read_built_in_voice

WORKER = Path(__file__).parent / "support" / "workers" / "companion.py"
PATIENCE_SECONDS = 20


def companion(*arguments: str, **changed: float) -> CompanionProcess:
    return CompanionProcess("fake", [sys.executable, str(WORKER), *arguments], **changed)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(*pids: int) -> bool:
    """Whether processes end, given some time."""
    until = time.monotonic() + PATIENCE_SECONDS
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def signed(path: Path) -> list[int]:
    """The processes that a waiting worker names."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if path.is_file() and len(words := path.read_text().split()) == 2:
            return [int(word) for word in words]
        time.sleep(0.02)
    raise AssertionError("the worker never began")


def test_arrays_come_back_bit_for_bit_whatever_the_worker_prints() -> None:
    worker = companion()
    sent: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(300_000, dtype=np.float32).reshape(300, 1000),
        "b": np.array([[-1], [2**40]], dtype=np.int64),
    }
    for text in ("ሰላም", "again"):
        answer = worker.ask("echo", sent, text=text)
        assert answer["text"] == text
        assert np.array_equal(answer["a"], sent["a"] * 2)
        assert np.array_equal(answer["b"], sent["b"] * 2)
    pid = worker.pid
    assert pid == answer["pid"]
    worker.close()
    assert pid is not None
    assert gone(pid)


def test_an_error_of_the_stock_program_is_reported_and_the_same_worker_goes_on() -> None:
    worker = companion()
    error = error_of(lambda: worker.ask("fail"))
    assert error.code == "companion-failed"
    assert "ValueError: the original program cannot do that" in error.finding.found
    pid = worker.pid
    assert worker.ask("echo")["pid"] == pid
    worker.close()


def test_a_worker_that_is_killed_in_the_middle_is_a_clear_error_and_the_next_call_works(tmp_path: Path) -> None:
    worker, sign = companion(), tmp_path / "sign"

    def kill() -> None:
        os.kill(signed(sign)[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    error = error_of(lambda: worker.ask("wait", sign=str(sign)))
    assert error.code == "companion-died"
    assert "SIGKILL" in error.finding.found
    assert "try again" in error.finding.cure
    assert gone(*signed(sign))  # its child too
    assert worker.ask("echo", text="well again")["text"] == "well again"
    worker.close()


def test_a_worker_that_crashes_leaves_its_last_words_in_the_error() -> None:
    worker = companion()
    error = error_of(lambda: worker.ask("die"))
    assert error.code == "companion-died"
    assert "SIGSEGV" in error.finding.found
    assert "these are its last words" in error.finding.where
    assert worker.pid is None
    assert worker.ask("echo")["pid"]
    worker.close()


@pytest.mark.long
def test_a_worker_that_hangs_is_ended_with_its_children_and_the_next_call_works(tmp_path: Path) -> None:
    worker, sign = companion(), tmp_path / "sign"
    worker.hello()
    worker.answer_seconds = 1.5
    error = error_of(lambda: worker.ask("wait", sign=str(sign)))
    assert error.code == "companion-hung"
    assert "1.5 seconds" in error.finding.found
    assert gone(*signed(sign))
    worker.answer_seconds = 60
    assert worker.ask("echo", text="next")["text"] == "next"
    worker.close()


def test_a_worker_that_died_while_nobody_asked_is_started_again() -> None:
    worker = companion()
    first = worker.ask("echo")["pid"]
    os.kill(first, signal.SIGKILL)
    assert worker._process is not None
    worker._process.wait(PATIENCE_SECONDS)  # a process with threads looks gone a moment before it can be told so
    assert worker.ask("echo")["pid"] != first
    worker.close()


@pytest.mark.parametrize(("how", "code"), [("broken", "companion-died"), ("noise", "companion-broken")])
def test_an_environment_that_cannot_start_says_why(how: str, code: str) -> None:
    worker = companion(how)
    error = error_of(worker.hello)
    assert error.code == code
    assert worker.pid is None
    if how == "broken":
        assert "No module named 'chatterbox'" in error.finding.where
    assert error_of(CompanionProcess("fake", ["/nowhere/python"]).hello).code == "companion-broken"


@pytest.mark.parametrize("how", ["killed", "at its end"])
def test_no_worker_outlives_the_program_that_started_it(how: str, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    ask = (
        f"worker.ask('wait', sign={str(sign)!r})"
        if how == "killed"
        else f"open({str(sign)!r}, 'w').write(f\"{{worker.ask('echo')['pid']}} 1\")"
    )
    code = f"import sys; from voxgraft.companions.environments import CompanionProcess; worker = CompanionProcess('fake', [sys.executable, {str(WORKER)!r}]); {ask}"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=WORKER.parent.parent)
    own = signed(sign)[0]
    if how == "killed":
        parent.kill()
    assert parent.wait(PATIENCE_SECONDS) == (-signal.SIGKILL if how == "killed" else 0)
    assert gone(*(signed(sign) if how == "killed" else [own]))  # what the worker had started goes too


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "companions"
    monkeypatch.setenv(COMPANIONS_VARIABLE, str(folder))
    return folder


def make_fake(places: Path) -> None:
    card = {
        "format": "voxgraft-companion-1",
        "name": "chatterbox",
        "python": sys.executable,
        "worker": str(WORKER),
        "arguments": [],
    }
    (places / "chatterbox").mkdir(parents=True)
    (places / "chatterbox" / "companion.json").write_text(json.dumps(card))


def test_the_companion_sounds_like_the_voice_that_is_asked_for(
    fixtures: Fixtures, places: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for path in fixtures.trained_run("chatterbox").base.iterdir():
        (base / path.name).hardlink_to(path)
    assert CompanionVocoder.find(base) is None  # no environment
    make_fake(places)
    vocoder = CompanionVocoder.find(base)
    assert vocoder is not None
    nobody = Clip()
    someone = Clip(voice={REFERENCE_AUDIO: np.zeros(24_000, dtype=np.float32)})
    codes = list(range(10))
    assert _pitch(vocoder.sound(codes, someone), 10) == pytest.approx(440, rel=0.02)
    vocoder.companion.close()
    _write_conditions(base / "conds.pt")
    vocoder = CompanionVocoder.find(base)
    assert vocoder is not None
    assert _pitch(vocoder.sound(codes, nobody), 10) == pytest.approx(220, rel=0.02)
    vocoder.companion.close()


def _write_conditions(path: Path) -> None:
    part = {
        "speaker_emb": torch.nn.functional.normalize(torch.rand(1, 256)),
        "clap_emb": None,
        "cond_prompt_speech_tokens": torch.randint(0, 6561, (1, 150)),
        "cond_prompt_speech_emb": None,
        "emotion_adv": torch.full((1, 1, 1), 0.5),
    }
    gen = {
        "prompt_token": torch.zeros(1, 4, dtype=torch.long),
        "embedding": torch.zeros(1, 192),
        "prompt_feat_len": None,
    }
    torch.save({"t3": part, "gen": gen}, path)


def _pitch(samples: NDArray[np.float32], num_codes: int) -> float:
    assert len(samples) == 960 * num_codes
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 1 << 18))
    return float(spectrum.argmax() * 24_000 / (1 << 18))


def test_the_built_in_voice_is_read_without_running_the_pickle(tmp_path: Path) -> None:
    _write_conditions(tmp_path / "conds.pt")
    clip = read_built_in_voice(tmp_path / "conds.pt")
    assert clip.voice["speaker"].shape == (256,)
    assert clip.voice["prompt"].shape == (150,)
    condition = get_family("chatterbox").condition(clip)
    assert condition.speaker.dtype == np.float32
    (tmp_path / "conds.pt").write_bytes(b"PK\x03\x04 cut off")
    assert error_of(lambda: read_built_in_voice(tmp_path / "conds.pt")).finding.cure


def test_an_environment_of_somebody_else_is_taken_only_if_it_answers(
    places: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    (empty / "bin").mkdir(parents=True)
    (empty / "bin" / "python").symlink_to(sys.executable)
    assert run_cli(["companion", "chatterbox", "--environment", str(empty)]) == 2  # has no chatterbox-tts
    assert "companion-died" in capsys.readouterr().err
    assert find_environment("chatterbox") is None
    assert run_cli(["companion", "indextts2"]) == 2
    assert "--checkout" in capsys.readouterr().err
    assert CompanionVocoder.find(tmp_path) is None


@pytest.mark.long
def test_an_installation_that_fails_says_what_pip_said_and_is_not_taken_for_one(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["companion", "chatterbox", "--pip-flags=--no-such-flag"]
    assert run_cli(words) == 2
    reported = capsys.readouterr().err
    assert "companion-install" in reported
    assert "no such option" in reported
    assert find_environment("chatterbox") is None
    assert (places / "chatterbox" / "install.log").is_file()


@pytest.mark.parametrize("words", [[], ["--environment", sys.prefix], ["--force"]])
def test_a_place_where_nothing_can_be_made_is_a_clear_error(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(COMPANIONS_VARIABLE, str(tmp_path / "file" / "x"))
    assert run_cli(["companion", "chatterbox", *words]) == 2
    assert "file-unwritable" in capsys.readouterr().err


def test_a_broken_card_is_reported_with_its_cure_and_the_cure_works(
    places: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (places / "chatterbox").mkdir(parents=True)
    (places / "chatterbox" / "companion.json").write_text("[")
    assert run_cli(["companion", "chatterbox"]) == 2
    reported = capsys.readouterr().err
    assert "companion-broken" in reported
    assert "--force" in reported
    assert run_cli(["companion", "chatterbox", "--force", "--python", "/bin/false"]) == 2
    assert "companion-install" in capsys.readouterr().err  # the card did not stand in the way
    assert find_environment("chatterbox") is None


def test_a_worker_answers_a_program_that_has_more_than_a_thousand_files_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1400:
        pytest.skip(f"this system lets a program open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    held: list[int] = []
    worker = companion()
    try:
        while not held or held[-1] < 1100:
            held.append(os.open(os.devnull, os.O_RDONLY))
        assert worker.ask("echo", text="ሰላም")["text"] == "ሰላም"
    finally:
        worker.close()
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_made_companion_is_shown_with_its_packages(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_fake(places)
    assert run_cli(["companion", "chatterbox", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["versions"] == {"fake": "1"}
    assert reported["made"] is False


def test_families_state_nothing_about_their_companion_that_is_not_read() -> None:
    recipes = [facts.companion for facts in FAMILIES.values() if facts.companion]
    assert recipes
    assert all({"title", "steps"} <= set(recipe) for recipe in recipes)
    assert all(set(recipe) <= {"title", "steps", "removed", "checkout_package"} for recipe in recipes)


def test_the_worker_loads_the_original_program_through_the_familys_own_file(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "indextts").mkdir()
    (tmp_path / "indextts" / "infer_v2.py").write_text("")
    worker = CompanionProcess("indextts2", [sys.executable, str(WORKER_PATH), "indextts2", str(tmp_path)])
    try:
        assert set(worker.hello()["versions"]) == {"torch", "numpy", "transformers"}
        assert worker.hello()["program"] == "indextts2"
    finally:
        worker.close()
    (tmp_path / "indextts" / "infer_v2.py").unlink()
    broken = CompanionProcess("indextts2", [sys.executable, str(WORKER_PATH), "indextts2", str(tmp_path)])
    assert error_of(broken.hello).code.startswith("companion-")
