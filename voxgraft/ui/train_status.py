"""What the Train tab shows of a run: figures, curves, samples, saved steps, read from its folder. Changes nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from voxgraft.checkpoints.steps import find_step_damage, list_step_folders, read_step_manifest
from voxgraft.cli.train_view import END_REASON_LABELS, LOSS_KEYS, TrainProgress, format_learning_state
from voxgraft.core.files import read_json
from voxgraft.core.journal import SPEECH_LOSS, History, RunJournal, as_finite_float
from voxgraft.core.results import format_bytes, format_duration
from voxgraft.core.run import RunFolder
from voxgraft.evaluation.charts import ChartSeries, draw_chart
from voxgraft.ui.commands import PageContext
from voxgraft.ui.html import (
    AudioCard,
    audio_card_for_file,
    audio_cards_html,
    facts_html,
    finding_html,
    note_html,
    table_html,
)
from voxgraft.ui.jobs import UiJob

NOT_TRAINED_YET = "not trained yet: what training tells will be here"
STATE_KINDS = {"stuck": "bad", "learning": "good", "good enough": "good"}
SUMMARY_BYTES = 16 << 10
MAX_SHOWN_FINDINGS = 8
MIN_TIMED_LINES = 5
"""Step lines that tell how long a step takes; the first ones are slower than the rest."""
REREAD_SECONDS_PER_BYTE = 2e-6
"""Between two readings of a journal that is being written to, at least: ten seconds for 5 MB."""
ALL_SAMPLES, FIRST_AND_NEWEST = "all", "first and newest"
"""What can be asked for beside one step of the samples."""


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A saved step that training can go on from."""

    step: int
    num_bytes: int
    loss: float | None
    is_best: bool
    damage: str | None

    @property
    def words(self) -> str:
        """For a list to choose from."""
        loss = f", held-out speech loss {self.loss:.3f}" if self.loss is not None else ""
        return f"step {self.step:,}: {format_bytes(self.num_bytes)}{loss}{', the best' if self.is_best else ''}"


@dataclass(frozen=True, slots=True)
class TrainStatus:
    """A journal as it is now: every curve, and what a terminal would say of it."""

    history: History
    watched: TrainProgress


def run_change_stamp(run: RunFolder) -> str:
    """Changes when there is something new in the journal or among the saved steps.

    A long journal takes its time to read, so one that is being written to is looked at less often.
    """
    try:
        status = run.journal.stat()
    except OSError:
        return _file_stamp(run.steps)
    # A power of two: with a pause that grows by every line, each line would begin a new one.
    pause = 2.0 ** math.ceil(math.log2(max(0.001, REREAD_SECONDS_PER_BYTE * status.st_size)))
    is_quiet = time.time() - status.st_mtime > pause
    seen = str(status.st_mtime_ns) if is_quiet else f"{status.st_mtime // pause:.0f}"
    return f"{seen} {_file_stamp(run.steps)}"


def load_train_status(run: RunFolder) -> TrainStatus:
    """The journal of a run; read again only when it has changed."""
    return _read_train_status(run.journal, _file_stamp(run.journal))


@lru_cache(maxsize=8)
def _read_train_status(journal: Path, _: str) -> TrainStatus:
    entries = RunJournal(journal).read()
    watched = TrainProgress()
    for entry in entries:
        watched.add(entry["kind"], entry["step"], entry)
    return TrainStatus(History.of(entries), watched)


def train_figures_html(status: TrainStatus, *, is_running: bool, bound: float | None) -> str:
    """State, progress, time left, losses with their levels, uses and retention."""
    history, watched = status.history, status.watched
    if not history.steps and not history.valid:
        return note_html(NOT_TRAINED_YET)
    return (
        facts_html(_status_facts(history, watched, is_running, bound))
        + _loss_table_html(history)
        + _finding_notes_html(history)
    )


def _status_facts(
    history: History, watched: TrainProgress, at_work: bool, bound: float | None
) -> list[tuple[str, str, str]]:
    state = history.state.values if history.state else {}
    word = str(state.get("state", "nothing was measured yet"))
    total = f" of {history.num_steps:,}" if history.num_steps else ""
    share = f" ({watched.share:.0%})" if watched.share is not None else ""
    found = [
        ("state", format_learning_state(state) if state else word, STATE_KINDS.get(word, "note")),
        ("step", f"{max(history.last_step, watched.step):,}{total}{share}", "note"),
        ("time left", _format_time_left(history, at_work), "note"),
    ]
    for use in ("text", "voice"):
        if points := history.held_out(f"{use}_use"):
            kind = "note" if use == "voice" else "good" if points[-1][1] >= 0.1 else "warn"  # see docs/watching.md
            found.append((f"{use} use", f"{points[-1][1]:+.3f}", kind))
    for name in history.base_languages:
        if kept := history.retention(name):
            words = f"speech loss {kept[-1][1]:+.2%} since step 0"
            found.append((f"retention of {name}", words, "good" if kept[-1][1] <= (bound or 0) else "bad"))
    named = watched.facts()
    found += [
        (name, named[name].removeprefix(f"{name} "), "note") for name in ("speed", "rates", "memory") if name in named
    ]
    if history.best_step:
        found.append(("best step so far", f"{history.best_step:,}", "good"))
    return found


