"""Prepared data of other trainers: are the codes in `codes/*.npy` the clips' own, or padded like those beside them?"""

from __future__ import annotations

import os
from pathlib import Path

from voxgraft import progress
from voxgraft.corpus.community_lines import read_sibling_durations
from voxgraft.corpus.padding import StoredCodes, compute_trimmed_lengths
from voxgraft.corpus.set_checks import count_trailing_run
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.findings.npy import read_npy_ids
from voxgraft.findings.subject import CheckSubject

CODES_FOLDER = "codes"


def prepared_code_findings(subject: CheckSubject) -> list[Finding]:
    """Counted by the same rule by which `train` cuts padding; nothing where the folder holds no codes."""
    prepared, family = subject.prepared, subject.family
    if prepared is None or family is None or not os.path.isdir(prepared / CODES_FOLDER):
        return []
    clips = _read_stored_codes(prepared)
    kept = compute_trimmed_lengths(clips, family.code_hz)
    cut = [(clip, one) for clip, one in zip(clips, kept, strict=True) if one.reason is not None]
    if not cut:
        return []
    stored, padding = sum(clip.length for clip in clips), sum(clip.length - one.length for clip, one in cut)
    found = f"{len(cut):,} of {len(clips):,} clips are padded: {padding:,} of {stored:,} codes ({padding / stored:.0%})"
    return [finding("prepared-codes-padded", found, expected="0", where=prepared / CODES_FOLDER)]


def _read_stored_codes(prepared: Path) -> list[StoredCodes]:
    """Every file of codes that can be read; a broken one is left to whoever trains on it."""
    seconds = read_sibling_durations(prepared / "train_manifest.jsonl")
    paths = sorted((prepared / CODES_FOLDER).glob("*.npy"))
    clips = []
    with progress.progress_task("reading codes", len(paths)) as advance:
        for path in paths:
            advance(1)
            try:
                codes = read_npy_ids(path)
            except VoxgraftError:
                continue
            if len(codes):
                run = count_trailing_run(codes)
                clips.append(
                    StoredCodes(path.stem, len(codes), int(codes[-1]), run, stated=None, seconds=seconds.get(path.stem))
                )
    return clips
