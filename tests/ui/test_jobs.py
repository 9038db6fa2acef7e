"""Jobs are processes of their own: they outlive who started them, and their folders tell everything about them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from voxgraft.core.errors import ConfigError, FileError
from voxgraft.core.files import FileLock, write_json
from voxgraft.core.run import process_start_time
from voxgraft.ui import jobs as running
from voxgraft.ui.jobs import PASSWORD_VARIABLE, ProjectJobs, UiJob

WAIT_SECONDS = 120.0


def until(found: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not found():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def long_work(folder: Path) -> list[str]:
    """The words of a command that has far more to do than any test waits for."""
    (folder / "long.txt").write_text("1987 ዓ.ም. 25 % እና 3,000 ብር\n" * 1_000_000, encoding="utf-8")
    return ["data", "text", "--language", "am", "--texts", "long.txt"]


def ended(job: UiJob) -> UiJob:
    until(lambda: not job.alive)
    return job


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_a_job_ends_with_its_exit_code_its_result_and_what_it_told(project: Path, tmp_path: Path) -> None:
    jobs = ProjectJobs(project)
    fine = ended(jobs.start("data text", ["data", "text", "ሰላም 3", "--language", "am", "--json"], tmp_path))
    assert (fine.state, fine.exit_code) == ("done", 0)
    assert fine.read("out.txt")
    refused = ended(jobs.start("show", ["show", "nowhere"], tmp_path))
    assert (refused.state, refused.exit_code) == ("failed", 2)
    assert "file-missing" in refused.tail()
    assert [job.number for job in jobs.all()] == [2, 1]
    assert jobs.latest("data text") == fine
    assert jobs.newest_by_command() == {"show": refused, "data text": fine}


def test_a_job_goes_on_when_the_server_that_started_it_is_killed_and_another_finds_it(
    project: Path, tmp_path: Path
) -> None:
    words = [*long_work(tmp_path), "--json"]
    code = (
        "import sys, time; from pathlib import Path; from voxgraft.ui.jobs import ProjectJobs\n"
        f"ProjectJobs(Path({str(project)!r})).start('data text', {words!r}, Path({str(tmp_path)!r}))\n"
        "print('started', flush=True); time.sleep(600)"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"started\n"
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    job = ProjectJobs(project).latest("data text")
    assert job is not None
    assert job.state == "running"
    until(lambda: (job.folder / "pid.json").exists())
    with pytest.raises(ConfigError) as caught:
        ProjectJobs(project).start("data text", words, tmp_path)
    assert caught.value.code == "ui-job-running"
    job.stop()
    assert ended(job).exit_code is not None
    assert UiJob(job.folder).state == "stopped"


@pytest.mark.long
def test_a_stopped_job_ends_as_ctrl_c_ends_it(project: Path, tmp_path: Path) -> None:
    job = ProjectJobs(project).start("data text", long_work(tmp_path), tmp_path)
    until(lambda: (job.folder / "pid.json").exists())
    time.sleep(1.5)  # past the start of the interpreter, which dies of the signal in its own words
    job.stop()
    assert ended(job).state == "stopped"
    job.stop()


def test_a_stop_that_comes_before_the_verb_has_started_is_not_forgotten(project: Path, tmp_path: Path) -> None:
    job = ProjectJobs(project).start("data text", long_work(tmp_path), tmp_path)
    job.stop()
    assert ended(job).state == "stopped"


def test_a_verb_that_is_killed_by_nobody_who_pressed_stop_is_reported_as_lost(project: Path, tmp_path: Path) -> None:
    job = ProjectJobs(project).start("data text", long_work(tmp_path), tmp_path)
    until(lambda: (job.folder / "pid.json").exists())
    os.kill(job.read("pid.json")["pid"], signal.SIGKILL)
    assert (ended(job).exit_code, job.state) == (-signal.SIGKILL, "lost")


def test_a_third_stop_ends_what_hears_no_other(project: Path, tmp_path: Path) -> None:
    job = ProjectJobs(project).start("data text", long_work(tmp_path), tmp_path)
    until(lambda: (job.folder / "pid.json").exists())
    pid = job.read("pid.json")["pid"]
    os.kill(pid, signal.SIGSTOP)
    # A process that has not stopped yet, and has no handler yet, would die of the next signal.
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    for _ in range(2):
        job.stop()
    assert job.alive
    job.stop()
    assert (ended(job).state, job.exit_code) == ("stopped", None)


@pytest.mark.parametrize("change", ["machine", "starts"])
def test_a_process_that_only_has_the_number_of_a_job_is_never_stopped(
    project: Path, tmp_path: Path, change: str
) -> None:
    job = ProjectJobs(project).start("data text", long_work(tmp_path), tmp_path)
    until(lambda: (job.folder / "pid.json").exists())
    own = job.read("pid.json")
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    forged = {**own, "pid": stranger.pid, "group": stranger.pid, "starts": {str(stranger.pid): "1"}}
    if change == "machine":
        forged |= {"machine": "another", "starts": {str(stranger.pid): process_start_time(stranger.pid)}}
    try:
        write_json(job.folder / "pid.json", forged, overwrite=True)
        for _ in range(3):
            with pytest.raises(ConfigError) as caught:
                job.stop()
            assert caught.value.code == "ui-job-elsewhere"
        assert stranger.poll() is None
        assert job.alive
    finally:
        stranger.kill()
        stranger.wait()
        write_json(job.folder / "pid.json", own, overwrite=True)
        job.stop()
        ended(job)


def test_of_many_starts_at_once_one_is_a_job(project: Path, tmp_path: Path) -> None:
    words = long_work(tmp_path)

    def start(_: int) -> str:
        try:
            return ProjectJobs(project).start("data text", words, tmp_path).folder.name
        except ConfigError as error:
            return error.code

    with ThreadPoolExecutor(6) as clicks:
        found = sorted(clicks.map(start, range(6)))
    job = ProjectJobs(project).latest("data text")
    assert job is not None
    job.stop()
    ended(job)
    assert found == ["0001-data-text", *["ui-job-running"] * 5]


def test_a_job_is_seen_only_once_it_is_locked(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody holds would look, to another process, like one that is lost."""
    seen: list[list[bool]] = []
    lock, launch = running._lock_exclusive, running._launch_runner

    def locked(opened: FileLock, folder: Path) -> None:
        seen.append([job.alive for job in ProjectJobs(project).all()])
        lock(opened, folder)

    def launched(job: UiJob, descriptor: int) -> None:
        seen.append([found.alive for found in ProjectJobs(project).all()])
        launch(job, descriptor)

    monkeypatch.setattr(running, "_lock_exclusive", locked)
    monkeypatch.setattr(running, "_launch_runner", launched)
    (project / "jobs" / ".new").mkdir(parents=True)  # of a server that was killed just before
    (project / "jobs" / ".new" / "job.json").write_text("{}")
    job = ProjectJobs(project).start("data text", ["data", "text", "ሰላም", "--language", "am"], tmp_path)
    assert seen == [[], [], [True]]
    assert ended(job).state == "done"


