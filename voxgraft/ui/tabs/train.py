"""The tab Train: start, stop and resume; the state of the run while it trains; its samples; its saved steps.

What is shown is read from the run's folder alone, so a run that was started in a terminal is shown too. The figures are
those of the terminal's view (`cli/train_view.py`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr

from voxgraft.checkpoints.steps import find_step_damage, list_step_folders, read_step_manifest
from voxgraft.cli.app import CommandLine, parse_command_line
from voxgraft.cli.commands import COMMANDS
from voxgraft.cli.train_view import LOSS_COLUMNS, LOSS_KEYS, STATE_STYLES, TrainProgress
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import read_json
from voxgraft.core.results import format_bytes, format_duration
from voxgraft.core.run import SPEECH_LOSS, History, RunFolder, RunJournal, as_finite_float
from voxgraft.evaluation.report import draw_chart
from voxgraft.ui.commands import effective_values, find_command, load_run_settings
from voxgraft.ui.files import TEXT_PATHS, PathFilter, file_stamp
from voxgraft.ui.forms import CommandForm, recognizer_choices
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
    warnings_html,
)
from voxgraft.ui.jobs import ProjectJobs, UiJob, find_external_holder
from voxgraft.ui.live import MIN_TIMED_LINES, current_stage
from voxgraft.ui.page import PageContext

PREPARED_SET_PATHS = PathFilter(mark="set.json")
START_NEWEST, START_FRESH = "", "fresh"
RATE_KEYS = ("train.lr_backbone", "train.weight_decay", "train.max_grad_norm")
SCHEDULE_KEYS = ("train.schedule", "train.warmup_steps", "train.min_lr_ratio")
INTERVAL_KEYS = ("train.log_every", "train.valid_every", "train.listen_every")
EARLY_STOPPING_KEYS = ("train.keep_last", "train.patience", "train.min_delta", "train.min_steps")
BATCH_KEYS = ("train.rank", "train.alpha", "train.microbatch_tokens", "train.seed")
DEVICE_KEYS = (
    "train.device",
    "train.precision",
    "train.compile",
    "train.gradient_checkpointing",
    "train.deterministic",
)
LOSS_SETTING_KEYS = ("train.text_weight", "train.speech_weight", "train.text_dropout", "train.emotion_from")
MERGED_MODE_KEYS = ("train.full_backbone", "train.kl_weight", "train.retention_bound", "train.interpolate")
REPLAY_KEYS = ("data.self_replay", "data.replay_share", "data.min_prompt_seconds", "data.single_clip_speakers")
NOT_TRAINED_YET = "not trained yet: progress is shown here"
# Summary are looked for in the first part of a log, which may be long.
SUMMARY_BYTES = 16 << 10
MAX_SHOWN_FINDINGS = 8
# Text use from which the model counts as reading; see docs/training.md.
MIN_TEXT_USE = 0.1
# Pause between two readings of a journal that is being written to: ten seconds for 5 MB.
REREAD_SECONDS_PER_BYTE = 2e-6
# Choices beside one step of the samples.
ALL_SAMPLES, FIRST_AND_NEWEST = "all", "first and newest"


def build_train_tab(context: PageContext) -> None:
    """Lay the tab out: what happens now on top, then the button, then the settings."""
    with gr.Column(elem_id="train-live", elem_classes=["vg-now"]):
        figures = gr.HTML(elem_id="train-figures", elem_classes=["vg-live"])
        curves = gr.HTML(elem_id="train-curves", elem_classes=["vg-live"])
        newest = gr.HTML(elem_id="train-newest", elem_classes=["vg-live"])
    form = CommandForm(context, "train", choices={"train.recognizer": recognizer_choices(context.roots)})
    elsewhere = gr.HTML(elem_id="train-elsewhere", elem_classes=["vg-live"])

    settings = gr.Accordion("Settings", open=True, elem_id="train-settings", render=False)
    # The list of starting points sets two hidden controls.
    choice = gr.Dropdown(
        [("the newest saved step, or the beginning", START_NEWEST)], value=START_NEWEST, label="Start from",
        interactive=True, info="Where training continues. Later steps are moved aside, not removed.",
        elem_id="train-from", scale=2, render=False,
    )  # fmt: skip

    def add_settings() -> None:
        settings.render()
        with settings:
            _add_settings(form, choice)

    form.finish("Start training", output="How it ended", keep=True, add_below=add_settings)
    hidden = [form.control(key).component for key in ("from_step", "fresh")]
    context.wire([choice.input], _start_values, [choice], hidden)
    for component in hidden:
        form.follow(component)
    # What follows the run: where training can start, who trains elsewhere, and what the running job was given.
    followed = [choice, *hidden, elsewhere, settings]
    with gr.Accordion("Details: losses, speed, memory, findings", open=False, elem_id="train-details"):
        details = gr.HTML(elem_id="train-losses", elem_classes=["vg-live"])
        opening = gr.Textbox(
            label="Summary before the first step", lines=4, max_lines=20, interactive=False, elem_classes=["vg-mono"],
            elem_id="train-opening",
        )  # fmt: skip
    with gr.Accordion("All samples", open=False, elem_id="train-listen"):
        with gr.Row():
            step = gr.Dropdown(
                [FIRST_AND_NEWEST, ALL_SAMPLES], value=FIRST_AND_NEWEST, label="Step", interactive=True,
                elem_id="train-sample-step",
                info="The same sentences in the same voice each time, so differences come from training.",
            )  # fmt: skip
            language = gr.Dropdown(
                [ALL_SAMPLES], value=ALL_SAMPLES, label="Language", interactive=True, elem_id="train-sample-language",
                info="Old languages are spoken too: they must not change.",
            )  # fmt: skip
        spoken = gr.HTML(elem_id="train-samples")
    with gr.Accordion("Saved steps", open=False, elem_id="train-saved"):
        saved = gr.HTML(elem_id="train-steps")
    seen = gr.State({})
    context.on_stamp(
        lambda project: _status_stamp(context, project),
        lambda project, known, at, spoken_in: _refresh_status(context, project, known or {}, (at, spoken_in)),
        [seen, step, language],
        [seen, figures, curves, newest, details, opening, saved, step, language, spoken, *followed],
    )
    context.wire(
        [step.input, language.input],
        lambda project, at, spoken_in: _show_samples(context, project, at, spoken_in),
        [context.project, step, language],
        [spoken],
    )
    with gr.Accordion("Free disk space: remove saved steps that are not needed", open=False, elem_id="train-clean"):
        gr.Markdown(
            "Without the tick, this only lists what would be removed, with sizes. The first, best and last steps "
            "are always kept. Not available during training."
        )
        form = CommandForm(context, "clean", json=True)
        with gr.Row():
            form.add("keep")
            form.add("yes", label="Yes, remove the listed folders", info="Nothing is removed unless this is ticked.")
        form.finish("Show, or remove")
        form.show_result("clean-shown", _clean_html)


def _add_settings(form: CommandForm, choice: Any) -> None:
    """The settings that most people set, and the rest in a fold."""
    gr.Markdown("Start saves changed values in run.yaml, so that this form, the file and the training are the same.")
    with gr.Row():
        choice.render()
        form.add("train.mode")
        form.add("train.steps", info="Number of optimizer steps. Empty: 10,000, or as set by epochs.")
        form.add("train.epochs")
    for key in ("from_step", "fresh"):
        form.add(key).visible = "hidden"  # the list above sets both
    form.add_all(("train.lr_rows", "train.lr_adapter", "train.batch_tokens", "train.save_every", "train.sample_every"))
    with gr.Accordion("Advanced", open=False, elem_id="train-advanced"):
        form.add_all(RATE_KEYS)
        form.add_all(SCHEDULE_KEYS)
        form.add_all(INTERVAL_KEYS)
        form.add_all(EARLY_STOPPING_KEYS)
        with gr.Row():
            for key in ("data.train", "data.valid", "data.replay", "data.replay_valid"):
                form.add(key, sought=PREPARED_SET_PATHS)
            form.add("data.replay_texts", sought=TEXT_PATHS)
        form.add_all(REPLAY_KEYS)
        form.add_all(BATCH_KEYS)
        form.add_all(DEVICE_KEYS)
        form.add_all(LOSS_SETTING_KEYS)
        form.add_all(MERGED_MODE_KEYS)
        with gr.Row():
            form.add("baseline")
            form.add("train.sample_texts", lines=3)
            for key in ("train.sample_sound", "train.recognizer", "train.tensorboard"):
                form.add(key)


def _start_values(chosen: str | None) -> list[Any]:
    """Values of the hidden controls `from_step` and `fresh` for the chosen start."""
    return [chosen if chosen and chosen.isdecimal() else "", chosen == START_FRESH]


def find_training_job(folder: Path) -> UiJob | None:
    """The newest job that trains or has trained: `train`, or `go` in that stage."""
    newest = ProjectJobs(folder).newest_by_command()
    jobs = [newest[verb] for verb in ("train", "go") if verb in newest and current_stage(newest[verb]) == "train"]
    return max(jobs, key=lambda job: (job.alive, job.number), default=None)


def _status_stamp(context: PageContext, project: str) -> str:
    """Changes when there is something new to show."""
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return ""
    job = find_training_job(folder)
    work = f"{job.folder.name} {job.alive}" if job is not None else ""
    run = RunFolder(folder)
    seen = f"{file_stamp(run.steps)} {file_stamp(run.settings)}"
    with contextlib.suppress(OSError):
        journal = run.journal.stat()
        # A long journal takes time to read, so one that is being written to is read less often. The pause is a power
        # of two: with one that grows by every line, each line would begin a new one.
        pause = 2.0 ** math.ceil(math.log2(max(0.001, REREAD_SECONDS_PER_BYTE * journal.st_size)))
        is_quiet = time.time() - journal.st_mtime > pause
        seen = f"{journal.st_mtime_ns if is_quiet else int(journal.st_mtime // pause)} {seen}"
    return f"{seen} {work} {find_external_holder(folder)}"


def _refresh_status(context: PageContext, project: str, known: dict[str, str], asked: tuple[str, str]) -> list[Any]:
    """Updates since the page last asked; all else is left alone, above all players that play."""
    nothing = [gr.skip()] * 15  # one for each output of the event
    try:
        folder = context.project_folder(project)
    except VoxgraftError:
        return nothing
    run, job, holder = RunFolder(folder), find_training_job(folder), find_external_holder(folder)
    at_work = (job is not None and job.alive) or (holder is not None and holder[0] == "train")
    try:
        status = load_train_status(run)
        history, steps = status.history, list_saved_steps(run)
        losses = dict(history.held_out(SPEECH_LOSS))
    except VoxgraftError as error:
        shown = note_html(holder[1], "warn") if holder else ""
        return [{"project": project}, error_html(error), *nothing[4:], shown, gr.skip()]
    notes = note_html(holder[1], "warn") if holder else ""
    notes += differences_html(folder, job, history.num_steps) if at_work else ""
    if job is not None and job.alive and job.verb == "go":  # a job of `train` shows its own
        notes += warnings_html(job)
    try:
        bound = load_run_settings(folder).train.retention_bound
    except VoxgraftError:
        bound = None
    heard, newest_job = f"{project} {sorted(history.samples)}", job.folder.name if job else ""
    sampled: list[Any] = [gr.skip()] * 3
    newest: Any = gr.skip()
    if heard != known.get("samples"):
        newest = _newest_samples_html(context, run, history)
        at_steps = [(f"step {step:,}", str(step)) for step in sorted(history.samples, reverse=True)]
        languages = {
            str(one.get("language", "")): None for entry in history.samples.values() for one in _sample_entries(entry)
        }
        chosen = []
        for choices, wanted in zip(
            (
                [(FIRST_AND_NEWEST, FIRST_AND_NEWEST), (ALL_SAMPLES, ALL_SAMPLES), *at_steps],
                [(name, name) for name in (ALL_SAMPLES, *languages)],
            ),
            asked,
            strict=True,
        ):
            # A choice that does not exist any more falls back to the first.
            values = [value for _, value in choices]
            chosen.append(wanted if wanted in values else values[0])
            sampled[len(chosen) - 1] = gr.update(choices=choices, value=chosen[-1])
        sampled[2] = samples_html(context, run, history, *chosen)
    # Where training can start. The choice is for one training: the next one resumes from the newest step.
    starts = [(f"the newest saved step ({next(iter(steps)):,})" if steps else "the beginning", START_NEWEST)]
    rows = []
    for step, (num_bytes, damage) in steps.items():
        loss, size, is_best = losses.get(step), format_bytes(num_bytes), bool(step) and step == history.best_step
        rows.append(
            (f"{step:,}", size, "–" if loss is None else f"{loss:.4f}", "the best" if is_best else damage or "")
        )
        if damage is None:
            heldout = f", held-out speech loss {loss:.3f}" if loss is not None else ""
            starts.append((f"step {step:,}: {size}{heldout}{', the best' if is_best else ''}", str(step)))
    starts += [("start over at step 0 (fresh)", START_FRESH)] if steps else []
    start: list[Any] = [gr.update(choices=starts), gr.skip(), gr.skip()]
    if project != known.get("project") or at_work or newest_job != known.get("job"):
        start = [gr.update(choices=starts, value=START_NEWEST), "", False]
    saved = table_html(("step", "size", "held-out speech loss", ""), rows)
    # The settings fold away when a training begins, and come back at its end; in between they stay as somebody left
    # them.
    folded = str(at_work) != known.get("work") or project != known.get("project")
    return [
        {"project": project, "samples": heard, "job": newest_job, "work": str(at_work)},
        train_figures_html(status, is_running=at_work, bound=bound),
        train_curves_html(history),
        newest,
        train_details_html(status),
        read_training_summary(None if holder else job),
        saved if steps else note_html("no step was saved yet"),
        *sampled,
        *start,
        notes,
        gr.update(open=not at_work) if folded else gr.skip(),
    ]


def differences_html(folder: Path, job: UiJob | None, num_steps: int) -> str:
    """Values with which the running training was started and that run.yaml has otherwise; empty if there are none."""
    own = effective_values(find_command("train"), folder)
    found: dict[str, tuple[Any, Any]] = {}
    if job is not None and job.alive:
        with contextlib.suppress(VoxgraftError):
            line = parse_command_line([*map(str, job.read("job.json").get("argv", ()))], COMMANDS)
            given = line.values if isinstance(line, CommandLine) else {}
            for key, value in given.items():
                if key.startswith(("train.", "data.")) and str(value) != str(own.get(key)):
                    found[key] = value, own.get(key)
    wanted, is_ours = own.get("train.steps"), job is not None and job.alive
    # Of a training in a terminal only the journal says how long it is to be. One that starts has not written it yet.
    if not is_ours and num_steps and wanted and own.get("train.epochs") is None and num_steps != wanted:
        found.setdefault("train.steps", (num_steps, wanted))
    words = [f"{key} is {now} (run.yaml: {before})" for key, (now, before) in found.items()]
    return (
        note_html(f"The running training has other values than this form: {'; '.join(words)}", "warn") if words else ""
    )


def _newest_samples_html(context: PageContext, run: RunFolder, history: History) -> str:
    """The players of the newest step, those of the new language first."""
    if not history.samples:
        return ""
    step = max(history.samples)
    entries = _sample_entries(history.samples[step])
    own = [one for one in entries if one.get("language") == history.language]
    language = history.language if own else ALL_SAMPLES
    return f"<h3>Newest sample</h3>{samples_html(context, run, history, str(step), language)}"


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
    """State, progress, time left, uses and retention; each with the step at which it was measured."""
    history = status.history
    if not history.steps and not history.valid:
        return note_html(NOT_TRAINED_YET)
    state, reason = status.state
    last = max(history.last_step, status.step)
    total = f" of {history.num_steps:,}" if history.num_steps else ""
    share = f" ({status.share:.0%})" if status.share is not None else ""
    label, time_left = "training", status.end_text or "not running"
    if not is_running and last < history.num_steps:
        time_left += "; Start training resumes it"
    if is_running:
        label = "time left"
        # By the pace of the last lines, also of those before a resume.
        seconds = history.seconds_per_step() if len(history.steps) >= MIN_TIMED_LINES and history.num_steps else None
        time_left = "known after the first steps"
        if seconds is not None:
            time_left = f"{format_duration(max(0, history.num_steps - history.last_step) * seconds)} left"
    at = f"at step {history.state.step:,}" if history.state is not None else ""
    found = [
        (f"state {at}".strip(), reason or "no measurements yet", STATE_STYLES.get(state, ("", "note"))[1]),
        ("step", f"{last:,}{total}{share}", "note"),
        (label, time_left, "note"),
    ]
    for name in ("text", "voice"):
        if points := history.held_out(f"{name}_use"):
            step, use = points[-1]
            kind = "note" if name == "voice" else "good" if use >= MIN_TEXT_USE else "warn"
            reads = f" (the model reads the text from +{MIN_TEXT_USE} on)" if name == "text" else ""
            found.append((f"{name} use at step {step:,}", f"{use:+.3f}{reads}", kind))
    for name in history.base_languages:
        if points := history.retention(name):
            step, rise = points[-1]
            words = f"speech loss {rise:+.2%} since step 0"
            found.append((f"retention of {name} at step {step:,}", words, "good" if rise <= (bound or 0) else "bad"))
    if history.best_step:
        found.append(("best step so far", f"{history.best_step:,}", "good"))
    return facts_html(found)


def train_details_html(status: TrainProgress) -> str:
    """Losses with the steps of their values, speed, rates, memory, and the last findings."""
    history = status.history
    if not history.steps and not history.valid:
        return ""
    facts = status.facts()
    found = [
        (name, facts[name].removeprefix(f"{name} "), "note") for name in ("speed", "rates", "memory") if name in facts
    ]
    losses = [
        (f"{name} loss", *("–" if value is None else f"{value:.3f}" for value in values))
        for name, values in status.loss_rows()
    ]
    held_out = history.held_out(SPEECH_LOSS)
    at = {
        "train": max(history.steps, default=None),
        "held out": held_out[-1][0] if held_out else None,
        "best": history.best_step or None,
    }
    columns = [name if at.get(name) is None else f"{name} (step {at[name]:,})" for name in LOSS_COLUMNS]
    findings = [
        finding_html({**event.values, "found": f"step {event.step:,}: {event.values.get('found', '')}"}, "train")
        for event in history.findings[: -MAX_SHOWN_FINDINGS - 1 : -1]
    ]
    return facts_html(found) + table_html(("", *columns), losses) + "".join(findings)


def train_curves_html(history: History) -> str:
    """Curves as inline SVG: they are replaced at once, so nothing flickers."""
    drawn: list[str] = []
    for name, key in LOSS_KEYS.items():
        series = [
            ("train", history.train(key), 1, True),
            ("held out", history.held_out(key), 0, False),
        ]
        levels = {"step 0": (history.initial_loss(key), 4), "chance": (history.chance.get(key), 5)}
        for word, (level, colour) in levels.items():
            if level is not None:
                ends = [(0, level), (max(history.last_step, 1), level)]
                series.append((f"{word}: {level:.2f}", ends, colour, True))
        drawn += draw_chart(f"{name.capitalize()} loss, nats", series) if history.last_step else []
    uses = [(name, history.held_out(f"{name}_use"), at, False) for at, name in enumerate(("text", "voice"))]
    drawn += draw_chart("Text and voice use: increase of the loss with another text or voice", uses, [0.0])
    old = [
        (name, [(step, 100 * share) for step, share in history.retention(name)], at, False)
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
    # They end where the first step or the starting point is reported.
    last = next((at for at in range(first, len(lines)) if lines[at].startswith(("step ", "start:"))), len(lines) - 1)
    more = [line for line in lines[last + 1 : last + 3] if line.startswith(("flags:", "changed:"))]
    return "\n".join([*lines[first : last + 1], *more])


def samples_html(context: PageContext, run: RunFolder, history: History, step: str, language: str) -> str:
    """Samples: players, or codes if there is no vocoder. One sentence's samples are side by side."""
    known = sorted(history.samples)
    if not known:
        return note_html("no samples yet")
    chosen = [int(step)] if step.isdecimal() else [known[0], known[-1]] if step == FIRST_AND_NEWEST else known
    cards: dict[str, list[str]] = {}  # by sentence, so that one sentence's samples are side by side
    for at in dict.fromkeys(at for at in chosen if at in history.samples):
        folder = context.roots.resolve_inside(run.samples / f"step-{at:06d}")
        for one in _sample_entries(history.samples[at]):
            spoken_in, text, name = (str(one.get(key, "")) for key in ("language", "text", "name"))
            if language not in (ALL_SAMPLES, "", one.get("language")):
                continue
            marks = [f"{as_finite_float(one.get('seconds')) or 0:.1f} s"]
            marks += [] if one.get("stopped", True) else ["did not stop"]
            marks += ["same codes as at step 0"] if one.get("same_as_step_0") and at else []
            title, about = f"step {at:,}, {spoken_in}", ", ".join(marks)
            sound, codes = folder / f"{Path(name).name}.wav", folder / f"{Path(name).name}.json"
            if sound.is_file():
                card = audio_file_html(context, sound, title, text, language=spoken_in, about=about)
            else:
                kept = read_json(codes) if codes.is_file() else {}
                spoken = kept.get("codes", ()) if isinstance(kept, dict) else ()
                numbers = [code for code in spoken if isinstance(code, int)]
                card = audio_card_html(title, text, language=spoken_in, about=about, codes=numbers)
            cards.setdefault(name, []).append(card)
    ordered = (card for same in cards.values() for card in same)
    return audio_cards_html(ordered, note_html("no samples at this step"))


