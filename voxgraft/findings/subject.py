"""What is looked at: every part that was given, opened as far as it can be.

A part that cannot be opened becomes a finding and stays away, so that the others are still looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from voxgraft.bases import base_family, base_tokenizer
from voxgraft.checkpoints.forms import Forms, forms_of, in_forms, num_rounded
from voxgraft.checkpoints.model import Checkpoint
from voxgraft.checkpoints.opening import open_checkpoint, open_foreign
from voxgraft.checkpoints.prefixes import beside, common_prefix, without_prefix
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.families import family
from voxgraft.families.base import BaseFiles, Family
from voxgraft.files import existing_folder
from voxgraft.findings.old_numbers import OldNumbers, read_old_numbers
from voxgraft.findings.text_tables import is_stand_in, table_names
from voxgraft.graft_folder import Graft, open_graft, read_card, rules_beside
from voxgraft.normalising import NO_RULES, TextRules
from voxgraft.preparing.choosing import run_texts
from voxgraft.run import RunFolder
from voxgraft.settings import CheckSettings
from voxgraft.spelling import Spelling
from voxgraft.tables import family_of_checkpoint
from voxgraft.text.texts import Texts, read_texts
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer

Made = TypeVar("Made")


@dataclass(slots=True)
class Subject:
    """The parts; None where a part was not given or could not be opened."""

    settings: CheckSettings
    family: Family | None = None
    base: BaseFiles | None = None
    base_tokenizer: Tokenizer | None = None
    base_checkpoint: Checkpoint | None = None
    graft: Graft | None = None
    grown: Tokenizer | None = None
    checkpoint: Checkpoint | None = None
    old: OldNumbers | None = None
    texts: Texts | None = None
    prepared: Path | None = None
    findings: list[Finding] = field(default_factory=list)
    """What went wrong while the parts were opened."""

    @property
    def run(self) -> Path | None:
        return self.settings.run

    @property
    def text_paths(self) -> tuple[Path, ...]:
        """Texts that are named, else the manifest of the run."""
        return run_texts(self.settings, self.run)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The grown tokenizer, or the base's where there is no other."""
        return self.grown or self.base_tokenizer

    @property
    def any_checkpoint(self) -> Checkpoint | None:
        """The checkpoint that was given, or the base's."""
        return self.checkpoint or self.base_checkpoint

    @property
    def with_new_rows(self) -> Checkpoint | Graft | None:
        """What may hold new rows."""
        return self.checkpoint or self.graft

    @property
    def spare_rows(self) -> int | None:
        """The family's spare rows; None where it has none."""
        return (self.family.spare_rows or None) if self.family else None

    @property
    def checkpoint_paths(self) -> list[Path] | None:
        """Every checkpoint file that was named, whether it could be opened or not."""
        paths = [self.settings.checkpoint, self.base.checkpoint if self.base else None]
        return [path for path in paths if path is not None and os.path.isfile(path)] or None

    @property
    def base_pieces(self) -> int | None:
        """The base's number of pieces."""
        return self.base_tokenizer.size if self.base_tokenizer else None

    @property
    def spelling(self) -> Spelling | None:
        """How the new language is spelled; without the base's own tokenizer the grown one stands for both."""
        if self.family is None or self.tokenizer is None:
            return None
        base = self.base_tokenizer or self.tokenizer
        return Spelling.of(self.family, base, self.tokenizer, self.settings.language, self.rules)

    @property
    def rules(self) -> TextRules:
        """Text rules of the graft. How others normalised their texts is not known: those are read as they are."""
        if self.graft is not None and (self.grown is None or self.grown.sha256 == self.graft.tokenizer.sha256):
            return self.graft.card.rules
        beside = rules_beside(self.grown.path) if self.grown is not None else None
        return beside or TextRules(NO_RULES, self.settings.language or "")

    def attempt(self, make: Callable[[], Made]) -> Made | None:
        """What `make` gives; None, and a finding, if it meets one of our errors."""
        try:
            return make()
        except VoxgraftError as error:
            self.findings.append(error.finding)
            return None


@contextlib.contextmanager
def opened(settings: CheckSettings) -> Iterator[Subject]:
    """All parts that the settings name, open until the block ends."""
    subject = Subject(settings)
    with contextlib.ExitStack() as stack:
        _open_base(subject, stack)
        _open_tokenizer(subject)
        if (path := settings.checkpoint) is not None:
            foreign = subject.attempt(lambda: stack.enter_context(open_foreign(path)))
            subject.checkpoint = _unwrapped(subject, foreign)
        if (old := settings.base_config) is not None:
            subject.old = subject.attempt(lambda: read_old_numbers(old))
        if paths := subject.text_paths:
            subject.texts = subject.attempt(lambda: read_texts(paths))
        if (prepared := settings.prepared) is not None:
            subject.prepared = subject.attempt(lambda: existing_folder(prepared))
        if subject.family is None:
            subject.family = _family(subject)
        _refuse_other_family(subject)
        yield subject


