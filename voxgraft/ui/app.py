"""The page: the open project, the bar of running jobs, and the tabs. Project and tab are part of the page's address.

Also here: keeping the visible tab up to date (`poll_tab`), the glossary and the style sheet.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.run import RUN_FILE
from voxgraft.ui.files import PROJECT_PATHS, Roots, file_stamp
from voxgraft.ui.html import NO_PROJECT_WORDS, PAGE_TARGETS, PageTarget, error_html, note_html
from voxgraft.ui.jobs import UPLOADS_FOLDER, ProjectJobs, find_external_holder
from voxgraft.ui.live import jobs_bar_html, stop_job_named
from voxgraft.ui.page import ACTIONS_JS, IN_ORDER, EventHandler, PageContext, call_until_read
from voxgraft.ui.tabs.data import build_data_tab
from voxgraft.ui.tabs.evaluate import build_evaluate_tab, build_export_tab
from voxgraft.ui.tabs.home import build_home_tab, cards_html
from voxgraft.ui.tabs.inspect import build_diagnose_tab, build_preflight_tab
from voxgraft.ui.tabs.model import build_model_tab, build_tokenizer_tab
from voxgraft.ui.tabs.speak import build_speak_tab
from voxgraft.ui.tabs.train import build_train_tab

# Title and builder of every tab by its id, in the order of the work.
TABS: dict[str, tuple[str, Callable[[PageContext], None]]] = {
    "home": ("Home", build_home_tab),
    "data": ("Data", build_data_tab),
    "model": ("Model", build_model_tab),
    "tokenizer": ("Tokenizer", build_tokenizer_tab),
    "preflight": ("Preflight", build_preflight_tab),
    "train": ("Train", build_train_tab),
    "diagnose": ("Diagnose", build_diagnose_tab),
    "evaluate": ("Evaluate", build_evaluate_tab),
    "export": ("Export", build_export_tab),
    "speak": ("Speak", build_speak_tab),
}
PAGE_TITLE_HTML = (
    "<h1>voxgraft</h1><p>Teach a text-to-speech model a new language, and prove that it still speaks the old ones.</p>"
)
# Puts the open project into the page's address, so that a reload or a bookmark opens it again, and the browser's back
# button what was open before (`ui_head.html`).
PROJECT_TO_URL_JS = """(project) => {
  const address = new URL(window.location.href), before = address.searchParams.get("project") || "";
  if (project) { address.searchParams.set("project", project); } else { address.searchParams.delete("project"); }
  const isOther = before && project && before !== project;
  window.history[isOther ? "pushState" : "replaceState"](null, "", address);
  window.voxgraftProject = project || "";
  return [project];
}"""
# Puts the chosen tab into the page's address, so that a reload shows it again.
TAB_TO_URL_JS = """() => {
  const address = new URL(window.location.href);
  if (!window.voxgraftTouched || (address.searchParams.get("tab") || "home") === "%s") { return []; }
  address.searchParams.set("tab", "%s");
  window.history.pushState(null, "", address);
  return [];
}"""
PROJECT_FROM_URL_JS = """() => [new URLSearchParams(window.location.search).get("project") || ""]"""
TAB_FROM_URL_JS = """() => [new URLSearchParams(window.voxgraftAsked).get("tab") || ""]"""


def build_page(roots: Roots, pages: str = "", on_built: Callable[[PageContext], None] | None = None) -> gr.Blocks:
    """The whole page. `on_built` gets its context when everything is in it."""
    with gr.Blocks(title="voxgraft", analytics_enabled=False, fill_width=True) as demo:
        project, active = gr.Textbox(visible="hidden", elem_id="project"), gr.Textbox(visible="hidden")
        context = PageContext(roots, project, pages)
        build_project_bar(context, demo)
        bar = build_jobs_bar(context)
        made = {}
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            for name, (title, build) in TABS.items():
                with gr.Tab(title, id=name, elem_id=f"tab-{name}") as made[name]:
                    context.tab = name
                    build(context)
        with gr.Accordion("Glossary", open=False, elem_id="words"):
            gr.Markdown(GLOSSARY)
        _wire_tabs(context, active, bar)

        for name, tab in made.items():
            context.wire(
                [tab.select],
                lambda name=name: name,
                [],
                [active],
                js=TAB_TO_URL_JS % (name, name),
                trigger_mode="always_last",
            )
        asked, first = gr.Textbox(visible="hidden"), next(iter(TABS))

        def select_asked(name: str) -> list[Any]:
            shown = name if name in TABS else first
            return [gr.Tabs(selected=shown), shown]

        demo.load(
            select_asked,
            asked,
            [tabs, active],
            js=TAB_FROM_URL_JS,
            api_visibility="private",
            show_progress="hidden",
            show_progress_on=[],
        )
        for function, _, outputs in context.load_handlers:
            quiet: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": []}
            demo.load(function, [project], outputs, api_visibility="private", **quiet)
        if on_built is not None:
            on_built(context)
    return demo


def _wire_tabs(context: PageContext, active: Any, bar: Any) -> None:
    """Keep the visible tab up to date.

    The page's script asks for a stamp and presses a tab's hidden button when it has changed. Each tab has hidden parts
    that the poll then changes if there is news: another project, an ended job, a changed job. What the tabs have
    registered for these events is called when the part changes.
    """
    activated: list[Any] = []
    # Pressed by the page's script only to open the next stream of answers.
    context.wire([gr.Button(visible="hidden", elem_id="next-answers").click], lambda: None, [], [])
    for tab in TABS:
        button = gr.Button(visible="hidden", elem_id=f"poll-{tab}")
        known = gr.State({})
        visible, opened, ended, jobs_changed = (gr.State("") for _ in range(4))
        stamped = context.stamps[tab][0] if tab in context.stamps else None
        context.wire(
            [button.click, visible.change],
            lambda project, seen, tab=tab: call_until_read(poll_tab, context, tab, project, seen),
            [context.project, known],
            [known, bar, opened, ended, jobs_changed, *([stamped] if stamped is not None else [])],
            **IN_ORDER,  # a press during a poll must not be lost: it is for the newest state
        )
        for handlers, part in ((context.project_handlers, opened), (context.job_end_handlers, ended)):
            own = [(handler, slow) for handler_tab, handler, slow in handlers if handler_tab == tab]
            _wire_combined(context, [handler for handler, slow in own if not slow], part)
            for handler, slow in own:
                if slow:
                    _wire_combined(context, [handler], part)
        views = [view for view in context.views if view.tab == tab]
        pressed = [view for view in views if view.button is not None]

        def show_jobs(project: str, views: Sequence[Any] = views, pressed: Sequence[Any] = pressed) -> list[Any]:
            folder = context.project_folder(project)
            newest = ProjectJobs(folder).newest_by_command()
            shown = [view.html(newest.get(view.verb)) for view in views]
            return [*shown, *(view.button_update(folder) for view in pressed)]

        shown = [*(view.shown for view in views), *(view.button for view in pressed)]
        _wire_combined(context, [(show_jobs, [], shown)], jobs_changed)
        activated.append(visible)
    context.wire(
        [context.project.change, active.change],
        lambda project, name: [project if tab == name else gr.skip() for tab in TABS],
        [context.project, active],
        activated,
        trigger_mode="always_last",
    )


def _wire_combined(context: PageContext, handlers: Sequence[EventHandler], part: Any) -> None:
    """One event for all handlers: each event on its own costs a round trip."""

    def call_all(project: str, *values: Any) -> Any:
        given = iter(values)
        results: list[Any] = []
        for function, wanted, shown in handlers:
            own = [next(given) for _ in wanted]
            try:
                results += call_until_read(function, project, *own)
            except VoxgraftError:  # a project that cannot be read leaves what is shown as it is
                results += [gr.skip()] * len(shown)
        return results if len(results) != 1 else results[0]

    inputs = [item for _, wanted, _ in handlers for item in wanted]
    outputs = [item for _, _, shown in handlers for item in shown]
    if outputs:
        context.wire([part.change], call_all, [context.project, *inputs], outputs, trigger_mode="always_last")


def read_poll_state(context: PageContext, tab: str, project: str) -> dict[str, str]:
    """Everything by which a tab in view can be out of date. Cheap: every open page asks for it all the time."""
    now = {"project": project, "bar": jobs_bar_html(context.roots, context.running, project)}
    with contextlib.suppress(VoxgraftError):
        folder = context.project_folder(project)
        newest, holder = ProjectJobs(folder).newest_by_command(), find_external_holder(folder)
        alive = {verb for verb, job in newest.items() if job.alive}
        ended = [job.folder.name for verb, job in newest.items() if verb not in alive]
        now["ended"] = " ".join([file_stamp(folder / RUN_FILE), *ended])
        # A job that runs changes every second: its time is shown. Others are shown by what excludes a start.
        own = {view.verb for view in context.views if view.tab == tab}
        jobs = [
            f"{job.folder.name}/{job.state if verb in alive else ''}/{job.seconds if verb in own & alive else 0:.0f}"
            for verb, job in newest.items()
        ]
        # A changed run.yaml, or new recordings, may have solved what a job has failed over.
        changed = [file_stamp(folder / name) for name in (RUN_FILE, UPLOADS_FOLDER)]
        now["stood"] = " ".join([*jobs, str(holder), *changed])
    if tab in context.stamps:
        now["stamp"] = f"{project} {context.stamps[tab][1](project)}"
    return now


def poll_stamp(context: PageContext, tab: str, project: str) -> str:
    """A short text that changes with the state above: what the page's own script asks for (`ui_head.html`).

    It ends with `busy` while a job runs: only then does the page ask often.
    """
    if tab not in TABS:
        return ""
    now = read_poll_state(context, tab, project)
    return hashlib.sha256(json.dumps(now).encode()).hexdigest()[:16] + (" busy" if now["bar"] else "")


def layout_id(demo: gr.Blocks) -> str:
    """A short text that changes with the parts and events of the page: it names them to the server by their numbers."""
    parts = [(number, type(part).__name__) for number, part in demo.blocks.items()]
    events = [
        (number, event.targets, [part._id for part in event.inputs], [part._id for part in event.outputs])
        for number, event in demo.fns.items()
    ]
    return hashlib.sha256(json.dumps([parts, events, PAGE_HEAD_HTML]).encode()).hexdigest()[:16]


def poll_tab(context: PageContext, tab: str, project: str, known: Mapping[str, Any] | None) -> list[Any]:
    """New values of the bar and of a tab's hidden parts (see `_wire_tabs`), or skips; `known` is what was sent last."""
    before, now = dict(known or {}), read_poll_state(context, tab, project)
    is_other, is_open = before.get("project") != project, "ended" in now
    parts: list[Any] = [
        gr.skip() if now == before else now,
        gr.skip() if now["bar"] == before.get("bar", "") else now["bar"],
        project if is_other and is_open else gr.skip(),
        gr.skip() if is_other or not is_open or now["ended"] == before.get("ended") else f"{project} {now['ended']}",
        f"{project} {now['stood']}" if is_open and (is_other or now["stood"] != before.get("stood")) else gr.skip(),
    ]
    if tab in context.stamps:
        parts.append(gr.skip() if now["stamp"] == before.get("stamp") else now["stamp"])
    return parts


