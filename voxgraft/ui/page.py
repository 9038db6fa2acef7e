"""The page while it is built, and jobs on it: what tabs register (`PageContext`), buttons that start and stop jobs.

Tabs register here what is called when a project is opened, a job ends or a stamp changes; `app.py` wires it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import gradio as gr

from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import is_file
from voxgraft.core.run import RUN_FILE
from voxgraft.export.share import ADAPTER_CARD, EXPORT_CARD_NAME
from voxgraft.graft.folder import GRAFT_CARD_NAME
from voxgraft.ui.files import PROJECT_PATHS, Roots
from voxgraft.ui.html import NO_PROJECT_CODE, NO_PROJECT_WORDS, PAGE_TARGETS, PageTarget, error_html, job_html
from voxgraft.ui.jobs import ProjectJobs, UiJob, find_external_holder
from voxgraft.ui.live import RunningJobs

if TYPE_CHECKING:
    from voxgraft.ui.forms import CommandForm

COMMAND_LABEL = "Command line"
# Buttons inside of HTML parts: `data-act` says what is to happen, the other data attributes to what.
ACTIONS_JS = """element.addEventListener("click", event => {
  const button = event.target.closest("[data-act]");
  if (button) { trigger("click", {...button.dataset}); }
});"""
# Files at the top of everything that `pull` has unpacked.
RECEIVED_CARDS = (GRAFT_CARD_NAME, EXPORT_CARD_NAME, ADAPTER_CARD)
# What to call after an event: `function(project, *inputs)` gives a value for each output. Inputs and outputs follow.
EventHandler = tuple[Callable[..., Sequence[Any]], list[Any], list[Any]]
# Of events that follow a run: one during another runs after it, and no older answer comes after a newer one. Gradio's
# page alone does not see to that: it starts two events that come within milliseconds.
IN_ORDER: dict[str, Any] = {"trigger_mode": "always_last", "concurrency_limit": 1}
READ_TRIES, READ_PAUSE_SECONDS = 3, 0.3
RUN_WRITERS = ("go", "train", "graft", "prepare")


@dataclass(slots=True)
class PageContext:
    """The page while it is built."""

    roots: Roots
    project: Any
    """A hidden text: the short name of the open project's folder, or empty. The first input of every event."""
    pages: str = ""
    """First part of the addresses under which the server hands out files of a project."""
    tab: str = ""
    """The tab that is being built."""
    forms: list[CommandForm] = field(default_factory=list)
    views: list[JobView] = field(default_factory=list)
    project_handlers: list[tuple[str, EventHandler, bool]] = field(default_factory=list)
    """With the tab that it belongs to (only the visible one is kept up to date), and whether others must not wait."""
    job_end_handlers: list[tuple[str, EventHandler, bool]] = field(default_factory=list)
    stamps: dict[str, tuple[Any, Callable[[str], str]]] = field(default_factory=dict)
    """By tab: a hidden part that changes when what its function says of the open project does; see `on_stamp`."""
    opener: list[Any] = field(default_factory=list)
    """The parts that `open_project` has values for: the project, its chooser, the note beside it."""
    load_handlers: list[EventHandler] = field(default_factory=list)
    running: RunningJobs = field(init=False)

    def __post_init__(self) -> None:
        self.running = RunningJobs(self.roots)

    def open_project(self, project: str | None, message: str = "") -> list[Any]:
        """Values of `opener` for a project: its short name, the list of all, and a note."""
        known = self.running.names = self.roots.find(PROJECT_PATHS)
        if not project:
            return ["", gr.update(choices=known, value=None), message]
        try:
            short = self.roots.short(self.project_folder(project))
        except VoxgraftError as error:
            return ["", gr.update(choices=known, value=None), error_html(error)]
        choices = known if short in known else [short, *known]
        return [short, gr.update(choices=choices, value=short), message]

    def project_folder(self, project: str) -> Path:
        """The folder of the open project; an error if none is open or it is not a project any more."""
        if not project:
            raise ConfigError(NO_PROJECT_CODE, NO_PROJECT_WORDS)
        folder = self.roots.resolve_inside(project)
        if not is_file(folder / RUN_FILE):
            raise FileError(NO_PROJECT_CODE, f"{project} no longer has a {RUN_FILE}", where=folder)
        for path in (folder, *folder.parents):
            if path in self.roots.paths:
                break
            if any((path / name).is_file() for name in RECEIVED_CARDS):
                # A run.yaml may name programs, and files anywhere: one that somebody sent is not followed.
                raise FileError(NO_PROJECT_CODE, f"{project} is part of an imported graft or export", where=path)
        return folder

    def file_url(self, path: Path, *, versioned: bool = False) -> str:
        """The address of a file inside the roots; a version makes the browser fetch it again when it has changed."""
        version = f"?v={path.stat().st_mtime_ns}" if versioned else ""
        return f"{self.pages}/{quote(self.roots.short(path.resolve()))}{version}"

    def wire(
        self, triggers: Sequence[Any], function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any],
        **more: Any,
    ) -> Any:  # fmt: skip
        """Wire an event without a spinner and without a public API endpoint."""
        # Gradio notifies every component that ever showed progress of every event, so none does.
        quiet = {"show_progress": "hidden", "show_progress_on": [], "api_visibility": "private"}
        settings: dict[str, Any] = {**quiet, **more}
        return gr.on(list(triggers), function, list(inputs), list(outputs), **settings)

    def on_project(
        self,
        function: Callable[..., Sequence[Any]],
        outputs: list[Any],
        inputs: Sequence[Any] = (),
        *,
        slow: bool = False,
    ) -> None:
        """Call `function(project, *inputs)` when a project is opened or reloaded; it gives a value for each output."""
        self.project_handlers.append((self.tab, (function, list(inputs), outputs), slow))

    def on_stamp(
        self, stamp: Callable[[str], str], function: Callable[..., Sequence[Any]], inputs: list[Any], outputs: list[Any]
    ) -> None:
        """Call `function(project, *inputs)` when `stamp(project)` has changed.

        The stamp is asked with every poll of the tab in view, so it must be cheap; an idle page has hardly other work.
        """
        part = gr.State("")
        self.stamps[self.tab] = part, stamp
        called = functools.partial(call_until_read, function)
        self.wire([part.change], called, [self.project, *inputs], outputs, **IN_ORDER)

    def on_load(self, function: Callable[[str], Sequence[Any]], outputs: list[Any]) -> None:
        """Call `function(project)` when the page is loaded, whether a project is open or not."""
        self.load_handlers.append((function, [], outputs))

    def on_change(self, function: Callable[[str], Sequence[Any]], outputs: list[Any], *, slow: bool = False) -> None:
        """The same, and again whenever a job of the project has ended, or its run.yaml has changed."""
        self.on_project(function, outputs, slow=slow)
        self.on_job_end(function, [], outputs, slow=slow)

    def on_job_end(
        self, function: Callable[..., Sequence[Any]], inputs: list[Any], outputs: list[Any], *, slow: bool = False
    ) -> None:
        """Call `function(project, *inputs)` whenever a job of the project has ended, or its run.yaml has changed."""
        self.job_end_handlers.append((self.tab, (function, inputs, outputs), slow))


