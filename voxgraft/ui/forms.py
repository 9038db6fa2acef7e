"""Forms: controls made from a verb's own settings, its command as they change, and the job that it becomes.

Names, helps, choices and defaults stand in the settings and nowhere else. What a form does is one command.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any, get_args

import gradio as gr

from voxgraft.config.base import SettingField
from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.ui.commands import (
    EXECUTABLE_SETTINGS,
    CommandBuilder,
    PageContext,
    effective_values,
    find_command,
    format_command,
)
from voxgraft.ui.files import FOLDER_PATHS, PathFilter, move_uploads
from voxgraft.ui.html import error_html, job_html, note_html
from voxgraft.ui.jobs import ProjectJobs, UiJob

AUTOMATIC_LABEL = "automatic"


def build_component(
    leaf: SettingField, choices: Sequence[str], path_filter: PathFilter | None, lines: int, about: dict[str, Any]
) -> Any:
    """The control of a setting; `words` are what can be chosen, `render_method` its label, help and id."""
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
    if leaf.is_number and not leaf.is_list and not _may_be_empty(leaf):
        is_whole = int in _annotation_types(leaf.field.annotation)
        step = 1 if is_whole or not default else 10.0 ** math.floor(math.log10(abs(default)))
        return gr.Number(value=default, precision=0 if is_whole else None, step=step, min_width=120, **about)
    if leaf.is_list:
        about["info"] = f"{about['info']} One on each line."
        return gr.Textbox(value="\n".join(map(str, default or ())), lines=max(2, lines), **about)
    about["min_width"] = 120 if leaf.is_number else 160
    text = "" if default is None else f"{default:g}" if leaf.is_number else str(default)
    is_open = default is None and not leaf.field.is_required()
    return gr.Textbox(value=text, lines=lines, placeholder=AUTOMATIC_LABEL if is_open else "", **about)


def dropdown_choices(leaf: SettingField, words: Sequence[str]) -> list[Any]:
    """Words to choose from; nothing is one of them where a setting may be left open."""
    return [*words] if leaf.is_list or leaf.field.is_required() else [(AUTOMATIC_LABEL, ""), *words]


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
        return next(iter(command.plain(leaf, value)), "") if _may_be_empty(leaf) else value
    if value is None and leaf.choices and leaf.field.is_required():
        return leaf.choices[0]
    return "" if value is None else str(value)


def _may_be_empty(leaf: SettingField) -> bool:
    """Whether a number may be left open. Gradio's own field of a number puts 0 where nothing is."""
    return type(None) in _annotation_types(leaf.field.annotation)


def _annotation_types(annotation: Any) -> tuple[Any, ...]:
    return (annotation, *get_args(annotation))


SAVE_LABEL = "Keep these values in run.yaml"
NEEDED_CODE, NO_PROJECT_CODE = "ui-needed", "ui-no-project"
FixedValues = Callable[[Path], Mapping[str, Any]]


@dataclass(slots=True)
class FormControl:
    """One control: the setting that it sets, and what it is filled with when a project is opened."""

    leaf: SettingField
    component: Any
    sought: PathFilter | None = None
    default: Callable[[Path], Any] | None = None
    shared: bool = False
    """Whether it belongs to another form, which fills it."""


@dataclass(frozen=True, slots=True)
class JobView:
    """Where the newest job of a verb is shown."""

    verb: str
    shown: Any
    tab: str
    title: str = "Result"
    for_machines: bool = False
    """Whether the result is JSON, which a tab shows in a form of its own."""

    def html(self, job: UiJob | None) -> str:
        """What it shows of a job."""
        return job_html(job, self.for_machines, self.title)


