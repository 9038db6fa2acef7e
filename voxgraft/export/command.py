"""The verb `export`: a graft as files of the stock programs, as a PEFT adapter, or as a folder to share.

An export appears complete or not at all, and only what passes `check` is exported. This module plans and writes the
folder, with `export.json` for machines and `README.md` for people and model hubs; the checkpoints are in `weights`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    is_file,
    is_folder,
    require_disk_space,
    require_output_path,
    write_json,
    write_text,
)
from voxgraft.core.results import Line, Table
from voxgraft.export.sources import (
    EXPORT_CARD_NAME,
    EXPORT_FORMAT,
    EXPORT_README_NAME,
    LOADER_NAME,
    TERMS_NAME,
    UNHASHED_FILES,
    ExportSource,
    LanguageCost,
    ShareTerms,
    collect_language_costs,
    open_export_source,
    resolve_terms,
)
from voxgraft.export.weights import (
    DropInTokenizer,
    ExportedCheckpoint,
    build_drop_in_tokenizer,
    build_text_package,
    write_drop_in_checkpoint,
    write_grown_checkpoint,
    write_merged_checkpoint,
)
from voxgraft.graft.folder import (
    GRAFT_CARD_NAME,
    README_NAME,
    ROWS_NAME,
    TEXT_FOLDER,
    collect_versions,
    format_graft_readme,
    load_graft,
)
from voxgraft.models.base import GROWN, MERGED, Family, StockFolder
from voxgraft.nn.adapter import ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME

EMPTY_SHA256 = hashlib.sha256().hexdigest()


def link_or_copy_files(base_files: Mapping[str, Path], folder: Path, *, copy: bool) -> dict[str, str]:
    """Put files and whole folders of the base into an export; by name, whether each was linked or copied."""
    pairs = [(path, folder / name / rest) for name, place in base_files.items() for path, rest in _iterate_files(place)]
    done: dict[str, str] = {}
    with progress.progress_task("files of the base", len(pairs)) as advance:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            linked = False
            if not copy:
                # A hard link to the file itself, not to a link that leads there: it stays whole when the base is moved.
                with contextlib.suppress(OSError):  # another disk, or a file system without links
                    os.link(os.path.realpath(source), target)
                    linked = True
            try:
                if not linked:
                    shutil.copyfile(source, target)
            except OSError as error:
                found = f"{source.name} cannot be copied: {format_error_reason(error)}"
                raise FileError("file-unwritable", found, where=target) from None
            done[str(target.relative_to(folder))] = "linked" if linked else "copied"
            advance(1)
    return done


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


@dataclass(frozen=True)
class ExportDraft:
    """An export on its way: what it is made of and what was written."""

    source: ExportSource
    kind: str
    terms: ShareTerms
    folder: StockFolder
    cost: Sequence[LanguageCost] = ()
    drop_in: DropInTokenizer | None = None
    checkpoints: dict[str, ExportedCheckpoint] = field(default_factory=dict)
    """By folder."""
    files: dict[str, str] = field(default_factory=dict)
    """Of the base: linked or copied."""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every file that was written, by its place."""


