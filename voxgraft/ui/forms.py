"""Forms: controls made from a command's own settings, its command line as they change, and the job that it becomes.

Names, helps, choices and defaults come from the settings alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import gradio as gr

from voxgraft.config.base import SettingField
from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.ui.commands import EXECUTABLE_SETTINGS, CommandBuilder, effective_values, find_command, format_command
from voxgraft.ui.files import FOLDER_PATHS, PathFilter, Roots, move_uploads
from voxgraft.ui.html import (
    NEEDED_CODE,
    NO_PROJECT_CODE,
    error_html,
    finding_html,
    note_html,
)
from voxgraft.ui.jobs import ProjectJobs
from voxgraft.ui.page import (
    JobView,
    PageContext,
    add_page_target,
    build_command_fold,
    build_job_controls,
    last_job_result,
    slug,
    start_job,
)

AUTOMATIC_LABEL = "automatic"
_FLAG_WORD = re.compile(r"(?<![\w-])--([a-z][a-z.-]*)")
SAVE_LABEL = "Save to run.yaml without starting"
# Folders of faster-whisper models.
WHISPER_FOLDERS = PathFilter(mark="model.bin")


# The argv of a job for a project and the values of a form's controls.
BuildWords = Callable[[str, Sequence[Any]], list[str]]


class FormControl(NamedTuple):
    """One control: the setting that it sets, and how it is filled when a project is opened."""

    leaf: SettingField
    component: Any
    sought: PathFilter | None = None
    default: Callable[[Path], Any] | None = None
    shared: bool = False
    """Whether it belongs to another form, which fills it."""
    options: Callable[[Path], Sequence[Any]] | None = None
    """What can be chosen in a project, if not the paths that are sought."""


@dataclass(slots=True)
class CommandForm:
    """The controls of one command on one tab. `add` them where they belong, then `finish`."""

    context: PageContext
    name: str
    given: Callable[[Path], Mapping[str, Any]] | None = None
    """Settings that nobody types; by default the run itself, if the command takes one."""
    choices: dict[str, Sequence[str]] = field(default_factory=dict)
    path_keys: tuple[str, ...] = ()
    json: bool = False
    one_of: tuple[str, ...] = ()
    """Settings of which at least one has to be given, beside the required ones."""
    fresh: dict[str, Callable[[Path], Path]] = field(default_factory=dict)
    """Outputs that get a free name in the project if nobody names them; by setting."""
    unless: dict[str, str] = field(default_factory=dict)
    """For an output in `fresh`: another setting that makes it unnecessary."""
    controls: list[FormControl] = field(default_factory=list)
    view: JobView | None = None
    preview: Any = None
    filled: Any = None
    """A hidden part: what the page itself has put into the controls last; anything else was put there by somebody."""
    button: Any = None
    followed_components: list[Any] = field(default_factory=list)
    also_starts: list[tuple[JobView, BuildWords]] = field(default_factory=list)
    """Views of other jobs that are started with the values of this form, and their argv."""
    render_result: Callable[[dict[str, Any]], str] | None = None
    first: Callable[[Path], list[str]] | None = None
    """A Python module with its arguments that a job runs before the command, by project; mostly none."""

    @property
    def command(self) -> CommandBuilder:
        return CommandBuilder(find_command(self.name), self.context.roots, self.json, self.choices, self.path_keys)

    @property
    def components(self) -> list[Any]:
        return [control.component for control in self.controls]

    def add(
        self,
        key: str,
        *,
        label: str = "",
        info: str = "",
        sought: PathFilter | None = None,
        default: Callable[[Path], Any] | None = None,
        lines: int = 1,
        shared: FormControl | None = None,
        options: Callable[[Path], Sequence[Any]] | None = None,
    ) -> Any:
        """Create the control of one setting here, or take one that another form has created; returns the component."""
        leaf = next(leaf for leaf in find_command(self.name).leaves() if leaf.key == key)
        if shared is not None:
            self.controls.append(FormControl(leaf, shared.component, shared.sought, shared.default, shared=True))
            return shared.component
        if key in EXECUTABLE_SETTINGS and key not in self.choices:
            raise ValueError(f"{key} names a program: give the words that can be chosen")
        about: dict[str, Any] = {
            "label": label or label_of(key),
            "info": info or help_text(str(leaf.field.description or "")),
            "elem_id": slug(f"{self.name}-{key}"),
            "interactive": True,
        }
        if leaf.is_path and sought is None:
            sought = FOLDER_PATHS
        component = build_component(leaf, self.choices.get(key) or leaf.choices, sought, lines, about)
        self.controls.append(FormControl(leaf, component, sought, default, options=options))
        add_page_target(self.context, self.name, key, component)
        return component

    def add_all(self, keys: Sequence[str]) -> None:
        """Create the controls of several settings, in a row that folds in a narrow window."""
        with gr.Row():
            for key in keys:
                self.add(key)

    def control(self, key: str) -> FormControl:
        """The control of a setting."""
        return next(control for control in self.controls if control.leaf.key == key)

    def finish(
        self,
        button: str,
        *,
        output: str = "Result",
        keep: bool = False,
        own_button: bool = False,
        add_below: Callable[[], None] | None = None,
    ) -> JobView:
        """The button that runs the command, its newest job, and the command line in a fold.

        With `keep`, starting writes changed values into run.yaml first: so form, file and job are the same. A second
        button only writes them. With `own_button` the tab decides when the button can be pressed. `add_below` adds
        controls below the button.
        """
        self.context.forms.append(self)
        name = slug(self.name)
        self.filled, filled_for = gr.State([]), gr.State("")
        save = gr.Button(SAVE_LABEL, elem_id=f"{name}-keep", elem_classes=["vg-act"], render=False) if keep else None
        self.view, self.button = view, start = build_job_controls(
            self.context, self.name, button, title=output, is_json=self.json, extra_button=save, own_button=own_button
        )
        if add_below is not None:
            add_below()
        components = self.components
        self.preview = build_command_fold(name, self._preview("", *(component.value for component in components)))
        wire = self.context.wire
        if components:
            # Events of somebody's edits, never of the page filling the controls: then others are not filled yet.
            # Pasted texts and paths that are not in a list are only reported when the control loses the focus.
            edits = [component.input for component in components]
            edits += [component.blur for component in components if isinstance(component, gr.Textbox | gr.Dropdown)]
            self._wire_edits(edits, trigger_mode="always_last")

        def build_argv(project: str, values: Sequence[Any]) -> list[str]:
            if keep:
                self.words(project, values)  # raises before anything is written
                folder = self.context.project_folder(project)
                changed = self.command.changed(self.typed_values(values), folder, self.fixed(folder))
                try:
                    set_run_yaml_values(folder, changed)
                except VoxgraftError as error:
                    if error.code != "ui-keep":
                        raise
                    # A run.yaml of another form stays as it is, and the values are flags of this command alone.
            return self.words(project, values)

        pressed = [self.context.project, filled_for, *components]
        wire(
            [start.click],
            lambda project, owner, *values: start_job(
                self.context, project, view,
                lambda: build_argv(project, self.current_values(project, owner, values)), self.first,
            ),
            pressed,
            [view.shown, *([view.button] if view.button is not None else [])],
        )  # fmt: skip
        if save is not None:
            wire([save.click], self._keep, pressed, [self.preview, view.shown])
        filling = [control.component for control in self.controls if not control.shared]
        filling += [self.preview, self.filled]
        self.context.on_project(lambda project: [*self.fill(project), project], [*filling, filled_for])
        self.context.on_job_end(self.fill, [self.filled, *components], filling)
        for component in self.followed_components:
            self.follow(component)
        return view

    def current_values(self, project: str, owner: str, values: Sequence[Any]) -> Sequence[Any]:
        """The values of the controls, or those of the project while they are still of another one (`owner`), or none.

        A button can be pressed before the page has filled the form: defaults must not be written over run.yaml then.
        """
        return values if owner == project else self.initial_values(project)

    def follow(self, component: Any) -> None:
        """Update the command line also when the page itself, and not somebody, has changed a control."""
        if self.preview is None:
            self.followed_components.append(component)
            return
        self._wire_edits([component.change])

    def _wire_edits(self, edits: Sequence[Any], **more: Any) -> None:
        """After an edit: the command line, and no refusal to start that is out of date."""
        assert self.view is not None
        starts = [(self.view, self.words), *self.also_starts]

        def update(project: str, *values: Any) -> list[Any]:
            shown = [self._clear_refusal(view, build, project, values) for view, build in starts]
            return [self._preview(project, *values), *shown]

        outputs = [self.preview, *(view.shown for view, _ in starts)]
        self.context.wire(edits, update, [self.context.project, *self.components], outputs, **more)

    def show_result(self, elem_id: str, render: Callable[[dict[str, Any]], str]) -> None:
        """Show here what `render` makes of the newest result of the command, which is JSON."""
        self.render_result = render
        shown = gr.HTML(elem_id=elem_id, elem_classes=["vg-live"])
        self.context.on_change(lambda project: [self.result_html(project)], [shown])

    def result_html(self, project: str) -> str:
        """The newest result as HTML, or the error that the command ended with; empty if there is none yet."""
        found = last_job_result(self.context.project_folder(project), self.name)
        if found is None or self.render_result is None:
            return ""
        return finding_html(found["error"], self.name) if "error" in found else self.render_result(found)

    def fixed(self, project: Path) -> Mapping[str, Any]:
        """Settings that nobody types."""
        if self.given is not None:
            return self.given(project)
        return {"run": project} if "run" in find_command(self.name).settings.model_fields else {}

    def words(self, project: str, values: Sequence[Any]) -> list[str]:
        """The argv of the command for these values, with a free name for every output that has none."""
        folder = self.context.project_folder(project)
        typed = self.typed_values(values)
        for key, free_path in self.fresh.items():
            if not typed.get(key) and not typed.get(self.unless.get(key, "")):
                typed[key] = self.context.roots.short(free_path(folder).resolve())
        fixed = self.fixed(folder)
        self.require({**typed, **fixed})
        return self.command.words(typed, folder, fixed)

    def typed_values(self, values: Sequence[Any]) -> dict[str, Any]:
        """Values of the controls by setting."""
        return {control.leaf.key: value for control, value in zip(self.controls, values, strict=True)}

    def require(self, values: Mapping[str, Any]) -> None:
        """Raise an error that names, by their labels, the settings that have to be given and are not."""
        given = {
            key
            for key, value in values.items()
            if (bool(value.strip()) if isinstance(value, str) else value not in (None, [], ()))
        }
        labels = {control.leaf.key: str(control.component.label) for control in self.controls}
        required = [control.leaf.key for control in self.controls if control.leaf.field.is_required()]
        needed = [labels[key] for key in required if key not in given]
        if self.one_of and not given & {*self.one_of}:
            needed.append(" or ".join(labels[key] for key in self.one_of))
        if needed:
            raise ConfigError(NEEDED_CODE, f"still needed: {', '.join(needed)}")

    def _preview(self, project: str, *values: Any) -> str:
        try:
            return format_command(self.words(project, values))
        except VoxgraftError as error:
            # A value that is only missing yet is no fault of the user's.
            return error.finding.found if error.code in (NEEDED_CODE, NO_PROJECT_CODE) else str(error)

    def _clear_refusal(self, view: JobView, build: BuildWords, project: str, values: Sequence[Any]) -> Any:
        """The newest job in place of a refusal to start, once the values are whole; else nothing changes."""
        try:
            build(project, values)
            return view.html(ProjectJobs(self.context.project_folder(project)).latest(view.verb))
        except VoxgraftError:
            return gr.skip()

    def _keep(self, project: str, owner: str, *given: Any) -> list[Any]:
        try:
            values = self.current_values(project, owner, given)
            folder = self.context.project_folder(project)
            changed = self.command.changed(self.typed_values(values), folder, self.fixed(folder))
            set_run_yaml_values(folder, changed)
        except VoxgraftError as error:
            return [gr.skip(), error_html(error, self.name)]
        nothing = "nothing to write: no value was changed"
        kept = f"written into run.yaml: {', '.join(changed)}" if changed else nothing
        return [self._preview(project, *values), note_html(kept, "good")]

    def initial_values(self, project: str) -> list[Any]:
        """Every control's value as the project has it; without a project the defaults."""
        folder = self.context.project_folder(project) if project else None
        own = effective_values(find_command(self.name), folder)
        values = []
        for control in self.controls:
            found = control.default(folder) if control.default is not None and folder is not None else None
            value = own[control.leaf.key] if found is None else found
            values.append(component_value(control.leaf, value, self.command))
        return values

    def fill(self, project: str, filled: Sequence[Any] = (), *values: Any) -> list[Any]:
        """Updates of this form's own controls, the command line, and what was filled in.

        Without `values`, when a project is opened, every control gets what the project has. Else, after a job or a
        change of run.yaml, what somebody typed or emptied since it was `filled` stays, and all else is updated.
        """
        folder = self.context.project_folder(project) if project else None
        try:
            fresh = self.initial_values(project)
            error = ""
        except VoxgraftError as refusal:
            if values:
                raise
            # An unreadable run.yaml: no value of another project may stay.
            fresh, folder, error = self.initial_values(""), None, str(refusal)
        plain, now = self.command.plain, fresh
        if values:
            before = filled if len(filled) == len(values) else fresh
            now = [
                new if plain(control.leaf, value) == plain(control.leaf, old) else value
                for control, value, old, new in zip(self.controls, values, before, fresh, strict=True)
            ]
        updates: list[Any] = []
        for at, (control, value) in enumerate(zip(self.controls, now, strict=True)):
            if control.shared:
                continue
            # A value that exists already is not sent again: somebody may type.
            is_there = bool(values) and plain(control.leaf, values[at]) == plain(control.leaf, value)
            sent: dict[str, Any] = {} if is_there else {"value": value}
            if control.options is not None and folder is not None:
                sent["choices"] = [*control.options(folder)]
            elif control.sought is not None:
                sent["choices"] = self.context.roots.find(control.sought, folder)
            elif words := self.choices.get(control.leaf.key):
                # The run's own word may be one that no one can choose here, such as a program that listens.
                sent["choices"] = dropdown_choices(
                    control.leaf, [*words, *([value] if value and value not in words else [])]
                )
            updates.append(gr.update(**sent) if sent else gr.skip())
        return [*updates, error or self._preview(project, *now), fresh]


