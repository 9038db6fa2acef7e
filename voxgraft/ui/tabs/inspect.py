"""The tabs Preflight and Diagnose: everything that examines a run or a checkpoint.

Preflight prepares the recordings and finds what would go wrong before training, with a button for what one command
cures. Diagnose says what happened to a checkpoint and repairs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.pipeline.stages import STAGE_STARTING
from voxgraft.ui.commands import find_grown_tokenizer, run_base_word, run_dataset_folder, run_language
from voxgraft.ui.files import (
    CHECKPOINT_PATHS,
    CONFIG_PATHS,
    DATASET_PATHS,
    FOLDER_PATHS,
    TEXT_PATHS,
    TOKENIZER_PATHS,
    PathFilter,
    next_free_path,
)
from voxgraft.ui.forms import CommandForm, add_upload
from voxgraft.ui.html import (
    PAGE_TARGETS,
    action_button,
    details_html,
    file_link,
    finding_html,
    image_html,
    job_html,
    note_html,
    table_html,
    target_button,
)
from voxgraft.ui.jobs import ProjectJobs, UiJob
from voxgraft.ui.live import go_stages
from voxgraft.ui.page import ACTIONS_JS, JobView, PageContext, add_job_view, last_job_result, slug, start_job

# Findings that one command cures, run as its form would on a project that was just opened; by code.
CURE_COMMANDS: dict[str, tuple[str, str]] = {
    "graft-missing": ("graft", "Create the graft"),
    "graft-broken": ("graft", "Create the graft again"),
    "run-changed": ("graft", "Create the graft again"),
    "texts-changed": ("graft", "Create the graft again"),
    "graft-other-tokenizer": ("graft", "Create the graft again"),
    "set-missing": ("prepare", "Prepare the recordings"),
    "set-stale": ("prepare", "Prepare the recordings again"),
    "set-incomplete": ("prepare", "Prepare the recordings again"),
    "manifest-no-split": ("data split", "Split the dataset"),
    "split-leak-audio": ("data split", "Split the dataset again"),
}
# What a check may need that no run of voxgraft has: files of other trainers.
FOREIGN_NEEDS = {"a checkpoint", "an old config", "data of another trainer"}
DIAGNOSABLE_PATHS = PathFilter(endings=CHECKPOINT_PATHS.endings, mark="run.yaml")
VERDICT_KINDS = {"RESUME": "good", "REPAIR": "warn", "START FRESH": "bad"}
# More of them make the page slow; the report has all.
MAX_FINDINGS = 30


class CureView(JobView):
    """The job of a cure whose own form is on another tab; shown until the next check."""

    def html(self, job: UiJob | None) -> str:
        checked = ProjectJobs(job.folder.parent.parent).latest("check") if job is not None else None
        is_news = job is not None and checked is not None and job.number > checked.number
        return job_html(job, self.is_json, self.title) if is_news else ""


def build_preflight_tab(context: PageContext) -> None:
    """Lay the tab Preflight out."""

    def default_dataset(project: Path) -> Path | None:
        folder = run_dataset_folder(project)
        return folder if (folder / "manifest.jsonl").is_file() else None

    with gr.Accordion("1. Prepare the recordings", open=True, elem_id="preflight-prepare"):
        gr.Markdown(
            "Encodes clips for training: speech codes, voices, text ids. An interrupted run resumes and encodes only "
            "new clips. Other tools call this preprocess or build pairs. The prompt of a clip is chosen while training."
        )
        form = CommandForm(context, "prepare")
        with gr.Row():
            form.add("manifest", sought=DATASET_PATHS, default=default_dataset, label="Dataset")
            form.add("workers")
            form.add("device")
        with gr.Accordion("More", open=False):
            form.add_all(("engine", "batch_seconds", "voices"))
        prepare = form.finish("Prepare")
    with gr.Accordion("2. Check everything", open=True, elem_id="preflight-check"):
        form = CommandForm(context, "check", json=True)
        with gr.Accordion("Also files of other trainers", open=False), gr.Row():
            form.add("checkpoint", sought=CHECKPOINT_PATHS)
            form.add("training_config", sought=CONFIG_PATHS)
            form.add("prepared", sought=FOLDER_PATHS)
        form.finish("Check")
        verdict = gr.HTML(elem_id="check-verdict", elem_classes=["vg-live"])
        findings = gr.HTML(elem_id="check-findings", elem_classes=["vg-live"], js_on_load=ACTIONS_JS)
        context.on_change(lambda project: _check_verdict(context, project), [verdict, findings])
        views = {"prepare": prepare}
        for verb in dict.fromkeys(verb for verb, _ in CURE_COMMANDS.values()):
            if verb not in views:
                name = f"cure-{slug(verb)}"
                with gr.Column(elem_classes=["vg-form"]):
                    shown = gr.HTML(elem_id=f"{name}-state", elem_classes=["vg-live"])
                    stop = gr.Button("Stop", variant="stop", elem_id=f"{name}-stop", elem_classes=["vg-act", "vg-stop"])
                views[verb] = CureView(verb, shown, context.tab)
                add_job_view(context, views[verb], stop)

        outputs = [part for view in views.values() for part in (view.shown, view.button) if part is not None]

        def cure(project: str, event: gr.EventData) -> list[Any]:
            updates = dict.fromkeys(outputs, gr.skip())
            verb = str(getattr(event, "verb", ""))
            if (view := views.get(verb)) is not None:
                # With the values that the form of the command has when the project is opened.
                form = next(form for form in context.forms if form.name == verb)
                shown = start_job(context, project, view, lambda: form.words(project, form.initial_values(project)))
                parts = [part for part in (view.shown, view.button) if part is not None]
                updates |= zip(parts, shown if isinstance(shown, list) else [shown], strict=True)
            return [*updates.values()]

        context.wire([findings.click], cure, [context.project], outputs)
        checked = gr.HTML(elem_id="check-checked")
        context.on_change(lambda project: [_coverage_html(context, project)], [checked])


def _check_verdict(context: PageContext, project: str) -> list[Any]:
    result = last_job_result(context.project_folder(project), "check")
    if result is None:
        job = ProjectJobs(context.project_folder(project)).latest("go")
        if job is None or go_stages(job).get("check", ("",))[0] != STAGE_STARTING:
            return [note_html("not checked yet"), ""]
        words = "Continue has checked this run before it trained. Its warnings are on Home."
        shown = target_button(PAGE_TARGETS["go", ""], "Show them")
        return [f'<div class="vg-note" role="status">{escape(words)}{shown}</div>', ""]
    if "error" in result:
        return [finding_html(result["error"], "check"), ""]
    findings = [item for item in result["findings"] if isinstance(item, dict)]
    job = ProjectJobs(context.project_folder(project)).latest("check")
    since = job.done_since if job is not None else set()
    left = [item for item in findings if CURE_COMMANDS.get(str(item["code"]), ("",))[0] not in since]
    left = [] if "go" in since else left
    is_changed = job is not None and job.is_before_change
    if findings and (is_changed or len(left) < len(findings)):
        again = target_button(PAGE_TARGETS["check", ""], "Check again")
        head = f'<div class="vg-note" role="status">checked before the last change{again}</div>'
        shown = _findings_with_cures(left)
        return [head, f"<details><summary>Findings before it</summary>{shown}</details>" if is_changed else shown]
    errors = sum(item["level"] == "error" for item in findings)
    if not result["fine"]:
        head = note_html(f"{errors} problem{'s' if errors != 1 else ''} to fix before training", "bad")
    elif any(item["code"] in CURE_COMMANDS for item in findings):
        head = note_html("no problems, but something is still missing: see below", "warn")
    else:
        head = note_html("ready to train", "good")
    return [head, _findings_with_cures(findings)]


def _findings_with_cures(findings: Sequence[Mapping[str, Any]]) -> str:
    """Each finding with its cure, and a button if one command cures it."""
    shown: list[str] = []
    offered: set[str] = set()
    for item in findings:
        verb, words = CURE_COMMANDS.get(str(item["code"]), ("", ""))
        is_new = bool(verb) and verb not in offered
        offered.add(verb)
        button = action_button("cure", words, elem_id=f"cure-{item['code']}", verb=verb) if is_new else ""
        shown.append(f'<div class="vg-finding">{finding_html(item, "check")}{button}</div>')
    return "".join(shown)


def _coverage_html(context: PageContext, project: str) -> str:
    """What was checked, in one line that unfolds; and one line for each reason why something was not."""
    result = last_job_result(context.project_folder(project), "check")
    if result is None or "error" in result:
        return ""
    looked = [str(name) for name in result["checked"]]
    lines = [details_html(f"✓ {len(looked)} checks were made", looked)]
    foreign: list[str] = []
    missing: dict[str, list[str]] = {}
    for name, why in result["not_checked"].items():
        if FOREIGN_NEEDS & {*str(why).removeprefix("needs ").split(" and ")}:
            foreign.append(str(name))
        else:
            missing.setdefault(str(why), []).append(str(name))
    lines += [details_html(f"skipped, {why}: {len(names)}", names) for why, names in missing.items()]
    if foreign:
        words = "not needed for a run: {} checks of files of other trainers; to use them, select such files above"
        lines.append(details_html(words.format(len(foreign)), foreign))
    return "".join(lines)


def build_diagnose_tab(context: PageContext) -> None:
    """Lay the tab Diagnose out."""
    gr.Markdown(
        "Compares a checkpoint of any trainer with its base: resume, repair or start fresh, and why. The files are "
        "not changed."
    )
    with gr.Accordion("1. Diagnose", open=True, elem_id="diagnose-look"):
        form = CommandForm(
            context, "diagnose", json=True, fresh={"output": lambda project: next_free_path(project / "diagnosis")}
        )
        with gr.Row():
            form.add(
                "checkpoint",
                sought=DIAGNOSABLE_PATHS,
                default=lambda project: project,
                info="A file (.safetensors, .pt, .pth), a folder with one, or a run. Large ones: copy them here.",
            )
            form.add("base", sought=FOLDER_PATHS, default=run_base_word)
            form.add("tokenizer", sought=TOKENIZER_PATHS, default=find_grown_tokenizer)
            form.add("language", default=run_language)
        with gr.Row():
            add_upload(context, form, "checkpoint", "Upload a checkpoint",
                      (".safetensors", ".pt", ".pth"))  # fmt: skip
            add_upload(context, form, "tokenizer", "Upload its tokenizer", (".json", ".model"))
        with gr.Accordion("More inputs, transcription", open=False):
            with gr.Row():
                form.add("texts", sought=TEXT_PATHS)
                form.add("training_config", sought=CONFIG_PATHS)
                form.add("prepared", sought=FOLDER_PATHS)
                form.add("family")
            form.add_all(("listen", "max_sentences", "seed"))
            form.add("output", sought=FOLDER_PATHS, label="Folder of the report", info="Empty: a new one in the run.")
        form.finish("Diagnose")
        form.show_result("diagnose-verdict", lambda found: _verdict_html(context, found))
    with gr.Accordion("2. Repair", open=False, elem_id="diagnose-repair"):
        gr.Markdown(
            "Writes a new file with damaged parts restored from the base. Uses checkpoint, base and tokenizer from "
            "above. Without a choice, it repairs what the diagnosis names."
        )
        repair = CommandForm(
            context, "repair", fresh={"output": lambda project: next_free_path(project / "repaired.safetensors")}
        )  # fmt: skip
        for key in ("checkpoint", "base", "tokenizer", "language"):
            repair.add(key, shared=form.control(key))
        with gr.Row():
            repair.add("only", label="Repair only")
            repair.add("body")
            repair.add("choose")
            repair.add("output", sought=DIAGNOSABLE_PATHS, label="New file", info="Empty: a new one in the run.")
        with gr.Accordion("More", open=False):
            repair.add_all(("points", "max_sentences", "worse", "seed"))
            repair.add_all(("rows.init", "rows.noise", "rows.seed", "family"))
        repair.finish("Repair", output="What was done")


def _verdict_html(context: PageContext, found: dict[str, Any]) -> str:
    """The verdict, why, what to do, the picture, the report and the findings, worst first."""
    verdict = found["verdict"]
    word = str(verdict["word"])
    parts = [
        f'<div class="vg-note vg-{VERDICT_KINDS.get(word, "note")}"><span class="vg-word">{escape(word)}</span><br>'
        f"{escape(str(verdict['sentence']))}<br><small>{escape(str(verdict['reason']))}</small></div>",
        *(
            f"<details><summary>Command line</summary><small>{escape(str(command))}</small></details>"
            for command in verdict["commands"]
        ),
    ]
    if found["heard"]:
        rows = [(one["language"], one["who"], f"{100 * float(one['phone_error']):.1f} %") for one in found["heard"]]
        parts.append(table_html(("language", "model", "phone error"), rows))
    if found.get("report"):
        report = context.roots.resolve_inside(found["report"])
        words = f"rows and layers of {Path(found['checkpoint']).name}: unchanged and changed parts"
        parts += [
            f"<p>{file_link(context, report, 'open the whole report')}</p>",
            image_html(context, report.with_name("diagnosis.png"), words),
        ]
    order = {"error": 0, "warning": 1}
    ranked = sorted(found["findings"], key=lambda item: order.get(str(item.get("level")), 2))
    parts += map(finding_html, ranked[:MAX_FINDINGS])
    if len(ranked) > MAX_FINDINGS:
        parts.append(note_html(f"and {len(ranked) - MAX_FINDINGS} more: see the report"))
    return "".join(parts)
