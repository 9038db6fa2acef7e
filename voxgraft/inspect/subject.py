"""What is looked at: every part that was given, opened as far as it can be.

A part that cannot be opened becomes a finding and stays away, so that the others are still looked at.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from voxgraft.checkpoints.base import FLOAT_DTYPES, Checkpoint, TensorInfo
from voxgraft.checkpoints.load import (
    Forms,
    find_model_prefix,
    forms_of,
    in_forms,
    list_other_model_tensors,
    num_rounded,
    open_any_checkpoint,
    open_checkpoint,
    strip_model_prefix,
)
from voxgraft.config.commands import CheckSettings
from voxgraft.core.errors import ConfigError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import compute_sha256, read_json, require_file, require_folder
from voxgraft.core.run import RunFolder
from voxgraft.data.selection import resolve_text_files
from voxgraft.graft.folder import (
    RUN_CARD_NAME,
    Graft,
    collect_graft_settings,
    find_text_rules,
    load_base_tokenizer,
    load_graft,
    read_graft_card,
    resolve_base_family,
)
from voxgraft.graft.rows import detect_checkpoint_family
from voxgraft.migrate.configs import LegacyConfig, LegacyKey, read_legacy_config
from voxgraft.models import detect, get_family
from voxgraft.models.base import BaseFiles, Family, GraftPoint
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import TextCorpus, Tokenizer, read_texts

_CONFIG_SIZE_KEYS = ("model.n_vocab", "gpt.number_text_tokens")
_CONFIG_RATE_KEYS = ("training.learning_rate", "--learning-rate")
_CONFIG_DECAY_KEYS = ("training.weight_decay", "--weight-decay")
_CONFIG_STEP_KEYS = ("training.max_steps", "--max-steps")
_CONFIG_FREEZE_KEYS = ("model.freeze_original_embeddings", "finetuning.freeze_original_embeddings")


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """A number and the key under which it stands. `as_text`: YAML took it for a text."""

    key: str
    value: float
    as_text: bool = False

    @property
    def count(self) -> int:
        return int(self.value)


@dataclass(frozen=True, slots=True)
class OldConfigNumbers:
    """What an old config or command line says; None where it says nothing."""

    path: Path
    family: str | None
    pieces: StatedNumber | None
    """The number of text tokens that the model is built with."""
    original_pieces: StatedNumber | None
    freeze_until: StatedNumber | None
    freeze_original: bool | None
    learning_rate: StatedNumber | None
    weight_decay: StatedNumber | None
    steps: StatedNumber | None
    start_text: StatedNumber | None = None
    stop_text: StatedNumber | None = None


def read_old_config_numbers(path: Path) -> OldConfigNumbers:
    """The file's numbers; other keys are passed over, since nothing here is taken over into a run."""
    reader = _OldConfigReader(read_legacy_config(path))
    return OldConfigNumbers(
        path,
        family=reader.old.family,
        pieces=reader.count(_CONFIG_SIZE_KEYS),
        original_pieces=reader.count(("model.original_vocab_size",)),
        freeze_until=reader.count(("model.freeze_until_index", "finetuning.freeze_until_index")),
        freeze_original=reader.switch(_CONFIG_FREEZE_KEYS),
        learning_rate=reader.number(_CONFIG_RATE_KEYS),
        weight_decay=reader.number(_CONFIG_DECAY_KEYS),
        steps=reader.count(_CONFIG_STEP_KEYS),
        start_text=reader.count(("gpt.start_text_token",)),
        stop_text=reader.count(("gpt.stop_text_token",)),
    )


@dataclass(frozen=True, slots=True)
class _OldConfigReader:
    old: LegacyConfig

    def number(self, keys: tuple[str, ...]) -> StatedNumber | None:
        """The first of the keys that is there, as a number of 0 or more."""
        if (found := self._first(keys)) is None:
            return None
        number = _parse_finite_float(found.value)
        if number is None or number < 0:
            raise self._wrong(found, "a number, 0 or more")
        # On a command line every value is a text, and that is no mistake there.
        return StatedNumber(found.name, number, isinstance(found.value, str) and found.line is None)

    def count(self, keys: tuple[str, ...]) -> StatedNumber | None:
        """As `number`, for whole numbers."""
        stated = self.number(keys)
        if stated is not None and stated.value != stated.count:
            found = f"`{stated.key}` is {stated.value:g}"
            raise ConfigError("config-value", found, expected="a whole number", where=self.old.path)
        return stated

    def switch(self, keys: tuple[str, ...]) -> bool | None:
        """The first of the keys that is there, as true or false."""
        found = self._first(keys)
        if found is not None and not isinstance(found.value, bool):
            raise self._wrong(found, "true or false")
        return found.value if found is not None else None

    def _first(self, keys: tuple[str, ...]) -> LegacyKey | None:
        """A flag stands behind the name of its script. Of two values the last counts."""
        by_name = {key.name.rpartition(" ")[2]: key for key in self.old.keys if key.value is not None}
        return next((by_name[key] for key in keys if key in by_name), None)

    def _wrong(self, key: LegacyKey, expected: str) -> ConfigError:
        return ConfigError("config-value", f"`{key.name}` is {key.value!r:.60}", expected=expected, where=self.old.path)


