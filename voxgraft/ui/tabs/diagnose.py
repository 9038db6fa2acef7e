"""The tab Diagnose: what happened to a checkpoint, and what can be saved of it."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.ui.commands import PageContext, find_grown_tokenizer, run_base_folder, run_language
from voxgraft.ui.files import FOLDER_PATHS, TEXT_PATHS, PathFilter, file_link
from voxgraft.ui.forms import CommandForm, OutputForm, add_upload, last_job_result, next_free_path
from voxgraft.ui.html import finding_html, image_html, note_html, table_html

DIAGNOSABLE_PATHS = PathFilter(endings=(".safetensors", ".pt", ".pth"), mark="run.yaml")
TOKENIZER_PATHS = PathFilter(endings=("tokenizer.json", ".model"))
CONFIG_PATHS = PathFilter(endings=(".yaml", ".yml", ".sh", ".txt"))
VERDICT_KINDS = {"RESUME": "good", "REPAIR": "warn", "START FRESH": "bad"}
MAX_FINDINGS = 30


def build(context: PageContext) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "A checkpoint of anyone's, beside the base that it was made from: resume, repair or start fresh, and why. "
        "Nothing that is looked at is changed."
    )
    form = _build_diagnose_section(context)
    _build_repair_section(context, form)


def _build_diagnose_section(context: PageContext) -> CommandForm:
    with gr.Accordion("1. What happened to it?", open=True, elem_id="diagnose-look"):
        form = OutputForm(
            context, "diagnose", json=True, fresh={"output": lambda project: next_free_path(project / "diagnosis")}
        )
        with gr.Row():
            form.add(
                "checkpoint",
                sought=DIAGNOSABLE_PATHS,
                default=lambda project: project,
                info="A file (.safetensors, .pt, .pth), a folder with one, or a project. Large ones: copy them here.",
            )
            form.add("base", sought=FOLDER_PATHS, default=run_base_folder)
            form.add("tokenizer", sought=TOKENIZER_PATHS, default=find_grown_tokenizer)
            form.add("language", default=run_language)
        with gr.Row():
            add_upload(context, form, "checkpoint", "Upload a checkpoint",
                      (".safetensors", ".pt", ".pth"))  # fmt: skip
            add_upload(context, form, "tokenizer", "Upload its tokenizer", (".json", ".model"))
        with gr.Accordion("More to look at, and listening", open=False):
            with gr.Row():
                form.add("texts", sought=TEXT_PATHS)
                form.add("base_config", sought=CONFIG_PATHS)
                form.add("prepared", sought=FOLDER_PATHS)
                form.add("family")
            form.add_all(("listen", "sentences", "seed"))
            form.add(
                "output", sought=FOLDER_PATHS, label="Folder of the report", info="Empty: a new one in the project."
            )
        form.finish("Diagnose")
        verdict = gr.HTML(elem_id="diagnose-verdict", elem_classes=["vg-live"])
        context.on_change(lambda project: [_verdict_html(context, project)], [verdict])
    return form


def _verdict_html(context: PageContext, project: str) -> str:
    """The word, why, what to do, the picture and the report."""
    found = last_job_result(context.project_folder(project), "diagnose")
    if found is None:
        return ""
    if "error" in found:
        return finding_html(found["error"])
    verdict = found["verdict"]
    word = str(verdict["word"])
    head = (
        f'<div class="vg-note vg-{VERDICT_KINDS.get(word, "note")}"><span class="vg-word">{html.escape(word)}</span><br>'
        f"{html.escape(str(verdict['sentence']))}<br><small>{html.escape(str(verdict['reason']))}</small></div>"
    )
    commands = "".join(note_html(f"on a command line: {command}") for command in verdict["commands"])
    heard = _phone_error_table(found["heard"]) if found["heard"] else ""
    return head + commands + heard + _report_html(context, found) + _findings_html(found["findings"])


def _report_html(context: PageContext, found: dict[str, Any]) -> str:
    if not found.get("report"):
        return ""
    report = context.roots.resolve_inside(found["report"])
    words = f"rows and layers of {Path(found['checkpoint']).name}: what is the base's own, what has changed"
    link = file_link(context.pages, context.roots, report, "open the whole report")
    return f"<p>{link}</p>" + image_html(context, report.with_name("diagnosis.png"), words)


def _findings_html(findings: list[dict[str, Any]]) -> str:
    order = {"error": 0, "warning": 1}
    ranked = sorted(findings, key=lambda item: order.get(str(item.get("level")), 2))
    more = len(ranked) - MAX_FINDINGS
    rest = [note_html(f"and {more} more: see the report")] if more > 0 else []
    return "".join([*map(finding_html, ranked[:MAX_FINDINGS]), *rest])


def _phone_error_table(heard: list[dict[str, Any]]) -> str:
    rows = [(one["language"], one["who"], f"{100 * float(one['phone_error']):.1f} %") for one in heard]
    return table_html(("language", "who speaks", "phone error"), rows)


def _build_repair_section(context: PageContext, diagnose: CommandForm) -> None:
    with gr.Accordion("2. Repair it", open=False, elem_id="diagnose-repair"):
        gr.Markdown(
            "Writes a new file in which what was damaged is the base's again. Takes checkpoint, base and tokenizer "
            "from above. With nothing chosen, what the diagnosis names is repaired."
        )
        form = OutputForm(
            context, "repair", fresh={"output": lambda project: next_free_path(project / "repaired.safetensors")}
        )  # fmt: skip
        for key in ("checkpoint", "base", "tokenizer", "language"):
            form.share_control(key, diagnose.control(key))
        with gr.Row():
            form.add("only", label="Repair only")
            form.add("body")
            form.add("choose")
            form.add("output", sought=DIAGNOSABLE_PATHS, label="New file", info="Empty: a new one in the project.")
        with gr.Accordion("More", open=False):
            form.add_all(("points", "sentences", "worse", "seed"))
            form.add_all(("rows.init", "rows.noise", "rows.seed", "family"))
        form.finish("Repair", output="What was done")