@dataclass(slots=True)
class CommandForm:
    """The controls of one verb on one tab. `add` them where they belong, then `finish`."""

    context: PageContext
    name: str
    given: FixedValues | None = None
    """Settings that nobody types; without it the run itself, where the verb takes one."""
    choices: dict[str, Sequence[str]] = field(default_factory=dict)
    path_keys: tuple[str, ...] = ()
    json: bool = False
    one_of: tuple[str, ...] = ()
    """Settings of which at least one has to be given, beside those that must be."""
    controls: list[FormControl] = field(default_factory=list)
    view: JobView | None = None
    preview: Any = None
    filled: Any = None
    """A hidden part: what the page itself has put into the controls last; anything else was put there by somebody."""
    button: Any = None
    followed_components: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context.forms.append(self)

    def fixed(self, project: Path) -> Mapping[str, Any]:
        """Settings that nobody types."""
        if self.given is not None:
            return self.given(project)
        return {"run": project} if "run" in find_command(self.name).settings.model_fields else {}

    @property
    def command(self) -> CommandBuilder:
        return CommandBuilder(find_command(self.name), self.context.roots, self.json, self.choices, self.path_keys)

    def add(
        self,
        key: str,
        *,
        label: str = "",
        info: str = "",
        sought: PathFilter | None = None,
        default: Callable[[Path], Any] | None = None,
        lines: int = 1,
    ) -> Any:
        """Make the control of one setting here; gives the component."""
        leaf = next(leaf for leaf in find_command(self.name).leaves() if leaf.key == key)
        if key in EXECUTABLE_SETTINGS and key not in self.choices:
            raise ValueError(f"{key} names a program: give the words that can be chosen")
        words = self.choices.get(key) or leaf.choices
        about: dict[str, Any] = {
            "label": label or _label_from_key(key),
            "info": info or leaf.field.description,
            "elem_id": slug(f"{self.name}-{key}"),
            "interactive": True,
        }
        if leaf.is_path and sought is None:
            sought = FOLDER_PATHS
        component = build_component(leaf, words, sought, lines, about)
        self.controls.append(FormControl(leaf, component, sought, default))
        return component

    def share_control(self, key: str, other: FormControl) -> None:
        """Set one more setting by a control that another form has made."""
        leaf = next(leaf for leaf in find_command(self.name).leaves() if leaf.key == key)
        self.controls.append(FormControl(leaf, other.component, other.sought, other.default, shared=True))

    def control(self, key: str) -> FormControl:
        """The control of a setting, for `use`."""
        return next(control for control in self.controls if control.leaf.key == key)

    def add_all(self, keys: Sequence[str]) -> None:
        """Make the controls of several settings, in rows that fold in a narrow window."""
        with gr.Row():
            for key in keys:
                self.add(key)

    def finish(self, button: str, *, output: str = "Result", keep: bool = False) -> JobView:
        """The command, the button that runs it, and how the newest job of the verb stands.

        With `keep`, also a button that writes changed values into run.yaml, where they count for every verb.
        """
        self.preview = gr.Textbox(
            label="The same on a command line",
            value=self._preview("", [control.component.value for control in self.controls]),
            interactive=False,
            elem_classes=["vg-command"],
            elem_id=f"{slug(self.name)}-command",
            lines=1,
            max_lines=6,
        )
        self.filled = gr.State([])
        kept = f"{slug(self.name)}-keep"
        keeping = gr.Button(SAVE_LABEL, elem_id=kept, elem_classes=["vg-act"], render=False) if keep else None
        self.view, self.button, stop = build_job_controls(
            self.context, self.name, button, title=output, is_json=self.json, extra_button=keeping
        )
        self.context.wire([stop.click], self._stop, [self.context.project], [self.view.shown])
        self._wire()
        if keeping is not None:
            self._wire_save_button(keeping)
        return self.view

    def follow(self, component: Any) -> None:
        """Show the command anew also when the page itself, and not somebody, has changed a control."""
        if self.preview is None:
            self.followed_components.append(component)
            return
        inputs = [self.context.project, *(control.component for control in self.controls)]
        self.context.wire(
            [component.change], lambda project, *values: self._preview(project, values), inputs, [self.preview]
        )

    def words(self, project: str, values: Sequence[Any]) -> list[str]:
        """The words of the command for these values; an error where they make no sense."""
        folder = self.context.project_folder(project)
        typed = {control.leaf.key: value for control, value in zip(self.controls, values, strict=True)}
        return self.build_command_argv(folder, typed)

    def build_command_argv(self, folder: Path, typed: Mapping[str, Any]) -> list[str]:
        """The words of the command for values by their keys; what is still missing is said in the page's own words."""
        fixed = self.fixed(folder)
        self.require({**typed, **fixed})
        return self.command.words(typed, folder, fixed)

    def require(self, values: Mapping[str, Any]) -> None:
        """An error that names, as the page does, what has to be given and is not."""
        given = {key for key, value in values.items() if _is_filled(value)}
        needed = [
            _component_label(one) for one in self.controls if one.leaf.field.is_required() and one.leaf.key not in given
        ]
        if self.one_of and not given & {*self.one_of}:
            needed.append(" or ".join(_component_label(self.control(key)) for key in self.one_of))
        if needed:
            raise ConfigError(NEEDED_CODE, f"still needed: {', '.join(needed)}")

    def _preview(self, project: str, values: Sequence[Any]) -> str:
        try:
            return format_command(self.words(project, values))
        except VoxgraftError as error:
            # That something is not there yet is nobody's fault, and no error to be shown.
            return error.finding.found if error.code in (NEEDED_CODE, NO_PROJECT_CODE) else str(error)

    def _wire(self) -> None:
        components = [control.component for control in self.controls]
        inputs = [self.context.project, *components]
        wire = self.context.wire
        if components:
            wire(
                [event for component in components for event in _edit_events(component)],
                lambda project, *values: self._preview(project, values),
                inputs,
                [self.preview],
                trigger_mode="always_last",
            )
        assert self.view is not None
        assert self.button is not None
        wire([self.button.click], self._start, inputs, [self.view.shown])
        filling = [control.component for control in self.controls if not control.shared]
        filling += [self.preview, self.filled]
        self.context.on_project(self._opened, filling)
        self.context.on_job_end(self._refill, [self.filled, *components], filling)
        for component in self.followed_components:
            self.follow(component)

    def _wire_save_button(self, button: Any) -> None:
        assert self.view is not None
        inputs = [self.context.project, *(control.component for control in self.controls)]
        self.context.wire([button.click], self._keep, inputs, [self.preview, self.view.shown])

    def _keep(self, project: str, *values: Any) -> list[Any]:
        try:
            folder = self.context.project_folder(project)
            typed = {control.leaf.key: value for control, value in zip(self.controls, values, strict=True)}
            changed = self.command.changed(typed, folder, self.fixed(folder))
            set_run_yaml_values(folder, changed)
        except VoxgraftError as error:
            return [gr.skip(), error_html(error)]
        nothing = "nothing to write: all values are the run's own, or empty"
        kept = f"written into run.yaml: {', '.join(changed)}" if changed else nothing
        return [self._preview(project, values), note_html(kept, "good")]

    def _start(self, project: str, *values: Any) -> str:
        assert self.view is not None
        try:
            words = self.words(project, values)
            job = ProjectJobs(self.context.project_folder(project)).start(self.name, words, self.context.roots.home)
        except VoxgraftError as error:
            return error_html(error)
        return self.view.html(job)

    def _stop(self, project: str) -> str:
        assert self.view is not None
        try:
            job = ProjectJobs(self.context.project_folder(project)).stop(self.name)
        except VoxgraftError as error:
            return error_html(error)
        return self.view.html(job)

    def _opened(self, project: str) -> list[Any]:
        """Every control as the project has it, and the command of that."""
        folder = self.context.project_folder(project) if project else None
        try:
            values = self._values(folder)
        except VoxgraftError as error:  # a run.yaml that cannot be read: nothing of another project stays here
            values = self._values(None)
            return [*self._updates(None, None, values), str(error), values]
        return [*self._updates(folder, None, values), self._preview(project, values), values]

    def _refill(self, project: str, filled: Sequence[Any], *values: Any) -> list[Any]:
        """After a job, or a change of run.yaml: what somebody typed, or emptied, stays; all else is as it is now."""
        folder = self.context.project_folder(project)
        fresh = self._values(folder)
        before = filled if len(filled) == len(values) else fresh
        now = [
            new if self._have_same_words(control, value, old) else value
            for control, value, old, new in zip(self.controls, values, before, fresh, strict=True)
        ]
        return [*self._updates(folder, values, now), self._preview(project, now), fresh]

    def initial_values(self, project: str) -> list[Any]:
        """Every control's value as the project has it."""
        return self._values(self.context.project_folder(project))

    def _values(self, folder: Path | None) -> list[Any]:
        own = effective_values(find_command(self.name), folder)
        return [self._initial_value(control, own, folder) for control in self.controls]

    def _have_same_words(self, control: FormControl, one: Any, other: Any) -> bool:
        return self.command.plain(control.leaf, one) == self.command.plain(control.leaf, other)

    def _updates(self, folder: Path | None, before: Sequence[Any] | None, values: Sequence[Any]) -> list[Any]:
        """What the page is sent of this form's own controls. A value that is there already is not sent again.

        Somebody may be typing into it.
        """
        updates = []
        for at, (control, value) in enumerate(zip(self.controls, values, strict=True)):
            if control.shared:
                continue
            is_there = before is not None and self._have_same_words(control, before[at], value)
            sent: dict[str, Any] = {} if is_there else {"value": value}
            if control.sought is not None:
                sent["choices"] = self.context.roots.find(control.sought, folder)
            elif words := self.choices.get(control.leaf.key):
                # The run's own word may be one that nobody can choose here, such as a program that listens.
                sent["choices"] = dropdown_choices(
                    control.leaf, [*words, *([value] if value and value not in words else [])]
                )
            updates.append(gr.update(**sent) if sent else gr.skip())
        return updates

    def _initial_value(self, control: FormControl, own: Mapping[str, Any], folder: Path | None) -> Any:
        value = own[control.leaf.key]
        if control.default is not None and folder is not None and (found := control.default(folder)) is not None:
            value = found
        return component_value(control.leaf, value, self.command)


