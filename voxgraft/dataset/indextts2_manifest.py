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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import compute_sha256, is_file, parse_json, read_lines, require_file
from voxgraft.dataset.checks import EncodeText, StoredCodes, TrimmedLength, compute_trimmed_lengths, count_trailing_run
from voxgraft.dataset.shards import (
    AnyArray,
    ClipDataset,
    ClipInfo,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
    Int32Array,
    format_clip_names,
)

if TYPE_CHECKING:
    from voxgraft.models.base import SequenceSpec


# These keys tell a line of a pair from a line of a single utterance.
PAIR_KEYS = ("prompt_condition_path", "target_codes_path")
SINGLE_UTTERANCE_KEY = "codes_path"
LANGUAGE_KEYS = ("target_language", "language", "prompt_language")
SINGLE_UTTERANCE_MANIFESTS = ("train_manifest.jsonl", "val_manifest.jsonl")
_LANGUAGE_CODE = re.compile("[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")


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
    files = _FileLocator(manifest.parent)
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


class _FileLocator:
    """Finds the files of a line: as stated, or in the usual folder beside a manifest that was moved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[tuple[str, str], Path] = {}

    def find(self, stated: str, usual: str) -> Path:
        """The first place where the file exists; else the stated one."""
        key = (stated, usual)
        if key not in self._found:
            plain = stated.replace("\\", "/")  # written on Windows
            places = [self._folder / stated, self._folder / plain, self._folder / usual / plain.rsplit("/", 1)[-1]]
            self._found[key] = next((place for place in places if os.path.isfile(place)), places[0])
        return self._found[key]


def _parse_pair(entry: Any, line: int, manifest: Path, files: _FileLocator) -> PromptTargetPair:
    where = f"{manifest}, line {line}"
    _require_pair_entry(entry, manifest, where)
    condition, codes = (str(entry[key]) for key in PAIR_KEYS)
    text = entry.get("target_text")
    if text is not None and not isinstance(text, str):
        raise FileError("pairs-line", f"target_text is {text!r:.60}", expected="a text", where=where)
    target = _utterance_name(entry, "target_id", codes)
    prompt = _utterance_name(entry, "prompt_id", condition)
    return PromptTargetPair(
        line=line,
        id=str(entry.get("id") or f"{target}__{prompt}"),
        speaker=str(entry.get("speaker") or ""),
        language=next((str(entry[key]).lower() for key in LANGUAGE_KEYS if entry.get(key)), None),
        target=target,
        prompt=prompt,
        text=text or "",
        codes=files.find(codes, "codes"),
        text_ids=_find_optional_file(entry, "target_text_ids_path", "text_ids", files),
        condition=files.find(condition, "condition"),
        prompt_emotion=_find_optional_file(entry, "prompt_emo_vec_path", "emo_vec", files),
        target_emotion=_find_optional_file(entry, "target_emo_vec_path", "emo_vec", files),
        num_codes=entry["target_code_len"] if type(entry.get("target_code_len")) is int else None,
        target_seconds=_positive_or_none(entry.get("target_duration")),
        prompt_seconds=_positive_or_none(entry.get("prompt_duration")),
    )


def _require_pair_entry(entry: Any, manifest: Path, where: str) -> None:
    expected = " and ".join(PAIR_KEYS)
    if not isinstance(entry, dict):
        raise FileError("pairs-line", f"the line holds {entry!r:.60}", expected=expected, where=where)
    if isinstance(entry.get(SINGLE_UTTERANCE_KEY), str) and not any(key in entry for key in PAIR_KEYS):
        beside = manifest.parent / manifest.name.replace("manifest", "pairs")
        cure = f"give {beside.name} instead; it stands beside it." if beside != manifest and is_file(beside) else ""
        raise FileError(
            "pairs-single", "the line is one utterance without a prompt", expected=expected, where=where, cure=cure
        )
    wrong = [key for key in PAIR_KEYS if not _is_path_string(entry.get(key))]
    if wrong:
        found = f"{wrong[0]} is {entry.get(wrong[0])!r:.60}"
        raise FileError("pairs-line", found, expected=expected, where=where)


def _find_optional_file(entry: Mapping[str, Any], key: str, usual: str, files: _FileLocator) -> Path | None:
    return files.find(str(entry[key]), usual) if _is_path_string(entry.get(key)) else None


def _is_path_string(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value and len(value) < 4096


def _utterance_name(entry: Mapping[str, Any], key: str, path: str) -> str:
    """The utterance's name; where it is not stated, its files are named after it."""
    stated = entry.get(key)
    return (
        stated
        if isinstance(stated, str) and stated
        else path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".npy")
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


