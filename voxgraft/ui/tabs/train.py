"""The tab Train: start, stop and go on; what the run tells while it trains; its samples; its saved steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.amounts import brief_bytes
from voxgraft.errors import VoxgraftError
from voxgraft.history import History
from voxgraft.run import RunFolder
from voxgraft.ui import live, reading
from voxgraft.ui.context import Context
from voxgraft.ui.controls import Form
from voxgraft.ui.holding import holder_elsewhere
from voxgraft.ui.jobs import Jobs
from voxgraft.ui.listeners import listener_choices
from voxgraft.ui.making import last_result
from voxgraft.ui.roots import TEXTS, Sought
from voxgraft.ui.views import error_note, finding_note, note, table

SETS = Sought(mark="set.json")
NEWEST, FRESH = "", "fresh"
RATES = ("train.row_rate", "train.adapter_rate", "train.body_rate", "train.weight_decay", "train.clip")
COURSE = ("train.schedule", "train.warmup_steps", "train.final_share")
INTERVALS = ("train.log_every", "train.valid_every", "train.save_every", "train.sample_every", "train.listen_every")
ENDING = ("train.keep_last", "train.patience", "train.min_delta", "train.min_steps")
SIZE = ("train.rank", "train.alpha", "train.tokens_per_step", "train.pack_tokens", "train.seed")
MACHINE = ("train.device", "train.precision", "train.compile", "train.checkpointing", "train.deterministic")
LOSSES = ("train.text_weight", "train.speech_weight", "train.silent_share", "train.emotion_from")
MERGED = ("train.full_body", "train.kl_weight", "train.retention_bound", "train.interpolate")
REPLAY = ("data.self_replay", "data.replay_share", "data.min_prompt_seconds", "data.lone_clips")


def build(context: Context) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "Training runs by itself: you may close this page, and the run is found again when you come back. Stop "
        "finishes the step and saves; starting again goes on from there. The base's rows are frozen by construction."
    )
    _, followed = _form(context)
    _live(context, followed)
    _clean(context)


def _form(context: Context) -> tuple[Form, list[Any]]:
    """The form, and what of it follows the run: where training can start, who trains elsewhere, the button."""
    form = Form(context, "train", choices={"train.listener": listener_choices(context.roots)})
    with gr.Row():
        choice = gr.Dropdown(
            [("the newest saved step, or the beginning", NEWEST)], value=NEWEST, label="Start from", interactive=True,
            info="Where training goes on. What comes after a chosen step is set aside, not removed.",
            elem_id="train-from", scale=2,
        )  # fmt: skip
        form.add("train.mode")
        form.add("train.steps")
        form.add("train.epochs")
    hidden = [form.add("from_step"), form.add("fresh")]
    for component in hidden:
        component.visible = "hidden"  # the list above sets both
    _more(form)
    elsewhere = gr.HTML(elem_id="train-elsewhere", elem_classes=["vg-live"])
    form.finish("Start training", output="How it ended", keep=True)
    context.wire([choice.input], _starting_point, [choice], hidden)
    for component in hidden:
        form.follow(component)
    return form, [choice, *hidden, elsewhere, form.button]


def _starting_point(chosen: str | None) -> list[Any]:
    step = chosen if chosen and chosen.isdecimal() else ""
    return [step, chosen == FRESH]


def _more(form: Form) -> None:
    with gr.Accordion("Rates and schedule", open=False, elem_id="train-rates"):
        form.add_all(RATES)
        form.add_all(COURSE)
    with gr.Accordion("How often: journal, validation, saving, samples; when to stop early", open=False):
        form.add_all(INTERVALS)
        form.add_all(ENDING)
    with gr.Accordion("Data", open=False, elem_id="train-data"):
        with gr.Row():
            for key in ("data.train", "data.valid", "data.replay", "data.replay_valid"):
                form.add(key, sought=SETS)
            form.add("data.replay_texts", sought=TEXTS)
        form.add_all(REPLAY)
    with gr.Accordion("Size of a step, memory and machine", open=False, elem_id="train-machine"):
        gr.Markdown("Batch size and gradient accumulation elsewhere: a step has so many tokens, whatever the memory.")
        form.add_all(SIZE)
        form.add_all(MACHINE)
    with gr.Accordion("Losses, and the merged mode", open=False):
        form.add_all(LOSSES)
        form.add_all(MERGED)
        form.add("as_in_the_seeds")
    with gr.Accordion("Samples on the way, and listening", open=False), gr.Row():
        form.add("train.sample_texts", lines=3)
        for key in ("train.sample_sound", "train.listener", "train.tensorboard"):
            form.add(key)


def _live(context: Context, followed: list[Any]) -> None:
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
                [live.ENDS, live.EVERY], value=live.ENDS, label="Step", interactive=True, elem_id="train-sample-step",
                info="The same sentences in the same voice each time: only training makes a difference.",
            )  # fmt: skip
            language = gr.Dropdown(
                [live.EVERY], value=live.EVERY, label="Language", interactive=True, elem_id="train-sample-language",
                info="Old languages are spoken too: they must stay as they were.",
            )  # fmt: skip
        spoken = gr.HTML(elem_id="train-samples")
    with gr.Accordion("Saved steps", open=False, elem_id="train-saved"):
        saved = gr.HTML(elem_id="train-steps")
    _follow(context, (step, language), [figures, curves, opening, saved, step, language, spoken, *followed])
    context.wire(
        [step.input, language.input],
        lambda project, at, spoken_in: _samples(context, project, at, spoken_in),
        [context.project, step, language],
        [spoken],
    )


def _follow(context: Context, asked: tuple[Any, Any], shown: list[Any]) -> None:
    """The clock only asks whether something is new, which costs a page little; what is new comes in a second event."""
    there, seen = gr.State(""), gr.State({})
    context.wire(
        [context.beat().change],
        lambda project, known: _stamp(context, project, known),
        [context.project, there],
        [there],
        trigger_mode="once",
    )
    context.wire(
        [there.change],
        lambda project, known, step, language: _refreshed(context, project, known or {}, (step, language)),
        [context.project, seen, *asked],
        [seen, *shown],
        trigger_mode="always_last",
    )


def _stamp(context: Context, project: str, known: str) -> Any:
    """Changes when there is something new to show."""
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return gr.skip()
    job = Jobs(folder).latest("train")
    work = f"{job.folder.name} {job.alive}" if job is not None else ""
    stamp = f"{project} {live.stamp_of_run(RunFolder(folder))} {work} {holder_elsewhere(folder)}"
    return stamp if stamp != known else gr.skip()


def _refreshed(context: Context, project: str, known: dict[str, str], asked: tuple[str, str]) -> list[Any]:
    """What is new since the page last looked; all else is left alone, players that play above all."""
    nothing = [gr.skip()] * 13
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return nothing
    run, job, holder = RunFolder(folder), Jobs(folder).latest("train"), holder_elsewhere(folder)
    at_work = (job is not None and job.alive) or (holder is not None and holder.verb == "train")
    work = [note(holder.words, "warn") if holder else "", gr.update(interactive=holder is None)]
    try:
        told = live.told(run)
        steps = live.saved_steps(run, told.history)
    except VoxgraftError as error:
        return [{"project": project}, error_note(error), *nothing[4:], *work]
    heard, newest_job = f"{project} {sorted(told.history.samples)}", job.folder.name if job else ""
    anew = project != known.get("project") or at_work or newest_job != known.get("job")
    sampled: list[Any] = [gr.skip()] * 3
    if heard != known.get("samples"):
        sampled = _sampled(context, run, told.history, asked)
    return [
        {"project": project, "samples": heard, "job": newest_job},
        live.figures(told, at_work=at_work, bound=_bound(folder)),
        live.curves(told.history),
        live.opening_lines(None if holder else job),
        live.steps_table(steps),
        *sampled,
        *_starting_points(steps, anew),
        *work,
    ]


def _sampled(context: Context, run: RunFolder, history: History, asked: tuple[str, str]) -> list[Any]:
    """Lists of steps and languages, and the samples of those that are chosen; what is there no more is not chosen."""
    lists = live.sample_choices(history)
    known = [[one if isinstance(one, str) else one[1] for one in choices] for choices in lists]
    step, language = (chosen if chosen in values else values[0] for chosen, values in zip(asked, known, strict=True))
    shown = live.samples(context, run, history, step, language)
    return [*(gr.update(choices=one, value=it) for one, it in zip(lists, (step, language), strict=True)), shown]


def _bound(folder: Path) -> float | None:
    try:
        return reading.run_settings(folder).train.retention_bound
    except VoxgraftError:
        return None


def _starting_points(steps: list[live.SavedStep], anew: bool) -> list[Any]:
    """Where training can start. The choice is for one training: the next start goes on from the newest."""
    newest = f"the newest saved step ({steps[0].step:,})" if steps else "the beginning"
    choices = [(newest, NEWEST)]
    choices += [(one.words, str(one.step)) for one in steps if one.damage is None]
    choices += [("begin again at step 0 (fresh)", FRESH)] if steps else []
    if anew:
        return [gr.update(choices=choices, value=NEWEST), "", False]
    return [gr.update(choices=choices), gr.skip(), gr.skip()]


def _samples(context: Context, project: str, step: str, language: str) -> Any:
    try:
        run = RunFolder(context.project_folder(project))
        return live.samples(context, run, live.told(run).history, step or live.ENDS, language or live.EVERY)
    except VoxgraftError as error:
        return error_note(error)


def _clean(context: Context) -> None:
    with gr.Accordion("Make room: remove saved steps that are not needed", open=False, elem_id="train-clean"):
        gr.Markdown(
            "First without the tick: shows what would go, with sizes. The first step, the best one and the last ones "
            "always stay. Not while it trains."
        )
        form = Form(context, "clean", json=True)
        with gr.Row():
            form.add("keep")
            form.add("yes", label="Yes, remove what is listed", info="Without it nothing is removed, only shown.")
        form.finish("Show, or remove")
        shown = gr.HTML(elem_id="clean-shown", elem_classes=["vg-live"])
        context.on_change(lambda project: [_cleaned(context, project)], [shown])


def _cleaned(context: Context, project: str) -> str:
    found = last_result(context.project_folder(project), "clean")
    if found is None:
        return ""
    if "error" in found:
        return finding_note(found["error"])
    words = ("kept", "removed") if found["removed"] else ("stays", "would go")
    rows = [(one["folder"], brief_bytes(one["bytes"]), words[one["remove"]], one["why"]) for one in found["folders"]]
    count = sum(bool(one["remove"]) for one in found["folders"])
    amount = f"{count} folder{'s' if count != 1 else ''}, {brief_bytes(found['bytes'])}"
    if not count:
        head = note("nothing to remove", "good")
    elif found["removed"]:
        head = note(f"removed {amount}", "good")
    else:
        head = note(f"nothing was removed yet; tick the box and press again to remove {amount}", "warn")
    return head + table(("in steps/", "size", "", "why"), rows) + "".join(map(finding_note, found["findings"]))
