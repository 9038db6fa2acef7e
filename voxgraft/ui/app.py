"""The page: the projects bar and the tabs, one module each; which tab is in view stands in the page's address."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import gradio as gr

from voxgraft.ui.clock import wire_tab_refresh
from voxgraft.ui.context import PageContext
from voxgraft.ui.projects import build_project_bar
from voxgraft.ui.roots import Roots

TABS = {
    "Data": "data",
    "Model": "model",
    "Tokenizer": "tokenizer",
    "Preflight": "preflight",
    "Train": "train",
    "Diagnose": "diagnose",
    "Evaluate": "evaluate",
    "Export": "export",
    "Speak": "speak",
}
"""Titles of the tabs, in the order of the work, with the modules in `voxgraft/ui/tabs/` whose `build` makes them."""
TAB_TO_URL_JS = """() => {
  if (!window.voxgraftTouched) { return []; }
  const address = new URL(window.location.href);
  address.searchParams.set("tab", "%s");
  window.history.replaceState(null, "", address);
  return [];
}"""
"""Puts the tab that somebody chose into the page's address, so that a reload shows it again."""
TAB_FROM_URL_JS = """() => [new URLSearchParams(window.voxgraftAsked).get("tab") || ""]"""
PAGE_HEAD_HTML = """<script>
window.voxgraftAsked = window.location.search;
for (const touch of ["pointerdown", "keydown"]) {
  window.addEventListener(touch, () => { window.voxgraftTouched = true; }, { capture: true, once: true });
}
</script>"""
"""Remembers what the page was opened with: gradio selects its first tab by itself before it asks."""


def build_page(roots: Roots, pages: str = "", on_built: Callable[[PageContext], None] | None = None) -> gr.Blocks:
    """The whole page. `seen` is given its context when everything is in it."""
    with gr.Blocks(title="voxgraft", analytics_enabled=False, fill_width=True) as demo:
        gr.Markdown("# voxgraft\nTeach a voice a new language, and prove that it still speaks the old ones.")
        project, active = gr.Textbox(visible="hidden", elem_id="project"), gr.Textbox(visible="hidden")
        context = PageContext(roots, project, pages)
        build_project_bar(context, demo)
        made = {}
        with gr.Tabs(elem_id="tabs") as tabs:
            for title, module in TABS.items():
                with gr.Tab(title, id=module, elem_id=f"tab-{module}") as made[module]:
                    context.tab = module
                    import_module(f"voxgraft.ui.tabs.{module}").build(context)
        timers = wire_tab_refresh(context, active, list(TABS.values()))
        for module, tab in made.items():
            chosen = [active, *timers]
            context.wire(
                [tab.select], _select_tab(module), [], chosen, js=TAB_TO_URL_JS % module, trigger_mode="always_last"
            )
        asked = gr.Textbox(visible="hidden")
        demo.load(
            _open_requested_tab,
            asked,
            [tabs, active, *timers],
            js=TAB_FROM_URL_JS,
            api_visibility="private",
            show_progress="hidden",
            show_progress_on=[project],
        )
        if on_built is not None:
            on_built(context)
    return demo


def _select_tab(module: str) -> Any:
    """A tab has come into view: its timer runs, and no other."""
    return lambda: [module, *(gr.Timer(active=module == other) for other in TABS.values())]


def _open_requested_tab(asked: str) -> list[Any]:
    """The tab that the page's address names, or the first."""
    module = asked if asked in TABS.values() else next(iter(TABS.values()))
    return [gr.Tabs(selected=module), *_select_tab(module)()]
