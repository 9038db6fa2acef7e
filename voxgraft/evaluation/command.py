"""The commands `evaluate` and `compare`.

`evaluate` opens a run, graft or checkpoint, compares it with its base, and writes scores.json and a report, or a blind
listening test. `compare`
draws several evaluated runs in one picture: what they learned (x) against what it cost (y).
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from voxgraft import __version__
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import (
    LISTENING_BASE,
    LISTENING_RECORDINGS,
    CompareSettings,
    ComparisonMetric,
    EvaluateSettings,
)
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, FileError, GraftError
from voxgraft.core.files import (
    atomic_write,
    atomic_write_folder,
    compute_sha256,
    is_file,
    is_folder,
    require_folder,
    require_output_path,
    write_json,
    write_text,
)
from voxgraft.core.languages import is_same_language
from voxgraft.core.results import Line, Table, style_line
from voxgraft.core.run import RUN_FILE, History, RunFolder, RunJournal
from voxgraft.data.manifest import resolve_manifest_path
from voxgraft.dataset.run_data import NO_RUN_REASON, HeldOutData, open_held_out_data
from voxgraft.evaluation.in_training import collect_texts
from voxgraft.evaluation.judge import (
    ORIGINAL_RECORDINGS_TITLE,
    WHO_AFTER,
    Evaluation,
    Evaluator,
    open_voice_encoder,
    score_codec_clips,
    score_recordings,
)
from voxgraft.evaluation.listening import ListeningTestResult, write_listening_test
from voxgraft.evaluation.report import (
    SCORES_NAME,
    ChecklistItem,
    build_checklist,
    build_scores_json,
    find_worst_change,
    is_unreached_goal,
    read_scores,
    render_report,
    summarize_retention,
)
from voxgraft.evaluation.scores import (
    SCORE_MEASURES,
    ReferenceRecording,
    Score,
    SpeechRenderer,
    Transcriber,
    choose_eval_voices,
    format_score,
    measure_title,
    open_speech_renderer,
    open_transcriber,
    read_reference_recordings,
    read_sentence_recordings,
    tabulate_scores,
)
from voxgraft.evaluation.sentences import (
    SentenceSet,
    build_text_sentences,
    find_training_overlap,
    load_manifest_sentences,
    load_sentence_sets,
    load_training_texts,
)
from voxgraft.graft.folder import GRAFT_CARD_NAME as GRAFT_CARD
from voxgraft.graft.folder import MERGED_CARD_NAME, load_graft, require_graft_language
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
from voxgraft.synthesis.inputs import ReferenceVoice, add_recordings
from voxgraft.training.plots import (
    COLORS,
    DOTS_PER_INCH,
    IMAGE_FORMATS,
    MUTED_COLOR,
    TEXT_COLOR,
    ImageFormat,
    make_text_renderable,
    plot_style,
    render_figure,
)

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
        evaluation = self.evaluation
        columns, rows = tabulate_scores(evaluation.rows)
        lines: list[Line] = [Table(tuple(columns), tuple(rows))]
        recognizer = self.document["listener"]
        if recognizer["name"] is not None:
            lines.append(f"recognizer: {recognizer['name']}; 95 % confidence intervals are in {SCORES_NAME}")
        if recognizer["why"]:
            why = (f"no recognizer for {self.document['language'] or 'these languages'}: ", "bold")
            lines += [style_line(why, str(recognizer["why"])), str(recognizer["how"])]
        word = summarize_retention(evaluation)
        style = {"equal": "bold green", "not equal": "bold red"}.get(word, "bold")
        names = ", ".join(retention.language for retention in evaluation.kept) or "no language"
        row = evaluation.row(evaluation.kept[0].language, WHO_AFTER) if evaluation.kept else None
        with_what = f" with and without {row.title}" if row else ""
        lines.append(style_line(f"base speech logits{with_what} ({names}): ", (word, style)))
        for point in self.points:
            mark = GOAL_MARK if is_unreached_goal(point) else ANSWER_MARKS[point.answer]
            lines.append(style_line(mark, f" {point.question} {point.found}"))
        return [*lines, f"scores: {self.folder / SCORES_NAME}", f"report: {self.folder / EVALUATION_REPORT_NAME}"]


@dataclass(frozen=True, slots=True)
class EvaluationSubject:
    """What is evaluated, opened: the base, the model, sentences, voices and sound."""

    path: Path
    kind: str
    """run, graft, merged or checkpoint."""
    run: RunFolder
    run_settings: RunSettings | None
    context: ModelContext
    held_out: HeldOutData
    base: SpeakingModel
    after: SpeakingModel
    sets: dict[str, SentenceSet]
    originals: dict[str, list[ReferenceRecording]]
    voices: list[ReferenceVoice]
    sound: SpeechRenderer
    transcriber: Transcriber
    folder: Path
    """Of the results; it is not created yet."""


def evaluate(settings: EvaluateSettings) -> EvaluateResult | ListeningTestResult:
    """Compare a run, a graft, a merged model or a checkpoint with its base, by measurements or in a listening test."""
    if settings.listening_against != LISTENING_BASE and not settings.listening_test:
        found = "--listening-against is given without --listening-test"
        raise ConfigError("config-value", found, expected="both flags for a listening test, neither flag for scores")
    if settings.listening_test and settings.recordings:
        found, expected = (
            "--recordings cannot be used for a listening test",
            f"--listening-against {settings.recordings}",
        )
        raise ConfigError("config-value", found, expected=expected, cure="give the folder as --listening-against.")
    return create_listening_test(settings) if settings.listening_test else score_model(settings)


def _open_subject(settings: EvaluateSettings) -> EvaluationSubject:
    """Open everything that can be refused before the first sentence is spoken, which takes minutes."""
    path = require_folder(settings.model)
    run = RunFolder(path)
    run_settings: RunSettings | None = None
    if is_file(run.settings):
        run_settings = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    elif settings.variant is not None or settings.step is not None:
        found = f"--variant or --step is given, but {path.name} is not a run"
        raise ConfigError("config-value", found, expected="a run", where=path)
    base_folder, family = (
        settings.base or (run_settings.base if run_settings else None),
        settings.family or (run_settings.family if run_settings else None),
    )
    if base_folder is None:
        cure = "give the base to compare with: --base FOLDER."
        raise ConfigError(
            "config-missing", "`base` is not given", where=run.settings if run_settings else path, cure=cure
        )
    context = open_model_context(base_folder, family, settings.device, settings.precision)
    held_out = HeldOutData(why={"": NO_RUN_REASON}, seed=settings.seed)
    if run_settings is not None:
        kind, graft = "run", load_graft(run.graft)
        require_graft_language(graft, run_settings.language)
        held_out = open_held_out_data(run, run_settings, context.family, context.files, graft)
    else:
        kind = _detect_kind(path)
    if settings.output is not None and (is_folder(settings.output) or is_file(settings.output)):
        cure = "choose another folder with --output."
        raise FileError("file-exists", f"{settings.output.name} exists already", where=settings.output, cure=cure)
    if settings.output is None and run_settings is None:
        found = f"{path.name} is a {kind}, and the output folder is not set"
        raise ConfigError("config-missing", found, expected="--output FOLDER")
    name = f"{settings.name}-listening" if settings.listening_test else settings.name
    folder = settings.output or run.eval / name
    if settings.listening_test and is_folder(folder):
        # Answers that people still send are worthless without its key.
        cure = "choose another --name, or move that folder."
        raise FileError("file-exists", f"{folder.name} has a listening test already", where=folder, cure=cure)

    base = open_base_model(context)
    if kind == "run":
        after = open_run_model(context, run, graft, settings.variant, settings.step)
    else:
        after = _open_model(context, kind, path, settings.language)
    new_language = after.text_encoder.language
    if kind != "checkpoint" and settings.language and not is_same_language(settings.language, new_language or ""):
        found = (
            f"--language is {settings.language}, but {path.name} is a {kind} for {new_language or 'no new language'}"
        )
        cure = "leave --language out: it is for checkpoints that do not state their language."
        raise ConfigError("evaluate-language", found, expected=new_language or "", where=path, cure=cure)
    transcriber = Transcriber(None, "people listen")
    if not settings.listening_test:
        name = "--recognizer" if settings.recognizer else "evaluate.recognizer"
        transcriber = open_transcriber(_recognizer_setting(settings, run_settings), new_language, name=name)
    sets = _load_sentence_sets(
        settings, context.languages(), new_language, run if run_settings else None, run_settings, held_out
    )
    for sentence_set in sets.values():
        for sentence in sentence_set.sentences:
            after.text_encoder.require_spans(sentence.text, sentence_set.source)
    originals = {language: read_sentence_recordings(sentence_set.sentences) for language, sentence_set in sets.items()}
    clips = held_out.sets.get(new_language or "") or held_out.all_sets
    voices = choose_eval_voices(base, context.files, settings.voices, clips, held_out.min_prompt_seconds, settings.seed)
    sound = open_speech_renderer(context)
    voices = add_recordings(voices, held_out.recordings, sound.vocoder)
    sound = sound.restrict_to_voices([voice.clip for voice in voices])
    parts = (path, kind, run, run_settings, context, held_out, base, after, sets, originals, voices, sound, transcriber)
    return EvaluationSubject(*parts, folder)


def _detect_kind(path: Path) -> str:
    """Of a model's folder that is no run: graft, merged or checkpoint."""
    cards = {"graft": GRAFT_CARD, "merged": MERGED_CARD_NAME}
    return next((kind for kind, name in cards.items() if is_file(path / name)), "checkpoint")