def _sample_entries(entry: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [one for one in entry.get("spoken") or () if isinstance(one, Mapping)]


def list_saved_steps(run: RunFolder) -> dict[int, tuple[int, str | None]]:
    """The saved steps that training can resume from, newest first: bytes, and what is damaged."""
    found = {}
    for folder in reversed(list_step_folders(run)):
        if folder.is_old:
            continue
        damage = find_step_damage(folder, quick=True)
        sizes = read_step_manifest(folder.path)["files"].values() if damage is None else ()
        found[folder.step] = sum(int(entry["bytes"]) for entry in sizes), damage
    return found


def _clean_html(found: dict[str, Any]) -> str:
    words = ("kept", "removed") if found["removed"] else ("stays", "would be removed")
    rows = [(one["folder"], format_bytes(one["bytes"]), words[one["remove"]], one["why"]) for one in found["folders"]]
    count = sum(bool(one["remove"]) for one in found["folders"])
    amount = f"{count} folder{'s' if count != 1 else ''}, {format_bytes(found['bytes'])}"
    if not count:
        head = note_html("nothing to remove", "good")
    elif found["removed"]:
        head = note_html(f"removed {amount}", "good")
    else:
        head = note_html(f"nothing was removed; tick the box and press again to remove {amount}", "warn")
    return head + table_html(("in steps/", "size", "", "why"), rows) + findings_html(found)
