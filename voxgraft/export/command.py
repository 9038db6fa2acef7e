"""The command `export`: a graft as files of the original programs, as a PEFT adapter, or as a folder to share.

An export appears complete or not at all, and only what passes `check` is exported. This module plans and writes the
folder, with `export.json` for machines and `README.md` for people and model hubs; the checkpoints are in `weights`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from voxgraft.checkpoints.load import read_tensor_shapes
from voxgraft.config.commands import ExportKind, ExportSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import (
    atomic_write,
    atomic_write_folder,
    compute_sha256,
    format_error_reason,
    is_file,
    is_folder,
    require_disk_space,
    require_folder,
    require_output_path,
    write_json,
    write_text,
)
from voxgraft.core.results import Line, Table
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.evaluation.judge import WHO_AFTER, WHO_BEFORE
from voxgraft.evaluation.report import SCORES_NAME, read_scores
from voxgraft.export.share import (
    EMPTY_SHA256,
    EXPORT_CARD_NAME,
    EXPORT_FORMAT,
    EXPORT_README_NAME,
    LOADER_NAME,
    TERMS_NAME,
    UNHASHED_FILES,
    ShareTerms,
    confirm_base_licence,
)
from voxgraft.export.weights import (
    DropInTokenizer,
    ExportedCheckpoint,
    ExportSource,
    build_drop_in_tokenizer,
    build_text_package,
    open_export_source,
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
    read_graft_card,
    write_pronunciations,
)
from voxgraft.models import family_names, get_family
from voxgraft.models.base import GROWN, MERGED, Family, UpstreamFolder
from voxgraft.nn.adapter import ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME
from voxgraft.synthesis.engine import detect_trained_output
from voxgraft.tokenizers import open_tokenizer

SHAREABLE_KINDS = ("peft", "graft")
DROP_IN = "drop-in"
COST_MEASURES = {"phone_error": "phone error", "cer": "letter error", "speech_loss": "speech loss"}


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written, and findings about it."""

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
    """Write the export, and say what is missing in it or in its terms."""
    # What can be refused without reading the base, which takes long, is refused first.
    path = require_folder(settings.model)
    run = RunFolder(path)
    is_run = is_file(run.settings)
    graft_folder = run.graft if is_run else path
    if not is_file(graft_folder / GRAFT_CARD_NAME):
        open_export_source(settings)  # raises what is wrong
    graft_card = read_graft_card(graft_folder)
    family = get_family(graft_card.family)
    if settings.to is None:
        merged = is_run and detect_trained_output(run, RunJournal(run.journal).read()) == "merged"
        usual = choose_export_kind(family.name, merged=merged)
        settings = settings.model_copy(update={"to": family.name if settings.drop_in else usual})
    assert settings.to is not None
    require_export_kind(family, settings.to, drop_in=settings.drop_in)
    output = settings.output
    if output is None and not is_run:
        raise ConfigError("config-missing", "the output folder is not set", expected="--output FOLDER")
    if output is None:
        output = run.export / (f"{settings.to}-drop-in" if settings.drop_in else str(settings.to))
    command = _format_export_command(settings)
    require_export_folder(output, overwrite=settings.overwrite, retry_command=f"{command} --overwrite")
    terms = _collect_terms(settings, family, graft_card.licence or family.licence)
    findings = terms.findings(command)
    source = open_export_source(settings)
    if settings.to == "peft" and source.adapter is None:
        found = "the graft has no adapter. It was not trained yet, or only its rows were trained"
        raise GraftError("adapter-missing", found, where=source.graft.folder)
    if settings.to in SHAREABLE_KINDS and source.merged is not None and source.adapter is None:
        found = "the last training changed the backbone itself, so its result is not a graft"
        raise GraftError("export-kind", found, expected=f"--to {source.family.name}", where=source.graft.folder)
    if source.trained_step is None:
        findings.append(finding("export-untrained", "the graft was not trained yet", where=source.graft.folder))
    if settings.to in SHAREABLE_KINDS:
        card = _write_shareable_folder(source, settings.to, output, terms)
    else:
        card = _write_upstream_export(source, settings, output, terms)
        if missing := card["missing"]:
            found = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in the base folder"
            findings.append(finding("export-part-missing", found, where=source.files.folder))
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    return ExportResult(output, settings.to, source.language, card, size, tuple(findings))


