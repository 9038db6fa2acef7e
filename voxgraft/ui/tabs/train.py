"""The tab Train: start, stop and resume; the state of the run while it trains; its samples; its saved steps.

What is shown is read from the run's folder alone, so a run that was started in a terminal is shown too. The figures are
those of the terminal's view (`cli/train_view.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.checkpoints.steps import find_step_damage, list_step_folders, read_step_manifest
from voxgraft.cli.train_view import LOSS_COLUMNS, LOSS_KEYS, STATE_STYLES, TrainProgress
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import read_json
from voxgraft.core.journal import SPEECH_LOSS, History, RunJournal, as_finite_float
from voxgraft.core.results import format_bytes, format_duration
from voxgraft.core.run import RunFolder
from voxgraft.evaluation.report import ChartSeries, draw_chart
from voxgraft.ui.commands import load_run_settings
from voxgraft.ui.files import TEXT_PATHS, PathFilter, file_stamp
from voxgraft.ui.forms import CommandForm, PageContext, recognizer_choices
from voxgraft.ui.html import (
    audio_card_html,
    audio_cards_html,
    audio_file_html,
    error_html,
    facts_html,
    finding_html,
    findings_html,
    note_html,
    table_html,
)
from voxgraft.ui.jobs import ProjectJobs, UiJob, find_external_holder

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
LOSS_SETTING_KEYS = ("train.text_weight", "train.speech_weight", "train.text_dropout", "train.emotion_from")
MERGED_MODE_KEYS = ("train.full_body", "train.kl_weight", "train.retention_bound", "train.interpolate")
REPLAY_KEYS = ("data.self_replay", "data.replay_share", "data.min_prompt_seconds", "data.single_clip_speakers")
NOT_TRAINED_YET = "not trained yet: what training tells will be here"
SUMMARY_BYTES = 16 << 10
MAX_SHOWN_FINDINGS = 8
# Text use from which the model is said to read; see docs/training.md.
MIN_TEXT_USE = 0.1
# Step lines that are needed for a pace; the first ones are slower than the rest.
MIN_TIMED_LINES = 5
# Pause between two readings of a journal that is being written to: ten seconds for 5 MB.
REREAD_SECONDS_PER_BYTE = 2e-6
# Choices beside one step of the samples.
ALL_SAMPLES, FIRST_AND_NEWEST = "all", "first and newest"


def build_train_tab(context: PageContext) -> None:
    """Lay the tab out."""
    gr.Markdown(
        "Training runs by itself: you may close this page, and the run is found again when you come back. Stop "
        "finishes the step and saves; starting again goes on from there. The base's rows are frozen by construction."
    )
    followed = _build_train_form(context)
    _build_status_section(context, followed)
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
        form.show_result("clean-shown", _clean_html)


def _build_train_form(context: PageContext) -> list[Any]:
    """The form; returns its parts that follow the run: where training can start, who trains elsewhere, the button."""
    form = CommandForm(context, "train", choices={"train.recognizer": recognizer_choices(context.roots)})
    with gr.Row():
        choice = gr.Dropdown(
            [("the newest saved step, or the beginning", START_NEWEST)], value=START_NEWEST, label="Start from",
            interactive=True,
            info="Where training goes on. What comes after a chosen step is set aside, not removed.",
            elem_id="train-from", scale=2,
        )  # fmt: skip
        form.add("train.mode")
        form.add("train.steps")
        form.add("train.epochs")
    hidden = [form.add("from_step"), form.add("fresh")]
    for component in hidden:
        component.visible = "hidden"  # the dropdown above sets both
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
        form.add_all(LOSS_SETTING_KEYS)
        form.add_all(MERGED_MODE_KEYS)
        form.add("baseline")
    with gr.Accordion("Samples on the way, and listening", open=False), gr.Row():
        form.add("train.sample_texts", lines=3)
        for key in ("train.sample_sound", "train.recognizer", "train.tensorboard"):
            form.add(key)
    elsewhere = gr.HTML(elem_id="train-elsewhere", elem_classes=["vg-live"])
    form.finish("Start training", output="How it ended", keep=True)
    context.wire([choice.input], _start_values, [choice], hidden)
    for component in hidden:
        form.follow(component)
    return [choice, *hidden, elsewhere, form.button]


def _start_values(chosen: str | None) -> list[Any]:
    step = chosen if chosen and chosen.isdecimal() else ""
    return [step, chosen == START_FRESH]


def _build_status_section(context: PageContext, followed: list[Any]) -> None:
    """Everything that follows the journal; `followed` are components of the form that do so too."""
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
                [FIRST_AND_NEWEST, ALL_SAMPLES], value=FIRST_AND_NEWEST, label="Step", interactive=True,
                elem_id="train-sample-step",
                info="The same sentences in the same voice each time: only training makes a difference.",
            )  # fmt: skip
            language = gr.Dropdown(
                [ALL_SAMPLES], value=ALL_SAMPLES, label="Language", interactive=True, elem_id="train-sample-language",
                info="Old languages are spoken too: they must stay as they were.",
            )  # fmt: skip
        spoken = gr.HTML(elem_id="train-samples")
    with gr.Accordion("Saved steps", open=False, elem_id="train-saved"):
        saved = gr.HTML(elem_id="train-steps")
    # The clock only asks for a stamp, which is cheap; a second event fetches what is new when the stamp has changed.
    stamp, seen = gr.State(""), gr.State({})
    context.wire(
        [context.refresh_tick().change],
        lambda project, known: _status_stamp(context, project, known),
        [context.project, stamp],
        [stamp],
        trigger_mode="once",
    )
    context.wire(
        [stamp.change],
        lambda project, known, at, spoken_in: _refresh_status(context, project, known or {}, (at, spoken_in)),
        [context.project, seen, step, language],
        [seen, figures, curves, opening, saved, step, language, spoken, *followed],
        trigger_mode="always_last",
    )
    context.wire(
        [step.input, language.input],
        lambda project, at, spoken_in: _show_samples(context, project, at, spoken_in),
        [context.project, step, language],
        [spoken],
    )


def _status_stamp(context: PageContext, project: str, known: str) -> Any:
    """Changes when there is something new to show."""
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return gr.skip()
    job = ProjectJobs(folder).latest("train")
    work = f"{job.folder.name} {job.alive}" if job is not None else ""
    stamp = f"{project} {run_change_stamp(RunFolder(folder))} {work} {find_external_holder(folder)}"
    return stamp if stamp != known else gr.skip()


def run_change_stamp(run: RunFolder) -> str:
    """Changes when there is something new in the journal or among the saved steps.

    A long journal takes time to read, so one that is being written to is read less often.
    """
    try:
        status = run.journal.stat()
    except OSError:
        return file_stamp(run.steps)
    # A power of two: with a pause that grows by every line, each line would begin a new one.
    pause = 2.0 ** math.ceil(math.log2(max(0.001, REREAD_SECONDS_PER_BYTE * status.st_size)))
    is_quiet = time.time() - status.st_mtime > pause
    seen = str(status.st_mtime_ns) if is_quiet else f"{status.st_mtime // pause:.0f}"
    return f"{seen} {file_stamp(run.steps)}"


def _refresh_status(context: PageContext, project: str, known: dict[str, str], asked: tuple[str, str]) -> list[Any]:
    """Updates since the page last asked; all else is left alone, above all players that play."""
    nothing = [gr.skip()] * 13
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return nothing
    run, job, holder = RunFolder(folder), ProjectJobs(folder).latest("train"), find_external_holder(folder)
    at_work = (job is not None and job.alive) or (holder is not None and holder.verb == "train")
    work = [note_html(holder.words, "warn") if holder else "", gr.update(interactive=holder is None)]
    try:
        status = load_train_status(run)
        history, steps = status.history, list_saved_steps(run, status.history)
    except VoxgraftError as error:
        return [{"project": project}, error_html(error), *nothing[4:], *work]
    try:
        bound = load_run_settings(folder).train.retention_bound
    except VoxgraftError:
        bound = None
    heard, newest_job = f"{project} {sorted(history.samples)}", job.folder.name if job else ""
    anew = project != known.get("project") or at_work or newest_job != known.get("job")
    sampled: list[Any] = [gr.skip()] * 3
    if heard != known.get("samples"):
        # A choice that does not exist any more falls back to the first.
        lists = sample_choices(history)
        values = [[one if isinstance(one, str) else one[1] for one in choices] for choices in lists]
        chosen = [
            one if one in known_values else known_values[0] for one, known_values in zip(asked, values, strict=True)
        ]
        sampled = [gr.update(choices=one, value=it) for one, it in zip(lists, chosen, strict=True)]
        sampled.append(samples_html(context, run, history, *chosen))
    return [
        {"project": project, "samples": heard, "job": newest_job},
        train_figures_html(status, is_running=at_work, bound=bound),
        train_curves_html(history),
        read_training_summary(None if holder else job),
        saved_steps_html(steps),
        *sampled,
        *_start_choices(steps, anew),
        *work,
    ]


def _start_choices(steps: list[SavedStep], anew: bool) -> list[Any]:
    """Where training can start. The choice is for one training: the next one resumes from the newest step."""
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
        history = load_train_status(run).history
        return samples_html(context, run, history, step or FIRST_AND_NEWEST, language or ALL_SAMPLES)
    except VoxgraftError as error:
        return error_html(error)


def load_train_status(run: RunFolder) -> TrainProgress:
    """What the journal of a run says; read again only when it has changed."""
    return _read_train_status(run.journal, file_stamp(run.journal))


@lru_cache(maxsize=8)
def _read_train_status(journal: Path, _stamp: str) -> TrainProgress:
    status = TrainProgress(max_logged_steps=None)
    for entry in RunJournal(journal).read():
        status.add(entry["kind"], entry["step"], entry)
    return status


def train_figures_html(status: TrainProgress, *, is_running: bool, bound: float | None) -> str:
    """State, progress, time left, losses with their levels, uses, retention and findings."""
    history = status.history
    if not history.steps and not history.valid:
        return note_html(NOT_TRAINED_YET)
    state, reason = status.state
    total = f" of {history.num_steps:,}" if history.num_steps else ""
    share = f" ({status.share:.0%})" if status.share is not None else ""
    time_left = status.end_text or "not at work; start it to go on"
    if is_running:
        # By the pace of the last lines, also of those before a resume.
        seconds = history.seconds_per_step() if len(history.steps) >= MIN_TIMED_LINES and history.num_steps else None
        time_left = "known after the first steps"
        if seconds is not None:
            time_left = f"{format_duration(max(0, history.num_steps - history.last_step) * seconds)} left"
    found = [
        ("state", reason or "nothing was measured yet", STATE_STYLES.get(state, ("", "note"))[1]),
        ("step", f"{max(history.last_step, status.step):,}{total}{share}", "note"),
        ("time left", time_left, "note"),
    ]
    for name, use in status.uses().items():
        kind = "note" if name == "voice" else "good" if use >= MIN_TEXT_USE else "warn"
        found.append((f"{name} use", f"{use:+.3f}", kind))
    for name, rise in status.retentions().items():
        words = f"speech loss {rise:+.2%} since step 0"
        found.append((f"retention of {name}", words, "good" if rise <= (bound or 0) else "bad"))
    facts = status.facts()
    found += [
        (name, facts[name].removeprefix(f"{name} "), "note") for name in ("speed", "rates", "memory") if name in facts
    ]
    if history.best_step:
        found.append(("best step so far", f"{history.best_step:,}", "good"))
    losses = [
        (f"{name} loss", *("–" if value is None else f"{value:.3f}" for value in values))
        for name, values in status.loss_rows()
    ]
    findings = [
        finding_html({**event.values, "found": f"step {event.step:,}: {event.values.get('found', '')}"})
        for event in history.findings[: -MAX_SHOWN_FINDINGS - 1 : -1]
    ]
    return facts_html(found) + table_html(("", *LOSS_COLUMNS), losses) + "".join(findings)


def train_curves_html(history: History) -> str:
    """Curves as inline SVG: they are replaced at once, so nothing flickers."""
    drawn: list[str] = []
    for name, key in LOSS_KEYS.items():
        series = [
            ChartSeries("train", history.train(key), 1, faint=True),
            ChartSeries("held out", history.held_out(key), 0),
        ]
        levels = {"step 0": (history.initial_loss(key), 4), "chance": (history.chance.get(key), 5)}
        for word, (level, colour) in levels.items():
            if level is not None:
                ends = [(0, level), (max(history.last_step, 1), level)]
                series.append(ChartSeries(f"{word}: {level:.2f}", ends, colour, faint=True))
        drawn += draw_chart(f"{name.capitalize()} loss, nats", series) if history.last_step else []
    uses = [ChartSeries(name, history.held_out(f"{name}_use"), at) for at, name in enumerate(("text", "voice"))]
    drawn += draw_chart("Use: how much worse with another sentence's text, another voice", uses, [0.0])
    old = [
        ChartSeries(name, [(step, 100 * share) for step, share in history.retention(name)], at)
        for at, name in enumerate(history.base_languages)
    ]
    drawn += draw_chart("Old languages: rise of the speech loss since step 0, %", old, [0.0])
    return f'<div class="vg-charts">{"".join(drawn)}</div>' if drawn else ""


def read_training_summary(job: UiJob | None) -> str:
    """The opening lines of training, from the beginning of the job's log."""
    if job is None:
        return ""
    try:
        with (job.folder / "log.txt").open("rb") as stream:
            lines = stream.read(SUMMARY_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    first = next((at for at, line in enumerate(lines) if line.startswith("run:")), None)
    if first is None:
        return ""
    last = next((at for at in range(first, len(lines)) if lines[at].startswith(("step ", "start:"))), len(lines) - 1)
    more = [line for line in lines[last + 1 : last + 3] if line.startswith(("this time:", "changed:"))]
    return "\n".join([*lines[first : last + 1], *more])


def sample_choices(history: History) -> tuple[list[tuple[str, str]], list[str]]:
    """Steps and languages of the samples."""
    steps = [(f"step {step:,}", str(step)) for step in sorted(history.samples, reverse=True)]
    languages = {
        str(one.get("language", "")): None for entry in history.samples.values() for one in _sample_entries(entry)
    }
    return [(FIRST_AND_NEWEST, FIRST_AND_NEWEST), (ALL_SAMPLES, ALL_SAMPLES), *steps], [ALL_SAMPLES, *languages]


def samples_html(context: PageContext, run: RunFolder, history: History, step: str, language: str) -> str:
    """Samples: players, or codes if there is no vocoder. One sentence's samples are side by side."""
    known = sorted(history.samples)
    if not known:
        return note_html("nothing was spoken yet")
    chosen = {FIRST_AND_NEWEST: [known[0], known[-1]], ALL_SAMPLES: known}.get(
        step, [int(step)] if step.isdecimal() else known
    )
    found = [
        (str(one.get("name", "")), _sample_html(context, run, at, one))
        for at in dict.fromkeys(at for at in chosen if at in history.samples)
        for one in _sample_entries(history.samples[at])
        if language in (ALL_SAMPLES, "", one.get("language"))
    ]
    names = list(dict.fromkeys(name for name, _ in found))
    return audio_cards_html(
        (card for _, card in sorted(found, key=lambda one: names.index(one[0]))), note_html("nothing was spoken then")
    )


def _sample_entries(entry: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [one for one in entry.get("spoken") or () if isinstance(one, Mapping)]


def _sample_html(context: PageContext, run: RunFolder, step: int, one: Mapping[str, Any]) -> str:
    language, text, name = (str(one.get(key, "")) for key in ("language", "text", "name"))
    title = f"step {step:,}, {language}"
    marks = [f"{as_finite_float(one.get('seconds')) or 0:.1f} s"]
    marks += [] if one.get("stopped", True) else ["did not stop by itself"]
    marks += ["code for code as at step 0"] if one.get("same_as_step_0") and step else []
    folder = context.roots.resolve_inside(run.samples / f"step-{step:06d}")
    sound, codes = folder / f"{Path(name).name}.wav", folder / f"{Path(name).name}.json"
    if sound.is_file():
        return audio_file_html(context, sound, title, text, language=language, about=", ".join(marks))
    kept = read_json(codes) if codes.is_file() else {}
    spoken = [code for code in kept.get("codes", ()) if isinstance(code, int)] if isinstance(kept, dict) else []
    return audio_card_html(title, text, language=language, about=", ".join(marks), codes=spoken)


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A saved step that training can resume from."""

    step: int
    num_bytes: int
    loss: float | None
    is_best: bool
    damage: str | None

    @property
    def words(self) -> str:
        """Its label in a list."""
        loss = f", held-out speech loss {self.loss:.3f}" if self.loss is not None else ""
        return f"step {self.step:,}: {format_bytes(self.num_bytes)}{loss}{', the best' if self.is_best else ''}"


def list_saved_steps(run: RunFolder, history: History) -> list[SavedStep]:
    """The saved steps, newest first."""
    losses = dict(history.held_out(SPEECH_LOSS))
    found = []
    for folder in reversed(list_step_folders(run)):
        if folder.is_old:
            continue
        damage = find_step_damage(folder, quick=True)
        sizes = read_step_manifest(folder.path)["files"].values() if damage is None else ()
        size = sum(int(entry["bytes"]) for entry in sizes)
        is_best = bool(history.best_step) and folder.step == history.best_step
        found.append(SavedStep(folder.step, size, losses.get(folder.step), is_best, damage))
    return found


def saved_steps_html(steps: Sequence[SavedStep]) -> str:
    """Saved steps with what they take and how good they are."""
    if not steps:
        return note_html("no step was saved yet")
    rows = [
        (
            f"{one.step:,}",
            format_bytes(one.num_bytes),
            "–" if one.loss is None else f"{one.loss:.4f}",
            "the best" if one.is_best else one.damage or "",
        )
        for one in steps
    ]
    return table_html(("step", "size", "held-out speech loss", ""), rows)


def _clean_html(found: dict[str, Any]) -> str:
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
    return head + table_html(("in steps/", "size", "", "why"), rows) + findings_html(found)
