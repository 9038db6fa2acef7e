"""Whether the text tables hold numbers at all: one NaN in a row spreads over everything that reads it."""

from __future__ import annotations

import numpy as np

from voxgraft.errors import Finding, finding
from voxgraft.findings.subject import CheckSubject
from voxgraft.findings.text_tables import find_text_tables

_VALUE_BLOCK_ROWS = 4096


def nonfinite_row_findings(subject: CheckSubject) -> list[Finding]:
    """Rows with values that are not finite, in the checkpoint that was given, else in the base's."""
    checkpoint, family = subject.any_checkpoint, subject.family
    if checkpoint is None or family is None:
        return []
    findings: list[Finding] = []
    for info in find_text_tables(checkpoint, family).values():
        bad: list[int] = []
        for start in range(0, info.shape[0], _VALUE_BLOCK_ROWS):
            stop = min(start + _VALUE_BLOCK_ROWS, info.shape[0])
            finite = np.isfinite(checkpoint.read_rows(info.name, start, stop)).reshape(stop - start, -1).all(axis=1)
            bad += (np.flatnonzero(~finite) + start).tolist()
        if bad:
            found = f"{len(bad):,} of {info.shape[0]:,} rows of {info.name} are not finite, the first is row {bad[0]:,}"
            findings.append(finding("tensor-not-finite", found, where=checkpoint.path))
    return findings