def _format_export_command(settings: ExportSettings) -> str:
    """The command as it was typed, without terms and --overwrite, for messages that ask to run it again."""
    arguments: list[object] = ["voxgraft", "export", settings.model, "--to", str(settings.to)]
    for flag, value in (("--base", settings.base), ("--family", settings.family), ("--output", settings.output)):
        arguments += [flag, value] if value is not None else []
    arguments += ["--drop-in"] if settings.drop_in else []
    arguments += ["--parts", settings.parts] if settings.parts != "both" else []
    arguments += ["--dtype", settings.dtype] if settings.dtype != "base" else []
    arguments += ["--copy-files"] if settings.copy_files else []
    return shlex.join(map(str, arguments))


def _collect_terms(settings: ExportSettings, family: Family, licence: str) -> ShareTerms:
    """What the flags say of the terms; a terminal asks for the rest."""
    accepted = confirm_base_licence(
        family.name, licence, "Do you pass these terms of the base on?", accepted=settings.accept_terms
    )
    data_licence = settings.data_licence or progress.ask_user(
        ["The terms are written into the card of the export. An empty answer leaves a term open."],
        "Under which licence are the recordings and texts that it was trained on?",
    )
    consent = settings.consent or progress.ask_user(
        [], "How have the speakers consented to a voice model of their speech?"
    )
    return ShareTerms(licence, accepted, data_licence or None, consent or None)


def choose_export_kind(family: str, *, merged: bool) -> ExportKind:
    """The default: the graft to share, or the original program's folders after merged training."""
    return family if merged else "graft"


def require_export_kind(family: Family, kind: ExportKind, *, drop_in: bool = False) -> None:
    """Refuse what cannot be made of any graft on this family."""
    if kind not in SHAREABLE_KINDS and kind != family.name:
        found = f"--to {kind}, but the base is of the family {family.name}"
        raise ConfigError("export-kind", found, expected=f"{family.name}, {', '.join(SHAREABLE_KINDS)}")
    if drop_in and not family.upstream().can_drop_in:
        able = " or ".join(name for name in family_names() if get_family(name).upstream().can_drop_in)
        found = f"--drop-in is given, but the base is of the family {family.name}, which has no drop-in export"
        cure = f"leave out --drop-in; --to {family.name} and --to graft write other exports."
        expected = f"a base of the family {able} for --drop-in"
        raise ConfigError("export-kind", found, expected=expected, where="command line", cure=cure)
    if drop_in and kind != family.name:
        cure = f"leave out --drop-in, or use --to {family.name}."
        found = f"--drop-in is given with --to {kind}"
        expected = f"--to {family.name} with --drop-in"
        raise ConfigError("export-kind", found, expected=expected, where="command line", cure=cure)


def require_export_folder(output: Path, *, overwrite: bool, retry_command: str | None = None) -> None:
    """Refuse a folder that is taken. With `overwrite` an export of voxgraft is replaced, and nothing else.

    `retry_command` is the command that replaces it.
    """
    if retry_command is not None and not overwrite and is_file(output / TERMS_NAME):
        cure = f"use it as it is, or replace it: `{retry_command}`; or choose another folder with --output."
        raise FileError("file-exists", f"{output.name} was exported before", where=output, cure=cure)
    if not (overwrite and is_folder(output)):
        require_output_path(output)
    elif not any(is_file(output / name) for name in (TERMS_NAME, EXPORT_CARD_NAME)):
        found = f"{output.name} exists already and is not an export"
        raise FileError("file-exists", found, where=output, cure="choose another folder.")