def call_until_read(function: Callable[..., Any], *values: Any) -> Any:
    """Call a function that reads files of a running job, and again if one was moved or half written just then.

    An event that fails loses its update, and the one that waits behind it, until the files change once more.
    """
    for _ in range(READ_TRIES - 1):
        try:
            return function(*values)
        except (OSError, ValueError, KeyError):
            time.sleep(READ_PAUSE_SECONDS)
    return function(*values)


@dataclass(frozen=True, slots=True)
class JobView:
    """Where the newest job of a command is shown."""

    verb: str
    shown: Any
    tab: str
    title: str = "Result"
    is_json: bool = False
    """Whether the result is JSON, which a tab shows in its own way."""
    button: Any = None
    """The button that starts it, unless a tab itself decides when it can be pressed."""

    def html(self, job: UiJob | None) -> str:
        """The job as HTML."""
        return job_html(job, self.is_json, self.title)

    def button_update(self, folder: Path) -> Any:
        """The start button: it says so, and cannot be pressed, while a job runs that excludes this one."""
        busy = ProjectJobs(folder).conflicting(self.verb)
        # The lock of the run is for what writes to it; the others may run beside a training in a terminal.
        is_held = self.verb in RUN_WRITERS and find_external_holder(folder) is not None
        words = f"{self.button.value} (running)" if busy is not None and busy.verb == self.verb else self.button.value
        if busy is not None and busy.verb != self.verb:
            # `go` is the command; the button that starts it is called otherwise.
            running = PAGE_TARGETS[busy.verb, ""].label if (busy.verb, "") in PAGE_TARGETS else busy.verb
            words = f"{self.button.value} (“{running}” is running)"
        return gr.update(interactive=busy is None and not is_held, value=words)


