"""The commands `new`, `update` and `go`: make a run folder, rename old settings in it, run its stages.

Paths that were given relative are written relative to the run folder, so that a project can be moved as a whole;
absolute ones stay absolute, so that a run can be moved away from a base that stays.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from voxgraft.config.base import deep_merge, format_commented_yaml, parse_settings
from voxgraft.config.commands import PUBLISHED_BASE_NAMES, GoSettings, NewSettings, StageName, UpdateSettings
from voxgraft.config.run import (
    TITLE,
    RunSettings,
    drop_missing_values,
    find_overrides,
    rename_run_yaml_keys,
    update_run_yaml,
)
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, VoxgraftError, find_nearest_name, finding
from voxgraft.core.families import BUILT_IN_BASES
from voxgraft.core.files import (
    atomic_write_folder,
    is_folder,
    make_path_relative,
    parse_yaml,
    path_exists,
    require_disk_space,
    require_file,
    require_folder,
    write_text,
)
from voxgraft.core.languages import base_language, find_exemplar, language_findings, usual_language_code
from voxgraft.core.results import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    Line,
    SimpleResult,
    Table,
    format_duration,
    pluralize,
    style_line,
)
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.data.manifest import MANIFEST_NAME, resolve_manifest_path
from voxgraft.evaluation.scores import require_recognizer
from voxgraft.evaluation.sentences import load_sentence_sets, require_sentences
from voxgraft.export.command import SHAREABLE_KINDS, choose_export_kind, require_export_folder, require_export_kind
from voxgraft.inspect.legacy import (
    KeyOutcome,
    KeyTranslation,
    LegacyConfig,
    UserOverrides,
    format_legacy_value,
    read_legacy_config,
    translate_legacy_config,
)
from voxgraft.models import get_family, resolve_base_family, resolve_base_folder
from voxgraft.models.base import Family
from voxgraft.pipeline.stages import (
    PIPELINE_STAGES,
    STAGE_SKIPPED,
    STAGE_STARTING,
    PipelineContext,
    require_known_texts,
    require_steps_left,
    survey_stages,
)
from voxgraft.tokenizers import open_tokenizer, require_texts

OUTCOME_TITLES: dict[KeyOutcome, str] = {
    "mapped": "Taken over into run.yaml",
    "suggested": "Written into run.yaml as comments; please decide",
    "gone": "Dropped, and why",
    "later": "Done by another command",
    "unknown": "Unknown",
}
REQUIRED_SETTINGS = ("base", "language", "texts")


@dataclass(frozen=True, slots=True)
class NewResult:
    """The run that was made, what became of an old config's keys, and findings about both."""

    run: Path
    settings: RunSettings
    family: str | None
    findings: tuple[Finding, ...]
    old: LegacyConfig | None = None
    rows: tuple[KeyTranslation, ...] = ()
    exit_code: int = 0

    @property
    def next_command(self) -> str:
        command = "go" if self.settings.data.sources else "graft"
        return f"voxgraft {command} {shlex.quote(str(self.run))}"

    def to_json(self) -> dict[str, Any]:
        values = {
            "run": str(self.run),
            "run_yaml": str(self.run / RUN_FILE),
            "family": self.family,
            "language": self.settings.language,
            "findings": [item.to_json() for item in self.findings],
            "next": self.next_command,
        }
        if self.old is None:
            return values
        old = {"path": str(self.old.path), "kind": self.old.kind, "keys": [row.to_json() for row in self.rows]}
        return {**values, "old": old}

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.old is not None:
            lines.append(f"{self.old.path.name} was read as {self.old.kind}: {len(self.rows)} keys")
            for outcome, title in OUTCOME_TITLES.items():
                has_successor = outcome in ("mapped", "suggested")
                cells: list[tuple[str, ...]] = []
                above = ""
                for row in (row for row in self.rows if row.outcome == outcome):
                    why = "(as above)" if row.why and row.why == above else row.why
                    above = row.why
                    new = [str(item) for item in row.new] if isinstance(row.new, tuple) else row.new
                    new_cells = (f"{row.key}: {format_legacy_value(new)}",) if has_successor else ()
                    cells.append((f"{row.old}: {row.value}" if row.value else row.old, *new_cells, why))
                if cells:
                    heads = ("old", "new", "remark") if has_successor else ("old", "why")
                    lines.append(Table(heads, tuple(cells), title))
            if self.old.path.suffix.lower() in (".yaml", ".yml"):
                checked = f"voxgraft check --base BASE --training-config {shlex.quote(str(self.old.path))}"
                lines.append(f"to check its sizes and its freezing: {checked}")
        for item in self.findings:
            lines += item.lines()
        entry = find_exemplar(self.settings.language) if self.settings.language else None
        about = ", ".join(part for part in (entry.name if entry else self.settings.language, self.family) if part)
        lines.append(f"created {self.run / RUN_FILE}" + (f" ({about})" if about else ""))
        missing = [name for name in REQUIRED_SETTINGS if not getattr(self.settings, name)]
        fill_in = f"fill in {', '.join(missing)} there" if missing else "review it"
        return [*lines, f"next: {fill_in}, then: {self.next_command}"]