def build_project_bar(context: PageContext, demo: gr.Blocks) -> None:
    """The title, the open project, and the jobs that run in any project."""
    with gr.Row(elem_classes=["vg-bar"], equal_height=True):
        gr.HTML(PAGE_TITLE_HTML, elem_id="title", padding=False, min_width=280)
        chooser = gr.Dropdown(
            [], label="Open run", elem_id="project-chooser", interactive=True, allow_custom_value=True, min_width=240,
        )  # fmt: skip
    PAGE_TARGETS["", "project"] = PageTarget("", str(chooser.label), str(chooser.elem_id))
    opened = gr.HTML(elem_id="project-state", elem_classes=["vg-live"])
    context.opener = outputs = [context.project, chooser, opened]
    context.wire([chooser.input], context.open_project, [chooser], outputs)
    asked, button = gr.Textbox(visible="hidden"), gr.Button(visible="hidden", elem_id="open-asked")
    context.wire([button.click], context.open_project, [asked], outputs, js=PROJECT_FROM_URL_JS)
    context.project.change(
        None,
        [context.project],
        [context.project],
        js=PROJECT_TO_URL_JS,
        api_visibility="private",
        show_progress="hidden",
    )

    def load_page(request: gr.Request) -> list[Any]:
        asked = str(request.query_params.get("project", ""))[:4096]
        return context.open_project(asked or find_default_project(context))

    demo.load(load_page, None, outputs, api_visibility="private", show_progress="hidden", show_progress_on=[])


