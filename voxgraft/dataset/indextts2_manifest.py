"""Pair manifests of the community's IndexTTS-2 trainers, opened as a set: features are used, texts are encoded again.

Padded codes are trimmed, and clips that the model has no positions for are left out, each with a count and names.
Stored text ids are never used: if they are right they equal the new ones, and if they are not it is reported.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal, NamedTuple

import numpy as np

from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import compute_sha256, is_file, parse_json, read_lines, require_file
from voxgraft.dataset.sets import (
    EncodeText,
    count_trailing_run,
)
from voxgraft.dataset.shards import (
    AnyArray,
    ClipDataset,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
    Int32Array,
    format_clip_names,
)
from voxgraft.models.base import Clip, SequenceSpec

# These keys tell a line of a pair from a line of a single utterance.
PAIR_KEYS = ("prompt_condition_path", "target_codes_path")
SINGLE_UTTERANCE_KEY = "codes_path"
LANGUAGE_KEYS = ("target_language", "language", "prompt_language")
SINGLE_UTTERANCE_MANIFESTS = ("train_manifest.jsonl", "val_manifest.jsonl")
_LANGUAGE_CODE = re.compile("[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")

PaddingEvidence = Literal["stated", "seconds", "run"]
# Other programs store codes padded to the longest clip of a batch.
# Codes beyond a clip's length that a rounded duration explains, and that are kept of a run at its end.
MAX_CODE_SLACK = 5
MIN_PADDING_RUN = 10
# Clips of one batch are this close to each other in the order of their names.
MAX_PADDED_BATCH = 32
# In padded data nearly every clip has a neighbour of the same stored length; by chance about one in twenty has.
MIN_PADDED_SHARE = 0.5


class StoredCodes(NamedTuple):
    """The stored codes of one clip; `run` is how often `last`, the last code, is repeated at the end."""

    name: str
    length: int
    last: int
    run: int
    stated: int | None
    seconds: float | None


def compute_trimmed_lengths(clips: Sequence[StoredCodes], code_hz: float) -> list[tuple[int, PaddingEvidence | None]]:
    """The own length of each clip: as stated, by its duration, or, if that is unknown, by its end.

    With the evidence for cutting the rest; None if nothing is cut.
    """
    # Clips of one batch are neighbours by name and were stored at one length. In padded data nearly every clip has such
    # a mate, and its end is the code that pads others too.
    order = sorted(range(len(clips)), key=lambda index: clips[index].name)
    by_length: dict[int, list[int]] = defaultdict(list)
    for position, index in enumerate(order):
        by_length[clips[index].length].append(position)
    has_mate = [False] * len(clips)
    for positions in by_length.values():
        for first, second in pairwise(positions):
            if second - first < MAX_PADDED_BATCH:
                has_mate[order[first]] = has_mate[order[second]] = True
    is_padded = sum(has_mate) >= MIN_PADDED_SHARE * len(clips)
    ends = Counter(clip.last for clip in clips if clip.run >= MIN_PADDING_RUN)
    result: list[tuple[int, PaddingEvidence | None]] = []
    for mate, clip in zip(has_mate, clips, strict=True):
        padded_end = is_padded and mate and clip.run >= MIN_PADDING_RUN and ends[clip.last] > 1
        length: int = clip.length
        evidence: PaddingEvidence | None = None
        if clip.stated is not None and 0 < clip.stated < clip.length:
            length, evidence = clip.stated, "stated"
        if clip.seconds is not None:
            num_codes = max(1, round(clip.seconds * code_hz))
            if length > num_codes + MAX_CODE_SLACK:
                length, evidence = num_codes, "seconds"
        elif padded_end and (cut_length := clip.length - clip.run + MAX_CODE_SLACK) < length:
            length, evidence = cut_length, "run"
        result.append((length, evidence))
    return result


@dataclass(frozen=True, slots=True)
class PromptTargetPair:
    """One line: text and codes of a target, voice of a prompt. Paths are resolved."""

    line: int
    id: str
    speaker: str
    language: str | None
    target: str
    prompt: str
    text: str
    codes: Path
    text_ids: Path | None
    condition: Path
    prompt_emotion: Path | None
    target_emotion: Path | None
    num_codes: int | None
    """The number of codes that the line states."""
    target_seconds: float | None
    prompt_seconds: float | None


def split_manifest_language(spec: str) -> tuple[Path, str | None]:
    """A manifest with its language after `::`, `@` or `=`, as on the trainers' command lines."""
    if not os.path.exists(spec):
        for mark in ("::", "@", "="):
            path, _, language = spec.rpartition(mark)
            if path and _LANGUAGE_CODE.fullmatch(language):
                return Path(path), language.lower()
    return Path(spec), None