def build_job_controls(
    context: PageContext,
    verb: str,
    button: str,
    *,
    title: str = "Result",
    is_json: bool = False,
    extra_button: Any = None,
) -> tuple[JobView, Any, Any]:
    """Where the newest job of a verb is shown, the button that starts one, and the one that stops it while it runs.

    `extra_button` is one more button, which was not laid out yet.
    """
    name = slug(verb)
    with gr.Column(elem_classes=["vg-form"]):
        with gr.Row():
            start = gr.Button(button, variant="primary", elem_id=f"{name}-start", elem_classes=["vg-act"])
            stop = gr.Button("Stop", variant="stop", elem_id=f"{name}-stop", elem_classes=["vg-act", "vg-stop"])
            if extra_button is not None:
                extra_button.render()
        shown = gr.HTML(elem_id=f"{name}-state", elem_classes=["vg-live"])
    view = JobView(verb, shown, context.tab, title, is_json)
    context.add_view(view)
    return view, start, stop


def slug(name: str) -> str:
    """A verb's or a setting's name as part of an id."""
    return name.replace(" ", "-").replace(".", "-").replace("_", "-")


def _edit_events(component: Any) -> list[Any]:
    """The events of somebody changing a control, and never of the page filling it: then others are not filled yet."""
    # A text that is pasted, and a path that a list does not hold, are only told when the control is left.
    leaves = isinstance(component, gr.Textbox | gr.Dropdown)
    return [component.input, component.blur] if leaves else [component.input]


