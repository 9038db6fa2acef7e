"""The tab Preflight: clips become what training reads, and everything that would go wrong is found before."""

from __future__ import annotations

from typing import Any

import gradio as gr

from voxgraft.errors import VoxgraftError
from voxgraft.ui import reading
from voxgraft.ui.context import Context
from voxgraft.ui.controls import Form
from voxgraft.ui.jobs import Jobs
from voxgraft.ui.roots import DATASETS, FOLDERS, Sought
from voxgraft.ui.tabs.model import CHECKPOINTS
from voxgraft.ui.views import error_note, finding_note, job_html, note, table

CONFIGS = Sought(endings=(".yaml", ".yml", ".sh", ".txt"))
CURES: dict[str, tuple[str, str]] = {
    "graft-missing": ("graft", "Make the graft"),
    "graft-broken": ("graft", "Make the graft again"),
    "run-changed": ("graft", "Make the graft again"),
    "texts-changed": ("graft", "Make the graft again"),
    "graft-other-tokenizer": ("graft", "Make the graft again"),
    "set-missing": ("prepare", "Prepare the recordings"),
    "set-stale": ("prepare", "Prepare the recordings again"),
    "set-incomplete": ("prepare", "Prepare the recordings again"),
    "manifest-no-split": ("data split", "Split the dataset"),
    "split-leak-audio": ("data split", "Split the dataset again"),
}
"""Findings that one verb cures, with its values as the forms have them when a project is opened."""


def build(context: Context) -> None:
    """Lay the tab out."""
    _prepare(context)
    _check(context)


def _prepare(context: Context) -> None:
    with gr.Accordion("1. Prepare the recordings", open=True, elem_id="preflight-prepare"):
        gr.Markdown(
            "Turns clips into what training reads: speech codes, voices, ids of the text. It goes on where it was, and "
            "makes only what is new. Elsewhere: preprocess, build pairs; the prompt of a clip is chosen while training."
        )
        form = Form(context, "prepare")
        with gr.Row():
            form.add("manifest", sought=DATASETS, default=_dataset, label="Dataset")
            form.add("workers")
            form.add("device")
        with gr.Accordion("More", open=False):
            form.add_all(("engine", "batch_seconds", "voices"))
        form.finish("Prepare")


def _dataset(project: Any) -> Any:
    folder = reading.clips_folder(project)
    return folder if (folder / "manifest.jsonl").is_file() else None


def _check(context: Context) -> None:
    with gr.Accordion("2. Check everything", open=True, elem_id="preflight-check"):
        form = Form(context, "check", json=True)
        with gr.Accordion("Also files of other trainers", open=False), gr.Row():
            form.add("checkpoint", sought=CHECKPOINTS)
            form.add("base_config", sought=CONFIGS)
            form.add("prepared", sought=FOLDERS)
        form.finish("Check")
        verdict = gr.HTML(elem_id="check-verdict", elem_classes=["vg-live"])
        found = gr.State([])
        context.on_change(lambda project: _verdict(context, project), [verdict, found])
        _buttons(context, found)
        checked = gr.HTML(elem_id="check-checked")
        context.on_change(lambda project: [_checked(context, project)], [checked])


def _result(context: Context, project: str) -> dict[str, Any] | None:
    job = Jobs(context.project_folder(project)).latest("check")
    return job.result() if job is not None and not job.alive else None


def _verdict(context: Context, project: str) -> list[Any]:
    result = _result(context, project)
    if result is None:
        return [note("not checked yet"), []]
    if "error" in result:
        return [finding_note(result["error"]), []]
    findings = [item for item in result["findings"] if isinstance(item, dict)]
    errors = sum(item["level"] == "error" for item in findings)
    if not result["fine"]:
        head = note(f"training would go wrong: {errors} thing{'s' if errors != 1 else ''} to cure first", "bad")
    elif any(item["code"] in CURES for item in findings):
        head = note("nothing is wrong, but something is missing yet: see below", "warn")
    else:
        head = note("ready to train", "good")
    return [head, findings]


def _buttons(context: Context, found: Any) -> None:
    """Each finding with its cure, and a button where one verb cures it."""

    def findings(items: list[dict[str, Any]]) -> None:
        offered: set[str] = set()
        for item in items:
            gr.HTML(finding_note(item), elem_classes=["vg-finding"])
            verb, words = CURES.get(str(item["code"]), ("", ""))
            if verb and verb not in offered:
                offered.add(verb)
                button = gr.Button(words, size="sm", elem_id=f"cure-{item['code']}", elem_classes=["vg-act"])
                said = gr.HTML(elem_classes=["vg-live"])
                context.wire([button.click], _curing(context, verb), [context.project], [said])

    gr.render(inputs=[found])(findings)


def _curing(context: Context, verb: str) -> Any:
    def cure(project: str) -> str:
        """Run the verb as its own form would on a project that was just opened."""
        form = next(form for form in context.forms if form.name == verb)
        try:
            folder = context.project_folder(project)
            job = Jobs(folder).start(verb, form.words(project, form.opening_values(project)), context.roots.home)
        except VoxgraftError as error:
            return error_note(error)
        return job_html(job)

    return cure


def _checked(context: Context, project: str) -> str:
    result = _result(context, project)
    if result is None or "error" in result:
        return ""
    rows = [(name, "✓ looked at", "") for name in result["checked"]]
    rows += [(name, "not looked at", why) for name, why in result["not_checked"].items()]
    return table(("what", "", "why not"), rows)