def build_job_controls(
    context: PageContext,
    verb: str,
    button: str,
    *,
    title: str = "Result",
    is_json: bool = False,
    extra_button: Any = None,
    own_button: bool = False,
    is_primary: bool = True,
) -> tuple[JobView, Any]:
    """The view of the newest job of a command and the button that starts one; the stop button is wired here.

    `extra_button` is one more button, which was not laid out yet. `own_button`: see `CommandForm.finish`.
    """
    name = slug(verb)
    with gr.Column(elem_classes=["vg-form"]):
        with gr.Row():
            variant = "primary" if is_primary else "secondary"
            start = gr.Button(button, variant=variant, elem_id=f"{name}-start", elem_classes=["vg-act"])
            stop = gr.Button("Stop", variant="stop", elem_id=f"{name}-stop", elem_classes=["vg-act", "vg-stop"])
            if extra_button is not None:
                extra_button.render()
        shown = gr.HTML(elem_id=f"{name}-state", elem_classes=["vg-live"])
    view = JobView(verb, shown, context.tab, title, is_json, None if own_button else start)
    add_page_target(context, verb, "", start, button)
    add_job_view(context, view, stop)
    return view, start


def add_job_view(context: PageContext, view: JobView, stop: Any) -> None:
    """Keep a view up to date, and let its button stop the job."""

    def stop_job(project: str) -> str:
        try:
            job = ProjectJobs(context.project_folder(project)).latest(view.verb)
            if job is not None:
                job.stop()
            return view.html(job)
        except VoxgraftError as error:
            return error_html(error)

    context.views.append(view)
    context.wire([stop.click], stop_job, [context.project], [view.shown])


def start_job(
    context: PageContext,
    project: str,
    view: JobView,
    build_argv: Callable[[], list[str]],
    first: Callable[[Path], list[str]] | None = None,
) -> Any:
    """Start a job of the view's command; returns the HTML of the job or of the error, and the button if it has one."""
    try:
        folder = context.project_folder(project)
        argv = build_argv()
        before = first(folder) if first is not None else ()
        shown = view.html(ProjectJobs(folder).start(view.verb, argv, context.roots.home, before))
        return [shown, view.button_update(folder)] if view.button is not None else shown
    except VoxgraftError as error:
        shown = error_html(error, view.verb)
        return [shown, gr.skip()] if view.button is not None else shown


def build_command_fold(name: str, value: str = "") -> Any:
    """The command line of a form, in a fold that the page's own script opens (`PAGE_HEAD_HTML` in app.py)."""
    with gr.Column(elem_classes=["vg-cli"], min_width=0):
        gr.HTML(
            f'<button type="button" class="vg-fold" data-fold aria-expanded="false" aria-controls="{name}-command">'
            f"{COMMAND_LABEL}</button>",
            padding=False,
        )
        return gr.Textbox(
            label=COMMAND_LABEL, value=value, interactive=False, elem_classes=["vg-command"],
            elem_id=f"{name}-command", lines=1, max_lines=6,
        )  # fmt: skip


def add_page_target(context: PageContext, verb: str, key: str, component: Any, label: str = "") -> None:
    """Let messages about a setting, or about a command (no key), lead to its control."""
    folds, parent = [], component.parent
    while parent is not None:
        if isinstance(parent, gr.Accordion):
            parent.elem_id = parent.elem_id or f"fold-{slug(verb)}-{parent._id}"
            folds.append(str(parent.elem_id))
        parent = parent.parent
    named = label or str(component.label)
    PAGE_TARGETS[verb, key] = PageTarget(context.tab, named, str(component.elem_id), tuple(reversed(folds)))


def last_job_result(folder: Path, verb: str) -> dict[str, Any] | None:
    """The JSON result of the newest job of a command; None while it runs."""
    job = ProjectJobs(folder).latest(verb)
    return (job.read("out.txt") or None) if job is not None and not job.alive else None


def slug(name: str) -> str:
    """A command's or a setting's name as part of an element id."""
    return name.replace(" ", "-").replace(".", "-").replace("_", "-")
