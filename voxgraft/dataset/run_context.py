"""The run context: base, graft and tokenizers of a run, opened once, and what its sets of clips must fit.

A part that cannot be opened becomes a finding and stays None, so that `check` can still look at the others. Commands
that need a part call one of the `require_` methods.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from voxgraft.checkpoints.base import Checkpoint
from voxgraft.checkpoints.load import open_checkpoint
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import compute_sha256, read_json, require_file
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.dataset.run_data import DataRequirements
from voxgraft.graft.folder import (
    RUN_CARD_NAME,
    Graft,
    collect_graft_settings,
    find_text_rules,
    load_graft,
    read_graft_card,
)
from voxgraft.models import resolve_base_family
from voxgraft.models.base import BaseFiles, Family
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer

PartT = TypeVar("PartT")


@dataclass(slots=True)
class RunContext:
    """The parts of a run; None where a part was not given or could not be opened."""

    settings: RunSettings
    run: Path | None
    family: Family | None = None
    base: BaseFiles | None = None
    base_tokenizer: Tokenizer | None = None
    base_checkpoint: Checkpoint | None = None
    graft: Graft | None = None
    grown: Tokenizer | None = None
    findings: list[Finding] = field(default_factory=list)
    """What went wrong while the parts were opened."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The grown tokenizer, or the base's where there is no other."""
        return self.grown or self.base_tokenizer

    @property
    def base_pieces(self) -> int | None:
        """The base's number of pieces."""
        return self.base_tokenizer.size if self.base_tokenizer else None

    @property
    def spelling(self) -> TextEncoder | None:
        """How the new language is spelled; without the base's own tokenizer the grown one takes its place."""
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

    @property
    def data_requirements(self) -> DataRequirements | None:
        """What the run's sets of clips must fit; None unless base and graft are there."""
        run, graft, family, base = self.run, self.graft, self.family, self.base
        tokenizer, checkpoint = self.base_tokenizer, self.base_checkpoint
        if run is None or graft is None or family is None or base is None or tokenizer is None or checkpoint is None:
            return None
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        return DataRequirements.of(RunFolder(run), self.settings, graft, (family, base, tokenizer), shapes)

    def require_base(self) -> tuple[Family, BaseFiles]:
        """The base; an error where none is named."""
        if self.family is None or self.base is None:
            where = self.run / RUN_FILE if self.run is not None else ""
            raise ConfigError("config-missing", "`base` is not given", where=where)
        return self.family, self.base

    def require_data(self) -> DataRequirements:
        """What the run's sets must fit; an error where the base or the graft is missing."""
        self.require_base()
        if self.graft is None and self.run is not None:
            load_graft(RunFolder(self.run).graft)  # raises what is wrong with it
        wanted = self.data_requirements
        assert wanted is not None  # what could not be opened is among the findings, which the caller has looked at
        return wanted

    def try_or_report(self, make: Callable[[], PartT]) -> PartT | None:
        """What `make` gives; None, and a finding, if it meets one of our errors."""
        try:
            return make()
        except VoxgraftError as error:
            self.findings.append(error.finding)
            return None


@contextlib.contextmanager
def open_run_context(settings: RunSettings, run: Path) -> Iterator[RunContext]:
    """Base, graft and tokenizers of a run, open until the block ends."""
    context = RunContext(settings, run)
    with contextlib.ExitStack() as stack:
        open_run_parts(context, stack)
        yield context


def open_run_parts(context: RunContext, stack: contextlib.ExitStack) -> None:
    """Open what the settings name; the stack closes the base's checkpoint."""
    _open_base(context, stack)
    _open_tokenizer_and_graft(context)


def _open_base(context: RunContext, stack: contextlib.ExitStack) -> None:
    settings = context.settings
    if settings.base is None:
        return
    folder = settings.base
    found = context.family = context.try_or_report(lambda: resolve_base_family(folder, settings.family))
    if found is None:
        return
    files = context.base = context.try_or_report(lambda: found.files(folder))
    if files is not None:
        context.base_tokenizer = context.try_or_report(lambda: open_tokenizer(files.tokenizer))
        context.base_checkpoint = context.try_or_report(lambda: stack.enter_context(open_checkpoint(files.checkpoint)))