def create_run(settings: NewSettings) -> NewResult:
    """Make the run folder; nothing is written unless everything that was given is sound."""
    run = settings.run
    if "\0" in str(run) or (run.name == ".." and not path_exists(run)):
        raise ConfigError("run-path", f"the run folder is {str(run)!r}", expected="the name of a new folder")
    if os.path.lexists(run):
        cure = "choose another name, or move the existing folder."
        raise FileError("file-exists", f"{run} exists already", where=run, cure=cure)
    kind: Family | None = None
    if settings.base is not None:
        base = resolve_base_folder(settings.base)
        settings = settings.model_copy(update={"base": base})
        if str(base) in PUBLISHED_BASE_NAMES and not path_exists(base):
            download_folder = Path("models") / base  # where `voxgraft download` puts it
            cure = f"download it first: `voxgraft download {base}`, then use its folder: --base {download_folder}"
            if is_folder(download_folder):
                cure = f"use the folder that was downloaded: --base {download_folder}"
            found = f"{base} is the name of a published base, not a folder"
            raise FileError("file-missing", found, where=base, cure=cure)
        hint = find_nearest_name(str(base), [*BUILT_IN_BASES, *PUBLISHED_BASE_NAMES])
        if hint is not None and not path_exists(base):
            cure = f"did you mean `{hint}`? Otherwise check the path."
            raise FileError("file-missing", f"folder {base.name} does not exist", where=base, cure=cure)
        kind = resolve_base_family(require_folder(base), settings.family)
        kind.files(base)
    # Everything is checked before the folder is made, so that a mistyped path leaves nothing behind.
    for path in settings.texts:
        require_texts(path)
    for path in settings.sources:
        if not path_exists(path):
            raise FileError("file-missing", f"{path} does not exist", where=path)
    old = None
    rows: list[KeyTranslation] = []
    values: dict[str, Any] = {}
    findings: list[Finding] = []
    if settings.old is not None:
        old = read_legacy_config(settings.old)
        given = UserOverrides(settings.base, settings.family, settings.language, settings.texts)
        rows, values, findings = translate_legacy_config(old, given)
    # By precedence: flags, then the old config, then defaults of the family.
    defaults = {f"train.{name}": value for name, value in kind.run_defaults.items()} if kind else {}
    run_settings = _build_run_settings(settings, {**defaults, **values}, old)
    named_base = settings.base or values.get("base")
    if named_base is not None:
        kind = resolve_base_family(named_base, run_settings.family)
    else:
        kind = get_family(run_settings.family) if run_settings.family else None
    text = _format_run_yaml(run_settings, run, rows)
    if (language := run_settings.language) is not None:
        if usual := usual_language_code(language):
            found = f"`{language}` is another code for `{usual}`"
            raise ConfigError("config-value", found, expected=usual, cure=f"use the code {usual}.")
        findings += language_findings(language, settings.run / RUN_FILE)
        if kind is not None and base_language(language) in kind.languages:
            language_names = ", ".join(kind.languages)
            found = f"the base {kind.name} already speaks {base_language(language)} (its languages: {language_names})"
            findings.append(finding("language-spoken", found))
    for path in settings.sources:
        if is_folder(path) and not any(path.iterdir()):
            findings.append(finding("source-none", f"{path} is empty", where=path, level="warning"))
    if missing := [name for name in REQUIRED_SETTINGS if not getattr(run_settings, name)]:
        findings.append(finding("run-incomplete", f"not set yet: {', '.join(missing)}"))
    with atomic_write_folder(run) as folder:
        write_text(folder / RUN_FILE, text)
    family = kind.name if kind else None
    return NewResult(run, run_settings, family, tuple(findings), old, tuple(rows))


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
    data = {name: value for name in ("sources", "speaker") if (value := getattr(settings, name))}
    if settings.speaker_from != "auto":
        data["speaker_from"] = settings.speaker_from
    values = deep_merge(values, {"data": data}) if data else values

    def relative(paths: Sequence[Path]) -> tuple[Path, ...]:
        return tuple(make_path_relative(settings.run, path) for path in paths)

    if "base" in values:
        # A built-in base is written as its word: its folder is another one on every machine.
        names_by_folder = {folder: Path(base_name) for base_name, folder in BUILT_IN_BASES.items()}
        base_name = names_by_folder.get(Path(values["base"]).resolve())
        values["base"] = base_name or make_path_relative(settings.run, values["base"])
    if "texts" in values:
        values["texts"] = relative(values["texts"])
    elif settings.sources:
        values["texts"] = (RunFolder(Path()).data / MANIFEST_NAME,)
    if "data" in values:
        values["data"] = {
            name: relative(value) if isinstance(value, tuple | list) else value
            for name, value in values["data"].items()
        }
    return parse_settings(RunSettings, values, settings.run / RUN_FILE)