def _open_model(context: ModelContext, kind: str, path: Path, language: str | None) -> SpeakingModel:
    """A model that is no run."""
    if kind == "graft":
        return open_grafted_model(context, load_graft(path))
    if kind == "merged":
        return open_merged_model(context, path)
    return open_checkpoint_model(context, path, language)


def _recognizer_setting(settings: EvaluateSettings, run_settings: RunSettings | None) -> str | None:
    return settings.recognizer or (run_settings.evaluate.recognizer if run_settings else None)


def create_listening_test(settings: EvaluateSettings) -> ListeningTestResult:
    """Write a blind page on which people compare the model with its base, another model or recordings."""
    subject = _open_subject(settings)
    other: SpeakingModel | Path | None = subject.base
    if settings.listening_against == LISTENING_RECORDINGS:
        other = None
    elif settings.listening_against != LISTENING_BASE:
        path = require_folder(Path(settings.listening_against))
        if is_file(RunFolder(path).settings):
            other = open_run_model(subject.context, RunFolder(path), load_graft(RunFolder(path).graft), None, None)
        elif _detect_kind(path) == "checkpoint" and any(path.glob("*.txt")):
            other = path
        else:
            other = _open_model(subject.context, _detect_kind(path), path, settings.language)
    return write_listening_test(
        subject.folder,
        subject.after,
        other,
        subject.sets,
        subject.originals,
        subject.voices,
        subject.sound,
        pairs=settings.listening_pairs,
        seed=settings.seed,
    )


