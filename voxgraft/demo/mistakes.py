"""Mistakes that people made, made again on purpose with the verbs' own settings: what happens, and what tells of it.

A refusal is a result. Nothing is switched off that a user could not switch off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.config import merged_values
from voxgraft.corpus.clips import PreparedClip
from voxgraft.demo.data import LANGUAGE, bundled_clips, silence_code
from voxgraft.demo.keyboard import Changes, Keyboard
from voxgraft.demo.plan import changes, steps_changes
from voxgraft.errors import Finding, VoxgraftError
from voxgraft.evaluate import EvaluateResult
from voxgraft.files import read_json, write_json
from voxgraft.merged_folder import MERGED_NAME, SEEDS_NAME
from voxgraft.results import Line, styled
from voxgraft.run_settings import TokenizerSettings
from voxgraft.settings import CheckSettings, DemoMistake, DemoSettings
from voxgraft.tokenizers import open_tokenizer

__all__ = ["MISTAKES", "Mistake", "Told"]

STEPS = 120
"""Enough to lose a language."""
BEFORE, REFUSED, DURING, LEFT = "before training", "train refuses", "while training", "in what it left"
NO_BOUND = 100.0
"""A rise of the loss, as a share, that never comes."""
BESIDE = 16
"""Clips that were prepared at once, and padded to the longest of them."""


@dataclass
class Told:
    """What was told of a mistake, and what became of the languages if it got as far as that."""

    name: str
    about: str
    expected: tuple[str, ...]
    """Codes of findings that name it."""
    caught: list[tuple[str, Finding]] = field(default_factory=list)
    went_through: str = ""
    """A verb that was to refuse, and did not."""
    evaluated: EvaluateResult | None = None

    @property
    def is_caught(self) -> bool:
        return not self.went_through and set(self.expected) <= {item.code for _, item in self.caught}

    def add(self, when: str, findings: Sequence[Finding]) -> None:
        """Alarms; notes only where they name the mistake."""
        known = {item.code for _, item in self.caught}
        wanted = (item for item in findings if item.level != "note" or item.code in self.expected)
        self.caught += [(when, item) for item in wanted if item.code not in known]

    def verdict(self) -> list[Line]:
        missing = [code for code in self.expected if code not in {item.code for _, item in self.caught}]
        if missing:
            return [styled(("not told: ", "bold red"), ", ".join(missing))]
        if self.went_through:
            return [styled(("not refused: ", "bold red"), self.went_through)]
        first = next(when for when, item in self.caught if item.code in self.expected)
        return [styled(("caught", "bold green"), f" by {', '.join(self.expected)}: {first}")]

    def to_json(self) -> dict[str, Any]:
        found = [{"when": when, **item.to_json()} for when, item in self.caught]
        return {"name": self.name, "caught": self.is_caught, "expected": list(self.expected), "findings": found}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: in words, the findings that must name it, and how it is made."""

    about: str
    expected: tuple[str, ...]
    make: Callable[[Keyboard, DemoSettings, Told], None]
    speaks: bool = False
    """Whether it gets as far as to a model that can be listened to."""

    def commit(self, keyboard: Keyboard, settings: DemoSettings) -> Told:
        assert settings.mistake is not None
        told = Told(settings.mistake, self.about, self.expected)
        keyboard.chapter(f"{told.name}: {told.about}")
        self.make(keyboard, settings, told)
        if self.speaks:
            told.evaluated = keyboard.evaluate(settings.sentences, settings.seed)
        return told


def _unfrozen(keyboard: Keyboard, settings: DemoSettings, told: Told) -> None:
    """The whole body at a high rate, and nothing of the old languages beside the new one."""
    train = {"mode": "merged", "full_body": True, "body_rate": 1e-3, "kl_weight": 0.0, "interpolate": [1.0]}
    _begin(keyboard, settings, {"data": {"self_replay": 0}, "train": train})
    told.add(BEFORE, keyboard.check().outcome.findings)
    keyboard.train()
    told.add(DURING, keyboard.watched())
    keyboard.chapter("it was stopped; now without the bound that stopped it")
    keyboard.edit({"train": {"retention_bound": NO_BOUND}})
    keyboard.train()
    _look_at_what_it_left(keyboard, told, MERGED_NAME)


def _seed_freeze(keyboard: Keyboard, settings: DemoSettings, told: Told) -> None:
    """Everything at one rate, with a mask on the gradients of the base's text rows.

    Weight decay is ten times the usual, so that a hundred steps show what thousands do.
    """
    _begin(keyboard, settings, {"train": {"body_rate": 1e-3, "weight_decay": 0.1}})
    told.add(BEFORE, keyboard.check().outcome.findings)
    keyboard.train("--as-in-the-seeds", as_in_the_seeds=True)
    told.add(DURING, keyboard.watched())
    _look_at_what_it_left(keyboard, told, SEEDS_NAME)


def _no_single_characters(keyboard: Keyboard, settings: DemoSettings, told: Told) -> None:
    """A merged tokenizer that has whole words of the new language, and no letters to spell the others with."""
    keyboard.new(changes(settings))
    made = _words_only(keyboard.files.tokenizer, keyboard.folder / "words-only.json")
    keyboard.edit({"tokenizer": {"file": str(made.absolute())}})
    result = keyboard.graft()
    told.went_through = "graft" if result.folder else ""
    told.add("graft refuses", result.proof.findings)
    told.add(BEFORE, keyboard.check().outcome.findings)