def _format_run_yaml(settings: RunSettings, run: Path, rows: Sequence[KeyTranslation]) -> str:
    """The text of run.yaml, checked by reading it back: a path that YAML cannot hold is refused.

    Its comments also say where a value of an old config came from, and list values that the user has to decide on,
    ready to be uncommented.
    """

    def proposal(value: Any) -> str:
        if isinstance(value, tuple):
            return "[" + ", ".join(map(proposal, value)) + "]"
        return json.dumps(str(make_path_relative(run, value)) if isinstance(value, Path) else value, ensure_ascii=False)

    notes: dict[str, dict[str, None]] = {}  # by key; a dict keeps the order and drops repeated notes
    for row in rows:
        if row.outcome == "mapped":
            texts = [f"from {row.old}: {row.value}"]
        elif row.outcome == "suggested":
            texts = [f"{row.old}: {row.why}", f"{row.key.rpartition('.')[2]}: {proposal(row.new)}"]
        else:
            continue
        for text in texts:
            # Nothing in an old file may end the comment, as a line break would.
            escaped = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
            notes.setdefault(row.key, {})[escaped] = None
    text = format_commented_yaml(settings, TITLE, {key: list(texts) for key, texts in notes.items()})
    where = run / RUN_FILE
    try:
        same = parse_settings(RunSettings, drop_missing_values(parse_yaml(text, where)), where) == settings
    except ConfigError as error:
        raise ConfigError("run-path", f"a path cannot be stored: {error.finding.found}", where=where) from None
    if not same:
        raise ConfigError("run-path", "the path cannot be stored: run.yaml would give back another path", where=where)
    return text


