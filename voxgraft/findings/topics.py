"""The topics that are looked at, in the order of the report, and what each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from voxgraft.errors import Finding, VoxgraftError
from voxgraft.findings.base_rows import base_row_findings, spare_row_findings
from voxgraft.findings.belonging import provenance_findings
from voxgraft.findings.body import body_findings
from voxgraft.findings.evaluation import evaluation_findings
from voxgraft.findings.file_contents import checkpoint_extra_findings, pickle_findings
from voxgraft.findings.freezing import freeze_findings
from voxgraft.findings.new_rows import new_row_findings
from voxgraft.findings.optimizer import optimizer_findings
from voxgraft.findings.prepared import prepared_encoding_findings, prepared_id_findings
from voxgraft.findings.prepared_codes import prepared_code_findings
from voxgraft.findings.rates import old_rate_findings, run_rate_findings
from voxgraft.findings.sizes import base_size_findings, graft_size_findings, old_config_size_findings, row_size_findings
from voxgraft.findings.subject import CheckSubject
from voxgraft.findings.text import text_findings, text_rule_findings
from voxgraft.findings.tokenizer import tokenizer_findings, tokenizer_proof_findings
from voxgraft.findings.training_data import training_data_findings
from voxgraft.findings.values import nonfinite_row_findings

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
