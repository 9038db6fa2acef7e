"""The verb `new`: makes a run folder with a commented run.yaml, from settings given by hand or from an old config.

Paths that were given relative are written relative to the run folder, so that a project can be moved as a whole;
absolute ones stay absolute, so that a run can be moved away from a base that stays.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from voxgraft.config.base import deep_merge, format_commented_yaml, parse_settings
from voxgraft.config.commands import GoSettings, NewSettings, PublishedBaseName
from voxgraft.config.run import BUILT_IN_BASES, TITLE, RunSettings, find_overrides, update_run_yaml
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import (
    atomic_write_folder,
    is_folder,
    make_path_relative,
    path_exists,
    require_disk_space,
    require_file,
    require_folder,
    write_text,
)
from voxgraft.core.languages import base_language, find_exemplar
from voxgraft.core.results import EXIT_INTERRUPTED, CommandResult, Line, Table, format_duration, style_line
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.core.yaml_files import parse_yaml
from voxgraft.data.manifest import MANIFEST_NAME, resolve_manifest_path
from voxgraft.evaluation.scores import require_recognizer
from voxgraft.evaluation.sentences import load_sentence_sets, require_sentences
from voxgraft.export.command import SHAREABLE_KINDS, choose_export_kind, require_export_folder, require_export_kind
from voxgraft.migrate.configs import KeyFate, LegacyConfig, format_legacy_value, read_legacy_config
from voxgraft.migrate.settings import ConfigTranslation, KeyTranslation, UserOverrides, translate_legacy_config
from voxgraft.models import get_family, resolve_base_family, resolve_base_folder
from voxgraft.models.base import Family
from voxgraft.pipeline.stages import (
    CHECK_STAGE,
    EVALUATE_STAGE,
    EXPORT_STAGE,
    GRAFT_STAGE,
    IMPORT_STAGE,
    PREPARE_STAGE,
    SPLIT_STAGE,
    TRAIN_STAGE,
    PipelineContext,
    PipelineStage,
    StageDecision,
    require_steps_left,
)
from voxgraft.tokenizers import open_tokenizer

FATE_TITLES: dict[KeyFate, str] = {
    "mapped": "Taken over into run.yaml",
    "suggested": "Written into run.yaml as comments, for you to decide",
    "gone": "Gone, and why",
    "later": "Kept out, since another command does this, or none yet",
    "unknown": "Not known",
}
_KEY_LINE = re.compile(r"^( *)([a-z_]+):")


@dataclass(frozen=True, slots=True)
class NewResult:
    """The run that was made, what became of an old config's keys, and what there is to say about both."""

    run: Path
    settings: RunSettings
    family: str | None
    findings: tuple[Finding, ...]
    old: LegacyConfig | None = None
    rows: tuple[KeyTranslation, ...] = ()
    exit_code: int = 0

    @property
    def next_command(self) -> str:
        verb = "go" if self.settings.data.sources else "graft"
        return f"voxgraft {verb} {shlex.quote(str(self.run))}"

    def to_json(self) -> dict[str, Any]:
        made = {
            "run": str(self.run),
            "run_yaml": str(self.run / RUN_FILE),
            "family": self.family,
            "language": self.settings.language,
            "findings": [item.to_json() for item in self.findings],
            "next": self.next_command,
        }
        if self.old is None:
            return made
        old = {"path": str(self.old.path), "kind": self.old.kind, "keys": [row.to_json() for row in self.rows]}
        return {**made, "old": old}

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.old is not None:
            lines.append(f"{self.old.path.name} was read as {self.old.kind}: {len(self.rows)} keys")
            lines += [table for fate in FATE_TITLES for table in _build_fate_tables(self.rows, fate)]
            lines += _format_check_hint(self.old)
        for item in self.findings:
            lines += item.lines()
        entry = find_exemplar(self.settings.language) if self.settings.language else None
        about = ", ".join(part for part in (entry.name if entry else self.settings.language, self.family) if part)
        lines.append(f"made {self.run / RUN_FILE}" + (f" ({about})" if about else ""))
        missing = _missing_settings(self.settings)
        fill_in = f"fill in {', '.join(missing)} there" if missing else "look through it"
        return [*lines, f"next: {fill_in}, then: {self.next_command}"]


