"""The command `check`: every topic that can be looked at, all findings at once. Changes nothing.

`CHECK_TOPICS` lists the topics; most are in `text`, `rows` and `body`. Here are those about data: what other trainers
have prepared (do the ids in `text_ids/*.npy` have rows, and are they this tokenizer's?), and the run's own sets.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.config.commands import CheckSettings
from voxgraft.config.run import format_override_flags
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, Level, VoxgraftError, finding
from voxgraft.core.files import parse_json, read_lines, require_file, require_folder
from voxgraft.core.results import LEVEL_STYLES, Line, Table, format_finding_counts, style_line
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import resolve_manifest_path, resolve_text_files
from voxgraft.dataset.indextts2_manifest import StoredCodes, compute_trimmed_lengths, read_npy, read_sibling_durations
from voxgraft.dataset.run_data import (
    build_sampler,
    compute_set_weights,
    format_prepare_command,
    has_no_data,
    lacks_recordings,
    load_run_data,
    provenance_findings,
    require_batches_fit,
    resolve_num_steps,
    retention_findings,
    sampling_findings,
    warmup_findings,
)
from voxgraft.dataset.sets import count_trailing_run
from voxgraft.inspect.body import body_findings, optimizer_findings
from voxgraft.inspect.rows import base_row_findings, new_row_findings, spare_row_findings
from voxgraft.inspect.subject import CheckSubject, find_text_tables, open_check_subject
from voxgraft.inspect.text import (
    base_size_findings,
    checkpoint_extra_findings,
    encode_sentence,
    format_pieces,
    freeze_findings,
    graft_size_findings,
    nonfinite_row_findings,
    old_config_size_findings,
    old_rate_findings,
    pickle_findings,
    row_size_findings,
    run_rate_findings,
    run_setting_findings,
    size_table,
    text_findings,
    text_rule_findings,
    tokenizer_findings,
    tokenizer_proof_findings,
)

if TYPE_CHECKING:
    from voxgraft.inspect.first_contact import FirstContact

# A text has some hundred ids; the longest that any model takes has some thousand.
MAX_IDS_BYTES = 1 << 20


def read_npy_ids(path: Path) -> NDArray[np.int64]:
    """The ids in the file; an error for anything that is not one list of whole numbers."""
    size = os.path.getsize(require_file(path))
    if size > MAX_IDS_BYTES:
        found = f"{path.name} has {size:,} bytes"
        raise FileError("file-too-large", found, expected=f"at most {MAX_IDS_BYTES:,}", where=path)
    values = read_npy(path, "integers", code="npy-broken")
    found = ""
    if values.ndim != 1:
        found = f"the shape {values.shape}"
    elif values.size and int(values.max()) > np.iinfo(np.int64).max:
        found = f"the id {int(values.max())}"
    if found:
        raise FileError("npy-broken", f"{path.name}: {found}", expected="one list of whole numbers", where=path)
    return values.astype(np.int64)


IDS_FOLDER = "text_ids"
MANIFEST_NAMES = ("train_manifest.jsonl", "train_pairs.jsonl", "gpt_pairs_train.jsonl", "val_manifest.jsonl")
# Keys of the text and of its file of ids: in a manifest of clips, and in one of pairs.
_MANIFEST_FIELDS = (("text", "text_ids_path"), ("target_text", "target_text_ids_path"))
# From this share of unknown tokens on it is an error.
_UNKNOWN_ERROR_SHARE = 0.01
_SAMPLE_SENTENCES = 200
# Up to this share of sentences a different clean-up of the text explains it; above it the tokenizer is another.
_MAX_DIFFERENT_SHARE = 0.2


def prepared_id_findings(subject: CheckSubject) -> list[Finding]:
    """Every file of ids: past the table, negative, deleted by the original program, unknown, never on a new row."""
    prepared, tokenizer, family = subject.prepared, subject.tokenizer, subject.family
    if prepared is None:
        return []
    inner = prepared / IDS_FOLDER
    paths = sorted(require_folder(inner if os.path.isdir(inner) else prepared).glob("*.npy"))
    if not paths:
        raise FileError("prepared-empty", f"the folder has no {IDS_FOLDER}/*.npy", where=prepared)
    counts: Counter[int] = Counter()
    first: dict[int, Path] = {}  # by id: the first file in which it was met
    broken: list[Finding] = []
    with progress.progress_task("reading ids", len(paths)) as advance:
        for path in paths:
            try:
                values, numbers = np.unique(read_npy_ids(path), return_counts=True)
                for token, number in zip(values.tolist(), numbers.tolist(), strict=True):
                    counts[token] += number
                    first.setdefault(token, path)
            except VoxgraftError as error:
                broken.append(error.finding)
            advance(1)
    findings: list[Finding] = []
    if broken:
        found = f"{len(broken):,} of {len(paths):,} files with token ids cannot be read; the first: {broken[0].found}"
        findings.append(finding("npy-broken", found, expected=broken[0].expected, where=broken[0].where))
    if not counts:
        return findings
    # Who has how many rows or pieces that text may index.
    limits: dict[str, int] = {}
    if tokenizer is not None:
        limits[f"the tokenizer {tokenizer.path.name}"] = tokenizer.size
    if subject.checkpoint is not None and family is not None:
        for info in list(find_text_tables(subject.checkpoint, family).values())[:1]:
            owner = f"{info.name}, without the spare (unused) row," if family.spare_rows else info.name
            limits[owner] = info.shape[0] - family.spare_rows
    bounds = [(limit, f"{owner} has {limit:,} (ids 0 to {limit - 1:,})") for owner, limit in limits.items()]
    total = counts.total()
    for limit, expected in bounds or [(max(counts) + 1, "ids start at 0")]:
        if outside := sorted(token for token in counts if not 0 <= token < limit):
            tokens = sum(counts[token] for token in outside)
            span = f"{outside[0]:,}" if len(outside) == 1 else f"{outside[0]:,} to {outside[-1]:,}"
            found = f"{tokens:,} of {total:,} tokens have ids without a row ({span})"
            findings.append(finding("prepared-ids-outside", found, expected=expected, where=first[outside[-1]]))
    if deleted := sorted(family.deleted_ids & counts.keys()) if family else []:
        listed = " and ".join(f"the id {token} ({counts[token]:,} times)" for token in deleted)
        found = f"the texts contain {listed}"
        findings.append(finding("prepared-ids-deleted", found, expected="none", where=first[deleted[0]]))
    if tokenizer is None:
        return findings
    if unknown := counts[tokenizer.unknown_id]:
        level: Level = "error" if unknown >= _UNKNOWN_ERROR_SHARE * total else "warning"
        found = f"{unknown:,} of {total:,} tokens are unknown ({unknown / total:.1%})"
        where = first[tokenizer.unknown_id]
        findings.append(finding("prepared-ids-unknown", found, expected="0", where=where, level=level))
    pieces = subject.base_pieces
    if pieces is not None and tokenizer.size > pieces and max(counts) < pieces:
        found = f"none of {total:,} tokens has the id of a new row ({pieces:,} or more)"
        findings.append(finding("prepared-other-tokenizer", found, where=prepared))
    return findings


def prepared_encoding_findings(subject: CheckSubject) -> list[Finding]:
    """A sample of the manifest encoded again: the same ids, or the data belongs to another tokenizer."""
    prepared, text_encoder, tokenizer = subject.prepared, subject.text_encoder, subject.grown
    if prepared is None or text_encoder is None or tokenizer is None:
        return []
    manifest = next((prepared / name for name in MANIFEST_NAMES if os.path.isfile(prepared / name)), None)
    if manifest is None:
        found = (
            f"none of {', '.join(MANIFEST_NAMES)} is in the folder, so the token ids cannot be compared with the texts"
        )
        return [finding("file-missing", found, where=prepared, level="warning")]
    compared = different = 0
    first = ""
    for text, path in _sample_manifest(manifest):
        try:
            stored = read_npy_ids(path).tolist()
        except VoxgraftError:
            continue  # every file of ids is judged by `prepared_id_findings`
        ids = encode_sentence(text_encoder, text)
        compared += 1
        # Other trainers store ids with or without the language tag in front.
        tagged = text_encoder.tag is not None and ids[:1] == [tokenizer.ids.get(text_encoder.tag)]
        if stored not in (ids, ids[1:] if tagged else ids):
            different += 1
            first = first or f"{text!r:.120} is stored as {format_pieces(tokenizer, stored)}"
            first += "" if different > 1 else f", but the tokenizer gives {format_pieces(tokenizer, ids)}"
    if not compared:
        return [finding("prepared-empty", f"{manifest.name} names no existing file with token ids", where=manifest)]
    if not different:
        return []
    found = f"{different:,} of {compared:,} sentences are encoded differently; the first: {first}"
    level: Level = "error" if different > _MAX_DIFFERENT_SHARE * compared else "warning"
    return [finding("prepared-other-tokenizer", found, expected="0", where=manifest, level=level)]


def _sample_manifest(manifest: Path) -> Iterator[tuple[str, Path]]:
    """Texts with their files of ids, spread over the whole manifest; each file once."""
    entries: dict[Path, str] = {}
    for number, line in read_lines(manifest):
        where = f"{manifest}, line {number}"
        entry = parse_json(line, where)
        for text_key, path_key in _MANIFEST_FIELDS if isinstance(entry, dict) else ():
            text, path = entry.get(text_key), entry.get(path_key)
            if isinstance(text, str) and isinstance(path, str) and path and "\0" not in path:
                local_path = manifest.parent / IDS_FOLDER / Path(path).name
                entries[local_path if os.path.isfile(local_path) else manifest.parent / path] = text
                break
        else:
            expected = " or ".join(f"{text} and {path}" for text, path in _MANIFEST_FIELDS)
            raise FileError(
                "json-shape", "the line does not have a text and its file of text ids", expected=expected, where=where
            )
    paths = list(entries)
    step = max(1, len(paths) // _SAMPLE_SENTENCES)
    for path in paths[::step][:_SAMPLE_SENTENCES]:
        yield entries[path], path


CODES_FOLDER = "codes"


def prepared_code_findings(subject: CheckSubject) -> list[Finding]:
    """Counted by the same rule by which `train` cuts padding; nothing where the folder holds no codes."""
    prepared, family = subject.prepared, subject.family
    if prepared is None or family is None or not os.path.isdir(prepared / CODES_FOLDER):
        return []
    durations = read_sibling_durations(prepared / "train_manifest.jsonl")
    paths = sorted((prepared / CODES_FOLDER).glob("*.npy"))
    clips = []
    with progress.progress_task("reading codes", len(paths)) as advance:
        for path in paths:
            advance(1)
            try:
                codes = read_npy_ids(path)
            except VoxgraftError:
                continue  # a broken file is reported by the command that trains on it
            if len(codes):
                run, seconds = count_trailing_run(codes), durations.get(path.stem)
                clips.append(StoredCodes(path.stem, len(codes), int(codes[-1]), run, stated=None, seconds=seconds))
    trimmed = compute_trimmed_lengths(clips, family.code_hz)
    cut = [(clip, result) for clip, result in zip(clips, trimmed, strict=True) if result[1] is not None]
    if not cut:
        return []
    stored, padding = sum(clip.length for clip in clips), sum(clip.length - length for clip, (length, _) in cut)
    found = f"{len(cut):,} of {len(clips):,} clips are padded: {padding:,} of {stored:,} codes ({padding / stored:.0%})"
    return [finding("prepared-codes-padded", found, expected="0", where=prepared / CODES_FOLDER)]


def evaluation_findings(subject: CheckSubject) -> list[Finding]:
    """A recognizer that cannot be opened or does not know the language, and sentences that will be missing."""
    from voxgraft.evaluation.sentences import require_sentences

    settings, language = subject.settings, subject.settings.language
    if subject.run is None or language is None:
        return []
    run = RunFolder(subject.run)
    manifest = resolve_manifest_path(settings.data.dataset, run.data)
    valid = settings.data.valid or (run.data_set("valid"),)
    looks: list[tuple[Level, Callable[[], None]]] = [
        ("warning", lambda: require_sentences(manifest, valid, language, ()))
    ]
    # `train` opens its recognizer before the first step, and does not start without; `evaluate` comes later.
    recognizers: list[tuple[Level, str, str | None]] = [
        ("warning", "evaluate.recognizer", settings.evaluate.recognizer)
    ]
    if settings.train.listen_every:
        recognizers.append(("error", "train.recognizer", settings.train.recognizer))
    for level, name, recognizer in recognizers:
        if recognizer is not None:
            from voxgraft.evaluation.scores import require_recognizer  # loads torch, which `check` seldom needs

            looks.append((level, partial(require_recognizer, recognizer, language, name)))
    found = []
    for level, look in looks:
        try:
            look()
        except VoxgraftError as error:
            # Training continues with a recognizer that does not know the language: its speech is then not measured.
            kept = "warning" if error.code == "recognizer-language" else level
            found.append(replace(error.finding, level=kept))
    return found


def training_data_findings(subject: CheckSubject) -> list[Finding]:
    """The findings that `train` looks at, by the same functions; nothing is made that does not exist yet."""
    requirements = subject.data_requirements
    if requirements is None:
        return []
    settings, merged = requirements.settings, subject.settings.train.mode == "merged"
    data = load_run_data(requirements, merged=merged)
    if has_no_data(requirements):  # a run whose data is still to come is not a wrong one
        return [replace(item, level="note") for item in data.findings]
    if not data.all_sets_opened:
        return data.findings
    findings, train = list(data.findings), settings.train
    try:
        num_replay = 0
        if merged and subject.base is not None:
            from voxgraft.training.replay import SelfReplayBuilder, resolve_self_replay_count

            # Sentences that the base is to speak itself as replay. That there are any is seen without speaking them.
            parts = (
                requirements.run,
                settings.data,
                subject.base,
                requirements.graft,
                requirements.text_encoder,
                requirements.base_spec,
            )
            if count := resolve_self_replay_count(settings.data, "merged"):
                num_replay = len(SelfReplayBuilder(*parts, train.seed).plan(count))
        if merged:
            replayed, measured = bool(data.replay or num_replay), bool(data.measured or num_replay)
            findings += retention_findings(replayed=replayed, measured=measured)
        require_batches_fit(requirements, data, replay_pending=bool(num_replay))
        weights = compute_set_weights(data.train, data.replay, settings.data.replay_share)
        stream = build_sampler(settings, requirements.spec, (*data.train, *data.replay), weights)
        findings += sampling_findings(requirements, data, stream)
        findings += warmup_findings(train, resolve_num_steps(train, stream))
        if train.sample_texts:
            from voxgraft.evaluation.in_training import build_sample_sentences

            build_sample_sentences(requirements.text_encoder, train.sample_texts, (), train.seed)
    except VoxgraftError as error:
        findings.append(error.finding)
    return findings


DATA_TOPIC = "training data"
_GRAFT_PART = "a complete graft"
_PART_NAMES = {
    "any_checkpoint": "a checkpoint or a base",
    "base": "the base",
    "base_checkpoint": "the base's checkpoint",
    "base_pieces": "the base's tokenizer",
    "base_tokenizer": "the base's tokenizer",
    "checkpoint": "a checkpoint",
    "checkpoint_paths": "a checkpoint or a base",
    "family": "a known family",
    "graft": _GRAFT_PART,
    "grown": "an extended tokenizer",
    "old": "an old config",
    "prepared": "data of another trainer",
    "run": "a run",
    "spare_rows": "a family with a spare row",
    "text_encoder": "a tokenizer of a known family",
    "texts": "texts",
    "tokenizer": "a tokenizer",
    "with_new_rows": "a checkpoint or a graft",
}


# Each thing to look at: the title that users see, the parts of the subject that it needs, and the function that looks.
CHECK_TOPICS: tuple[tuple[str, tuple[str, ...], Callable[[CheckSubject], list[Finding]]], ...] = (
    ("settings of the run", ("run",), run_setting_findings),
    ("base", ("base", "base_checkpoint", "base_tokenizer"), base_size_findings),
    ("run matches its base", ("run", "base"), provenance_findings),
    ("graft", ("graft", "base_checkpoint", "base_tokenizer"), graft_size_findings),
    ("safety of the files", ("checkpoint_paths",), pickle_findings),
    ("tokenizer", ("tokenizer",), tokenizer_findings),
    ("text rules", ("graft",), text_rule_findings),
    ("old text", ("grown", "base_tokenizer"), tokenizer_proof_findings),
    ("rows", ("checkpoint", "family"), row_size_findings),
    ("values of the rows", ("any_checkpoint", "family"), nonfinite_row_findings),
    ("sizes in the old config", ("old", "family"), old_config_size_findings),
    ("base rows", ("checkpoint", "base_checkpoint", "family"), base_row_findings),
    ("spare row", ("spare_rows", "checkpoint", "base_checkpoint", "base_pieces"), spare_row_findings),
    ("new rows", ("with_new_rows", "base_checkpoint", "base_pieces"), new_row_findings),
    ("backbone", ("checkpoint", "base_checkpoint", "family"), body_findings),
    ("other contents of the checkpoint", ("checkpoint",), checkpoint_extra_findings),
    ("optimizer state", ("checkpoint", "family"), optimizer_findings),
    ("text", ("texts", "text_encoder"), text_findings),
    ("prepared ids", ("prepared",), prepared_id_findings),
    ("prepared codes", ("prepared", "family"), prepared_code_findings),
    ("tokenization of the prepared data", ("prepared", "grown", "text_encoder"), prepared_encoding_findings),
    ("freezing in the old config", ("old",), freeze_findings),
    ("rates in the old config", ("old", "family"), old_rate_findings),
    ("rates of the run", ("run", "family"), run_rate_findings),
    ("evaluation", ("run", "family"), evaluation_findings),
    (DATA_TOPIC, ("run", "graft", "base", "base_checkpoint", "base_tokenizer", "family"), training_data_findings),
)


# What a run of voxgraft does not have: the files of other trainers, and the topics that need one.
_FOREIGN_FLAGS = ("--checkpoint", "--training-config", "--prepared")
_FOREIGN_TOPICS = frozenset(name for name, needs, _ in CHECK_TOPICS if {"checkpoint", "old", "prepared"} & set(needs))
_INPUT_NAMES = ("run", "base", "checkpoint", "training_config", "texts", "prepared")
_NO_FIX_NEEDED = "no action needed."


@dataclass(frozen=True, slots=True)
class CheckResult:
    """All findings, and which topics were looked at and which not, so that silence is never taken for a pass.

    Exit 1 if any finding is an error.
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: dict[str, str]
    """Topic to the reason."""
    sizes: Table | None = None
    not_given: tuple[str, ...] = ()
    run: Path | None = None
    next_step: str = ""
    """What to do now, if a run was checked."""

    @property
    def exit_code(self) -> int:
        return 1 if any(item.level == "error" for item in self.findings) else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "fine": not self.exit_code,
            "checked": list(self.checked),
            "not_checked": self.not_checked,
            "not_given": list(self.not_given),
            "sizes": self.sizes.to_json() if self.sizes else [],
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [self.sizes] if self.sizes else []
        # That the graft is still to be made is no fault; what is wrong comes before it.
        order = {item: (list(LEVEL_STYLES).index(item.level), item.code == "graft-missing") for item in self.findings}
        for item in sorted(self.findings, key=order.__getitem__):
            first, *rest = item.lines()
            lines.append(style_line((first, LEVEL_STYLES[item.level])))
            lines += [line for line in rest if _NO_FIX_NEEDED not in line]
        lines.append(f"checked: {'; '.join(self.checked) or 'nothing'}")
        by_reason: dict[str, list[str]] = {}
        foreign = 0
        for topic, reason in self.not_checked.items():
            if self.run is not None and topic in _FOREIGN_TOPICS and reason.startswith("needs"):
                foreign += 1  # a run of voxgraft has nothing for these
            else:
                by_reason.setdefault(reason, []).append(topic)
        for reason, topics in by_reason.items():
            words = reason.replace("needs ", "they need ") if reason.startswith("needs ") else reason
            lines.append(f"not checked: {', '.join(topics)}; {words}")
        if foreign:
            flags = ", ".join(_FOREIGN_FLAGS)
            lines.append(f"not needed for a run: {foreign} checks of checkpoints and data of other trainers ({flags})")
        absent = [name for name in self.not_given if not (foreign and name in _FOREIGN_FLAGS)]
        lines += [f"not given: {', '.join(absent)}"] if absent else []
        return [*lines, self.verdict, *([f"next: {self.next_step}"] if self.next_step else [])]

    @property
    def verdict(self) -> Line:
        return format_finding_counts(self.findings)


