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

from voxgraft.bases import load_base_tokenizer, resolve_base_family
from voxgraft.checkpoints.forms import Forms, forms_of, in_forms, num_rounded
from voxgraft.checkpoints.model import Checkpoint
from voxgraft.checkpoints.opening import open_any_checkpoint, open_checkpoint
from voxgraft.checkpoints.prefixes import find_model_prefix, list_other_model_tensors, strip_model_prefix
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.families import get_family
from voxgraft.families.base import BaseFiles, Family
from voxgraft.files import require_folder
from voxgraft.findings.old_numbers import OldConfigNumbers, read_old_config_numbers
from voxgraft.findings.text_tables import is_stand_in, table_names
from voxgraft.graft_folder import Graft, find_text_rules, load_graft, read_graft_card
from voxgraft.normalising import NO_RULES, TextRules
from voxgraft.preparing.choosing import resolve_text_files
from voxgraft.run import RunFolder
from voxgraft.settings import CheckSettings
from voxgraft.spelling import TextEncoder
from voxgraft.tables import detect_checkpoint_family
from voxgraft.text.texts import TextCorpus, read_texts
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer

PartT = TypeVar("PartT")


@dataclass(slots=True)
class CheckSubject:
    """The parts; None where a part was not given or could not be opened."""

    settings: CheckSettings
    family: Family | None = None
    base: BaseFiles | None = None
    base_tokenizer: Tokenizer | None = None
    base_checkpoint: Checkpoint | None = None
    graft: Graft | None = None
    grown: Tokenizer | None = None
    checkpoint: Checkpoint | None = None
    old: OldConfigNumbers | None = None
    texts: TextCorpus | None = None
    prepared: Path | None = None
    findings: list[Finding] = field(default_factory=list)
    """What went wrong while the parts were opened."""

    @property
    def run(self) -> Path | None:
        return self.settings.run

    @property
    def text_paths(self) -> tuple[Path, ...]:
        """Texts that are named, else the manifest of the run."""
        return resolve_text_files(self.settings, self.run)

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
    def spelling(self) -> TextEncoder | None:
        """How the new language is spelled; without the base's own tokenizer the grown one stands for both."""
        if self.family is None or self.tokenizer is None:
            return None
        base = self.base_tokenizer or self.tokenizer
        return TextEncoder.of(self.family, base, self.tokenizer, self.settings.language, self.rules)

    @property
    def rules(self) -> TextRules:
        """Text rules of the graft. How others normalised their texts is not known: those are read as they are."""
        if self.graft is not None and (self.grown is None or self.grown.sha256 == self.graft.tokenizer.sha256):
            return self.graft.card.rules
        beside = find_text_rules(self.grown.path) if self.grown is not None else None
        return beside or TextRules(NO_RULES, self.settings.language or "")

    def try_or_report(self, make: Callable[[], PartT]) -> PartT | None:
        """What `make` gives; None, and a finding, if it meets one of our errors."""
        try:
            return make()
        except VoxgraftError as error:
            self.findings.append(error.finding)
            return None


@contextlib.contextmanager
def open_check_subject(settings: CheckSettings) -> Iterator[CheckSubject]:
    """All parts that the settings name, open until the block ends."""
    subject = CheckSubject(settings)
    with contextlib.ExitStack() as stack:
        _open_subject_base(subject, stack)
        _open_subject_tokenizer(subject)
        if (path := settings.checkpoint) is not None:
            foreign = subject.try_or_report(lambda: stack.enter_context(open_any_checkpoint(path)))
            subject.checkpoint = _strip_wrapper(subject, foreign)
        if (old := settings.base_config) is not None:
            subject.old = subject.try_or_report(lambda: read_old_config_numbers(old))
        if paths := subject.text_paths:
            subject.texts = subject.try_or_report(lambda: read_texts(paths))
        if (prepared := settings.prepared) is not None:
            subject.prepared = subject.try_or_report(lambda: require_folder(prepared))
        if subject.family is None:
            subject.family = _detect_family(subject)
        _refuse_other_family(subject)
        yield subject


