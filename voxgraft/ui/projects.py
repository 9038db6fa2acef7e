"""The projects bar: which run folder is open, and making a new one. The open project stands in the page's address."""

from __future__ import annotations

import contextlib
from typing import Any

import gradio as gr

from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.ui.commands import CommandBuilder, find_command, format_command, run_command_in_process
from voxgraft.ui.context import PageContext
from voxgraft.ui.controls import NEEDED_CODE
from voxgraft.ui.jobs import ProjectJobs
from voxgraft.ui.roots import PROJECT_PATHS, TEXT_PATHS
from voxgraft.ui.views import error_html, finding_html, note_html
from voxgraft.ui.words import glossary_markdown

PROJECT_TO_URL_JS = """(project) => {
  const address = new URL(window.location.href);
  if (project) { address.searchParams.set("project", project); } else { address.searchParams.delete("project"); }
  window.history.replaceState(null, "", address);
  return [project];
}"""
"""Puts the open project into the page's address, so that a reload or a bookmark finds it again."""
BUILT_IN_BASE = "tiny"


def build_project_bar(context: PageContext, demo: gr.Blocks) -> None:
    """Choose a project, or make one."""
    with gr.Row(elem_classes=["vg-bar"]):
        chooser = gr.Dropdown(
            [], label="Project", info="A folder in which one new language is grafted onto one base (a run).",
            elem_id="project-chooser", interactive=True, scale=3, allow_custom_value=True,
        )  # fmt: skip
        state = gr.HTML(elem_id="project-state", elem_classes=["vg-live"])
    with gr.Accordion("Make a new project", open=False, elem_id="new-project") as fold:
        made = _build_new_project_form(context)
    with gr.Accordion("What the words mean", open=False, elem_id="words"):
        gr.Markdown(glossary_markdown())
    outputs = [context.project, chooser, state]
    context.wire([chooser.input], lambda project: _open_project(context, project), [chooser], outputs)
    context.wire(
        [made["button"].click],
        lambda *values: _create_project(context, *values),
        [made["name"], made["language"], made["base"], made["texts"]],
        [*outputs, made["state"], fold],
        show_progress="minimal",
        show_progress_on=[made["state"]],
    )
    context.project.change(
        None,
        [context.project],
        [context.project],
        js=PROJECT_TO_URL_JS,
        api_visibility="private",
        show_progress="hidden",
    )

    def loaded(request: gr.Request) -> list[Any]:
        return _on_page_load(context, request)

    demo.load(
        loaded, None, outputs, api_visibility="private", show_progress="hidden", show_progress_on=[context.project]
    )


def _build_new_project_form(context: PageContext) -> dict[str, Any]:
    fields = {leaf.key: leaf.field for leaf in find_command("new").leaves()}
    with gr.Row():
        name = gr.Textbox(label="Name", info="Name of its folder.", elem_id="new-name", max_length=80)
        language = gr.Textbox(
            label="Language", info=fields["language"].description, elem_id="new-language", placeholder="such as am",
        )  # fmt: skip
        base = gr.Dropdown(
            [("the small built-in one", BUILT_IN_BASE), ("none yet", "")],
            value=BUILT_IN_BASE, label="Base", info="The model that learns the language. It is only read.",
            elem_id="new-base", interactive=True, allow_custom_value=True,
        )  # fmt: skip
        texts = gr.Dropdown(
            context.roots.find(TEXT_PATHS), value=[], label="Texts", multiselect=True, allow_custom_value=True,
            info="Optional here: " + (fields["texts"].description or ""), elem_id="new-texts", interactive=True,
        )  # fmt: skip
    state = gr.HTML(elem_id="new-state", elem_classes=["vg-live"])
    preview = gr.Textbox(
        label="The same on a command line", interactive=False, elem_classes=["vg-command"], elem_id="new-command",
    )  # fmt: skip
    button = gr.Button("Make the project", variant="primary", elem_id="new-start", elem_classes=["vg-act"])
    inputs = [name, language, base, texts]
    context.wire(
        [part.change for part in inputs], lambda *values: _preview_new_project(context, *values), inputs, [preview]
    )
    return {"name": name, "language": language, "base": base, "texts": texts, "button": button, "state": state}


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
        said += "".join(map(finding_html, warnings))  # outside the form, which is closed
        return [*opened, said, note_html("made", "good"), gr.update(open=False)]
    except VoxgraftError as error:
        return [gr.skip(), gr.skip(), gr.skip(), error_html(error), gr.skip()]


def _on_page_load(context: PageContext, request: gr.Request) -> list[Any]:
    return _open_project(context, str(request.query_params.get("project", ""))[:4096] or _find_default_project(context))


def _find_default_project(context: PageContext) -> str:
    """For a page that names no project: the one in which a job runs, or the only one."""
    known = context.roots.find(PROJECT_PATHS)
    for project in known:
        with contextlib.suppress(VoxgraftError):
            if ProjectJobs(context.project_folder(project)).at_work():
                return project
    return known[0] if len(known) == 1 else ""


def _open_project(context: PageContext, project: str | None) -> list[Any]:
    """The open project, the list of all, and what is to be said of it."""
    known = context.roots.find(PROJECT_PATHS)
    if not project:
        hint = "open a project, or make a new one below" if known else "make your first project below"
        return ["", gr.update(choices=known, value=None), note_html(hint)]
    try:
        short = context.roots.short(context.project_folder(project))
    except VoxgraftError as error:
        return ["", gr.update(choices=known, value=None), error_html(error)]
    choices = known if short in known else [short, *known]
    return [short, gr.update(choices=choices, value=short), ""]