def run_checks(subject: CheckSubject, *, with_data: bool = True, skip_topics: Collection[str] = ()) -> CheckResult:
    """Look at every topic whose parts exist. An error in a topic becomes a finding; the other topics still run.

    Without `with_data` the training data is not opened; `skip_topics` names further topics to leave out.
    """
    findings = list(subject.findings)
    checked: list[str] = []
    not_checked: dict[str, str] = {}
    for name, needs, look in CHECK_TOPICS:
        if name in skip_topics or (name == DATA_TOPIC and not with_data):
            continue
        missing = list(dict.fromkeys(_PART_NAMES[need] for need in needs if getattr(subject, need) is None))
        base_parts = [word for word in missing if word.startswith("the base")]
        if base_parts and (subject.settings.base is None or subject.base is None):
            # Where there is no base at all, its parts are not listed.
            missing = [*(word for word in missing if word not in base_parts), "a base"]
        if subject.run is not None and not ({"checkpoint", "old", "prepared"} & set(needs)):
            # What a run lacks is its base or its graft: all other parts come with these two.
            if subject.base is None and missing:
                missing = ["a base"]
            elif subject.graft is None and missing and not base_parts:
                missing = [_GRAFT_PART]
        if missing:
            not_checked[name] = f"needs {' and '.join(missing)}"
            continue
        try:
            findings += look(subject)
            checked.append(name)
        except VoxgraftError as error:
            findings.append(error.finding)
            not_checked[name] = f"stopped by {error.code}"
    return CheckResult(tuple(dict.fromkeys(findings)), tuple(checked), not_checked)