def read_pair_manifest(manifest: Path) -> list[PromptTargetPair]:
    """Every line of a manifest of pairs; an error that names the line for anything else."""
    files: dict[tuple[str, str], Path] = {}
    pairs = [
        _parse_pair(parse_json(text, f"{manifest}, line {line}"), line, manifest, files)
        for line, text in read_lines(manifest)
    ]
    if not pairs:
        raise FileError("pairs-empty", f"{manifest.name} has no line", where=manifest)
    lines: dict[str, int] = {}
    for pair in pairs:
        if pair.id in lines:
            found = f"lines {lines[pair.id]} and {pair.line} both have the id {pair.id!r}"
            raise FileError("pairs-duplicate", found, where=f"{manifest}, line {pair.line}")
        lines[pair.id] = pair.line
    return pairs


def read_sibling_durations(manifest: Path) -> dict[str, float]:
    """Seconds by utterance, from the manifests of single utterances that the same program wrote into the folder.

    Used if they exist and are valid: pairs themselves do not state the duration of their targets.
    """
    seconds: dict[str, float] = {}
    for path in (manifest.parent / name for name in SINGLE_UTTERANCE_MANIFESTS):
        if not is_file(path):
            continue
        try:
            for line, text in read_lines(path):
                entry = parse_json(text, f"{path}, line {line}")
                found = _positive_or_none(entry.get("duration")) if isinstance(entry, dict) else None
                if found is not None and isinstance(entry.get("id"), str):
                    seconds[entry["id"]] = found
        except VoxgraftError:
            continue  # optional, and the user did not name this file
    return seconds


def _parse_pair(entry: Any, line: int, manifest: Path, found_files: dict[tuple[str, str], Path]) -> PromptTargetPair:
    """One line; an error that names it for anything that is no pair. `found_files` is a cache over all lines."""
    where, expected = f"{manifest}, line {line}", " and ".join(PAIR_KEYS)
    if not isinstance(entry, dict):
        raise FileError("pairs-line", f"the line is {entry!r:.60}", expected=expected, where=where)
    if isinstance(entry.get(SINGLE_UTTERANCE_KEY), str) and not any(key in entry for key in PAIR_KEYS):
        pair_manifest = manifest.parent / manifest.name.replace("manifest", "pairs")
        cure = (
            f"use {pair_manifest.name} instead, in the same folder."
            if pair_manifest != manifest and is_file(pair_manifest)
            else ""
        )
        found = "the line is one utterance without a prompt"
        raise FileError("pairs-single", found, expected=expected, where=where, cure=cure)
    text = entry.get("target_text")

    def find_file(key: str, usual: str) -> Path | None:
        """A file as the line states it, or in the usual folder beside a manifest that was moved; None if not stated."""
        value = entry.get(key)
        if not isinstance(value, str) or not value or "\0" in value or len(value) >= 4096:
            return None
        if (value, usual) not in found_files:
            plain, folder = value.replace("\\", "/"), manifest.parent  # written on Windows
            candidates = [folder / value, folder / plain, folder / usual / plain.rsplit("/", 1)[-1]]
            found_files[value, usual] = next(
                (candidate for candidate in candidates if os.path.isfile(candidate)), candidates[0]
            )
        return found_files[value, usual]

    condition, codes = find_file(PAIR_KEYS[0], "condition"), find_file(PAIR_KEYS[1], "codes")
    if condition is None or codes is None:
        wrong = PAIR_KEYS[0] if condition is None else PAIR_KEYS[1]
        raise FileError("pairs-line", f"{wrong} is {entry.get(wrong)!r:.60}", expected=expected, where=where)
    if text is not None and not isinstance(text, str):
        raise FileError("pairs-line", f"target_text is {text!r:.60}", expected="a text", where=where)
    names = []
    for key, path in (("target_id", PAIR_KEYS[1]), ("prompt_id", PAIR_KEYS[0])):
        value = entry.get(key)
        # Where the name of an utterance is not stated, its files are named after it.
        file = str(entry[path]).replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".npy")
        names.append(value if isinstance(value, str) and value else file)
    target, prompt = names
    return PromptTargetPair(
        line=line,
        id=str(entry.get("id") or f"{target}__{prompt}"),
        speaker=str(entry.get("speaker") or ""),
        language=next((str(entry[key]).lower() for key in LANGUAGE_KEYS if entry.get(key)), None),
        target=target,
        prompt=prompt,
        text=text or "",
        codes=codes,
        text_ids=find_file("target_text_ids_path", "text_ids"),
        condition=condition,
        prompt_emotion=find_file("prompt_emo_vec_path", "emo_vec"),
        target_emotion=find_file("target_emo_vec_path", "emo_vec"),
        num_codes=entry["target_code_len"] if type(entry.get("target_code_len")) is int else None,
        target_seconds=_positive_or_none(entry.get("target_duration")),
        prompt_seconds=_positive_or_none(entry.get("prompt_duration")),
    )


