"""`bundle`: everything that helps others to help, and nothing that is nobody's business."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.made_once import MadeOnce
from voxgraft.cli import run_cli as run_command
from voxgraft.config.commands import BundleSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.journal import RunJournal
from voxgraft.inspect.bundle import REDACTED, BundleResult, bundle, extract_numbers, mask_personal_paths, redact

SECRET = "ሰላም ለዓለም ነው"
ASCII_SECRET = "meet me at the old mill at nine"


def unpacked(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as packed:
        assert packed.testzip() is None
        return {name: packed.read(name) for name in packed.namelist()}


@pytest.fixture(scope="module")
def bundled(made_once: MadeOnce, tmp_path_factory: pytest.TempPathFactory) -> tuple[BundleResult, dict[str, bytes]]:
    """A trained run with secrets wherever a run has texts, gathered."""
    folder = tmp_path_factory.mktemp("bundled")
    run = made_once.trained_run("chatterbox").copied(folder / "am")
    with RunJournal(run.folder.journal) as journal:
        journal.write("samples", 4, spoken=[{"name": "new", "text": SECRET, "codes": 12}])
        journal.write("finding", 4, code="text-spelled", found=f"{SECRET!r} is {SECRET}", level="note", where="x")
        journal.write("finding", 4, code="no-gain", found=f"clip abebe_call.wav: {ASCII_SECRET}", level="warning")
        journal.write("failed", 4, message=ASCII_SECRET, by={"Abebe Kebede": 1.0})
        journal.write("finding", 4, code="plateau", found=f"{ASCII_SECRET!r} in /home/robel/data", level="warning")
    run_yaml = run.folder.settings.read_text(encoding="utf-8")
    run_yaml = run_yaml.replace("sample_texts: []", f"sample_texts: ['am:{SECRET}']")
    run_yaml = run_yaml.replace("  recognizer:\n", "  recognizer: whisper --key sk-abebe1\n")
    assert "sk-abebe1" in run_yaml
    run.folder.settings.write_text(run_yaml, encoding="utf-8")
    card = json.loads(run.folder.card.read_text(encoding="utf-8"))
    card["notes"] = {"/srv/Abebe Kebede/am.txt": "0" * 64, "of": ASCII_SECRET}
    run.folder.card.write_text(json.dumps(card), encoding="utf-8")
    (run.path / "eval" / "default").mkdir(parents=True)
    scores = {"utterances": [{"text": SECRET}], "rows": [{"cer": 0.25}], "sentences": {"am": {"count": 3}}}
    (run.path / "eval" / "default" / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    (run.path / "samples").mkdir(exist_ok=True)
    (run.path / "samples" / "new.wav").write_bytes(b"RIFF")
    result = bundle(BundleSettings(run=run.path, output=folder / "out.zip"))
    return result, unpacked(folder / "out.zip")


def test_it_has_settings_cards_journal_findings_versions_scores_and_curves(
    bundled: tuple[BundleResult, dict[str, bytes]],
) -> None:
    result, files = bundled
    wanted = {"run.json", "card.json", "graft.json", "journal.jsonl", "findings.json", "versions.json", "curves.png"}
    assert wanted <= files.keys()
    assert "scores-0.json" in files
    assert result.missing == {}
    assert json.loads(files["run.json"])["language"] == "am"
    assert json.loads(files["scores-0.json"])["rows"] == [{"cer": 0.25}]
    assert json.loads(files["findings.json"])["verdict"]["word"] == "RESUME"
    assert "2." in json.loads(files["versions.json"])["versions"]["numpy"]
    kinds = [json.loads(line)["kind"] for line in files["journal.jsonl"].decode().splitlines()]
    assert {"start", "step", "valid", "finding"} <= set(kinds)


def test_it_has_no_audio_no_texts_no_weights_and_no_home_folders(
    bundled: tuple[BundleResult, dict[str, bytes]],
) -> None:
    _, files = bundled
    assert all(name.endswith((".json", ".jsonl", ".txt", ".png")) for name in files)
    for name, data in files.items():
        if not name.endswith(".png"):
            said = data.decode("utf-8")
            assert SECRET not in said, name
            assert SECRET.split()[0] not in said, name
            assert ASCII_SECRET not in said, name
            assert "old mill" not in said, name
            assert "abebe" not in said.lower(), name
            assert "/home/" not in said, name
            assert str(Path.home()) + "/" not in said, name


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/home/robel/runs/am", "~/runs/am"),
        ("/Users/Robel A/x", "~/x"),
        (r"C:\Users\robel\runs", r"~\runs"),
        ("/teamspace/studios/this_studio/am", "~/am"),
        ("/root/voxgraft", "~/voxgraft"),
        ("/rooted/voxgraft", "/rooted/voxgraft"),
        ("/data/am", "/data/am"),
        ("https://robel:pw@host/x", "https://(secret)host/x"),
        ("/data/hf_abcDEF123 and sk-12ab", "/data/(secret) and (secret)"),
    ],
)
def test_home_folders_are_masked_wherever_they_are(text: str, want: str) -> None:
    assert mask_personal_paths(text) == want


def test_the_user_s_own_name_is_masked_in_any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "robel")
    monkeypatch.setenv("HOME", "/srv/people/robel")
    assert mask_personal_paths("/mnt/big/robel/am") == "/mnt/big/USER/am"
    assert mask_personal_paths("/srv/people/robel/am") == "~/am"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ({"text": "x" * 9, "codes": 12, "step": 3}, {"text": REDACTED, "codes": 12, "step": 3}),
        ({"clips": ["a", "b"], "loss": 1.5}, {"clips": REDACTED, "loss": 1.5}),
        ({"found": "'a long sentence' is odd"}, {"found": "…"}),
        ({"found": "meet me at 9 at the mill, call 0911234567"}, {"found": "… 9 …"}),
        ([{"why": SECRET}, None, True], [{"why": "…"}, None, True]),
        ({"texts": {"/data/alice/diary.txt": "0" * 64}}, {"texts": {"(name 1)": "0" * 64}}),
        ({"base": "/srv/Abebe K/tiny", "language": "a secret of mine"}, {"base": "tiny", "language": REDACTED}),
        ({"state": "too early", "layer": "tfmr 0"}, {"state": "too early", "layer": "tfmr 0"}),
        ({"code": "text-spelled", "found": "12 13 14"}, {"code": "text-spelled", "found": REDACTED}),
        ({"found": " ".join(map(str, range(40)))}, {"found": "…"}),
        ({"set": "am"}, {"set": "am"}),
        ({"set": "abebe kebede"}, {"set": REDACTED}),
        ({"by": {"Abebe Kebede": 1.0}, "note": "a friend of mine"}, {"by": {"(name 1)": 1.0}, "note": REDACTED}),
        ({"versions": {"torch": "2.11.0", "x": "a b"}}, {"versions": {"torch": "2.11.0", "x": REDACTED}}),
    ],
)
def test_what_is_private_is_left_out_and_numbers_stay(value: Any, want: Any) -> None:
    assert redact(value) == want


def test_of_a_message_numbers_and_tensors_are_kept() -> None:
    told = "3 of 24,001 rows of text_head.weight are not finite, the first is row 7; moved by 3.5% and 1e-05"
    assert extract_numbers(told) == "… 3 … 24,001 … text_head.weight … 7 … 3.5% … 1e-05 …"


def test_a_run_that_is_broken_is_bundled_as_far_as_it_goes(made_once: MadeOnce, tmp_path: Path) -> None:
    run = made_once.trained_run("chatterbox").copied(tmp_path / "am")
    (run.folder.graft / "graft.json").write_text("{", encoding="utf-8")
    run.folder.journal.write_text("not a line\n", encoding="utf-8")
    result = bundle(BundleSettings(run=run.path, output=tmp_path / "out.zip"))
    assert {"graft.json", "journal.jsonl"} <= result.missing.keys()
    assert {"run.json", "card.json", "findings.json", "versions.json"} <= unpacked(tmp_path / "out.zip").keys()


def test_the_command_line_bundles_once_and_refuses_what_is_no_run(
    made_once: MadeOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = made_once.trained_run("chatterbox")
    assert run_command(["bundle", str(run.path)]) == 0
    assert "no audio, no texts, no weights" in capsys.readouterr().out
    assert (tmp_path / "run-bundle.zip").is_file()
    assert run_command(["bundle", str(run.path)]) == 2
    with pytest.raises(VoxgraftError, match="file-missing"):
        bundle(BundleSettings(run=tmp_path))


def test_what_is_no_setting_of_a_run_is_not_in_the_bundle(made_once: MadeOnce, tmp_path: Path) -> None:
    run = made_once.trained_run("chatterbox").copied(tmp_path / "am")
    text = run.folder.settings.read_text(encoding="utf-8")
    run.folder.settings.write_text(text + "\nabebe_s_token: 12345\n", encoding="utf-8")
    result = bundle(BundleSettings(run=run.path, output=tmp_path / "out.zip"))
    files = unpacked(tmp_path / "out.zip")
    assert all(b"abebe" not in data and b"12345" not in data for data in files.values())
    settings = json.loads(files["run.json"])
    assert settings["train"]["mode"] == "gated"
    assert settings["tokenizer"]["min_count"] == 5
    assert result.missing["findings.json"] == "config-unknown-key"
