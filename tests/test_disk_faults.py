"""A disk that fails, a limit, a permission: an ordinary error with a code, nothing damaged, and the next run is whole."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.campaigns.disk_faults import FILE_LIMITS, SITE
from tests.support.campaigns.failing_system import VARIABLE, Fault
from voxgraft.core.errors import FileError, WriteError
from voxgraft.core.files import build_write_error, convert_system_error

ROOT = Path(__file__).resolve().parent.parent
RATE = 16_000
CODES = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EFBIG: "file-size-limit",
    errno.EIO: "disk-fault",
    errno.ESTALE: "disk-fault",
    errno.EROFS: "no-permission",
    errno.EACCES: "no-permission",
    errno.EPERM: "no-permission",
    errno.EMFILE: "system-limit",
    errno.ENFILE: "system-limit",
    errno.ENOLCK: "system-limit",
    errno.ENOMEM: "memory-full",
    errno.ENAMETOOLONG: "file-name",
    errno.ELOOP: "file-name",
    errno.ENOTDIR: "not-a-file",
}


@pytest.mark.parametrize("number", CODES, ids=lambda number: errno.errorcode[number])
def test_what_the_system_refuses_has_a_code_a_place_and_a_cure(number: int, tmp_path: Path) -> None:
    found = convert_system_error(OSError(number, os.strerror(number), str(tmp_path / "x")))
    assert found is not None
    assert (found.code, found.finding.where) == (CODES[number], str(tmp_path / "x"))
    assert found.finding.cure
    written = build_write_error(OSError(number, os.strerror(number)), tmp_path / "x")
    assert written.code in (CODES[number], "file-unwritable")


def test_errors_of_libraries_that_hide_the_systems_are_known_and_bugs_stay_bugs() -> None:
    wrapped = RuntimeError("cannot save")
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    rust = RuntimeError("I/O error: No space left on device (os error 28)")
    for error in (wrapped, rust):
        found = convert_system_error(error)
        assert found is not None
        assert found.code == "disk-full"
    memory = convert_system_error(MemoryError())
    assert memory is not None
    assert memory.code == "memory-full"
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "x")
    assert [convert_system_error(one) for one in (RuntimeError("x"), KeyError("x"), missing)] == [None, None, None]


def test_an_error_of_a_worker_process_arrives_as_it_was_raised() -> None:
    error = WriteError("disk-full", "no room", where="a/b", cure="buy a disk.")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.finding, str(again)) == (WriteError, error.finding, str(error))
    assert isinstance(again, FileError)


def cli(folder: Path, *words: str, fault: Fault | None = None, limit: int | None = None) -> tuple[int, str]:
    """Exit code and standard error of a real process, on a disk that fails or with a limit on the size of files."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)])}
    if fault is not None:
        environment[VARIABLE] = fault.to_text()
    start = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))" if limit else ""
    code = f"{start}\nfrom voxgraft.cli.app import main\nraise SystemExit(main())"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two recordings of three sentences each."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        loud = np.repeat([0.001, *([0.2, 0.001] * 3)], RATE)
        noise = np.random.default_rng(number).normal(0, 1, len(loud)) * loud
        soundfile.write(folder / f"talk{number}.wav", noise.astype(np.float32), RATE)
        blocks = [f"{at}\n00:00:{2 * at + 1:02d},000 --> 00:00:{2 * at + 2:02d},000\nሰላም ለዓለም።\n" for at in range(3)]
        (folder / f"talk{number}.srt").write_text("\n".join(blocks), encoding="utf-8")
    return folder


def importing(dataset: str, workers: int = 1) -> tuple[str, ...]:
    return ("data", "import", dataset, "in", "--language=am", f"--workers={workers}")


def clips_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "clips").rglob("*.flac"))}


@pytest.mark.long(fast="write-3-False-1")
@pytest.mark.parametrize(
    ("operation", "number", "lasting", "workers"),
    [
        ("write", 3, False, 1),
        ("write", 3, True, 1),
        ("write", 4, False, 2),
        ("fsync", 4, False, 1),
        ("mkdir", 3, True, 1),
    ],
)
def test_a_failed_write_of_a_clip_is_an_error_and_the_next_import_is_whole(
    sources: Path, tmp_path: Path, operation: str, number: int, lasting: bool, workers: int
) -> None:
    assert cli(tmp_path, *importing("good"))[0] == 0
    fault = Fault(str(tmp_path / "set"), str(tmp_path / "count"), operation, number, errno.ENOSPC, lasting)
    code, said = cli(tmp_path, *importing("set", workers), fault=fault)
    assert (tmp_path / "count").stat().st_size >= number
    assert code == 2
    assert "error disk-full" in said
    assert "Traceback" not in said
    assert cli(tmp_path, *importing("set"))[0] == 0
    assert clips_of(tmp_path / "set") == clips_of(tmp_path / "good")


def test_a_limit_that_the_kernel_enforces_is_an_error_of_its_own(sources: Path, tmp_path: Path) -> None:
    code, said = cli(tmp_path, *importing("set"), limit=FILE_LIMITS[1])
    assert code == 2
    assert "error file-size-limit" in said
    assert not clips_of(tmp_path / "set")


@pytest.mark.long(fast="*checksums")
@pytest.mark.parametrize("has_sums", [True, False], ids=["journal with checksums", "journal of an older version"])
def test_damaged_and_missing_clips_are_written_again_by_the_next_import(
    sources: Path, tmp_path: Path, has_sums: bool
) -> None:
    assert cli(tmp_path, *importing("set"))[0] == 0
    good = clips_of(tmp_path / "set")
    first, second, third = sorted((tmp_path / "set" / "clips").rglob("*.flac"))[:3]
    first.write_bytes(first.read_bytes()[:-2_000])
    second.unlink()
    if has_sums:
        third.write_bytes(third.read_bytes()[:-9] + b"\0" * 9)
    else:
        for path in (tmp_path / "set" / "imports").glob("*.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(line for line in lines if not line.startswith('{"sum"')), encoding="utf-8")
    manifest = (tmp_path / "set" / "manifest.jsonl").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "voxgraft", *importing("set"), "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    reported = [problem for problem in json.loads(done.stdout)["problems"] if problem["code"] == "clip-remade"]
    assert len(reported) == 1
    assert f"{3 if has_sums else 2} clip files missing or damaged" in reported[0]["found"]
    assert clips_of(tmp_path / "set") == good
    assert (tmp_path / "set" / "manifest.jsonl").read_bytes() == manifest


def test_a_full_standard_output_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    for words in (["show", "tiny", "--json"], ["show", "nowhere"]):
        with Path("/dev/full").open("wb") as full:
            command = [sys.executable, "-m", "voxgraft", *words]
            done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="NOT TESTED: this system has no /dev/full")
def test_a_full_disk_while_a_folder_is_copied_is_named_and_not_shown_as_a_list(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "a").write_bytes(b"x" * 100_000)
    (target / "a").symlink_to("/dev/full")
    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(source, target, dirs_exist_ok=True)
    found = build_write_error(caught.value, target)
    assert found.code == "disk-full"
    assert found.finding.found == "no disk space to write target"
