"""Mistakes that people made, made again on purpose with the verbs' own settings: what happens, and what tells of it.

A refusal is a result. Nothing is switched off that a user could not switch off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.config.base import deep_merge
from voxgraft.config.commands import CheckSettings, DemoMistake, DemoSettings
from voxgraft.config.run import TokenizerSettings
from voxgraft.core.errors import Finding, VoxgraftError
from voxgraft.core.files import read_json, write_json
from voxgraft.core.results import Line, style_line
from voxgraft.dataset.shards import PreparedClip
from voxgraft.demo.data import DEMO_LANGUAGE, load_bundled_clips, load_silence_code
from voxgraft.demo.session import DemoRunner, RunYamlChanges, build_demo_settings, build_step_settings
from voxgraft.evaluation.command import EvaluateResult
from voxgraft.graft.merged import BASELINE_FOLDER_NAME, MERGED_FOLDER_NAME
from voxgraft.tokenizers import open_tokenizer

__all__ = ["MISTAKES", "Mistake", "MistakeReport"]

MISTAKE_STEPS = 120
"""Enough to lose a language."""
WHEN_BEFORE_TRAINING, WHEN_TRAIN_REFUSES, WHEN_TRAINING, WHEN_OUTPUT_CHECKED = (
    "before training",
    "train refuses",
    "while training",
    "in what it left",
)
UNLIMITED_RETENTION_BOUND = 100.0
"""A rise of the loss, as a share, that never comes."""
PADDED_BATCH_SIZE = 16
"""Clips that were prepared at once, and padded to the longest of them."""


@dataclass
class MistakeReport:
    """What was told of a mistake, and what became of the languages if it got as far as that."""

    name: str
    about: str
    expected: tuple[str, ...]
    """Codes of findings that name it."""
    caught: list[tuple[str, Finding]] = field(default_factory=list)
    not_refused_by: str = ""
    """A verb that was to refuse, and did not."""
    evaluated: EvaluateResult | None = None

    @property
    def is_caught(self) -> bool:
        return not self.not_refused_by and set(self.expected) <= {item.code for _, item in self.caught}

    def add(self, when: str, findings: Sequence[Finding]) -> None:
        """Alarms; notes only where they name the mistake."""
        known = {item.code for _, item in self.caught}
        wanted = (item for item in findings if item.level != "note" or item.code in self.expected)
        self.caught += [(when, item) for item in wanted if item.code not in known]

    def verdict(self) -> list[Line]:
        missing = [code for code in self.expected if code not in {item.code for _, item in self.caught}]
        if missing:
            return [style_line(("not told: ", "bold red"), ", ".join(missing))]
        if self.not_refused_by:
            return [style_line(("not refused: ", "bold red"), self.not_refused_by)]
        first = next(when for when, item in self.caught if item.code in self.expected)
        return [style_line(("caught", "bold green"), f" by {', '.join(self.expected)}: {first}")]

    def to_json(self) -> dict[str, Any]:
        found = [{"when": when, **item.to_json()} for when, item in self.caught]
        return {"name": self.name, "caught": self.is_caught, "expected": list(self.expected), "findings": found}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: in words, the findings that must name it, and how it is made."""

    about: str
    expected: tuple[str, ...]
    make: Callable[[DemoRunner, DemoSettings, MistakeReport], None]
    is_evaluated: bool = False
    """Whether it gets as far as to a model that can be listened to."""

    def reproduce(self, keyboard: DemoRunner, settings: DemoSettings) -> MistakeReport:
        assert settings.mistake is not None
        told = MistakeReport(settings.mistake, self.about, self.expected)
        keyboard.chapter(f"{told.name}: {told.about}")
        self.make(keyboard, settings, told)
        if self.is_evaluated:
            told.evaluated = keyboard.evaluate(settings.sentences, settings.seed)
        return told


