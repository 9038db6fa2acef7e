"""Downloading: every file from a hub with its hash, continuing where it broke off; without a network, what to put where."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fixtures import Fixtures
from tests.support.hub import FakeHub, running
from tests.support.run_folders import error_of
from voxgraft.config.commands import DownloadSettings
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import require_disk_space
from voxgraft.export.share import DOWNLOAD_SLACK_BYTES, download
from voxgraft.models import get_family

REPOSITORY = "ResembleAI/chatterbox"
CHUNK_BYTES = 10 << 20
"""What huggingface_hub takes at once: less than that is fetched again."""


def cli(words: list[str], cwd: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(cwd / "hf"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "voxgraft", *words], cwd=cwd, capture_output=True, text=True, env=environment
    )


def cli_at_terminal(words: list[str], cwd: Path, endpoint: str, answer: str) -> tuple[int, str]:
    """Exit code and output of a command on a pseudo-terminal where somebody types `answer` to its question."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(cwd / "hf"), "HF_HUB_DISABLE_XET": "1"}
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "voxgraft", *words],
            cwd=cwd,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as running_command:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())  # the terminal keeps it until it is asked for
            shown = bytearray()
            with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
                while part := os.read(ours, 65_536):
                    shown += part
        return running_command.returncode, shown.decode()
    finally:
        os.close(ours)


def reported(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def files(fixtures: Fixtures) -> dict[str, bytes]:
    """What the repository holds: a random base under the published names, and a file that nobody needs."""
    base = fixtures.base("chatterbox").folder
    held = {path.name: path.read_bytes() for path in base.iterdir() if path.is_file()}
    large = np.random.default_rng(0).bytes(3 * CHUNK_BYTES)
    return {**held, "s3gen.pt": large, "conds.pt": b"a voice", "t3_turbo.safetensors": b"another model"}


@pytest.mark.long
def test_a_base_comes_whole_with_hashes_and_goes_on_where_it_broke_off(files: dict[str, bytes], tmp_path: Path) -> None:
    with running({REPOSITORY: files}) as hub:
        hub.breaks_after = 2 * CHUNK_BYTES
        for _ in range(2):  # a client that does not continue by itself does so in the second call
            done = cli(["download", "chatterbox-multilingual", "base", "--json"], tmp_path, hub.address)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr
        assert hub.broken == 1
        assert any("s3gen.pt bytes=" in one for one in hub.asked)  # not from the beginning again
        _check_whole(done, files, tmp_path / "base")
        _check_nothing_is_fetched_twice_and_a_changed_file_is_noticed(hub, tmp_path)


def _check_whole(done: subprocess.CompletedProcess[str], files: dict[str, bytes], folder: Path) -> None:
    wanted = [file["name"] for file in FAMILIES["chatterbox"].downloads["chatterbox-multilingual"]["files"]]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*wanted, "download.json"])
    assert all((folder / name).read_bytes() == files[name] for name in wanted)
    card = json.loads((folder / "download.json").read_text(encoding="utf-8"))
    assert card["files"].keys() == set(wanted)
    assert reported(done)["licence"].startswith("MIT")
    get_family("chatterbox").files(folder)


def _check_nothing_is_fetched_twice_and_a_changed_file_is_noticed(hub: FakeHub, folder: Path) -> None:
    path = folder / "base" / "ve.pt"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    hub.asked.clear()
    done = cli(["download", "chatterbox-multilingual", "base"], folder, hub.address)
    assert done.returncode == 2
    assert "download-hash" in done.stderr
    assert "ve.pt" in done.stderr
    assert not [one for one in hub.asked if "resolve" in one]


@pytest.mark.long(fast="ve.pt")
@pytest.mark.parametrize("name", ["ve.pt", "grapheme_mtl_merged_expanded_v1.json"])
def test_a_file_that_comes_damaged_never_gets_its_name_and_the_next_call_fetches_it_again(
    files: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    small = {**files, "s3gen.pt": b"small"}
    with running({REPOSITORY: small}) as hub:
        hub.damaged = {name}
        done = cli(["download", "chatterbox-multilingual", "base"], tmp_path, hub.address)
        assert done.returncode == 2
        assert "download-hash" in done.stderr
        assert not (tmp_path / "base" / name).exists()
        hub.damaged = set()
        done = cli(["download", "chatterbox-multilingual", "base"], tmp_path, hub.address)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "base" / name).read_bytes() == files[name]


def test_a_repository_that_lacks_a_file_says_which(files: dict[str, bytes], tmp_path: Path) -> None:
    del files["s3gen.pt"]
    with running({REPOSITORY: files}) as hub:
        done = cli(["download", "chatterbox-multilingual", "base"], tmp_path, hub.address)
    assert done.returncode == 2
    assert "download-missing" in done.stderr
    assert "s3gen.pt" in done.stderr
    assert not (tmp_path / "base").exists()


@pytest.fixture
def xtts_files(fixtures: Fixtures) -> dict[str, bytes]:
    base = fixtures.base("xtts").folder
    names = [file["name"] for file in FAMILIES["xtts"].downloads["xtts"]["files"]]
    return {name: (base / name).read_bytes() if (base / name).is_file() else b"for speech" for name in names}


