"""Everything but the text tables, bit for bit: if it is the base's own, the base's speech cannot have changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from voxgraft import progress
from voxgraft.checkpoints.model import Checkpoint
from voxgraft.errors import Finding, finding
from voxgraft.families.base import Family
from voxgraft.findings.subject import Subject
from voxgraft.findings.text_tables import is_stand_in

_NAMED = 3


def body_findings(subject: Subject) -> list[Finding]:
    """Compare all other tensors, streaming. The claim about speech is made only if it was seen to hold."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None or is_stand_in(checkpoint):
        return []
    names = _other_tensors(base, family)
    there = [name for name in names if name in checkpoint.tensors]
    findings: list[Finding] = []
    if len(there) < len(names):
        missing = [name for name in names if name not in checkpoint.tensors]
        found = f"{len(missing):,} of the base's {len(names):,} other tensors are not in the file{_first(missing)}"
        findings.append(finding("body-missing", found, where=checkpoint.path))
    differing = list(_differing(base, checkpoint, there))
    if differing:
        found = f"{len(differing):,} of {len(there):,} other tensors are not the base's{_first(differing)}"
        findings.append(finding("body-changed", found, expected="the base's bits", where=checkpoint.path))
    heads = _speech_heads(names)
    if names and heads and not findings:
        found = (
            f"all {len(names):,} other tensors are the base's bits, {' and '.join(heads)} among them: "
            "the text tables are the only thing that grew"
        )
        findings.append(finding("body-same", found, where=checkpoint.path))
    return findings


def _other_tensors(base: Checkpoint, family: Family) -> list[str]:
    """The base's tensors that are no text table, nor a second name for one."""
    tables = [info for point in family.graft_points if (info := base.tensors.get(point.tensor)) is not None]
    return [
        name
        for name, info in base.tensors.items()
        if not any(info.storage == table.storage and info.same_bytes(table) for table in tables)
    ]


def _speech_heads(names: list[str]) -> list[str]:
    """Heads that are no text head: through these the model speaks."""
    return [name for name in names if name.endswith("_head.weight")]


def _differing(base: Checkpoint, checkpoint: Checkpoint, names: list[str]) -> Iterator[str]:
    total = sum(base.tensors[name].num_bytes for name in names)
    with progress.task("comparing everything else with the base", total) as advance:
        for name in names:
            if not _same(base, checkpoint, name):
                yield name
            advance(base.tensors[name].num_bytes)


def _same(base: Checkpoint, checkpoint: Checkpoint, name: str) -> bool:
    old, new = base.tensors[name], checkpoint.tensors[name]
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return False
    if not (old.contiguous and new.contiguous):
        return base.read(name, raw=True).tobytes() == checkpoint.read(name, raw=True).tobytes()
    pairs = zip(base.raw(name), checkpoint.raw(name), strict=True)
    return all(np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(two, np.uint8)) for one, two in pairs)


def _first(names: list[str]) -> str:
    more = ", ..." if len(names) > _NAMED else ""
    return f" ({', '.join(names[:_NAMED])}{more})"