def build_jobs_bar(context: PageContext) -> Any:
    """A line for each running job, on every tab; returns the part, which every poll updates."""
    bar = gr.HTML(elem_id="jobs", elem_classes=["vg-live"], js_on_load=ACTIONS_JS)

    def act(project: str, event: gr.EventData) -> list[Any]:
        given = {key: str(getattr(event, key, "")) for key in ("act", "project", "job")}
        try:
            if given["act"] == "stop":
                stop_job_named(context.roots, given)
                return [gr.skip(), gr.skip(), gr.skip(), jobs_bar_html(context.roots, context.running, project)]
        except VoxgraftError as error:
            return [gr.skip(), gr.skip(), error_html(error), gr.skip()]
        return [*context.open_project(given["project"]), gr.skip()]

    context.wire([bar.click], act, [context.project], [*context.opener, bar])
    return bar


def find_default_project(context: PageContext) -> str:
    """For an address without a project: the one in which a job runs, or the only one."""
    running = context.running.find(fresh=True)
    known = context.roots.find(PROJECT_PATHS)
    return running[0][0] if running else known[0] if len(known) == 1 else ""


PAGE_CSS, PAGE_HEAD_HTML, FIRST_PAINT_HTML, GLOSSARY = (
    resources.files("voxgraft").joinpath(f"assets/templates/{name}").read_text(encoding="utf-8")
    for name in ("ui.css", "ui_head.html", "ui_first.html", "ui_glossary.md")
)


