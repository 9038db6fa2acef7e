"""The browser names files inside the allowed folders only, and what it uploads lands there under a harmless name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxgraft.core.errors import FileError
from voxgraft.ui.files import DATASET_PATHS, PROJECT_PATHS, TEXT_PATHS, PathFilter, Roots, move_uploads, safe_name


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    for name in ("open", "other", "secret"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret" / "key.txt").write_text("secret")
    (tmp_path / "open" / "a.txt").write_text("a")
    return Roots.of((tmp_path / "open", tmp_path / "other"))


@pytest.mark.parametrize(
    "typed",
    ["../secret/key.txt", "/etc/passwd", "a/../../secret", "..", "x/../..", "", "a\0b", "~/x/../../../..", "a" * 5000],
)
def test_a_path_outside_the_roots_is_refused_however_it_is_written(roots: Roots, typed: str) -> None:
    if typed.startswith("~"):
        assert roots.home in roots.resolve_inside("~/x").parents, "a tilde is a letter like any other"
        typed = "~/x/../../../.."
    with pytest.raises(FileError) as caught:
        roots.resolve_inside(typed)
    assert caught.value.code == "ui-outside"


def test_a_link_that_leads_out_is_refused_and_one_that_stays_inside_is_not(roots: Roots, tmp_path: Path) -> None:
    (roots.home / "out").symlink_to(tmp_path / "secret")
    (roots.home / "file").symlink_to(tmp_path / "secret" / "key.txt")
    (roots.home / "in").symlink_to(tmp_path / "other")
    for typed in ("out", "out/key.txt", "file", "in/../../secret/key.txt"):
        with pytest.raises(FileError):
            roots.resolve_inside(typed)
    assert roots.resolve_inside("in") == tmp_path.resolve() / "other"


def test_a_folder_that_only_begins_like_a_root_is_outside(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "opened").mkdir()
    with pytest.raises(FileError):
        roots.resolve_inside(tmp_path / "opened")


def test_short_names_lead_back_to_the_same_place_and_are_never_flags(roots: Roots) -> None:
    for name in ("a.txt", "-rf", "--config=x", "sub/ሰላም.txt"):
        path = roots.home / name
        assert roots.resolve_inside(roots.short(path)) == path
        assert not roots.short(path).startswith("-")


def test_lists_hold_what_was_sought_and_neither_links_nor_hidden_files(roots: Roots, tmp_path: Path) -> None:
    (roots.home / "run").mkdir()
    (roots.home / "run" / "run.yaml").write_text("")
    (roots.home / "run" / "clips").mkdir()
    (roots.home / "run" / "clips" / "manifest.jsonl").write_text("")
    (roots.home / ".hidden.txt").write_text("")
    (roots.home / "linked.txt").symlink_to(tmp_path / "secret" / "key.txt")
    assert roots.find(PROJECT_PATHS) == ["run"]
    assert roots.find(DATASET_PATHS) == ["run/clips"]
    assert set(roots.find(TEXT_PATHS)) == {"a.txt", "run/clips/manifest.jsonl"}
    assert "run" in roots.find(PathFilter(folders=True))


def test_every_list_and_subtitle_that_an_import_reads_is_offered(roots: Roots) -> None:
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
    from voxgraft.ui.tabs.data import SOURCE_PATHS

    names = {"a.list", "b.TextGrid", "c.vtt", "d.csv", "e.parquet", "f.arrow"}
    for name in names:
        (roots.home / name).write_text("")
    assert set(roots.find(SOURCE_PATHS)) == names


@given(st.text(max_size=300))
def test_the_name_of_an_uploaded_file_is_one_plain_name_whatever_the_browser_says(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert not safe.startswith((".", "-"))
    assert not set(safe) & set("/\\\0\n")
    assert len(safe.encode()) <= 200
    assert Path(safe).name == safe


def test_names_of_other_scripts_stay_readable() -> None:
    assert safe_name("../../ንግግር 1.srt") == "ንግግር_1.srt"
    assert safe_name("C:\\films\\talk one.mp4") == "talk_one.mp4"


def test_uploads_land_in_the_project_and_never_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing, project = tmp_path / "landing", tmp_path / "project"
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(landing))
    project.mkdir()
    for number in (1, 2):
        (landing / str(number)).mkdir(parents=True)
        (landing / str(number) / "talk.srt").write_text(str(number))
    taken = move_uploads(Roots.of((tmp_path,)), project, [str(landing / str(number) / "talk.srt") for number in (1, 2)])
    assert [path.read_text() for path in taken] == ["1", "2"]
    assert {path.parent for path in taken} == {project / "uploads"}


def test_of_uploads_that_fail_midway_all_are_back_and_nothing_is_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, project = tmp_path / "landing", tmp_path / "project"
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(landing))
    project.mkdir()
    landing.mkdir()
    files = [landing / name for name in ("a.wav", "b.wav")]
    for file in files:
        file.write_text(file.name)
    with pytest.raises(FileError, match="ui-upload"):
        move_uploads(Roots.of((tmp_path,)), project, [str(path) for path in (*files, files[0])])
    assert [file.read_text() for file in files] == ["a.wav", "b.wav"]
    assert not (project / "uploads").exists()


def test_no_folder_becomes_a_project_by_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing, project = tmp_path / "landing", tmp_path / "project"
    landing.mkdir()
    project.mkdir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(landing))
    (landing / "Run.yaml").write_text("train: {recognizer: 'command:sh {wav}'}")
    (taken,) = move_uploads(Roots.of((tmp_path,)), project, [str(landing / "Run.yaml")])
    assert taken.name == "uploaded-Run.yaml"
    assert not [path for path in taken.parent.iterdir() if path.name.lower() == "run.yaml"]


def test_a_file_that_was_not_uploaded_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "landing" / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "landing"))
    for name in ("secret.txt", "landing/../secret.txt", "landing/link.txt"):
        with pytest.raises(FileError) as caught:
            move_uploads(Roots.of((tmp_path,)), tmp_path, [str(tmp_path / name)])
        assert caught.value.code == "ui-upload"
    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_an_uploads_folder_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "landing" / "a.txt").write_text("a")
    (tmp_path / "project" / "uploads").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "landing"))
    with pytest.raises(FileError):
        move_uploads(Roots.of((tmp_path,)), tmp_path / "project", [str(tmp_path / "landing" / "a.txt")])
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "audio,text\n{},ሰላም\n"),
        ("a.csv", "{}|ሰላም\nx.wav|እሺ\n"),
        ("a.jsonl", '{{"audio": "x.wav", "text": "a"}}\n{{"audio_filepath": "{}", "text": "a"}}\n'),
        ("a.tsv", "text\tvoice\nሰላም\t{}\n"),
        ("pairs.txt", '{{"prompt_condition_path": "x.npy", "target_codes_path": "{}"}}\n'),
        ("a.jsonl", '{{"audio": "{}", "text": "a", "start": "no number"}}\n'),
        ("wav.scp", "a1 {}\na2\tx.wav\na3 sox /etc/x - |\n"),
        ("a.list", "{}|abebe|en|ሰላም\n"),
        ("txt.done.data", '( {} "ሰላም" )\n'),
        ("transcripts.txt", "{}\tሰላም\nx\tእሺ\n"),
    ],
)
def test_a_list_that_came_through_the_browser_names_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    landing, home = tmp_path / "landing", tmp_path / "home"
    landing.mkdir()
    (home / "project").mkdir(parents=True)
    (tmp_path / "secret.wav").write_bytes(b"secret")
    (home / "inside.wav").write_bytes(b"")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(landing))
    roots = Roots.of((home,))
    for outside in (tmp_path / "secret.wav", "../../../secret.wav", "..\\\\..\\\\..\\\\x.wav", "/etc/passwd"):
        (landing / name).write_text(text.format(outside), encoding="utf-8")
        with pytest.raises(FileError) as caught:
            move_uploads(roots, home / "project", [str(landing / name)])
        assert caught.value.code == "ui-upload"
        assert not (home / "project" / "uploads").exists()
    for inside in ("x/y.wav", "ሰላም/እሺ..", str(home / "inside.wav"), "project/../inside.wav"):
        (landing / name).write_text(text.format(inside), encoding="utf-8")
        assert move_uploads(roots, home / "project", [str(landing / name)])
        (home / "project" / "uploads" / name).unlink()
        (home / "project" / "uploads").rmdir()


def test_of_several_files_all_are_taken_over_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing, home = tmp_path / "landing", tmp_path / "home"
    landing.mkdir()
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(landing))
    files = {"talk.srt": "1", "list.csv": "audio,text\n/etc/passwd,a\n"}
    for name, text in files.items():
        (landing / name).write_text(text)
    with pytest.raises(FileError, match="ui-upload"):
        move_uploads(Roots.of((home,)), home / "project", [str(landing / name) for name in files])
    assert not (home / "project" / "uploads").exists()
