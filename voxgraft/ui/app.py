"""The page: the bar of projects, and the tabs. Which project and tab are open is part of the page's address.

Also here: keeping the visible tab up to date (`poll_tab`), the glossary and the style sheet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import gradio as gr

from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.run import RUN_FILE
from voxgraft.ui.commands import CommandBuilder, find_command, format_command, run_command_in_process
from voxgraft.ui.files import PROJECT_PATHS, TEXT_PATHS, Roots, file_stamp
from voxgraft.ui.forms import COMMAND_LABEL, EventHandler, PageContext
from voxgraft.ui.html import NEEDED_CODE, error_html, finding_html, note_html
from voxgraft.ui.jobs import ProjectJobs
from voxgraft.ui.tabs.data import build_data_tab
from voxgraft.ui.tabs.evaluate import build_evaluate_tab, build_export_tab, build_speak_tab
from voxgraft.ui.tabs.inspect import build_diagnose_tab, build_preflight_tab
from voxgraft.ui.tabs.model import build_model_tab, build_tokenizer_tab
from voxgraft.ui.tabs.train import build_train_tab

# Title and builder of every tab by its id, in the order of the work.
TABS: dict[str, tuple[str, Callable[[PageContext], None]]] = {
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
# Poll interval of the visible tab; others are not polled.
REFRESH_SECONDS = 2.0
BUILT_IN_BASE = "tiny"
# Puts the open project into the page's address, so that a reload or a bookmark opens it again.
PROJECT_TO_URL_JS = """(project) => {
  const address = new URL(window.location.href);
  if (project) { address.searchParams.set("project", project); } else { address.searchParams.delete("project"); }
  window.history.replaceState(null, "", address);
  return [project];
}"""
# Puts the chosen tab into the page's address, so that a reload shows it again.
TAB_TO_URL_JS = """() => {
  if (!window.voxgraftTouched) { return []; }
  const address = new URL(window.location.href);
  address.searchParams.set("tab", "%s");
  window.history.replaceState(null, "", address);
  return [];
}"""
TAB_FROM_URL_JS = """() => [new URLSearchParams(window.voxgraftAsked).get("tab") || ""]"""
# Remembers the address that was opened: gradio selects its first tab before it asks for one.
PAGE_HEAD_HTML = """<script>
window.voxgraftAsked = window.location.search;
for (const touch of ["pointerdown", "keydown"]) {
  window.addEventListener(touch, () => { window.voxgraftTouched = true; }, { capture: true, once: true });
}
</script>"""


def build_page(roots: Roots, pages: str = "", on_built: Callable[[PageContext], None] | None = None) -> gr.Blocks:
    """The whole page. `on_built` gets its context when everything is in it."""
    with gr.Blocks(title="voxgraft", analytics_enabled=False, fill_width=True) as demo:
        gr.Markdown(
            "# voxgraft\nTeach a text-to-speech model a new language, and prove that it still speaks the old ones."
        )
        project, active = gr.Textbox(visible="hidden", elem_id="project"), gr.Textbox(visible="hidden")
        context = PageContext(roots, project, pages)
        build_project_bar(context, demo)
        made = {}
        with gr.Tabs(elem_id="tabs") as tabs:
            for name, (title, build) in TABS.items():
                with gr.Tab(title, id=name, elem_id=f"tab-{name}") as made[name]:
                    context.tab = name
                    build(context)
        timers = _wire_tabs(context, active)

        def select_tab(name: str) -> list[Any]:
            """The tab is visible now: its timer runs, and no other."""
            return [name, *(gr.Timer(active=name == other) for other in TABS)]

        for name, tab in made.items():
            context.wire(
                [tab.select],
                lambda name=name: select_tab(name),
                [],
                [active, *timers],
                js=TAB_TO_URL_JS % name,
                trigger_mode="always_last",
            )
        asked, first = gr.Textbox(visible="hidden"), next(iter(TABS))
        demo.load(
            lambda name: [
                gr.Tabs(selected=name if name in TABS else first),
                *select_tab(name if name in TABS else first),
            ],
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


def _wire_tabs(context: PageContext, active: Any) -> list[Any]:
    """Keep the visible tab up to date; returns the timers of the tabs, of which only the visible one's runs.

    Each tab has hidden parts that a poll changes if there is news: another project, an ended job, a changed job. What
    the tabs have registered for these events is called when the part changes.
    """
    timers: list[Any] = []
    activated: list[Any] = []
    for tab in TABS:
        timer = gr.Timer(REFRESH_SECONDS, active=not timers)
        known = gr.State({})
        visible, opened, ended, jobs_changed = (gr.State("") for _ in range(4))
        beat = context.refresh_ticks.get(tab)
        context.wire(
            [timer.tick, visible.change],
            lambda project, seen, tab=tab: poll_tab(context, tab, project, seen),
            [context.project, known],
            [known, opened, ended, jobs_changed, *([beat] if beat is not None else [])],
            trigger_mode="once",
        )
        for handlers, part in ((context.project_handlers, opened), (context.job_end_handlers, ended)):
            own = [(handler, slow) for handler_tab, handler, slow in handlers if handler_tab == tab]
            _wire_combined(context, [handler for handler, slow in own if not slow], part)
            for handler, slow in own:
                if slow:
                    _wire_combined(context, [handler], part)
        views = [view for view in context.views if view.tab == tab]

        def show_jobs(project: str, views: Sequence[Any] = views) -> list[str]:
            newest = ProjectJobs(context.project_folder(project)).newest_by_command()
            return [view.html(newest.get(view.verb)) for view in views]

        _wire_combined(context, [(show_jobs, [], [view.shown for view in views])], jobs_changed)
        timers.append(timer)
        activated.append(visible)
    context.wire(
        [context.project.change, active.change],
        lambda project, name: [project if tab == name else gr.skip() for tab in TABS],
        [context.project, active],
        activated,
        trigger_mode="always_last",
    )
    return timers


def _wire_combined(context: PageContext, handlers: Sequence[EventHandler], part: Any) -> None:
    """One event for all handlers: each event on its own costs a round trip."""

    def call_all(project: str, *values: Any) -> Any:
        given = iter(values)
        results: list[Any] = []
        for function, wanted, shown in handlers:
            own = [next(given) for _ in wanted]
            try:
                results += function(project, *own)
            except VoxgraftError:  # a project that cannot be read leaves what is shown as it is
                results += [gr.skip()] * len(shown)
        return results if len(results) != 1 else results[0]

    inputs = [item for _, wanted, _ in handlers for item in wanted]
    outputs = [item for _, _, shown in handlers for item in shown]
    if outputs:
        context.wire([part.change], call_all, [context.project, *inputs], outputs, trigger_mode="always_last")


def poll_tab(context: PageContext, tab: str, project: str, known: Mapping[str, Any] | None) -> list[Any]:
    """New values of a tab's hidden parts (see `_wire_tabs`), or skips; `known` is what the page has seen already."""
    before = dict(known or {})
    has_beat = tab in context.refresh_ticks
    try:
        folder = context.project_folder(project)
        newest = ProjectJobs(folder).newest_by_command()
    except VoxgraftError:
        return [gr.skip()] * (5 if has_beat else 4)
    own = {view.verb for view in context.views if view.tab == tab}
    ended = [job.folder.name for job in newest.values() if not job.alive]
    # A job that runs changes every second: its time is shown.
    jobs = [
        f"{job.folder.name}/{job.state}/{job.seconds if job.alive else 0:.0f}"
        for verb, job in newest.items()
        if verb in own
    ]
    now = {"project": project, "ended": " ".join([file_stamp(folder / RUN_FILE), *ended]), "stood": " ".join(jobs)}
    is_other = before.get("project") != project
    beats = int(before.get("beats", 0)) + 1
    parts: list[Any] = [
        {**now, "beats": beats} if has_beat else gr.skip() if now == before else now,
        project if is_other else gr.skip(),
        gr.skip() if is_other or now["ended"] == before.get("ended") else f"{project} {now['ended']}",
        f"{project} {now['stood']}" if is_other or now["stood"] != before.get("stood") else gr.skip(),
    ]
    return [*parts, f"{project} {beats}"] if has_beat else parts