def test_a_job_for_which_there_is_no_process_is_reported_and_leaves_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", no_process)
        with pytest.raises(FileError) as refused:
            ProjectJobs(project).start("data text", ["data", "text"], tmp_path)
    assert refused.value.code == "ui-job-unstarted"
    assert ProjectJobs(project).all() == []


@pytest.mark.parametrize("in_the_way", ["file", "link"])
def test_what_lies_in_the_way_of_a_job_does_not_stop_it(project: Path, tmp_path: Path, in_the_way: str) -> None:
    (project / "jobs").mkdir()
    (project / "jobs" / "0004-train").write_text("not a job")
    hidden = project / "jobs" / ".new"
    hidden.write_text("") if in_the_way == "file" else hidden.symlink_to(tmp_path / "nowhere")
    job = ProjectJobs(project).start("data text", ["data", "text", "ሰላም", "--language", "am"], tmp_path)
    assert job.number == 5
    assert ended(job).state == "done"


def test_a_job_that_was_killed_with_everything_is_reported_as_lost(project: Path, tmp_path: Path) -> None:
    job = ProjectJobs(project).start("data text", long_work(tmp_path), tmp_path)
    until(lambda: (job.folder / "pid.json").exists())
    os.killpg(job.read("pid.json")["group"], signal.SIGKILL)
    assert ended(job).state == "lost"
    assert job.exit_code is None


def test_a_job_does_not_inherit_the_password(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "correct horse")
    job = ProjectJobs(project).start("data text", long_work(tmp_path), tmp_path)
    until(lambda: (job.folder / "pid.json").exists())
    environment = Path(f"/proc/{job.read('pid.json')['pid']}/environ")
    if not environment.exists():
        pytest.skip("NOT TESTED: no /proc here")
    until(lambda: b"PYTHONUTF8" in environment.read_bytes())
    assert b"correct horse" not in environment.read_bytes()
    job.stop()
    ended(job)


def test_a_module_in_the_folder_of_the_visitor_is_not_run(project: Path, tmp_path: Path) -> None:
    for name in ("voxgraft.py", "json.py", "numpy.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    job = ended(ProjectJobs(project).start("data text", ["data", "text", "ሰላም", "--language", "am"], tmp_path))
    assert job.state == "done"
    assert not (tmp_path / "executed").exists()


def test_what_is_no_job_is_passed_over(project: Path) -> None:
    (project / "jobs" / "notes").mkdir(parents=True)
    (project / "jobs" / "0007-train").mkdir()
    (project / "jobs" / "0007-train" / "job.json").write_text("{broken")
    found = ProjectJobs(project).all()
    assert [job.number for job in found] == [7]
    assert (found[0].state, found[0].verb) == ("lost", "")