def _parse_finite_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


MAX_TABLE_ROWS = 1 << 20
"""No tokenizer has more pieces. A hostile file can state any number, in a few bytes, and every row is looked at."""


def is_stand_in(checkpoint: Checkpoint) -> bool:
    """Whether this is an encoder with a spectrogram decoder that only borrows the base's text table."""
    return detect.is_stand_in(checkpoint.tensors)


def find_text_tables(checkpoint: Checkpoint, family: Family) -> dict[GraftPoint, TensorInfo]:
    """The tables that are there and have the form of rows, in the family's order."""
    tables: dict[GraftPoint, TensorInfo] = {}
    for point in family.graft_points:
        name = detect.STAND_IN_TABLE if point.role == "embedding" and is_stand_in(checkpoint) else point.tensor
        info = checkpoint.tensors.get(name)
        rank = 1 if point.role == "head-bias" else 2
        if (
            info is not None
            and info.dtype in FLOAT_DTYPES
            and len(info.shape) == rank
            and info.shape[0] <= MAX_TABLE_ROWS
        ):
            tables[point] = info
    return tables


def table_names(family: Family | None) -> list[str]:
    """Tensors of the family's text tables, without the bias of a head."""
    return [point.tensor for point in family.graft_points if point.role != "head-bias"] if family else []


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


def provenance_findings(subject: CheckSubject) -> list[Finding]:
    """Hashes that the run and its graft state, against the files that are there now."""
    run, base = subject.run, subject.base
    if run is None or base is None:
        return []
    card = _read_run_card(run / RUN_CARD_NAME) if os.path.exists(run / RUN_CARD_NAME) or subject.graft else {}
    stated: dict[Path, str] = {base.folder / name: digest for name, digest in _stated_hashes(card, "base").items()}
    if subject.graft is not None:
        for part in ("checkpoint", "tokenizer"):
            name, digest = (subject.graft.card.base.get(key) for key in (part, f"{part}_sha256"))
            if isinstance(name, str) and isinstance(digest, str):
                stated.setdefault(base.folder / name, digest)
    findings = [item for path, digest in stated.items() for item in _hash_findings(path, digest, "base-other")]
    for path, digest in _stated_hashes(card, "texts").items():
        findings += _hash_findings(run / path, digest, "texts-changed")
    return findings + _changed_settings_findings(subject, card) + _graft_tokenizer_findings(subject)


def _changed_settings_findings(subject: CheckSubject, card: dict[str, Any]) -> list[Finding]:
    """Settings that were changed after the graft was made."""
    stated, now = card.get("settings"), collect_graft_settings(subject.settings)
    if subject.graft is None or not isinstance(stated, dict):
        return []
    changed = [
        f"{key} was {_shorten_json(stated.get(key))}, is {_shorten_json(now[key])}"
        for key in now
        if stated.get(key) != now[key]
    ]
    texts = {os.path.realpath(subject.graft.folder.parent / path) for path in _stated_hashes(card, "texts")}
    if subject.settings.texts and texts != {os.path.realpath(path) for path in subject.settings.texts}:
        changed.append("texts are other files")
    found = f"settings have changed since the graft was made: {'; '.join(changed)}"
    return [finding("run-changed", found, where=subject.graft.folder.parent)] if changed else []


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


def _graft_tokenizer_findings(subject: CheckSubject) -> list[Finding]:
    graft, named = subject.graft, subject.grown
    if graft is None or named is None or graft.tokenizer.sha256 == named.sha256:
        return []
    found = f"{named.path} has sha256 {named.sha256[:12]}, the graft's tokenizer {graft.tokenizer.sha256[:12]}"
    return [finding("graft-other-tokenizer", found, where=graft.folder)]
