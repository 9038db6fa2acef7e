"""What the stages after training will need, looked at before it: sentences, recogniser, kind and place of the export.

Training takes hours; what can be known before it must not end `go` after it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from voxgraft.bases import base_family, base_folder
from voxgraft.errors import ConfigError, GraftError
from voxgraft.evaluating.hearing import require_recogniser
from voxgraft.evaluating.sentences import require_sentences, sets_of
from voxgraft.export import SHARED, default_kind, require_kind, require_place
from voxgraft.exporting.folder import require_room
from voxgraft.families.base import Family
from voxgraft.files import is_folder
from voxgraft.going.stage import Work
from voxgraft.preparing.choosing import manifest_path
from voxgraft.tokenizers import open_tokenizer

__all__ = ["require_for_later"]

PARTS = 3
"""Checkpoints of the base's size that an export for the stock program needs room for: two, and one being saved."""


def require_for_later(work: Work, stages: Collection[str], *, again: bool = False) -> None:
    """Raise the error that `evaluate` or `export` would end with. `again`: only what the data can have changed."""
    settings = work.settings
    if settings.base is None or settings.language is None:
        return  # the stages that need them first say so
    folder = base_folder(settings.base)
    family = base_family(folder, settings.family)
    if "evaluate" in stages:
        if not again:
            require_recogniser(settings.evaluate.recogniser, settings.language)
            _require_files(work, family, folder)
        manifest = manifest_path(settings.data.dataset, work.run.data)
        valid = settings.data.valid or (work.run.data_set("valid"),)
        require_sentences(manifest, valid, settings.language, work.told.sentences)
    if "export" in stages:
        _require_export(work, family, folder)


def _require_files(work: Work, family: Family, folder: Path) -> None:
    """Files with sentences must be sets of a language that is spoken."""
    if work.told.sentences:
        files = family.files(folder)
        base = family.describe(files, open_tokenizer(files.tokenizer).size + family.spare_rows).languages
        sets_of([work.language, *(name for name in base if name != work.language)], work.told.sentences, work.told.most)


def _require_export(work: Work, family: Family, folder: Path) -> None:
    """The kind must be one of this base and of this training, and its folder free or an export of ours."""
    train = work.settings.train
    merged = train.mode == "merged"
    kind = work.told.to or default_kind(family.name, merged=merged)
    require_kind(family, kind)
    if kind == "peft" and train.mode == "rows-only":
        found = "--to peft, and train.mode is rows-only: there will be no adapter"
        raise ConfigError("export-kind", found, expected=f"graft, {family.name}", where=work.run.settings)
    if kind in SHARED and merged and train.full_body:
        found = f"--to {kind}, and train.full_body changes the body itself: what it leaves is no graft"
        raise GraftError("export-kind", found, expected=f"--to {family.name}", where=work.run.settings)
    output = work.run.export / kind
    require_place(output, overwrite=is_folder(output))
    if kind not in SHARED:
        require_room(output, PARTS * family.files(folder).checkpoint.stat().st_size)