def _write_shareable_folder(source: ExportSource, kind: str, output: Path, terms: ShareTerms) -> dict[str, Any]:
    """The small folders: the graft as it is, or its adapter as PEFT reads it, with rows and tokenizer beside."""
    card = source.graft.card
    with atomic_write_folder(output) as new:
        if kind == "graft":
            shutil.copytree(source.graft.folder, new, dirs_exist_ok=True)
            # The run's list goes with the graft. graft.json stays byte for byte: `go` compares it with the run's.
            write_pronunciations(new, card.rules)
            usage = (
                f"    voxgraft speak TEXT --graft {output.name} --base BASE\n\nBASE is the folder of the base above."
            )
            body = format_graft_readme(card, source.language_name, [])
        else:
            assert source.adapter is not None  # refused above
            for name in (ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME):
                shutil.copyfile(source.adapter / name, new / name)
            for name in (card.tokenizer, ROWS_NAME):
                shutil.copyfile(source.graft.folder / name, new / name)
            usage = (
                "`PeftModel.from_pretrained(MODEL, FOLDER)`, where MODEL has the base's own module names. The new text "
                f"rows belong after row {card.base_pieces - 1:,} of each table."
            )
            lines = [
                f"# {source.language_name} for {source.family.name}: a PEFT adapter",
                "",
                f"Trained on {card.base['checkpoint']} (sha256 {card.base['checkpoint_sha256']}): "
                f"{_format_training_state(source)}.",
                "",
                "| file | contents |",
                "| --- | --- |",
                "| adapter_config.json, adapter_model.safetensors | the adapter, as PEFT reads it |",
                f"| {card.tokenizer} | the base's tokenizer with the new tokens appended |",
                f"| {ROWS_NAME} | the new rows of each text table, float32 |",
            ]
            body = "\n".join(lines)
        page = [*_build_front_matter(source, terms), body.rstrip(), "", "## Use", "", usage, "", *terms.lines()]
        write_text(new / README_NAME, "\n".join(page) + "\n", overwrite=True)
        write_json(new / TERMS_NAME, terms.to_json(), overwrite=True)
        if kind == "graft":
            load_graft(new)  # what was written must load
    return {"family": card.family, "language": card.language, "base": card.base, "terms": terms.to_json()}


def _write_upstream_export(
    source: ExportSource, settings: ExportSettings, output: Path, terms: ShareTerms
) -> dict[str, Any]:
    """Folders that the original program loads; gives the export's card."""
    graft, upstream = source.graft, source.family.upstream()
    drop_in = build_drop_in_tokenizer(source) if settings.drop_in else None
    pieces = graft.card.base_pieces if drop_in else graft.tokenizer.size
    folder = upstream.folder(source.files, pieces, source.language)
    costs = _collect_language_costs(source)
    # The drop-in is the export's folder itself; else each part has a folder of its own.
    parts = [""] if drop_in else [part_name for part_name in (GROWN, MERGED) if settings.parts in ("both", part_name)]
    # One more than the parts: rounding and saving need the old file and the new one side by side.
    require_disk_space(output, (len(parts) + 1) * source.files.checkpoint.stat().st_size, "the export")
    checkpoints: dict[str, ExportedCheckpoint] = {}
    base_files: dict[str, str] = {}  # by path in the export: linked or copied
    known: dict[str, str] = {}  # SHA-256 of the checkpoints by path, so that they are not read again
    with atomic_write_folder(output) as new:
        for part in parts:
            part_folder, prefix = new / part, f"{part}/" if part else ""
            part_folder.mkdir(exist_ok=True)
            path = part_folder / folder.checkpoint
            if drop_in is not None:
                written = write_drop_in_checkpoint(source, path, drop_in.places, dtype=settings.dtype)
            elif part == GROWN:
                written = write_grown_checkpoint(source, path, dtype=settings.dtype)
            else:
                written = write_merged_checkpoint(source, path, dtype=settings.dtype)
            checkpoints[part or DROP_IN], known[prefix + folder.checkpoint] = written, written.sha256
            with atomic_write(part_folder / folder.tokenizer) as stream:
                stream.write(drop_in.data if drop_in else graft.tokenizer.data)
            for name, text in folder.made.items():
                write_text(part_folder / name, text)
            linked_files = _link_or_copy_files(folder.beside, part_folder, copy=settings.copy_files)
            base_files |= {prefix + name: how for name, how in linked_files.items()}
            # Our own strict loader must take what the original program will be given.
            files = source.family.files(part_folder)
            source.family.infer_size(files, read_tensor_shapes(files.checkpoint))
            if files.config is not None:
                config_pieces, size = (
                    source.family.read_config_pieces(files.config),
                    open_tokenizer(files.tokenizer).size,
                )
                if config_pieces != size:
                    found = f"{files.config.name} states {config_pieces} tokens, and the tokenizer has {size:,}"
                    raise ConfigError("base-config", found, where=part_folder)
        loader = None if drop_in else upstream.loader(source.facts, source.files)
        if loader is not None:
            write_text(new / LOADER_NAME, loader)
        if loader is not None or drop_in is not None:
            (new / TEXT_FOLDER).mkdir()
            front = source.family.front(source.files.tokenizer)
            languages = [
                code for code in front.languages or source.family.languages if code not in upstream.unmixed_languages
            ]
            package = build_text_package(graft.card.rules, languages, *upstream.text_step(source.files))
            for name, text in package.items():
                write_text(new / name, text)
        write_text(new / EXPORT_README_NAME, _build_export_readme(source, terms, folder, costs, drop_in, checkpoints))
        write_json(new / TERMS_NAME, terms.to_json())
        # By these it is known whether an export is still that of its run.
        made_of = {"graft_sha256": compute_sha256(graft.folder / GRAFT_CARD_NAME)}
        if source.merged is not None:
            made_of["checkpoint_sha256"] = source.merged["checkpoint_sha256"]
        card = {
            "format": EXPORT_FORMAT,
            "kind": str(settings.to),
            "drop_in": drop_in is not None,
            "family": source.family.name,
            "program": upstream.title,
            "language": source.language,
            "tag": graft.card.tag,
            "base": graft.card.base,
            "pieces": pieces,
            "step": source.trained_step,
            "made_of": made_of,
            "checkpoints": {name: written.to_json() for name, written in checkpoints.items()},
            "files": _hash_export_files(new, known),
            "files_of_the_base": base_files,
            "missing": list(folder.missing),
            "measured_cost": costs,
            "reused_ids": {str(new): old for new, old in drop_in.places.items()} if drop_in else None,
            "terms": terms.to_json(),
            "versions": collect_versions(),
        }
        write_json(new / EXPORT_CARD_NAME, card)
    return card


