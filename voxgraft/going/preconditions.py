"""What the stages after training will need, looked at before it: sentences, recogniser, kind and place of the export.

Training takes hours; what can be known before it must not end `run_pipeline` after it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from voxgraft.bases import resolve_base_family, resolve_base_folder
from voxgraft.errors import ConfigError, GraftError
from voxgraft.evaluating.hearing import require_recognizer
from voxgraft.evaluating.sentences import load_sentence_sets, require_sentences
from voxgraft.export import SHAREABLE_KINDS, choose_export_kind, require_export_folder, require_export_kind
from voxgraft.exporting.folder import require_export_space
from voxgraft.families.base import Family
from voxgraft.files import is_folder
from voxgraft.going.stage import PipelineContext
from voxgraft.preparing.choosing import resolve_manifest_path
from voxgraft.tokenizers import open_tokenizer

__all__ = ["require_later_stages"]

EXPORT_CHECKPOINT_COPIES = 3
"""Checkpoints of the base's size that an export for the stock program needs room for: two, and one being saved."""


def require_later_stages(work: PipelineContext, stages: Collection[str], *, after_data: bool = False) -> None:
    """Raise the error that `evaluate` or `export` would end with. `again`: only what the data can have changed."""
    settings = work.settings
    if settings.base is None or settings.language is None:
        return  # the stages that need them first say so
    folder = resolve_base_folder(settings.base)
    family = resolve_base_family(folder, settings.family)
    if "evaluate" in stages:
        if not after_data:
            require_recognizer(settings.evaluate.recogniser, settings.language)
            _require_sentence_files(work, family, folder)
        manifest = resolve_manifest_path(settings.data.dataset, work.run.data)
        valid = settings.data.valid or (work.run.data_set("valid"),)
        require_sentences(manifest, valid, settings.language, work.told.sentences)
    if "export" in stages:
        _require_export_possible(work, family, folder)


def _require_sentence_files(work: PipelineContext, family: Family, folder: Path) -> None:
    """Files with sentences must be sets of a language that is spoken."""
    if work.told.sentences:
        files = family.files(folder)
        base = family.describe(files, open_tokenizer(files.tokenizer).size + family.spare_rows).languages
        load_sentence_sets(
            [work.language, *(name for name in base if name != work.language)], work.told.sentences, work.told.most
        )


def _require_export_possible(work: PipelineContext, family: Family, folder: Path) -> None:
    """The kind must be one of this base and of this training, and its folder free or an export of ours."""
    train = work.settings.train
    merged = train.mode == "merged"
    kind = work.told.to or choose_export_kind(family.name, merged=merged)
    require_export_kind(family, kind)
    if kind == "peft" and train.mode == "rows-only":
        found = "--to peft, and train.mode is rows-only: there will be no adapter"
        raise ConfigError("export-kind", found, expected=f"graft, {family.name}", where=work.run.settings)
    if kind in SHAREABLE_KINDS and merged and train.full_body:
        found = f"--to {kind}, and train.full_body changes the body itself: what it leaves is no graft"
        raise GraftError("export-kind", found, expected=f"--to {family.name}", where=work.run.settings)
    output = work.run.export / kind
    require_export_folder(output, overwrite=is_folder(output))
    if kind not in SHAREABLE_KINDS:
        require_export_space(output, EXPORT_CHECKPOINT_COPIES * family.files(folder).checkpoint.stat().st_size)
