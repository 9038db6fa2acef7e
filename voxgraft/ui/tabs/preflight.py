"""The tab Preflight: clips become what training reads, and everything that would go wrong is found before."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.ui import commands
from voxgraft.ui.commands import PageContext
from voxgraft.ui.files import DATASET_PATHS, FOLDER_PATHS, PathFilter
from voxgraft.ui.forms import CommandForm, JobView, slug
from voxgraft.ui.html import error_html, finding_html, job_html, note_html
from voxgraft.ui.jobs import ProjectJobs, UiJob
from voxgraft.ui.tabs.model import CHECKPOINT_PATHS

CONFIG_PATHS = PathFilter(endings=(".yaml", ".yml", ".sh", ".txt"))
CURE_COMMANDS: dict[str, tuple[str, str]] = {
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
FOREIGN_NEEDS = {"a checkpoint", "an old config", "data of another trainer"}
"""What a check may need that no run of voxgraft has: files of other trainers."""


class CureView(JobView):
    """Where the job of a cure is shown whose own form stands on another tab: until the next check."""

    def html(self, job: UiJob | None) -> str:
        checked = ProjectJobs(job.folder.parent.parent).latest("check") if job is not None else None
        is_news = job is not None and checked is not None and job.number > checked.number
        return job_html(job, self.for_machines, self.title) if is_news else ""


def build(context: PageContext) -> None:
    """Lay the tab out."""
    prepare = _build_prepare_section(context)
    _build_check_section(context, prepare)


def _build_prepare_section(context: PageContext) -> JobView:
    with gr.Accordion("1. Prepare the recordings", open=True, elem_id="preflight-prepare"):
        gr.Markdown(
            "Turns clips into what training reads: speech codes, voices, ids of the text. It goes on where it was, and "
            "makes only what is new. Elsewhere: preprocess, build pairs; the prompt of a clip is chosen while training."
        )
        form = CommandForm(context, "prepare")
        with gr.Row():
            form.add("manifest", sought=DATASET_PATHS, default=_default_dataset, label="Dataset")
            form.add("workers")
            form.add("device")
        with gr.Accordion("More", open=False):
            form.add_all(("engine", "batch_seconds", "voices"))
        return form.finish("Prepare")


def _default_dataset(project: Any) -> Any:
    folder = commands.run_dataset_folder(project)
    return folder if (folder / "manifest.jsonl").is_file() else None


def _build_check_section(context: PageContext, prepare: JobView) -> None:
    with gr.Accordion("2. Check everything", open=True, elem_id="preflight-check"):
        form = CommandForm(context, "check", json=True)
        with gr.Accordion("Also files of other trainers", open=False), gr.Row():
            form.add("checkpoint", sought=CHECKPOINT_PATHS)
            form.add("base_config", sought=CONFIG_PATHS)
            form.add("prepared", sought=FOLDER_PATHS)
        form.finish("Check")
        verdict = gr.HTML(elem_id="check-verdict", elem_classes=["vg-live"])
        found = gr.State([])
        context.on_change(lambda project: _check_verdict(context, project), [verdict, found])
        views = {"prepare": prepare}
        views |= {verb: _build_cure_view(context, verb) for verb in dict.fromkeys(verb for verb, _ in CURE_COMMANDS.values())
                  if verb not in views}  # fmt: skip
        _build_cure_buttons(context, found, views)
        checked = gr.HTML(elem_id="check-checked")
        context.on_change(lambda project: [_coverage_html(context, project)], [checked])


def _last_check_result(context: PageContext, project: str) -> dict[str, Any] | None:
    job = ProjectJobs(context.project_folder(project)).latest("check")
    return job.result() if job is not None and not job.alive else None


def _check_verdict(context: PageContext, project: str) -> list[Any]:
    result = _last_check_result(context, project)
    if result is None:
        return [note_html("not checked yet"), []]
    if "error" in result:
        return [finding_html(result["error"]), []]
    findings = [item for item in result["findings"] if isinstance(item, dict)]
    errors = sum(item["level"] == "error" for item in findings)
    if not result["fine"]:
        head = note_html(f"training would go wrong: {errors} thing{'s' if errors != 1 else ''} to cure first", "bad")
    elif any(item["code"] in CURE_COMMANDS for item in findings):
        head = note_html("nothing is wrong, but something is missing yet: see below", "warn")
    else:
        head = note_html("ready to train", "good")
    return [head, findings]


def _build_cure_view(context: PageContext, verb: str) -> JobView:
    """How a cure stands, and a button that stops it."""
    name = f"cure-{slug(verb)}"
    with gr.Column(elem_classes=["vg-form"]):
        shown = gr.HTML(elem_id=f"{name}-state", elem_classes=["vg-live"])
        stop = gr.Button("Stop", variant="stop", elem_id=f"{name}-stop", elem_classes=["vg-act", "vg-stop"])
    view = CureView(verb, shown, context.tab)
    context.add_view(view)

    def stopped(project: str) -> str:
        try:
            job = ProjectJobs(context.project_folder(project)).stop(verb)
        except VoxgraftError as error:
            return error_html(error)
        return view.html(job)

    context.wire([stop.click], stopped, [context.project], [shown])
    return view


def _build_cure_buttons(context: PageContext, found: Any, views: dict[str, JobView]) -> None:
    """Each finding with its cure, and a button where one verb cures it."""

    def findings(items: list[dict[str, Any]]) -> None:
        offered: set[str] = set()
        for item in items:
            gr.HTML(finding_html(item), elem_classes=["vg-finding"])
            verb, words = CURE_COMMANDS.get(str(item["code"]), ("", ""))
            if verb and verb not in offered:
                offered.add(verb)
                button = gr.Button(words, size="sm", elem_id=f"cure-{item['code']}", elem_classes=["vg-act"])
                context.wire(
                    [button.click],
                    _make_cure_handler(context, verb, views[verb]),
                    [context.project],
                    [views[verb].shown],
                )

    gr.render(inputs=[found])(findings)


def _make_cure_handler(context: PageContext, verb: str, view: JobView) -> Any:
    def cure(project: str) -> str:
        """Run the verb as its own form would on a project that was just opened."""
        form = next(form for form in context.forms if form.name == verb)
        try:
            folder = context.project_folder(project)
            job = ProjectJobs(folder).start(verb, form.words(project, form.initial_values(project)), context.roots.home)
        except VoxgraftError as error:
            return error_html(error)
        return view.html(job)

    return cure


def _coverage_html(context: PageContext, project: str) -> str:
    """What was looked at, in one line that unfolds; and in one line each what was not, and what would change that."""
    result = _last_check_result(context, project)
    if result is None or "error" in result:
        return ""
    looked = [str(name) for name in result["checked"]]
    lines = [_details_html(f"✓ looked at: {len(looked)} things", looked)]
    foreign: list[str] = []
    missing: dict[str, list[str]] = {}
    for name, why in result["not_checked"].items():
        if FOREIGN_NEEDS & {*str(why).removeprefix("needs ").split(" and ")}:
            foreign.append(str(name))
        else:
            missing.setdefault(str(why), []).append(str(name))
    lines += [_details_html(f"not looked at, {why}: {len(names)}", names) for why, names in missing.items()]
    if foreign:
        words = "only for files of other trainers: {} more; name such files above to have them looked at"
        lines.append(_details_html(words.format(len(foreign)), foreign))
    return "".join(lines)


def _details_html(summary: str, names: list[str]) -> str:
    inside = html.escape(", ".join(names))
    return f"<details><summary>{html.escape(summary)}</summary>{inside}</details>"