def _open_base(subject: Subject, stack: contextlib.ExitStack) -> None:
    settings = subject.settings
    if settings.base is None:
        return
    folder = settings.base
    found = subject.family = subject.attempt(lambda: base_family(folder, settings.family))
    if found is None:
        return
    files = subject.base = subject.attempt(lambda: found.files(folder))
    if files is not None:
        subject.base_tokenizer = subject.attempt(lambda: open_tokenizer(files.tokenizer))
        subject.base_checkpoint = _open_checkpoint(subject, files.checkpoint, stack)


def _open_checkpoint(subject: Subject, path: Path, stack: contextlib.ExitStack) -> Checkpoint | None:
    return subject.attempt(lambda: stack.enter_context(open_checkpoint(path)))


def _unwrapped(subject: Subject, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """A wrapper's name before all others is told, and then looked past; so are other models, and an old format."""
    if checkpoint is None:
        return None
    where = checkpoint.path
    if checkpoint.format == "torch-legacy":
        found = f"{where.name} is a torch file from before torch 1.6"
        cure = "save it again: `voxgraft repair OLD --base BASE --output NEW.safetensors`; nothing in it is run."
        subject.findings.append(finding("checkpoint-legacy", found, where=where, level="warning", cure=cure))
    prefix, others = common_prefix(checkpoint), len(beside(checkpoint))
    if prefix or others:
        words = [f"every name of the model in {where.name} starts with {prefix!r}"] if prefix else []
        words += [f"{others:,} tensors of other models are beside it"] if others else []
        subject.findings.append(finding("checkpoint-prefixed", ", and ".join(words), where=where))
    plain = without_prefix(checkpoint)
    forms = subject.attempt(lambda: forms_of(plain, subject.base_checkpoint, table_names(subject.family))) or Forms()
    if forms.doubles:
        subject.attempt(lambda: subject.findings.append(_double_finding(plain, forms)))
    for name in forms.transposed:
        shape = plain.tensors[name].shape
        expected = f"{list(shape[::-1])}, one row for each piece"
        found = f"{name} is transposed: {list(shape)}"
        subject.findings.append(finding("table-transposed", found, expected=expected, where=where))
    return in_forms(plain, forms)


def _double_finding(checkpoint: Checkpoint, forms: Forms) -> Finding:
    rounded = num_rounded(checkpoint, forms.doubles)
    loss = f"{rounded:,} values are rounded in float32" if rounded else "float32 holds every value exactly"
    found = f"{len(forms.doubles):,} of {len(checkpoint.tensors):,} tensors are float64; {loss}"
    return finding("checkpoint-float64", found, expected="float32, float16 or bfloat16", where=checkpoint.path)


def _open_tokenizer(subject: Subject) -> None:
    """The tokenizer that is named, else the graft's. A graft whose parts do not fit still has a tokenizer."""
    named, run = subject.settings.tokenizer.file, subject.settings.run
    if named is not None:
        subject.grown = subject.attempt(lambda: open_tokenizer(named))
    if run is None:
        return
    folder = RunFolder(run).graft
    if not os.path.isdir(folder):
        subject.findings.append(finding("graft-missing", f"{run} has no {folder.name} folder", where=run))
        return
    subject.graft = subject.attempt(lambda: open_graft(folder))
    if named is None:
        subject.grown = subject.graft.tokenizer if subject.graft else _tokenizer_of(subject, folder)


def _tokenizer_of(subject: Subject, folder: Path) -> Tokenizer | None:
    card = subject.attempt(lambda: read_card(folder))
    return subject.attempt(lambda: open_tokenizer(folder / card.tokenizer)) if card else None


def _family(subject: Subject) -> Family | None:
    """Without a base: what was named, else what the graft, the tensors, the old config, the special pieces say."""
    checkpoint, tokenizer, name = subject.checkpoint, subject.grown, subject.settings.family
    if name is not None:
        return family(name)
    if subject.settings.base is not None:
        return None  # that the base is of no known family has been said
    if subject.graft is not None:
        return family(subject.graft.card.family)
    if checkpoint is not None and not is_stand_in(checkpoint):
        return subject.attempt(lambda: family_of_checkpoint(checkpoint, None))
    if subject.old is not None and subject.old.family is not None:
        return family(subject.old.family)
    if tokenizer is not None:
        return subject.attempt(lambda: base_tokenizer(tokenizer.path, None)[0])
    return None


def _refuse_other_family(subject: Subject) -> None:
    """A checkpoint of another family, or with no text table at all, is told and not looked at any further."""
    checkpoint, wanted = subject.checkpoint, subject.family
    if checkpoint is None or wanted is None or is_stand_in(checkpoint):
        return
    actual = subject.attempt(lambda: family_of_checkpoint(checkpoint, None))
    if actual is not None and actual.name != wanted.name:
        found = f"{checkpoint.path.name} has the text tables of {actual.name}"
        subject.findings.append(finding("checkpoint-family", found, expected=wanted.name, where=checkpoint.path))
    if actual is None or actual.name != wanted.name:
        subject.checkpoint = None
