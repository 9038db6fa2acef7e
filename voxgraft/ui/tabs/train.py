"""The tab Train: start, stop and go on; what the run tells while it trains; its samples; its saved steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.journal import History
from voxgraft.core.results import format_bytes
from voxgraft.core.run import RunFolder
from voxgraft.ui import commands, train_status
from voxgraft.ui.commands import PageContext
from voxgraft.ui.files import TEXT_PATHS, PathFilter
from voxgraft.ui.forms import CommandForm, last_job_result
from voxgraft.ui.html import error_html, finding_html, note_html, recognizer_choices, table_html
from voxgraft.ui.jobs import ProjectJobs, find_external_holder

PREPARED_SET_PATHS = PathFilter(mark="set.json")
START_NEWEST, START_FRESH = "", "fresh"
RATE_KEYS = ("train.lr_rows", "train.lr_adapter", "train.lr_backbone", "train.weight_decay", "train.max_grad_norm")
SCHEDULE_KEYS = ("train.schedule", "train.warmup_steps", "train.min_lr_ratio")
INTERVAL_KEYS = ("train.log_every", "train.valid_every", "train.save_every", "train.sample_every", "train.listen_every")
EARLY_STOPPING_KEYS = ("train.keep_last", "train.patience", "train.min_delta", "train.min_steps")
BATCH_KEYS = ("train.rank", "train.alpha", "train.batch_tokens", "train.microbatch_tokens", "train.seed")
DEVICE_KEYS = (
    "train.device",
    "train.precision",
    "train.compile",
    "train.gradient_checkpointing",
    "train.deterministic",
)
LOSS_KEYS = ("train.text_weight", "train.speech_weight", "train.text_dropout", "train.emotion_from")
MERGED_MODE_KEYS = ("train.full_body", "train.kl_weight", "train.retention_bound", "train.interpolate")
REPLAY_KEYS = ("data.self_replay", "data.replay_share", "data.min_prompt_seconds", "data.single_clip_speakers")


def build(context: PageContext) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "Training runs by itself: you may close this page, and the run is found again when you come back. Stop "
        "finishes the step and saves; starting again goes on from there. The base's rows are frozen by construction."
    )
    _, followed = _build_train_form(context)
    _build_status_section(context, followed)
    _build_clean_section(context)


def _build_train_form(context: PageContext) -> tuple[CommandForm, list[Any]]:
    """The form, and what of it follows the run: where training can start, who trains elsewhere, the button."""
    form = CommandForm(context, "train", choices={"train.recognizer": recognizer_choices(context.roots)})
    with gr.Row():
        choice = gr.Dropdown(
            [("the newest saved step, or the beginning", START_NEWEST)], value=START_NEWEST, label="Start from", interactive=True,
            info="Where training goes on. What comes after a chosen step is set aside, not removed.",
            elem_id="train-from", scale=2,
        )  # fmt: skip
        form.add("train.mode")
        form.add("train.steps")
        form.add("train.epochs")
    hidden = [form.add("from_step"), form.add("fresh")]
    for component in hidden:
        component.visible = "hidden"  # the list above sets both
    _add_more_options(form)
    elsewhere = gr.HTML(elem_id="train-elsewhere", elem_classes=["vg-live"])
    form.finish("Start training", output="How it ended", keep=True)
    context.wire([choice.input], _start_values, [choice], hidden)
    for component in hidden:
        form.follow(component)
    return form, [choice, *hidden, elsewhere, form.button]


def _start_values(chosen: str | None) -> list[Any]:
    step = chosen if chosen and chosen.isdecimal() else ""
    return [step, chosen == START_FRESH]


def _add_more_options(form: CommandForm) -> None:
    with gr.Accordion("Rates and schedule", open=False, elem_id="train-rates"):
        form.add_all(RATE_KEYS)
        form.add_all(SCHEDULE_KEYS)
    with gr.Accordion("How often: journal, validation, saving, samples; when to stop early", open=False):
        form.add_all(INTERVAL_KEYS)
        form.add_all(EARLY_STOPPING_KEYS)
    with gr.Accordion("Data", open=False, elem_id="train-data"):
        with gr.Row():
            for key in ("data.train", "data.valid", "data.replay", "data.replay_valid"):
                form.add(key, sought=PREPARED_SET_PATHS)
            form.add("data.replay_texts", sought=TEXT_PATHS)
        form.add_all(REPLAY_KEYS)
    with gr.Accordion("Size of a step, memory and machine", open=False, elem_id="train-machine"):
        gr.Markdown("Batch size and gradient accumulation elsewhere: a step has so many tokens, whatever the memory.")
        form.add_all(BATCH_KEYS)
        form.add_all(DEVICE_KEYS)
    with gr.Accordion("Losses, and the merged mode", open=False):
        form.add_all(LOSS_KEYS)
        form.add_all(MERGED_MODE_KEYS)
        form.add("baseline")
    with gr.Accordion("Samples on the way, and listening", open=False), gr.Row():
        form.add("train.sample_texts", lines=3)
        for key in ("train.sample_sound", "train.recognizer", "train.tensorboard"):
            form.add(key)


def _build_status_section(context: PageContext, followed: list[Any]) -> None:
    """Everything that follows the journal. One stamp says what this page has seen of it."""
    with gr.Accordion("How it stands", open=True, elem_id="train-live"):
        figures = gr.HTML(elem_id="train-figures", elem_classes=["vg-live"])
        curves = gr.HTML(elem_id="train-curves")
        with gr.Accordion("What training said of itself before the first step", open=False, elem_id="train-said"):
            opening = gr.Textbox(
                label="Opening lines", lines=4, max_lines=20, interactive=False, elem_classes=["vg-mono"],
                elem_id="train-opening",
            )  # fmt: skip
    with gr.Accordion("Listen on the way", open=True, elem_id="train-listen"):
        with gr.Row():
            step = gr.Dropdown(
                [train_status.FIRST_AND_NEWEST, train_status.ALL_SAMPLES], value=train_status.FIRST_AND_NEWEST, label="Step", interactive=True, elem_id="train-sample-step",
                info="The same sentences in the same voice each time: only training makes a difference.",
            )  # fmt: skip
            language = gr.Dropdown(
                [train_status.ALL_SAMPLES], value=train_status.ALL_SAMPLES, label="Language", interactive=True, elem_id="train-sample-language",
                info="Old languages are spoken too: they must stay as they were.",
            )  # fmt: skip
        spoken = gr.HTML(elem_id="train-samples")
    with gr.Accordion("Saved steps", open=False, elem_id="train-saved"):
        saved = gr.HTML(elem_id="train-steps")
    _wire_status_refresh(
        context, (step, language), [figures, curves, opening, saved, step, language, spoken, *followed]
    )
    context.wire(
        [step.input, language.input],
        lambda project, at, spoken_in: _show_samples(context, project, at, spoken_in),
        [context.project, step, language],
        [spoken],
    )


def _wire_status_refresh(context: PageContext, asked: tuple[Any, Any], shown: list[Any]) -> None:
    """The clock only asks whether something is new, which costs a page little; what is new comes in a second event."""
    there, seen = gr.State(""), gr.State({})
    context.wire(
        [context.refresh_tick().change],
        lambda project, known: _status_stamp(context, project, known),
        [context.project, there],
        [there],
        trigger_mode="once",
    )
    context.wire(
        [there.change],
        lambda project, known, step, language: _refresh_status(context, project, known or {}, (step, language)),
        [context.project, seen, *asked],
        [seen, *shown],
        trigger_mode="always_last",
    )


def _status_stamp(context: PageContext, project: str, known: str) -> Any:
    """Changes when there is something new to show."""
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return gr.skip()
    job = ProjectJobs(folder).latest("train")
    work = f"{job.folder.name} {job.alive}" if job is not None else ""
    stamp = f"{project} {train_status.run_change_stamp(RunFolder(folder))} {work} {find_external_holder(folder)}"
    return stamp if stamp != known else gr.skip()


def _refresh_status(context: PageContext, project: str, known: dict[str, str], asked: tuple[str, str]) -> list[Any]:
    """What is new since the page last looked; all else is left alone, players that play above all."""
    nothing = [gr.skip()] * 13
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return nothing
    run, job, holder = RunFolder(folder), ProjectJobs(folder).latest("train"), find_external_holder(folder)
    at_work = (job is not None and job.alive) or (holder is not None and holder.verb == "train")
    work = [note_html(holder.words, "warn") if holder else "", gr.update(interactive=holder is None)]
    try:
        told = train_status.load_train_status(run)
        steps = train_status.list_saved_steps(run, told.history)
    except VoxgraftError as error:
        return [{"project": project}, error_html(error), *nothing[4:], *work]
    heard, newest_job = f"{project} {sorted(told.history.samples)}", job.folder.name if job else ""
    anew = project != known.get("project") or at_work or newest_job != known.get("job")
    sampled: list[Any] = [gr.skip()] * 3
    if heard != known.get("samples"):
        sampled = _refresh_samples(context, run, told.history, asked)
    return [
        {"project": project, "samples": heard, "job": newest_job},
        train_status.train_figures_html(told, is_running=at_work, bound=_retention_bound(folder)),
        train_status.train_curves_html(told.history),
        train_status.read_training_summary(None if holder else job),
        train_status.saved_steps_html(steps),
        *sampled,
        *_start_choices(steps, anew),
        *work,
    ]


def _refresh_samples(context: PageContext, run: RunFolder, history: History, asked: tuple[str, str]) -> list[Any]:
    """Lists of steps and languages, and the samples of those that are chosen; what is there no more is not chosen."""
    lists = train_status.sample_choices(history)
    known = [[one if isinstance(one, str) else one[1] for one in choices] for choices in lists]
    step, language = (chosen if chosen in values else values[0] for chosen, values in zip(asked, known, strict=True))
    shown = train_status.samples_html(context, run, history, step, language)
    return [*(gr.update(choices=one, value=it) for one, it in zip(lists, (step, language), strict=True)), shown]


def _retention_bound(folder: Path) -> float | None:
    try:
        return commands.load_run_settings(folder).train.retention_bound
    except VoxgraftError:
        return None


def _start_choices(steps: list[train_status.SavedStep], anew: bool) -> list[Any]:
    """Where training can start. The choice is for one training: the next start goes on from the newest."""
    newest = f"the newest saved step ({steps[0].step:,})" if steps else "the beginning"
    choices = [(newest, START_NEWEST)]
    choices += [(one.words, str(one.step)) for one in steps if one.damage is None]
    choices += [("begin again at step 0 (fresh)", START_FRESH)] if steps else []
    if anew:
        return [gr.update(choices=choices, value=START_NEWEST), "", False]
    return [gr.update(choices=choices), gr.skip(), gr.skip()]


def _show_samples(context: PageContext, project: str, step: str, language: str) -> Any:
    try:
        run = RunFolder(context.project_folder(project))
        return train_status.samples_html(
            context,
            run,
            train_status.load_train_status(run).history,
            step or train_status.FIRST_AND_NEWEST,
            language or train_status.ALL_SAMPLES,
        )
    except VoxgraftError as error:
        return error_html(error)


def _build_clean_section(context: PageContext) -> None:
    with gr.Accordion("Make room: remove saved steps that are not needed", open=False, elem_id="train-clean"):
        gr.Markdown(
            "First without the tick: shows what would go, with sizes. The first step, the best one and the last ones "
            "always stay. Not while it trains."
        )
        form = CommandForm(context, "clean", json=True)
        with gr.Row():
            form.add("keep")
            form.add("yes", label="Yes, remove what is listed", info="Without it nothing is removed, only shown.")
        form.finish("Show, or remove")
        shown = gr.HTML(elem_id="clean-shown", elem_classes=["vg-live"])
        context.on_change(lambda project: [_clean_html(context, project)], [shown])


def _clean_html(context: PageContext, project: str) -> str:
    found = last_job_result(context.project_folder(project), "clean")
    if found is None:
        return ""
    if "error" in found:
        return finding_html(found["error"])
    words = ("kept", "removed") if found["removed"] else ("stays", "would go")
    rows = [(one["folder"], format_bytes(one["bytes"]), words[one["remove"]], one["why"]) for one in found["folders"]]
    count = sum(bool(one["remove"]) for one in found["folders"])
    amount = f"{count} folder{'s' if count != 1 else ''}, {format_bytes(found['bytes'])}"
    if not count:
        head = note_html("nothing to remove", "good")
    elif found["removed"]:
        head = note_html(f"removed {amount}", "good")
    else:
        head = note_html(f"nothing was removed yet; tick the box and press again to remove {amount}", "warn")
    return head + table_html(("in steps/", "size", "", "why"), rows) + "".join(map(finding_html, found["findings"]))
