"""The verb `check`: everything in a run, or in loose files, that would go wrong. Changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxgraft.config.commands import CheckSettings
from voxgraft.core.errors import ConfigError, Finding, VoxgraftError
from voxgraft.core.results import LEVEL_STYLES, Line, Table, style_line
from voxgraft.core.run import RunFolder
from voxgraft.data.selection import resolve_manifest_path, resolve_text_files
from voxgraft.dataset.run_context import provenance_findings
from voxgraft.dataset.run_data import (
    DataRequirements,
    RunData,
    build_sampler,
    compute_set_weights,
    has_no_data,
    load_run_data,
    require_batches_fit,
    resolve_num_steps,
    retention_findings,
    sampling_findings,
    warmup_findings,
)
from voxgraft.inspect.body import body_findings
from voxgraft.inspect.optimizer import optimizer_findings
from voxgraft.inspect.prepared import prepared_code_findings, prepared_encoding_findings, prepared_id_findings
from voxgraft.inspect.rows import base_row_findings, new_row_findings, spare_row_findings
from voxgraft.inspect.sizes import (
    base_size_findings,
    checkpoint_extra_findings,
    freeze_findings,
    graft_size_findings,
    nonfinite_row_findings,
    old_config_size_findings,
    old_rate_findings,
    pickle_findings,
    row_size_findings,
    run_rate_findings,
    size_table,
)
from voxgraft.inspect.subject import CheckSubject, open_check_subject
from voxgraft.inspect.text import text_findings, text_rule_findings, tokenizer_findings, tokenizer_proof_findings


def evaluation_findings(subject: CheckSubject) -> list[Finding]:
    """A recogniser that cannot be opened or does not know the language, and sentences that will be missing."""
    from voxgraft.evaluation.sentences import require_sentences

    settings, language = subject.settings, subject.settings.language
    if subject.run is None or language is None:
        return []
    run = RunFolder(subject.run)
    manifest = resolve_manifest_path(settings.data.dataset, run.data)
    valid = settings.data.valid or (run.data_set("valid"),)
    looks: list[Callable[[], None]] = [lambda: require_sentences(manifest, valid, language, ())]
    if settings.evaluate.recognizer is not None:
        from voxgraft.evaluation.scores import require_recognizer  # loads torch, which `check` needs for little else

        looks.append(lambda: require_recognizer(settings.evaluate.recognizer, language))
    found = []
    for look in looks:
        try:
            look()
        except VoxgraftError as error:
            found.append(replace(error.finding, level="warning"))
    return found


def training_data_findings(subject: CheckSubject) -> list[Finding]:
    """The findings that `train` looks at, by the same functions; nothing is made that is not there yet."""
    wanted = subject.data_requirements
    if wanted is None:
        return []
    merged = subject.settings.train.mode == "merged"
    data = load_run_data(wanted, merged=merged)
    if has_no_data(wanted):  # a run whose data is still to come is not a wrong one
        return [replace(item, level="note") for item in data.findings]
    if not data.all_sets_opened:
        return data.findings
    return [*data.findings, *_order_and_length_findings(subject, wanted, data, merged)]


def _order_and_length_findings(
    subject: CheckSubject, wanted: DataRequirements, data: RunData, merged: bool
) -> Iterator[Finding]:
    """What is wrong with the order of the data and with the length of the run."""
    settings, sets = wanted.settings, (*data.train, *data.replay)
    try:
        spoken = _count_self_replay_sentences(subject, wanted) if merged else 0
        if merged:
            yield from retention_findings(replayed=bool(data.replay or spoken), measured=bool(data.measured or spoken))
        require_batches_fit(wanted, data, replay_pending=bool(spoken))
        stream = build_sampler(
            settings, wanted.frame, sets, compute_set_weights(data.train, data.replay, settings.data.replay_share)
        )
        yield from sampling_findings(wanted, data, stream)
        yield from warmup_findings(settings.train, resolve_num_steps(settings.train, stream))
        if settings.train.sample_texts:
            _encode_sample_texts(wanted)
    except VoxgraftError as error:
        yield error.finding


def _encode_sample_texts(wanted: DataRequirements) -> None:
    from voxgraft.training.samples import (
        build_sample_sentences,  # torch, and it is needed for who asks for sentences alone
    )

    train = wanted.settings.train
    build_sample_sentences(wanted.spelling, train.sample_texts, (), train.seed)


def _count_self_replay_sentences(subject: CheckSubject, wanted: DataRequirements) -> int:
    """Sentences that the base is to speak itself as replay. That there are any is seen without speaking them."""
    from voxgraft.training.replay import SelfReplayBuilder, resolve_self_replay_count

    settings = wanted.settings
    count = resolve_self_replay_count(settings.data, "merged")
    if not count or subject.base is None:
        return 0
    frame, seed = wanted.base_frame, settings.train.seed
    replay = SelfReplayBuilder(wanted.run, settings.data, subject.base, wanted.graft, wanted.spelling, frame, seed)
    return len(replay.plan(count))


DATA_TOPIC = "training data"
_PART_NAMES = {
    "any_checkpoint": "a checkpoint or a base",
    "base": "the base",
    "base_checkpoint": "the base's checkpoint",
    "base_pieces": "the base's tokenizer",
    "base_tokenizer": "the base's tokenizer",
    "checkpoint": "a checkpoint",
    "checkpoint_paths": "a checkpoint or a base",
    "family": "a known family",
    "graft": "a run with a whole graft",
    "grown": "a grown tokenizer",
    "old": "an old config",
    "prepared": "data of another trainer",
    "run": "a run",
    "spare_rows": "a family with a spare row",
    "spelling": "a tokenizer of a known family",
    "texts": "texts",
    "tokenizer": "a tokenizer",
    "with_new_rows": "a checkpoint or a graft",
}


@dataclass(frozen=True, slots=True)
class CheckTopic:
    """One thing to look at: which parts of the subject it needs, and the function that looks."""

    name: str
    needs: tuple[str, ...]
    look: Callable[[CheckSubject], list[Finding]]

    def missing(self, subject: CheckSubject) -> list[str]:
        """What it needs and does not have, in words. Where there is no base at all, its parts are not listed."""
        words = list(dict.fromkeys(_PART_NAMES[need] for need in self.needs if getattr(subject, need) is None))
        if subject.settings.base is None and any(word.startswith("the base") for word in words):
            words = [*(word for word in words if not word.startswith("the base")), "a base"]
        return words


CHECK_TOPICS = (
    CheckTopic("base", ("base", "base_checkpoint", "base_tokenizer"), base_size_findings),
    CheckTopic("run and base belong together", ("run", "base"), provenance_findings),
    CheckTopic("graft", ("graft", "base_checkpoint", "base_tokenizer"), graft_size_findings),
    CheckTopic("safety of the files", ("checkpoint_paths",), pickle_findings),
    CheckTopic("tokenizer", ("tokenizer",), tokenizer_findings),
    CheckTopic("text rules", ("graft",), text_rule_findings),
    CheckTopic("old text", ("grown", "base_tokenizer"), tokenizer_proof_findings),
    CheckTopic("rows", ("checkpoint", "family"), row_size_findings),
    CheckTopic("values of the rows", ("any_checkpoint", "family"), nonfinite_row_findings),
    CheckTopic("sizes in the old config", ("old", "family"), old_config_size_findings),
    CheckTopic("base rows", ("checkpoint", "base_checkpoint", "family"), base_row_findings),
    CheckTopic("spare row", ("spare_rows", "checkpoint", "base_checkpoint", "base_pieces"), spare_row_findings),
    CheckTopic("new rows", ("with_new_rows", "base_checkpoint", "base_pieces"), new_row_findings),
    CheckTopic("body", ("checkpoint", "base_checkpoint", "family"), body_findings),
    CheckTopic("what else is in the checkpoint", ("checkpoint",), checkpoint_extra_findings),
    CheckTopic("optimizer state", ("checkpoint", "family"), optimizer_findings),
    CheckTopic("text", ("texts", "spelling"), text_findings),
    CheckTopic("prepared ids", ("prepared",), prepared_id_findings),
    CheckTopic("prepared codes", ("prepared", "family"), prepared_code_findings),
    CheckTopic("spelling of the prepared data", ("prepared", "grown", "spelling"), prepared_encoding_findings),
    CheckTopic("freezing in the old config", ("old",), freeze_findings),
    CheckTopic("rates in the old config", ("old", "family"), old_rate_findings),
    CheckTopic("rates of the run", ("run", "family"), run_rate_findings),
    CheckTopic("evaluation", ("run", "family"), evaluation_findings),
    CheckTopic(
        DATA_TOPIC, ("run", "graft", "base", "base_checkpoint", "base_tokenizer", "family"), training_data_findings
    ),
)


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """All findings, and which topics were looked at and which not, so that silence is never taken for a pass."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: dict[str, str]
    """Topic to the reason."""

    @property
    def errors(self) -> int:
        return sum(item.level == "error" for item in self.findings)


