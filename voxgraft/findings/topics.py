"""The topics that are looked at, in the order of the report, and what each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from voxgraft.errors import Finding, VoxgraftError
from voxgraft.findings.base_rows import base_row_findings, spare_row_findings
from voxgraft.findings.belonging import belonging_findings
from voxgraft.findings.body import body_findings
from voxgraft.findings.evaluation import evaluation_findings
from voxgraft.findings.file_contents import extra_findings, pickle_findings
from voxgraft.findings.freezing import freeze_findings
from voxgraft.findings.new_rows import new_row_findings
from voxgraft.findings.optimizer import optimizer_findings
from voxgraft.findings.prepared import prepared_id_findings, prepared_spelling_findings
from voxgraft.findings.prepared_codes import prepared_code_findings
from voxgraft.findings.rates import old_rate_findings, run_rate_findings
from voxgraft.findings.sizes import base_size_findings, config_findings, graft_size_findings, row_size_findings
from voxgraft.findings.subject import Subject
from voxgraft.findings.text import rule_findings, text_findings
from voxgraft.findings.tokenizer import proof_findings, tokenizer_findings
from voxgraft.findings.training_data import data_findings
from voxgraft.findings.values import value_findings

DATA = "training data"
_WORDS = {
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
class Topic:
    """One thing to look at: which parts of the subject it needs, and the function that looks."""

    name: str
    needs: tuple[str, ...]
    look: Callable[[Subject], list[Finding]]

    def missing(self, subject: Subject) -> list[str]:
        """What it needs and does not have, in words. Where there is no base at all, its parts are not listed."""
        words = list(dict.fromkeys(_WORDS[need] for need in self.needs if getattr(subject, need) is None))
        if subject.settings.base is None and any(word.startswith("the base") for word in words):
            words = [*(word for word in words if not word.startswith("the base")), "a base"]
        return words


TOPICS = (
    Topic("base", ("base", "base_checkpoint", "base_tokenizer"), base_size_findings),
    Topic("run and base belong together", ("run", "base"), belonging_findings),
    Topic("graft", ("graft", "base_checkpoint", "base_tokenizer"), graft_size_findings),
    Topic("safety of the files", ("checkpoint_paths",), pickle_findings),
    Topic("tokenizer", ("tokenizer",), tokenizer_findings),
    Topic("text rules", ("graft",), rule_findings),
    Topic("old text", ("grown", "base_tokenizer"), proof_findings),
    Topic("rows", ("checkpoint", "family"), row_size_findings),
    Topic("values of the rows", ("any_checkpoint", "family"), value_findings),
    Topic("sizes in the old config", ("old", "family"), config_findings),
    Topic("base rows", ("checkpoint", "base_checkpoint", "family"), base_row_findings),
    Topic("spare row", ("spare_rows", "checkpoint", "base_checkpoint", "base_pieces"), spare_row_findings),
    Topic("new rows", ("with_new_rows", "base_checkpoint", "base_pieces"), new_row_findings),
    Topic("body", ("checkpoint", "base_checkpoint", "family"), body_findings),
    Topic("what else is in the checkpoint", ("checkpoint",), extra_findings),
    Topic("optimizer state", ("checkpoint", "family"), optimizer_findings),
    Topic("text", ("texts", "spelling"), text_findings),
    Topic("prepared ids", ("prepared",), prepared_id_findings),
    Topic("prepared codes", ("prepared", "family"), prepared_code_findings),
    Topic("spelling of the prepared data", ("prepared", "grown", "spelling"), prepared_spelling_findings),
    Topic("freezing in the old config", ("old",), freeze_findings),
    Topic("rates in the old config", ("old", "family"), old_rate_findings),
    Topic("rates of the run", ("run", "family"), run_rate_findings),
    Topic("evaluation", ("run", "family"), evaluation_findings),
    Topic(DATA, ("run", "graft", "base", "base_checkpoint", "base_tokenizer", "family"), data_findings),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All findings, and which topics were looked at and which not, so that silence is never taken for a pass."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: dict[str, str]
    """Topic to the reason."""

    @property
    def errors(self) -> int:
        return sum(item.level == "error" for item in self.findings)


def look_at(subject: Subject, *, data: bool = True, without: Collection[str] = ()) -> Outcome:
    """Look at every topic whose parts are there. One of our errors in a topic is a finding; the others go on.

    Without `data` the training data is left to whoever opens it anyway; topics in `without` likewise.
    """
    findings = list(subject.findings)
    checked: list[str] = []
    not_checked: dict[str, str] = {}
    for topic in [topic for topic in TOPICS if topic.name not in without and (data or topic.name != DATA)]:
        if missing := topic.missing(subject):
            not_checked[topic.name] = f"needs {' and '.join(missing)}"
            continue
        try:
            findings += topic.look(subject)
            checked.append(topic.name)
        except VoxgraftError as error:
            findings.append(error.finding)
            not_checked[topic.name] = f"stopped by {error.code}"
    return Outcome(tuple(dict.fromkeys(findings)), tuple(checked), not_checked)
