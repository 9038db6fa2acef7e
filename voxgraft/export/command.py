"""The verb `export`: a graft given back to the stock programs, as a PEFT adapter, or as a folder to share.

An export is whole or not there. What does not pass `check` is not exported.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from voxgraft.config.commands import ExportKind, ExportSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, finding
from voxgraft.core.files import (
    atomic_write,
    atomic_write_folder,
    compute_sha256,
    format_error_reason,
    free_disk_bytes,
    is_file,
    is_folder,
    require_output_path,
    write_json,
    write_text,
)
from voxgraft.core.results import Line, Table
from voxgraft.export.card import (
    ExportDraft,
    adapter_usage_lines,
    build_adapter_page,
    build_export_card,
    build_export_readme,
    build_share_readme,
    graft_usage_lines,
)
from voxgraft.export.drop_in import build_drop_in_tokenizer, build_text_package
from voxgraft.export.sources import (
    EXPORT_CARD_NAME,
    EXPORT_README_NAME,
    LOADER_NAME,
    TERMS_NAME,
    UNHASHED_FILES,
    ExportSource,
    ShareTerms,
    collect_language_costs,
    open_export_source,
    resolve_terms,
)
from voxgraft.export.weights import write_drop_in_checkpoint, write_grown_checkpoint, write_merged_checkpoint
from voxgraft.graft.folder import README_NAME as GRAFT_README
from voxgraft.graft.folder import ROWS_NAME, TEXT_FOLDER, format_graft_readme, load_graft
from voxgraft.models.base import GROWN, MERGED, Family
from voxgraft.nn.peft import ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME

EXPORT_SLACK_BYTES = 64 << 20
EMPTY_SHA256 = hashlib.sha256().hexdigest()


def link_or_copy_files(base_files: Mapping[str, Path], folder: Path, *, copy: bool) -> dict[str, str]:
    """Put files and whole folders of the base into an export; by name, whether each was linked or copied."""
    pairs = [(path, folder / name / rest) for name, place in base_files.items() for path, rest in _iterate_files(place)]
    done: dict[str, str] = {}
    with progress.progress_task("files of the base", len(pairs)) as advance:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            linked = not copy and _try_hard_link(source, target)
            if not linked:
                _copy_base_file(source, target)
            done[str(target.relative_to(folder))] = "linked" if linked else "copied"
            advance(1)
    return done


def require_export_space(folder: Path, num_bytes: int) -> None:
    """Refuse before hours of copying what will not fit."""
    free = free_disk_bytes(folder)
    if free is not None and free < num_bytes + EXPORT_SLACK_BYTES:
        found = f"the export needs {num_bytes:,} bytes, {free:,} are free"
        raise FileError("disk-too-small", found, where=folder)


def hash_export_files(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of every file in an export by its place there; those that are known are not read again."""
    found: dict[str, str] = {}
    by_file: dict[tuple[int, int], str] = {}  # both parts link the same files of the base
    for path, place in _iterate_files(folder):
        if place in UNHASHED_FILES:
            continue
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        if key not in by_file:
            by_file[key] = known.get(place) or (compute_sha256(path) if status.st_size else EMPTY_SHA256)
        found[place] = by_file[key]
    return found


def _iterate_files(place: Path) -> Iterator[tuple[Path, str]]:
    """A file by itself, or all files of a folder with their places in it."""
    if not is_folder(place):
        yield place, ""
        return
    for path in sorted(place.rglob("*")):
        if path.is_file():
            yield path, path.relative_to(place).as_posix()


def _try_hard_link(source: Path, target: Path) -> bool:
    """A hard link to the file itself, not to a link that leads there: it stays whole when the base is moved."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another disk, or a file system without links
        return False
    return True


def _copy_base_file(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise FileError(
            "file-unwritable", f"{source.name} cannot be copied: {format_error_reason(error)}", where=target
        ) from None


SHAREABLE_KINDS = ("peft", "graft")
DROP_IN = "drop-in"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written, and what has to be said of it."""

    folder: Path
    kind: str
    language: str
    card: dict[str, Any]
    num_bytes: int
    findings: tuple[Finding, ...]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "bytes": self.num_bytes,
            **self.card,
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        rows = tuple(
            (
                name,
                f"{one['names']} of {one['expected']}",
                one["kept"],
                str(one["changed"]),
                f"{one['dtype']}, {one['precision']}",
            )
            for name, one in self.card.get("checkpoints", {}).items()
        )
        if rows:
            lines.append(Table(("checkpoint", "names and shapes", "the same as the base", "changed", "numbers"), rows))
        for one in self.card.get("measured_cost", []):
            before = "" if one["before"] is None else f"{one['before']:.4f} before, "
            lines.append(f"{one['language']}: {one['measure']} {before}{one['after']:.4f} now ({one['source']})")
        lines += [text for item in self.findings for text in item.lines()]
        return [*lines, f"{self.num_bytes / 1e6:,.1f} MB in {self.folder}"]


