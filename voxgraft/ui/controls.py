"""Forms: controls made from a verb's own settings, its command as they change, and the job that it becomes.

Names, helps, choices and defaults stand in the settings and nowhere else. What a form does is one command.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.config import Leaf
from voxgraft.errors import VoxgraftError
from voxgraft.ui.commands import EXECUTED, Command, own_values, shown, verb_named
from voxgraft.ui.context import Context
from voxgraft.ui.jobs import Job, Jobs
from voxgraft.ui.keeping import keep
from voxgraft.ui.roots import FOLDERS, Sought
from voxgraft.ui.views import error_note, job_html, note

AUTOMATIC = "automatic"
Fixed = Callable[[Path], Mapping[str, Any]]


@dataclass(slots=True)
class Control:
    """One control: the setting that it sets, and what it is filled with when a project is opened."""

    leaf: Leaf
    component: Any
    sought: Sought | None = None
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

    def html(self, job: Job | None) -> str:
        """What it shows of a job."""
        return job_html(job, self.for_machines, self.title)


@dataclass(slots=True)
class Form:
    """The controls of one verb on one tab. `add` them where they belong, then `finish`."""

    context: Context
    name: str
    given: Fixed | None = None
    """Settings that nobody types; without it the run itself, where the verb takes one."""
    choices: dict[str, Sequence[str]] = field(default_factory=dict)
    path_keys: tuple[str, ...] = ()
    json: bool = False
    controls: list[Control] = field(default_factory=list)
    view: JobView | None = None
    preview: Any = None
    button: Any = None
    followed: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context.forms.append(self)

    def fixed(self, project: Path) -> Mapping[str, Any]:
        """Settings that nobody types."""
        if self.given is not None:
            return self.given(project)
        return {"run": project} if "run" in verb_named(self.name).settings.model_fields else {}

    @property
    def command(self) -> Command:
        return Command(verb_named(self.name), self.context.roots, self.json, self.choices, self.path_keys)

    def add(
        self,
        key: str,
        *,
        label: str = "",
        info: str = "",
        sought: Sought | None = None,
        default: Callable[[Path], Any] | None = None,
        lines: int = 1,
    ) -> Any:
        """Make the control of one setting here; gives the component."""
        leaf = next(leaf for leaf in verb_named(self.name).leaves() if leaf.key == key)
        if key in EXECUTED and key not in self.choices:
            raise ValueError(f"{key} names a program: give the words that can be chosen")
        words = self.choices.get(key) or leaf.choices
        about: dict[str, Any] = {
            "label": label or _label(key),
            "info": info or leaf.field.description,
            "elem_id": slug(f"{self.name}-{key}"),
            "interactive": True,
        }
        if leaf.is_path and sought is None:
            sought = FOLDERS
        component = _component(leaf, words, sought, lines, about)
        self.controls.append(Control(leaf, component, sought, default))
        return component

    def use(self, key: str, other: Control) -> None:
        """Set one more setting by a control that another form has made."""
        leaf = next(leaf for leaf in verb_named(self.name).leaves() if leaf.key == key)
        self.controls.append(Control(leaf, other.component, other.sought, other.default, shared=True))

    def control(self, key: str) -> Control:
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
        self.view, self.button, stop = job_parts(self.context, self.name, button, title=output, for_machines=self.json)
        self.context.wire([stop.click], self._stop, [self.context.project], [self.view.shown])
        self._wire()
        if keep:
            self._wire_keeping(
                gr.Button(
                    "Keep these values in run.yaml",
                    size="sm",
                    elem_id=f"{slug(self.name)}-keep",
                    elem_classes=["vg-act"],
                )
            )
        return self.view

    def follow(self, component: Any) -> None:
        """Show the command anew also when the page itself, and not somebody, has changed a control."""
        if self.preview is None:
            self.followed.append(component)
            return
        inputs = [self.context.project, *(control.component for control in self.controls)]
        self.context.wire(
            [component.change], lambda project, *values: self._preview(project, values), inputs, [self.preview]
        )

    def words(self, project: str, values: Sequence[Any]) -> list[str]:
        """The words of the command for these values; an error where they make no sense."""
        folder = self.context.project_folder(project)
        typed = {control.leaf.key: value for control, value in zip(self.controls, values, strict=True)}
        return self.command.words(typed, folder, self.fixed(folder))

    def _preview(self, project: str, values: Sequence[Any]) -> str:
        try:
            return shown(self.words(project, values))
        except VoxgraftError as error:
            return str(error)

    def _wire(self) -> None:
        components = [control.component for control in self.controls]
        inputs = [self.context.project, *components]
        wire = self.context.wire
        if components:
            wire(
                [event for component in components for event in _typed(component)],
                lambda project, *values: self._preview(project, values),
                inputs,
                [self.preview],
                trigger_mode="always_last",
            )
        assert self.view is not None
        assert self.button is not None
        wire([self.button.click], self._start, inputs, [self.view.shown])
        own = [control.component for control in self.controls if not control.shared]
        self.context.on_project(self._opened, [*own, self.preview])
        paths = [control.component for control in self.controls if control.sought and not control.shared]
        self.context.on_job_end(self._found_again, components, [*paths, self.preview])
        for component in self.followed:
            self.follow(component)

    def _wire_keeping(self, button: Any) -> None:
        assert self.view is not None
        inputs = [self.context.project, *(control.component for control in self.controls)]
        self.context.wire([button.click], self._keep, inputs, [self.preview, self.view.shown])

    def _keep(self, project: str, *values: Any) -> list[Any]:
        try:
            folder = self.context.project_folder(project)
            typed = {control.leaf.key: value for control, value in zip(self.controls, values, strict=True)}
            changed = self.command.changed(typed, folder, self.fixed(folder))
            keep(folder, changed)
        except VoxgraftError as error:
            return [gr.skip(), error_note(error)]
        kept = f"written into run.yaml: {', '.join(changed)}" if changed else "run.yaml has these values already"
        return [self._preview(project, values), note(kept, "good")]

    def _start(self, project: str, *values: Any) -> str:
        assert self.view is not None
        try:
            words = self.words(project, values)
            job = Jobs(self.context.project_folder(project)).start(self.name, words, self.context.roots.home)
        except VoxgraftError as error:
            return error_note(error)
        return self.view.html(job)

    def _stop(self, project: str) -> str:
        assert self.view is not None
        job = Jobs(self.context.project_folder(project)).latest(self.name)
        if job is not None:
            job.stop()
        return self.view.html(job)

    def _opened(self, project: str) -> list[Any]:
        """Every control as the project has it, and the command of that."""
        folder = self.context.project_folder(project) if project else None
        try:
            own = own_values(verb_named(self.name), folder)
        except VoxgraftError as error:
            return [*(gr.skip() for control in self.controls if not control.shared), str(error)]
        values = [self._filled(control, own, folder) for control in self.controls]
        updates = [
            gr.update(value=value, choices=self._found(control, folder)) if control.sought else gr.update(value=value)
            for control, value in zip(self.controls, values, strict=True)
            if not control.shared
        ]
        return [*updates, self._preview(project, values)]

    def opening_values(self, project: str) -> list[Any]:
        """Every control's value as the project has it."""
        folder = self.context.project_folder(project)
        own = own_values(verb_named(self.name), folder)
        return [self._filled(control, own, folder) for control in self.controls]

    def _found(self, control: Control, folder: Path | None) -> list[str]:
        assert control.sought is not None
        return self.context.roots.find(control.sought, folder)

    def _found_again(self, project: str, *values: Any) -> list[Any]:
        """Lists of paths after a job has ended; what is empty gets its default, which may only now be there."""
        folder = self.context.project_folder(project)
        own = own_values(verb_named(self.name), folder)
        updates, now = [], []
        for control, value in zip(self.controls, values, strict=True):
            now.append((value or self._filled(control, own, folder)) if control.sought else value)
            if control.sought and not control.shared:
                updates.append(gr.update(choices=self._found(control, folder), value=now[-1]))
        return [*updates, self._preview(project, now)]

    def _filled(self, control: Control, own: Mapping[str, Any], folder: Path | None) -> Any:
        value = own[control.leaf.key]
        if control.default is not None and folder is not None and (found := control.default(folder)) is not None:
            value = found
        return _value(control.leaf, value, self.command)