@dataclass(slots=True)
class PairFiles:
    """What the files of all pairs hold."""

    codes: dict[Path, StoredCodes] = field(default_factory=dict)
    """By file; several pairs share one."""
    digests: dict[Path, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long utterances are, by name, as far as the manifests know."""
    width: int | None = None
    """Of a latent and of an emotion."""
    _seen: set[Path] = field(default_factory=set)

    def add(self, pair: PromptTargetPair) -> Iterator[Finding]:
        """Look at those of a pair's files that are new; what is wrong with each of them."""
        if pair.prompt_emotion is None and pair.target_emotion is None:
            yield FileError("pairs-line", "no file of an emotion is named", expected="prompt_emo_vec_path").finding
        for path, look in self._file_checks(pair):
            if path in self._seen:
                continue
            self._seen.add(path)
            try:
                look(path)
            except VoxgraftError as error:
                yield error.finding

    def _file_checks(self, pair: PromptTargetPair) -> list[tuple[Path, Callable[[Path], None]]]:
        emotions = [path for path in (pair.prompt_emotion, pair.target_emotion) if path is not None]
        return [
            (pair.codes, partial(self._add_codes, pair)),
            (pair.condition, partial(self._add_floats, (NUM_CONDITION_LATENTS,))),
            *((path, partial(self._add_floats, ())) for path in emotions),
        ]

    def _add_codes(self, pair: PromptTargetPair, path: Path) -> None:
        codes = read_npy(path, "integers")
        if codes.ndim != 1 or not len(codes):
            raise FileError(
                "array-broken", f"{path.name}: shape {list(codes.shape)}", expected="codes in a row", where=path
            )
        low, high = int(codes.min()), int(codes.max())
        if low < _INT32_RANGE.min or high > _INT32_RANGE.max:
            raise FileError("array-broken", f"{path.name}: codes from {low} to {high}", expected="codes", where=path)
        self.codes[path] = StoredCodes(
            name=pair.target,
            length=len(codes),
            last=int(codes[-1]),
            run=count_trailing_run(codes),
            stated=pair.num_codes,
            seconds=self.seconds.get(pair.target),
        )
        self.digests[path] = hashlib.sha256(codes.astype("<i4").tobytes()).hexdigest()

    def _add_floats(self, before: tuple[int, ...], path: Path) -> None:
        form = open_npy(path, "floats")
        width = self.width or (form.shape[-1] if form.shape else 0)
        expected = (*before, width)
        if form.shape != expected or not width:
            found = f"{path.name}: shape {list(form.shape)}"
            raise FileError("array-broken", found, expected=str([*before, self.width or "width"]), where=path)
        self.width = width


def scan_pair_files(manifest: Path, pairs: Sequence[PromptTargetPair]) -> PairFiles:
    """An error that counts the files that are missing or broken, and names the first ones with their lines."""
    files = PairFiles(seconds=read_sibling_durations(manifest))
    for pair in pairs:
        if pair.prompt_seconds is not None:
            files.seconds.setdefault(pair.prompt, pair.prompt_seconds)
        if pair.target_seconds is not None:
            files.seconds.setdefault(pair.target, pair.target_seconds)
    faults: list[tuple[int, Finding]] = []
    with progress.progress_task(f"reading the files of {manifest.name}", len(pairs)) as advance:
        for pair in pairs:
            faults += ((pair.line, found) for found in files.add(pair))
            advance(1)
    if faults:
        line, first = faults[0]
        lines = ", ".join(str(line) for line, _ in faults[:MAX_LISTED_LINES]) + (
            ", ..." if len(faults) > MAX_LISTED_LINES else ""
        )
        found = f"{len(faults):,} files cannot be used (lines {lines}); the first: {first.found}"
        raise FileError(
            "pairs-files", found, expected=first.expected, where=f"{manifest}, line {line}", cure=first.cure
        )
    return files


LeaveOutReason = str
"""One of the codes of findings under which a pair can be left out."""
_LEAVE_OUT_TEXTS = {
    "pairs-prompt-is-target": "have their own target as the prompt",
    "pairs-no-text": "have no text",
    "pairs-too-long": "are longer than the model has positions for",
}
_EVIDENCE_TEXTS = {"stated": "by their stated length", "seconds": "by their duration", "run": "by the run at their end"}


class PairImportReport:
    """Collects what is changed and left out while a manifest is opened."""

    def __init__(self, manifest: Path, num_pairs: int) -> None:
        self._manifest, self._num_pairs = manifest, num_pairs
        self._left_out: dict[LeaveOutReason, list[PromptTargetPair]] = {}
        self._others: list[Finding] = []

    def leave_out(
        self, reason: LeaveOutReason, pairs: Sequence[PromptTargetPair], is_bad: Callable[[PromptTargetPair], bool]
    ) -> list[PromptTargetPair]:
        """The pairs that stay."""
        bad = [pair for pair in pairs if is_bad(pair)]
        self._left_out.setdefault(reason, []).extend(bad)
        out = {pair.line for pair in bad}
        return [pair for pair in pairs if pair.line not in out]

    def note_padding(self, files: PairFiles, kept: Mapping[Path, TrimmedLength]) -> None:
        """Clips whose codes were trimmed, and the evidence."""
        cut = {path: (length, reason) for path, (length, reason) in kept.items() if reason is not None}
        if not cut:
            return
        stored = sum(clip.length for clip in files.codes.values())
        padding = sum(files.codes[path].length - length for path, (length, _) in cut.items())
        counts = Counter(str(reason) for _, reason in cut.values())
        ways = ", ".join(
            f"{counts[reason]:,} {_EVIDENCE_TEXTS[reason]}" for reason in _EVIDENCE_TEXTS if counts[reason]
        )
        names = [
            f"{files.codes[path].name} ({files.codes[path].length:,} to {length:,})"
            for path, (length, _) in cut.items()
        ]
        head = f"{len(cut):,} of {len(files.codes):,} targets are padded, and {padding:,} of {stored:,} codes were cut"
        self._note("pairs-padded", f"{head} ({padding / stored:.0%}; {ways}): {format_clip_names(names)}")

    def note_old_ids(self, pairs: Sequence[PromptTargetPair], spelled: Mapping[str, Int32Array]) -> None:
        """Targets whose stored ids are not what the run's tokenizer makes of their text."""
        targets = {pair.text_ids: pair for pair in pairs if pair.text_ids is not None}
        different: list[str] = []
        unreadable: list[str] = []
        for path, pair in targets.items():
            try:
                stored = read_npy(path, "integers")
            except VoxgraftError:
                unreadable.append(pair.target)  # not needed: the text is spelled anew
                continue
            if stored.tolist() != spelled[pair.text].tolist():
                different.append(pair.target)
        if different:
            text = f"the stored ids of {len(different):,} of {len(targets):,} targets are another tokenizer's"
            self._note("pairs-other-tokenizer", f"{text}; all were spelled anew: {format_clip_names(different)}")
        if unreadable:
            text = f"{len(unreadable):,} of {len(targets):,} files of old text ids are missing or broken"
            self._note("pairs-old-ids", f"{text}: {format_clip_names(unreadable)}")

    def note_emotions(self, pairs: Sequence[PromptTargetPair]) -> None:
        """Pairs without an emotion of the target: that of the prompt is used."""
        names = [pair.id for pair in pairs if pair.target_emotion is None]
        if names:
            text = f"{len(names):,} of {len(pairs):,} pairs name no emotion of the target; the prompt's is used"
            self._note("pairs-no-emotion", f"{text}: {format_clip_names(names)}")

    def reasons(self) -> str:
        """Why pairs were left out, in a few words."""
        return "; ".join(
            f"{len(pairs):,} {_LEAVE_OUT_TEXTS[reason]}" for reason, pairs in self._left_out.items() if pairs
        )

    def findings(self) -> list[Finding]:
        """Everything that was changed or left out; empty if the manifest was used as it is."""
        left = [
            self._finding(
                reason,
                f"{len(pairs):,} of {self._num_pairs:,} pairs {_LEAVE_OUT_TEXTS[reason]} and are left out: "
                + format_clip_names([f"{pair.id} (line {pair.line})" for pair in pairs]),
            )
            for reason, pairs in self._left_out.items()
            if pairs
        ]
        return [*left, *self._others]

    def _note(self, code: str, text: str) -> None:
        self._others.append(self._finding(code, text))

    def _finding(self, code: str, text: str) -> Finding:
        return finding(code, text, where=self._manifest)


INDEXTTS2_FAMILY = "indextts2"
INDEXTTS2_CODE_HZ = 50.0


def open_pair_dataset(
    manifest: Path,
    spell: EncodeText,
    frame: SequenceSpec,
    *,
    language: str | None = None,
    role: DatasetRole = "train",
    name: str | None = None,
) -> PairDataset:
    """A manifest of pairs as a set. `spell` encodes a text with the run's own tokenizer.

    `language` is needed where the lines state none. Every file is looked at; codes and old ids are read once.
    """
    pairs = read_pair_manifest(manifest)
    language = _require_one_language(pairs, language, manifest)
    report = PairImportReport(manifest, len(pairs))
    pairs = report.leave_out("pairs-prompt-is-target", pairs, lambda pair: pair.prompt == pair.target)
    pairs = report.leave_out("pairs-no-text", pairs, lambda pair: not pair.text.strip())
    files = scan_pair_files(manifest, pairs)
    kept = dict(zip(files.codes, compute_trimmed_lengths(list(files.codes.values()), INDEXTTS2_CODE_HZ), strict=True))
    report.note_padding(files, kept)
    spelled = _encode_texts(manifest, pairs, spell)
    report.note_old_ids(pairs, spelled)
    pairs = report.leave_out("pairs-no-text", pairs, lambda pair: not len(spelled[pair.text]))
    pairs = report.leave_out(
        "pairs-too-long",
        pairs,
        lambda pair: len(spelled[pair.text]) > frame.max_text or kept[pair.codes].length > frame.max_codes,
    )
    report.note_emotions(pairs)
    if not pairs:
        raise GraftError("set-empty", f"no pair of {manifest.name} can be used: {report.reasons()}", where=manifest)
    made_from = DatasetProvenance("", "", {"made_by": "community"}, {"manifest_sha256": compute_sha256(manifest)})
    header = DatasetHeader(INDEXTTS2_FAMILY, language, role, INDEXTTS2_CODE_HZ, made_from)
    return PairDataset(name or manifest.stem, header, pairs, spelled, kept, files, report.findings())


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
        kept: Mapping[Path, TrimmedLength],
        files: PairFiles,
        findings: Sequence[Finding],
    ) -> None:
        self.name, self.header, self.findings = name, header, list(findings)
        self._pairs, self._encoded_texts, self._kept, self._files = pairs, encoded_texts, kept, files
        self.num_text = np.array([len(encoded_texts[pair.text]) for pair in pairs], dtype=np.int64)
        self.num_codes = np.array([kept[pair.codes].length for pair in pairs], dtype=np.int64)
        places: dict[tuple[Path, Path | None], int] = {}
        prompts: list[PromptTargetPair] = []
        for pair in pairs:
            key = (pair.condition, pair.prompt_emotion)
            if key not in places:
                places[key] = len(pairs) + len(prompts)
                prompts.append(pair)
        self._prompts = prompts
        self._prompt_indices = [places[pair.condition, pair.prompt_emotion] for pair in pairs]
        infos = []
        for pair, num_codes in zip(pairs, self.num_codes.tolist(), strict=True):
            seconds = files.seconds.get(pair.target) or num_codes / INDEXTTS2_CODE_HZ
            infos.append(ClipInfo(pair.id, pair.speaker, pair.target, seconds, pair.text))
        infos += [ClipInfo(one.prompt, one.speaker, one.prompt, one.prompt_seconds or 0.0, "") for one in prompts]
        self.infos = infos
        digest = hashlib.sha256(str(header.made_from.settings["manifest_sha256"]).encode())
        for pair in pairs:
            digest.update(f"{pair.id}\0{files.digests[pair.codes]}\0{kept[pair.codes].length}\n".encode())
        self.fingerprint = digest.hexdigest()

    def text_ids(self, clip: int) -> Int32Array:
        return self._encoded_texts[self._pairs[clip].text]

    def codes(self, clip: int) -> Int32Array:
        """The clip's own codes, without padding; none for a place that only lends its voice."""
        if clip >= len(self):
            return np.zeros(0, dtype=np.int32)
        pair = self._pairs[clip]
        stored = self._files.codes[pair.codes]
        codes = read_npy(pair.codes, "integers")
        if codes.shape != (stored.length,):
            found = f"{pair.codes.name} changed to shape {list(codes.shape)}"
            raise FileError("array-broken", found, expected=f"{stored.length:,} codes", where=pair.codes)
        return codes[: self._kept[pair.codes].length].astype(np.int32)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        pair = self._pairs[clip] if clip < len(self) else self._prompts[clip - len(self)]
        emotions = [pair.prompt_emotion, pair.target_emotion]
        emotion = next(path for path in (reversed(emotions) if clip < len(self) else emotions) if path is not None)
        latents, vector = read_npy(pair.condition, "floats"), read_npy(emotion, "floats")
        return {"latents": latents.astype(np.float32), "emotion": vector.astype(np.float32)}

    def prompt_of(self, clip: int) -> int:
        return self._prompt_indices[clip]