def create_run(settings: NewSettings) -> NewResult:
    """Make the run folder; nothing is written unless everything that was given is sound."""
    _require_new_run_folder(settings.run)
    kind: Family | None = None
    if settings.base is not None:
        settings = settings.model_copy(update={"base": resolve_base_folder(settings.base)})
        assert settings.base is not None
        _require_base_folder(settings.base)
        kind = resolve_base_family(settings.base, settings.family)
        kind.files(settings.base)
    for path in settings.texts:
        require_file(path)
    for path in settings.sources:
        if not path_exists(path):
            raise FileError("file-missing", f"{path} is not there", where=path)
    old, translation = None, ConfigTranslation([], {}, [])
    if settings.old is not None:
        old = read_legacy_config(settings.old)
        given = UserOverrides(settings.base, settings.family, settings.language, settings.texts)
        translation = translate_legacy_config(old, given)
    usual = {f"train.{name}": value for name, value in kind.run_defaults.items()} if kind else {}
    run_settings = _build_run_settings(settings, {**usual, **translation.values}, old)
    kind = _resolve_run_family(settings.base or translation.values.get("base"), run_settings.family)
    text = _format_run_yaml(run_settings, settings.run, translation.rows)
    findings = (*translation.findings, *_language_findings(run_settings, kind), *_incomplete_findings(run_settings))
    with atomic_write_folder(settings.run) as folder:
        write_text(folder / RUN_FILE, text)
    return NewResult(settings.run, run_settings, kind.name if kind else None, findings, old, tuple(translation.rows))


def _require_new_run_folder(run: Path) -> None:
    if "\0" in str(run) or (run.name == ".." and not path_exists(run)):
        raise ConfigError("run-path", f"the run folder is {str(run)!r}", expected="the name of a new folder")
    if os.path.lexists(run):
        cure = "choose another name, or move what is there away."
        raise FileError("file-exists", f"{run} is there already", where=run, cure=cure)


def _require_base_folder(base: Path) -> None:
    """The folder must be there; the name of a published base is not its folder yet."""
    if str(base) in get_args(PublishedBaseName) and not path_exists(base):
        place = Path("models") / base
        cure = f"download it first: `voxgraft download {base}`, then name its folder: --base {place}"
        if is_folder(place):
            cure = f"it is in {place}: --base {place}"
        raise FileError("file-missing", f"{base} is the name of a published base, and no folder", where=base, cure=cure)
    require_folder(base)


def _build_run_settings(settings: NewSettings, old_values: Mapping[str, Any], old: LegacyConfig | None) -> RunSettings:
    """The settings of the run as they will be written, paths as seen from its folder."""
    values: dict[str, Any] = {}
    if old is not None and old.family and settings.base is None and "base" not in old_values:
        values["family"] = old.family
    for key, value in old_values.items():
        section, _, name = key.rpartition(".")
        values = deep_merge(values, {section: {name: value}} if section else {key: value})
    by_hand = {name: getattr(settings, name) for name in ("base", "language", "family", "texts")}
    values |= {name: value for name, value in by_hand.items() if value}
    if settings.sources:
        values = deep_merge(values, {"data": {"sources": settings.sources}})
    if settings.speaker:
        values = deep_merge(values, {"data": {"speaker": settings.speaker}})
    words = {folder: Path(word) for word, folder in BUILT_IN_BASES.items()}
    built_in = words.get(Path(values["base"]).resolve()) if "base" in values else None
    values = _make_paths_relative(values, settings.run)
    if built_in is not None:
        values["base"] = built_in
    if settings.sources and "texts" not in values:
        values["texts"] = (RunFolder(Path()).data / MANIFEST_NAME,)
    return parse_settings(RunSettings, values, settings.run / RUN_FILE)


