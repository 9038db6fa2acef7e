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
from voxgraft.ui.context import Context, Happening
from voxgraft.ui.jobs import Jobs
from voxgraft.ui.reading import stamp
from voxgraft.ui.views import job_stamp

TICK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Watch:
    """The hidden parts of one tab; each calls an event when its value changes."""

    tab: str
    timer: Any
    turn: Any
    """The tab has come into view, or another project has."""
    known: Any
    """What this page has been shown of the tab."""
    opened: Any
    ended: Any
    stood: Any


def wire_clock(context: Context, active: Any, tabs: Sequence[str]) -> list[Any]:
    """Wire the tabs; gives their timers, of which only that of the tab in view runs."""
    watches = [_watch(tab, tab == tabs[0]) for tab in tabs]
    context.wire(
        [context.project.change, active.change],
        lambda project, tab: [project if watch.tab == tab else gr.skip() for watch in watches],
        [context.project, active],
        [watch.turn for watch in watches],
        trigger_mode="always_last",
    )
    for watch in watches:
        _wire_watch(context, watch)
    return [watch.timer for watch in watches]


def _watch(tab: str, in_view: bool) -> Watch:
    timer = gr.Timer(TICK_SECONDS, active=in_view)
    return Watch(tab, timer, gr.State(""), gr.State({}), gr.State(""), gr.State(""), gr.State(""))


def _wire_watch(context: Context, watch: Watch) -> None:
    beat = context.beats.get(watch.tab)
    context.wire(
        [watch.timer.tick, watch.turn.change],
        lambda project, known: looked(context, watch.tab, project, known),
        [context.project, watch.known],
        [watch.known, watch.opened, watch.ended, watch.stood, *([beat] if beat is not None else [])],
        trigger_mode="once",
    )
    for happenings, part in ((context.openings, watch.opened), (context.refreshings, watch.ended)):
        own = [item for item in happenings if item.tab == watch.tab]
        _wire_together(context, [item for item in own if not item.slow], part)
        for item in own:
            if item.slow:
                _wire_together(context, [item], part)
    views = [view for view in context.views if view.tab == watch.tab]
    _wire_together(context, [Happening(_standing(context, watch.tab), [], [view.shown for view in views])], watch.stood)


def looked(context: Context, tab: str, project: str, known: Mapping[str, Any] | None) -> list[Any]:
    """What is new of a tab: the project, jobs that have ended or run.yaml, how its own jobs stand; that time passed."""
    before = dict(known or {})
    has_beat = tab in context.beats
    try:
        folder = context.project_folder(project)
        newest = Jobs(folder).newest()
    except VoxgraftError:
        return [gr.skip()] * (5 if has_beat else 4)
    own = {view.verb for view in context.views if view.tab == tab}
    now = {
        "project": project,
        "ended": " ".join([stamp(folder), *(job.folder.name for job in newest.values() if not job.alive)]),
        "stood": " ".join(job_stamp(job) for verb, job in newest.items() if verb in own),
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


def _standing(context: Context, tab: str) -> Any:
    """How every job of a tab stands."""

    def standing(project: str) -> list[str]:
        newest = Jobs(context.project_folder(project)).newest()
        views = [view for view in context.views if view.tab == tab]
        return [view.html(newest.get(view.verb)) for view in views]

    return standing


def _wire_together(context: Context, happenings: Sequence[Happening], part: Any) -> None:
    """One event for all of them: each event by itself costs a round trip."""
    inputs = [item for happening in happenings for item in happening.inputs]
    outputs = [item for happening in happenings for item in happening.outputs]
    if outputs:
        together = _together(happenings)
        context.wire([part.change], together, [context.project, *inputs], outputs, trigger_mode="always_last")


def _together(happenings: Sequence[Happening]) -> Any:
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