def _positive_or_none(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e7 and math.isfinite(value) else None


NpyKind = Literal["integers", "floats"]
MAX_NPY_BYTES = 64 << 20
"""No code, latent or emotion of one utterance comes near this."""


def open_npy(path: Path, kind: NpyKind, *, code: str = "array-broken") -> AnyArray:
    """The array of a file, mapped into memory: its form is known, its values are not read yet. Nothing is unpickled."""
    require_file(path)
    try:
        # Unlike `numpy.load` this never tries zip or pickle, and a shape that claims more bytes than the file has
        # fails before memory is allocated.
        with warnings.catch_warnings(action="ignore"):  # remarks on damaged headers
            array: np.memmap[Any, np.dtype[Any]] = np.lib.format.open_memmap(path, mode="r")
        size = os.path.getsize(path)
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {error.strerror or error}", where=path) from None
    except (ValueError, TypeError, OverflowError, SyntaxError, RecursionError, TokenError) as error:
        # Whatever NumPy's parser of Python literals makes of a damaged header.
        found = f"{path.name}: {error}"
        raise FileError(code, found, expected=f"a NumPy file of {kind}", where=path) from None
    found, expected = "", ""
    if array.dtype.kind not in {"integers": "iu", "floats": "f"}[kind] or array.dtype.itemsize > 8:
        found, expected = f"values of type {array.dtype}", kind
    elif not array.flags.c_contiguous:
        found, expected = "values column by column", "row by row"
    elif size != array.offset + array.nbytes:
        form = f"{array.dtype} {list(array.shape)}"
        found, expected = f"a file of {size:,} bytes", f"{array.offset + array.nbytes:,} for {form}"
    if found:
        raise FileError(code, f"{path.name}: {found}", expected=expected, where=path)
    return array


def read_npy(path: Path, kind: NpyKind, *, code: str = "array-broken") -> AnyArray:
    """The values of a file, read into memory."""
    array = open_npy(path, kind, code=code)
    if array.nbytes > MAX_NPY_BYTES:
        found = f"{path.name}: {array.nbytes:,} bytes of values"
        raise FileError(code, found, expected=f"at most {MAX_NPY_BYTES:,}", where=path)
    return np.array(array)


NUM_CONDITION_LATENTS = 32
MAX_LISTED_LINES = 5
_INT32_RANGE = np.iinfo(np.int32)


def _scan_pair_files(
    manifest: Path, pairs: Sequence[PromptTargetPair], seconds: Mapping[str, float]
) -> tuple[dict[Path, StoredCodes], dict[Path, str]]:
    """The codes and their SHA-256, by file (several pairs share one). Of all other files only the shapes are checked.

    An error counts the files that are missing or broken, and names the first ones with their lines.
    """
    stored: dict[Path, StoredCodes] = {}
    digests: dict[Path, str] = {}
    width = 0  # of a latent and of an emotion: all have that of the first
    faults: list[tuple[int, Finding]] = []
    seen: set[Path] = set()
    with progress.progress_task(f"reading the files of {manifest.name}", len(pairs)) as advance:
        for pair in pairs:
            advance(1)
            if pair.prompt_emotion is None and pair.target_emotion is None:
                no_file = finding("pairs-line", "no emotion file is given", expected="prompt_emo_vec_path")
                faults.append((pair.line, no_file))
            for path in (pair.codes, pair.condition, pair.prompt_emotion, pair.target_emotion):
                if path is None or path in seen:
                    continue
                seen.add(path)
                found = expected = ""
                try:
                    if path == pair.codes:
                        codes = read_npy(path, "integers")
                        if codes.ndim != 1 or not len(codes):
                            found, expected = f"shape {list(codes.shape)}", "a one-dimensional array of codes"
                        elif int(codes.min()) < _INT32_RANGE.min or int(codes.max()) > _INT32_RANGE.max:
                            found, expected = f"codes from {int(codes.min())} to {int(codes.max())}", "codes"
                        else:
                            last, run = int(codes[-1]), count_trailing_run(codes)
                            length = seconds.get(pair.target)
                            stored[path] = StoredCodes(pair.target, len(codes), last, run, pair.num_codes, length)
                            digests[path] = hashlib.sha256(codes.astype("<i4").tobytes()).hexdigest()
                    else:
                        before = (NUM_CONDITION_LATENTS,) if path == pair.condition else ()
                        form = open_npy(path, "floats")
                        own = width or (form.shape[-1] if form.shape else 0)
                        if form.shape != (*before, own) or not own:
                            found, expected = f"shape {list(form.shape)}", str([*before, width or "width"])
                        else:
                            width = own
                    if found:
                        raise FileError("array-broken", f"{path.name}: {found}", expected=expected, where=path)
                except VoxgraftError as error:
                    faults.append((pair.line, error.finding))
    if faults:
        line, first = faults[0]
        lines = ", ".join(str(line) for line, _ in faults[:MAX_LISTED_LINES])
        lines += ", ..." if len(faults) > MAX_LISTED_LINES else ""
        found = f"{len(faults):,} files cannot be used (lines {lines}); the first: {first.found}"
        where = f"{manifest}, line {line}"
        raise FileError("pairs-files", found, expected=first.expected, where=where, cure=first.cure)
    return stored, digests


_LEAVE_OUT_TEXTS = {
    "pairs-prompt-is-target": "have the target clip as the prompt",
    "pairs-no-text": "have no text",
    "pairs-too-long": "are longer than the model's maximum",
}
_EVIDENCE_TEXTS = {
    "stated": "by their stated length",
    "seconds": "by their duration",
    "run": "by the repeated code at their end",
}
INDEXTTS2_FAMILY = "indextts2"
INDEXTTS2_CODE_HZ = 50.0


def open_pair_dataset(
    manifest: Path,
    spell: EncodeText,
    spec: SequenceSpec,
    *,
    language: str | None = None,
    role: DatasetRole = "train",
    name: str | None = None,
) -> PairDataset:
    """A manifest of pairs as a set. `spell` encodes a text with the run's own tokenizer.

    `language` is needed where the lines state none. Every file is looked at; codes and old ids are read once.
    """
    pairs = read_pair_manifest(manifest)
    num_pairs = len(pairs)
    line_languages: dict[str, int] = {}  # languages of the lines, each with the first line that has it
    for pair in pairs:
        if pair.language is not None:
            line_languages.setdefault(pair.language, pair.line)
    expected_language = language.lower() if language else next(iter(line_languages), None)
    if expected_language is None:
        cure = f"add the language to the path, for example {manifest.name}::am."
        raise FileError("pairs-language", "no line states its language", where=manifest, cure=cure)
    if others := [f"{found} (line {line})" for found, line in line_languages.items() if found != expected_language]:
        raise FileError(
            "pairs-language", f"lines are in {', '.join(others)}", expected=expected_language, where=manifest
        )
    language = language or expected_language
    left_out: dict[str, list[PromptTargetPair]] = defaultdict(list)
    findings: list[Finding] = []

    def leave_out(code: str, is_bad: Callable[[PromptTargetPair], bool]) -> list[PromptTargetPair]:
        """The pairs that stay."""
        left_out[code] += [pair for pair in pairs if is_bad(pair)]
        return [pair for pair in pairs if not is_bad(pair)]

    pairs = leave_out("pairs-prompt-is-target", lambda pair: pair.prompt == pair.target)
    pairs = leave_out("pairs-no-text", lambda pair: not pair.text.strip())
    # How long utterances are, by name, as far as the manifests know.
    seconds = read_sibling_durations(manifest)
    for pair in pairs:
        if pair.prompt_seconds is not None:
            seconds.setdefault(pair.prompt, pair.prompt_seconds)
        if pair.target_seconds is not None:
            seconds.setdefault(pair.target, pair.target_seconds)
    stored, digests = _scan_pair_files(manifest, pairs, seconds)
    trimmed_lengths = dict(zip(stored, compute_trimmed_lengths(list(stored.values()), INDEXTTS2_CODE_HZ), strict=True))
    if cut := {path: (length, reason) for path, (length, reason) in trimmed_lengths.items() if reason is not None}:
        total = sum(clip.length for clip in stored.values())
        padding = sum(stored[path].length - length for path, (length, _) in cut.items())
        counts = Counter(str(reason) for _, reason in cut.values())
        ways = ", ".join(
            f"{counts[evidence]:,} {text}" for evidence, text in _EVIDENCE_TEXTS.items() if counts[evidence]
        )
        names = [f"{stored[path].name} ({stored[path].length:,} to {cut[path][0]:,})" for path in cut]
        message = f"{len(cut):,} of {len(stored):,} targets are padded, and {padding:,} of {total:,} codes were cut"
        message += f" ({padding / total:.0%}; {ways}): {format_clip_names(names)}"
        findings.append(finding("pairs-padded", message, where=manifest))
    encoded_texts: dict[str, Int32Array] = {}  # every text is encoded once
    with progress.progress_task(f"encoding {manifest.name}", len(pairs)) as advance:
        for pair in pairs:
            if pair.text not in encoded_texts:
                try:
                    encoded_texts[pair.text] = np.asarray(spell(pair.text), dtype=np.int32)
                except VoxgraftError as error:
                    where = f"{manifest}, line {pair.line}"
                    raise type(error).of(replace(error.finding, where=where)) from None
            advance(1)
    # Stored ids are not used, but ids of another tokenizer are worth knowing.
    targets = {pair.text_ids: pair for pair in pairs if pair.text_ids is not None}
    different: list[str] = []
    unreadable: list[str] = []
    for path, pair in targets.items():
        try:
            if read_npy(path, "integers").tolist() != encoded_texts[pair.text].tolist():
                different.append(pair.target)
        except VoxgraftError:
            unreadable.append(pair.target)
    if different:
        message = f"the stored ids of {len(different):,} of {len(targets):,} targets belong to another tokenizer"
        message += f"; all were encoded again: {format_clip_names(different)}"
        findings.append(finding("pairs-other-tokenizer", message, where=manifest))
    if unreadable:
        message = f"{len(unreadable):,} of {len(targets):,} files of old text ids are missing or broken"
        findings.append(finding("pairs-old-ids", f"{message}: {format_clip_names(unreadable)}", where=manifest))
    pairs = leave_out("pairs-no-text", lambda pair: not len(encoded_texts[pair.text]))
    pairs = leave_out(
        "pairs-too-long",
        lambda pair: len(encoded_texts[pair.text]) > spec.max_text or trimmed_lengths[pair.codes][0] > spec.max_codes,
    )
    if without_emotion := [pair.id for pair in pairs if pair.target_emotion is None]:
        message = f"{len(without_emotion):,} of {len(pairs):,} pairs have no emotion vector of the target"
        message += "; that of the prompt is used"
        findings.append(finding("pairs-no-emotion", f"{message}: {format_clip_names(without_emotion)}", where=manifest))
    if not pairs:
        reasons = "; ".join(
            f"{len(excluded):,} {_LEAVE_OUT_TEXTS[code]}" for code, excluded in left_out.items() if excluded
        )
        raise GraftError("set-empty", f"no pair of {manifest.name} can be used: {reasons}", where=manifest)
    exclusions = []
    for code, excluded in left_out.items():
        if excluded:
            message = f"{len(excluded):,} of {num_pairs:,} pairs {_LEAVE_OUT_TEXTS[code]} and are left out: "
            message += format_clip_names([f"{pair.id} (line {pair.line})" for pair in excluded])
            exclusions.append(finding(code, message, where=manifest))
    made_from = DatasetProvenance("", "", {"made_by": "community"}, {"manifest_sha256": compute_sha256(manifest)})
    header = DatasetHeader(INDEXTTS2_FAMILY, language, role, INDEXTTS2_CODE_HZ, made_from)
    return PairDataset(
        name or manifest.stem,
        header,
        pairs,
        encoded_texts,
        trimmed_lengths,
        stored,
        digests,
        seconds,
        [*exclusions, *findings],
    )


class PairDataset(ClipDataset):
    """Pairs as clips: a clip is a line, its prompt the one that the line names.

    Places from `len(set)` on are the prompts. A clip's own voice is its prompt's, with the emotion of the target.
    """

    def __init__(
        self,
        name: str,
        header: DatasetHeader,
        pairs: Sequence[PromptTargetPair],
        encoded_texts: Mapping[str, Int32Array],
        kept: Mapping[Path, tuple[int, PaddingEvidence | None]],
        stored: Mapping[Path, StoredCodes],
        digests: Mapping[Path, str],
        seconds: Mapping[str, float],
        findings: Sequence[Finding],
    ) -> None:
        self.name, self.header, self.findings = name, header, list(findings)
        self._pairs, self._encoded_texts, self._kept, self._stored = pairs, encoded_texts, kept, stored
        self.closed_texts: dict[str, Int32Array] = {}
        """By text with spans of base languages: 1 at each of its ids that is in one."""
        self.num_text = np.array([len(encoded_texts[pair.text]) for pair in pairs], dtype=np.int64)
        self.num_codes = np.array([kept[pair.codes][0] for pair in pairs], dtype=np.int64)
        # Each distinct prompt is one place behind the clips; many pairs share a prompt.
        prompt_indices: dict[tuple[Path, Path | None], int] = {}
        prompts: list[PromptTargetPair] = []
        for pair in pairs:
            key = (pair.condition, pair.prompt_emotion)
            if key not in prompt_indices:
                prompt_indices[key] = len(pairs) + len(prompts)
                prompts.append(pair)
        self._prompts = prompts
        self._prompt_indices = [prompt_indices[pair.condition, pair.prompt_emotion] for pair in pairs]
        infos = []
        for pair, num_codes in zip(pairs, self.num_codes.tolist(), strict=True):
            length = seconds.get(pair.target) or num_codes / INDEXTTS2_CODE_HZ
            infos.append(Clip(id=pair.id, speaker=pair.speaker, recording=pair.target, seconds=length, text=pair.text))
        infos += [
            Clip(
                id=prompt.prompt, speaker=prompt.speaker, recording=prompt.prompt, seconds=prompt.prompt_seconds or 0.0
            )
            for prompt in prompts
        ]
        self.infos = infos
        digest = hashlib.sha256(str(header.made_from.settings["manifest_sha256"]).encode())
        for pair in pairs:
            digest.update(f"{pair.id}\0{digests[pair.codes]}\0{kept[pair.codes][0]}\n".encode())
        # Other codes, another trimming or other pairs are another set.
        self.fingerprint = digest.hexdigest()

    def text_ids(self, clip: int) -> Int32Array:
        return self._encoded_texts[self._pairs[clip].text]

    def closed(self, clip: int) -> Int32Array | None:
        return self.closed_texts.get(self._pairs[clip].text)

    def codes(self, clip: int) -> Int32Array:
        """The clip's own codes, without padding; none for a place that only lends its voice."""
        if clip >= len(self):
            return np.zeros(0, dtype=np.int32)
        pair = self._pairs[clip]
        stored = self._stored[pair.codes]
        # The file may have changed since it was scanned, hours ago.
        codes = read_npy(pair.codes, "integers")
        if codes.shape != (stored.length,):
            found = f"{pair.codes.name} changed to shape {list(codes.shape)}"
            raise FileError("array-broken", found, expected=f"{stored.length:,} codes", where=pair.codes)
        return codes[: self._kept[pair.codes][0]].astype(np.int32)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        pair = self._pairs[clip] if clip < len(self) else self._prompts[clip - len(self)]
        emotions = [pair.prompt_emotion, pair.target_emotion]
        emotion = next(path for path in (reversed(emotions) if clip < len(self) else emotions) if path is not None)
        latents, vector = read_npy(pair.condition, "floats"), read_npy(emotion, "floats")
        return {"latents": latents.astype(np.float32), "emotion": vector.astype(np.float32)}

    def prompt_of(self, clip: int) -> int:
        return self._prompt_indices[clip]
