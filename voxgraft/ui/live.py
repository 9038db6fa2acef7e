"""What runs now, in any project: the bar above the tabs, how far each job is, and when it will be done.

Read every two seconds by every open page, so it is cheap: folders are listed again only when they have changed, and of
a journal only the ends are read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from voxgraft.core.errors import VoxgraftError
from voxgraft.core.results import format_duration
from voxgraft.core.run import History, RunFolder
from voxgraft.pipeline.stages import PIPELINE_STAGES, STAGE_SKIPPED, STAGE_STARTING
from voxgraft.ui.files import PROJECT_PATHS, Roots, file_stamp
from voxgraft.ui.html import PAGE_TARGETS, action_button
from voxgraft.ui.jobs import STAGE_BY_COMMAND, ProjectJobs, UiJob, find_external_holder

# A new project of a terminal is found after so long; those that the page itself makes are open, and so known at once.
LIST_SECONDS = 15.0
# Parts of a journal that are read: the start of a run, and its last lines.
JOURNAL_HEAD_BYTES, JOURNAL_TAIL_BYTES = 16 << 10, 96 << 10
MAX_LOG_SCAN_BYTES = 8 << 20
# Step lines that are needed for a pace; the first ones are slower than the rest.
MIN_TIMED_LINES = 3
_STAGE_LINE = re.compile(rf"^({'|'.join(PIPELINE_STAGES)}): ({STAGE_STARTING}|{STAGE_SKIPPED}): (.*)$", re.MULTILINE)


class JobProgress(NamedTuple):
    """How far a job is."""

    words: str
    """The stage or command, and the step where steps are counted."""
    share: float | None = None
    seconds_left: float | None = None


class RunningJobs:
    """The jobs that run in the projects of a server; one for all its pages."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.names: list[str] = []
        self.cards: dict[str, tuple[str, str]] = {}
        """By project: what its card on Home was made from, and the card."""
        self._listed = -LIST_SECONDS
        self._alive: dict[str, tuple[int, list[UiJob]]] = {}

    def find(self, project: str = "", *, fresh: bool = False) -> list[tuple[str, UiJob]]:
        """Every running job with its project; `project` is looked at even if it is new, with `fresh` all new ones."""
        now = time.monotonic()
        if fresh or now - self._listed > LIST_SECONDS:
            self._listed, self.names = now, self.roots.find(PROJECT_PATHS)
        found = []
        for name in dict.fromkeys((*([project] if project else []), *self.names)):
            try:
                # The name comes from the browser: nothing outside the roots is listed.
                jobs = ProjectJobs(self.roots.resolve_inside(name))
                changed = os.stat(jobs.folder).st_mtime_ns
            except (OSError, VoxgraftError):
                continue
            known = self._alive.get(name)
            # A job that has ended stays ended; a new one changes the time of the folder.
            some = known[1] if known is not None and known[0] == changed else [*jobs.newest_by_command().values()]
            alive = [job for job in some if job.alive]
            self._alive[name] = changed, alive
            found += [(name, job) for job in alive]
        return found


def journal_ends(run: RunFolder) -> History:
    """What the first and the last lines of a journal say; enough for progress and samples, whatever its length."""
    return _read_journal_ends(run.journal, file_stamp(run.journal))


@lru_cache(maxsize=128)
def _read_journal_ends(path: Path, _stamp: str) -> History:
    history = History()
    try:
        with path.open("rb") as stream:
            head = stream.read(JOURNAL_HEAD_BYTES)
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(len(head), size - JOURNAL_TAIL_BYTES))
            gap = stream.tell() > len(head)
            tail = stream.read()
    except OSError:
        return history
    # Without a gap the two parts are one text; with one, the lines that it cuts are left out.
    if gap:
        data = head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]
    else:
        data = head + tail
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            entry = json.loads(line)
            history.add(str(entry["kind"]), int(entry["step"]), entry)
    return history


def go_stages(job: UiJob) -> dict[str, tuple[str, str]]:
    """By stage what `go` has said of it so far: `runs` or `skipped`, and why. The last that runs is the current one."""
    path = job.folder / "log.txt"
    return _read_go_stages(path, file_stamp(path))