def add_upload(context: PageContext, form: CommandForm, key: str, label: str, endings: Sequence[str]) -> None:
    """A place to drop one file, which then is the value of a control of the form."""
    name = slug(f"{form.name}-{key}")
    control = form.control(key)
    with gr.Column(min_width=260):
        file = gr.File(file_types=list(endings), elem_id=f"{name}-upload", height=150, interactive=False)
        disable_until_project_open(context, file, label)
        said = gr.HTML(elem_id=f"{name}-upload-state", elem_classes=["vg-live"])

    def receive(project: str, given: str | None) -> list[Any]:
        try:
            taken = move_uploads(context.roots, context.project_folder(project), [given] if given else [])
        except VoxgraftError as error:
            return [error_html(error), None, gr.skip()]
        if not taken:
            return [gr.skip(), gr.skip(), gr.skip()]
        value = context.roots.short(taken[0])
        moved = note_html(f"in the run now: {taken[0].name}", "good")
        return [moved, None, [value] if control.leaf.is_list else value]

    context.wire([file.upload], receive, [context.project, file], [said, file, control.component])
    form.follow(control.component)


def disable_until_project_open(context: PageContext, file: Any, label: str) -> None:
    """Accept no upload before a project is open: it would belong nowhere, and be lost."""
    file.label = f"{label}: open a run first"
    context.on_project(lambda _: [gr.update(interactive=True, label=label)], [file])