def export(settings: ExportSettings) -> ExportResult:
    """Write the export that was asked for."""
    source = open_export_source(settings)
    if settings.to is None:
        usual = choose_export_kind(source.family.name, merged=source.merged is not None)
        settings = settings.model_copy(update={"to": source.family.name if settings.drop_in else usual})
    assert settings.to is not None
    require_export_kind(source.family, settings.to, drop_in=settings.drop_in)
    if settings.to == "peft" and source.adapter is None:
        found = "the graft has no adapter: it was not trained yet, or its rows alone were"
        raise GraftError("adapter-missing", found, where=source.graft.folder)
    if settings.to in SHAREABLE_KINDS and source.merged is not None and source.adapter is None:
        found = "the last training has changed the body itself, and what it left is no graft"
        raise GraftError("export-kind", found, expected=f"--to {source.family.name}", where=source.graft.folder)
    output = settings.output
    if output is None and source.run is None:
        raise ConfigError("config-missing", "the folder of the export is not named", expected="--output FOLDER")
    if output is None:
        assert source.run is not None
        output = source.run.export / (f"{settings.to}-drop-in" if settings.drop_in else str(settings.to))
    require_export_folder(
        output, overwrite=settings.overwrite, retry_command=f"{_format_export_command(settings)} --overwrite"
    )
    terms = resolve_terms(settings, source.graft.card.licence or source.family.licence)
    findings = terms.findings(_format_export_command(settings))
    if source.trained_step is None:
        findings.append(finding("export-untrained", "the graft was not trained yet", where=source.graft.folder))
    if settings.to in SHAREABLE_KINDS:
        card = _write_shareable_folder(source, settings.to, output, terms)
    else:
        made = _write_upstream_export(source, settings, output, terms)
        card = build_export_card(made)
        if missing := made.folder.missing:
            found = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in the base folder"
            findings.append(finding("export-part-missing", found, where=source.files.folder))
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
            usage = (
                f"    voxgraft speak TEXT --graft {output.name} --base BASE\n\nBASE is the folder of the base above."
            )
            page = build_share_readme(source, terms, format_graft_readme(card, source.language_name, []), usage)
        else:
            assert source.adapter is not None  # refused above
            for name in (ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME):
                shutil.copyfile(source.adapter / name, new / name)
            for name in (card.tokenizer, ROWS_NAME):
                shutil.copyfile(source.graft.folder / name, new / name)
            usage = (
                "`PeftModel.from_pretrained(MODEL, FOLDER)`, where MODEL has the base's own module names. The new text "
                f"rows belong behind row {card.base_pieces - 1:,} of each table."
            )
            page = build_share_readme(source, terms, build_adapter_page(source), usage)
        write_text(new / README_NAME, page, overwrite=True)
        write_json(new / TERMS_NAME, terms.to_json(), overwrite=True)
        if kind == "graft":
            load_graft(new)
    return {"family": card.family, "language": card.language, "base": card.base, "terms": terms.to_json()}


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
    require_disk_space(output, (len(parts) + 1) * source.files.checkpoint.stat().st_size, "the export")
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
    from voxgraft.checkpoints.tensors import read_tensor_shapes

    files = source.family.files(place)
    source.family.infer_size(files, read_tensor_shapes(files.checkpoint))
    if files.config is not None:
        stated = source.family.read_config_pieces(files.config)
        from voxgraft.tokenizers import open_tokenizer

        if stated != (pieces := open_tokenizer(files.tokenizer).size):
            found = f"{files.config.name} states {stated} pieces, and the tokenizer has {pieces:,} ({names} names)"
            raise ConfigError("base-config", found, where=place)


def build_export_card(made: ExportDraft) -> dict[str, Any]:
    """Everything, for machines."""
    source, card = made.source, made.source.graft.card
    # Hashes of what was exported, by which it is known whether an export is still that of its run.
    made_of = {"graft_sha256": compute_sha256(source.graft.folder / GRAFT_CARD_NAME)}
    if source.merged is not None:
        made_of["checkpoint_sha256"] = source.merged["checkpoint_sha256"]
    return {
        "format": EXPORT_FORMAT,
        "kind": made.kind,
        "drop_in": made.drop_in is not None,
        "family": source.family.name,
        "program": source.family.stock().title,
        "language": source.language,
        "tag": card.tag,
        "base": card.base,
        "pieces": card.base_pieces if made.drop_in else source.graft.tokenizer.size,
        "step": source.trained_step,
        "made_of": made_of,
        "checkpoints": {name: written.to_json() for name, written in made.checkpoints.items()},
        "files": made.hashes,
        "files_of_the_base": made.files,
        "missing": list(made.folder.missing),
        "measured_cost": [cost.to_json() for cost in made.cost],
        "reused_ids": {str(new): old for new, old in made.drop_in.places.items()} if made.drop_in else None,
        "terms": made.terms.to_json(),
        "versions": collect_versions(),
    }


def build_export_readme(made: ExportDraft) -> str:
    """The page for people."""
    source = made.source
    title = f"# {source.language_name} for {source.family.stock().title}"
    how = "drop-in" if made.drop_in else "grown and merged"
    lines = [
        *_build_front_matter(source, made.terms),
        title,
        "",
        f"Written by voxgraft: {how}. Trained: {_format_training_state(source)}.",
        "",
    ]
    lines += _drop_in_lines(made) if made.drop_in else _checkpoint_lines(made)
    usage = source.family.stock().usage(source.facts, source.files, drop_in=made.drop_in is not None)
    lines += ["", "```python", *usage, "```", "", "## What the program reads", "", "| file | what |", "| --- | --- |"]
    lines += [f"| {name} | {what} |" for name, what in made.folder.read.items()]
    if made.folder.missing:
        lines += ["", f"Not in the base folder, and so not here: {', '.join(made.folder.missing)}."]
    return "\n".join([*lines, "", *made.terms.lines()]) + "\n"