def export(settings: ExportSettings) -> ExportResult:
    """Write the export that was asked for."""
    source = open_export_source(settings)
    if settings.to is None:
        usual = choose_export_kind(source.family.name, merged=source.merged is not None)
        settings = settings.model_copy(update={"to": source.family.name if settings.drop_in else usual})
    assert settings.to is not None
    require_export_kind(source.family, settings.to, drop_in=settings.drop_in)
    _require_graft_supports_kind(source, settings)
    output = _resolve_output(source, settings)
    require_export_folder(
        output, overwrite=settings.overwrite, retry_command=f"{_format_export_command(settings)} --overwrite"
    )
    terms = resolve_terms(settings, source.graft.card.licence or source.family.licence)
    findings = [*terms.findings(_format_export_command(settings)), *_untrained_findings(source)]
    if settings.to in SHAREABLE_KINDS:
        card = _write_shareable_folder(source, settings.to, output, terms)
    else:
        made = _write_upstream_export(source, settings, output, terms)
        card, findings = build_export_card(made), [*findings, *_missing_file_findings(made)]
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    return ExportResult(output, settings.to, source.language, card, size, tuple(findings))


def choose_export_kind(family: str, *, merged: bool) -> ExportKind:
    """What is made where nothing is named: the graft to share, or what merged training is for."""
    return cast(ExportKind, family) if merged else "graft"


def require_export_kind(family: Family, kind: ExportKind, *, drop_in: bool = False) -> None:
    """Refuse what cannot be made of any graft on this family."""
    if kind not in SHAREABLE_KINDS and kind != family.name:
        found = f"--to {kind}, and the base is one of {family.name}"
        raise ConfigError("export-kind", found, expected=f"{family.name}, {', '.join(SHAREABLE_KINDS)}")
    if drop_in and not (kind == family.name and family.stock().can_drop_in):
        raise ConfigError("export-kind", f"--drop-in with --to {kind}", expected="--to chatterbox for it")


def _require_graft_supports_kind(source: ExportSource, settings: ExportSettings) -> None:
    """Refuse what cannot be made of this graft, before anything is asked or written."""
    if settings.to == "peft" and source.adapter is None:
        found = "the graft has no adapter: it was not trained yet, or its rows alone were"
        raise GraftError("adapter-missing", found, where=source.graft.folder)
    if settings.to in SHAREABLE_KINDS and source.merged is not None and source.adapter is None:
        found = "the last training has changed the body itself, and what it left is no graft"
        raise GraftError("export-kind", found, expected=f"--to {source.family.name}", where=source.graft.folder)


def _resolve_output(source: ExportSource, settings: ExportSettings) -> Path:
    if settings.output is not None:
        return settings.output
    if source.run is None:
        raise ConfigError("config-missing", "the folder of the export is not named", expected="--output FOLDER")
    return source.run.export / (f"{settings.to}-drop-in" if settings.drop_in else str(settings.to))


def require_export_folder(output: Path, *, overwrite: bool, retry_command: str | None = None) -> None:
    """An export is replaced if that is asked for, and nothing else is that happens to have its name.

    `again` is the command that replaces it.
    """
    if retry_command is not None and not overwrite and is_file(output / TERMS_NAME):
        cure = f"use it as it is, or replace it: `{retry_command}`; or name another folder with --output."
        raise FileError("file-exists", f"{output.name} was exported before", where=output, cure=cure)
    if not (overwrite and is_folder(output)):
        require_output_path(output)
    elif not any(is_file(output / name) for name in (TERMS_NAME, EXPORT_CARD_NAME)):
        found = f"{output.name} is there already, and is no export of ours"
        raise FileError("file-exists", found, where=output, cure="choose another folder.")


def _format_export_command(settings: ExportSettings) -> str:
    """What was typed, for whoever has to type it again; terms and --overwrite apart."""
    words: list[object] = ["voxgraft", "export", settings.model, "--to", str(settings.to)]
    for flag, value in (("--base", settings.base), ("--family", settings.family), ("--output", settings.output)):
        words += [flag, value] if value is not None else []
    words += ["--drop-in"] if settings.drop_in else []
    words += ["--parts", settings.parts] if settings.parts != "both" else []
    words += ["--dtype", settings.dtype] if settings.dtype != "base" else []
    words += ["--copy-files"] if settings.copy_files else []
    return shlex.join(map(str, words))