def first_paint_html(context: PageContext, query: str) -> str:
    """What is on the page until gradio has built it and opened the run: a script, and on Home the cards of the runs."""
    asked = {name: values[-1][:4096] for name, values in parse_qs(query).items()}
    script, _, cover = FIRST_PAINT_HTML.partition("<!-- cover -->\n")
    tab = asked.get("tab", "home")
    project = asked.get("project", "") or find_default_project(context)
    context.running.find(project, fresh=True)
    cards = cards_html(context, project) if tab not in TABS or tab == "home" else ""
    if not (cards or project):
        return script
    parts = {
        "css": PAGE_CSS, "title": PAGE_TITLE_HTML, "cards": cards, "project": escape(project),
        "tab": escape(tab if tab in TABS else "home"), "closed": NO_PROJECT_WORDS,
        "words": note_html(f"Opening {project} ...", "busy") if project else "",
    }  # fmt: skip
    return script + re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], cover)


def build_theme() -> gr.themes.Base:
    """Gradio's default theme without web fonts."""
    plain = gr.themes.Default(
        primary_hue="emerald",
        font=["system-ui", "Segoe UI", "Noto Sans", "Noto Sans Ethiopic", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
    )
    # Gradio's help texts and examples in empty fields are too pale to read, and so is white on its light green.
    return plain.set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        block_label_text_color="*neutral_800",
        block_title_text_color="*neutral_800",
        block_title_text_color_dark="*neutral_100",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
    )