def _make_paths_relative(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    result = dict(values)
    if "base" in result:
        result["base"] = make_path_relative(run, result["base"])
    if "texts" in result:
        result["texts"] = tuple(make_path_relative(run, path) for path in result["texts"])
    if "data" in result:
        result["data"] = {
            name: tuple(make_path_relative(run, path) for path in value) if isinstance(value, tuple | list) else value
            for name, value in result["data"].items()
        }
    return result


def _format_run_yaml(settings: RunSettings, run: Path, rows: list[KeyTranslation]) -> str:
    """The text of run.yaml, checked by reading it back: a path that YAML cannot hold is refused."""
    lines = format_commented_yaml(settings, TITLE).splitlines()
    text = "\n".join(_insert_notes(lines, _build_notes(rows, run))) + "\n"
    where = run / RUN_FILE
    try:
        same = parse_settings(RunSettings, _drop_empty_values(parse_yaml(text, where)), where) == settings
    except ConfigError as error:
        raise ConfigError("run-path", f"a path cannot be written down: {error.finding.found}", where=where) from None
    if not same:
        raise ConfigError("run-path", "a path cannot be written down: it would be read back as another", where=where)
    return text


def _drop_empty_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as `read_settings_values` takes them: a key without a value is not given."""
    return {
        key: _drop_empty_values(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _build_notes(rows: list[KeyTranslation], run: Path) -> dict[str, list[str]]:
    """Comments by dotted key: where a value came from, and values that wait for a decision, ready to be uncommented."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row.fate == "mapped":
            notes.setdefault(row.key, []).append(f"from {row.old}: {row.value}")
        elif row.fate == "suggested":
            name = row.key.rpartition(".")[2]
            proposal = [f"{row.old}: {row.why}", f"{name}: {_format_proposed_value(row.new, run)}"]
            notes.setdefault(row.key, []).extend(proposal)
    return notes


def _format_proposed_value(value: Any, run: Path) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_format_proposed_value(item, run) for item in value) + "]"
    return json.dumps(str(make_path_relative(run, value)) if isinstance(value, Path) else value, ensure_ascii=False)


def _insert_notes(lines: list[str], notes: Mapping[str, list[str]]) -> list[str]:
    """The lines of a run.yaml with comments put in above their keys."""
    result: list[str] = []
    section = ""
    for line in lines:
        if key := _KEY_LINE.match(line):
            name = f"{section}.{key[2]}" if key[1] else key[2]
            section = section if key[1] else key[2]
            result += [f"{key[1]}# {_escape_comment(note)}" for note in dict.fromkeys(notes.get(name, ()))]
        result.append(line)
    return result


def _escape_comment(text: str) -> str:
    """Text that can stand in a YAML comment: nothing in an old file may end the comment."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _format_table_value(value: Any) -> str:
    return format_legacy_value([str(item) for item in value] if isinstance(value, tuple) else value)


def _build_fate_tables(rows: tuple[KeyTranslation, ...], fate: KeyFate) -> list[Table]:
    """The rows of one fate, if there are any; a reason that is the row above's is not said again."""
    chosen = [row for row in rows if row.fate == fate]
    if not chosen:
        return []
    has_successor = fate in ("mapped", "suggested")
    cells: list[tuple[str, ...]] = []
    above = ""
    for row in chosen:
        why = "(as above)" if row.why and row.why == above else row.why
        above = row.why
        new_cells = (f"{row.key}: {_format_table_value(row.new)}",) if has_successor else ()
        cells.append((f"{row.old}: {row.value}" if row.value else row.old, *new_cells, why))
    columns = ("old", "new", "remark") if has_successor else ("old", "why")
    return [Table(columns, tuple(cells), FATE_TITLES[fate])]


def _resolve_run_family(base: Path | None, name: str | None) -> Family | None:
    if base is not None:
        return resolve_base_family(base, name)
    return get_family(name) if name else None