def recognizer_choices(roots: Roots) -> tuple[str, ...]:
    """Words for a setting that names a recognizer."""
    return ("built-in", "none", *(f"whisper:{folder}" for folder in roots.find(WHISPER_FOLDERS)))


def help_text(description: str) -> str:
    """A setting's help without the words of a command line: flags by their labels, commands as words."""
    text = _FLAG_WORD.sub(lambda found: f"“{label_of(found[1])}”", description)
    text = re.sub(r"^`[a-z ]+`: (.)", lambda found: found[1].upper(), text)
    return re.sub(r"`([a-z ]+)`", r"\1", text)


def label_of(key: str) -> str:
    """What a control is called if nobody says otherwise."""
    words = key.rpartition(".")[2].replace("_", " ").replace("-", " ")
    return re.sub(r"^lr (?=\w)", "learning rate, ", words).capitalize()


def build_component(
    leaf: SettingField, choices: Sequence[str], path_filter: PathFilter | None, lines: int, about: dict[str, Any]
) -> Any:
    """The control of a setting; `about` holds its label, help and id."""
    default = leaf.default
    if leaf.field.annotation is bool:
        return gr.Checkbox(value=bool(default), **about)
    if leaf.field.annotation == (bool | None):
        return gr.Dropdown([(AUTOMATIC_LABEL, ""), "yes", "no"], value="", **about)
    if choices:
        value = list(default or []) if leaf.is_list else default or (choices[0] if leaf.field.is_required() else "")
        return gr.Dropdown(dropdown_choices(leaf, choices), value=value, multiselect=leaf.is_list or None, **about)
    if path_filter is not None:
        paths: Any = [str(item) for item in default or []] if leaf.is_list else str(default or "")
        return gr.Dropdown([], value=paths or None, allow_custom_value=True, multiselect=leaf.is_list or None, **about)
    if leaf.is_number and not leaf.is_list and not _may_be_none(leaf):
        is_whole = int in (leaf.field.annotation, *get_args(leaf.field.annotation))
        step = 1 if is_whole or not default else 10.0 ** math.floor(math.log10(abs(default)))
        return gr.Number(value=default, precision=0 if is_whole else None, step=step, min_width=120, **about)
    if leaf.is_list:
        about["info"] = f"{about['info']} One per line."
        return gr.Textbox(value="\n".join(map(str, default or ())), lines=max(2, lines), **about)
    about["min_width"] = 120 if leaf.is_number else 160
    text = "" if default is None else f"{default:g}" if leaf.is_number else str(default)
    is_open = default is None and not leaf.field.is_required()
    return gr.Textbox(value=text, lines=lines, placeholder=AUTOMATIC_LABEL if is_open else "", **about)


