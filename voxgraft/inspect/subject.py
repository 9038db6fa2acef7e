"""What is looked at: every part that was given, opened as far as it can be.

A part that cannot be opened becomes a finding and stays away, so that the others are still looked at.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import FLOAT_DTYPES, Checkpoint, Shape, TensorInfo
from voxgraft.checkpoints.load import (
    MAX_TABLE_ROWS,
    find_model_prefix,
    forms_of,
    in_forms,
    iter_values,
    list_other_model_tensors,
    open_any_checkpoint,
    strip_model_prefix,
    unwrap_parts,
)
from voxgraft.config.commands import CheckSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import ConfigError, Finding, finding
from voxgraft.core.files import require_folder
from voxgraft.data.manifest import resolve_text_files
from voxgraft.dataset.run_data import RunContext, open_run_parts
from voxgraft.graft.folder import Graft, load_base_tokenizer
from voxgraft.graft.rows import detect_checkpoint_family
from voxgraft.inspect.legacy import LegacyKey, as_number, read_legacy_config
from voxgraft.models import STAND_IN_TABLE, get_family, has_stand_in_tensors
from voxgraft.models.base import Family, GraftPoint
from voxgraft.tokenizers import TextCorpus, read_texts


class StatedNumber(NamedTuple):
    """A number and its key. `as_text`: YAML read it as a string."""

    key: str
    value: float
    as_text: bool = False

    @property
    def whole(self) -> int:
        return int(self.value)


class OldConfigNumbers(NamedTuple):
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
    """The file's numbers; other keys are ignored, since nothing here becomes a setting of a run."""
    old = read_legacy_config(path)
    # Names of flags start with the name of their script. Of two values the last counts.
    by_name = {key.name.rpartition(" ")[2]: key for key in old.keys if key.value is not None}

    def first(*keys: str) -> LegacyKey | None:
        return next((by_name[key] for key in keys if key in by_name), None)

    def wrong(key: LegacyKey, expected: str) -> ConfigError:
        return ConfigError("config-value", f"`{key.name}` is {key.value!r:.60}", expected=expected, where=path)

    def number(*keys: str) -> StatedNumber | None:
        key = first(*keys)
        if key is None:
            return None
        value = as_number(key.value)
        if value is None or value < 0:
            raise wrong(key, "a number, 0 or more")
        # On a command line every value is a text, and that is no mistake there.
        return StatedNumber(key.name, value, isinstance(key.value, str) and key.line is None)

    def count(*keys: str) -> StatedNumber | None:
        config_number = number(*keys)
        if config_number is not None and config_number.value != config_number.whole:
            found = f"`{config_number.key}` is {config_number.value:g}"
            raise ConfigError("config-value", found, expected="a whole number", where=path)
        return config_number

    freeze = first("model.freeze_original_embeddings", "finetuning.freeze_original_embeddings")
    if freeze is not None and not isinstance(freeze.value, bool):
        raise wrong(freeze, "true or false")
    return OldConfigNumbers(
        path,
        family=old.family,
        pieces=count("model.n_vocab", "gpt.number_text_tokens"),
        original_pieces=count("model.original_vocab_size"),
        freeze_until=count("model.freeze_until_index", "finetuning.freeze_until_index"),
        freeze_original=freeze.value if freeze is not None else None,
        learning_rate=number("training.learning_rate", "--learning-rate"),
        weight_decay=number("training.weight_decay", "--weight-decay"),
        steps=count("training.max_steps", "--max-steps"),
        start_text=count("gpt.start_text_token"),
        stop_text=count("gpt.stop_text_token"),
    )


# Rows that are read at once. Measures are taken in float64: eight copies of a block of full width stay under 50 MB.
BLOCK_ROWS = 512


# Its square does not fit in float32: a norm over such a value gives NaN, as a value that is not finite does.
_LARGEST_SQUARE_ROOT = 1e18


