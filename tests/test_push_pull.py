"""Sharing: a graft in a zip file or from a hub speaks elsewhere as here; what is damaged or dangerous never arrives."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.fixtures import Fixtures
from tests.support.hub import running
from tests.support.run_folders import error_of
from tests.support.synthesis import codes_of, made_graft, spoken
from tests.test_export import TERMS, exported
from voxgraft.cli.app import run_cli
from voxgraft.config.commands import PullSettings, PushSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.export import share
from voxgraft.export.share import inspect_shared_folder, pull, push, require_plain_files
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family

A_SHA256 = hashlib.sha256(b"a").hexdigest()
SHORT = ("--max-seconds=1.2", "--pause=0")


@pytest.fixture(scope="module")
def base() -> Path:
    found = get_family("tiny").shipped_folder()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def grafts(tmp_path_factory: pytest.TempPathFactory, base: Path) -> dict[str, Path]:
    """Two grafts on one base, exported to be shared."""
    folder = tmp_path_factory.mktemp("shared")
    made = {}
    for seed, language in enumerate(("am", "ti"), 5):
        graft = made_graft(folder, base, language, seed)
        made[language] = folder / f"{language}-to-share"
        exported(graft, "--to=graft", f"--base={base}", f"--output={made[language]}", *TERMS)
    return made


def cli(words: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voxgraft", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.long
def test_grafts_that_were_zipped_and_pulled_speak_the_same_codes_on_a_copy_of_the_base_alone_and_side_by_side(
    grafts: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    texts = {"am": "ሰላም ለዓለም", "ti": "ሰላም ከመይ ኣለኻ", "en": "bring me the cup"}
    table = tmp_path / "texts.tsv"
    rows = [f"{text}\t{language}\t{language}" for language, text in texts.items()]
    table.write_text("\n".join(["text\tlanguage\tname", *rows]) + "\n", encoding="utf-8")
    friend = tmp_path / "friend"
    shutil.copytree(base, friend / "base")
    for language, folder in grafts.items():
        push(PushSettings(folder=folder, to=str(tmp_path / f"{language}.zip")))
        assert pull(PullSettings(source=str(tmp_path / f"{language}.zip"), folder=friend / language)).kind == "graft"
    here = codes_of(
        spoken(
            "--file", table, *(f"--graft={one}" for one in grafts.values()), *SHORT, f"--codes={tmp_path / 'a.json'}"
        )
    )
    there_words = [f"--graft={friend / language}" for language in grafts]
    there = codes_of(
        spoken("--file", table, *there_words, f"--base={friend / 'base'}", *SHORT, f"--codes={tmp_path / 'b.json'}")
    )
    assert here == there
    for language in grafts:
        words = (texts[language], f"--language={language}", f"--graft={friend / language}", f"--base={friend / 'base'}")
        alone = codes_of(spoken(*words, *SHORT, f"--codes={tmp_path / language}.json"))
        assert alone["001"] == here[language]
    bare = codes_of(spoken(texts["en"], "--language=en", f"--base={base}", *SHORT, f"--codes={tmp_path / 'en.json'}"))
    assert bare["001"] == here["en"]


@pytest.mark.long
def test_the_same_folder_always_packs_to_the_same_bytes_and_back_to_the_same_files(
    grafts: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(grafts["am"], copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    push(PushSettings(folder=grafts["am"], to=str(tmp_path / "one.zip")))
    push(PushSettings(folder=copy, to=str(tmp_path / "two.zip")))
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    pull(PullSettings(source=str(tmp_path / "one.zip"), folder=tmp_path / "back"))
    files = {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(tmp_path / "back"): path.read_bytes()
        for path in (tmp_path / "back").rglob("*")
        if path.is_file()
    }


def test_from_the_command_line_a_pulled_graft_tells_its_terms_and_how_to_use_it(
    grafts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(["push", str(grafts["am"]), "am.zip"]) == 0
    assert run_cli(["pull", "am.zip"]) == 0
    reported = capsys.readouterr().out
    assert "CC-BY-4.0" in reported
    assert "voxgraft speak" in reported
    assert load_graft(tmp_path / "am").card.language == "am"
    assert run_cli(["pull", "am.zip"]) == 2
    assert "file-exists" in capsys.readouterr().err


def test_a_zip_that_is_damaged_or_dangerous_is_refused_and_leaves_nothing(
    grafts: dict[str, Path], tmp_path: Path
) -> None:
    push(PushSettings(folder=grafts["am"], to=str(tmp_path / "good.zip")))
    good = (tmp_path / "good.zip").read_bytes()
    bad: dict[str, bytes] = {"cut": good[: len(good) // 2], "text": b"not a zip file at all"}
    flipped = bytearray(good)
    at = good.index(b"rows.safetensors") + 2000
    flipped[at] ^= 0xFF
    bad["flipped"] = bytes(flipped)
    for name, data in bad.items():
        (tmp_path / f"{name}.zip").write_bytes(data)
    for name in ("../out.txt", "/etc/out.txt", "a/../../out.txt", "..\\out.txt"):
        with zipfile.ZipFile(tmp_path / f"leads-out-{len(bad)}.zip", "w") as archive:
            archive.writestr(name, "x")
        bad[f"leads-out-{len(bad)}"] = b""
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        link = zipfile.ZipInfo("graft.json")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graft.json", b"0" * (8 << 20))
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("holiday.txt", "nothing of ours")
    names = [*bad, "link", "bomb", "empty"]
    for name in names:
        source = str(tmp_path / f"{name}.zip")
        error = error_of(lambda source=source: pull(PullSettings(source=source, folder=tmp_path / "here")))
        assert error.code in ("zip-broken", "share-nothing", "graft-mismatch", "graft-broken"), name
        assert not (tmp_path / "here").exists()
    assert not (tmp_path.parent / "out.txt").exists()
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".zip"]


STRANGERS = {
    "setup.py": b"raise SystemExit", "adapter/hook.so": b"\x7fELF", "weights.pt": b"PK", ".git/hooks/post-checkout": b"#!",
    "index.html": b"<script>", "adapter/deep/er/x.py": b"", "GRAFT.JSON.bak": b"{}",
}  # fmt: skip


def test_files_that_the_card_does_not_name_are_neither_kept_nor_sent_and_are_named(
    grafts: dict[str, Path], tmp_path: Path
) -> None:
    push(PushSettings(folder=grafts["am"], to=str(tmp_path / "good.zip")))
    own = set(zipfile.ZipFile(tmp_path / "good.zip").namelist())
    shutil.copy(tmp_path / "good.zip", tmp_path / "more.zip")
    with zipfile.ZipFile(tmp_path / "more.zip", "a") as archive:
        for name, data in {**STRANGERS, "LICENSE": b"CC0"}.items():
            archive.writestr(name, data)
    pulled = pull(PullSettings(source=str(tmp_path / "more.zip"), folder=tmp_path / "back"))
    (item,) = [item for item in pulled.findings if item.code == "share-other-files"]
    assert all(repr(name) in item.found for name in STRANGERS)
    there = {path.relative_to(tmp_path / "back").as_posix() for path in (tmp_path / "back").rglob("*")}
    assert there == own | {"LICENSE", "adapter"}
    for name in ("hooks.py", "sub/x.so"):
        (tmp_path / "back" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "back" / name).write_bytes(b"x")
    pushed = push(PushSettings(folder=tmp_path / "back", to=str(tmp_path / "again.zip")))
    assert [item.code for item in pushed.findings] == ["share-other-files"]
    assert set(zipfile.ZipFile(tmp_path / "again.zip").namelist()) == own | {"LICENSE"}


def test_a_graft_whose_card_names_a_program_is_refused(grafts: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(grafts["am"], tmp_path / "graft")
    (tmp_path / "graft" / "adapter" / "run.py").write_bytes(b"a")
    card = json.loads((tmp_path / "graft" / "graft.json").read_text(encoding="utf-8"))
    card["adapter"]["run.py"] = A_SHA256
    del card["card_sha256"]
    (tmp_path / "graft" / "graft.json").write_text(json.dumps(card), encoding="utf-8")
    share.pack_zip(tmp_path / "graft", tmp_path / "x.zip")
    error = error_of(lambda: pull(PullSettings(source=str(tmp_path / "x.zip"), folder=tmp_path / "here")))
    assert error.code == "share-broken"
    assert "run.py" in error.finding.found
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("name", ["readme.MD", "Graft.json", "ADAPTER/adapter_config.json"])
def test_names_that_are_one_file_on_some_systems_are_refused(
    grafts: dict[str, Path], tmp_path: Path, name: str
) -> None:
    push(PushSettings(folder=grafts["am"], to=str(tmp_path / "x.zip")))
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
        archive.writestr(name, "x")
    error = error_of(lambda: pull(PullSettings(source=str(tmp_path / "x.zip"), folder=tmp_path / "here")))
    assert error.code == "zip-broken"
    assert not (tmp_path / "here").exists()


def test_a_link_in_what_a_hub_sent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "README.md").symlink_to("/etc/passwd")
    assert error_of(lambda: require_plain_files(tmp_path / "in")).code == "share-broken"


@pytest.mark.long
def test_an_export_for_stock_software_is_shared_whole_and_one_changed_byte_is_noticed(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    trained = fixtures.trained_run("indextts2")
    exported(trained.path, "--to=indextts2", "--parts=merged", f"--output={tmp_path / 'out'}", *TERMS)
    push(PushSettings(folder=tmp_path / "out", to=str(tmp_path / "out.zip")))
    assert pull(PullSettings(source=str(tmp_path / "out.zip"), folder=tmp_path / "back")).kind == "export"
    for name in ("merged/gpt.pth", "merged/config.yaml", "merged/bpe.model", "load.py", "terms.json"):
        path = tmp_path / "back" / name
        good = path.read_bytes()
        data = bytearray(good)
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        error = error_of(lambda: push(PushSettings(folder=tmp_path / "back", to=str(tmp_path / "x.zip"))))
        assert error.code in ("share-broken", "terms-broken", "json-broken"), name
        assert not (tmp_path / "x.zip").exists()
        path.write_bytes(good)
    for name, sound in {"README.md": True, ".gitattributes": True, "merged/torch.py": False}.items():
        (tmp_path / "back" / name).write_text("by hand", encoding="utf-8")
        if sound:
            assert inspect_shared_folder(tmp_path / "back").language == "am"
    error = error_of(lambda: inspect_shared_folder(tmp_path / "back"))
    assert error.code == "share-broken"
    assert "torch.py" in error.finding.found


@pytest.mark.long
def test_a_pulled_export_says_that_its_loader_is_a_program(fixtures: Fixtures, tmp_path: Path) -> None:
    trained = fixtures.trained_run("indextts2")
    exported(trained.path, "--to=indextts2", "--parts=extended", f"--output={tmp_path / 'out'}", *TERMS)
    push(PushSettings(folder=tmp_path / "out", to=str(tmp_path / "out.zip")))
    pulled = pull(PullSettings(source=str(tmp_path / "out.zip"), folder=tmp_path / "back"))
    assert [item.code for item in pulled.findings] == ["share-program"]
    assert "load.py" in pulled.findings[0].found


@pytest.mark.parametrize(
    "card",
    [
        {},
        {"checkpoints": {"extended": "x"}},
        {"checkpoints": {"extended": {"file": "x"}}, "files": {}},
        {"checkpoints": {"extended": {"file": "x"}}, "files": {"extended/x": 7}},
        {"checkpoints": {"extended": {"file": "\0"}}, "files": {"extended/\0": "0" * 64}},
        {"checkpoints": {"a" * 300: {"file": "x"}}, "files": {"a" * 300 + "/x": "0" * 64}},
        {"checkpoints": {}, "files": {"a.txt": A_SHA256}},
        {"checkpoints": {"extended": {"file": "x"}}, "files": {"a.txt": A_SHA256}},
        {"checkpoints": {"extended": {"file": "../a.txt"}}, "files": {"a.txt": A_SHA256}},
        {"language": 7, "checkpoints": {"x": {"file": "a.txt"}}, "drop_in": True, "files": {"a.txt": A_SHA256}},
        {"family": None, "checkpoints": {"x": {"file": "a.txt"}}, "drop_in": True, "files": {"a.txt": A_SHA256}},
    ],
)
def test_an_export_whose_card_is_not_sound_is_refused_whatever_stands_in_it(
    card: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    whole = {"format": "voxgraft-export-1", "language": "am", "family": "tiny", **card}
    (tmp_path / "export.json").write_text(json.dumps(whole), encoding="utf-8")
    assert error_of(lambda: inspect_shared_folder(tmp_path)).code == "share-broken"
    sound = {"checkpoints": {"x": {"file": "a.txt"}}, "drop_in": True, "files": {"a.txt": A_SHA256}}
    whole = {"format": "voxgraft-export-1", "language": "am", "family": "tiny", **sound}
    (tmp_path / "export.json").write_text(json.dumps(whole), encoding="utf-8")
    assert inspect_shared_folder(tmp_path).kind == "export"


def test_every_damaged_zip_unpacks_or_is_an_error_of_ours(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "good.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graft.json", '{"a": 1}' * 200)
        archive.writestr("d/x.bin", bytes(range(256)) * 20)
    good, refused = (tmp_path / "good.zip").read_bytes(), 0
    for seed in range(400):
        draw = random.Random(seed)
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / "bad.zip").write_bytes(bytes(data))
        try:
            share.unpack_zip(tmp_path / "bad.zip", tmp_path / "out")
        except VoxgraftError:
            refused += 1
            assert not (tmp_path / "out").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert refused > 300
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip", "good.zip"]


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_way_of_packing_that_we_do_not_write_is_not_read(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.writestr("a.txt", "hello " * 5000)
    assert error_of(lambda: share.unpack_zip(tmp_path / "x.zip", tmp_path / "out")).code == "zip-broken"
    assert not (tmp_path / "out").exists()


def test_a_graft_of_a_non_commercial_base_is_not_even_zipped_before_its_licence_is_accepted(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    graft = Path(shutil.copytree(fixtures.whole_run("xtts").folder.graft, tmp_path / "graft"))
    settings = PushSettings(folder=graft, to=str(tmp_path / "am.zip"))
    assert error_of(lambda: push(settings)).code == "push-terms"
    assert not (tmp_path / "am.zip").exists()
    terms = share.ShareTerms(get_family("xtts").licence, True, None, None)
    (graft / share.TERMS_NAME).write_text(json.dumps(terms.to_json()), encoding="utf-8")
    assert push(settings).is_sent


@pytest.mark.long
def test_nothing_is_published_without_its_terms(fixtures: Fixtures, tmp_path: Path) -> None:
    trained = fixtures.trained_run("chatterbox")
    exported(trained.path, "--to=graft", f"--output={tmp_path / 'open'}")
    error = error_of(lambda: push(PushSettings(folder=tmp_path / "open", to="somebody/amharic")))
    assert error.code == "push-terms"
    warned = push(PushSettings(folder=tmp_path / "open", to=str(tmp_path / "open.zip")))
    assert [item.code for item in warned.findings] == ["terms-not-stated"]
    assert (
        error_of(lambda: push(PushSettings(folder=trained.path, to=str(tmp_path / "run.zip")))).code == "share-nothing"
    )
    assert error_of(lambda: push(PushSettings(folder=tmp_path / "open", to="nowhere"))).code == "hub-name"


@pytest.mark.long
def test_without_a_network_the_hub_is_an_error_that_says_what_to_do_instead(
    grafts: dict[str, Path], tmp_path: Path
) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(tmp_path / "hf")}
    for words in (["push", str(grafts["am"]), "somebody/amharic"], ["pull", "somebody/amharic"]):
        done = cli(words, tmp_path, **nowhere)
        assert done.returncode == 2, done.stdout
        assert "hub-unreachable" in done.stderr
        assert "without a network" in done.stderr.lower()
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "amharic").exists()


@pytest.mark.long
def test_a_graft_is_pulled_from_a_hub_whole(grafts: dict[str, Path], tmp_path: Path) -> None:
    files = {
        path.relative_to(grafts["am"]).as_posix(): path.read_bytes()
        for path in grafts["am"].rglob("*")
        if path.is_file()
    }
    with running({"somebody/amharic": files}) as hub:
        environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        done = cli(["pull", "somebody/amharic", "here"], tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        missing = cli(["pull", "somebody/nothing"], tmp_path, **environment)
        assert missing.returncode == 2
        assert "hub-refused" in missing.stderr
    assert load_graft(tmp_path / "here").card == load_graft(grafts["am"]).card
    assert json.loads((tmp_path / "here" / "terms.json").read_text(encoding="utf-8"))["accepted"] is True
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(
        path.name for path in grafts["am"].iterdir()
    )


def test_a_graft_is_pushed_to_a_hub_with_a_word_of_who_one_is_and_comes_back_byte_for_byte(
    grafts: dict[str, Path], tmp_path: Path
) -> None:
    with running({}) as hub:
        environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        words = ["push", str(grafts["am"]), "somebody/amharic"]
        stranger = cli(words, tmp_path, **environment)
        assert stranger.returncode == 2
        assert "hub-refused" in stranger.stderr
        assert "hf auth login" in stranger.stderr
        assert hub.repositories == {}
        done = cli(words, tmp_path, **environment, HF_TOKEN=hub.token)
        assert done.returncode == 0, done.stderr
        assert f"{hub.address}/somebody/amharic/commit/" in done.stdout
        assert hub.private == {"somebody/amharic": True}
        pulled = cli(["pull", "somebody/amharic", "back"], tmp_path, **environment)
        assert pulled.returncode == 0, pulled.stderr
    sent, back = (
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (grafts["am"], tmp_path / "back")
    )
    assert sent == back


def test_a_hub_that_names_files_outside_of_the_folder_is_refused(grafts: dict[str, Path], tmp_path: Path) -> None:
    with running({"somebody/amharic": {"../../outside.txt": b"x", "README.md": b"x"}}) as hub:
        environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        done = cli(["pull", "somebody/amharic", "inner/here"], tmp_path, **environment)
    assert done.returncode == 2
    assert "hub-refused" in done.stderr
    assert not list(tmp_path.rglob("outside.txt"))
    assert not (tmp_path / "inner" / "here").exists()


def test_settings_of_a_run_are_not_taken_from_others(tmp_path: Path, fixtures: Fixtures) -> None:
    graft = tmp_path / "graft"
    shutil.copytree(fixtures.trained_run("chatterbox").path / "graft", graft)
    (graft / "notes").mkdir()
    for place in ("run.yaml", "notes/Run.yaml"):
        (graft / place).write_text("train: {recognizer: 'command:touch owned'}", encoding="utf-8")
        shutil.make_archive(str(tmp_path / "given"), "zip", graft)
        error = error_of(lambda: pull(PullSettings(source=str(tmp_path / "given.zip"), folder=tmp_path / "back")))
        assert error.code == "share-broken"
        assert place in error.finding.found
        assert not (tmp_path / "back").exists()
        (graft / place).unlink()