def _train_unfrozen(keyboard: DemoRunner, settings: DemoSettings, told: MistakeReport) -> None:
    """The whole body at a high rate, and nothing of the old languages beside the new one."""
    train = {"mode": "merged", "full_body": True, "lr_backbone": 1e-3, "kl_weight": 0.0, "interpolate": [1.0]}
    _set_up_run(keyboard, settings, {"data": {"self_replay": 0}, "train": train})
    told.add(WHEN_BEFORE_TRAINING, keyboard.check().outcome.findings)
    keyboard.train()
    told.add(WHEN_TRAINING, keyboard.watched())
    keyboard.chapter("it was stopped; now without the bound that stopped it")
    keyboard.edit({"train": {"retention_bound": UNLIMITED_RETENTION_BOUND}})
    keyboard.train()
    _check_trained_output(keyboard, told, MERGED_FOLDER_NAME)


def _train_masked_rows(keyboard: DemoRunner, settings: DemoSettings, told: MistakeReport) -> None:
    """Everything at one rate, with a mask on the gradients of the base's text rows.

    Weight decay is ten times the usual, so that a hundred steps show what thousands do.
    """
    _set_up_run(keyboard, settings, {"train": {"lr_backbone": 1e-3, "weight_decay": 0.1}})
    told.add(WHEN_BEFORE_TRAINING, keyboard.check().outcome.findings)
    keyboard.train("--baseline masked-finetune", baseline="masked-finetune")
    told.add(WHEN_TRAINING, keyboard.watched())
    _check_trained_output(keyboard, told, BASELINE_FOLDER_NAME)


def _graft_without_letters(keyboard: DemoRunner, settings: DemoSettings, told: MistakeReport) -> None:
    """A merged tokenizer that has whole words of the new language, and no letters to spell the others with."""
    keyboard.new(build_demo_settings(settings))
    made = _write_words_only_tokenizer(keyboard.files.tokenizer, keyboard.folder / "words-only.json")
    keyboard.edit({"tokenizer": {"file": str(made.absolute())}})
    result = keyboard.graft()
    told.not_refused_by = "graft" if result.folder else ""
    told.add("graft refuses", result.proof.findings)
    told.add(WHEN_BEFORE_TRAINING, keyboard.check().outcome.findings)


def _use_wrong_tokenizer(keyboard: DemoRunner, settings: DemoSettings, told: MistakeReport) -> None:
    """Data that was prepared with a tokenizer of the same size, its new pieces in another order."""
    _set_up_run(keyboard, settings, {})
    writer, clips = keyboard.writer, load_bundled_clips("train", DEMO_LANGUAGE)
    made, grown = keyboard.folder / "reordered.json", writer.graft.tokenizer
    other = open_tokenizer(_write_reordered_tokenizer(grown.path, made, writer.graft.card.base_pieces))
    spelled = replace(writer.spelling, grown=other)
    keyboard.chapter(f"data/train again, spelled by {other.path.name}, which has {other.size:,} pieces as well")
    writer.write("train", "train", clips, spelled)
    told.add(WHEN_BEFORE_TRAINING, keyboard.check().outcome.findings)
    keyboard.chapter("the same data under the name of the run's own tokenizer, as data without a label would come")
    header = writer.header(DEMO_LANGUAGE, "train", writer.spelling)
    writer.write_prepared("train", header, writer.prepared(clips, spelled))
    told.add(WHEN_BEFORE_TRAINING, keyboard.check().outcome.findings)
    _try_to_train(keyboard, told)


def _use_padded_codes(keyboard: DemoRunner, settings: DemoSettings, told: MistakeReport) -> None:
    """Codes that were saved as long as the longest clip beside them, silence behind the shorter ones."""
    _set_up_run(keyboard, settings, {})
    writer, clips = keyboard.writer, load_bundled_clips("train", DEMO_LANGUAGE)
    keyboard.chapter(f"data/train again, every {PADDED_BATCH_SIZE} clips padded to the longest of them")
    header = writer.header(DEMO_LANGUAGE, "train", writer.spelling)
    writer.write_prepared("train", header, _pad_codes(list(writer.prepared(clips, writer.spelling))))
    told.add(WHEN_BEFORE_TRAINING, keyboard.check().outcome.findings)
    _try_to_train(keyboard, told)