def _wrong_tokenizer(keyboard: Keyboard, settings: DemoSettings, told: Told) -> None:
    """Data that was prepared with a tokenizer of the same size, its new pieces in another order."""
    _begin(keyboard, settings, {})
    writer, clips = keyboard.writer, bundled_clips("train", LANGUAGE)
    made, grown = keyboard.folder / "reordered.json", writer.graft.tokenizer
    other = open_tokenizer(_reordered(grown.path, made, writer.graft.card.base_pieces))
    spelled = replace(writer.spelling, grown=other)
    keyboard.chapter(f"data/train again, spelled by {other.path.name}, which has {other.size:,} pieces as well")
    writer.write("train", "train", clips, spelled)
    told.add(BEFORE, keyboard.check().outcome.findings)
    keyboard.chapter("the same data under the name of the run's own tokenizer, as data without a label would come")
    header = writer.header(LANGUAGE, "train", writer.spelling)
    writer.write_prepared("train", header, writer.prepared(clips, spelled))
    told.add(BEFORE, keyboard.check().outcome.findings)
    _try_to_train(keyboard, told)


def _padded_codes(keyboard: Keyboard, settings: DemoSettings, told: Told) -> None:
    """Codes that were saved as long as the longest clip beside them, silence behind the shorter ones."""
    _begin(keyboard, settings, {})
    writer, clips = keyboard.writer, bundled_clips("train", LANGUAGE)
    keyboard.chapter(f"data/train again, every {BESIDE} clips padded to the longest of them")
    header = writer.header(LANGUAGE, "train", writer.spelling)
    writer.write_prepared("train", header, _padded(list(writer.prepared(clips, writer.spelling))))
    told.add(BEFORE, keyboard.check().outcome.findings)
    _try_to_train(keyboard, told)


MISTAKES: dict[DemoMistake, Mistake] = {
    "unfrozen-high-rate": Mistake(
        "the whole body is trained on Amharic alone, at 1e-3",
        ("replay-missing", "retention-bound", "body-changed"),
        _unfrozen,
        speaks=True,
    ),
    "seed-freeze": Mistake(
        "old rows are 'frozen' by a mask on their gradients, and the rest is trained on Amharic alone",
        ("base-rows-shrunk", "body-changed"),
        _seed_freeze,
        speaks=True,
    ),
    "no-single-characters": Mistake(
        "a tokenizer with words of Amharic and none of its letters",
        ("proof-unknown-letters",),
        _no_single_characters,
    ),
    "wrong-tokenizer": Mistake(
        "data that another tokenizer of the same size has spelled",
        ("set-stale", "clips-other-tokenizer"),
        _wrong_tokenizer,
    ),
    "padded-codes": Mistake(
        "codes that were saved with the padding of their batch",
        ("clips-trailing-run", "clips-seconds"),
        _padded_codes,
    ),
}


def _begin(keyboard: Keyboard, settings: DemoSettings, other: Changes) -> None:
    """The usual story up to its data, with other settings, and fewer steps unless they are given."""
    usual = changes(settings)
    shorter = {} if settings.steps else steps_changes(STEPS)
    keyboard.new(merged_values(merged_values(usual, shorter), other))
    keyboard.graft()
    keyboard.prepare()
    if settings.minutes is not None and settings.steps is None:
        keyboard.choose_steps(settings.minutes)


def _try_to_train(keyboard: Keyboard, told: Told) -> None:
    try:
        keyboard.train()
    except VoxgraftError as error:
        keyboard.say([styled((line, "bold red")) for line in error.finding.lines()[:1]])
        told.caught.append((REFUSED, error.finding))
    else:
        told.went_through = "train"


def _look_at_what_it_left(keyboard: Keyboard, told: Told, name: str) -> None:
    """`check` of the checkpoint against its base."""
    left, files = keyboard.run.path / name, keyboard.files
    tokenizer = left / files.tokenizer.name
    flags = f"--base {files.folder} --checkpoint {left / files.checkpoint.name} --tokenizer {tokenizer}"
    wanted = CheckSettings(
        base=files.folder, checkpoint=left / files.checkpoint.name, tokenizer=TokenizerSettings(file=tokenizer)
    )
    told.add(LEFT, keyboard.check(flags, wanted, told.expected).outcome.findings)


def _words_only(base: Path, made: Path) -> Path:
    """The base's tokenizer file with whole words behind its pieces, and nothing to put them together from."""
    document = read_json(base)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    words = dict.fromkeys(word for clip in bundled_clips("train", LANGUAGE) for word in clip.text.split())
    size = max(vocabulary.values()) + 1
    size = max(size, *(token["id"] + 1 for token in document["added_tokens"]))
    tag = {**document["added_tokens"][-1], "id": size, "content": f"[{LANGUAGE}]"}
    document["added_tokens"].append(tag)
    for at, piece in enumerate([tag["content"], *(word for word in words if len(word) > 1)][:500]):
        vocabulary[piece] = size + at
    write_json(made, document)
    return made


def _reordered(grown: Path, made: Path, first: int) -> Path:
    """The grown tokenizer with its new pieces, but for the tag, numbered backwards; `first` is the first new id."""
    document = read_json(grown)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    whole = {token["content"] for token in document["added_tokens"]}
    new = sorted((at, piece) for piece, at in vocabulary.items() if at >= first and piece not in whole)
    for (at, _), (_, piece) in zip(new, reversed(new), strict=True):
        vocabulary[piece] = at
    write_json(made, document)
    return made


def _padded(clips: Sequence[PreparedClip]) -> Iterator[PreparedClip]:
    silence = silence_code()
    for first in range(0, len(clips), BESIDE):
        group = clips[first : first + BESIDE]
        longest = max(len(clip.codes) for clip in group)
        for clip in group:
            codes = np.full(longest, silence, dtype=np.int32)
            codes[: len(clip.codes)] = clip.codes
            yield replace(clip, codes=codes)
