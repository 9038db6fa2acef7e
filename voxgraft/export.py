"""The verb `export`: a graft given back to the stock programs, as a PEFT adapter, or as a folder to share.

An export is whole or not there. What does not pass `check` is not exported.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from voxgraft.errors import ConfigError, FileError, Finding, GraftError, finding
from voxgraft.exchange_settings import ExportKind, ExportSettings
from voxgraft.exporting.card import (
    ExportDraft,
    adapter_usage_lines,
    build_adapter_page,
    build_export_card,
    build_export_readme,
    build_share_readme,
    graft_usage_lines,
)
from voxgraft.exporting.cost import collect_language_costs
from voxgraft.exporting.drop_in import build_drop_in_tokenizer
from voxgraft.exporting.folder import hash_export_files, link_or_copy_files, require_export_space
from voxgraft.exporting.names import EXPORT_CARD_NAME, EXPORT_README_NAME, LOADER_NAME
from voxgraft.exporting.sources import ExportSource, open_export_source
from voxgraft.exporting.terms import TERMS_NAME, ShareTerms, resolve_terms
from voxgraft.exporting.text_package import build_text_package
from voxgraft.exporting.weights import write_drop_in_checkpoint, write_grown_checkpoint, write_merged_checkpoint
from voxgraft.families.base import Family
from voxgraft.families.stock import GROWN, MERGED
from voxgraft.files import (
    atomic_write,
    atomic_write_folder,
    is_file,
    is_folder,
    require_output_path,
    write_json,
    write_text,
)
from voxgraft.graft_folder import README_NAME as GRAFT_README
from voxgraft.graft_folder import ROWS_NAME, TEXT_FOLDER, format_graft_readme, load_graft
from voxgraft.peft_folder import ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME
from voxgraft.results import Line, Table

__all__ = ["ExportResult", "choose_export_kind", "export", "require_export_folder", "require_export_kind"]

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
    words: list[object] = ["voxgraft", "export", settings.subject, "--to", str(settings.to)]
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
    from voxgraft.families.tensors import read_tensor_shapes

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