def score_model(settings: EvaluateSettings) -> EvaluateResult:
    """Measure a run, a graft, a merged model or a checkpoint against its base, and write the report."""
    subject = _open_subject(settings)
    path, kind, run, run_settings = subject.path, subject.kind, subject.run, subject.run_settings
    context, base, after, held_out = subject.context, subject.base, subject.after, subject.held_out
    sets, originals, voices, sound = subject.sets, subject.originals, subject.voices, subject.sound
    transcriber, folder = subject.transcriber, subject.folder
    named = _recognizer_setting(settings, run_settings)
    new_language = after.text_encoder.language
    journal = RunJournal(run.journal).read() if run_settings is not None else []
    history = History.of(journal) if journal else None
    if settings.recordings and new_language is None:
        found = f"--recordings is given, but {after.name} has no new language"
        raise ConfigError("evaluate-language", found, expected="--language")
    if settings.recordings:
        recordings = read_reference_recordings(settings.recordings, new_language or "")
        mark = score_recordings(recordings, transcriber, settings.seed)
    else:
        mark = score_recordings(
            originals.get(new_language or "", ()), transcriber, settings.seed, ORIGINAL_RECORDINGS_TITLE
        )
    encoder = open_voice_encoder(base, context, voices)

    parts = (base, after, sets, voices, sound, transcriber, encoder, held_out)
    evaluation = Evaluator(*parts, settings.seed, settings.players, originals).run()
    order = evaluation.languages
    marks = [
        score_codec_clips(held_out.sets.get(language, ()), language, sound, transcriber, sets, settings.seed)
        for language in order
    ]
    # Marks come behind the rows of their language.
    rows = [*evaluation.rows, *filter(None, [*marks, mark])]
    evaluation.rows = sorted(rows, key=lambda row: order.index(row.language))
    points = build_checklist(evaluation, after)

    recognizer = transcriber.recognizer
    card = (path if run_settings is None else run.graft) / GRAFT_CARD
    is_graft = after.checkpoint is None and settings.step is None and is_file(card)
    about: dict[str, Any] = {
        "name": settings.name,
        "subject": {
            "kind": kind,
            "path": str(path.resolve()),
            "title": path.resolve().name,
            "family": context.family.name,
            "system": after.name,
            "mode": after.mode,
            "step": after.step,
            "label": after.label,
            "pronunciations": dict(after.text_encoder.rules.pronunciations),
            "text_rules": after.text_encoder.rules.identity,
            "keeps_base": after.keeps_base,
            "checkpoint_sha256": None if after.checkpoint is None else compute_sha256(after.checkpoint),
            # The card has the hashes of all parts of the graft. None where something else was evaluated.
            "graft_sha256": compute_sha256(card) if is_graft else None,
        },
        "base": str(context.files.folder.resolve()),
        "base_sha256": compute_sha256(context.files.checkpoint),
        "listener": {
            "name": None if recognizer is None or sound.vocoder is None else recognizer.name,
            "languages": None if recognizer is None or recognizer.languages is None else sorted(recognizer.languages),
            "why": sound.why or (transcriber.why_unsupported(new_language) if new_language else transcriber.why),
            "how": "to measure errors, add a recognizer: `pip install faster-whisper`, then "
            f"`voxgraft evaluate {shlex.quote(str(settings.model))} --recognizer whisper:small` (or whisper:FOLDER), "
            "or any program that prints a transcript: `--recognizer 'command:PROGRAM {wav}'`",
            "named": named,
        },
        "sentences": {},
        "voices": [voice.name for voice in voices],
        "sampling": asdict(context.family.upstream_sampling()),
        "seed": settings.seed,
        "device": context.device,
        "dtype": str(context.dtype).removeprefix("torch."),
        "versions": {"voxgraft": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    for language, sentence_set in sets.items():
        # Whether sentences were in the training texts, as far as that is known.
        texts: Sequence[str] | str = "the training data of the base is not known"
        if run_settings is not None and language == new_language:
            texts = load_training_texts(run, run_settings)
        about["sentences"][language] = {
            "source": sentence_set.source,
            "sha256": sentence_set.sha256,
            "count": len(sentence_set.sentences),
            "rare": sum(bool(sentence.rare) for sentence in sentence_set.sentences),
            **({"training": texts} if isinstance(texts, str) else find_training_overlap(sentence_set, texts)),
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
    base_languages: Sequence[str],
    new: str | None,
    run: RunFolder | None,
    run_settings: RunSettings | None,
    held_out: HeldOutData,
) -> dict[str, SentenceSet]:
    """Of the new language, and of the base languages that are requested or that have sentences."""
    if unknown := [name for name in settings.languages if name not in base_languages or name == new]:
        known = ", ".join(base_languages)
        raise ConfigError(
            "evaluate-language",
            f"the base does not speak {', '.join(unknown)} (given with --languages)",
            expected=f"some of {known}",
        )
    named = {path.stem for path in settings.sentences}
    old_languages = [
        name
        for name in base_languages
        if name != new and (not settings.languages or name in settings.languages or name in named)
    ]
    sets = load_sentence_sets([*([new] if new else []), *old_languages], settings.sentences, settings.max_sentences)
    # A comparison with people's recordings needs sentences that somebody has recorded; the built-in ones are not.
    is_recorded = settings.listening_test and settings.listening_against == LISTENING_RECORDINGS and new not in named
    is_missing = new not in sets or is_recorded
    if new is not None and is_missing and run is not None and run_settings is not None:
        # Held-out texts of the run's own data, with their recordings where the manifest names them.
        manifest = resolve_manifest_path(run_settings.data.dataset, run.data)
        found = load_manifest_sentences(manifest, new) if is_file(manifest) else None
        found = found or build_text_sentences(collect_texts(held_out.sets.get(new, ())), new)
        if found is not None:
            sets.pop(new, None)
            sets = {new: found.spread(settings.max_sentences), **sets}
    if new is not None and new not in sets:
        missing = f"there are no built-in sentences in {new!r}, and no held-out texts in the dataset"
        raise ConfigError("sentences-missing", missing, expected=f"--sentences {new}.txt", where=settings.model)
    if not sets:
        missing = "there are no sentences in any language of the base"
        raise GraftError("sentences-missing", missing, where=settings.model)
    return sets


# ---- compare ---------------------------------------------------------------------------------------------------------

PREFERRED_METRICS: tuple[ComparisonMetric, ...] = ("phone_error", "cer", "speech_loss")
MODE_MARKERS = {"gated": "o", "merged": "D", "masked-finetune": "X", "rows-only": "s", "checkpoint": "^"}
MODE_STYLES = {mode: (marker, COLORS[at]) for at, (mode, marker) in enumerate(MODE_MARKERS.items())}
OTHER_MODE_STYLE = ("o", TEXT_COLOR)
FIGURE_INCHES = (8.6, 5.6)
FIGURE_MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.115, "top": 0.93}
# Per cent: a log scale has no zero, so smaller errors are drawn here.
MIN_X = 0.5
X_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
Y_TICKS = (-100, -10, -1, 0, 1, 2, 5, 10, 20, 50, 100, 200)
# Points up to which the y scale is linear: smaller differences are chance.
Y_LINEAR_LIMIT = 1.0
# Approximate size of a label and a dot at DOTS_PER_INCH.
LABEL_CHARACTER_PIXELS, LABEL_LINE_PIXELS, MARKER_PIXELS = 8.6, 17.0, 8.0
LABEL_RADII = (14, 24, 36, 50, 66, 84, 104, 126, 150)
# Left, bottom, right and top, in pixels.
Box = tuple[float, float, float, float]
# One run: its name, its error in the new language, the worst change of an old one, and the way it was trained.
ComparisonPoint = tuple[str, Score, tuple[str, float] | None, str]


def draw_comparison(
    dots: Sequence[ComparisonPoint], measure: str, differing: Sequence[str] = ()
) -> Mapping[ImageFormat, bytes]:
    """The picture in both formats: the same dots give the same bytes.

    Notes below it name runs without a number, and conditions that differ between runs.
    """
    title, form, _ = SCORE_MEASURES[measure]
    percent = form == "percent"
    factor, unit = (100.0, "%") if percent else (1.0, "nats")

    def across(value: float) -> float:
        return max(factor * value, MIN_X) if percent else value

    left_out = [name for name, error, worst, _ in dots if error.value is None or worst is None]
    with plot_style():
        figure = Figure(figsize=FIGURE_INCHES, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        figure.subplots_adjust(**FIGURE_MARGINS)
        names, positions, modes = [], [], []
        for name, error, worst, mode in dots:
            if error.value is None or worst is None:
                continue
            x, y, (marker, color) = across(error.value), factor * worst[1], MODE_STYLES.get(mode, OTHER_MODE_STYLE)
            if error.low is not None and error.high is not None:
                axes.plot([across(error.low), across(error.high)], [y, y], color=color, linewidth=1.2, alpha=0.45)
            axes.plot([x], [y], marker, color=color, markersize=8, zorder=3, clip_on=False)
            # Letters that no font has are romanized first: labels are placed by the length that is drawn.
            names.append(make_text_renderable(name))
            positions.append((x, y))
            modes.append(mode)
        axes.set_title("Best: lower left. The new language is spoken, and nothing is lost.")
        axes.set_xlabel(f"{title} in the new language, {unit}")
        axes.set_ylabel(f"worst change of an old language, {'points' if percent else 'nats'}")
        axes.axhline(0, color=MUTED_COLOR, linewidth=1, zorder=1)
        if percent:
            left, right = axes.get_xlim()
            low, high = min((y for _, y in positions), default=0.0), max((y for _, y in positions), default=0.0)
            axes.set_xscale("log")
            axes.set_yscale("symlog", linthresh=Y_LINEAR_LIMIT, linscale=0.6)
            axes.set_xlim(MIN_X if left < 1 else max(MIN_X, 0.7 * left), max(right, 10))
            axes.set_ylim(min(1.5 * low, -0.8 * Y_LINEAR_LIMIT), max(1.5 * high, 5 * Y_LINEAR_LIMIT))
            axes.xaxis.set_major_locator(FixedLocator(X_TICKS))
            axes.yaxis.set_major_locator(FixedLocator(Y_TICKS))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
        for mode in dict.fromkeys(modes):
            marker, color = MODE_STYLES.get(mode, OTHER_MODE_STYLE)
            axes.plot([], [], marker, color=color, label=mode)
        if names:
            axes.legend(loc="upper right")
        place_labels(axes, names, positions)
        notes = [f"not measured: {', '.join(left_out)}"] if left_out else []
        notes += [f"different between runs: {', '.join(differing)}"] if differing else []
        if notes:
            figure.text(0.01, 0.012, "; ".join(notes), fontsize=8, color=MUTED_COLOR)
        return render_figure(figure)


def place_labels(axes: Axes, names: Sequence[str], places: Sequence[tuple[float, float]]) -> None:
    """Names beside their dots, each at the nearest place where it covers neither a dot nor another name."""
    pixels = [tuple(map(float, axes.transData.transform(position))) for position in places]
    axes_box = axes.get_window_extent()
    taken: list[Box] = [(x - MARKER_PIXELS, y - MARKER_PIXELS, x + MARKER_PIXELS, y + MARKER_PIXELS) for x, y in pixels]
    to_points = 72 / DOTS_PER_INCH
    for name, position, (x, y) in zip(names, places, pixels, strict=True):
        width, candidates = LABEL_CHARACTER_PIXELS * len(name), []
        for radius, (side, rise) in product(LABEL_RADII, ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0))):
            x_offset, y_offset = side * (radius if rise == 0 else max(8.0, 0.5 * radius)), rise * radius
            left = x + x_offset if side > 0 else x + x_offset - width
            bottom, right, top = (
                y + y_offset - LABEL_LINE_PIXELS / 2,
                left + width,
                y + y_offset + LABEL_LINE_PIXELS / 2,
            )
            candidates.append((x_offset, y_offset, (left, bottom, right, top)))
            inside = left > axes_box.x0 and right < axes_box.x1 and bottom > axes_box.y0 and top < axes_box.y1
            if inside and not any(
                left < other[2] and other[0] < right and bottom < other[3] and other[1] < top for other in taken
            ):
                break
        else:
            candidates.append(candidates[0])  # all are covered: the nearest
        x_offset, y_offset, box = candidates[-1]
        taken.append(box)
        arrow = (
            {"arrowstyle": "-", "color": MUTED_COLOR, "linewidth": 0.7, "shrinkB": 3}
            if abs(y_offset) > LABEL_RADII[0]
            else None
        )
        axes.annotate(
            name,
            position,
            xytext=(x_offset * to_points, y_offset * to_points),
            textcoords="offset points",
            fontsize=8,
            color=TEXT_COLOR,
            ha="left" if x_offset >= 0 else "right",
            va="center",
            arrowprops=arrow,
        )


