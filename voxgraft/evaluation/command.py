"""The command `evaluate`: open a run, graft or checkpoint, compare it with its base, write scores.json and a report."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from voxgraft import __version__
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import EvaluateSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, GraftError
from voxgraft.core.files import (
    atomic_write_folder,
    compute_sha256,
    is_file,
    is_folder,
    require_folder,
    write_json,
    write_text,
)
from voxgraft.core.journal import History, RunJournal
from voxgraft.core.results import Line, Table, style_line
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import resolve_manifest_path
from voxgraft.dataset.run_data import NO_RUN_REASON, HeldOutData, open_held_out_data
from voxgraft.evaluation.judge import (
    ORIGINAL_RECORDINGS_TITLE,
    WHO_AFTER,
    Evaluation,
    Evaluator,
    open_voice_comparer,
    score_codec_clips,
    score_recordings,
)
from voxgraft.evaluation.report import (
    SCORES_NAME,
    ChecklistItem,
    build_checklist,
    build_scores_json,
    format_score,
    is_unreached_goal,
    render_report,
    summarize_retention,
)
from voxgraft.evaluation.scores import format_recognizer_hint, open_transcriber, select_shown_measures
from voxgraft.evaluation.sentences import (
    SentenceSet,
    build_text_sentences,
    find_training_overlap,
    load_manifest_sentences,
    load_sentence_sets,
    load_training_texts,
)
from voxgraft.evaluation.synthesis import (
    choose_eval_voices,
    open_speech_renderer,
    read_reference_recordings,
    read_sentence_recordings,
)
from voxgraft.graft.folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.graft.folder import MERGED_CARD_NAME, load_graft
from voxgraft.synthesis.engine import (
    ModelContext,
    SpeakingModel,
    open_base_model,
    open_checkpoint_model,
    open_grafted_model,
    open_merged_model,
    open_model_context,
    open_run_model,
)
from voxgraft.training.samples import collect_texts

EVALUATION_REPORT_NAME = "report.html"
ANSWER_MARKS = {"yes": ("✓", "green"), "no": ("✗", "bold red"), "unknown": ("–", "dim")}
GOAL_MARK = ("○", "yellow")


@dataclass(frozen=True)
class EvaluationSubject:
    """What is evaluated, ready to be opened."""

    kind: str
    """run, graft, merged or checkpoint."""
    path: Path
    place: ModelContext
    open: Callable[[], SpeakingModel]
    held_out: HeldOutData
    history: History | None = None
    run: RunFolder | None = None
    settings: RunSettings | None = None
    """Of its run."""


def resolve_subject(settings: EvaluateSettings) -> EvaluationSubject:
    """What the path names: a run, a graft, a merged model or a checkpoint."""
    path = require_folder(settings.model)
    run = RunFolder(path)
    own: RunSettings | None = None
    if is_file(run.settings):
        own = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    elif settings.variant is not None or settings.step is not None:
        found = f"--variant or --step is given, but {path.name} is not a run"
        raise ConfigError("config-value", found, expected="a run for these", where=path)
    base, family = settings.base or (own.base if own else None), settings.family or (own.family if own else None)
    if base is None:
        cure = "give the base to compare with: --base FOLDER."
        raise ConfigError("config-missing", "`base` is not given", where=run.settings if own else path, cure=cure)
    place = open_model_context(base, family, settings.device, settings.precision)
    if own is not None:
        journal = RunJournal(run.journal).read()
        graft = load_graft(run.graft)
        return EvaluationSubject(
            "run",
            run.path,
            place,
            lambda: open_run_model(place, run, graft, settings.variant, settings.step),
            open_held_out_data(run, own, place.family, place.files, graft),
            History.of(journal) if journal else None,
            run,
            own,
        )
    held_out = HeldOutData(why={"": NO_RUN_REASON}, seed=settings.seed)
    if is_file(path / GRAFT_CARD):
        return EvaluationSubject("graft", path, place, lambda: open_grafted_model(place, load_graft(path)), held_out)
    if is_file(path / MERGED_CARD_NAME):
        return EvaluationSubject("merged", path, place, lambda: open_merged_model(place, path), held_out)
    return EvaluationSubject(
        "checkpoint", path, place, lambda: open_checkpoint_model(place, path, settings.language), held_out
    )


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """What was found, and where its files are."""

    folder: Path
    document: Mapping[str, Any]
    evaluation: Evaluation
    points: tuple[ChecklistItem, ...]
    broken: bool
    """Whether old languages are not what the base's own promise says."""

    @property
    def exit_code(self) -> int:
        return 1 if self.broken else 0

    def to_json(self) -> dict[str, Any]:
        brief = {key: value for key, value in self.document.items() if key != "utterances"}
        return {"folder": str(self.folder), **brief}

    def lines(self) -> list[Line]:
        found = self.evaluation
        shown = select_shown_measures(found.rows)
        rows = tuple(
            (row.language, row.title, *(format_score(measure.name, row.score(measure.name)) for measure in shown))
            for row in found.rows
        )
        columns = ("language", "who", *(measure.title for measure in shown))
        lines: list[Line] = [Table(columns, rows)]
        listener = self.document["listener"]
        if listener["name"] is not None:
            lines.append(f"recognizer: {listener['name']}; {SCORES_NAME} has 95 % intervals over the sentences")
        if listener["why"]:
            why = (f"no recognizer for {self.document['language'] or 'these languages'}: ", "bold")
            lines += [style_line(why, str(listener["why"])), str(listener["how"])]
        word = summarize_retention(found)
        style = {"equal": "bold green", "not equal": "bold red"}.get(word, "bold")
        names = ", ".join(kept.language for kept in found.kept) or "no language"
        row = found.row(found.kept[0].language, WHO_AFTER) if found.kept else None
        with_what = f" with and without {row.title}" if row else ""
        lines.append(style_line(f"base speech logits{with_what} ({names}): ", (word, style)))
        for point in self.points:
            mark = GOAL_MARK if is_unreached_goal(point) else ANSWER_MARKS[point.answer]
            lines.append(style_line(mark, f" {point.question} {point.found}"))
        return [*lines, f"scores: {self.folder / SCORES_NAME}", f"report: {self.folder / EVALUATION_REPORT_NAME}"]