def are_rows_finite(rows: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which rows hold only values that can be computed with."""
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    return np.asarray((np.abs(flat) <= _LARGEST_SQUARE_ROOT).all(axis=1))


def is_stand_in(checkpoint: Checkpoint) -> bool:
    """Whether this is an encoder with a spectrogram decoder that only borrows the base's text table."""
    return has_stand_in_tensors(checkpoint.tensors)


def find_text_tables(checkpoint: Checkpoint, family: Family) -> dict[GraftPoint, TensorInfo]:
    """The tables that exist and have the form of rows, in the family's order."""
    tables: dict[GraftPoint, TensorInfo] = {}
    for point in family.graft_points:
        name = STAND_IN_TABLE if point.role == "embedding" and is_stand_in(checkpoint) else point.tensor
        info = checkpoint.tensors.get(name)
        rank = 1 if point.role == "head-bias" else 2
        if info is None or info.dtype not in FLOAT_DTYPES or len(info.shape) != rank:
            continue
        if info.shape[0] <= MAX_TABLE_ROWS:
            tables[point] = info
    return tables


def table_names(family: Family | None) -> list[str]:
    """Tensors of the family's text tables, without the bias of a head."""
    return [point.tensor for point in family.graft_points if point.role != "head-bias"] if family else []


@dataclass(slots=True)
class CheckSubject(RunContext):
    """A run or loose files, with what else is checked beside them; None where a part was not given or not readable."""

    settings: CheckSettings
    checkpoint: Checkpoint | None = None
    old: OldConfigNumbers | None = None
    texts: TextCorpus | None = None
    prepared: Path | None = None

    @property
    def text_paths(self) -> tuple[Path, ...]:
        """Texts that are named, else the manifest of the run."""
        return resolve_text_files(self.settings, self.run)

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


def to_check_settings(settings: RunSettings, run: Path, checkpoint: Path | None = None) -> CheckSettings:
    """The settings of another command on a run as those of `check`."""
    values = {name: getattr(settings, name) for name in RunSettings.model_fields}
    return CheckSettings(**values, run=run, checkpoint=checkpoint)


@contextlib.contextmanager
def open_check_subject(settings: CheckSettings) -> Iterator[CheckSubject]:
    """All parts that the settings name, open until the block ends."""
    subject = CheckSubject(settings, settings.run)
    with contextlib.ExitStack() as stack:
        open_run_parts(subject, stack)
        if (path := settings.checkpoint) is not None:
            foreign = subject.try_or_report(lambda: stack.enter_context(open_any_checkpoint(path)))
            subject.checkpoint = _strip_wrapper(subject, foreign)
        if (old := settings.training_config) is not None:
            subject.old = subject.try_or_report(lambda: read_old_config_numbers(old))
        if paths := subject.text_paths:
            subject.texts = subject.try_or_report(lambda: read_texts(paths))
        if (prepared := settings.prepared) is not None:
            subject.prepared = subject.try_or_report(lambda: require_folder(prepared))
        if subject.family is None:
            subject.family = _detect_family(subject)
        checkpoint, family = subject.checkpoint, subject.family
        if checkpoint is not None and family is not None and not is_stand_in(checkpoint):
            # A checkpoint of another family, or with no text table at all, is reported and not looked at any further.
            left_out = _left_out_embedding(subject, checkpoint, family)
            actual = subject.try_or_report(lambda: detect_checkpoint_family(checkpoint, None)) if not left_out else None
            if left_out is not None:
                subject.findings.append(left_out)
            elif actual is not None and actual.name != family.name:
                found, where = f"{checkpoint.path.name} has the text embedding of {actual.name}", checkpoint.path
                subject.findings.append(finding("checkpoint-family", found, expected=family.name, where=where))
            if actual is None or actual.name != family.name:
                subject.checkpoint = None
        yield subject


def _left_out_embedding(subject: CheckSubject, checkpoint: Checkpoint, family: Family) -> Finding | None:
    """What to say of a file of the base's model from which the text embedding was left out; None for all others."""
    embedding, base = family.graft_points[0].tensor, subject.base_checkpoint
    # Under whatever prefix: it is the embedding by which a prefix is found.
    forms: dict[str, Shape] = {}
    for name, info in checkpoint.tensors.items():
        parts = name.split(".")
        forms |= {".".join(parts[start:]): info.shape for start in range(len(parts))}
    if base is None or embedding in forms:
        return None
    tables = {point.tensor for point in family.graft_points}
    others = {name: info.shape for name, info in base.tensors.items() if name not in tables}
    shared = sum(forms.get(name) == shape for name, shape in others.items())
    if shared * 2 <= len(others):
        return None
    what = f"{shared:,} of the base's {len(others):,} tensors outside text embedding and text head"
    found = f"{embedding} is not in the file, but the file has {what}"
    cure = "use a file that contains the whole model. No other tensor contains the rows of new tokens."
    return finding("tensor-missing", found, where=checkpoint.path, cure=cure)


def _strip_wrapper(subject: CheckSubject, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """The model alone: reports and then removes a wrapper's prefix and other models; reports an old format, too."""
    if checkpoint is None:
        return None
    where = checkpoint.path
    if checkpoint.format == "torch-legacy":
        found = f"{where.name} is a torch file from before torch 1.6"
        cure = (
            "convert it: `voxgraft repair OLD --base BASE --output NEW.safetensors`. This executes nothing in the file."
        )
        subject.findings.append(finding("checkpoint-legacy", found, where=where, level="warning", cure=cure))
    prefix, others = find_model_prefix(checkpoint), len(list_other_model_tensors(checkpoint))
    wrapped = unwrap_parts(checkpoint) is not checkpoint
    if prefix or others or wrapped:
        problems = [f"every tensor name of the model in {where.name} starts with {prefix!r}"] if prefix else []
        problems += ["some tensor names contain the name of a wrapper"] if wrapped else []
        problems += [f"the file has {others:,} tensors of other models"] if others else []
        subject.findings.append(finding("checkpoint-prefixed", ", and ".join(problems), where=where))
    plain = strip_model_prefix(checkpoint)
    doubles, transposed = subject.try_or_report(
        lambda: forms_of(plain, subject.base_checkpoint, table_names(subject.family))
    ) or ((), ())
    if doubles:
        subject.try_or_report(lambda: subject.findings.append(_double_finding(plain, doubles)))
    tables = [name for name in transposed if name in table_names(subject.family)]
    for name in tables:
        shape = plain.tensors[name].shape
        expected = f"{list(shape[::-1])}, one row per token"
        found = f"{name} is transposed: {list(shape)}"
        subject.findings.append(finding("table-transposed", found, expected=expected, where=where))
    if matrices := [name for name in transposed if name not in tables]:
        found = f"{len(matrices):,} matrices of the backbone are transposed ({matrices[0]}, ...)"
        subject.findings.append(finding("table-transposed", found, expected="the base's shapes", where=where))
    return in_forms(plain, doubles, transposed)


def _double_finding(checkpoint: Checkpoint, names: tuple[str, ...]) -> Finding:
    """How many values of float64 tensors float32 cannot hold exactly. Reading them also verifies their checksums."""
    rounded = 0
    for name in names:
        for raw in iter_values(checkpoint, checkpoint.tensors[name]):
            with np.errstate(over="ignore"):
                short = raw.astype(np.float32).astype(np.float64)
            rounded += int(((short != raw) & ~np.isnan(short)).sum())
    loss = f"{rounded:,} values are rounded in float32" if rounded else "float32 represents every value exactly"
    found = f"{len(names):,} of {len(checkpoint.tensors):,} tensors are float64; {loss}"
    return finding("checkpoint-float64", found, expected="float32, float16 or bfloat16", where=checkpoint.path)


def _detect_family(subject: CheckSubject) -> Family | None:
    """Without a base: what was named, else what the graft, the tensors, the old config, the special pieces say."""
    checkpoint, tokenizer, name = subject.checkpoint, subject.grown, subject.settings.family
    if name is not None:
        return get_family(name)
    if subject.settings.base is not None:
        return None  # that the base is of no known family has been reported
    if subject.graft is not None:
        return get_family(subject.graft.card.family)
    if checkpoint is not None and not is_stand_in(checkpoint):
        return subject.try_or_report(lambda: detect_checkpoint_family(checkpoint, None))
    if subject.old is not None and subject.old.family is not None:
        return get_family(subject.old.family)
    if tokenizer is not None:
        return subject.try_or_report(lambda: load_base_tokenizer(tokenizer.path, None)[0])
    return None
