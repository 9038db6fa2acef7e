"""The tab Diagnose: what happened to a checkpoint, what can be saved of it, and a bundle for asking others."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.ui import reading
from voxgraft.ui.context import Context
from voxgraft.ui.controls import Form
from voxgraft.ui.making import MakingForm, free, last_result, uploading
from voxgraft.ui.pages import page_link
from voxgraft.ui.players import download, picture
from voxgraft.ui.roots import FOLDERS, TEXTS, Sought
from voxgraft.ui.views import finding_note, note, table

CHECKPOINTS = Sought(endings=(".safetensors", ".pt", ".pth"), mark="run.yaml")
TOKENIZERS = Sought(endings=("tokenizer.json", ".model"))
CONFIGS = Sought(endings=(".yaml", ".yml", ".sh", ".txt"))
KINDS = {"RESUME": "good", "REPAIR": "warn", "START FRESH": "bad"}
MOST_FINDINGS = 30


def build(context: Context) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "A checkpoint of anyone's, beside the base that it was made from: resume, repair or start fresh, and why. "
        "Nothing that is looked at is changed."
    )
    form = _diagnose(context)
    _repair(context, form)
    _bundle(context)


def _diagnose(context: Context) -> Form:
    with gr.Accordion("1. What happened to it?", open=True, elem_id="diagnose-look"):
        form = MakingForm(context, "diagnose", json=True, fresh={"output": lambda project: free(project / "diagnosis")})
        with gr.Row():
            form.add(
                "checkpoint",
                sought=CHECKPOINTS,
                default=lambda project: project,
                info="A file (.safetensors, .pt, .pth), a folder with one, or a project. Large ones: copy them here.",
            )
            form.add("base", sought=FOLDERS, default=reading.base)
            form.add("tokenizer", sought=TOKENIZERS, default=reading.grown_tokenizer)
            form.add("language", default=reading.language)
        with gr.Row():
            uploading(context, form, "checkpoint", "Upload a checkpoint",
                      (".safetensors", ".pt", ".pth"))  # fmt: skip
            uploading(context, form, "tokenizer", "Upload its tokenizer", (".json", ".model"))
        with gr.Accordion("More to look at, and listening", open=False):
            with gr.Row():
                form.add("texts", sought=TEXTS)
                form.add("base_config", sought=CONFIGS)
                form.add("prepared", sought=FOLDERS)
                form.add("family")
            form.add_all(("listen", "sentences", "seed"))
            form.add("output", sought=FOLDERS, label="Folder of the report", info="Empty: a new one in the project.")
        form.finish("Diagnose")
        verdict = gr.HTML(elem_id="diagnose-verdict", elem_classes=["vg-live"])
        context.on_change(lambda project: [_verdict(context, project)], [verdict])
    return form


def _verdict(context: Context, project: str) -> str:
    """The word, why, what to do, the picture and the report."""
    found = last_result(context.project_folder(project), "diagnose")
    if found is None:
        return ""
    if "error" in found:
        return finding_note(found["error"])
    verdict = found["verdict"]
    word = str(verdict["word"])
    head = (
        f'<div class="vg-note vg-{KINDS.get(word, "note")}"><span class="vg-word">{html.escape(word)}</span><br>'
        f"{html.escape(str(verdict['sentence']))}<br><small>{html.escape(str(verdict['reason']))}</small></div>"
    )
    commands = "".join(note(f"on a command line: {command}") for command in verdict["commands"])
    heard = _heard(found["heard"]) if found["heard"] else ""
    return head + commands + heard + _report(context, found) + _findings(found["findings"])


def _report(context: Context, found: dict[str, Any]) -> str:
    if not found.get("report"):
        return ""
    report = context.roots.inside(found["report"])
    words = f"rows and layers of {Path(found['checkpoint']).name}: what is the base's own, what has changed"
    link = page_link(context.pages, context.roots, report, "open the whole report")
    return f"<p>{link}</p>" + picture(context, report.with_name("diagnosis.png"), words)


def _findings(findings: list[dict[str, Any]]) -> str:
    order = {"error": 0, "warning": 1}
    ranked = sorted(findings, key=lambda item: order.get(str(item.get("level")), 2))
    more = len(ranked) - MOST_FINDINGS
    rest = [note(f"and {more} more: see the report")] if more > 0 else []
    return "".join([*map(finding_note, ranked[:MOST_FINDINGS]), *rest])


def _heard(heard: list[dict[str, Any]]) -> str:
    rows = [(one["language"], one["who"], f"{100 * float(one['phone_error']):.1f} %") for one in heard]
    return table(("language", "who speaks", "phone error"), rows)


def _repair(context: Context, diagnose: Form) -> None:
    with gr.Accordion("2. Repair it", open=False, elem_id="diagnose-repair"):
        gr.Markdown(
            "Writes a new file in which what was damaged is the base's again. Takes checkpoint, base and tokenizer "
            "from above. With nothing chosen, what the diagnosis names is repaired."
        )
        form = MakingForm(
            context, "repair", fresh={"output": lambda project: free(project / "repaired.safetensors")}
        )  # fmt: skip
        for key in ("checkpoint", "base", "tokenizer", "language"):
            form.use(key, diagnose.control(key))
        with gr.Row():
            form.add("only", label="Repair only")
            form.add("body")
            form.add("choose")
            form.add("output", sought=CHECKPOINTS, label="New file", info="Empty: a new one in the project.")
        with gr.Accordion("More", open=False):
            form.add_all(("points", "sentences", "worse", "seed"))
            form.add_all(("rows.init", "rows.noise", "rows.seed", "family"))
        form.finish("Repair", output="What was done")


def _bundle(context: Context) -> None:
    with gr.Accordion("3. Ask others: a small zip of this project", open=False, elem_id="diagnose-bundle"):
        gr.Markdown("Settings, journal, findings and versions. No audio, no texts, no weights; home folders masked.")
        form = MakingForm(
            context, "bundle", fresh={"output": lambda project: free(project / f"{project.name}-bundle.zip")}, json=True
        )  # fmt: skip
        form.add("output", sought=Sought(endings=(".zip",)), label="Zip file", info="Empty: a new one in the project.")
        form.finish("Make the bundle")
        shown = gr.HTML(elem_id="bundle-shown", elem_classes=["vg-live"])
        context.on_change(lambda project: [_bundled(context, project)], [shown])


def _bundled(context: Context, project: str) -> str:
    found = last_result(context.project_folder(project), "bundle")
    if found is None:
        return ""
    if "error" in found:
        return finding_note(found["error"])
    link = download(context, context.roots.inside(found["output"]), f"save {Path(found['output']).name}")
    rows = [(name, f"{size:,} bytes") for name, size in found["entries"].items()]
    rows += [(f"not in it: {name}", why) for name, why in found["missing"].items()]
    return f"<p>{link}</p>" + table(("in the bundle", ""), rows)
