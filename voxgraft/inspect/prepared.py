"""Prepared data of other trainers: do the ids in `text_ids/*.npy` have rows, and are they this tokenizer's?"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding, Level, VoxgraftError, finding
from voxgraft.core.files import parse_json, read_lines, require_file, require_folder
from voxgraft.dataset.checks import StoredCodes, compute_trimmed_lengths, count_trailing_run
from voxgraft.dataset.indextts2_manifest import read_npy, read_sibling_durations
from voxgraft.inspect.subject import CheckSubject, find_text_tables
from voxgraft.inspect.text import encode_sentence, format_pieces

MAX_IDS_BYTES = 1 << 20
"""A text has some hundred ids; the longest that any model takes has some thousand."""


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
_MANIFEST_FIELDS = (("text", "text_ids_path"), ("target_text", "target_text_ids_path"))
"""Keys of the text and of its file of ids: in a manifest of clips, and in one of pairs."""
_UNKNOWN_ERROR_SHARE = 0.01
"""From this share of unknown tokens on it is an error."""
_SAMPLE_SENTENCES = 200
_MAX_DIFFERENT_SHARE = 0.2
"""Up to this share of sentences a different clean-up of the text explains it; above it the tokenizer is another."""


@dataclass(slots=True)
class _PreparedIdCounts:
    """What all files of ids hold together."""

    files: int = 0
    broken: list[Finding] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    first: dict[int, Path] = field(default_factory=dict)
    """The first file in which an id was met."""

    def add(self, path: Path, ids: NDArray[np.int64]) -> None:
        values, counts = np.unique(ids, return_counts=True)
        for token, count in zip(values.tolist(), counts.tolist(), strict=True):
            self.counts[token] += count
            self.first.setdefault(token, path)


def prepared_id_findings(subject: CheckSubject) -> list[Finding]:
    """Every file of ids: past the table, negative, deleted by the stock program, unknown, never on a new row."""
    if subject.prepared is None:
        return []
    seen = _read_all_ids(subject.prepared)
    findings = _unreadable_id_findings(seen)
    if not seen.counts:
        return findings
    for owner, limit in _id_limits(subject).items():
        outside = sorted(token for token in seen.counts if not 0 <= token < limit)
        findings += _outside_id_findings(seen, outside, f"{owner} has {limit:,} (ids 0 to {limit - 1:,})")
    if not _id_limits(subject):
        findings += _outside_id_findings(seen, sorted(token for token in seen.counts if token < 0), "ids start at 0")
    return [*findings, *_deleted_id_findings(subject, seen), *_prepared_share_findings(subject, seen)]


def prepared_encoding_findings(subject: CheckSubject) -> list[Finding]:
    """A sample of the manifest spelled again: the same ids, or the data belongs to another tokenizer."""
    prepared, spelling, tokenizer = subject.prepared, subject.spelling, subject.grown
    if prepared is None or spelling is None or tokenizer is None:
        return []
    manifest = next((prepared / name for name in MANIFEST_NAMES if os.path.isfile(prepared / name)), None)
    if manifest is None:
        found = f"none of {', '.join(MANIFEST_NAMES)} is in the folder, so the ids cannot be compared with their text"
        return [finding("file-missing", found, where=prepared, level="warning")]
    compared = different = 0
    first = ""
    for text, path in _sample_manifest(manifest):
        try:
            stored = read_npy_ids(path).tolist()
        except VoxgraftError:
            continue  # every file of ids is judged by `prepared_id_findings`
        ids = encode_sentence(spelling, text)
        compared += 1
        if _strip_tag(ids, spelling.tag, tokenizer.ids) != stored and ids != stored:
            different += 1
            first = first or f"{text!r:.120} is stored as {format_pieces(tokenizer, stored)}"
            first += "" if different > 1 else f", and is spelled {format_pieces(tokenizer, ids)}"
    if not compared:
        return [finding("prepared-empty", f"no file of ids of {manifest.name} is there", where=manifest)]
    if not different:
        return []
    found = f"{different:,} of {compared:,} sentences are spelled otherwise; the first: {first}"
    level: Level = "error" if different > _MAX_DIFFERENT_SHARE * compared else "warning"
    return [finding("prepared-other-tokenizer", found, expected="0", where=manifest, level=level)]


def _strip_tag(ids: list[int], tag: str | None, by_piece: dict[str, int]) -> list[int]:
    return ids[1:] if tag is not None and ids[:1] == [by_piece.get(tag)] else ids


def _read_all_ids(folder: Path) -> _PreparedIdCounts:
    inner = folder / IDS_FOLDER
    paths = sorted(require_folder(inner if os.path.isdir(inner) else folder).glob("*.npy"))
    if not paths:
        raise FileError("prepared-empty", f"there is no {IDS_FOLDER}/*.npy", where=folder)
    seen = _PreparedIdCounts(len(paths))
    with progress.progress_task("reading ids", len(paths)) as advance:
        for path in paths:
            try:
                seen.add(path, read_npy_ids(path))
            except VoxgraftError as error:
                seen.broken.append(error.finding)
            advance(1)
    return seen


def _unreadable_id_findings(seen: _PreparedIdCounts) -> list[Finding]:
    if not seen.broken:
        return []
    first = seen.broken[0]
    found = f"{len(seen.broken):,} of {seen.files:,} files of ids cannot be read; the first: {first.found}"
    return [finding("npy-broken", found, expected=first.expected, where=first.where)]


def _id_limits(subject: CheckSubject) -> dict[str, int]:
    """Who has how many rows or pieces that text may index."""
    limits: dict[str, int] = {}
    if subject.tokenizer is not None:
        limits[f"the tokenizer {subject.tokenizer.path.name}"] = subject.tokenizer.size
    if subject.checkpoint is not None and subject.family is not None:
        for info in list(find_text_tables(subject.checkpoint, subject.family).values())[:1]:
            limits[f"{info.name}, without its spare row," if subject.family.spare_rows else info.name] = (
                info.shape[0] - subject.family.spare_rows
            )
    return limits


def _outside_id_findings(seen: _PreparedIdCounts, outside: list[int], expected: str) -> list[Finding]:
    if not outside:
        return []
    tokens = sum(seen.counts[token] for token in outside)
    span = f"{outside[0]:,}" if len(outside) == 1 else f"{outside[0]:,} to {outside[-1]:,}"
    found = f"{tokens:,} tokens of {seen.counts.total():,} have ids without a row ({span})"
    return [finding("prepared-ids-outside", found, expected=expected, where=seen.first[outside[-1]])]


def _deleted_id_findings(subject: CheckSubject, seen: _PreparedIdCounts) -> list[Finding]:
    family = subject.family
    deleted = sorted(family.deleted_ids & seen.counts.keys()) if family else []
    if not deleted:
        return []
    listed = " and ".join(f"id {token} {seen.counts[token]:,} times" for token in deleted)
    found = f"{listed} inside the text"
    return [finding("prepared-ids-deleted", found, expected="never", where=seen.first[deleted[0]])]


def _prepared_share_findings(subject: CheckSubject, seen: _PreparedIdCounts) -> list[Finding]:
    tokenizer, pieces = subject.tokenizer, subject.base_pieces
    if tokenizer is None:
        return []
    total, unknown = seen.counts.total(), seen.counts[tokenizer.unknown_id]
    findings: list[Finding] = []
    if unknown:
        level: Level = "error" if unknown >= _UNKNOWN_ERROR_SHARE * total else "warning"
        found = f"{unknown:,} of {total:,} tokens are unknown ({unknown / total:.1%})"
        where = seen.first[tokenizer.unknown_id]
        findings.append(finding("prepared-ids-unknown", found, expected="0", where=where, level=level))
    if pieces is not None and tokenizer.size > pieces and max(seen.counts) < pieces:
        found = f"none of {total:,} tokens is on a new row ({pieces:,} or more): the base's own tokenizer spelled them"
        findings.append(finding("prepared-other-tokenizer", found, where=subject.prepared or ""))
    return findings


def _sample_manifest(manifest: Path) -> Iterator[tuple[str, Path]]:
    """Texts with their files of ids, spread over the whole manifest; each file once."""
    entries: dict[Path, str] = {}
    for number, line in read_lines(manifest):
        entry = parse_json(line, f"{manifest}, line {number}")
        if (found := _parse_manifest_entry(entry, manifest.parent)) is not None:
            entries[found[1]] = found[0]
        else:
            expected = " or ".join(f"{text} and {path}" for text, path in _MANIFEST_FIELDS)
            where = f"{manifest}, line {number}"
            raise FileError("json-shape", "the line has no text with its file of ids", expected=expected, where=where)
    paths = list(entries)
    step = max(1, len(paths) // _SAMPLE_SENTENCES)
    for path in paths[::step][:_SAMPLE_SENTENCES]:
        yield entries[path], path


def _parse_manifest_entry(entry: Any, folder: Path) -> tuple[str, Path] | None:
    if not isinstance(entry, dict):
        return None
    for text_key, path_key in _MANIFEST_FIELDS:
        text, path = entry.get(text_key), entry.get(path_key)
        if isinstance(text, str) and isinstance(path, str) and path and "\0" not in path:
            beside = folder / IDS_FOLDER / Path(path).name
            return text, beside if os.path.isfile(beside) else folder / path
    return None


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