@dataclass(frozen=True, slots=True)
class CompareResult:
    """The picture and its table."""

    measure: str
    runs: dict[str, dict[str, Any]]
    """By name: error, worst change of an old language, and what was measured how."""
    files: tuple[Path, ...]
    differing: list[str]
    """Conditions that are not the same in all runs: their errors were not measured alike."""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        files = [str(path) for path in self.files]
        return {"measure": self.measure, "differing": self.differing, "runs": self.runs, "files": files}

    def lines(self) -> list[Line]:
        title = f"{measure_title(self.measure)}, new"
        columns = ("run", "mode", "step", title, "95 % interval", "most degraded old language", "change", "logits")
        rows = []
        for name, run in self.runs.items():
            error, step, change = Score.from_json(run["error"]), run["step"], run["worst_change"]
            ends = (format_score(self.measure, Score(value)) for value in (error.low, error.high))
            old = run["worst_language"] or "–"
            old += f" (not measured: {', '.join(run['not_measured'])})" if run["not_measured"] else ""
            points = "–"
            if change is not None:
                points = f"{change:+.3f}" if self.measure == "speech_loss" else f"{100 * change:+.1f} points"
            interval = "–" if error.low is None else " to ".join(ends)
            steps = f"{step:,}" if isinstance(step, int) else "–"
            cells = (format_score(self.measure, error), interval, old, points, run["logits"])
            rows.append((name, run["mode"] or "–", steps, *cells))
        lines: list[Line] = [Table(columns, tuple(rows)), *(f"chart: {path}" for path in self.files)]
        for what in self.differing:
            by_run = "; ".join(f"{name}: {run['how'][what]}" for name, run in self.runs.items())
            lines.append(style_line((f"different {what} between runs: ", "bold red"), by_run))
        return lines