def _require_one_language(pairs: Iterable[PromptTargetPair], language: str | None, manifest: Path) -> str:
    """The one language of all lines."""
    stated: dict[str, int] = {}
    for pair in pairs:
        if pair.language is not None:
            stated.setdefault(pair.language, pair.line)
    wanted = language.lower() if language else next(iter(stated), None)
    if wanted is None:
        cure = f"say it, for example {manifest.name}::am."
        raise FileError("pairs-language", "no line states its language", where=manifest, cure=cure)
    others = {found: line for found, line in stated.items() if found != wanted}
    if others:
        listed = ", ".join(f"{found} (line {line})" for found, line in others.items())
        raise FileError("pairs-language", f"lines are in {listed}", expected=wanted, where=manifest)
    return language or wanted


def _encode_texts(manifest: Path, pairs: Sequence[PromptTargetPair], spell: EncodeText) -> dict[str, Int32Array]:
    """The ids of every text, spelled once."""
    spelled: dict[str, Int32Array] = {}
    with progress.progress_task(f"spelling {manifest.name}", len(pairs)) as advance:
        for pair in pairs:
            if pair.text not in spelled:
                try:
                    spelled[pair.text] = np.asarray(spell(pair.text), dtype=np.int32)
                except VoxgraftError as error:
                    where = f"{manifest}, line {pair.line}"
                    raise type(error).of(replace(error.finding, where=where)) from None
            advance(1)
    return spelled
