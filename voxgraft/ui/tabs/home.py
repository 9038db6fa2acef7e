"""The tab Home: all runs as cards, the stages of the open one with one button that continues, and how to start.

`Continue` is `voxgraft go` as a job. The states of the stages come from the same function as those of `go --dry-run`
(`survey_stages`); while a job runs, its log says which stage it is in.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from voxgraft.config.commands import GoSettings
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.files import HashCache, read_json, reuse_hashes
from voxgraft.core.languages import find_exemplar
from voxgraft.core.results import format_duration
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.evaluation.scores import Score, format_score, measure_title
from voxgraft.pipeline.stages import PIPELINE_STAGES, STAGE_SKIPPED, SurveyedStage, survey_stages
from voxgraft.ui.commands import (
    CommandBuilder,
    find_command,
    load_run_settings,
    run_base_folder,
    run_command_in_process,
    run_dataset_folder,
    run_language,
)
from voxgraft.ui.files import file_stamp, modified_time, next_free_path
from voxgraft.ui.forms import CommandForm
from voxgraft.ui.html import (
    NEEDED_CODE,
    action_button,
    audio_file_html,
    error_html,
    file_link,
    label_flags,
    logged_findings,
    note_html,
    split_commands,
)
from voxgraft.ui.jobs import STAGE_BY_COMMAND, UPLOADS_FOLDER, ProjectJobs, UiJob, find_external_holder
from voxgraft.ui.live import current_stage, go_stages, job_progress, journal_ends, progress_html
from voxgraft.ui.page import ACTIONS_JS, PageContext, build_job_controls, start_job
from voxgraft.ui.tabs.evaluate import SENTENCE_PATHS
from voxgraft.ui.tabs.speak import spoken_html
from voxgraft.ui.tabs.start import build_new_run, demo_recordings

# The job of the box `Say something`, beside those of the tab Speak.
SAY_JOB = "speak home"
# What each stage leaves: its time is when the stage was done.
STAGE_OUTPUTS = {
    "import": "data/manifest.jsonl",
    "split": "data/manifest.jsonl",
    "graft": "graft/graft.json",
    "prepare": "data/train",
    "train": "journal.jsonl",
    "evaluate": "eval/default/scores.json",
    "export": "export",
}
# What each stage is for, while nothing else is known of it.
STAGE_PURPOSES = {
    "import": "cuts recordings into clips",
    "split": "holds some clips out, to measure with",
    "graft": "adds the letters that the base lacks",
    "prepare": "encodes the clips for training",
    "check": "looks for problems first",
    "train": "teaches the language",
    "evaluate": "compares with the base",
    "export": "writes the files to share",
}
STATE_WORDS = {
    "done": ("✓", "done"),
    "skipped": ("–", "skipped"),
    "stale": ("↻", "out of date"),
    "running": ("▶", "running"),
    "failed": ("✗", "failed"),
    "stopped": ("■", "stopped"),
    "blocked": ("✗", "needs you"),
    "next": ("●", "next"),
    "later": ("○", "later"),
}
# Of a run: what its card is made from.
CARD_PARTS = (RUN_FILE, "journal.jsonl", "samples", "graft", "eval", "eval/default", "export", "jobs", "data")
SCORE_MEASURES = ("phone_error", "cer", "wer")
MAX_CARDS = 200


class StageRow(NamedTuple):
    """One stage as the page shows it."""

    name: str
    state: str
    why: str
    when: str = ""


def build_home_tab(context: PageContext) -> None:
    """Lay the tab out."""
    with gr.Column(visible=False, elem_id="home-open") as panel:
        stages = gr.HTML(elem_id="home-stages", padding=False, js_on_load=ACTIONS_JS)
        form = CommandForm(context, "go", first=demo_recordings)

        def add_below() -> None:
            with gr.Row(equal_height=False):
                listen.render()
                say.render()
                with say:
                    text.render()
                    said_parts.extend(build_job_controls(context, SAY_JOB, "Speak", is_json=True, is_primary=False))
                    said.render()
            with gr.Accordion("Advanced", open=False, elem_id="home-advanced"):
                with gr.Row():
                    form.add("until", label="Stop after the stage")
                    form.add("when_changed", label="If settings changed after training")
                    form.add("reimport", label="Import changed sources again")
                    form.add("data.speaker_from", label="Speakers from")
                with gr.Row():
                    form.add("train.steps", label="Training steps", info="Empty: as run.yaml says, else 10,000.")
                    form.add("max_sentences", label="Sentences per language (evaluation)")
                    form.add("sentences", sought=SENTENCE_PATHS, label="Sentence files (evaluation)")

        listen = gr.HTML(elem_id="home-listen", padding=False, min_width=280, render=False)
        say = gr.Column(visible=False, elem_id="home-say", min_width=280, render=False)
        text = gr.Textbox(label="Say something", lines=2, elem_id="home-say-text", render=False)
        said = gr.HTML(elem_id="home-said", elem_classes=["vg-live"], render=False)
        said_parts: list[Any] = []
        form.finish("Continue", output="Stages", add_below=add_below)
        view, button = said_parts
    cards = gr.HTML(elem_id="home-runs", elem_classes=["vg-live"], js_on_load=ACTIONS_JS)
    build_new_run(context)

    seen = gr.State({})
    outputs = [seen, panel, stages, listen, say, text, cards]
    context.on_stamp(
        lambda project: home_stamp(context, project),
        lambda project, known: refresh_home(context, project, known or {}),
        [seen],
        outputs,
    )
    context.wire(
        [button.click],
        lambda project, words: start_job(context, project, view, lambda: _speak_argv(context, project, words)),
        [context.project, text],
        [view.shown, view.button],
    )
    context.on_change(lambda project: [spoken_html(context, project, {SAY_JOB: "your model"})], [said])

    def clear_refusal(project: str, words: str | None) -> Any:
        if not (words or "").strip():
            return gr.skip()
        return view.html(ProjectJobs(context.project_folder(project)).latest(SAY_JOB))

    context.wire([text.input], clear_refusal, [context.project, text], [view.shown], trigger_mode="always_last")

    def act(event: gr.EventData) -> list[Any]:
        return context.open_project(str(getattr(event, "project", "")))

    context.wire([cards.click], act, [], context.opener)

    def update(event: gr.EventData) -> Any:
        try:
            folder = context.project_folder(str(getattr(event, "project", "")))
            run_command_in_process(["update", context.roots.short(folder), "--json"])
            return _run_head_html(context, folder, *stage_rows(folder))
        except VoxgraftError as error:
            return error_html(error, "go")

    context.wire([stages.click], update, [], [stages])


def home_stamp(context: PageContext, project: str) -> str:
    """Changes when a card or a stage may have changed; costs a few calls of the system for each run."""
    running = context.running.find(project)
    parts = [f"{name} {job.folder.name} {job.state} {job.seconds:.0f}" for name, job in running]
    parts += [f"{name} {_card_stamp(context, name)}" for name in context.running.names]
    if project:
        with contextlib.suppress(VoxgraftError):
            parts.append(_watched_stamp(context.project_folder(project)))
    return " ".join(parts)


def _card_stamp(context: PageContext, name: str) -> str:
    times = []
    for part in CARD_PARTS:
        with contextlib.suppress(OSError):
            times.append(os.stat(os.path.join(context.roots.home, name, part)).st_mtime_ns)
    return str(times)


def refresh_home(context: PageContext, project: str, known: dict[str, str]) -> list[Any]:
    """Updates since the page last asked; all else is left alone, above all players that play."""
    now: dict[str, str] = {"project": project}
    updates: list[Any] = [gr.skip()] * 6
    try:
        folder = context.project_folder(project) if project else None
    except VoxgraftError:
        folder = None
    if folder is not None:
        run = RunFolder(folder)
        shown = _run_head_html(context, folder, *stage_rows(folder))
        now["stages"] = shown
        updates[1] = shown if shown != known.get("stages") or project != known.get("project") else gr.skip()
        sample = newest_sample(run)
        trained = (run.graft / "adapter").exists() or any(run.steps.glob("step-0*[1-9]*"))
        report = file_stamp(run.eval / "default" / "report.html")
        now["listen"] = f"{sample} {trained} {report}"
        if now["listen"] != known.get("listen") or project != known.get("project"):
            updates[2] = _listen_html(context, run, sample)
            updates[3] = gr.update(visible=trained)
            if project != known.get("project"):
                updates[4] = _sample_text(run, sample)
    updates[0] = gr.update(visible=folder is not None) if project != known.get("project") else gr.skip()
    shown = cards_html(context, project)
    now["cards"] = str(hash(shown))
    if now["cards"] != known.get("cards"):
        updates[5] = shown
    return [now if now != known else gr.skip(), *updates]


def stage_rows(folder: Path) -> tuple[list[StageRow], VoxgraftError | None, str]:
    """The stages of a run by its files, by the job that runs, or by the one that failed.

    Also the error that blocks it, and what the running job does (empty if none runs).
    """
    jobs = [
        job for verb, job in ProjectJobs(folder).newest_by_command().items() if verb == "go" or verb in STAGE_BY_COMMAND
    ]
    alive = next((job for job in jobs if job.alive), None)
    survey = survey_cached(folder, is_busy=alive is not None)
    error = next((one.error for one in survey if one.error is not None), None)
    rows: dict[str, StageRow] = {
        one.name: StageRow(one.name, one.state, one.why, _done_at(folder, one)) for one in survey
    }
    if alive is not None:
        stage = current_stage(alive)
        if alive.verb == "go":
            message = go_stages(alive)
            for name in rows:
                word, why = message.get(name, ("", ""))
                # Before the first line of its log, what was done before still counts.
                is_done = bool(word) or (rows[name].state == "done" and not message)
                why = why if word == STAGE_SKIPPED else "by this job" if word else ""
                rows[name] = StageRow(name, "done" if is_done else "later", why, rows[name].when)
        words = job_progress(folder, alive)
        if stage:
            left = f"{format_duration(words.seconds_left)} left" if words.seconds_left is not None else ""
            why = words.words.removeprefix("train: ") if stage == "train" else go_stages(alive).get(stage, ("", ""))[1]
            rows[stage] = StageRow(stage, "running", why, left or f"job: {format_duration(alive.seconds)}")
        return list(rows.values()), None, stage or words.words
    state, stage = find_early_end(folder)
    if stage and rows[stage].state not in ("done", "blocked"):
        why = "see below" if state == "failed" else rows[stage].why
        rows[stage] = StageRow(stage, state, why, rows[stage].when)
        # The check before a training leaves nothing by which it could be known.
        if rows["check"].state == "next" and stage == "train":
            rows["check"] = StageRow("check", "done", "made before training; Continue repeats it")
    return list(rows.values()), error, ""


def find_early_end(folder: Path) -> tuple[str, str]:
    """How the newest job of a stage, or of `go`, has ended if not well (failed, stopped), and its stage; else empty."""
    newest = ProjectJobs(folder).newest_by_command()
    jobs = [job for verb, job in newest.items() if verb == "go" or verb in STAGE_BY_COMMAND]
    last = max(jobs, key=lambda job: job.number, default=None)
    state = {"failed": "failed", "lost": "failed", "stopped": "stopped"}.get(last.state, "") if last else ""
    if last is None or not state or not (stage := current_stage(last)):
        return "", ""
    if state == "failed" and last.is_superseded:
        return "", ""
    # What was done since in a terminal counts more.
    ended = float(last.read("exit.json").get("ended") or math.inf)
    output = STAGE_OUTPUTS.get(stage)
    is_redone = output is not None and modified_time(folder / output) > ended
    return ("", "") if is_redone else (state, stage)


# By run: its last survey.
_last_surveys: dict[Path, list[SurveyedStage]] = {}
_known_hashes: HashCache = {}


def survey_cached(folder: Path, *, is_busy: bool = False) -> list[SurveyedStage]:
    """The survey of a run; made again when one of the files that it depends on has changed.

    With `is_busy` (a job changes these files all the time) the last one, or only which stages have left something.
    """
    last = _last_surveys.get(folder)
    if is_busy and last is None:
        made = {name for name, output in STAGE_OUTPUTS.items() if (folder / output).exists()}
        return [SurveyedStage(name, "done" if name in made else "later", "") for name in PIPELINE_STAGES]
    # A training in a terminal writes its journal too.
    if last is None or not (is_busy or find_external_holder(folder) is not None):
        last = _last_surveys[folder] = _survey(folder, _watched_stamp(folder))
    return last


def _watched_stamp(folder: Path) -> str:
    """Changes with the files by which the stages of a run decide."""
    run = RunFolder(folder)
    watched = [run.settings, run.journal, run.steps, run.path / "merged", run.eval, run.export, run.data]
    watched += [folder / name for name in STAGE_OUTPUTS.values()]
    watched += [run_dataset_folder(folder) / "manifest.jsonl", run.export / "graft", folder / UPLOADS_FOLDER]
    with contextlib.suppress(VoxgraftError):
        settings = load_run_settings(folder)
        watched += [*settings.data.sources, *settings.texts]
    return " ".join(map(file_stamp, watched))


@lru_cache(maxsize=64)
def _survey(folder: Path, _stamp: str) -> list[SurveyedStage]:
    try:
        # As commands name it, so that reasons have short paths: the server's working folder is the first root.
        with reuse_hashes(_known_hashes):
            return survey_stages(GoSettings(run=Path(os.path.relpath(folder))))
    except VoxgraftError as error:
        first, *others = PIPELINE_STAGES
        blocked = SurveyedStage(first, "blocked", error.finding.found, error=error)
        return [blocked, *(SurveyedStage(name, "later", "") for name in others)]


def _done_at(folder: Path, stage: SurveyedStage) -> str:
    """When a stage was done; with the date if that was not today."""
    written = modified_time(folder / STAGE_OUTPUTS[stage.name]) if stage.name in STAGE_OUTPUTS else 0.0
    if stage.state not in ("done", "stale") or not written:
        return ""
    then = time.localtime(written)
    is_today = time.strftime("%x", then) == time.strftime("%x")
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d", then)


def stages_html(rows: Sequence[StageRow]) -> str:
    """The stages in a row: what each is, its state, why, and when."""
    items = []
    for row in rows:
        sign, words = STATE_WORDS[row.state]
        why = label_flags(split_commands(row.why)[0], "go") or STAGE_PURPOSES[row.name]
        current = ' aria-current="step"' if row.state in ("next", "running", "failed", "stopped", "blocked") else ""
        when = f'<small class="vg-when">{escape(row.when)}</small>' if row.when else ""
        items.append(
            f'<li class="vg-stage vg-{row.state}"{current}>'
            f'<b title="{escape(STAGE_PURPOSES[row.name])}">{escape(row.name)}</b>'
            f'<span class="vg-state"><span aria-hidden="true">{sign}</span> {words}</span>'
            f'<small title="{escape(why)}">{escape(why)}</small>{when}</li>'
        )
    return f'<ol class="vg-stages" aria-label="Stages">{"".join(items)}</ol>'


def _run_head_html(
    context: PageContext, folder: Path, rows: Sequence[StageRow], error: VoxgraftError | None, running: str
) -> str:
    """Title of the open run, its stages, and one line that says what is next."""
    about = _describe_run(folder)
    ahead = next((row for row in rows if row.state in ("next", "stale", "failed", "stopped")), None)
    if running:
        # Of a job of `go` the line below the buttons says so; that of another tab has no line here.
        job = ProjectJobs(folder).latest("go")
        words, kind = ("", "") if job is not None and job.alive else (f"Running: {running}.", "busy")
    elif error is not None:
        words, kind = "", ""
    elif ahead is not None and ahead.state == "stopped":
        words, kind = f"Stopped: {_describe_end(folder, ahead.name)}. Press Continue to resume.", "note"
    elif ahead is not None and ahead.state == "failed":
        words, kind = f"Failed: {_describe_end(folder, ahead.name)}. The reason is below.", "bad"
    elif ahead is not None:
        words, kind = f"Next: {ahead.name} ({ahead.why}). Press Continue.", "note"
    else:
        words = "All stages are done: Continue repeats only what you change. Listen below, or enter a text to speak."
        kind = "good"
    title = f"<h2>{escape(context.roots.short(folder))}</h2><p>{escape(about)}</p>"
    if error is not None and _shows_error(folder, error):
        said = note_html("This stage needs you: the reason is below.", "bad")
    else:
        said = error_html(error, "go") if error is not None else note_html(words, kind) if words else ""
    if error is not None and needs_update(error):
        said += action_button("update", "Update run.yaml", elem_id="home-update", project=context.roots.short(folder))
    return f'<div class="vg-head">{title}</div>{stages_html(rows)}{said}'


def _shows_error(folder: Path, error: VoxgraftError) -> bool:
    """Whether the newest job of `go`, which is shown below, has ended with this error."""
    job = ProjectJobs(folder).latest("go")
    if job is None or job.state != "failed" or job.is_superseded:
        return False
    return any(item["code"] == error.code for item in logged_findings(job.tail()))


def _describe_end(folder: Path, stage: str) -> str:
    """A stage that has not ended well, with the step if that is training."""
    history = journal_ends(RunFolder(folder))
    is_counted = stage == "train" and history.num_steps
    return f"{stage}, step {history.last_step:,} of {history.num_steps:,}" if is_counted else stage


def needs_update(error: VoxgraftError) -> bool:
    """Whether `voxgraft update` cures an error: settings of an older version."""
    return "voxgraft update" in (error.finding.cure or "")


def _describe_run(folder: Path) -> str:
    language, base = run_language(folder), run_base_folder(folder)
    entry = find_exemplar(language) if language else None
    name = f"{entry.name} ({language})" if entry and language else language or "no language yet"
    with contextlib.suppress(VoxgraftError):
        settings = load_run_settings(folder)
        word = str(settings.base) if settings.base is not None and len(settings.base.parts) == 1 else ""
        return f"{name} on {word or (base.name if base else 'no base yet')}"
    return f"{name}: {RUN_FILE} cannot be read"


def newest_sample(run: RunFolder) -> tuple[int, Path] | None:
    """The newest sample of the new language that can be played, and its step."""
    language = run_language(run.path) or ""
    with contextlib.suppress(OSError):
        folders = sorted((path for path in run.samples.iterdir() if path.name.startswith("step-")), reverse=True)
        for folder in folders:
            names = sorted(folder.glob("*.wav"))
            own = [path for path in names if path.stem.split("-")[0] == language] or names
            if own and (number := re.search(r"\d+", folder.name)):
                return int(number[0]), own[0]
    return None


def _sample_facts(run: RunFolder, sample: tuple[int, Path]) -> dict[str, Any]:
    """What the journal says of a sample: its text and its language."""
    step, path = sample
    spoken = journal_ends(run).samples.get(step, {}).get("spoken") or ()
    return next((dict(one) for one in spoken if isinstance(one, dict) and one.get("name") == path.stem), {})


def _sample_text(run: RunFolder, sample: tuple[int, Path] | None) -> str:
    return str(_sample_facts(run, sample).get("text", "")) if sample is not None else ""


def _listen_html(context: PageContext, run: RunFolder, sample: tuple[int, Path] | None) -> str:
    """The newest sample with its step, and how far the training is; a note before the first one."""
    if sample is None:
        return note_html("No sound yet: training speaks a sample before its first step, and again every few steps.")
    step, path = sample
    facts = _sample_facts(run, sample)
    what = "before training" if step == 0 else f"step {step:,}"
    with contextlib.suppress(VoxgraftError):
        card = audio_file_html(
            context, context.roots.resolve_inside(path), f"Newest sample: {what}", str(facts.get("text", "")),
            language=str(facts.get("language", "")),
            about=_untrained_note(run) if step == 0 else "",
        )  # fmt: skip
        link = file_link(context, run.eval / "default" / "report.html", "Open the evaluation report")
        return f'<div class="vg-players">{card}</div>{link}'
    return ""


def _untrained_note(run: RunFolder) -> str:
    """What the sample before training is, and when the next one comes."""
    words = "The untrained model tries the new language."
    with contextlib.suppress(VoxgraftError):  # run.yaml cannot be read: Home says so elsewhere
        train = load_run_settings(run.path).train
        words += f" The next sample comes at step {min(train.sample_every, train.steps or train.sample_every):,}."
    return words


def cards_html(context: PageContext, project: str) -> str:
    """All runs as cards, those with a running job first; nothing where there is none."""
    names = context.running.names[:MAX_CARDS]
    if not names:
        return ""
    running = dict(context.running.find(project))
    ordered = sorted(names, key=lambda name: (name not in running, name != project))
    cards = []
    for name in ordered:
        job = running.get(name)
        known = job_progress(context.roots.home / name, job) if job is not None else None
        stamp = f"{_card_stamp(context, name)} {name == project} {known}"
        if context.running.cards.get(name, ("", ""))[0] != stamp:
            context.running.cards[name] = stamp, _card_html(context, name, job, is_open=name == project)
        cards.append(context.running.cards[name][1])
    return f'<h2 class="vg-h2">Runs</h2><div class="vg-runs">{"".join(cards)}</div>'


def _card_html(context: PageContext, name: str, job: UiJob | None, *, is_open: bool) -> str:
    try:
        folder = context.project_folder(name)
    except VoxgraftError:
        return ""
    run = RunFolder(folder)
    history = journal_ends(run)
    meter = ""
    if job is not None:
        known = job_progress(folder, job)
        words = f"running: {known.words}"
        meter = progress_html(known.share, f"Progress of {name}") if known.share is not None else ""
    elif (ended := find_early_end(folder))[0]:
        words = f"{ended[0]}: {_describe_end(folder, ended[1])}"
    elif any(run.export.glob("*/terms.json")):
        words = "exported"
    elif any(run.eval.glob("*/scores.json")):
        words = "evaluated"
    elif history.steps:
        words = f"trained: step {history.last_step:,} of {history.num_steps:,}"
    else:
        made = [stage for stage, output in STAGE_OUTPUTS.items() if (folder / output).exists()]
        words = f"{made[-1]} is done" if made else "new"
    score = _last_score(run)
    sample = newest_sample(run)
    player = ""
    if sample is not None:
        with contextlib.suppress(VoxgraftError):
            address = context.file_url(context.roots.resolve_inside(sample[1]), versioned=True)
            label = escape(f"Newest sample of {name}, step {sample[0]}")
            player = f'<audio controls preload="none" src="{escape(address)}" aria-label="{label}"></audio>'
    marks = ' class="vg-card vg-current" aria-current="true"' if is_open else ' class="vg-card"'
    named = escape(name)
    opener = "<span>open</span>" if is_open else action_button("open", "Open", label=f"Open {name}", project=name)
    return (
        f"<article{marks}><header><strong>{named}</strong>{opener}</header><small>{escape(_describe_run(folder))}</small>"
        f"<small>{escape(words)}</small>{meter}{f'<small>{escape(score)}</small>' if score else ''}{player}</article>"
    )


def _last_score(run: RunFolder) -> str:
    """The newest score of the new language with the step that it belongs to; marked if training continued since."""
    path = max(run.eval.glob("*/scores.json"), key=modified_time, default=None)
    if path is None:
        return ""
    words = _read_score(path, file_stamp(path))
    is_old = modified_time(run.graft / "graft.json") > modified_time(path)
    return f"{words} (out of date)" if words and is_old else words


@lru_cache(maxsize=256)
def _read_score(path: Path, _stamp: str) -> str:
    with contextlib.suppress(VoxgraftError, KeyError, TypeError, AttributeError):
        scores = read_json(path)
        rows = scores["rows"]
        wanted = (scores["language"], "after")
        own: dict[str, Any] = next((row for row in rows if (row["language"], row["who"]) == wanted), {"scores": {}})
        for measure in SCORE_MEASURES:
            if measure in own["scores"] and own["scores"][measure].get("value") is not None:
                value = format_score(measure, Score.from_json(own["scores"][measure]))
                return f"{measure_title(measure)} {value}, step {scores['subject'].get('step')}"
    return ""


def _speak_argv(context: PageContext, project: str, text: str | None) -> list[str]:
    folder = context.project_folder(project)
    if not (text or "").strip():
        raise ConfigError(NEEDED_CODE, "still needed: Say something")
    command = CommandBuilder(find_command("speak"), context.roots, json=True)
    output = next_free_path(folder / "spoken" / "home")
    return command.words({"text": text}, folder, {"run": folder, "output": output})
