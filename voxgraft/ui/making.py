"""Forms whose results are new files of the project, and files that are uploaded for one control.

A verb that would not write over what is there gets a name that is free when its button is pressed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.errors import VoxgraftError
from voxgraft.ui.context import PageContext
from voxgraft.ui.controls import CommandForm
from voxgraft.ui.jobs import ProjectJobs
from voxgraft.ui.uploads import move_uploads
from voxgraft.ui.views import error_html, note_html

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