def _format_check_hint(old: LegacyConfig) -> list[Line]:
    """The command that compares an old config's numbers with each other and with the files."""
    if old.path.suffix.lower() not in (".yaml", ".yml"):
        return []
    return [f"to judge its sizes and freezing: voxgraft check --base BASE --base-config {shlex.quote(str(old.path))}"]


def _language_findings(settings: RunSettings, kind: Family | None) -> list[Finding]:
    language = settings.language
    if language is None:
        return []
    findings = []
    if find_exemplar(language) is None:
        findings.append(finding("language-unlisted", f"CLDR has no entry for `{language}`"))
    if kind is not None and base_language(language) in kind.languages:
        spoken = " ".join(kind.languages)
        findings.append(finding("language-spoken", f"a {kind.name} base speaks `{language}`: {spoken}"))
    return findings


def _missing_settings(settings: RunSettings) -> list[str]:
    return [name for name in ("base", "language", "texts") if not getattr(settings, name)]


def _incomplete_findings(settings: RunSettings) -> list[Finding]:
    missing = _missing_settings(settings)
    return [finding("run-incomplete", f"not given yet: {', '.join(missing)}")] if missing else []


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
            require_recognizer(settings.evaluate.recognizer, settings.language)
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
            [work.language, *(name for name in base if name != work.language)],
            work.told.sentences,
            work.told.max_sentences,
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
        size = EXPORT_CHECKPOINT_COPIES * family.files(folder).checkpoint.stat().st_size
        require_disk_space(output, size, "the export")


PIPELINE_STAGES = (
    IMPORT_STAGE,
    SPLIT_STAGE,
    GRAFT_STAGE,
    PREPARE_STAGE,
    CHECK_STAGE,
    TRAIN_STAGE,
    EVALUATE_STAGE,
    EXPORT_STAGE,
)
StageStatus = Literal["done", "skipped", "ended here", "would run", "not known yet"]
STAGES_WITHOUT_OUTPUT = ("check", "evaluate")
"""Stages by which no later one decides."""
STAGES_AFTER_TRAINING = ("evaluate", "export")
NEXT_COMMAND_PREFIX = "next: voxgraft "
"""How a verb says what its user does next. Inside `go` nobody does it: it is what `go` does next itself."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """What became of one stage, and why it ran or did not."""

    name: str
    word: StageStatus
    why: str
    seconds: float = 0.0
    result: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class GoResult:
    """All stages up to the last that was asked for, or to the one that ended it."""

    run: Path
    stages: tuple[StageResult, ...]
    exit_code: int = 0
    """That of the stage that ended it."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Keys of run.yaml that were given as flags, with their values. They are in the file now, but for a dry run."""

    def to_json(self) -> dict[str, Any]:
        stages = [stage.to_json() for stage in self.stages]
        return {"run": str(self.run), "stages": stages, "changes": dict(self.changes)}

    def lines(self) -> list[Line]:
        rows = tuple(
            (one.name, one.word, format_duration(one.seconds) if one.seconds >= 0.5 else "", one.why)
            for one in self.stages
        )
        lines: list[Line] = [Table(("stage", "", "took", "why"), rows)]
        again, last = f"voxgraft go {shlex.quote(str(self.run))}", self.stages[-1].name
        if self.exit_code == EXIT_INTERRUPTED:
            lines.append(f"`{last}` was interrupted; `{again}` goes on there.")
        elif self.exit_code:
            lines.append(f"`{last}` has said no, above. When that is mended, `{again}` goes on there.")
        elif (follows := _find_next_stage(last)) and "done" in (one.word for one in self.stages):
            lines.append(f"next: `{again}` goes on with `{follows}`.")
        return lines


def run_pipeline(settings: GoSettings) -> GoResult:
    """Run every stage that is not finished, or only say which those are."""
    stages = PIPELINE_STAGES[: _last_stage_index(settings) + 1]
    work = PipelineContext(settings)
    changes = find_overrides(work.run, work.settings)
    require_later_stages(work, _find_pending_stages(work, stages))
    planned = _plan_stages(settings, stages) if settings.dry_run or changes else None
    require_steps_left(work, changes)
    if settings.dry_run and planned is not None:
        return replace(planned, changes=changes)
    if changes:  # what is refused with these values must not be written down
        with work.run.lock("go"):
            update_run_yaml(work.run, work.settings)
        progress.report_lines([_format_changed_setting(key, value) for key, value in changes.items()])
    return replace(_run_stages(settings, stages), changes=changes)