def build_project_bar(context: PageContext, demo: gr.Blocks) -> None:
    """Choose a project, or create one."""
    with gr.Row(elem_classes=["vg-bar"]):
        chooser = gr.Dropdown(
            [], label="Project", info="A folder for one new language on one base (a run).",
            elem_id="project-chooser", interactive=True, scale=3, allow_custom_value=True,
        )  # fmt: skip
        opened = gr.HTML(elem_id="project-state", elem_classes=["vg-live"])
    with gr.Accordion("Create a project", open=False, elem_id="new-project") as fold:
        fields = {leaf.key: leaf.field for leaf in find_command("new").leaves()}
        with gr.Row():
            name = gr.Textbox(label="Name", info="Name of its folder.", elem_id="new-name", max_length=80)
            language = gr.Textbox(
                label="Language", info=fields["language"].description, elem_id="new-language", placeholder="such as am",
            )  # fmt: skip
            base = gr.Dropdown(
                [("the built-in tiny base", BUILT_IN_BASE), ("none yet", "")],
                value=BUILT_IN_BASE, label="Base", info="The pretrained model. It is never changed.",
                elem_id="new-base", interactive=True, allow_custom_value=True,
            )  # fmt: skip
            texts = gr.Dropdown(
                context.roots.find(TEXT_PATHS), value=[], label="Texts", multiselect=True, allow_custom_value=True,
                info="Optional: " + (fields["texts"].description or ""), elem_id="new-texts", interactive=True,
            )  # fmt: skip
        state = gr.HTML(elem_id="new-state", elem_classes=["vg-live"])
        preview = gr.Textbox(
            label=COMMAND_LABEL, interactive=False, elem_classes=["vg-command"], elem_id="new-command",
        )  # fmt: skip
        button = gr.Button("Create the project", variant="primary", elem_id="new-start", elem_classes=["vg-act"])
    with gr.Accordion("Glossary", open=False, elem_id="words"):
        gr.Markdown(GLOSSARY)
    inputs = [name, language, base, texts]
    context.wire(
        [part.change for part in inputs], lambda *values: _preview_new_project(context, *values), inputs, [preview]
    )
    outputs = [context.project, chooser, opened]
    context.wire([chooser.input], lambda project: _open_project(context, project), [chooser], outputs)
    context.wire(
        [button.click],
        lambda *values: _create_project(context, *values),
        inputs,
        [*outputs, state, fold],
        show_progress="minimal",
        show_progress_on=[state],
    )
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
        return _open_project(context, asked or _find_default_project(context))

    demo.load(
        load_page, None, outputs, api_visibility="private", show_progress="hidden", show_progress_on=[context.project]
    )


