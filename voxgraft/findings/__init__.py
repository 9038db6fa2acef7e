"""What can be wrong with a run, or with files that should belong together: one module per topic, all give findings.

Below the verbs: `check` prints all of these, `train` refuses to start on the errors among them. Nothing is changed.
"""

from voxgraft.findings.subject import CheckSubject, open_check_subject
from voxgraft.findings.topics import CHECK_TOPICS, CheckOutcome, CheckTopic, run_checks

__all__ = ["CHECK_TOPICS", "CheckOutcome", "CheckSubject", "CheckTopic", "open_check_subject", "run_checks"]