def job_parts(
    context: Context, verb: str, button: str, *, title: str = "Result", for_machines: bool = False
) -> tuple[JobView, Any, Any]:
    """Where the newest job of a verb is shown, the button that starts one, and the one that stops it while it runs."""
    name = slug(verb)
    with gr.Column(elem_classes=["vg-form"]):
        with gr.Row():
            start = gr.Button(button, variant="primary", elem_id=f"{name}-start", elem_classes=["vg-act"])
            stop = gr.Button("Stop", variant="stop", elem_id=f"{name}-stop", elem_classes=["vg-act", "vg-stop"])
        shown = gr.HTML(elem_id=f"{name}-state", elem_classes=["vg-live"])
    view = JobView(verb, shown, context.tab, title, for_machines)
    context.add_view(view)
    return view, start, stop


def slug(name: str) -> str:
    """A verb's or a setting's name as part of an id."""
    return name.replace(" ", "-").replace(".", "-").replace("_", "-")


def _typed(component: Any) -> list[Any]:
    """The events of somebody changing a control, and never of the page filling it: then others are not filled yet."""
    # A text that is pasted, and a path that a list does not hold, are only told when the control is left.
    leaves = isinstance(component, gr.Textbox | gr.Dropdown)
    return [component.input, component.blur] if leaves else [component.input]


