"""What lies in a folder, by looking into the files: the tensors of every checkpoint, and which tokenizer fits one.

Only headers are read, and no values. What several files would fit is refused with their names, never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from voxgraft.checkpoints.opening import open_checkpoint
from voxgraft.errors import CheckpointError, FileError, Finding, VoxgraftError, finding
from voxgraft.families.base import Family
from voxgraft.families.description import Shape
from voxgraft.files import is_file, require_folder

CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
MAX_SCANNED_FILES = 64
"""A folder with more checkpoints than this is an archive of runs, and no base."""
LFS_POINTER_PREFIX = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """One checkpoint file: its tensors, or why it cannot be opened."""

    path: Path
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    refusal: Finding | None = None


def scan_checkpoint(path: Path) -> CheckpointScan:
    """The names and shapes in one file. A file that cannot be opened is no error here: it is told when it is used."""
    try:
        with open_checkpoint(path) as checkpoint:
            return CheckpointScan(path, {name: info.shape for name, info in checkpoint.tensors.items()})
    except VoxgraftError as error:
        return CheckpointScan(path, refusal=error.finding)


def scan_folder(folder: Path) -> list[CheckpointScan]:
    """Every checkpoint in a folder, by its name; nothing where there are too many to be a base."""
    paths = list_files_with_suffix(folder, CHECKPOINT_SUFFIXES)
    return [scan_checkpoint(path) for path in paths] if len(paths) <= MAX_SCANNED_FILES else []


def list_files_with_suffix(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder whose names end so, in order."""
    names = sorted(os.listdir(require_folder(folder)))
    return [folder / name for name in names if name.endswith(suffixes) and is_file(folder / name)]


def refuse_lookalike_files(family: Family, checkpoint: Path, tokenizer: Path) -> None:
    """Raise if files that have the family's names are another model's, or only stand for files in a git repository."""
    seen = scan_checkpoint(checkpoint)
    if seen.refusal is not None and seen.refusal.code == "checkpoint-lfs":
        raise CheckpointError.of(seen.refusal)
    refuse_lfs_pointer(tokenizer)
    if item := family.check_lookalike(seen.path, seen.shapes):
        raise CheckpointError.of(item)


def refuse_lfs_pointer(path: Path) -> None:
    """Raise if a file is a git-lfs pointer. Whatever else is wrong with it is told by who opens it."""
    try:
        with path.open("rb") as stream:
            start = stream.read(len(LFS_POINTER_PREFIX))
    except OSError:
        return
    if start == LFS_POINTER_PREFIX:
        raise CheckpointError("checkpoint-lfs", f"{path.name} is a git-lfs pointer", where=path)


def find_files_by_content(family: Family, folder: Path, missing: FileError) -> tuple[Path, Path]:
    """Checkpoint and tokenizer of a base whose files have names of their own, by what is in them.

    Where no file holds the family's tensors this raises what the family mistook one for, else `missing`.
    """
    around = scan_folder(folder)
    candidates = [seen for seen in around if family.matches_tensors(seen.shapes)]
    if not candidates:
        mistaken = (family.check_lookalike(seen.path, seen.shapes) for seen in around)
        if item := next(filter(None, mistaken), None):
            raise CheckpointError.of(item)
        raise missing
    if len(candidates) > 1:
        listed = ", ".join(f"{seen.path.name} ({_count_text_rows(family, seen):,} text rows)" for seen in candidates)
        cure = f"give the one that is meant its published name ({family.checkpoint_names[0]}), or move the others away."
        raise FileError("base-several", f"several files hold the model: {listed}", where=folder, cure=cure)
    return candidates[0].path, find_matching_tokenizer(family, candidates[0])


def find_matching_tokenizer(family: Family, seen: CheckpointScan) -> Path:
    """The one tokenizer beside a checkpoint that has a piece for each of its rows; an error if that is none or two."""
    from voxgraft.tokenizers import open_tokenizer

    folder, pieces = seen.path.parent, _count_text_rows(family, seen) - family.spare_rows
    others: list[str] = []
    fitting: list[Path] = []
    for path in list_files_with_suffix(folder, tuple({Path(name).suffix for name in family.tokenizer_names}))[
        :MAX_SCANNED_FILES
    ]:
        try:
            tokenizer = open_tokenizer(path)
        except VoxgraftError:
            continue  # other JSON files lie about in every folder
        specials = all(tokenizer.ids.get(piece) == at for piece, at in family.special_ids.items())
        if tokenizer.size == pieces and specials and tokenizer.kind != "flat-map":
            fitting.append(path)
        else:
            others.append(f"{path.name} has {tokenizer.size:,}")
    if len(fitting) == 1:
        return fitting[0]
    found = f"{seen.path.name} has text rows for {pieces:,} pieces, and "
    if fitting:
        found += f"several tokenizers have as many: {', '.join(path.name for path in fitting)}"
        raise FileError("base-several", found, where=folder)
    found += "no tokenizer in the folder has as many" + (f" ({', '.join(others)})" if others else "")
    raise FileError("base-file-missing", found, expected="the tokenizer that belongs to the checkpoint", where=folder)


def check_tensor_prefix(seen: CheckpointScan, tables: tuple[str, ...]) -> Finding | None:
    """What to say of a file whose names all stand behind a prefix, as a wrapper around the model saves them."""
    for name in seen.shapes:
        for table in tables:
            if name.endswith(f".{table}"):
                prefix = name.removesuffix(table)
                found = f"{seen.path.name} has {name}: every name starts with {prefix[:40]!r}"
                return finding("checkpoint-prefixed", found, expected=table, where=seen.path)
    return None


def _count_text_rows(family: Family, seen: CheckpointScan) -> int:
    shape = seen.shapes.get(family.graft_points[0].tensor, ())
    return shape[0] if shape else 0