def update_run(settings: UpdateSettings) -> SimpleResult:
    """Rename the settings of an older run.yaml; values and comments stay."""
    run = RunFolder(settings.run)
    require_file(run.settings)
    with run.lock("update"):
        renamed = rename_run_yaml_keys(run.settings)
    lines: list[Line] = [f"{old} -> {new}" for old, new in renamed.items()]
    renames = f"{pluralize(len(renamed), 'setting')} renamed" if renamed else "nothing to update, all names are current"
    lines.append(f"{run.settings}: {renames}")
    return SimpleResult({"run": str(run.path), "renamed": renamed}, tuple(lines))


StageStatus = Literal["done", "skipped", "ended here", "would run", "not known yet"]
STAGES_AFTER_TRAINING = ("evaluate", "export")
NEXT_COMMAND_PREFIX = "next: voxgraft "
"""How a command names the next one for its user. Left out inside `go`, which runs that one itself."""
EXPORT_CHECKPOINT_COPIES = 3
"""Checkpoints of the base's size that an export for the original program needs room for: two, and one being saved."""


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
    """All stages up to the last that was requested, or to the one that ended it."""

    run: Path
    stages: tuple[StageResult, ...]
    exit_code: int = 0
    """That of the stage that ended it."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Keys of run.yaml that were given as flags, with their values. They are in the file now, but for a dry run."""
    is_error_next: bool = False
    """Whether the error that ended it is shown below these lines, not above."""

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
        names: list[str] = list(PIPELINE_STAGES)
        follows = "".join(names[names.index(last) + 1 :][:1]) if last in names else ""
        if self.exit_code == EXIT_INTERRUPTED:
            lines.append(f"`{last}` was interrupted. Run `{again}` to continue.")
        elif self.exit_code:
            place = "below" if self.is_error_next else "above"
            lines.append(f"`{last}` failed (see {place}). Fix the problem, then run `{again}` to continue.")
        elif follows and "done" in (one.word for one in self.stages):
            lines.append(f"next: `{again}` continues with `{follows}`.")
        return lines


def run_pipeline(settings: GoSettings) -> GoResult:
    """Run every stage that is not finished, or only say which those are."""
    stages = list(PIPELINE_STAGES)
    stages = stages[: stages.index(settings.until) + 1] if settings.until else stages
    work = PipelineContext(settings)
    changes = find_overrides(work.run, work.settings)
    _require_later_stages(work, stages)
    # With changed settings the plan is made first: it raises what a stage would refuse them with.
    planned = _plan_stages(settings, stages) if settings.dry_run or changes else None
    require_steps_left(work, changes)
    if settings.dry_run and planned is not None:
        return replace(planned, changes=changes)
    if changes:  # only now: values that a check above refuses must not be in the file
        with work.run.lock("go"):
            update_run_yaml(work.run, work.settings)
        progress.report_lines(
            [style_line("run.yaml: ", (key, "bold"), f" is {value or 'empty'} now") for key, value in changes.items()]
        )
    outcomes: list[StageResult] = []
    for name in stages:
        began = time.monotonic()
        try:
            stage, exit_code = _run_stage(settings, name, stages)
        except VoxgraftError as error:
            if outcomes:  # what the stages before have done would not be shown otherwise
                ended = StageResult(name, "ended here", f"error: {error.code}", time.monotonic() - began)
                shown = GoResult(settings.run, (*outcomes, ended), EXIT_BAD_INPUT, changes, is_error_next=True)
                progress.report_lines(shown.lines())
            raise
        outcomes.append(stage)
        if exit_code:
            return GoResult(settings.run, tuple(outcomes), exit_code, changes)
    return GoResult(settings.run, tuple(outcomes), changes=changes)