@pytest.mark.long
def test_nothing_of_a_non_commercial_base_is_fetched_until_its_licence_is_accepted(
    xtts_files: dict[str, bytes], tmp_path: Path
) -> None:
    facts = FAMILIES["xtts"].downloads["xtts"]
    with running({facts["repository"]: xtts_files}) as hub:
        done = cli(["download", "xtts", "base", "--json"], tmp_path, hub.address)
        assert done.returncode == 2
        error = reported(done)["error"]
        assert error["code"] == "licence-not-accepted"
        assert facts["licence"] in error["found"]
        assert "--accept-terms" in error["cure"]
        assert not [one for one in hub.asked if "resolve" in one]
        assert not (tmp_path / "base").exists()
        done = cli(["download", "xtts", "base", "--accept-terms"], tmp_path, hub.address)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "base" / "model.pth").read_bytes() == xtts_files["model.pth"]
        again = cli(["download", "xtts", "base"], tmp_path, hub.address)
        assert again.returncode == 0, "nothing is fetched, so nothing has to be accepted"


def test_somebody_at_a_terminal_is_asked_for_the_licence_before_the_download(
    xtts_files: dict[str, bytes], tmp_path: Path
) -> None:
    facts = FAMILIES["xtts"].downloads["xtts"]
    with running({facts["repository"]: xtts_files}) as hub:
        for answer, code in (("n", 2), ("y", 0)):
            returncode, shown = cli_at_terminal(["download", "xtts", "base"], tmp_path, hub.address, answer)
            assert returncode == code, shown
            assert shown.index(facts["licence"]) < shown.index("[y/N]")
            assert ("licence-not-accepted" in shown) is (answer == "n")
            assert (tmp_path / "base").exists() is (answer == "y")


def test_listing_the_files_needs_no_accepted_licence(tmp_path: Path) -> None:
    listed = download(DownloadSettings(name="xtts", folder=tmp_path / "base", list_only=True))
    assert listed.exit_code == 0
    assert listed.to_json()["licence"] == FAMILIES["xtts"].downloads["xtts"]["licence"]


def test_a_base_is_non_commercial_exactly_where_its_licence_says_so() -> None:
    for name, facts in FAMILIES.items():
        texts = [get_family(name).licence, *(base["licence"] for base in facts.downloads.values())]
        assert all(("non-commercial" in text) is facts.non_commercial for text in texts), name


def test_without_a_network_it_says_what_to_put_where(tmp_path: Path) -> None:
    (tmp_path / "models" / "indextts2").mkdir(parents=True)
    (tmp_path / "models" / "indextts2" / "bpe.model").write_bytes(b"by hand")
    done = cli(["download", "indextts2"], tmp_path, "http://127.0.0.1:9")
    assert done.returncode == 1
    for word in (
        "hub-unreachable",
        "gpt.pth",
        "facebook/w2v-bert-2.0",
        "w2v-bert-2.0/model.safetensors",
        "semantic_codec/model.safetensors",
        "s2mel.pth",
        "bilibili",
        " free",
    ):
        assert word in done.stdout
    assert "->  bpe.model" not in done.stdout  # that one is there
    listed = cli(["download", "indextts2", "--list", "--optional", "--json"], tmp_path, "http://127.0.0.1:9")
    assert listed.returncode == 0
    there = {one["place"]: one["there"] for one in reported(listed)["files"]}
    assert there["bpe.model"] is True
    assert there["gpt.pth"] is False
    assert "qwen0.6bemo4-merge/" in there
    assert not (tmp_path / "models" / "indextts2" / ".download").exists()


@pytest.mark.long
def test_without_a_network_a_base_that_is_all_there_is_fine_and_says_that_nothing_was_compared(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    for file in FAMILIES["chatterbox"].downloads["chatterbox-multilingual"]["files"]:
        (tmp_path / "base" / file["name"]).write_bytes(b"by hand")
    done = cli(["download", "chatterbox-multilingual", "base"], tmp_path, "http://127.0.0.1:9")
    assert done.returncode == 0, done.stdout
    assert "hashes were not checked" in done.stdout
    assert "by hand, under" not in done.stdout
    (tmp_path / "base" / "ve.pt").unlink()
    done = cli(["download", "chatterbox-multilingual", "base"], tmp_path, "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "Put this file into" in done.stdout


def test_room_is_asked_of_the_disk_that_the_folder_itself_is_on() -> None:
    place = Path("/dev/shm")
    own, above = (shutil.disk_usage(path).free if path.is_dir() else 0 for path in (place, place.parent))
    if abs(own - above) < 4 * DOWNLOAD_SLACK_BYTES:
        pytest.skip(f"{place} is no disk of its own here, or has the room of the one above it")
    between = (own + above) // 2
    if own < above:
        assert error_of(lambda: require_disk_space(place, between, "it")).code == "disk-too-small"
    else:
        require_disk_space(place, between, "it")


def test_every_published_base_names_the_files_that_its_family_looks_for() -> None:
    known = {"name", "what", "about_bytes", "repository", "prefix", "needed", "is_folder"}
    for facts in FAMILIES.values():
        kind = get_family(facts.name)
        for base in facts.downloads.values():
            assert all(base[key] for key in ("title", "licence", "repository"))
            places = {file.get("prefix", "") + file["name"] for file in base["files"]}
            assert places & set(kind.checkpoint_names)
            assert places & set(kind.tokenizer_names)
            assert all(file["about_bytes"] > 0 and file["what"] and set(file) <= known for file in base["files"])
