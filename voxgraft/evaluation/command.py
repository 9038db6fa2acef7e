"""The command `evaluate`: open a run, graft or checkpoint, compare it with its base, write scores.json and a report."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
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
    open_voice_encoder,
    score_codec_clips,
    score_recordings,
)
from voxgraft.evaluation.report import (
    SCORES_NAME,
    ChecklistItem,
    build_checklist,
    build_scores_json,
    is_unreached_goal,
    render_report,
    summarize_retention,
)
from voxgraft.evaluation.scores import open_transcriber, tabulate_scores
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


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """What was found, and where its files are."""

    folder: Path
    document: Mapping[str, Any]
    evaluation: Evaluation
    points: tuple[ChecklistItem, ...]
    exit_code: int
    """1 where old languages are not what the base's own promise says."""

    def to_json(self) -> dict[str, Any]:
        brief = {key: value for key, value in self.document.items() if key != "utterances"}
        return {"folder": str(self.folder), **brief}

    def lines(self) -> list[Line]:
        found = self.evaluation
        columns, rows = tabulate_scores(found.rows)
        lines: list[Line] = [Table(tuple(columns), tuple(rows))]
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
    """Compare a run, a graft, a merged model or a checkpoint with its base."""
    path = require_folder(settings.model)
    run = RunFolder(path)
    own: RunSettings | None = None
    if is_file(run.settings):
        own = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    elif settings.variant is not None or settings.step is not None:
        found = f"--variant or --step is given, but {path.name} is not a run"
        raise ConfigError("config-value", found, expected="a run for these", where=path)
    base_folder, family = settings.base or (own.base if own else None), settings.family or (own.family if own else None)
    if base_folder is None:
        cure = "give the base to compare with: --base FOLDER."
        raise ConfigError("config-missing", "`base` is not given", where=run.settings if own else path, cure=cure)
    place = open_model_context(base_folder, family, settings.device, settings.precision)
    history: History | None = None
    held_out = HeldOutData(why={"": NO_RUN_REASON}, seed=settings.seed)
    if own is not None:
        kind, graft = "run", load_graft(run.graft)
        held_out = open_held_out_data(run, own, place.family, place.files, graft)
        journal = RunJournal(run.journal).read()
        history = History.of(journal) if journal else None
    else:
        cards = {"graft": GRAFT_CARD, "merged": MERGED_CARD_NAME}
        kind = next((kind for kind, name in cards.items() if is_file(path / name)), "checkpoint")
    if settings.output is not None and (is_folder(settings.output) or is_file(settings.output)):
        raise FileError("file-exists", f"{settings.output.name} exists already", where=settings.output)
    if settings.output is None and own is None:
        found = f"{path.name} is a {kind}, and the output folder is not set"
        raise ConfigError("config-missing", found, expected="--output FOLDER")
    folder = settings.output or run.eval / settings.name
    named = settings.recognizer or (own.evaluate.recognizer if own else None)

    # Everything that can be refused is opened before the first sentence is spoken, which takes minutes.
    base = open_base_model(place)
    if kind == "run":
        after = open_run_model(place, run, graft, settings.variant, settings.step)
    elif kind == "graft":
        after = open_grafted_model(place, load_graft(path))
    elif kind == "merged":
        after = open_merged_model(place, path)
    else:
        after = open_checkpoint_model(place, path, settings.language)
    new_language = after.text_encoder.language
    ear = open_transcriber(named, new_language)
    sets = _load_sentence_sets(settings, place.languages(), new_language, run if own else None, own, held_out)
    originals = {language: read_sentence_recordings(one.sentences) for language, one in sets.items()}
    if settings.recordings and new_language is None:
        found = f"recordings are given, but {after.name} has no new language"
        raise ConfigError("evaluate-language", found, expected="--language")
    if settings.recordings:
        recordings = read_reference_recordings(settings.recordings, new_language or "")
        mark = score_recordings(recordings, ear, settings.seed)
    else:
        mark = score_recordings(originals.get(new_language or "", ()), ear, settings.seed, ORIGINAL_RECORDINGS_TITLE)
    clips = held_out.sets.get(new_language or "") or held_out.all_sets
    voices = choose_eval_voices(base, place.files, settings.voices, clips, held_out.min_prompt_seconds, settings.seed)
    sound = open_speech_renderer(place).restrict_to_voices([voice.clip for voice in voices])
    encoder = open_voice_encoder(base, place, voices)

    parts = (base, after, sets, voices, sound, ear, encoder, held_out, settings.seed, settings.players, originals)
    evaluation = Evaluator(*parts).run()
    order = evaluation.languages
    marks = [
        score_codec_clips(held_out.sets.get(language, ()), language, sound, ear, sets, settings.seed)
        for language in order
    ]
    # Marks come behind the rows of their language.
    rows = [*evaluation.rows, *filter(None, [*marks, mark])]
    evaluation.rows = sorted(rows, key=lambda row: order.index(row.language))
    points = build_checklist(evaluation, after)

    listener = ear.listener
    card = (path if own is None else run.graft) / GRAFT_CARD
    is_graft = after.checkpoint is None and settings.step is None and is_file(card)
    about: dict[str, Any] = {
        "name": settings.name,
        "subject": {
            "kind": kind,
            "path": str(path.resolve()),
            "title": path.resolve().name,
            "family": place.family.name,
            "system": after.name,
            "mode": after.mode,
            "step": after.step,
            "label": after.label,
            "pronunciations": dict(after.text_encoder.rules.pronunciations),
            "keeps_base": after.keeps_base,
            "checkpoint_sha256": None if after.checkpoint is None else compute_sha256(after.checkpoint),
            # The card has the hashes of all parts of the graft. None where something else was evaluated.
            "graft_sha256": compute_sha256(card) if is_graft else None,
        },
        "base": str(place.files.folder.resolve()),
        "base_sha256": compute_sha256(place.files.checkpoint),
        "listener": {
            "name": None if listener is None or sound.vocoder is None else listener.name,
            "languages": None if listener is None or listener.languages is None else sorted(listener.languages),
            "why": sound.why or (ear.why_unsupported(new_language) if new_language else ear.why),
            "how": "to measure errors, add a recognizer: `pip install faster-whisper`, then "
            f"`voxgraft evaluate {shlex.quote(str(settings.model))} --recognizer whisper:small` (or whisper:FOLDER), "
            "or any program that prints a transcript: `--recognizer 'command:PROGRAM {wav}'`",
            "named": named,
        },
        "sentences": {},
        "voices": [voice.name for voice in voices],
        "sampling": asdict(place.family.stock_sampling()),
        "seed": settings.seed,
        "device": place.device,
        "dtype": str(place.dtype).removeprefix("torch."),
        "versions": {"voxgraft": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    for language, one in sets.items():
        # Whether sentences were in the training texts, as far as that is known.
        texts: Sequence[str] | str = "the training data of the base is not known"
        if own is not None and language == new_language:
            texts = load_training_texts(run, own)
        about["sentences"][language] = {
            "source": one.source,
            "sha256": one.sha256,
            "count": len(one.sentences),
            "rare": sum(bool(sentence.rare) for sentence in one.sentences),
            **({"training": texts} if isinstance(texts, str) else find_training_overlap(one, texts)),
        }
    document = build_scores_json(about, evaluation, points)
    with atomic_write_folder(folder) as new:
        write_json(new / SCORES_NAME, document)
        write_text(new / EVALUATION_REPORT_NAME, render_report(document, evaluation, points, history))
    # Only a model that promises to keep the base breaks a promise: others may change it.
    broken = after.keeps_base and summarize_retention(evaluation) == "not equal"
    return EvaluateResult(folder, document, evaluation, tuple(points), 1 if broken else 0)


def _load_sentence_sets(
    settings: EvaluateSettings,
    spoken: Sequence[str],
    new: str | None,
    run: RunFolder | None,
    own: RunSettings | None,
    held_out: HeldOutData,
) -> dict[str, SentenceSet]:
    """Of the new language, and of the base languages that are requested or that have sentences."""
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
    if new is not None and new not in sets and run is not None and own is not None:
        # Held-out texts of the run's own data, with their recordings where the manifest names them.
        manifest = resolve_manifest_path(own.data.dataset, run.data)
        found = load_manifest_sentences(manifest, new) if is_file(manifest) else None
        found = found or build_text_sentences(collect_texts(held_out.sets.get(new, ())), new)
        if found is not None:
            sets = {new: found.spread(settings.max_sentences), **sets}
    if new is not None and new not in sets:
        missing = f"no sentences in {new}: no built-in ones, and no held-out texts in the dataset"
        raise ConfigError("sentences-missing", missing, expected=f"--sentences {new}.txt", where=settings.model)
    if not sets:
        missing = "no sentences in any language of the base"
        raise GraftError("sentences-missing", missing, where=settings.model)
    return sets