def _new_project_argv(
    context: PageContext, name: str, language: str, base: str | None, texts: list[str] | None
) -> list[str]:
    given = {"Name": name, "Language": language}
    if needed := [label for label, text in given.items() if not text.strip()]:
        raise ConfigError(NEEDED_CODE, f"still needed: {', '.join(needed)}")
    command = CommandBuilder(find_command("new"), context.roots, json=True)
    values = {"run": name.strip(), "language": language.strip(), "base": base or "", "texts": texts or []}
    return command.words(values, None, {})


def _preview_new_project(context: PageContext, *values: Any) -> str:
    try:
        return format_command(_new_project_argv(context, *values))
    except VoxgraftError as error:
        return error.finding.found if error.code == NEEDED_CODE else str(error)


def _create_project(context: PageContext, *values: Any) -> list[Any]:
    try:
        made = run_command_in_process(_new_project_argv(context, *values))
        project = context.roots.short(context.roots.resolve_inside(values[0].strip()))
        *opened, said = _open_project(context, project)
        warnings = [item for item in made.get("findings", ()) if item.get("level") != "note"]
        said += "".join(map(finding_html, warnings))  # not in the form, which is closed now
        return [*opened, said, note_html("made", "good"), gr.update(open=False)]
    except VoxgraftError as error:
        return [gr.skip(), gr.skip(), gr.skip(), error_html(error), gr.skip()]


def _find_default_project(context: PageContext) -> str:
    """For an address without a project: the one in which a job runs, or the only one."""
    known = context.roots.find(PROJECT_PATHS)
    for project in known:
        with contextlib.suppress(VoxgraftError):
            if ProjectJobs(context.project_folder(project)).at_work():
                return project
    return known[0] if len(known) == 1 else ""


def _open_project(context: PageContext, project: str | None) -> list[Any]:
    """The open project, the list of all, and a note."""
    known = context.roots.find(PROJECT_PATHS)
    if not project:
        hint = "open a project, or create one below" if known else "create your first project below"
        return ["", gr.update(choices=known, value=None), note_html(hint)]
    try:
        short = context.roots.short(context.project_folder(project))
    except VoxgraftError as error:
        return ["", gr.update(choices=known, value=None), error_html(error)]
    choices = known if short in known else [short, *known]
    return [short, gr.update(choices=choices, value=short), ""]


PAGE_CSS, GLOSSARY = (
    resources.files("voxgraft").joinpath(f"assets/templates/{name}").read_text(encoding="utf-8")
    for name in ("ui.css", "ui_glossary.md")
)


def build_theme() -> gr.themes.Base:
    """Gradio's default theme without web fonts."""
    plain = gr.themes.Default(
        primary_hue="emerald",
        font=["system-ui", "Segoe UI", "Noto Sans", "Noto Sans Ethiopic", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
    )
    # Gradio's help texts are too pale to read, and so is white on its light green.
    return plain.set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_800",
        block_title_text_color="*neutral_800",
        block_title_text_color_dark="*neutral_100",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
    )