def dropdown_choices(leaf: SettingField, words: Sequence[str]) -> list[Any]:
    """Words to choose from; one of them is empty if the setting may be left open."""
    if leaf.is_list or leaf.field.is_required():
        return [*words]
    # A setting with a word of its own for this has one entry for it, not two.
    own = [word for word in words if word == "auto"]
    return [(AUTOMATIC_LABEL, own[0] if own else ""), *(word for word in words if word not in own)]


def component_value(leaf: SettingField, value: Any, command: CommandBuilder) -> Any:
    """A setting's value as its component takes it."""
    if leaf.field.annotation is bool:
        return bool(value)
    if leaf.field.annotation == (bool | None):
        return "" if value is None else "yes" if value else "no"
    if leaf.is_path:
        words = command.plain(leaf, value)
        return words if leaf.is_list else (words[0] if words else None)
    if leaf.is_list:
        return [*value] if leaf.choices else "\n".join(command.plain(leaf, value))
    if leaf.is_number:
        return next(iter(command.plain(leaf, value)), "") if _may_be_none(leaf) else value
    if value is None and leaf.choices and leaf.field.is_required():
        return leaf.choices[0]
    return "" if value is None else str(value)


def _may_be_none(leaf: SettingField) -> bool:
    """Whether a number may be left open. Gradio's own number field turns an empty value into 0."""
    return type(None) in get_args(leaf.field.annotation)