def build_share_readme(source: ExportSource, terms: ShareTerms, body: str, usage: str) -> str:
    """The page of a graft or an adapter: what it says of itself, how it is used, and its terms."""
    lines = [*_build_front_matter(source, terms), body.rstrip(), "", "## Use", "", usage, "", *terms.lines()]
    return "\n".join(lines) + "\n"


def build_adapter_page(source: ExportSource) -> str:
    """What stands in the folder of an adapter."""
    card = source.graft.card
    return "\n".join(
        [
            f"# {source.language_name} for {source.family.name}: a PEFT adapter",
            "",
            f"Trained on {card.base['checkpoint']} (sha256 {card.base['checkpoint_sha256']}): "
            f"{_format_training_state(source)}.",
            "",
            "| file | what |",
            "| --- | --- |",
            "| adapter_config.json, adapter_model.safetensors | the adapter, as PEFT reads it |",
            f"| {card.tokenizer} | the base's tokenizer with the new pieces appended |",
            f"| {ROWS_NAME} | the new rows of each text table, float32 |",
        ]
    )


def _build_front_matter(source: ExportSource, terms: ShareTerms) -> list[str]:
    """What model hubs read: language, kind, licence."""
    return [
        "---",
        f"language: [{source.language}]",
        "tags: [voxgraft, text-to-speech]",
        f"library_name: {source.family.name}",
        "license: other",
        f"license_name: {'stated-below' if not terms.missing_flags else 'not-stated'}",
        "---",
        "",
    ]


def _format_training_state(source: ExportSource) -> str:
    step = source.trained_step
    return "**not yet: its rows are the first ones, and it speaks no word**" if step is None else f"step {step:,}"


def _checkpoint_lines(made: ExportDraft) -> list[str]:
    about = {
        GROWN: "the base with more text rows: old languages are spoken by the base's own weights",
        MERGED: f"the same with {made.source.language_name} in its body: for the new language",
    }
    lines = ["| folder | what | names and shapes | the same as the base | numbers |", "| --- | --- | --- | --- | --- |"]
    for name, one in made.checkpoints.items():
        counts = f"{one.names} of {one.expected}"
        lines.append(f"| {name}/ | {about[name]} | {counts} | {one.kept_and_changed} | {one.dtype}, {one.precision} |")
    if MERGED in made.checkpoints:
        lines += ["", "## What the merged one costs the old languages", "", *_cost_lines(made)]
    return lines


def _cost_lines(made: ExportDraft) -> list[str]:
    if not made.cost:
        return [
            "Not measured. The merged weights are for the new language; speak the others with grown/. To measure:",
            "",
            f"    voxgraft evaluate {MERGED} --base BASE --language {made.source.language} --output FOLDER",
        ]
    lines = ["| language | measure | before | after | measured by |", "| --- | --- | --- | --- | --- |"]
    for one in made.cost:
        before = "" if one.before is None else f"{one.before:.4f}"
        lines.append(f"| {one.language} | {one.measure} | {before} | {one.after:.4f} | {one.source} |")
    return lines


def _drop_in_lines(made: ExportDraft) -> list[str]:
    drop_in = made.drop_in
    assert drop_in is not None
    (one,), name = made.checkpoints.values(), made.source.language_name
    return [
        f"A folder of the base's own size for {name} **alone**: {len(drop_in.places):,} ids that it never uses carry "
        f"its pieces, so that {made.source.family.stock().title} loads it as it is. Languages whose ids were taken "
        "are gone here; speak them with the base itself.",
        "",
        f"- {one.names} of {one.expected} names and shapes; {one.kept_and_changed}; {one.dtype}, {one.precision}.",
        f"- {drop_in.num_proven_sentences:,} sentences of {name} are spelled as before, id for id.",
        "- The package's alignment analyzer stays on at this size. It watches heads that were found for the old "
        "languages; if speech ends too early or too late, take the export with load.py, where it is off.",
    ]