def evaluate(settings: EvaluateSettings) -> EvaluateResult:
    """Compare a run, a graft or a checkpoint with its base."""
    subject = resolve_subject(settings)
    if settings.output is not None and (is_folder(settings.output) or is_file(settings.output)):
        raise FileError("file-exists", f"{settings.output.name} exists already", where=settings.output)
    if settings.output is None and subject.run is None:
        found = f"{subject.path.name} is a {subject.kind}, and the output folder is not set"
        raise ConfigError("config-missing", found, expected="--output FOLDER")
    folder = settings.output or RunFolder(subject.path).eval / settings.name
    named = settings.recognizer or (subject.settings.evaluate.recognizer if subject.settings else None)
    # Everything that can be refused is opened before the first sentence is spoken, which takes minutes.
    base, after = open_base_model(subject.place), subject.open()
    new_language = after.spelling.language
    ear = open_transcriber(named, new_language)
    sets = _load_sentence_sets(settings, subject, after)
    originals = {language: read_sentence_recordings(one.sentences) for language, one in sets.items()}
    if settings.recordings and new_language is None:
        found = f"recordings are given, but {after.name} has no new language"
        raise ConfigError("evaluate-language", found, expected="--language")
    if settings.recordings:
        recordings = read_reference_recordings(settings.recordings, new_language or "")
        mark = score_recordings(recordings, ear, settings.seed)
    else:
        mark = score_recordings(originals.get(new_language or "", ()), ear, settings.seed, ORIGINAL_RECORDINGS_TITLE)
    held_out = subject.held_out
    clips = held_out.sets.get(new_language or "") or held_out.all_sets
    voices = choose_eval_voices(
        base, subject.place.files, settings.voices, clips, held_out.min_prompt_seconds, settings.seed
    )
    sound = open_speech_renderer(subject.place).restrict_to_voices([voice.clip for voice in voices])
    evaluation = Evaluator(
        base,
        after,
        sets,
        voices,
        sound,
        ear,
        open_voice_comparer(base, subject.place, voices),
        held_out,
        settings.seed,
        settings.players,
        originals,
    ).run()
    for language in evaluation.languages:
        clips = held_out.sets.get(language, ())
        evaluation.add(score_codec_clips(clips, language, sound, ear, sets, settings.seed))
    evaluation.add(mark)
    points = build_checklist(evaluation, after)
    listener = ear.listener
    about = {
        "name": settings.name,
        **_describe_subject(settings, subject, after),
        "listener": {
            "name": None if listener is None or sound.vocoder is None else listener.name,
            "languages": None if listener is None or listener.languages is None else sorted(listener.languages),
            "why": sound.why or (ear.why_unsupported(new_language) if new_language else ear.why),
            "how": format_recognizer_hint(shlex.quote(str(settings.model))),
            "named": named,
        },
        "sentences": _describe_sentences(sets, subject, new_language),
        "voices": [voice.name for voice in voices],
        "sampling": asdict(subject.place.family.stock_sampling()),
        "seed": settings.seed,
        "device": subject.place.device,
        "dtype": str(subject.place.dtype).removeprefix("torch."),
        "versions": {"voxgraft": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    document = build_scores_json(about, evaluation, points)
    with atomic_write_folder(folder) as new:
        write_json(new / SCORES_NAME, document)
        write_text(new / EVALUATION_REPORT_NAME, render_report(document, evaluation, points, subject.history))
    # Only a model that promises to keep the base breaks a promise: others may change it.
    broken = after.keeps_base and summarize_retention(evaluation) == "not equal"
    return EvaluateResult(folder, document, evaluation, tuple(points), broken)


def _load_sentence_sets(
    settings: EvaluateSettings, subject: EvaluationSubject, after: SpeakingModel
) -> dict[str, SentenceSet]:
    """Of the new language, and of the base languages that are requested or that have sentences."""
    spoken = subject.place.languages()
    new = after.spelling.language
    if strange := [name for name in settings.languages if name not in spoken or name == new]:
        known = ", ".join(spoken)
        raise ConfigError("evaluate-language", f"languages: {', '.join(strange)}", expected=f"of the base: {known}")
    named = {path.stem for path in settings.sentences}
    old = [
        name
        for name in spoken
        if name != new and (not settings.languages or name in settings.languages or name in named)
    ]
    sets = load_sentence_sets([*([new] if new else []), *old], settings.sentences, settings.max_sentences)
    if new is not None and new not in sets and subject.run is not None and subject.settings is not None:
        # Held-out texts of the run's own data, with their recordings where the manifest names them.
        manifest = resolve_manifest_path(subject.settings.data.dataset, subject.run.data)
        own = load_manifest_sentences(manifest, new) if is_file(manifest) else None
        own = own or build_text_sentences(collect_texts(subject.held_out.sets.get(new, ())), new)
        if own is not None:
            sets = {new: own.spread(settings.max_sentences), **sets}
    if new is not None and new not in sets:
        found = f"no sentences in {new}: no built-in ones, and no held-out texts in the dataset"
        raise ConfigError("sentences-missing", found, expected=f"--sentences {new}.txt", where=subject.path)
    if not sets:
        raise GraftError("sentences-missing", "no sentences in any language of the base", where=subject.path)
    return sets


def _describe_subject(settings: EvaluateSettings, subject: EvaluationSubject, after: SpeakingModel) -> dict[str, Any]:
    card = (subject.path if subject.run is None else subject.run.graft) / GRAFT_CARD
    is_graft = after.checkpoint is None and settings.step is None and is_file(card)
    return {
        "subject": {
            "kind": subject.kind,
            "path": str(subject.path.resolve()),
            "title": subject.path.resolve().name,
            "family": subject.place.family.name,
            "system": after.name,
            "mode": after.mode,
            "step": after.step,
            "label": after.label,
            "keeps_base": after.keeps_base,
            "checkpoint_sha256": None if after.checkpoint is None else compute_sha256(after.checkpoint),
            # The card has the hashes of all parts of the graft. None where something else was evaluated.
            "graft_sha256": compute_sha256(card) if is_graft else None,
        },
        "base": str(subject.place.files.folder.resolve()),
        "base_sha256": compute_sha256(subject.place.files.checkpoint),
    }


def _describe_sentences(
    sets: Mapping[str, SentenceSet], subject: EvaluationSubject, new_language: str | None
) -> dict[str, Any]:
    """Where sentences come from, and whether they were in the training texts, as far as that is known."""
    described = {}
    for language, found in sets.items():
        texts: tuple[str, ...] | str = "the training data of the base is not known"
        if subject.run is not None and subject.settings is not None and language == new_language:
            texts = load_training_texts(subject.run, subject.settings)
        described[language] = {
            "source": found.source,
            "sha256": found.sha256,
            "count": len(found.sentences),
            "rare": sum(bool(one.rare) for one in found.sentences),
            **({"training": texts} if isinstance(texts, str) else find_training_overlap(found, texts)),
        }
    return described
