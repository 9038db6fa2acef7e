"""Keeps what is shown up to date: a project is opened, time passes, a job has ended; of the tab in view alone.

Gradio's page walks through all its parts for every input and output of an event. So what happens every two seconds
touches a handful of parts, and only what has changed calls the events that fill a tab.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from voxgraft.errors import VoxgraftError
from voxgraft.ui.context import EventHandler, PageContext
from voxgraft.ui.jobs import ProjectJobs
from voxgraft.ui.reading import run_yaml_stamp
from voxgraft.ui.views import job_change_stamp

REFRESH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TabRefresh:
    """The hidden parts of one tab; each calls an event when its value changes."""

    tab: str
    timer: Any
    activated: Any
    """The tab has come into view, or another project has."""
    known: Any
    """What this page has been shown of the tab."""
    opened: Any
    ended: Any
    jobs_changed: Any


def wire_tab_refresh(context: PageContext, active: Any, tabs: Sequence[str]) -> list[Any]:
    """Wire the tabs; gives their timers, of which only that of the tab in view runs."""
    watches = [_create_tab_refresh(tab, tab == tabs[0]) for tab in tabs]
    context.wire(
        [context.project.change, active.change],
        lambda project, tab: [project if watch.tab == tab else gr.skip() for watch in watches],
        [context.project, active],
        [watch.activated for watch in watches],
        trigger_mode="always_last",
    )
    for watch in watches:
        _wire_tab_events(context, watch)
    return [watch.timer for watch in watches]


def _create_tab_refresh(tab: str, in_view: bool) -> TabRefresh:
    timer = gr.Timer(REFRESH_SECONDS, active=in_view)
    return TabRefresh(tab, timer, gr.State(""), gr.State({}), gr.State(""), gr.State(""), gr.State(""))


def _wire_tab_events(context: PageContext, watch: TabRefresh) -> None:
    beat = context.refresh_ticks.get(watch.tab)
    context.wire(
        [watch.timer.tick, watch.activated.change],
        lambda project, known: poll_tab(context, watch.tab, project, known),
        [context.project, watch.known],
        [watch.known, watch.opened, watch.ended, watch.jobs_changed, *([beat] if beat is not None else [])],
        trigger_mode="once",
    )
    for happenings, part in ((context.project_handlers, watch.opened), (context.job_end_handlers, watch.ended)):
        own = [item for item in happenings if item.tab == watch.tab]
        _wire_combined(context, [item for item in own if not item.slow], part)
        for item in own:
            if item.slow:
                _wire_combined(context, [item], part)
    views = [view for view in context.views if view.tab == watch.tab]
    _wire_combined(
        context,
        [EventHandler(_make_job_views_handler(context, watch.tab), [], [view.shown for view in views])],
        watch.jobs_changed,
    )


def poll_tab(context: PageContext, tab: str, project: str, known: Mapping[str, Any] | None) -> list[Any]:
    """What is new of a tab: the project, jobs that have ended or run.yaml, how its own jobs stand; that time passed."""
    before = dict(known or {})
    has_beat = tab in context.refresh_ticks
    try:
        folder = context.project_folder(project)
        newest = ProjectJobs(folder).newest_by_command()
    except VoxgraftError:
        return [gr.skip()] * (5 if has_beat else 4)
    own = {view.verb for view in context.views if view.tab == tab}
    now = {
        "project": project,
        "ended": " ".join([run_yaml_stamp(folder), *(job.folder.name for job in newest.values() if not job.alive)]),
        "stood": " ".join(job_change_stamp(job) for verb, job in newest.items() if verb in own),
    }
    is_other = before.get("project") != project
    beats = int(before.get("beats", 0)) + 1
    parts: list[Any] = [
        {**now, "beats": beats} if has_beat else gr.skip() if now == before else now,
        project if is_other else gr.skip(),
        gr.skip() if is_other or now["ended"] == before.get("ended") else f"{project} {now['ended']}",
        f"{project} {now['stood']}" if is_other or now["stood"] != before.get("stood") else gr.skip(),
    ]
    return [*parts, f"{project} {beats}"] if has_beat else parts


def _make_job_views_handler(context: PageContext, tab: str) -> Any:
    """How every job of a tab stands."""

    def standing(project: str) -> list[str]:
        newest = ProjectJobs(context.project_folder(project)).newest_by_command()
        views = [view for view in context.views if view.tab == tab]
        return [view.html(newest.get(view.verb)) for view in views]

    return standing


def _wire_combined(context: PageContext, happenings: Sequence[EventHandler], part: Any) -> None:
    """One event for all of them: each event by itself costs a round trip."""
    inputs = [item for happening in happenings for item in happening.inputs]
    outputs = [item for happening in happenings for item in happening.outputs]
    if outputs:
        together = _combine_handlers(happenings)
        context.wire([part.change], together, [context.project, *inputs], outputs, trigger_mode="always_last")


def _combine_handlers(happenings: Sequence[EventHandler]) -> Any:
    """Calls all of them; one that cannot read the project leaves what it shows as it is."""

    def called(project: str, *values: Any) -> Any:
        given = iter(values)
        results: list[Any] = []
        for item in happenings:
            own = [next(given) for _ in item.inputs]
            try:
                results += item.function(project, *own)
            except VoxgraftError:
                results += [gr.skip()] * len(item.outputs)
        return results if len(results) != 1 else results[0]

    return called
