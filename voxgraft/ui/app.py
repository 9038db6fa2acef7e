"""The page: the projects bar and the tabs, one module each, and the one clock that keeps what is shown up to date."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import gradio as gr

from voxgraft.errors import VoxgraftError
from voxgraft.ui.context import Context, Happening
from voxgraft.ui.controls import job_updates, stamp_of
from voxgraft.ui.jobs import Jobs
from voxgraft.ui.projects import build_bar
from voxgraft.ui.roots import Roots

TABS = {
    "Data": "data",
    "Tokenizer": "tokenizer",
    "Model": "model",
    "Preflight": "preflight",
    "Train": "train",
    "Diagnose": "diagnose",
    "Evaluate": "evaluate",
    "Export": "export",
    "Speak": "speak",
}
"""Titles of the tabs, in the order of the work, with the modules in `voxgraft/ui/tabs/` whose `build` makes them."""
TICK_SECONDS = 2.0
TAB_ADDRESS = """() => {
  if (!window.voxgraftTouched) { return; }
  const address = new URL(window.location.href);
  address.searchParams.set("tab", "%s");
  window.history.replaceState(null, "", address);
}"""
"""Puts the tab that somebody chose into the page's address, so that a reload shows it again."""
TAB_ASKED = """() => [new URLSearchParams(window.voxgraftAsked).get("tab") || ""]"""
HEAD = """<script>
window.voxgraftAsked = window.location.search;
for (const touch of ["pointerdown", "keydown"]) {
  window.addEventListener(touch, () => { window.voxgraftTouched = true; }, { capture: true, once: true });
}
</script>"""
"""Remembers what the page was opened with: gradio selects its first tab by itself before it asks."""


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
        asked = gr.Textbox(visible="hidden")
        demo.load(_tab_asked, asked, tabs, js=TAB_ASKED, api_visibility="private", show_progress="hidden")
        _wire(context)
    return demo


def _tab_asked(asked: str) -> Any:
    return gr.Tabs(selected=asked) if asked in TABS.values() else gr.skip()


def _wire(context: Context) -> None:
    """Everything that happens by itself: a project is opened, time passes, a job has ended."""
    finished = gr.State("")
    opened = context.project.change
    for happenings, trigger in ((context.openings, opened), (context.refreshings, finished.change)):
        _wire_together(context, [item for item in happenings if not item.slow], [trigger])
        for item in happenings:
            if item.slow:
                _wire_together(context, [item], [trigger])
    clock = gr.Timer(TICK_SECONDS)
    stamps = [view.stamp for view in context.views]
    shown = [part for view in context.views for part in (view.state, view.log, view.output, view.stop, view.stamp)]
    context.wire(
        [clock.tick, opened],
        lambda project, done, *known: _looked(context, project, done, known),
        [context.project, finished, *stamps],
        [finished, *shown],
        trigger_mode="once",
    )
    _wire_together(context, context.tickings, [clock.tick, opened])


def _wire_together(context: Context, happenings: Sequence[Happening], triggers: Sequence[Any]) -> None:
    """One event for all of them: each event by itself costs a round trip."""
    inputs = [part for item in happenings for part in item.inputs]
    outputs = [part for item in happenings for part in item.outputs]
    if outputs:
        context.wire(triggers, _together(happenings), [context.project, *inputs], outputs, trigger_mode="always_last")


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


def _looked(context: Context, project: str, done: str, known: Sequence[str]) -> list[Any]:
    """How every job stands; what has not changed since this page saw it is left alone."""
    try:
        jobs = Jobs(context.project_folder(project))
    except VoxgraftError:
        return [gr.skip()] * (1 + 5 * len(known))
    newest = jobs.newest()
    ended = f"{project} {', '.join(job.folder.name for job in newest.values() if not job.alive)}"
    updates: list[Any] = [gr.skip() if ended == done else ended]
    for view, stamp in zip(context.views, known, strict=True):
        job = newest.get(view.verb)
        same = stamp == stamp_of(job)
        updates += [gr.skip()] * 5 if same else job_updates(job, view.for_machines)
    return updates
