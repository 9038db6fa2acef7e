"""Every control reaches its command: it changes the words of the command, and the command means what the form shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, make_project, page_of
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.run import RunSettings, set_run_yaml_values
from voxgraft.core.errors import VoxgraftError
from voxgraft.ui.commands import EXECUTABLE_SETTINGS, CommandBuilder, find_command
from voxgraft.ui.files import Roots


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("page")
    make_project(folder)
    (folder / "a.txt").write_text("ሰላም\n", encoding="utf-8")
    with page_of(folder) as context:
        yield context


def candidates(control: Any, choices: Any) -> list[Any]:
    """Values that a control could be given, of its kind."""
    leaf = control.leaf
    if leaf.field.annotation is bool:
        return [True, False]
    if leaf.field.annotation == (bool | None):
        return ["yes", "no"]
    words = choices.get(leaf.key) or leaf.choices
    if words:
        return [[word] if leaf.is_list else word for word in words]
    if leaf.is_path:
        return [["a.txt"], ["b.txt"]] if leaf.is_list else ["a.txt", "b.wav", "b.npy", "b.json"]
    if leaf.is_number and not leaf.is_list:
        return [1, 2, 3, 0.5, 0.25, 0.9, 10, 100, 1000, 20_000, 30_000]
    return ["am", "om", "en:hello", "A=B", "1", "0.5", "OWNER/name", "x.zip"]


def sound_values(form: Any) -> list[Any]:
    """What the form has when the project is opened, with something in everything that must be given."""
    values: list[Any] = form.initial_values(PROJECT)
    for at, control in enumerate(form.controls):
        required = control.leaf.field.is_required()
        required = required or control.leaf.key == next(iter(form.one_of), None)
        if required and values[at] in (None, "", []):
            values[at] = candidates(control, form.choices)[0]
    return values


def test_every_control_of_every_tab_changes_the_command(page: Any) -> None:
    inert, seen = [], 0
    for form in page.forms:
        values = sound_values(form)
        before = form.words(PROJECT, values)
        for at, control in enumerate(form.controls):
            seen += 1
            if not _changes(form, values, at, before, candidates(control, form.choices)):
                inert.append(f"{form.name}: {control.leaf.key}")
    assert not inert
    assert seen > 100


def _changes(form: Any, values: list[Any], at: int, before: list[str], others: list[Any]) -> bool:
    for other in others:
        try:
            if form.words(PROJECT, [*values[:at], other, *values[at + 1 :]]) != before:
                return True
        except VoxgraftError:
            continue
    return False


@pytest.mark.long
def test_the_command_that_is_shown_is_the_one_that_runs_and_is_read_as_the_form_has_it(page: Any) -> None:
    for form in page.forms:
        words = form.words(PROJECT, sound_values(form))
        shown = form._preview(PROJECT, *sound_values(form))
        assert shlex.split(shown) == ["voxgraft", *words]
        line = parse_command_line(words, COMMANDS)
        assert isinstance(line, CommandLine)
        assert line.verb.name == form.name
        resolve_settings(line)


def test_no_two_controls_have_the_same_id_and_every_one_has_a_label_and_a_help(page: Any) -> None:
    own = [control for form in page.forms for control in form.controls if not control.shared]
    ids = [control.component.elem_id for control in own]
    assert len(ids) == len(set(ids))
    for control in own:
        assert control.component.label, control.leaf.key
        assert control.component.info, control.leaf.key


def test_a_form_shows_the_runs_own_values_and_says_only_what_differs(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    set_run_yaml_values(project, {"tokenizer.pieces": "77", "rows.init": '"mean"'})
    with page_of(tmp_path) as context:
        form = next(form for form in context.forms if form.name == "graft")
        keys = [control.leaf.key for control in form.controls]
        values = form.initial_values(PROJECT)
        assert values[keys.index("tokenizer.pieces")] == 77
        assert values[keys.index("rows.init")] == "mean"
        assert form.words(PROJECT, values) == ["graft", PROJECT]
        values[keys.index("tokenizer.pieces")] = 78
        assert form.words(PROJECT, values) == ["graft", PROJECT, "--tokenizer.pieces", "78"]


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    make_project(tmp_path)
    return Roots.of((tmp_path,))


def test_what_somebody_types_is_never_read_as_a_flag(roots: Roots) -> None:
    project = roots.home / PROJECT
    command = CommandBuilder(find_command("data text"), roots)
    typed = "--config=/etc/passwd\n-x\n; rm -rf ~\n$(id)\n--"
    words = command.words({"text": typed, "language": "am"}, project, {})
    line = parse_command_line(words, COMMANDS)
    assert isinstance(line, CommandLine)
    assert line.values["text"] == typed.splitlines()
    assert line.config is None


@pytest.mark.parametrize("typed", ["../outside.txt", "/etc/passwd", "am/../../x"])
def test_no_path_of_any_verb_leads_out_of_the_roots(roots: Roots, typed: str) -> None:
    for verb in COMMANDS:
        for leaf in verb.leaves():
            if leaf.is_path and leaf.key not in EXECUTABLE_SETTINGS:
                command = CommandBuilder(verb, roots)
                with pytest.raises(VoxgraftError) as caught:
                    command.words({leaf.key: [typed] if leaf.is_list else typed}, None, {})
                assert caught.value.code == "ui-outside", (verb.name, leaf.key)


def test_settings_that_name_a_program_cannot_be_typed(roots: Roots) -> None:
    tried = 0
    for verb in COMMANDS:
        for leaf in verb.leaves():
            if leaf.key in EXECUTABLE_SETTINGS:
                tried += 1
                with pytest.raises(VoxgraftError) as caught:
                    CommandBuilder(verb, roots).words({leaf.key: "/bin/sh"}, None, {})
                assert caught.value.code == "ui-executed", (verb.name, leaf.key)
    assert tried >= 5


def test_a_word_that_cannot_be_chosen_is_refused_by_the_server_too(roots: Roots) -> None:
    command = CommandBuilder(find_command("evaluate"), roots, choices={"recognizer": ("built-in",)})
    with pytest.raises(VoxgraftError) as caught:
        command.words({"recognizer": "command:/bin/sh"}, None, {"model": roots.home / PROJECT})
    assert caught.value.code == "config-value"


def test_kept_values_stand_in_run_yaml_and_its_comments_stay(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    path = project / "run.yaml"
    before = path.read_text(encoding="utf-8")
    set_run_yaml_values(
        project, {"train.steps": "40", "train.lr_rows": "1.0e-05", "texts": '["../ሰላም.txt"]', "rows.init": '"mean"'}
    )
    after = path.read_text(encoding="utf-8")
    found = parse_settings(RunSettings, read_settings_values(RunSettings, path), path)
    assert (found.train.steps, found.train.lr_rows, found.rows.init) == (40, 1e-5, "mean")
    assert found.texts == (project.parent / "ሰላም.txt",)
    assert [line for line in after.splitlines() if "#" in line] == [line for line in before.splitlines() if "#" in line]
    set_run_yaml_values(
        project, {"train.steps": "", "train.lr_rows": "0.001", "texts": "[]", "rows.init": '"romanised"'}
    )
    same = parse_settings(RunSettings, read_settings_values(RunSettings, path), path)
    assert same.train.steps is None


def test_a_run_yaml_of_another_form_is_left_as_it_is(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    path = project / "run.yaml"
    path.write_text("language: am\ntexts:\n  - a.txt\n  - b.txt\ntrain: {steps: 3}\n")
    before = path.read_bytes()
    for changed in ({"texts": '["c.txt"]'}, {"train.steps": "4"}):
        with pytest.raises(VoxgraftError):
            set_run_yaml_values(project, changed)
        assert path.read_bytes() == before
    set_run_yaml_values(project, {"language": '"ti"'})
    assert path.read_text().startswith('language: "ti"\ntexts:\n')


def test_a_kept_value_that_makes_no_sense_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    before = (project / "run.yaml").read_bytes()
    with pytest.raises(VoxgraftError):
        set_run_yaml_values(project, {"train.steps": "40", "train.rank": "0"})
    assert (project / "run.yaml").read_bytes() == before
