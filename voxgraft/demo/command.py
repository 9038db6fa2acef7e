"""The command `demo`: Amharic grafted onto a base that speaks English and French, with the commands that all use.

With --mistake it repeats a mistake that people have made, on purpose and with the commands' own settings: what happens,
and which findings report it. A refusal is a result. Nothing is switched off that a user could not switch off.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.config.base import deep_merge
from voxgraft.config.commands import CheckSettings, DemoMistake, DemoSettings
from voxgraft.config.run import TokenizerSettings
from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding, VoxgraftError
from voxgraft.core.files import build_write_error, is_file, is_folder, path_exists, read_json, write_json, write_text
from voxgraft.core.results import Line, Table, TableCell, format_duration, style_line
from voxgraft.dataset.sets import write_clip_dataset
from voxgraft.demo.data import DEMO_LANGUAGE, SILENCE_METADATA_KEY, load_bundled_clips, read_codes_metadata
from voxgraft.demo.session import DemoRunner, RunYamlChanges, build_demo_settings, build_step_settings
from voxgraft.evaluation.command import EVALUATION_REPORT_NAME, EvaluateResult
from voxgraft.evaluation.judge import WHO_AFTER, WHO_BEFORE, WHO_CODEC, WHO_RECORDINGS, WHO_SHUFFLED
from voxgraft.evaluation.report import format_with_interval, summarize_retention
from voxgraft.evaluation.scores import measure_title
from voxgraft.graft.folder import ADAPTER_NAME, BASELINE_FOLDER_NAME, MERGED_FOLDER_NAME
from voxgraft.nn.adapter import read_peft_folder
from voxgraft.tokenizers import open_tokenizer

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
    told: MistakeReport | None = None
    """Of a mistake."""

    @property
    def exit_code(self) -> int:
        if self.told is not None:
            return 0 if self.told.is_caught else 1
        kept = self.evaluated is not None and summarize_retention(self.evaluated.evaluation) == "equal"
        return 0 if kept else 1

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "folder": str(self.folder),
            "seconds": dict(self.seconds),
            "added": dict(self.added),
            "mistake": self.told.to_json() if self.told else None,
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
            "equal": {kept.language: kept.equal for kept in evaluation.kept},
            "base_values_changed": evaluation.change["changed"] if evaluation.change else None,
            "checklist": {point.name: point.answer for point in self.evaluated.points},
            "report": str(self.evaluated.folder / EVALUATION_REPORT_NAME),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.told is not None:
            rows = []
            for when, item in self.told.caught:
                first = item.found.splitlines()[0]
                if len(first) > MAX_FINDING_CHARACTERS or first != item.found:
                    first = f"{first[:MAX_FINDING_CHARACTERS].rstrip()} ..."
                rows.append((when, item.level, item.code, first))
            table = Table(("when", "level", "code", "found"), tuple(rows), "detected by")
            lines += [style_line((f"{self.told.name}: ", "bold"), self.told.about), table]
        if self.evaluated is not None:
            lines += format_evaluation(self.evaluated, self.added)
        if self.told is not None:
            lines += self.told.verdict()
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
            report.evaluated = runner.evaluate(settings.sentences, settings.seed)
        return DemoResult(folder, runner.seconds, {}, report.evaluated, report)
    runner.new(build_demo_settings(settings))
    # The same order as in the tutorial: each command finds what the one before has written.
    grafted = runner.graft()
    runner.prepare()
    if settings.minutes is not None and settings.steps is None:
        runner.choose_steps(settings.minutes)
    runner.check()
    runner.train()
    found = runner.evaluate(settings.sentences, settings.seed)
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
        scores = (evaluation.score(language, who, DEMO_ERROR_MEASURE) for who in (WHO_BEFORE, WHO_AFTER))
        errors = (format_with_interval(DEMO_ERROR_MEASURE, score) for score in scores)
        kept = next((one for one in evaluation.kept if one.language == language), None)
        logits: TableCell = ""
        if kept is not None and kept.equal is None:
            logits = kept.why
        elif kept is not None and kept.equal:
            logits = style_line(("equal", "bold green"), f" at all {kept.positions:,} positions")
        elif kept is not None:
            logits = style_line(("not equal", "bold red"), f", by up to {kept.largest_difference:.2g}")
        rows.append((f"{language}{' (new)' if language == evaluation.language else ''}", *errors, logits))
    table = Table(("language", "phone error before", "after", "speech logits of the base"), tuple(rows))
    facts: list[tuple[TableCell, ...]] = [*added.items()]
    # The new language's error by kinds of words, and what it compares with.
    new = evaluation.language or ""
    for kind, words in WORD_KINDS.items():
        score = evaluation.score(new, WHO_AFTER, DEMO_ERROR_MEASURE + kind)
        if score.value is not None:
            facts.append((f"phone error in {new}{words}", format_with_interval(DEMO_ERROR_MEASURE, score)))
    for who, words in REFERENCE_LABELS.items():
        known = [(name, evaluation.score(new, who, name)) for name in (DEMO_ERROR_MEASURE, "cer")]
        for name, score in [(name, score) for name, score in known if score.value is not None][:1]:
            facts.append((f"{words}, {measure_title(name)}", format_with_interval(name, score)))
    if (change := evaluation.change) is not None:
        values = f"{change['changed']:,} of {change['total']:,} values differ" if change["changed"] else "0"
        style = "bold red" if change["changed"] else "bold green"
        facts.append(("bits changed in the base", style_line((values, style))))
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
        wanted = (item for item in findings if item.level != "note" or item.code in self.expected)
        self.caught += [(when, item) for item in wanted if item.code not in known]

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
    train = {"mode": "merged", "full_body": True, "lr_backbone": 1e-3, "kl_weight": 0.0, "interpolate": [1.0]}
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
    for at, piece in enumerate([tag["content"], *(word for word in words if len(word) > 1)][:500]):
        vocabulary[piece] = size + at
    made = runner.folder / "words-only.json"
    write_json(made, document)
    runner.edit({"tokenizer": {"file": str(made.absolute())}})
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
    whole = {token["content"] for token in document["added_tokens"]}
    first = writer.graft.card.base_pieces
    new = sorted((at, piece) for piece, at in vocabulary.items() if at >= first and piece not in whole)
    for (at, _), (_, piece) in zip(new, reversed(new), strict=True):
        vocabulary[piece] = at
    made = runner.folder / "reordered.json"
    write_json(made, document)
    other = open_tokenizer(made)
    spelled = replace(writer.text_encoder, grown=other)
    runner.chapter(f"data/train again, encoded with {other.path.name}, which also has {other.size:,} pieces")
    writer.write("train", "train", clips, spelled)
    report.add(WHEN_BEFORE_TRAINING, runner.check().findings)
    runner.chapter("the same data, labelled with the run's own tokenizer, like data without a label")
    header = writer.header(DEMO_LANGUAGE, "train", writer.text_encoder)
    write_clip_dataset(runner.run.data_set("train"), header, writer.prepared(clips, spelled))
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
    left, files = runner.run.path / name, runner.files
    tokenizer = left / files.tokenizer.name
    flags = f"--base {files.folder} --checkpoint {left / files.checkpoint.name} --tokenizer {tokenizer}"
    wanted = CheckSettings(
        base=files.folder, checkpoint=left / files.checkpoint.name, tokenizer=TokenizerSettings(file=tokenizer)
    )
    report.add(WHEN_OUTPUT_CHECKED, runner.check(flags, wanted, report.expected).findings)


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
    "seed-freeze": (
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