def _label_from_key(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ").capitalize()


def _is_filled(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else value not in (None, [], ())


def _component_label(control: FormControl) -> str:
    return str(control.component.label)


PathNamer = Callable[[Path], Path]


@dataclass
class OutputForm(CommandForm):
    """A form with outputs that are named by themselves while nobody names them."""

    fresh: dict[str, PathNamer] = field(default_factory=dict)
    """By setting: a free name in the project."""
    unless: dict[str, str] = field(default_factory=dict)
    """By setting: another one that makes the name unnecessary where it is given."""

    def words(self, project: str, values: Sequence[Any]) -> list[str]:
        """The words of the command, with a free name for every output that has none."""
        folder = self.context.project_folder(project)
        given = {control.leaf.key: value for control, value in zip(self.controls, values, strict=True)}
        for key, naming in self.fresh.items():
            if not given.get(key) and not given.get(self.unless.get(key, "")):
                given[key] = self.context.roots.short(naming(folder).resolve())
        return self.build_command_argv(folder, given)


def next_free_path(path: Path) -> Path:
    """The path, or the next one with a number of which nothing is there, whatever its ending."""
    number, tried = 1, path
    while tried.exists() or any(tried.parent.glob(f"{escape(tried.stem)}.*")):
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried


def add_upload(context: PageContext, form: CommandForm, key: str, label: str, endings: Sequence[str]) -> None:
    """A place to drop one file, which then is the value of a control of the form."""
    name = f"{form.name}-{key}".replace(" ", "-").replace("_", "-")
    control = form.control(key)
    with gr.Column(min_width=260):
        file = gr.File(file_types=list(endings), elem_id=f"{name}-upload", height=150, interactive=False)
        disable_until_project_open(context, file, label)
        said = gr.HTML(elem_id=f"{name}-upload-state", elem_classes=["vg-live"])

    def landed(project: str, given: str | None) -> list[Any]:
        try:
            taken = move_uploads(context.roots, context.project_folder(project), [given] if given else [])
        except VoxgraftError as error:
            return [error_html(error), None, gr.skip()]
        if not taken:
            return [gr.skip(), gr.skip(), gr.skip()]
        value = context.roots.short(taken[0])
        return [
            note_html(f"in the project now: {taken[0].name}", "good"),
            None,
            [value] if control.leaf.is_list else value,
        ]

    context.wire([file.upload], landed, [context.project, file], [said, file, control.component])
    form.follow(control.component)


def disable_until_project_open(context: PageContext, file: Any, label: str) -> None:
    """Nothing can be dropped before a project is open: it would belong nowhere, and be lost."""
    file.label = f"{label}: open a project first"
    context.on_project(lambda _: [gr.update(interactive=True, label=label)], [file])


def last_job_result(folder: Path, verb: str) -> dict[str, Any] | None:
    """What the newest job of a verb found, for machines; nothing while it runs."""
    job = ProjectJobs(folder).latest(verb)
    return job.result() if job is not None and not job.alive else None