def _link_or_copy_files(base_files: Mapping[str, Path], folder: Path, *, copy: bool) -> dict[str, str]:
    """Put files and whole folders of the base into an export; by path there, whether each was linked or copied."""
    pairs: list[tuple[Path, Path]] = []
    for name, original in base_files.items():
        if is_folder(original):
            inside = (path for path in sorted(original.rglob("*")) if path.is_file())
            pairs += [(path, folder / name / path.relative_to(original)) for path in inside]
        else:
            pairs.append((original, folder / name))
    done: dict[str, str] = {}
    with progress.progress_task("files of the base", len(pairs)) as advance:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            linked = False
            if not copy:
                # A hard link to the file itself, not to a symbolic link: it stays whole when the base is moved.
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


def _hash_export_files(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of every file in an export by its path there; those in `known` are not read again."""
    found: dict[str, str] = {}
    by_file: dict[tuple[int, int], str] = {}  # by device and inode: both parts link the same files of the base
    for path in sorted(folder.rglob("*")):
        relative_path = path.relative_to(folder).as_posix()
        if not path.is_file() or relative_path in UNHASHED_FILES:
            continue
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        if key not in by_file:
            by_file[key] = known.get(relative_path) or (compute_sha256(path) if status.st_size else EMPTY_SHA256)
        found[relative_path] = by_file[key]
    return found


def _collect_language_costs(source: ExportSource) -> list[dict[str, Any]]:
    """All that was measured of the merged checkpoint that is exported: each language before and after, and where."""
    if source.merged is None or source.run is None:
        return []
    card = source.merged
    costs: list[tuple[str, str, float | None, float, str]] = []
    first = card.get("speech_losses_before") or {}
    for point in card.get("points") or []:
        if point.get("share") == card.get("share"):
            for language, loss in (point.get("speech_losses") or {}).items():
                costs.append((str(language), "speech loss", first.get(language), float(loss), "held out in training"))
    folder = source.run.eval
    for evaluation in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not is_file(evaluation / SCORES_NAME):
            continue
        try:
            scores, about, _ = read_scores(evaluation / SCORES_NAME)
        except VoxgraftError:  # of another version, or half of one: it says nothing then
            continue
        # A step alone would not do: merging again with another share leaves another checkpoint of the same step.
        same = about.get("checkpoint_sha256") == str(card["checkpoint_sha256"])
        if about.get("mode") != "merged" or not same:
            continue
        for language, (key, title) in product(scores.languages, COST_MEASURES.items()):
            if (value := scores.score(language, WHO_AFTER, key).value) is not None:
                was = scores.score(language, WHO_BEFORE, key).value
                costs.append((language, title, was, value, f"evaluation {evaluation.name}"))
    return [dict(zip(("language", "measure", "before", "after", "source"), one, strict=True)) for one in costs]


def _build_export_readme(
    source: ExportSource,
    terms: ShareTerms,
    folder: UpstreamFolder,
    costs: Sequence[Mapping[str, Any]],
    drop_in: DropInTokenizer | None,
    checkpoints: Mapping[str, ExportedCheckpoint],
) -> str:
    """The page for people."""
    upstream, name = source.family.upstream(), source.language_name
    lines = [*_build_front_matter(source, terms), f"# {name} for {upstream.title}", ""]
    how = "drop-in" if drop_in else "extended and merged"
    lines += [f"Written by voxgraft: {how}. Trained: {_format_training_state(source)}.", ""]
    if drop_in is not None:
        (one,) = checkpoints.values()
        lines += [
            f"A folder of the base's own size for {name} **alone**: {len(drop_in.places):,} ids that "
            f"{name} does not use are used for its tokens, so {upstream.title} loads the folder unchanged. "
            "Languages whose ids were reused do not work here. Speak them with the base itself.",
            "",
            f"- {one.names} of {one.expected} names and shapes; {one.kept_and_changed}; {one.dtype}, {one.precision}.",
            f"- {drop_in.num_proven_sentences:,} sentences of {name} are encoded as before, id for id.",
            "- The package's alignment analyzer stays on at this size. It watches attention heads that were chosen "
            "for the old languages. If speech ends too early or too late, use the export with load.py (analyzer off).",
        ]
    else:
        about = {
            GROWN: "the base with more text rows: old languages are spoken by the base's own weights",
            MERGED: f"the same with {name} in its backbone: for the new language",
        }
        lines += ["| folder | contents | names and shapes | the same as the base | numbers |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for part, one in checkpoints.items():
            cells = f"{part}/ | {about[part]} | {one.names} of {one.expected} | {one.kept_and_changed}"
            lines.append(f"| {cells} | {one.dtype}, {one.precision} |")
    if MERGED in checkpoints:
        lines += ["", "## Effect of the merged weights on old languages", ""]
        if costs:
            lines += ["| language | measure | before | after | measured by |", "| --- | --- | --- | --- | --- |"]
        else:
            lines += [
                "Not measured. The merged weights are for the new language; use extended/ for the others. To measure:",
                "",
                f"    voxgraft evaluate {MERGED} --base BASE --language {source.language} --output FOLDER",
            ]
        for cost in costs:
            before = "" if cost["before"] is None else f"{cost['before']:.4f}"
            cells = f"{cost['language']} | {cost['measure']} | {before} | {cost['after']:.4f} | {cost['source']}"
            lines.append(f"| {cells} |")
    usage = upstream.usage(source.facts, source.files, drop_in=drop_in is not None)
    lines += [
        "",
        "```python",
        *usage,
        "```",
        "",
        "## Files that the program reads",
        "",
        "| file | contents |",
        "| --- | --- |",
    ]
    lines += [f"| {file} | {what} |" for file, what in folder.read.items()]
    if folder.missing:
        lines += ["", f"Missing from the base folder, and therefore from this one: {', '.join(folder.missing)}."]
    return "\n".join([*lines, "", *terms.lines()]) + "\n"


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
    return (
        "**not yet: its rows are initial values, and it cannot speak the language**"
        if step is None
        else f"step {step:,}"
    )
