"""What every tab is given: the open project, the allowed folders, and how events are wired. Holds no state of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from voxgraft.errors import ConfigError, FileError
from voxgraft.exporting.names import EXPORT_CARD_NAME as EXPORT_CARD
from voxgraft.graft_folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.run import RUN_FILE
from voxgraft.sharing.contents import ADAPTER_CARD
from voxgraft.ui.roots import Roots

if TYPE_CHECKING:
    from voxgraft.ui.controls import CommandForm, JobView

ProjectHandler = Callable[[str], Sequence[Any]]
RECEIVED_CARDS = (GRAFT_CARD, EXPORT_CARD, ADAPTER_CARD)
"""What lies on top of everything that `pull` has taken in."""


@dataclass(frozen=True, slots=True)
class EventHandler:
    """What is called when something has happened: `function(project, *inputs)`, with a value for each output."""

    function: Callable[..., Sequence[Any]]
    inputs: list[Any]
    outputs: list[Any]
    slow: bool = False
    """Whether it takes so long that the others shall not wait for it."""
    tab: str = ""
    """The tab that it belongs to; only what is in view is looked after."""


@dataclass(slots=True)
class PageContext:
    """The page while it is built."""

    roots: Roots
    project: Any
    """A hidden text: the short name of the open project's folder, or nothing. The first input of every event."""
    pages: str = ""
    """First part of the addresses under which reports of a project are served; see `pages.py`."""
    tab: str = ""
    """The tab that is being built."""
    forms: list[CommandForm] = field(default_factory=list)
    views: list[JobView] = field(default_factory=list)
    project_handlers: list[EventHandler] = field(default_factory=list)
    job_end_handlers: list[EventHandler] = field(default_factory=list)
    refresh_ticks: dict[str, Any] = field(default_factory=dict)

    def project_folder(self, project: str) -> Path:
        """The folder of the open project; an error where none is open or it is not a project any more."""
        if not project:
            raise ConfigError("ui-no-project", "no project is open")
        folder = self.roots.resolve_inside(project)
        if not (folder / RUN_FILE).is_file():
            raise FileError("ui-no-project", f"{project} has no {RUN_FILE} any more", where=folder)
        if (above := self._find_received_folder(folder)) is not None:
            # A run.yaml may name programs, and files anywhere: one that somebody sent is not followed.
            raise FileError("ui-no-project", f"{project} is part of what was taken in from elsewhere", where=above)
        return folder

    def _find_received_folder(self, folder: Path) -> Path | None:
        """What was sent by somebody and holds the folder; the roots themselves and all above them are not asked."""
        for path in (folder, *folder.parents):
            if path in self.roots.paths:
                break
            if any((path / name).is_file() for name in RECEIVED_CARDS):
                return path
        return None

    def wire(
        self, triggers: Sequence[Any], function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any],
        **more: Any,
    ) -> Any:  # fmt: skip
        """An event without spinner and without a public address."""
        # Gradio tells every part that ever waited for something of every event: so nothing but one part waits.
        quiet = {"show_progress": "hidden", "show_progress_on": [self.project], "api_visibility": "private"}
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
        self.project_handlers.append(EventHandler(function, list(inputs), outputs, slow, self.tab))

    def on_change(self, function: ProjectHandler, outputs: list[Any], *, slow: bool = False) -> None:
        """The same, and again whenever a job of the project has ended, or its run.yaml has changed."""
        self.on_project(function, outputs, slow=slow)
        self.on_job_end(function, [], outputs, slow=slow)

    def on_job_end(
        self, function: Callable[..., Sequence[Any]], inputs: list[Any], outputs: list[Any], *, slow: bool = False
    ) -> None:
        """Call `function(project, *inputs)` whenever a job of the project has ended, or its run.yaml has changed."""
        self.job_end_handlers.append(EventHandler(function, inputs, outputs, slow, self.tab))

    def refresh_tick(self) -> Any:
        """A hidden part that changes every two seconds while this tab is in view, and when a project is opened."""
        return self.refresh_ticks.setdefault(self.tab, gr.State(""))

    def add_view(self, view: JobView) -> None:
        """Keep the view of a verb's newest job up to date."""
        self.views.append(view)
