"""The page: the projects bar and the tabs, one module each, and the one clock that keeps what is shown up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import gradio as gr

from voxgraft.errors import VoxgraftError
from voxgraft.ui.context import Context
from voxgraft.ui.controls import job_updates, stamp_of
from voxgraft.ui.jobs import Jobs
from voxgraft.ui.projects import build_bar
from voxgraft.ui.roots import Roots

TABS = {
    "Data": "data",
    "Tokenizer": "tokenizer",
    "Model": "model",
    "Preflight": "preflight",
}
"""Titles of the tabs, in the order of the work, with the modules in `voxgraft/ui/tabs/` whose `build` makes them."""
TICK_SECONDS = 2.0
TAB_ADDRESS = """() => {
  const address = new URL(window.location.href);
  address.searchParams.set("tab", "%s");
  window.history.replaceState(null, "", address);
}"""
"""Puts the chosen tab into the page's address, so that a reload shows it again."""


def build(roots: Roots, pages: str = "") -> gr.Blocks:
    """The whole page."""
    with gr.Blocks(title="voxgraft", analytics_enabled=False, fill_width=True) as demo:
        gr.Markdown("# voxgraft\nTeach a voice a new language, and prove that it still speaks the old ones.")
        project = gr.Textbox(visible="hidden", elem_id="project")
        context = Context(roots, project, pages)
        build_bar(context, demo)
        with gr.Tabs(elem_id="tabs") as tabs:
            for title, module in TABS.items():
                with gr.Tab(title, id=module, elem_id=f"tab-{module}") as tab:
                    import_module(f"voxgraft.ui.tabs.{module}").build(context)
                tab.select(None, js=TAB_ADDRESS % module, api_visibility="private")
        demo.load(_tab_asked, None, tabs, api_visibility="private", show_progress="hidden")
        _wire(context)
    return demo


def _tab_asked(request: gr.Request) -> Any:
    asked = str(request.query_params.get("tab", ""))
    return gr.Tabs(selected=asked) if asked in TABS.values() else gr.skip()


def _wire(context: Context) -> None:
    """Everything that happens by itself: a project is opened, time passes, a job has ended."""
    finished = gr.State("")
    for function, outputs in context.openings:
        context.wire([context.project.change], _opening(function, len(outputs)), [context.project], outputs)
    for refresh, inputs, outputs in context.refreshings:
        context.wire([finished.change], _opening(refresh, len(outputs)), [context.project, *inputs], outputs)
    clock = gr.Timer(TICK_SECONDS)
    stamps = [view.stamp for view in context.views]
    shown = [part for view in context.views for part in (view.state, view.log, view.output, view.stop, view.stamp)]
    context.wire(
        [clock.tick, context.project.change],
        lambda project, done, *known: _looked(context, project, done, known),
        [context.project, finished, *stamps],
        [finished, *shown],
        trigger_mode="once",
    )
    for function, outputs in context.tickings:
        triggers = [clock.tick, context.project.change]
        context.wire(triggers, _opening(function, len(outputs)), [context.project], outputs, trigger_mode="once")


def _opening(function: Callable[..., Sequence[Any]], num_outputs: int) -> Any:
    """A function that leaves everything as it is where the project cannot be read; gives one value for one output."""

    def called(project: str, *more: Any) -> Any:
        try:
            values = list(function(project, *more))
        except VoxgraftError:
            values = [gr.skip()] * num_outputs
        return values if num_outputs != 1 else values[0]

    return called


def _looked(context: Context, project: str, done: str, known: Sequence[str]) -> list[Any]:
    """How every job stands; what has not changed since this page saw it is left alone."""
    try:
        jobs = Jobs(context.project_folder(project))
    except VoxgraftError:
        return [gr.skip()] * (1 + 5 * len(known))
    ended = f"{project} {sum(not job.alive for job in jobs.all())}"
    updates: list[Any] = [gr.skip() if ended == done else ended]
    for view, stamp in zip(context.views, known, strict=True):
        job = jobs.latest(view.verb)
        same = stamp == stamp_of(job)
        updates += [gr.skip()] * 5 if same else job_updates(job, view.for_machines)
    return updates