def _run_stage(settings: GoSettings, name: StageName, stages: Sequence[StageName]) -> tuple[StageResult, int]:
    """One of the stages, if it has to run, and the exit code that ends `go`; 0 if it continues."""
    decide, run_command = PIPELINE_STAGES[name]
    work = PipelineContext(settings)  # read again each time: the stage before has changed the run
    decision = decide(work)
    word = STAGE_STARTING if decision.runs else STAGE_SKIPPED
    progress.report_lines([style_line((name, "bold"), f": {word}: {decision.why}")])
    if not decision.runs:
        return StageResult(name, "skipped", decision.why), 0
    if name == "train":  # the data exists now, which a check at the start may not have had
        _require_later_stages(work, stages, after_data=True)
    if name == "prepare" and "check" in stages:
        require_known_texts(work)
    began = time.monotonic()
    try:
        result = run_command(work)
    except KeyboardInterrupt:  # `train` ends on its own then; whatever the others have finished is kept
        return StageResult(name, "ended here", decision.why, time.monotonic() - began), EXIT_INTERRUPTED
    seconds = time.monotonic() - began
    progress.report_lines([line for line in result.lines() if not str(line).startswith(NEXT_COMMAND_PREFIX)])
    status: StageStatus = "ended here" if result.exit_code else "done"
    return StageResult(name, status, decision.was or decision.why, seconds, result.to_json()), result.exit_code


def _require_later_stages(work: PipelineContext, stages: Sequence[StageName], *, after_data: bool = False) -> None:
    """Raise the error that `evaluate` or `export` would end with, before hours of training.

    `after_data`: check only what the data can have changed since the start.
    """
    settings, go_settings = work.settings, work.go_settings
    pending: list[str] = []
    for name in stages:
        if name in STAGES_AFTER_TRAINING:
            try:
                pending += [name] if PIPELINE_STAGES[name][0](work).runs else []
            except VoxgraftError:  # an earlier stage must leave something first
                pending.append(name)
    if settings.base is None or settings.language is None:
        return  # the stages that need them first say so
    folder = resolve_base_folder(settings.base)
    family = resolve_base_family(folder, settings.family)
    if "evaluate" in pending:
        if not after_data:
            require_recognizer(settings.evaluate.recognizer, settings.language)
        if not after_data and go_settings.sentences:  # files with sentences must be of a language that is spoken
            files = family.files(folder)
            base = family.describe(files, open_tokenizer(files.tokenizer).size + family.spare_rows).languages
            languages = [work.language, *(name for name in base if name != work.language)]
            load_sentence_sets(languages, go_settings.sentences, go_settings.max_sentences)
        manifest = resolve_manifest_path(settings.data.dataset, work.run.data)
        valid = settings.data.valid or (work.run.data_set("valid"),)
        require_sentences(manifest, valid, settings.language, go_settings.sentences)
    if "export" not in pending:
        return
    # The kind must be one of this base and of this training, and its folder free or an export of voxgraft.
    train, merged = settings.train, settings.train.mode == "merged"
    kind = go_settings.to or choose_export_kind(family.name, merged=merged)
    require_export_kind(family, kind)
    if kind == "peft" and train.mode == "rows-only":
        found = "--to peft, but train.mode is rows-only, so there will be no adapter"
        raise ConfigError("export-kind", found, expected=f"graft, {family.name}", where=work.run.settings)
    if kind in SHAREABLE_KINDS and merged and train.full_backbone:
        found = f"--to {kind}, but train.full_backbone changes the backbone itself, so the result is not a graft"
        raise GraftError("export-kind", found, expected=f"--to {family.name}", where=work.run.settings)
    output = work.run.export / kind
    require_export_folder(output, overwrite=is_folder(output))
    if kind not in SHAREABLE_KINDS:
        size = EXPORT_CHECKPOINT_COPIES * family.files(folder).checkpoint.stat().st_size
        require_disk_space(output, size, "the export")


def _plan_stages(settings: GoSettings, stages: Sequence[StageName]) -> GoResult:
    """What would run, by what exists now."""
    outcomes: list[StageResult] = []
    for one in survey_stages(settings, stages):
        if one.error is not None:
            raise one.error
        word: StageStatus = "would run" if one.runs else "not known yet" if one.state == "later" else "skipped"
        outcomes.append(StageResult(one.name, word, one.why))
    return GoResult(settings.run, tuple(outcomes))