def _open_subject_base(subject: CheckSubject, stack: contextlib.ExitStack) -> None:
    settings = subject.settings
    if settings.base is None:
        return
    folder = settings.base
    found = subject.family = subject.try_or_report(lambda: resolve_base_family(folder, settings.family))
    if found is None:
        return
    files = subject.base = subject.try_or_report(lambda: found.files(folder))
    if files is not None:
        subject.base_tokenizer = subject.try_or_report(lambda: open_tokenizer(files.tokenizer))
        subject.base_checkpoint = _try_open_checkpoint(subject, files.checkpoint, stack)


def _try_open_checkpoint(subject: CheckSubject, path: Path, stack: contextlib.ExitStack) -> Checkpoint | None:
    return subject.try_or_report(lambda: stack.enter_context(open_checkpoint(path)))


def _strip_wrapper(subject: CheckSubject, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """A wrapper's name before all others is told, and then looked past; so are other models, and an old format."""
    if checkpoint is None:
        return None
    where = checkpoint.path
    if checkpoint.format == "torch-legacy":
        found = f"{where.name} is a torch file from before torch 1.6"
        cure = "save it again: `voxgraft repair OLD --base BASE --output NEW.safetensors`; nothing in it is run."
        subject.findings.append(finding("checkpoint-legacy", found, where=where, level="warning", cure=cure))
    prefix, others = find_model_prefix(checkpoint), len(list_other_model_tensors(checkpoint))
    if prefix or others:
        words = [f"every name of the model in {where.name} starts with {prefix!r}"] if prefix else []
        words += [f"{others:,} tensors of other models are beside it"] if others else []
        subject.findings.append(finding("checkpoint-prefixed", ", and ".join(words), where=where))
    plain = strip_model_prefix(checkpoint)
    forms = (
        subject.try_or_report(lambda: forms_of(plain, subject.base_checkpoint, table_names(subject.family))) or Forms()
    )
    if forms.doubles:
        subject.try_or_report(lambda: subject.findings.append(_double_finding(plain, forms)))
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


def _open_subject_tokenizer(subject: CheckSubject) -> None:
    """The tokenizer that is named, else the graft's. A graft whose parts do not fit still has a tokenizer."""
    named, run = subject.settings.tokenizer.file, subject.settings.run
    if named is not None:
        subject.grown = subject.try_or_report(lambda: open_tokenizer(named))
    if run is None:
        return
    folder = RunFolder(run).graft
    if not os.path.isdir(folder):
        subject.findings.append(finding("graft-missing", f"{run} has no {folder.name} folder", where=run))
        return
    subject.graft = subject.try_or_report(lambda: load_graft(folder))
    if named is None:
        subject.grown = subject.graft.tokenizer if subject.graft else _open_graft_tokenizer(subject, folder)


def _open_graft_tokenizer(subject: CheckSubject, folder: Path) -> Tokenizer | None:
    card = subject.try_or_report(lambda: read_graft_card(folder))
    return subject.try_or_report(lambda: open_tokenizer(folder / card.tokenizer)) if card else None


def _detect_family(subject: CheckSubject) -> Family | None:
    """Without a base: what was named, else what the graft, the tensors, the old config, the special pieces say."""
    checkpoint, tokenizer, name = subject.checkpoint, subject.grown, subject.settings.family
    if name is not None:
        return get_family(name)
    if subject.settings.base is not None:
        return None  # that the base is of no known family has been said
    if subject.graft is not None:
        return get_family(subject.graft.card.family)
    if checkpoint is not None and not is_stand_in(checkpoint):
        return subject.try_or_report(lambda: detect_checkpoint_family(checkpoint, None))
    if subject.old is not None and subject.old.family is not None:
        return get_family(subject.old.family)
    if tokenizer is not None:
        return subject.try_or_report(lambda: load_base_tokenizer(tokenizer.path, None)[0])
    return None


def _refuse_other_family(subject: CheckSubject) -> None:
    """A checkpoint of another family, or with no text table at all, is told and not looked at any further."""
    checkpoint, wanted = subject.checkpoint, subject.family
    if checkpoint is None or wanted is None or is_stand_in(checkpoint):
        return
    actual = subject.try_or_report(lambda: detect_checkpoint_family(checkpoint, None))
    if actual is not None and actual.name != wanted.name:
        found = f"{checkpoint.path.name} has the text tables of {actual.name}"
        subject.findings.append(finding("checkpoint-family", found, expected=wanted.name, where=checkpoint.path))
    if actual is None or actual.name != wanted.name:
        subject.checkpoint = None