def run_checks(subject: CheckSubject, *, with_data: bool = True, skip_topics: Collection[str] = ()) -> CheckOutcome:
    """Look at every topic whose parts are there. One of our errors in a topic is a finding; the others go on.

    Without `data` the training data is left to whoever opens it anyway; topics in `without` likewise.
    """
    findings = list(subject.findings)
    checked: list[str] = []
    not_checked: dict[str, str] = {}
    for topic in [
        topic for topic in CHECK_TOPICS if topic.name not in skip_topics and (with_data or topic.name != DATA_TOPIC)
    ]:
        if missing := topic.missing(subject):
            not_checked[topic.name] = f"needs {' and '.join(missing)}"
            continue
        try:
            findings += topic.look(subject)
            checked.append(topic.name)
        except VoxgraftError as error:
            findings.append(error.finding)
            not_checked[topic.name] = f"stopped by {error.code}"
    return CheckOutcome(tuple(dict.fromkeys(findings)), tuple(checked), not_checked)


_INPUT_NAMES = ("run", "base", "checkpoint", "base_config", "texts", "prepared")
_NO_FIX_NEEDED = "none is needed."


@dataclass(frozen=True, slots=True)
class CheckResult:
    """All findings at once, and what was looked at; exit 1 if any of them is an error."""

    outcome: CheckOutcome
    sizes: Table | None
    not_given: tuple[str, ...]
    run: Path | None = None

    @property
    def exit_code(self) -> int:
        return 1 if self.outcome.errors else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "fine": not self.outcome.errors,
            "checked": list(self.outcome.checked),
            "not_checked": self.outcome.not_checked,
            "not_given": list(self.not_given),
            "sizes": self.sizes.to_json() if self.sizes else [],
            "findings": [item.to_json() for item in self.outcome.findings],
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [self.sizes] if self.sizes else []
        for level in LEVEL_STYLES:
            for item in self.outcome.findings:
                lines += _format_check_finding(item) if item.level == level else []
        lines.append(f"checked: {', '.join(self.outcome.checked) or 'nothing'}")
        by_reason: dict[str, list[str]] = {}
        for topic, reason in self.outcome.not_checked.items():
            by_reason.setdefault(reason, []).append(topic)
        if by_reason:
            skipped = (f"{', '.join(topics)} ({reason})" for reason, topics in by_reason.items())
            lines.append(f"not checked: {'; '.join(skipped)}")
        if self.not_given:
            lines.append(f"not given: {', '.join(self.not_given)}")
        return [*lines, self.verdict, *self._next()]

    def _next(self) -> list[Line]:
        """What the run needs now. Clips that are not prepared yet are no fault, but nothing can be trained without."""
        if self.run is None:
            return []
        run, codes = shlex.quote(str(self.run)), {item.code for item in self.outcome.findings}
        if self.outcome.errors:
            return ["next: cure the errors; training does not start while there is one"]
        if "graft-missing" in codes:
            return [f"next: voxgraft graft {run}"]
        if codes & {"set-missing", "set-incomplete"}:
            return [f"next: voxgraft prepare {run}; training cannot start before there are clips"]
        return [f"next: voxgraft train {run}"]

    @property
    def verdict(self) -> Line:
        """How many findings there are of each level."""
        counts = {level: sum(item.level == level for item in self.outcome.findings) for level in LEVEL_STYLES}
        listed = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())
        return style_line((listed, LEVEL_STYLES["error"] if counts["error"] else "bold green"))


def check(settings: CheckSettings) -> CheckResult:
    """Look at everything that was given. What cannot be read is a finding; the rest is still looked at."""
    given = {name: bool(getattr(settings, name)) for name in _INPUT_NAMES}
    given["texts"] = bool(resolve_text_files(settings, settings.run))
    given["tokenizer"] = settings.tokenizer.file is not None or settings.run is not None
    if not any(given.values()):
        found = "neither a run nor any file to look at is given"
        raise ConfigError("config-missing", found, expected="RUN, or one of --base, --tokenizer, --checkpoint ...")
    with open_check_subject(settings) as subject:
        outcome = run_checks(subject)
        sizes = size_table(subject)
    names = (name.replace("_", "-") for name, there in given.items() if not there)
    listed = tuple("--" + name if name != "run" else "RUN" for name in names)
    return CheckResult(outcome, sizes, listed, settings.run)


def _format_check_finding(item: Finding) -> list[Line]:
    first, *rest = item.lines()
    return [style_line((first, LEVEL_STYLES[item.level])), *(line for line in rest if _NO_FIX_NEEDED not in line)]