def compare(settings: CompareSettings) -> CompareResult:
    """Read every evaluation, and draw all that have the measure."""
    stem = settings.output.with_suffix("") if settings.output.suffix in (".png", ".svg") else settings.output
    files = tuple(stem.with_name(f"{stem.name}.{form}") for form in IMAGE_FORMATS)
    for path in files:
        require_output_path(path, overwrite=settings.overwrite)
    paths = _find_score_files(settings)
    found = {name: read_scores(path) for name, path in paths.items()}
    # The first measure that every evaluation has of its new language; of none, the one that most have.
    counts = {
        name: sum(one.score(one.language or "", WHO_AFTER, name).value is not None for one, _, _ in found.values())
        for name in PREFERRED_METRICS
    }
    common = max(PREFERRED_METRICS, key=lambda name: (counts[name], -PREFERRED_METRICS.index(name)))
    measure = settings.measure or common
    runs: dict[str, dict[str, Any]] = {}
    dots: list[ComparisonPoint] = []
    for name, (scores, about, how) in found.items():
        error = scores.score(scores.language or "", WHO_AFTER, measure)
        worst, missing = find_worst_change(scores, measure)
        dots.append((name, error, worst, about.get("mode") or "?"))
        runs[name] = {
            "scores": str(paths[name]),
            "mode": about.get("mode"),
            "step": about.get("step"),
            "language": scores.language,
            "error": error.to_json(),
            "worst_language": worst[0] if worst else None,
            "worst_change": worst[1] if worst else None,
            "not_measured": missing,
            "how": how,
            "logits": summarize_retention(scores),
        }
    if not any(error.value is not None for _, error, _, _ in dots):
        tried = ", ".join(f"{name}: {error.why}" for name, error, _, _ in dots[:4])
        raise ConfigError("compare-nothing", f"no evaluation has {measure_title(measure)} for a new language ({tried})")
    conditions = [how for _, _, how in found.values()]
    differing = [what for what in conditions[0] if len({how[what] for how in conditions}) > 1]
    pictures = draw_comparison(dots, measure, differing)
    for path, form in zip(files, IMAGE_FORMATS, strict=True):
        with atomic_write(path, overwrite=settings.overwrite) as stream:
            stream.write(pictures[form])
    return CompareResult(measure, runs, files, differing)