MISTAKES: dict[DemoMistake, Mistake] = {
    "unfrozen-high-rate": Mistake(
        "the whole body is trained on Amharic alone, at 1e-3",
        ("replay-missing", "retention-bound", "body-changed"),
        _train_unfrozen,
        is_evaluated=True,
    ),
    "seed-freeze": Mistake(
        "old rows are 'frozen' by a mask on their gradients, and the rest is trained on Amharic alone",
        ("base-rows-shrunk", "body-changed"),
        _train_masked_rows,
        is_evaluated=True,
    ),
    "no-single-characters": Mistake(
        "a tokenizer with words of Amharic and none of its letters",
        ("proof-unknown-letters",),
        _graft_without_letters,
    ),
    "wrong-tokenizer": Mistake(
        "data that another tokenizer of the same size has spelled",
        ("set-stale", "clips-other-tokenizer"),
        _use_wrong_tokenizer,
    ),
    "padded-codes": Mistake(
        "codes that were saved with the padding of their batch",
        ("clips-trailing-run", "clips-seconds"),
        _use_padded_codes,
    ),
}


def _set_up_run(keyboard: DemoRunner, settings: DemoSettings, other: RunYamlChanges) -> None:
    """The usual story up to its data, with other settings, and fewer steps unless they are given."""
    usual = build_demo_settings(settings)
    shorter = {} if settings.steps else build_step_settings(MISTAKE_STEPS)
    keyboard.new(deep_merge(deep_merge(usual, shorter), other))
    keyboard.graft()
    keyboard.prepare()
    if settings.minutes is not None and settings.steps is None:
        keyboard.choose_steps(settings.minutes)


def _try_to_train(keyboard: DemoRunner, told: MistakeReport) -> None:
    try:
        keyboard.train()
    except VoxgraftError as error:
        keyboard.print_lines([style_line((line, "bold red")) for line in error.finding.lines()[:1]])
        told.caught.append((WHEN_TRAIN_REFUSES, error.finding))
    else:
        told.not_refused_by = "train"


def _check_trained_output(keyboard: DemoRunner, told: MistakeReport, name: str) -> None:
    """`check` of the checkpoint against its base."""
    left, files = keyboard.run.path / name, keyboard.files
    tokenizer = left / files.tokenizer.name
    flags = f"--base {files.folder} --checkpoint {left / files.checkpoint.name} --tokenizer {tokenizer}"
    wanted = CheckSettings(
        base=files.folder, checkpoint=left / files.checkpoint.name, tokenizer=TokenizerSettings(file=tokenizer)
    )
    told.add(WHEN_OUTPUT_CHECKED, keyboard.check(flags, wanted, told.expected).outcome.findings)


def _write_words_only_tokenizer(base: Path, made: Path) -> Path:
    """The base's tokenizer file with whole words behind its pieces, and nothing to put them together from."""
    document = read_json(base)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    words = dict.fromkeys(word for clip in load_bundled_clips("train", DEMO_LANGUAGE) for word in clip.text.split())
    size = max(vocabulary.values()) + 1
    size = max(size, *(token["id"] + 1 for token in document["added_tokens"]))
    tag = {**document["added_tokens"][-1], "id": size, "content": f"[{DEMO_LANGUAGE}]"}
    document["added_tokens"].append(tag)
    for at, piece in enumerate([tag["content"], *(word for word in words if len(word) > 1)][:500]):
        vocabulary[piece] = size + at
    write_json(made, document)
    return made


def _write_reordered_tokenizer(grown: Path, made: Path, first: int) -> Path:
    """The grown tokenizer with its new pieces, but for the tag, numbered backwards; `first` is the first new id."""
    document = read_json(grown)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    whole = {token["content"] for token in document["added_tokens"]}
    new = sorted((at, piece) for piece, at in vocabulary.items() if at >= first and piece not in whole)
    for (at, _), (_, piece) in zip(new, reversed(new), strict=True):
        vocabulary[piece] = at
    write_json(made, document)
    return made


def _pad_codes(clips: Sequence[PreparedClip]) -> Iterator[PreparedClip]:
    silence = load_silence_code()
    for first in range(0, len(clips), PADDED_BATCH_SIZE):
        group = clips[first : first + PADDED_BATCH_SIZE]
        longest = max(len(clip.codes) for clip in group)
        for clip in group:
            codes = np.full(longest, silence, dtype=np.int32)
            codes[: len(clip.codes)] = clip.codes
            yield replace(clip, codes=codes)
