"""The command `demo`: Amharic grafted onto a base that speaks English and French, with the commands that all use.

With --mistake it repeats a mistake that people have made, on purpose and with the commands' own settings: what happens,
and which findings report it. A refusal is a result. Nothing is switched off that a user could not switch off.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxgraft.config.base import deep_merge
from voxgraft.config.commands import (
    CheckSettings,
    DemoMistake,
    DemoSettings,
    EvaluateSettings,
    ExportSettings,
    GraftSettings,
    NewSettings,
    TrainCommandSettings,
)
from voxgraft.config.run import TokenizerSettings, load_command_settings, rewrite_run_yaml
from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding, VoxgraftError
from voxgraft.core.files import build_write_error, is_file, is_folder, path_exists, read_json, write_json, write_text
from voxgraft.core.results import LEVEL_STYLES, Line, Table, TableCell, format_duration, style_line
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.sets import write_clip_dataset
from voxgraft.demo.data import (
    DEMO_LANGUAGE,
    RECORDINGS_FOLDER,
    SILENCE_METADATA_KEY,
    DemoSetWriter,
    load_bundled_clips,
    read_codes_metadata,
)
from voxgraft.evaluation.command import EVALUATION_REPORT_NAME, EvaluateResult, score_model
from voxgraft.evaluation.judge import WHO_AFTER, WHO_BEFORE, WHO_CODEC, WHO_RECORDINGS, WHO_SHUFFLED
from voxgraft.evaluation.report import format_with_interval, summarize_retention
from voxgraft.evaluation.scores import measure_title
from voxgraft.export.command import export
from voxgraft.graft.command import GraftResult, graft
from voxgraft.graft.folder import ADAPTER_NAME, BASELINE_FOLDER_NAME, MERGED_FOLDER_NAME, load_graft
from voxgraft.inspect.check import CheckResult, check
from voxgraft.models import get_family
from voxgraft.models.speech_model import load_model
from voxgraft.nn.adapter import read_peft_folder
from voxgraft.pipeline.command import create_run
from voxgraft.pipeline.train import TrainResult, train
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.setup import build_training_setup
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, make_trainable

DEMO_ERROR_MEASURE = "phone_error"
WORD_KINDS = {"_common": " (words in training)", "_rare": " (new words)"}
REPORTED_MEASURES = (DEMO_ERROR_MEASURE, *(DEMO_ERROR_MEASURE + kind for kind in WORD_KINDS), "cer", "runaway", "cut")
REFERENCE_LABELS = {
    WHO_SHUFFLED: "control: the same speech compared with other sentences",
    WHO_RECORDINGS: "reference: the recognizer's own error on recordings",
    WHO_CODEC: "reference: the recognizer's own error on held-out clips",
}
MAX_FINDING_CHARACTERS = 110
_MARKER_NAME = "made-by-voxgraft-demo"
# Enough to lose a language.
MISTAKE_STEPS = 120
WHEN_BEFORE_TRAINING, WHEN_TRAIN_REFUSES, WHEN_TRAINING, WHEN_OUTPUT_CHECKED = (
    "before training",
    "train refuses",
    "while training",
    "in its output",
)
# A rise of the loss, as a share, that is never reached.
UNLIMITED_RETENTION_BOUND = 100.0
# Clips that were prepared at once, and padded to the longest of them.
PADDED_BATCH_SIZE = 16


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The outcome. It fails if a promise is broken or was not measured, or if a mistake was not reported."""

    folder: Path
    seconds: Mapping[str, float]
    added: Mapping[str, str]
    """What was added to the base, in words."""
    evaluated: EvaluateResult | None
    mistake: MistakeReport | None = None
    """Of a mistake."""

    @property
    def exit_code(self) -> int:
        if self.mistake is not None:
            return 0 if self.mistake.is_caught else 1
        is_retained = self.evaluated is not None and summarize_retention(self.evaluated.evaluation) == "equal"
        return 0 if is_retained else 1

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "folder": str(self.folder),
            "seconds": dict(self.seconds),
            "added": dict(self.added),
            "mistake": self.mistake.to_json() if self.mistake else None,
        }
        if self.evaluated is None:
            return document
        evaluation = self.evaluated.evaluation
        scores: dict[str, Any] = {language: {} for language in evaluation.languages}
        for row in evaluation.rows:
            known = {name: row.score(name).to_json() for name in REPORTED_MEASURES if name in row.scores}
            scores[row.language][row.who] = known
        return {
            **document,
            "languages": scores,
            "equal": {retention.language: retention.equal for retention in evaluation.kept},
            "base_values_changed": evaluation.change["changed"] if evaluation.change else None,
            "checklist": {point.name: point.answer for point in self.evaluated.points},
            "report": str(self.evaluated.folder / EVALUATION_REPORT_NAME),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.mistake is not None:
            rows = []
            for when, item in self.mistake.caught:
                first = item.found.splitlines()[0]
                if len(first) > MAX_FINDING_CHARACTERS or first != item.found:
                    first = f"{first[:MAX_FINDING_CHARACTERS].rstrip()} ..."
                rows.append((when, item.level, item.code, first))
            table = Table(("when", "level", "code", "found"), tuple(rows), "detected by")
            lines += [style_line((f"{self.mistake.name}: ", "bold"), self.mistake.about), table]
        if self.evaluated is not None:
            lines += format_evaluation(self.evaluated, self.added)
        if self.mistake is not None:
            lines += self.mistake.verdict()
        parts = ", ".join(f"{name} {value:.0f} s" for name, value in self.seconds.items() if value >= 0.5)
        return [*lines, f"took {format_duration(sum(self.seconds.values()))}: {parts}"]


def demo(settings: DemoSettings) -> DemoResult:
    """Run the whole story, or that of a mistake."""
    folder = settings.folder or Path(f"demo-{settings.mistake}" if settings.mistake else "demo")
    _recreate_demo_folder(folder)
    runner = DemoRunner(folder)
    if settings.mistake is not None:
        about, expected, make, is_evaluated = MISTAKES[settings.mistake]
        report = MistakeReport(settings.mistake, about, expected)
        runner.chapter(f"{report.name}: {report.about}")
        make(runner, settings, report)
        if is_evaluated:
            report.evaluated = runner.evaluate(settings.max_sentences, settings.seed)
        return DemoResult(folder, runner.seconds, {}, report.evaluated, report)
    runner.new(build_demo_settings(settings))
    # The same order as in the tutorial: each command finds what the one before has written.
    grafted = runner.graft()
    runner.prepare()
    if settings.minutes is not None and settings.steps is None:
        runner.choose_steps(settings.minutes)
    runner.check()
    runner.train()
    found = runner.evaluate(settings.max_sentences, settings.seed)
    runner.export()
    adapter = read_peft_folder(runner.run.graft / ADAPTER_NAME)
    num_values = sum(tensor.numel() for tensor in adapter.state.values())
    added = {"new rows": f"{grafted.counts.new_pieces:,}", "adapter": f"{num_values:,} values"}
    return DemoResult(folder, runner.seconds, added, found)


def _recreate_demo_folder(folder: Path) -> None:
    """Replace an earlier demonstration; any other folder is left alone.

    It is moved aside before it is removed: a process killed meanwhile leaves no half demonstration under the old name,
    and the next call removes the rest.
    """
    if folder.is_symlink():
        found, cure = f"{folder} is a link to {os.readlink(folder)}", "use the folder itself, or another one."
        raise FileError("file-exists", found, where=folder, cure=cure)
    aside = folder.absolute().with_name(f".{folder.absolute().name}.replaced-{_MARKER_NAME}")
    try:
        if path_exists(folder):
            if not is_file(folder / _MARKER_NAME):
                found, cure = f"{folder} exists already and is not a demo folder", "choose another folder."
                raise FileError("file-exists", found, where=folder, cure=cure)
            run = DemoRunner(folder).run
            with run.lock("demo") if is_folder(run.path) else nullcontext():  # it may be training at this moment
                if is_folder(aside):
                    shutil.rmtree(aside)
                folder.rename(aside)
        if is_folder(aside):
            shutil.rmtree(aside)
    except OSError as error:
        raise build_write_error(error, folder) from None
    write_text(folder / _MARKER_NAME, "Created by `voxgraft demo`, which replaces this folder.\n")


def format_evaluation(found: EvaluateResult, added: Mapping[str, str]) -> list[Line]:
    """The table of languages, and below it what was added and what the errors compare with."""
    evaluation = found.evaluation
    rows: list[tuple[TableCell, ...]] = []
    for language in evaluation.languages:
        scores = (evaluation.score(language, role, DEMO_ERROR_MEASURE) for role in (WHO_BEFORE, WHO_AFTER))
        errors = (format_with_interval(DEMO_ERROR_MEASURE, score) for score in scores)
        retention = next((item for item in evaluation.kept if item.language == language), None)
        logits: TableCell = ""
        if retention is not None and retention.equal is None:
            logits = retention.why
        elif retention is not None and retention.equal:
            logits = style_line(("equal", "bold green"), f" at all {retention.positions:,} positions")
        elif retention is not None:
            logits = style_line(("not equal", "bold red"), f", by up to {retention.largest_difference:.2g}")
        rows.append((f"{language}{' (new)' if language == evaluation.language else ''}", *errors, logits))
    table = Table(("language", "phone error before", "after", "speech logits of the base"), tuple(rows))
    facts: list[tuple[TableCell, ...]] = [*added.items()]
    # The new language's error by kinds of words, and what it compares with.
    new = evaluation.language or ""
    for kind, label in WORD_KINDS.items():
        score = evaluation.score(new, WHO_AFTER, DEMO_ERROR_MEASURE + kind)
        if score.value is not None:
            facts.append((f"phone error in {new}{label}", format_with_interval(DEMO_ERROR_MEASURE, score)))
    for role, label in REFERENCE_LABELS.items():
        known = [(name, evaluation.score(new, role, name)) for name in (DEMO_ERROR_MEASURE, "cer")]
        for name, score in [(name, score) for name, score in known if score.value is not None][:1]:
            facts.append((f"{label}, {measure_title(name)}", format_with_interval(name, score)))
    if (change := evaluation.change) is not None:
        values = f"{change['changed']:,} of {change['total']:,} values differ" if change["changed"] else "0"
        style = "bold red" if change["changed"] else "bold green"
        facts.append(("changed weights of the base", style_line((values, style))))
    return [table, Table(("what", "found"), tuple(facts)), f"report: {found.folder / EVALUATION_REPORT_NAME}"]


@dataclass
class MistakeReport:
    """The findings that reported a mistake, and the evaluation if it got that far."""

    name: str
    about: str
    expected: tuple[str, ...]
    """Codes of the findings that must report it."""
    caught: list[tuple[str, Finding]] = field(default_factory=list)
    not_refused_by: str = ""
    """A command that should have refused, and did not."""
    evaluated: EvaluateResult | None = None

    @property
    def is_caught(self) -> bool:
        return not self.not_refused_by and set(self.expected) <= {item.code for _, item in self.caught}

    def add(self, when: str, findings: Sequence[Finding]) -> None:
        """Add warnings and errors; notes only if they report the mistake."""
        known = {item.code for _, item in self.caught}
        relevant = (item for item in findings if item.level != "note" or item.code in self.expected)
        self.caught += [(when, item) for item in relevant if item.code not in known]

    def verdict(self) -> list[Line]:
        missing = [code for code in self.expected if code not in {item.code for _, item in self.caught}]
        if missing:
            return [style_line(("not detected: ", "bold red"), ", ".join(missing))]
        if self.not_refused_by:
            return [style_line(("not refused: ", "bold red"), self.not_refused_by)]
        first = next(when for when, item in self.caught if item.code in self.expected)
        return [style_line(("caught", "bold green"), f" by {', '.join(self.expected)}: {first}")]

    def to_json(self) -> dict[str, Any]:
        found = [{"when": when, **item.to_json()} for when, item in self.caught]
        return {"name": self.name, "caught": self.is_caught, "expected": list(self.expected), "findings": found}


def _train_unfrozen(runner: DemoRunner, settings: DemoSettings, report: MistakeReport) -> None:
    """The whole backbone at a high rate, and nothing of the old languages beside the new one."""
    train = {"mode": "merged", "full_backbone": True, "lr_backbone": 1e-3, "kl_weight": 0.0, "interpolate": [1.0]}
    _set_up_run(runner, settings, {"data": {"self_replay": 0}, "train": train})
    report.add(WHEN_BEFORE_TRAINING, runner.check().findings)
    runner.train()
    report.add(WHEN_TRAINING, runner.watched())
    runner.chapter("stopped by the bound; training again without it")
    runner.edit({"train": {"retention_bound": UNLIMITED_RETENTION_BOUND}})
    runner.train()
    _check_trained_output(runner, report, MERGED_FOLDER_NAME)


def _train_masked_rows(runner: DemoRunner, settings: DemoSettings, report: MistakeReport) -> None:
    """Everything at one rate, with a mask on the gradients of the base's text rows.

    Weight decay is ten times the usual, so that a hundred steps show what thousands do.
    """
    _set_up_run(runner, settings, {"train": {"lr_backbone": 1e-3, "weight_decay": 0.1}})
    report.add(WHEN_BEFORE_TRAINING, runner.check().findings)
    runner.train("--baseline masked-finetune", baseline="masked-finetune")
    report.add(WHEN_TRAINING, runner.watched())
    _check_trained_output(runner, report, BASELINE_FOLDER_NAME)


def _graft_without_letters(runner: DemoRunner, settings: DemoSettings, report: MistakeReport) -> None:
    """A merged tokenizer that has whole words of the new language, and no letters to spell the others with."""
    runner.new(build_demo_settings(settings))
    # The base's tokenizer file with whole words after its pieces, and nothing to put them together from.
    document = read_json(runner.files.tokenizer)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    words = dict.fromkeys(word for clip in load_bundled_clips("train", DEMO_LANGUAGE) for word in clip.text.split())
    size = max(max(vocabulary.values()) + 1, *(token["id"] + 1 for token in document["added_tokens"]))
    tag = {**document["added_tokens"][-1], "id": size, "content": f"[{DEMO_LANGUAGE}]"}
    document["added_tokens"].append(tag)
    for index, piece in enumerate([tag["content"], *(word for word in words if len(word) > 1)][:500]):
        vocabulary[piece] = size + index
    tokenizer_path = runner.folder / "words-only.json"
    write_json(tokenizer_path, document)
    runner.edit({"tokenizer": {"file": str(tokenizer_path.absolute())}})
    result = runner.graft()
    report.not_refused_by = "graft" if result.folder else ""
    report.add("graft refuses", result.proof.findings)
    report.add(WHEN_BEFORE_TRAINING, runner.check().findings)


def _use_wrong_tokenizer(runner: DemoRunner, settings: DemoSettings, report: MistakeReport) -> None:
    """Data that was prepared with a tokenizer of the same size, its new pieces in another order."""
    _set_up_run(runner, settings, {})
    writer, clips = runner.writer, load_bundled_clips("train", DEMO_LANGUAGE)
    # The extended tokenizer with its new pieces, except the tag, numbered backwards.
    document = read_json(writer.graft.tokenizer.path)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    added_tokens = {token["content"] for token in document["added_tokens"]}
    first = writer.graft.card.base_pieces
    new_pieces = sorted(
        (token_id, piece) for piece, token_id in vocabulary.items() if token_id >= first and piece not in added_tokens
    )
    for (token_id, _), (_, piece) in zip(new_pieces, reversed(new_pieces), strict=True):
        vocabulary[piece] = token_id
    tokenizer_path = runner.folder / "reordered.json"
    write_json(tokenizer_path, document)
    other_tokenizer = open_tokenizer(tokenizer_path)
    other_encoder = replace(writer.text_encoder, grown=other_tokenizer)
    runner.chapter(
        f"data/train again, encoded with {other_tokenizer.path.name}, which also has {other_tokenizer.size:,} tokens"
    )
    writer.write("train", "train", clips, other_encoder)
    report.add(WHEN_BEFORE_TRAINING, runner.check().findings)
    runner.chapter("the same data, labelled with the run's own tokenizer, like data without a label")
    header = writer.header(DEMO_LANGUAGE, "train", writer.text_encoder)
    write_clip_dataset(runner.run.data_set("train"), header, writer.prepared(clips, other_encoder))
    report.add(WHEN_BEFORE_TRAINING, runner.check().findings)
    _try_to_train(runner, report)


def _use_padded_codes(runner: DemoRunner, settings: DemoSettings, report: MistakeReport) -> None:
    """Codes that were saved as long as the longest clip beside them, silence behind the shorter ones."""
    _set_up_run(runner, settings, {})
    writer, clips = runner.writer, load_bundled_clips("train", DEMO_LANGUAGE)
    runner.chapter(f"data/train again, every {PADDED_BATCH_SIZE} clips padded to the longest of them")
    prepared = list(writer.prepared(clips, writer.text_encoder))
    silence = int(read_codes_metadata()[SILENCE_METADATA_KEY])
    padded = []
    for first in range(0, len(prepared), PADDED_BATCH_SIZE):
        group = prepared[first : first + PADDED_BATCH_SIZE]
        longest = max(len(clip.codes) for clip in group)
        for clip in group:
            codes = np.full(longest, silence, dtype=np.int32)
            codes[: len(clip.codes)] = clip.codes
            padded.append(replace(clip, codes=codes))
    header = writer.header(DEMO_LANGUAGE, "train", writer.text_encoder)
    write_clip_dataset(runner.run.data_set("train"), header, padded)
    report.add(WHEN_BEFORE_TRAINING, runner.check().findings)
    _try_to_train(runner, report)


def _set_up_run(runner: DemoRunner, settings: DemoSettings, other: RunYamlChanges) -> None:
    """The usual story up to its data, with other settings, and fewer steps unless they are given."""
    usual = build_demo_settings(settings)
    shorter = {} if settings.steps else build_step_settings(MISTAKE_STEPS)
    runner.new(deep_merge(deep_merge(usual, shorter), other))
    runner.graft()
    runner.prepare()
    if settings.minutes is not None and settings.steps is None:
        runner.choose_steps(settings.minutes)


def _try_to_train(runner: DemoRunner, report: MistakeReport) -> None:
    try:
        runner.train()
    except VoxgraftError as error:
        progress.report_lines([style_line((line, "bold red")) for line in error.finding.lines()[:1]])
        report.caught.append((WHEN_TRAIN_REFUSES, error.finding))
    else:
        report.not_refused_by = "train"


def _check_trained_output(runner: DemoRunner, report: MistakeReport, name: str) -> None:
    """`check` of the checkpoint against its base."""
    output_folder, files = runner.run.path / name, runner.files
    tokenizer = output_folder / files.tokenizer.name
    flags = f"--base {files.folder} --checkpoint {output_folder / files.checkpoint.name} --tokenizer {tokenizer}"
    check_settings = CheckSettings(
        base=files.folder, checkpoint=output_folder / files.checkpoint.name, tokenizer=TokenizerSettings(file=tokenizer)
    )
    report.add(WHEN_OUTPUT_CHECKED, runner.check(flags, check_settings, report.expected).findings)


# By name: in words, the findings that must report it, how it is made, and whether that gives a model to listen to.
MISTAKES: dict[
    DemoMistake, tuple[str, tuple[str, ...], Callable[[DemoRunner, DemoSettings, MistakeReport], None], bool]
] = {
    "unfrozen-high-rate": (
        "the whole backbone is trained on Amharic only, at 1e-3",
        ("replay-missing", "retention-bound", "body-changed"),
        _train_unfrozen,
        True,
    ),
    "masked-finetune": (
        "old rows are 'frozen' by a gradient mask; everything else is trained on Amharic only",
        ("base-rows-shrunk", "body-changed"),
        _train_masked_rows,
        True,
    ),
    "no-single-characters": (
        "a tokenizer with Amharic words but without the letters",
        ("proof-unknown-letters",),
        _graft_without_letters,
        False,
    ),
    "wrong-tokenizer": (
        "data that was encoded with another tokenizer of the same size",
        ("set-stale", "clips-other-tokenizer"),
        _use_wrong_tokenizer,
        False,
    ),
    "padded-codes": (
        "codes that were saved with the padding of their batch",
        ("clips-trailing-run", "clips-seconds"),
        _use_padded_codes,
        False,
    ),
}


# ---- the demonstration's run -----------------------------------------------------------------------------------------
# Commands run one after another, as a person would type them: each command line is printed, its time is measured. The
# settings are in the run's own run.yaml.

# About three and a half minutes on two cores.
DEMO_STEPS = 560
# Validations after step 0, and the fewest steps between two: a validation takes as long as some steps.
NUM_VALIDATIONS, MIN_VALIDATION_INTERVAL = 3, 20
WARMUP_RATIO = 0.05
DEMO_BASE = "tiny"
DEMO_DATA_LICENSE = "freely shareable texts (recipes/tiny_base), spoken by espeak-ng"
DEMO_CONSENT = "no real speakers: the voices are synthetic"
# Below, more than a fifth of the Amharic phones are wrong (docs/log.md, rows by steps to a given error).
MIN_USEFUL_STEPS = 150
RunYamlChanges = Mapping[str, Mapping[str, Any]]
# Steps that are run before the timed ones, and steps of which the median is taken.
WARMUP_STEPS, TIMED_STEPS = 2, 4


class DemoRunner:
    """The demonstration's run, and how long each command took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, RunFolder(folder / DEMO_LANGUAGE)
        # The texts of the training clips, one sentence on each line.
        self.texts = folder / f"{DEMO_LANGUAGE}.txt"
        self.family = get_family(DEMO_BASE)
        shipped = self.family.shipped_folder()
        assert shipped is not None
        self.files = self.family.files(shipped)
        self.seconds: dict[str, float] = {}

    def new(self, changes: RunYamlChanges) -> None:
        """A run for Amharic on the built-in base, with the demonstration's own values in its run.yaml."""
        write_text(self.texts, "\n".join(clip.text for clip in load_bundled_clips("train", DEMO_LANGUAGE)) + "\n")
        with self._run_command(
            "new", f"--base {DEMO_BASE} --language {DEMO_LANGUAGE} --texts {shlex.quote(str(self.texts))}"
        ):
            create_run(
                NewSettings(run=self.run.path, base=Path(DEMO_BASE), language=DEMO_LANGUAGE, texts=(self.texts,))
            )
        self.edit(changes)

    def edit(self, changes: RunYamlChanges) -> None:
        """Change values in run.yaml."""
        rewrite_run_yaml(self.run.settings, changes)
        lines = [f"in {self.run.settings}:"]
        for part, section in changes.items():
            entries = []
            for key, value in section.items():
                values = value if isinstance(value, list) else [value]
                value_texts = [f"{item:g}" if isinstance(item, float) else str(item) for item in values]
                entries.append(f"{key} {' and '.join(value_texts)}")
            lines.append(f"  {part}: {', '.join(entries)}")
        progress.report_lines(lines)

    def graft(self) -> GraftResult:
        with self._run_command("graft"):
            result = graft(load_command_settings(GraftSettings, self.run))
        counts, proof = result.counts, result.proof.counts
        # Nothing is promised for sentences that the base itself cannot spell in full.
        total = proof.same + proof.changed
        summary = (
            f"old text is encoded as before: {proof.same:,} of {total:,} sentences that the base encodes in full; "
        )
        summary += f"{proof.base_unknown:,} more contain characters that it cannot encode and are not counted"
        progress.report_lines([f"{counts.new_pieces:,} new rows; {summary}"] if result.folder else result.lines())
        return result

    def prepare(self) -> None:
        """Write the sets of the run from the bundled codes; run.yaml names those of base languages."""
        with self._run_command("prepare", shown=False):
            writer = self.writer
            writer.write("train", "train", load_bundled_clips("train", DEMO_LANGUAGE))
            writer.write("valid", "valid", load_bundled_clips("valid", DEMO_LANGUAGE))
            held_out_clips = {name: load_bundled_clips("valid", name) for name in self.family.languages}
            old = [writer.write(f"valid-{name}", "valid", clips) for name, clips in held_out_clips.items() if clips]
        train_set, held_out = load_bundled_clips("train", DEMO_LANGUAGE), load_bundled_clips("valid", DEMO_LANGUAGE)
        minutes = sum(len(clip.codes) for clip in train_set) / self.family.code_hz / 60
        names = ", ".join(path.name.removeprefix("valid-") for path in old)
        found = f"{minutes:.0f} min of Amharic in {len(train_set):,} clips, {len(held_out):,} held out; also {names}"
        self.chapter("the bundled speech, encoded for this run", [found])
        self.edit({"data": {"replay_valid": [str(path.relative_to(self.run.path)) for path in old]}})

    @property
    def writer(self) -> DemoSetWriter:
        return DemoSetWriter(self.run, self.family, self.files, load_graft(self.run.graft))

    def choose_steps(self, minutes: float) -> None:
        """Set as many steps as the time allows, by the time of a few of them on this machine."""
        progress.report_lines(["a few steps of a temporary model are timed first"])
        with self._run_command("measure", shown=False):
            # Steps with the run's own settings and data; the first ones warm up.
            settings = load_command_settings(TrainCommandSettings, self.run)
            setup = build_training_setup(self.run, settings, self.family, self.files)
            model = load_model(self.family, self.files, device=setup.device)
            rows = {name: torch.from_numpy(values) for name, values in setup.graft.rows.items()}
            trained = make_trainable(model, rows, setup.options)
            examples = BatchBuilder(self.family, trained.model, setup.train)
            stepper = TrainStep(trained, build_optimizer(trained, setup.options), examples, setup.options)
            taken = []
            for number in range(1, WARMUP_STEPS + TIMED_STEPS + 1):
                began = time.perf_counter()
                stepper.step(number, setup.stream.step(number))
                taken.append(time.perf_counter() - began)
        seconds = sorted(taken[WARMUP_STEPS:])[TIMED_STEPS // 2]
        steps = max(1, round(minutes * 60 / seconds))
        progress.report_lines([f"a step takes {seconds:.2f} s here: {steps:,} steps in {minutes:g} min"])
        if steps < MIN_USEFUL_STEPS:
            progress.report_lines(
                [f"fewer than {MIN_USEFUL_STEPS} steps: every part runs, but do not expect to understand the Amharic"]
            )
        self.edit(build_step_settings(steps))

    def check(
        self, flags: str = "", settings: CheckSettings | None = None, shown_codes: Sequence[str] = ()
    ) -> CheckResult:
        """Check the run, or files with other settings. Notes are printed only if their code is in `shown_codes`."""
        with self._run_command("check", flags, of_run=settings is None):
            result = check(settings or load_command_settings(CheckSettings, self.run))
        shown_findings = [item for item in result.findings if item.level != "note" or item.code in shown_codes]
        lines: list[Line] = []
        for level, style in LEVEL_STYLES.items():  # worst first
            for item in shown_findings:
                if item.level == level:
                    first, *rest = item.lines()
                    lines += [style_line((first, style)), *rest]
        progress.report_lines([*lines, result.verdict])
        return result

    def train(self, flags: str = "", **more: Any) -> TrainResult:
        with self._run_command("train", flags):
            result = train(load_command_settings(TrainCommandSettings, self.run, **more))
        progress.report_lines(result.lines())
        if result.was_interrupted:
            progress.report_lines(
                [f"`voxgraft train {shlex.quote(str(self.run.path))}` continues this training; the demo starts over"]
            )
            raise KeyboardInterrupt
        return result

    def evaluate(self, sentences: int, seed: int) -> EvaluateResult:
        """Evaluate the trained graft against the base; the bundled sounds serve as recordings of people."""
        values = {"recordings": RECORDINGS_FOLDER, "max_sentences": sentences, "seed": seed}
        usual = EvaluateSettings(model=self.run.path)
        other = {name: value for name, value in values.items() if value != getattr(usual, name)}
        flags = " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in other.items())
        with self._run_command("evaluate", flags):
            return score_model(EvaluateSettings(model=self.run.path, **other))

    def export(self) -> Path:
        """Export the graft to share: tokenizer, trained rows, the adapter in PEFT's format, and its terms."""
        output = self.folder / "export"
        flags = f"--to graft --output {shlex.quote(str(output))} --accept-terms"
        flags += f" --data-licence {shlex.quote(DEMO_DATA_LICENSE)} --consent {shlex.quote(DEMO_CONSENT)}"
        settings = ExportSettings(
            model=self.run.path,
            to="graft",
            output=output,
            data_licence=DEMO_DATA_LICENSE,
            consent=DEMO_CONSENT,
            accept_terms=True,
        )
        with self._run_command("export", flags):
            result = export(settings)
        progress.report_lines([*result.lines(), "it contains nothing of the base"])
        return output

    def watched(self) -> list[Finding]:
        """Findings of the training, each as it was reported last."""
        lines = [line for line in RunJournal(self.run.journal).read() if line["kind"] == "finding"]
        keys = ("code", "found", "expected", "where", "cure", "level")
        found = (Finding(**{key: line[key] for key in keys if line.get(key)}) for line in lines)
        return list({(item.code, item.where): item for item in found}.values())

    def chapter(self, title: str, lines: Sequence[Line] = ()) -> None:
        progress.report_lines([style_line((title, "bold")), *lines])

    @contextmanager
    def _run_command(self, command: str, flags: str = "", *, of_run: bool = True, shown: bool = True) -> Iterator[None]:
        """Print the command line unless it is not to be `shown_codes`, and add up the seconds of the command."""
        arguments = ["voxgraft", command, *([shlex.quote(str(self.run.path))] if of_run else []), flags]
        if shown:
            self.chapter(f"$ {' '.join(argument for argument in arguments if argument)}")
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[command] = self.seconds.get(command, 0.0) + time.monotonic() - started


def build_demo_settings(settings: DemoSettings) -> dict[str, dict[str, Any]]:
    """Sections of run.yaml with values other than the defaults."""
    return {
        # An hour of speech is too little for pieces of several letters: letters alone, each of them often.
        "tokenizer": {"pieces": 0},
        # A voice of the built-in base is a number, so no prompt can be too short.
        "data": {"min_prompt_seconds": 0.0},
        "train": {
            "lr_adapter": 2e-3,
            "min_lr_ratio": 0.02,
            "batch_tokens": 800,
            "microbatch_tokens": 2048,
            "seed": settings.seed,
            "tensorboard": False,
            "keep_last": 1,
            **build_step_settings(settings.steps or DEMO_STEPS)["train"],
        },
    }


def build_step_settings(steps: int) -> dict[str, dict[str, Any]]:
    """The length of the run, and everything that is counted in steps."""
    look = max(MIN_VALIDATION_INTERVAL, -(-steps // NUM_VALIDATIONS))
    return {
        "train": {
            "steps": steps,
            "warmup_steps": max(1, round(WARMUP_RATIO * steps)),
            "valid_every": look,
            "save_every": look,
            "sample_every": look,
            "log_every": max(1, min(10, steps // 12)),
        }
    }