def _format_time_left(history: History, at_work: bool) -> str:
    """By the speed of the last lines, also of those before a training that goes on."""
    if at_work:
        seconds = history.seconds_per_step() if len(history.steps) >= MIN_TIMED_LINES and history.num_steps else None
        if seconds is None:
            return "known after the first steps"
        return f"{format_duration(max(0, history.num_steps - history.last_step) * seconds)} left"
    if history.ended is None:
        return "not at work; start it to go on"
    reason = str(history.ended.values.get("reason", ""))
    return f"ended: {END_REASON_LABELS.get(reason, reason)}"


def _loss_table_html(history: History) -> str:
    """Both losses with every level that they are to be held against."""
    best = history.valid.get(history.language, {}).get(history.best_step, {}) if history.best_step else {}
    rows = []
    for name, key in LOSS_KEYS.items():
        trained, held_out = history.train(key), history.held_out(key)
        values = (
            trained[-1][1] if trained else None,
            held_out[-1][1] if held_out else None,
            as_finite_float(best.get(key)),
            history.initial_loss(key),
            history.chance.get(key),
        )
        rows.append((f"{name} loss", *("–" if value is None else f"{value:.3f}" for value in values)))
    return table_html(("", "train", "held out", "best", "step 0", "chance"), rows)


def _finding_notes_html(history: History) -> str:
    """What training has found, the newest first."""
    return "".join(
        finding_html({**event.values, "found": f"step {event.step:,}: {event.values.get('found', '')}"})
        for event in history.findings[: -MAX_SHOWN_FINDINGS - 1 : -1]
    )


def train_curves_html(history: History) -> str:
    """Curves as inline pictures: they are replaced at once, so nothing flickers."""
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
    """What training said of itself before the first step, from the beginning of the job's log."""
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
    """Steps that were spoken at, and languages that were spoken."""
    steps = [(f"step {step:,}", str(step)) for step in sorted(history.samples, reverse=True)]
    languages = {
        str(one.get("language", "")): None for entry in history.samples.values() for one in _sample_entries(entry)
    }
    return [(FIRST_AND_NEWEST, FIRST_AND_NEWEST), (ALL_SAMPLES, ALL_SAMPLES), *steps], [ALL_SAMPLES, *languages]


def samples_html(context: PageContext, run: RunFolder, history: History, step: str, language: str) -> str:
    """What was spoken on the way: players, or codes where there is no waveform end."""
    known = sorted(history.samples)
    if not known:
        return note_html("nothing was spoken yet")
    chosen = {FIRST_AND_NEWEST: [known[0], known[-1]], ALL_SAMPLES: known}.get(
        step, [int(step)] if step.isdecimal() else known
    )
    found = [
        (str(one.get("name", "")), _build_sample_card(context, run, at, one))
        for at in dict.fromkeys(at for at in chosen if at in history.samples)
        for one in _sample_entries(history.samples[at])
        if language in (ALL_SAMPLES, "", one.get("language"))
    ]
    names = {name: None for name, _ in found}
    by_sentence = [sound for name in names for other, sound in found if other == name]
    return audio_cards_html(by_sentence, note_html("nothing was spoken then"))


def _sample_entries(entry: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [one for one in entry.get("spoken") or () if isinstance(one, Mapping)]


def _build_sample_card(context: PageContext, run: RunFolder, step: int, one: Mapping[str, Any]) -> AudioCard:
    language, text, name = (str(one.get(key, "")) for key in ("language", "text", "name"))
    title = f"step {step:,}, {language}"
    marks = [f"{as_finite_float(one.get('seconds')) or 0:.1f} s"]
    marks += [] if one.get("stopped", True) else ["did not stop by itself"]
    marks += ["code for code as at step 0"] if one.get("same_as_step_0") and step else []
    folder = context.roots.resolve_inside(run.samples / f"step-{step:06d}")
    sound, codes = folder / f"{Path(name).name}.wav", folder / f"{Path(name).name}.json"
    if sound.is_file():
        return audio_card_for_file(context, sound, title, text, language=language, about=", ".join(marks))
    kept = read_json(codes) if codes.is_file() else {}
    spoken = [code for code in kept.get("codes", ()) if isinstance(code, int)] if isinstance(kept, dict) else []
    return AudioCard(title, text, language, ", ".join(marks), codes=spoken)


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


def _file_stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
