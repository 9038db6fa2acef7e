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
    Made,
    adapter_page,
    adapter_usage,
    card_of,
    graft_usage,
    readme_of,
    share_readme,
)
from voxgraft.exporting.cost import measured_cost
from voxgraft.exporting.drop_in import make_drop_in
from voxgraft.exporting.folder import hashes_of, place_files, require_room
from voxgraft.exporting.names import CARD_NAME, LOADER_NAME, README_NAME
from voxgraft.exporting.sources import Source, open_source
from voxgraft.exporting.terms import TERMS_NAME, Terms, asked_terms
from voxgraft.exporting.text_package import text_package
from voxgraft.exporting.weights import write_dropped_in, write_grown, write_merged
from voxgraft.families.base import Family
from voxgraft.families.stock import GROWN, MERGED
from voxgraft.files import is_file, is_folder, replacing, replacing_folder, require_free, write_json, write_text
from voxgraft.graft_folder import README_NAME as GRAFT_README
from voxgraft.graft_folder import ROWS_NAME, TEXT_FOLDER, open_graft, readme
from voxgraft.peft_folder import CONFIG_NAME, TENSORS_NAME
from voxgraft.results import Line, Table

__all__ = ["ExportResult", "default_kind", "export", "require_kind", "require_place"]

SHARED = ("peft", "graft")
DROPPED_IN = "drop-in"


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
    source = open_source(settings)
    if settings.to is None:
        usual = default_kind(source.family.name, merged=source.merged is not None)
        settings = settings.model_copy(update={"to": source.family.name if settings.drop_in else usual})
    assert settings.to is not None
    require_kind(source.family, settings.to, drop_in=settings.drop_in)
    _require_kind(source, settings)
    output = _output(source, settings)
    require_place(output, overwrite=settings.overwrite, again=f"{_command(settings)} --overwrite")
    terms = asked_terms(settings, source.graft.card.licence or source.family.licence)
    findings = [*terms.findings(_command(settings)), *_untrained(source)]
    if settings.to in SHARED:
        card = _share(source, settings.to, output, terms)
    else:
        made = _stock(source, settings, output, terms)
        card, findings = card_of(made), [*findings, *_missing(made)]
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    return ExportResult(output, settings.to, source.language, card, size, tuple(findings))


def default_kind(family: str, *, merged: bool) -> ExportKind:
    """What is made where nothing is named: the graft to share, or what merged training is for."""
    return cast(ExportKind, family) if merged else "graft"


def require_kind(family: Family, kind: ExportKind, *, drop_in: bool = False) -> None:
    """Refuse what cannot be made of any graft on this family."""
    if kind not in SHARED and kind != family.name:
        found = f"--to {kind}, and the base is one of {family.name}"
        raise ConfigError("export-kind", found, expected=f"{family.name}, {', '.join(SHARED)}")
    if drop_in and not (kind == family.name and family.stock().can_drop_in):
        raise ConfigError("export-kind", f"--drop-in with --to {kind}", expected="--to chatterbox for it")


def _require_kind(source: Source, settings: ExportSettings) -> None:
    """Refuse what cannot be made of this graft, before anything is asked or written."""
    if settings.to == "peft" and source.adapter is None:
        found = "the graft has no adapter: it was not trained yet, or its rows alone were"
        raise GraftError("adapter-missing", found, where=source.graft.folder)
    if settings.to in SHARED and source.merged is not None and source.adapter is None:
        found = "the last training has changed the body itself, and what it left is no graft"
        raise GraftError("export-kind", found, expected=f"--to {source.family.name}", where=source.graft.folder)


def _output(source: Source, settings: ExportSettings) -> Path:
    if settings.output is not None:
        return settings.output
    if source.run is None:
        raise ConfigError("config-missing", "the folder of the export is not named", expected="--output FOLDER")
    return source.run.export / (f"{settings.to}-drop-in" if settings.drop_in else str(settings.to))


def require_place(output: Path, *, overwrite: bool, again: str | None = None) -> None:
    """An export is replaced if that is asked for, and nothing else is that happens to have its name.

    `again` is the command that replaces it.
    """
    if again is not None and not overwrite and is_file(output / TERMS_NAME):
        cure = f"use it as it is, or replace it: `{again}`; or name another folder with --output."
        raise FileError("file-exists", f"{output.name} was exported before", where=output, cure=cure)
    if not (overwrite and is_folder(output)):
        require_free(output)
    elif not any(is_file(output / name) for name in (TERMS_NAME, CARD_NAME)):
        found = f"{output.name} is there already, and is no export of ours"
        raise FileError("file-exists", found, where=output, cure="choose another folder.")


def _command(settings: ExportSettings) -> str:
    """What was typed, for whoever has to type it again; terms and --overwrite apart."""
    words: list[object] = ["voxgraft", "export", settings.subject, "--to", str(settings.to)]
    for flag, value in (("--base", settings.base), ("--family", settings.family), ("--output", settings.output)):
        words += [flag, value] if value is not None else []
    words += ["--drop-in"] if settings.drop_in else []
    words += ["--parts", settings.parts] if settings.parts != "both" else []
    words += ["--dtype", settings.dtype] if settings.dtype != "base" else []
    words += ["--copy-files"] if settings.copy_files else []
    return shlex.join(map(str, words))


