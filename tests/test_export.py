"""Exports for the original programs: every name, shape and bit held against the base; whole or absent; under stated terms."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml

from tests.support.checkpoint_files import saved
from tests.support.families import ALL, PUBLISHED
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, error_of
from tests.support.synthesis import prompts
from voxgraft.checkpoints import open_checkpoint
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import ExportSettings
from voxgraft.core import progress
from voxgraft.core.results import Line
from voxgraft.export.command import ExportResult, export
from voxgraft.export.weights import open_export_source, require_tensor_names
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.base import ExportInfo, build_sequence
from voxgraft.models.speech_model import compute_hidden_states, load_model, pack_batch
from voxgraft.nn.adapter import compute_merged_weight, load_peft_adapter, read_peft_folder
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer

TERMS = ("--data-licence=CC-BY-4.0", "--consent=written, all speakers", "--accept-terms")


def settings_of(*words: object) -> ExportSettings:
    line = cast(CommandLine, parse_command_line(["export", *map(str, words)], COMMANDS))
    return cast(ExportSettings, resolve_settings(line))


def exported(*words: object) -> ExportResult:
    return export(settings_of(*words))


def bits(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.read(name, raw=True) for name in checkpoint.tensors}


@pytest.fixture(scope="module", params=ALL)
def run(request: pytest.FixtureRequest, fixtures: Fixtures) -> WholeRun:
    return fixtures.trained_run(request.param)


@pytest.fixture(scope="module")
def pair(run: WholeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("export") / run.family_name
    result = exported(run.path, f"--to={run.family_name}", f"--output={output}", *TERMS)
    assert result.exit_code == 0
    return output


@pytest.mark.long(fast="tiny")
def test_an_export_that_names_no_kind_is_the_graft_to_share_as_that_of_go(run: WholeRun, tmp_path: Path) -> None:
    result = exported(run.path, f"--output={tmp_path / 'out'}", "--accept-terms")
    assert result.kind == "graft"
    assert (tmp_path / "out" / "graft.json").is_file()


@pytest.mark.long(fast=("tiny", "chatterbox"))
def test_the_grown_folder_is_the_base_with_the_grafts_rows_and_no_other_bit_changed(run: WholeRun, pair: Path) -> None:
    kind = get_family(run.family_name)
    base, grown = kind.files(run.base), kind.files(pair / "extended")
    graft = load_graft(run.folder.graft)
    before, after = bits(base.checkpoint), bits(grown.checkpoint)
    assert list(before) == list(after)
    pieces, spare = graft.card.base_pieces, kind.spare_rows
    tables = {point.tensor for point in kind.graft_points}
    for name, values in before.items():
        if name not in tables:
            assert np.array_equal(values, after[name])
            continue
        assert after[name].shape[0] == values.shape[0] + graft.card.num_rows
        assert np.array_equal(after[name][:pieces], values[:pieces])
        assert np.array_equal(after[name][pieces : len(after[name]) - spare], graft.rows[name])
        assert np.array_equal(after[name][len(after[name]) - spare :], values[pieces:])
    assert grown.tokenizer.read_bytes() == graft.tokenizer.data


@pytest.mark.long(fast=("tiny", "chatterbox"))
def test_the_merged_folder_has_the_adapter_in_its_weights_and_computes_as_the_open_gate(
    run: WholeRun, pair: Path
) -> None:
    kind = get_family(run.family_name)
    model = load_model(kind, kind.files(pair / "extended"))
    gate = load_peft_adapter(model, read_peft_folder(run.folder.graft / "adapter"))
    merged = bits(kind.files(pair / "merged").checkpoint)
    grown = bits(kind.files(pair / "extended").checkpoint)
    changed = {name for name in merged if not np.array_equal(merged[name], grown[name])}
    layers = dict(model.named_modules())
    assert changed == {f"{name}.weight" for name in model.adapter_layers()}
    for name in sorted(changed)[:3]:
        layer = cast(Any, layers[name.removesuffix(".weight")])
        assert torch.equal(torch.from_numpy(merged[name]), compute_merged_weight(layer).detach())
    assert not gate.on
    card = json.loads((pair / "export.json").read_text(encoding="utf-8"))
    assert card["checkpoints"]["merged"]["changed"] == len(changed)
    assert card["checkpoints"]["extended"]["changed"] == 0
    assert card["checkpoints"]["extended"]["exact"] is True


@pytest.mark.long(fast="chatterbox")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_grown_folder_speaks_old_languages_with_the_very_logits_of_the_base(
    fixtures: Fixtures, tmp_path: Path, name: str
) -> None:
    run, kind = fixtures.trained_run(name), get_family(name)
    exported(run.path, f"--to={name}", "--parts=extended", f"--output={tmp_path / 'out'}", "--accept-terms")
    logits = []
    for folder in (run.base, tmp_path / "out" / "extended"):
        model = load_model(kind, kind.files(folder))
        (prompt,) = prompts(model, (1,))
        batch = pack_batch(model, [build_sequence(model.spec, [5, 9, 200, 31], [7, 80, 900])], [prompt.condition])
        with torch.no_grad():
            logits.append(model.speech_logits(compute_hidden_states(model, batch)))
    assert torch.equal(*logits)


def test_both_folders_open_in_our_own_strict_loader_and_hold_the_files_of_the_base(run: WholeRun, pair: Path) -> None:
    kind = get_family(run.family_name)
    size = load_graft(run.folder.graft).tokenizer.size
    for part in ("extended", "merged"):
        files = kind.files(pair / part)
        model = load_model(kind, files)
        assert model.state_dict()[kind.graft_points[0].tensor].shape[0] == size + kind.spare_rows
        assert open_tokenizer(files.tokenizer).size == size
        for name, path in kind.upstream().folder(kind.files(run.base), size, "am").beside.items():
            inside = pair / part / name
            assert inside.is_dir() or inside.stat().st_ino == path.stat().st_ino  # linked: no room taken


def test_the_config_of_indextts2_states_the_number_of_pieces_and_nothing_else_changes(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.trained_run("indextts2")
    base = tmp_path / "base"
    shutil.copytree(run.base, base)
    text = (base / "config.yaml").read_text(encoding="utf-8").replace("gpt:\n", "gpt:  # sizes\n")
    (base / "config.yaml").write_text(text, encoding="utf-8")
    exported(run.path, "--to=indextts2", f"--base={base}", "--parts=extended", f"--output={tmp_path / 'out'}")
    old, new = (
        (folder / "config.yaml").read_text(encoding="utf-8") for folder in (base, tmp_path / "out" / "extended")
    )
    pieces = load_graft(run.folder.graft).tokenizer.size
    assert yaml.safe_load(new)["gpt"]["number_text_tokens"] == pieces
    differing = [(a, b) for a, b in zip(old.splitlines(), new.splitlines(), strict=True) if a != b]
    assert len(differing) == 1
    assert "number_text_tokens" in differing[0][0]
    tables = bits(tmp_path / "out" / "extended" / "gpt.pth")
    assert len(tables["text_embedding.weight"]) == pieces + 1  # one row more, which no text uses


def test_the_text_step_of_an_indextts2_export_gives_the_program_what_was_learnt(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.trained_run("indextts2")
    exported(run.path, "--to=indextts2", "--parts=extended", f"--output={tmp_path / 'out'}")
    stub = tmp_path / "stub" / "indextts"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("")
    (stub / "infer_v2.py").write_text(
        "class IndexTTS2:\n    def __init__(self, cfg_path, model_dir):\n        self.at = cfg_path\n"
    )
    texts = ["ሰላም ለዓለም።", "ቤት፣ ውሃ፤ ዳቦ፧", "ሀ", "ሰላም፡፡ ነው፡ትልቅ", "hello ሰላም «ወንድም»", "ሰላም:: ነው"]
    code = "import json, sys; from load import load, prepared; print(json.dumps([[prepared(t) for t in json.loads(sys.argv[1])], load('am').at, load('en').at]))"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(texts)],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'out'}:{tmp_path / 'stub'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    given, new, old = json.loads(done.stdout)
    assert (Path(new).parent.name, Path(old).parent.name) == ("merged", "extended")
    kind = get_family("indextts2")
    text_encoder = TextEncoder.of(
        kind, open_tokenizer(kind.files(run.base).tokenizer), load_graft(run.folder.graft).tokenizer, "am"
    )
    for text, step in zip(texts, given, strict=True):
        assert not set(step) & set("።፣፤፧፡")
        assert text_encoder.prepare(step) == text_encoder.prepare(text)


@pytest.mark.long(fast="chatterbox")
@pytest.mark.parametrize("name", PUBLISHED)
def test_load_py_is_sound_python_that_names_the_new_size(fixtures: Fixtures, tmp_path: Path, name: str) -> None:
    run = fixtures.trained_run(name)
    exported(run.path, f"--to={name}", "--parts=extended", f"--output={tmp_path / 'out'}", "--accept-terms")
    text = (tmp_path / "out" / "load.py").read_text(encoding="utf-8")
    ast.parse(text)
    if name != "xtts":  # its program reads the number of rows from config.json
        assert str(load_graft(run.folder.graft).tokenizer.size) in text
    assert re.search(r"^LANGUAGE\b.* = 'am'", text, re.MULTILINE)
    assert len([line for line in text.splitlines() if len(line) > 120]) == 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_word_of_a_graft_can_become_code_in_load_py(fixtures: Fixtures, name: str) -> None:
    kind, files = get_family(name), fixtures.base(name)
    marks = ['x\n"""\nimport evil\n"""', '"; import evil; "', "'; import evil; '", "\\", "{tag}"]
    for mark in marks:
        text = kind.upstream().loader(ExportInfo(mark, mark, mark, 10, 5), files)
        assert text is not None
        tree = ast.parse(text)
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert "evil" not in names
        strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert mark in strings


@pytest.mark.parametrize(("key", "value"), [("tag", '"""\nimport os\n"""'), ("tag", ""), ("language", 'am"; x; "')])
def test_a_graft_whose_card_holds_more_than_a_tag_and_a_language_is_not_opened(
    fixtures: Fixtures, tmp_path: Path, key: str, value: str
) -> None:
    shutil.copytree(fixtures.whole_run("chatterbox").folder.graft, tmp_path / "graft")
    path = tmp_path / "graft" / "graft.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**card, key: value}), encoding="utf-8")
    error = error_of(lambda: load_graft(tmp_path / "graft"))
    assert error.code == "graft-broken"
    assert key in error.finding.found


STUB = """
class T3Config:
    def __init__(self, text_tokens_dict_size=2454):
        self.text_tokens_dict_size = text_tokens_dict_size

    @property
    def is_multilingual(self):
        return self.text_tokens_dict_size == 2454

    @classmethod
    def multilingual(cls):
        return cls()