@lru_cache(maxsize=32)
def _read_go_stages(path: Path, _stamp: str) -> dict[str, tuple[str, str]]:
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_LOG_SCAN_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    return {stage: (word, why) for stage, word, why in _STAGE_LINE.findall(text)}


def current_stage(job: UiJob) -> str:
    """The stage of `go` that a job runs, or the last that it ran; empty for what is no stage."""
    if job.verb != "go":
        return STAGE_BY_COMMAND.get(job.verb, "")
    return next((stage for stage, (word, _) in reversed(go_stages(job).items()) if word == STAGE_STARTING), "")


def job_progress(project: Path, job: UiJob) -> JobProgress:
    """How far a running job is: by steps in training, by stages in `go`, else only what it is."""
    stage = current_stage(job)
    if stage == "train":
        history = journal_ends(RunFolder(project))
        started = float(job.read("job.json").get("started", 0.0))
        last, total = history.last_step, history.num_steps
        written = 0.0
        with contextlib.suppress(OSError):
            written = (project / "journal.jsonl").stat().st_mtime
        if written >= started and total:
            pace = history.seconds_per_step() if len(history.steps) >= MIN_TIMED_LINES else None
            left = max(0, total - last) * pace if pace is not None else None
            return JobProgress(f"train: step {last:,} of {total:,}", min(1.0, last / total), left)
        return JobProgress("train: starting")
    if job.verb == "go":
        names: list[str] = list(PIPELINE_STAGES)
        first = job.read("job.json").get("first")
        if not stage:
            return JobProgress("creating the demo recordings" if first else "starting")
        return JobProgress(f"{stage} (stage {names.index(stage) + 1} of {len(names)})", names.index(stage) / len(names))
    # By the button that has started it: jobs of one command have generated names.
    target = PAGE_TARGETS.get((job.verb, ""))
    return JobProgress(target.label if target is not None else job.verb)


def jobs_bar_html(roots: Roots, running: RunningJobs, project: str) -> str:
    """One line for each running job: project, progress, time left, and buttons; empty if nothing runs."""
    lines = []
    for name, job in running.find(project):
        with contextlib.suppress(VoxgraftError):
            folder = roots.resolve_inside(name)
            state = job.state
            known = job_progress(folder, job)
            words = "stopping: finishing the current step" if state == "stopping" else known.words
            if known.seconds_left is not None and state != "stopping":
                words += f", {format_duration(known.seconds_left)} left"
            lines.append(_bar_line(name, words, format_duration(job.seconds), known.share, job.folder.name))
    if project and not any(name == project for name, _ in running.find(project)):
        with contextlib.suppress(VoxgraftError):
            holder = find_external_holder(roots.resolve_inside(project))
            if holder is not None:
                lines.append(_bar_line(project, f"{holder[0]}, started in a terminal", "", None, ""))
    return f'<div class="vg-jobs" role="region" aria-label="Running jobs">{"".join(lines)}</div>' if lines else ""


def _bar_line(project: str, words: str, seconds: str, share: float | None, job: str) -> str:
    """One running job. Its buttons differ by `data-act`; see `ACTIONS_JS` in page.py."""
    meter = f"<span>{share:.0%}</span>" + progress_html(share, f"Progress of {project}") if share is not None else ""
    buttons = action_button("open", "Open", label=f"Open {project}", project=project)
    if job:
        buttons += action_button("stop", "Stop", label=f"Stop {project}", project=project, job=job)
    since = f"<small>for {escape(seconds)}</small>" if seconds else ""
    named = f"<strong>{escape(project)}</strong><span>{escape(words)}</span>"
    return f'<div class="vg-job">{named}{meter}{since}{buttons}</div>'


def progress_html(share: float, label: str) -> str:
    """A bar that says how much is done."""
    return f'<progress max="1" value="{share:.3f}" aria-label="{escape(label)}"></progress>'


def stop_job_named(roots: Roots, event: Mapping[str, Any]) -> None:
    """Stop the job that a button of the bar names."""
    project, name = str(event.get("project", "")), str(event.get("job", ""))
    for job in ProjectJobs(roots.resolve_inside(project)).all():
        if job.folder.name == name:
            job.stop()