def _write_shareable_folder(source: ExportSource, kind: str, output: Path, terms: ShareTerms) -> dict[str, Any]:
    """The small folders: the graft as it is, or its adapter where PEFT looks for it, with rows and tokenizer beside."""
    card = source.graft.card
    with atomic_write_folder(output) as new:
        if kind == "graft":
            shutil.copytree(source.graft.folder, new, dirs_exist_ok=True)
            page = build_share_readme(
                source, terms, format_graft_readme(card, source.language_name, []), graft_usage_lines(output.name)
            )
        else:
            _copy_adapter(source, new)
            page = build_share_readme(source, terms, build_adapter_page(source), adapter_usage_lines(source))
        write_text(new / GRAFT_README, page, overwrite=True)
        write_json(new / TERMS_NAME, terms.to_json(), overwrite=True)
        if kind == "graft":
            load_graft(new)
    return {"family": card.family, "language": card.language, "base": card.base, "terms": terms.to_json()}


def _copy_adapter(source: ExportSource, new: Path) -> None:
    assert source.adapter is not None
    for name in (ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME):
        shutil.copyfile(source.adapter / name, new / name)
    for name in (source.graft.card.tokenizer, ROWS_NAME):
        shutil.copyfile(source.graft.folder / name, new / name)


def _write_upstream_export(
    source: ExportSource, settings: ExportSettings, output: Path, terms: ShareTerms
) -> ExportDraft:
    """Folders that the stock program loads."""
    drop_in = build_drop_in_tokenizer(source) if settings.drop_in else None
    pieces = source.graft.card.base_pieces if drop_in else source.graft.tokenizer.size
    folder = source.family.stock().folder(source.files, pieces)
    made = ExportDraft(source, str(settings.to), terms, folder, collect_language_costs(source), drop_in)
    parts = [""] if drop_in else [one for one in (GROWN, MERGED) if settings.parts in ("both", one)]
    # Twice: rounding, and saving at all, needs the old file and the new one side by side.
    require_export_space(output, (len(parts) + 1) * source.files.checkpoint.stat().st_size)
    with atomic_write_folder(output) as new:
        for part in parts:
            _write_upstream_part(made, settings, new, part)
        loader = None if drop_in else source.family.stock().loader(source.facts, source.files)
        if loader is not None:
            write_text(new / LOADER_NAME, loader)
        if loader is not None or drop_in is not None:
            step = source.family.stock().text_step(source.files)
            (new / TEXT_FOLDER).mkdir()
            for place, text in build_text_package(source.graft.card.rules, *step).items():
                write_text(new / place, text)
        write_text(new / EXPORT_README_NAME, build_export_readme(made))
        write_json(new / TERMS_NAME, terms.to_json())
        known = {_path_in_part(part, folder.checkpoint): made.checkpoints[part or DROP_IN].sha256 for part in parts}
        made.hashes.update(hash_export_files(new, known))
        write_json(new / EXPORT_CARD_NAME, build_export_card(made))
    return made


def _write_upstream_part(made: ExportDraft, settings: ExportSettings, new: Path, part: str) -> None:
    """One folder for the stock program; the drop-in is the export's folder itself."""
    source, folder = made.source, made.folder
    place = new / part if part else new
    place.mkdir(exist_ok=True)
    path = place / folder.checkpoint
    if made.drop_in is not None:
        written = write_drop_in_checkpoint(source, path, made.drop_in.places, dtype=settings.dtype)
    else:
        written = (write_grown_checkpoint if part == GROWN else write_merged_checkpoint)(
            source, path, dtype=settings.dtype
        )
    made.checkpoints[part or DROP_IN] = written
    with atomic_write(place / folder.tokenizer) as stream:
        stream.write(made.drop_in.data if made.drop_in else source.graft.tokenizer.data)
    for name, text in folder.made.items():
        write_text(place / name, text)
    placed = link_or_copy_files(folder.beside, place, copy=settings.copy_files)
    made.files.update({_path_in_part(part, name): how for name, how in placed.items()})
    _require_loadable(source, place, written.names)


def _path_in_part(part: str, name: str) -> str:
    return f"{part}/{name}" if part else name


def _require_loadable(source: ExportSource, place: Path, names: int) -> None:
    """Our own strict loader must take what a stock program will be given."""
    from voxgraft.models.load import read_tensor_shapes

    files = source.family.files(place)
    source.family.infer_size(files, read_tensor_shapes(files.checkpoint))
    if files.config is not None:
        stated = source.family.read_config_pieces(files.config)
        from voxgraft.tokenizers import open_tokenizer

        if stated != (pieces := open_tokenizer(files.tokenizer).size):
            found = f"{files.config.name} states {stated} pieces, and the tokenizer has {pieces:,} ({names} names)"
            raise ConfigError("base-config", found, where=place)


def _untrained_findings(source: ExportSource) -> list[Finding]:
    if source.trained_step is not None:
        return []
    return [finding("export-untrained", "the graft was not trained yet", where=source.graft.folder)]


def _missing_file_findings(made: ExportDraft) -> list[Finding]:
    if not made.folder.missing:
        return []
    found = (
        f"{', '.join(made.folder.missing)} {'is' if len(made.folder.missing) == 1 else 'are'} not in the base folder"
    )
    return [finding("export-part-missing", found, where=made.source.files.folder)]