def check_command(settings: CheckSettings) -> CheckResult | FirstContact:
    """`check`, or with --speak the first contact with a base."""
    if not settings.speak:
        return check(settings)
    from voxgraft.inspect.first_contact import check_first_contact

    return check_first_contact(settings)


def check(settings: CheckSettings) -> CheckResult:
    """Look at everything that was given. What cannot be read is a finding; the rest is still looked at."""
    given = {name: bool(getattr(settings, name)) for name in _INPUT_NAMES}
    given["texts"] = bool(resolve_text_files(settings, settings.run))
    given["tokenizer"] = settings.tokenizer.file is not None or settings.run is not None
    if not any(given.values()):
        found = "neither a run nor a file to check is given"
        raise ConfigError("config-missing", found, expected="RUN, or one of --base, --tokenizer, --checkpoint ...")
    with open_check_subject(settings) as subject:
        result = run_checks(subject)
        sizes = size_table(subject)
    names = (name.replace("_", "-") for name, there in given.items() if not there)
    listed = tuple("--" + name if name != "run" else "RUN" for name in names)
    step = _choose_next_step(settings.run, settings, result.findings) if settings.run is not None else ""
    return replace(result, sizes=sizes, not_given=listed, run=settings.run, next_step=step)


def _choose_next_step(path: Path, settings: CheckSettings, findings: Collection[Finding]) -> str:
    """What the run needs now. Clips that are not prepared yet are no fault, but nothing can be trained without."""
    run, quoted, codes = RunFolder(path), shlex.quote(str(path)), {item.code for item in findings}
    if {item.code for item in findings if item.level == "error"} - {"graft-missing"}:
        return "fix the errors; training does not start while there is one"
    if "graft-missing" in codes:
        # Without recordings there is nothing to train on yet, but the graft can be made of texts.
        return f"voxgraft graft {quoted}" if lacks_recordings(run, settings) else f"voxgraft go {quoted}"
    if codes & {"set-missing", "set-incomplete"}:
        return f"{format_prepare_command(run, settings)}; training cannot start without clips"
    return " ".join([f"voxgraft train {quoted}", *format_override_flags(run, settings)])