def _label(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ").capitalize()


def _component(leaf: Leaf, words: Sequence[str], sought: Sought | None, lines: int, about: dict[str, Any]) -> Any:
    default = leaf.default
    if leaf.field.annotation is bool:
        return gr.Checkbox(value=bool(default), **about)
    if leaf.field.annotation == (bool | None):
        return gr.Dropdown([(AUTOMATIC, ""), "yes", "no"], value="", **about)
    if words:
        free = [] if leaf.field.is_required() else [(AUTOMATIC, "")]
        if leaf.is_list:
            return gr.Dropdown(list(words), value=list(default or []), multiselect=True, **about)
        return gr.Dropdown([*free, *words], value=default or (words[0] if not free else ""), **about)
    if sought is not None:
        value: Any = [str(item) for item in default or []] if leaf.is_list else str(default or "")
        return gr.Dropdown([], value=value or None, allow_custom_value=True, multiselect=leaf.is_list or None, **about)
    if leaf.is_number and not leaf.is_list and not _may_be_empty(leaf):
        is_whole = int in _types(leaf.field.annotation)
        step = 1 if is_whole or not default else 10.0 ** math.floor(math.log10(abs(default)))
        return gr.Number(value=default, precision=0 if is_whole else None, step=step, min_width=120, **about)
    if leaf.is_list:
        about["info"] = f"{about['info']} One on each line."
        return gr.Textbox(value="\n".join(map(str, default or ())), lines=max(2, lines), **about)
    about["min_width"] = 120 if leaf.is_number else 160
    text = "" if default is None else f"{default:g}" if leaf.is_number else str(default)
    return gr.Textbox(value=text, lines=lines, placeholder=AUTOMATIC if default is None else "", **about)


def _value(leaf: Leaf, value: Any, command: Command) -> Any:
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


def _may_be_empty(leaf: Leaf) -> bool:
    """Whether a number may be left open. Gradio's own field of a number puts 0 where nothing is."""
    return type(None) in _types(leaf.field.annotation)


def _types(annotation: Any) -> tuple[Any, ...]:
    from typing import get_args

    return (annotation, *get_args(annotation))