def _open_tokenizer_and_graft(context: RunContext) -> None:
    """The tokenizer that is named, else the graft's. A graft whose parts do not fit still has a tokenizer."""
    named, run = context.settings.tokenizer.file, context.run
    if named is not None:
        context.grown = context.try_or_report(lambda: open_tokenizer(named))
    if run is None:
        return
    folder = RunFolder(run).graft
    if not os.path.isdir(folder):
        context.findings.append(finding("graft-missing", f"{run} has no {folder.name} folder", where=run))
        return
    context.graft = context.try_or_report(lambda: load_graft(folder))
    if named is None:
        context.grown = context.graft.tokenizer if context.graft else _open_graft_tokenizer(context, folder)


def _open_graft_tokenizer(context: RunContext, folder: Path) -> Tokenizer | None:
    card = context.try_or_report(lambda: read_graft_card(folder))
    return context.try_or_report(lambda: open_tokenizer(folder / card.tokenizer)) if card else None


def provenance_findings(context: RunContext) -> list[Finding]:
    """Hashes that the run and its graft state, against the files that are there now."""
    run, base = context.run, context.base
    if run is None or base is None:
        return []
    card = _read_run_card(run / RUN_CARD_NAME) if os.path.exists(run / RUN_CARD_NAME) or context.graft else {}
    stated: dict[Path, str] = {base.folder / name: digest for name, digest in _stated_hashes(card, "base").items()}
    if context.graft is not None:
        for part in ("checkpoint", "tokenizer"):
            name, digest = (context.graft.card.base.get(key) for key in (part, f"{part}_sha256"))
            if isinstance(name, str) and isinstance(digest, str):
                stated.setdefault(base.folder / name, digest)
    findings = [item for path, digest in stated.items() for item in _hash_findings(path, digest, "base-other")]
    for path, digest in _stated_hashes(card, "texts").items():
        findings += _hash_findings(run / path, digest, "texts-changed")
    return findings + _changed_settings_findings(context, card) + _graft_tokenizer_findings(context)


def _changed_settings_findings(context: RunContext, card: dict[str, Any]) -> list[Finding]:
    """Settings that were changed after the graft was made."""
    stated, now = card.get("settings"), collect_graft_settings(context.settings)
    if context.graft is None or not isinstance(stated, dict):
        return []
    changed = [
        f"{key} was {_shorten_json(stated.get(key))}, is {_shorten_json(now[key])}"
        for key in now
        if stated.get(key) != now[key]
    ]
    texts = {os.path.realpath(context.graft.folder.parent / path) for path in _stated_hashes(card, "texts")}
    if context.settings.texts and texts != {os.path.realpath(path) for path in context.settings.texts}:
        changed.append("texts are other files")
    found = f"settings have changed since the graft was made: {'; '.join(changed)}"
    return [finding("run-changed", found, where=context.graft.folder.parent)] if changed else []


def _shorten_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _read_run_card(path: Path) -> dict[str, Any]:
    card = read_json(require_file(path))
    if not isinstance(card, dict):
        raise GraftError("graft-broken", f"{path.name} holds no keys", where=path)
    return card


def _stated_hashes(card: dict[str, Any], key: str) -> dict[str, str]:
    """File names with their SHA-256, as the card states them."""
    value = card.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(digest, str) for digest in value.values()):
        raise GraftError("graft-broken", f"`{key}` in {RUN_CARD_NAME} is no list of files with their SHA-256")
    return value


def _hash_findings(path: Path, stated: str, code: str) -> list[Finding]:
    if not os.path.isfile(path):
        return [finding(code, f"{path.name}, from which the run was made, is not there", where=path)]
    actual = compute_sha256(path)
    if actual == stated:
        return []
    found = f"{path.name} has sha256 {actual[:12]}"
    return [finding(code, found, expected=f"{stated[:12]}, as when the graft was made", where=path)]


def _graft_tokenizer_findings(context: RunContext) -> list[Finding]:
    graft, named = context.graft, context.grown
    if graft is None or named is None or graft.tokenizer.sha256 == named.sha256:
        return []
    found = f"{named.path} has sha256 {named.sha256[:12]}, the graft's tokenizer {graft.tokenizer.sha256[:12]}"
    return [finding("graft-other-tokenizer", found, where=graft.folder)]