def _share(source: Source, kind: str, output: Path, terms: Terms) -> dict[str, Any]:
    """The small folders: the graft as it is, or its adapter where PEFT looks for it, with rows and tokenizer beside."""
    card = source.graft.card
    with replacing_folder(output) as new:
        if kind == "graft":
            shutil.copytree(source.graft.folder, new, dirs_exist_ok=True)
            page = share_readme(source, terms, readme(card, source.language_name, []), graft_usage(output.name))
        else:
            _copy_adapter(source, new)
            page = share_readme(source, terms, adapter_page(source), adapter_usage(source))
        write_text(new / GRAFT_README, page, overwrite=True)
        write_json(new / TERMS_NAME, terms.to_json(), overwrite=True)
        if kind == "graft":
            open_graft(new)
    return {"family": card.family, "language": card.language, "base": card.base, "terms": terms.to_json()}


def _copy_adapter(source: Source, new: Path) -> None:
    assert source.adapter is not None
    for name in (CONFIG_NAME, TENSORS_NAME):
        shutil.copyfile(source.adapter / name, new / name)
    for name in (source.graft.card.tokenizer, ROWS_NAME):
        shutil.copyfile(source.graft.folder / name, new / name)


def _stock(source: Source, settings: ExportSettings, output: Path, terms: Terms) -> Made:
    """Folders that the stock program loads."""
    drop_in = make_drop_in(source) if settings.drop_in else None
    pieces = source.graft.card.base_pieces if drop_in else source.graft.tokenizer.size
    folder = source.family.stock().folder(source.files, pieces)
    made = Made(source, str(settings.to), terms, folder, measured_cost(source), drop_in)
    parts = [""] if drop_in else [one for one in (GROWN, MERGED) if settings.parts in ("both", one)]
    # Twice: rounding, and saving at all, needs the old file and the new one side by side.
    require_room(output, (len(parts) + 1) * source.files.checkpoint.stat().st_size)
    with replacing_folder(output) as new:
        for part in parts:
            _write_part(made, settings, new, part)
        loader = None if drop_in else source.family.stock().loader(source.facts, source.files)
        if loader is not None:
            write_text(new / LOADER_NAME, loader)
        if loader is not None or drop_in is not None:
            step = source.family.stock().text_step(source.files)
            (new / TEXT_FOLDER).mkdir()
            for place, text in text_package(source.graft.card.rules, *step).items():
                write_text(new / place, text)
        write_text(new / README_NAME, readme_of(made))
        write_json(new / TERMS_NAME, terms.to_json())
        known = {_place(part, folder.checkpoint): made.checkpoints[part or DROPPED_IN].sha256 for part in parts}
        made.hashes.update(hashes_of(new, known))
        write_json(new / CARD_NAME, card_of(made))
    return made


def _write_part(made: Made, settings: ExportSettings, new: Path, part: str) -> None:
    """One folder for the stock program; the drop-in is the export's folder itself."""
    source, folder = made.source, made.folder
    place = new / part if part else new
    place.mkdir(exist_ok=True)
    path = place / folder.checkpoint
    if made.drop_in is not None:
        written = write_dropped_in(source, path, made.drop_in.places, dtype=settings.dtype)
    else:
        written = (write_grown if part == GROWN else write_merged)(source, path, dtype=settings.dtype)
    made.checkpoints[part or DROPPED_IN] = written
    with replacing(place / folder.tokenizer) as stream:
        stream.write(made.drop_in.data if made.drop_in else source.graft.tokenizer.data)
    for name, text in folder.made.items():
        write_text(place / name, text)
    placed = place_files(folder.beside, place, copy=settings.copy_files)
    made.files.update({_place(part, name): how for name, how in placed.items()})
    _require_opens(source, place, written.names)


def _place(part: str, name: str) -> str:
    return f"{part}/{name}" if part else name


def _require_opens(source: Source, place: Path, names: int) -> None:
    """Our own strict loader must take what a stock program will be given."""
    from voxgraft.families.tensors import stored_shapes

    files = source.family.files(place)
    source.family.size_of(files, stored_shapes(files.checkpoint))
    if files.config is not None:
        stated = source.family.configured_pieces(files.config)
        from voxgraft.tokenizers import open_tokenizer

        if stated != (pieces := open_tokenizer(files.tokenizer).size):
            found = f"{files.config.name} states {stated} pieces, and the tokenizer has {pieces:,} ({names} names)"
            raise ConfigError("base-config", found, where=place)


def _untrained(source: Source) -> list[Finding]:
    if source.trained_step is not None:
        return []
    return [finding("export-untrained", "the graft was not trained yet", where=source.graft.folder)]


def _missing(made: Made) -> list[Finding]:
    if not made.folder.missing:
        return []
    found = (
        f"{', '.join(made.folder.missing)} {'is' if len(made.folder.missing) == 1 else 'are'} not in the base folder"
    )
    return [finding("export-part-missing", found, where=made.source.files.folder)]