def _find_score_files(settings: CompareSettings) -> dict[str, Path]:
    """Every scores.json by the name of its run; where two have one name, by their paths."""
    entries: list[tuple[str, Path, Path]] = []
    for path in settings.runs:
        if is_file(path):
            entries.append((path.resolve().parent.name, path, path))
        elif is_file(require_folder(path) / SCORES_NAME):
            entries.append((path.resolve().name, path, path / SCORES_NAME))
        else:
            evaluations = RunFolder(path).eval
            scores = evaluations / settings.name / SCORES_NAME
            if not is_file(scores):
                existing = [folder.name for folder in sorted(evaluations.iterdir())] if is_folder(evaluations) else []
                expected = f"one of its evaluations: {', '.join(existing)}" if existing else ""
                cure = f"evaluate it first: `voxgraft evaluate {shlex.quote(str(path))}`."
                if not is_file(path / RUN_FILE):
                    cure = "give folders of runs, folders of evaluations, or scores.json files."
                found = f"{path} has no evaluation {settings.name!r}"
                raise ConfigError("compare-nothing", found, expected=expected, where=path, cure=cure)
            entries.append((path.resolve().name, path, scores))
    given = [scores.resolve() for _, _, scores in entries]
    if duplicate := next(
        (str(path) for path, scores in zip(settings.runs, given, strict=True) if given.count(scores) > 1), ""
    ):
        raise ConfigError(
            "config-value", f"the evaluation of {duplicate} is given more than once", expected="each evaluation once"
        )
    names = [name for name, _, _ in entries]
    return {name if names.count(name) == 1 else str(given): scores for name, given, scores in entries}