"""
STUB_TTS = """
from types import SimpleNamespace
from chatterbox.models.t3.modules.t3_config import T3Config

SUPPORTED_LANGUAGES = {}


class ChatterboxMultilingualTTS:
    @classmethod
    def from_local(cls, folder, device):
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        return SimpleNamespace(t3=SimpleNamespace(hp=T3Config.multilingual()))
"""


def test_load_py_leaves_the_package_as_it_was_for_other_models_of_the_process(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.trained_run("chatterbox")
    exported(run.path, "--to=chatterbox", "--parts=merged", f"--output={tmp_path / 'out'}")
    modules = tmp_path / "stub" / "chatterbox" / "models" / "t3" / "modules"
    modules.mkdir(parents=True)
    (modules / "t3_config.py").write_text(STUB)
    (tmp_path / "stub" / "chatterbox" / "mtl_tts.py").write_text(STUB_TTS)
    code = """
import json
from load import load
from chatterbox import mtl_tts
size = lambda: mtl_tts.T3Config.multilingual().text_tokens_dict_size
model = load("am")
found = [model.t3.hp.text_tokens_dict_size, model.t3.hp.is_multilingual, size()]
try:
    load("en")
except FileNotFoundError:
    found.append(size())
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'out'}:{tmp_path / 'stub'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pieces = load_graft(run.folder.graft).tokenizer.size
    assert json.loads(done.stdout) == [pieces, False, 2454, 2454]


def test_rounding_halves_the_file_and_says_that_it_is_not_exact(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("indextts2")
    result = exported(run.path, "--to=indextts2", "--dtype=bf16", f"--output={tmp_path / 'out'}", *TERMS)
    kind = get_family("indextts2")
    base = kind.files(run.base)
    for part in ("extended", "merged"):
        path = kind.files(tmp_path / "out" / part).checkpoint
        assert result.card["checkpoints"][part]["exact"] is False
        assert path.stat().st_size < 0.6 * base.checkpoint.stat().st_size
        loaded = torch.load(path, weights_only=True)
        stored = torch.load(base.checkpoint, weights_only=True)
        name = "mel_head.weight"
        assert torch.equal(loaded[name], stored[name].to(torch.bfloat16))
        load_model(kind, kind.files(tmp_path / "out" / part))
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    reported = page + str(result.lines())
    assert "exact" not in reported
    assert "bit for bit" not in reported
    assert "rounded" in page


def test_the_number_of_names_is_held_against_the_familys_own_list_and_not_against_the_base(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run, kind = fixtures.trained_run("chatterbox"), get_family("chatterbox")
    result = exported(run.path, "--to=chatterbox", "--parts=extended", f"--output={tmp_path / 'out'}")
    one = result.card["checkpoints"]["extended"]
    names = load_model(kind, kind.files(run.base)).state_dict().keys()
    assert (one["names"], one["expected"]) == (len(names), len(names))
    # A file that lost a name, against a base that lost the same one.
    source = open_export_source(settings_of(run.path, "--to=chatterbox"))
    tensors = bits(source.files.checkpoint)
    del tensors["speech_head.weight"]
    saved({name: torch.from_numpy(value) for name, value in tensors.items()}, tmp_path / "less.safetensors")
    with open_checkpoint(tmp_path / "less.safetensors") as less:
        error = error_of(lambda: require_tensor_names(less, source))
    assert error.code == "export-differs"
    assert "speech_head.weight" in error.finding.found


@pytest.mark.long(fast="tiny")
def test_a_peft_export_is_the_adapter_and_a_graft_export_opens_as_a_graft(run: WholeRun, tmp_path: Path) -> None:
    peft, graft = tmp_path / "peft", tmp_path / "graft"
    exported(run.path, "--to=peft", f"--output={peft}", *TERMS)
    exported(run.path, "--to=graft", f"--output={graft}", *TERMS)
    own = run.folder.graft
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (peft / name).read_bytes() == (own / "adapter" / name).read_bytes()
    assert read_peft_folder(peft).layers
    assert load_graft(graft).card == load_graft(own).card
    for folder in (peft, graft):
        page = (folder / "README.md").read_text(encoding="utf-8")
        assert "CC-BY-4.0" in page
        assert "written, all speakers" in page
        assert get_family(run.family_name).licence in page
    assert not list(graft.rglob("*.pth"))


@pytest.mark.long(fast="tiny")
def test_a_graft_by_itself_is_exported_with_its_base(run: WholeRun, tmp_path: Path, pair: Path) -> None:
    words = (run.folder.graft, f"--to={run.family_name}", f"--base={run.base}", f"--output={tmp_path / 'out'}")
    exported(*words, "--accept-terms")
    kind = get_family(run.family_name)
    for part in ("extended", "merged"):
        name = kind.files(pair / part).checkpoint.name
        assert (tmp_path / "out" / part / name).read_bytes() == (pair / part / name).read_bytes()


def test_nothing_is_exported_for_a_non_commercial_base_until_its_licence_is_accepted(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run, output = fixtures.whole_run("xtts"), tmp_path / "out"
    words = (run.path, "--to=graft", f"--output={output}", "--data-licence=CC0", "--consent=asked")
    error = error_of(lambda: exported(*words))
    assert error.code == "licence-not-accepted"
    assert get_family("xtts").licence in error.finding.found
    assert "--accept-terms" in error.finding.cure
    shown: list[str] = []

    def answer(yes: bool) -> Callable[[Sequence[Line], str], bool]:
        def show(lines: Sequence[Line], _: str) -> bool:
            shown.extend(map(str, lines))
            return yes

        return show

    with progress.use_prompt_callbacks(answer(False)):
        assert error_of(lambda: exported(*words)).code == "licence-not-accepted"
    assert not output.exists()
    assert shown == [get_family("xtts").licence]
    with progress.use_prompt_callbacks(answer(True)):
        exported(*words)
    assert json.loads((output / "terms.json").read_text(encoding="utf-8"))["accepted"] is True


def test_terms_that_nobody_states_are_left_open_and_told_and_a_person_is_asked(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.trained_run("chatterbox")
    silent = exported(run.path, "--to=graft", f"--output={tmp_path / 'open'}")
    assert [item.code for item in silent.findings] == ["terms-not-stated"]
    assert "not stated" in (tmp_path / "open" / "README.md").read_text(encoding="utf-8")
    again = shlex.split(silent.findings[0].cure.partition("in quotes: ")[2])
    assert not exported(*again[2:]).findings, "the cure can be pasted"
    asked: list[str] = []

    def tell(lines: object, question: str) -> str:
        asked.append(question)
        return "CC0" if "licence" in question else "they are my own words"

    with progress.use_prompt_callbacks(lambda lines, question: True, tell):
        reported = exported(run.path, "--to=graft", f"--output={tmp_path / 'reported'}")
    assert not reported.findings
    assert len(asked) == 2
    terms = json.loads((tmp_path / "reported" / "terms.json").read_text(encoding="utf-8"))
    assert (terms["data_licence"], terms["consent"], terms["accepted"]) == ("CC0", "they are my own words", True)


def test_only_an_export_of_ours_is_replaced(fixtures: Fixtures, tmp_path: Path) -> None:
    words = (fixtures.trained_run("chatterbox").path, "--to=graft", f"--output={tmp_path / 'out'}", *TERMS)
    exported(*words)
    assert error_of(lambda: exported(*words)).code == "file-exists"
    exported(*words, "--overwrite")
    assert (tmp_path / "out.previous" / "graft.json").is_file()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("keep")
    error = error_of(lambda: exported(*words[:2], f"--output={tmp_path / 'mine'}", "--overwrite"))
    assert error.code == "file-exists"
    assert os.listdir(tmp_path / "mine") == ["precious.txt"]


def test_what_does_not_pass_check_is_not_exported_and_nothing_is_left_behind(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.trained_run("chatterbox").copied(tmp_path / "run")
    rows = run.folder.graft / "rows.safetensors"
    data = bytearray(rows.read_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    rows.write_bytes(bytes(data))
    error = error_of(lambda: exported(run.path, "--to=chatterbox", f"--output={tmp_path / 'out'}"))
    assert error.finding.level == "error"
    assert error.finding.cure
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_export_onto_another_base_is_refused(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("chatterbox")
    other = fixtures.base("chatterbox", seed=7).folder
    error = error_of(
        lambda: exported(run.folder.graft, "--to=chatterbox", f"--base={other}", f"--output={tmp_path / 'out'}")
    )
    assert error.code == "base-other"
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_kinds_that_cannot_be_made_are_refused_by_name(fixtures: Fixtures, tmp_path: Path) -> None:
    run, fresh = fixtures.trained_run("indextts2"), fixtures.whole_run("indextts2")
    out = f"--output={tmp_path / 'out'}"
    assert error_of(lambda: exported(run.path, "--to=chatterbox", out)).code == "export-kind"
    assert error_of(lambda: exported(run.path, "--to=indextts2", "--drop-in", out)).code == "export-kind"
    assert error_of(lambda: exported(fresh.path, "--to=peft", out)).code == "adapter-missing"
    assert error_of(lambda: exported(run.base, "--to=graft", out)).code == "export-subject"
    (tmp_path / "out").mkdir()
    assert error_of(lambda: exported(run.path, "--to=graft", out)).code == "file-exists"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.long
def test_an_untrained_graft_and_missing_parts_are_reported(fixtures: Fixtures, tmp_path: Path) -> None:
    fresh = fixtures.whole_run("indextts2")
    result = exported(fresh.path, "--to=indextts2", f"--output={tmp_path / 'out'}", "--parts=merged", *TERMS)
    assert [item.code for item in result.findings] == ["export-untrained", "export-part-missing"]
    assert "s2mel.pth" in result.findings[1].found
    assert "not yet" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