def _find_pending_stages(work: PipelineContext, stages: tuple[PipelineStage, ...]) -> list[str]:
    """Stages after training that are not finished, by what is there now."""
    decisions = {
        stage.name: _decide_stage(stage, work, known=False) for stage in stages if stage.name in STAGES_AFTER_TRAINING
    }
    return [name for name, decision in decisions.items() if decision is None or decision.runs]


def _format_changed_setting(key: str, value: str) -> Line:
    return style_line("run.yaml: ", (key, "bold"), f" is {value or 'empty'} now")


def _last_stage_index(settings: GoSettings) -> int:
    names = [stage.name for stage in PIPELINE_STAGES]
    return names.index(settings.until) if settings.until else len(names) - 1


def _find_next_stage(name: str) -> str:
    """The stage after this one; empty after the last."""
    names = [stage.name for stage in PIPELINE_STAGES]
    return next(iter(names[names.index(name) + 1 :]), "") if name in names else ""


def _run_stages(settings: GoSettings, stages: tuple[PipelineStage, ...]) -> GoResult:
    outcomes: list[StageResult] = []
    for stage in stages:
        work = PipelineContext(settings)  # anew each time: the stage before has changed what lies there
        decision = stage.decide(work)
        progress.report_lines([_format_stage_headline(stage, decision)])
        if not decision.runs:
            outcomes.append(StageResult(stage.name, "skipped", decision.why))
            continue
        if stage is TRAIN_STAGE:  # the data is there now, which a check at the start may not have had
            require_later_stages(work, _find_pending_stages(work, stages), after_data=True)
        began = time.monotonic()
        try:
            result: CommandResult = stage.work(work)
        except KeyboardInterrupt:  # `train` ends by itself then; whatever the others have finished is kept
            outcomes.append(StageResult(stage.name, "ended here", decision.why, time.monotonic() - began))
            return GoResult(settings.run, tuple(outcomes), EXIT_INTERRUPTED)
        word: StageStatus = "ended here" if result.exit_code else "done"
        seconds = time.monotonic() - began
        progress.report_lines([line for line in result.lines() if not str(line).startswith(NEXT_COMMAND_PREFIX)])
        outcomes.append(StageResult(stage.name, word, decision.why_done, seconds, result.to_json()))
        if result.exit_code:
            return GoResult(settings.run, tuple(outcomes), result.exit_code)
    return GoResult(settings.run, tuple(outcomes))


def _plan_stages(settings: GoSettings, stages: tuple[PipelineStage, ...]) -> GoResult:
    """By what lies there now. What a stage that has yet to run will leave is not guessed at."""
    outcomes: list[StageResult] = []
    first = ""
    for stage in stages:
        decision = _decide_stage(stage, PipelineContext(settings), known=not first)
        word: StageStatus = "skipped"
        if decision is not None and decision.runs:
            first, word = first or ("" if stage.name in STAGES_WITHOUT_OUTPUT else stage.name), "would run"
        elif first:
            word = "not known yet"
        why = decision.why if decision is not None and word != "not known yet" else f"depends on what `{first}` leaves"
        outcomes.append(StageResult(stage.name, word, why))
    return GoResult(settings.run, tuple(outcomes))


def _decide_stage(stage: PipelineStage, work: PipelineContext, *, known: bool) -> StageDecision | None:
    """None where an earlier stage must leave something first."""
    try:
        return stage.decide(work)
    except VoxgraftError:
        if known:
            raise
        return None


def _format_stage_headline(stage: PipelineStage, decision: StageDecision) -> Line:
    word = "runs" if decision.runs else "skipped"
    return style_line((stage.name, "bold"), f": {word}: {decision.why}")
