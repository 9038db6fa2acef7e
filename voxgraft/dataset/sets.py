"""Prepared sets on disk, written, opened and checked: a folder of shards, and `set.json`, which states their origin.

A set is complete or absent. A set that was made from other things than the run has is refused with the difference.
`ShardVerifier` compares hashes in the background while training starts. The checks change nothing. Those of single
clips find ids without a row, codes out of range, broken voices, wrong durations and padding; those across clips find
ids of another tokenizer, new rows that never occur, prompts that are their own target and held-out clips in training.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, Finding, GraftError, Level, finding
from voxgraft.core.files import (
    atomic_write_folder,
    compute_sha256,
    format_error_reason,
    parse_json,
    path_exists,
    read_lines,
    require_file,
)
from voxgraft.dataset.sampler import DeterministicSampler, Sample
from voxgraft.dataset.shards import (
    CLIP_LINE_KEYS,
    CLOSED_KEY,
    CODES_KEY,
    DATASET_INDEX_NAME,
    TEXT_KEY,
    AnyArray,
    ClipDataset,
    DatasetHeader,
    DatasetIndex,
    Int32Array,
    Shard,
    ShardFile,
    check_clip,
    format_clip_names,
    get_voice_specs,
    read_dataset_index,
    require_matching_header,
    write_dataset_index,
    write_shard,
)
from voxgraft.models.base import Clip, SequenceSpec

CLIPS_PER_SHARD = 2000
# Totals of seconds may differ this much: sums of rounded numbers depend on their order.
MAX_SECONDS_ERROR = 0.01
# Shards that are memory-mapped at once; each keeps a file open.
MAX_MAPPED_SHARDS = 128
# Large enough that hashing releases the GIL for most of the time.
HASH_CHUNK_BYTES = 4 << 20


def write_clip_dataset(
    folder: Path, header: DatasetHeader, clips: Iterable[Clip], shard_clips: int = CLIPS_PER_SHARD
) -> None:
    """Write a set atomically, with one shard in memory at a time. An earlier set is kept as `NAME.previous`."""
    if shard_clips < 1:
        raise ConfigError("config-value", f"shards of {shard_clips} clips", expected="at least 1")
    source = iter(clips)
    first = next(source, None)
    if first is None:
        raise GraftError("set-empty", f"no clip to write for {folder.name}", where=folder)
    forms = get_voice_specs(first)
    infos: dict[str, Clip] = {}
    num_text = num_codes = 0
    with atomic_write_folder(folder) as temporary:
        shards: list[tuple[ShardFile, ShardFile, int]] = []
        remaining = chain([first], source)
        while batch := [check_clip(clip, forms) for clip in islice(remaining, shard_clips)]:
            for clip in batch:
                if clip.id in infos:
                    raise GraftError("set-duplicate-ids", f"two clips have the id {clip.id!r}", expected="one")
                infos[clip.id] = Clip(speaker=clip.speaker, recording=clip.recording, seconds=clip.seconds)
                num_text += len(clip.text_ids)
                num_codes += len(clip.codes)
            shards.append(write_shard(temporary, len(shards), batch, forms))
        counts = _count_totals(list(infos.values()), num_text, num_codes)
        write_dataset_index(temporary, DatasetIndex(header, counts, forms, tuple(shards)))


def open_clip_dataset(
    folder: Path, *, expected: Mapping[str, Any] | None = None, verify: Literal["sizes", "hashes"] = "hashes"
) -> ClipDataset:
    """Open an existing set. Its values stay on disk until they are used.

    `expected` is what the run has, as far as it matters, in the form of set.json: {"family": ..., "made_from": {...}}.
    Every byte is read once and compared with what set.json states. With `verify="sizes"` the arrays are left to the
    caller, who compares `ClipDataset.shard_files` (`ShardVerifier`).
    """
    if verify not in ("sizes", "hashes"):
        raise ConfigError("config-value", f"verify is {verify!r}", expected="sizes or hashes")
    file = read_dataset_index(folder)
    require_matching_header(folder, file.header, expected or {})
    shards: list[Shard] = []
    infos: list[Clip] = []
    for arrays, lines, num_clips in file.shards:
        for entry in (arrays, lines):
            path = folder / entry.file
            size = require_file(path).stat().st_size if path_exists(path) else None
            if size != entry.bytes:
                found = f"{entry.file} does not exist" if size is None else f"{entry.file} has {size:,} bytes"
                stated_size = f"{entry.bytes:,}, as {DATASET_INDEX_NAME} states"
                raise FileError("set-damaged", found, expected=stated_size, where=path)
        # Lines are always hashed: they are small, are read anyway, and the order of the samples depends on them.
        for entry in (arrays, lines) if verify == "hashes" else (lines,):
            _require_shard_hash(folder / entry.file, entry.sha256, compute_sha256(folder / entry.file))
        shards.append(Shard(folder / arrays.file, num_clips, file.voice))
        infos += _read_clip_infos(folder / lines.file, num_clips)
    seen: set[str] = set()
    duplicates = [info.id for info in infos if info.id in seen or seen.add(info.id)]  # type: ignore[func-returns-value]
    if duplicates:
        raise GraftError(
            "set-duplicate-ids", f"{len(duplicates):,} ids appear twice, {duplicates[0]!r} first", where=folder
        )
    clips = ShardedDataset(folder, file, shards, infos)
    actual = _count_totals(infos, int(clips.num_text.sum()), int(clips.num_codes.sum()))
    declared_counts: Mapping[str, Any] = file.counts
    mismatches = [
        name
        for name, value in actual.items()
        if name in declared_counts
        and not (
            isinstance(declared_counts[name], int | float) and abs(declared_counts[name] - value) <= MAX_SECONDS_ERROR
        )
    ]
    if mismatches:
        found = f"{DATASET_INDEX_NAME} states " + ", ".join(
            f"{name} {declared_counts[name]!r:.40}" for name in mismatches
        )
        expected_text = ", ".join(f"{name} {actual[name]:,}" for name in mismatches) + ", as the shards have"
        raise FileError("set-damaged", found, expected=expected_text, where=folder / DATASET_INDEX_NAME)
    clips.verified = verify == "hashes"
    return clips


class ShardedDataset(ClipDataset):
    """A set of voxgraft, memory-mapped."""

    def __init__(self, folder: Path, file: DatasetIndex, shards: Sequence[Shard], infos: Sequence[Clip]) -> None:
        self.folder, self.name, self.header, self.counts = folder, folder.name, file.header, file.counts
        self.infos = infos
        self.num_text = np.concatenate([shard.num_text for shard in shards])
        self.num_codes = np.concatenate([shard.num_codes for shard in shards])
        self.fingerprint = file.fingerprint
        self.verified = False
        self._hashes = {folder / arrays.file: arrays.sha256 for arrays, _, _ in file.shards}
        self._shards = shards
        self._first: NDArray[np.int64] = np.cumsum([0, *(shard.num_clips for shard in shards)])
        self._mapped = lru_cache(MAX_MAPPED_SHARDS)(lambda at: shards[at].open_memory_map())

    def text_ids(self, clip: int) -> Int32Array:
        shard, file, at = self._place(clip)
        return shard.ids(file, TEXT_KEY, at)

    def closed(self, clip: int) -> Int32Array | None:
        shard, file, at = self._place(clip)
        found = shard.ids(file, CLOSED_KEY, at)
        return found if len(found) else None

    def codes(self, clip: int) -> Int32Array:
        shard, file, at = self._place(clip)
        return shard.ids(file, CODES_KEY, at)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        shard, file, at = self._place(clip)
        return shard.voice(file, at)

    def shard_files(self) -> Mapping[Path, str]:
        return {} if self.verified else self._hashes

    def _place(self, clip: int) -> tuple[Shard, NDArray[np.uint8], int]:
        if not 0 <= clip < len(self):
            raise IndexError(f"clip {clip} of {len(self)}")
        at = int(np.searchsorted(self._first, clip, "right")) - 1
        return self._shards[at], self._mapped(at), clip - int(self._first[at])


def _count_totals(infos: Sequence[Clip], num_text: int, num_codes: int) -> dict[str, float]:
    """The totals in set.json; a reader computes them again and compares."""
    return {
        "clips": len(infos),
        "speakers": len({info.speaker for info in infos}),
        "recordings": len({info.recording for info in infos}),
        "seconds": round(sum(info.seconds for info in infos), 3),
        "text_ids": num_text,
        "codes": num_codes,
    }


def _read_clip_infos(path: Path, num_clips: int) -> list[Clip]:
    infos = []
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        entry = parse_json(line, where)
        if not isinstance(entry, dict) or set(entry) != set(CLIP_LINE_KEYS):
            expected = ", ".join(CLIP_LINE_KEYS)
            raise FileError("set-damaged", "the line is not a clip", expected=expected, where=where)
        seconds = entry["seconds"]
        numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
        if not numeric or not all(isinstance(entry[name], str) for name in ("id", "speaker", "recording", "text")):
            found = "a value of the line has the wrong type"
            raise FileError("set-damaged", found, expected="strings, and seconds as a number", where=where)
        infos.append(Clip(**{**entry, "seconds": float(seconds)}))
    if len(infos) != num_clips:
        raise FileError("set-damaged", f"{len(infos):,} lines in {path.name}", expected=f"{num_clips:,}", where=path)
    return infos


def _require_shard_hash(path: Path, expected_hash: str, found: str) -> None:
    if found != expected_hash:
        text = f"the bytes of {path.name} have the hash {found[:16]}..."
        raise FileError("set-damaged", text, expected=f"{expected_hash[:16]}..., as set.json states", where=path)


class ShardVerifier:
    """Hashes shards in a background thread, held-out sets first, each file once.

    Training starts meanwhile: hashing hundreds of gigabytes takes minutes.
    """

    def __init__(self, held_out: Iterable[ClipDataset], training: Iterable[ClipDataset]) -> None:
        first, second = (
            {path: digest for clips in sets for path, digest in clips.shard_files().items()}
            for sets in (held_out, training)
        )
        self._parts = (first, {path: digest for path, digest in second.items() if path not in first})
        self._done = (threading.Event(), threading.Event())
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._verify, name="verification", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop hashing: the result is no longer needed."""
        self._stopped.set()

    def look(self) -> None:
        """Raise the error found so far, if any; does not wait."""
        if self._error is not None:
            raise self._error

    def wait(self, *, held_out_only: bool = False) -> None:
        """Wait until all files, or those of the held-out sets, are compared; raise the error found."""
        self._done[0 if held_out_only else 1].wait()
        self.look()

    def _verify(self) -> None:
        try:
            for files, done in zip(self._parts, self._done, strict=True):
                for path, expected_hash in files.items():
                    digest = hashlib.sha256()
                    try:
                        with path.open("rb", buffering=0) as stream:
                            while chunk := stream.read(HASH_CHUNK_BYTES):
                                if self._stopped.is_set():
                                    return
                                digest.update(chunk)
                    except OSError as error:
                        found = f"{path.name}: {format_error_reason(error)}"
                        raise FileError("file-unreadable", found, where=path) from None
                    _require_shard_hash(path, expected_hash, digest.hexdigest())
                done.set()
        except Exception as error:
            self._error = error  # raised in the thread that calls look() or wait()
        finally:
            for done in self._done:
                done.set()


# Two clips of one recording with the same text are the same clip, cut or encoded again, within this difference.
MAX_SAME_CUT_SECONDS = 0.1
EncodeText = Callable[[str], Sequence[int]]
# Texts of a set that are encoded again: another tokenizer shows in the first few.
NUM_CHECKED_TEXTS = 200
NUM_CHECKED_PROMPTS = 2_000
# Below the first share a few clips that occur twice explain it; from the second on, training would learn it.
MIN_WARNING_SHARE, MIN_ERROR_SHARE = 0.01, 0.2
# Recordings end in silence, but rarely in a whole second of the same code.
MAX_TRAILING_RUN_SECONDS = 1.0
DURATION_SLACK_SECONDS, DURATION_SLACK_SHARE = 0.25, 0.05
_UNKNOWN_ERROR_SHARE = 0.01
_FAULT_TEXTS = {
    "clips-text-outside": "have text ids without a row ({values:,} in all)",
    "clips-text-barred": "have text ids that the original program removes ({values:,} in all)",
    "clips-codes-outside": "have speech codes outside the family's range ({values:,} in all)",
    "clips-too-long": "are longer than the model's maximum",
    "clips-no-content": "have no text or no speech codes",
    "clips-voice-broken": "have unusable voice data",
    "clips-trailing-run": "end with one repeated speech code",
    "clips-seconds": "have a number of speech codes that does not fit their length",
    "clips-text-unknown": "have {values:,} unknown tokens in their text",
}
_SHARE_DEPENDENT_FAULTS = ("clips-trailing-run", "clips-seconds")


def check_text_tokenization(clips: ClipDataset, encode_text: EncodeText) -> list[Finding]:
    """Whether the ids are those of the texts. Nothing else reveals a tokenizer of the same size with other pieces."""
    text_clips = [clip for clip in range(len(clips)) if clips.infos[clip].text.strip()]
    step = max(1, len(text_clips) // NUM_CHECKED_TEXTS)
    compared = text_clips[::step][:NUM_CHECKED_TEXTS]
    different = [
        clip for clip in compared if clips.text_ids(clip).tolist() != list(encode_text(clips.infos[clip].text))
    ]
    if not different:
        return []
    first = clips.infos[different[0]].text
    ids, encoded = clips.text_ids(different[0]).tolist(), list(encode_text(first))
    position = next(
        (
            position
            for position, (stored_id, encoded_id) in enumerate(zip(ids, encoded, strict=False))
            if stored_id != encoded_id
        ),
        None,
    )
    difference = (
        f"id {ids[position]} at position {position}, expected {encoded[position]}"
        if position is not None
        else f"{len(ids)} ids"
    )
    names = format_clip_names([clips.infos[clip].id for clip in different])
    text = f"{len(different):,} of {len(compared):,} texts have stored ids that differ from this tokenizer's: {names}"
    text += f" (the first: {first!r:.80}, {difference})"
    level: Level = "error" if len(different) > MIN_ERROR_SHARE * len(compared) else "warning"
    return [finding("clips-other-tokenizer", text, expected="0", where=clips.name, level=level)]


def check_held_out_overlap(train_sets: Sequence[ClipDataset], held_out: ClipDataset) -> list[Finding]:
    """Held-out clips that are also in training: the same codes, or the same text of the same recording.

    The same text in another recording is less serious: the model has read it, but not heard this utterance.
    """
    codes = {held_out.codes(clip).tobytes(): clip for clip in range(len(held_out))}
    texts: dict[str, list[int]] = {}
    for clip in range(len(held_out)):
        if text := held_out.infos[clip].text.strip():
            texts.setdefault(text, []).append(clip)
    lengths = np.unique(held_out.num_codes)
    same_clips: dict[int, str] = {}
    same_texts: dict[int, str] = {}
    for clips in train_sets:
        # Codes are read only where a held-out clip has as many: most of a large set stays unread.
        as_long = np.isin(clips.num_codes, lengths)
        for clip in range(len(clips)):
            info = clips.infos[clip]
            known = codes.get(clips.codes(clip).tobytes()) if as_long[clip] else None
            if known is not None:
                same_clips.setdefault(known, f"{clips.name}/{info.id}")
            for index in texts.get(info.text.strip(), ()):
                other = held_out.infos[index]
                origin = bool(info.recording) and (info.recording, info.speaker) == (other.recording, other.speaker)
                is_same = origin and abs(info.seconds - other.seconds) <= MAX_SAME_CUT_SECONDS
                (same_clips if is_same else same_texts).setdefault(index, f"{clips.name}/{info.id}")
    same_text_only = {index: name for index, name in same_texts.items() if index not in same_clips}
    findings = []
    for code, matches, what, relation in (
        ("clips-not-held-out", same_clips, "are also in training", "is the same as"),
        ("texts-not-held-out", same_text_only, "have a text that is also in training", "has the text of"),
    ):
        if matches:
            pairs = [f"{held_out.infos[index].id} {relation} {name}" for index, name in sorted(matches.items())]
            text = f"{len(matches):,} of {len(held_out):,} held-out clips {what}: {format_clip_names(pairs)}"
            many = matches is same_text_only and len(matches) > MIN_ERROR_SHARE * len(held_out)
            level: Level | None = "warning" if many else None
            findings.append(finding(code, text, expected="0", where=held_out.name, level=level))
    return findings


def count_text_ids(sets: Sequence[ClipDataset], num_ids: int) -> NDArray[np.int64]:
    """How often each text id occurs in some sets; ids without a row are reported elsewhere."""
    counts = np.zeros(num_ids, dtype=np.int64)
    for clips in sets:
        for clip in range(len(clips)):
            ids = clips.text_ids(clip)
            np.add.at(counts, ids[(ids >= 0) & (ids < num_ids)], 1)
    return counts


def check_unused_rows(sets: Sequence[ClipDataset], base_pieces: int, num_new: int, *, tag: bool) -> list[Finding]:
    """New rows that no clip uses; a few are normal, because a script is added as a whole.

    The language tag, if there is one, is the first new row. It does not count: every text has it.
    """
    num_all, base_pieces, num_new = base_pieces + num_new, base_pieces + tag, num_new - tag
    if num_new <= 0:
        return []
    counts = count_text_ids(sets, num_all)
    unused = int(np.count_nonzero(counts[base_pieces:] == 0))
    where = ", ".join(clips.name for clips in sets)
    if unused == num_new:
        text = f"none of the {int(counts.sum()):,} text ids uses one of the {num_new:,} new rows for letters"
        return [finding("text-off-new-rows", text, where=where)]
    if unused:
        text = f"{unused:,} of {num_new:,} new rows are used by no clip, so they stay untrained"
        return [finding("rows-unused", text, where=where)]
    return []


def check_prompt_copies(sets: Sequence[ClipDataset], stream: DeterministicSampler) -> list[Finding]:
    """Samples of the first epoch whose voice comes from a clip with the same codes: a recording that occurs twice.

    A speaker's only clip, learned with its own voice, is reported by the sampler itself.
    """
    items: list[Sample] = []
    for step in range(1, int(stream.steps_per_epoch) + 2):
        items += stream.step(step)
        if len(items) >= NUM_CHECKED_PROMPTS:
            break
    copies = []
    for item in items:
        own, (where, prompt) = sets[item.set], item.prompt
        # Places behind the clips only lend a voice and have no codes.
        if (where, prompt) == (item.set, item.clip) or prompt >= len(sets[where]):
            continue
        same_length = own.num_codes[item.clip] == sets[where].num_codes[prompt]
        if same_length and np.array_equal(own.codes(item.clip), sets[where].codes(prompt)):
            copies.append(f"{own.infos[item.clip].id} by {sets[where].infos[prompt].id}")
    if not copies:
        return []
    text = f"{len(copies):,} of {len(items):,} prompts have the same codes as their clip: {format_clip_names(copies)}"
    share = len(copies) / len(items)
    level: Level = "error" if share >= MIN_ERROR_SHARE else "warning" if share >= MIN_WARNING_SHARE else "note"
    return [finding("prompt-is-target", text, expected="another recording", level=level)]


def check_clip_dataset(
    clips: ClipDataset,
    spec: SequenceSpec,
    code_hz: float,
    *,
    unknown_id: int | None = None,
    max_voices: int | None = None,
) -> list[Finding]:
    """Every kind of fault with a count and the first clips that have it.

    Voices are large: with `max_voices` only that many are read, spread over the set.
    """
    seen: dict[str, list[tuple[int, int, str]]] = {code: [] for code in _FAULT_TEXTS}  # clip, bad values, example
    step = 1 if max_voices is None else max(1, -(-len(clips) // max(1, max_voices)))
    with progress.progress_task(f"checking {clips.name}", len(clips)) as advance:
        for clip in range(len(clips)):
            text, codes, seconds = clips.text_ids(clip), clips.codes(clip), clips.infos[clip].seconds
            voice = clips.voice(clip) if clip % step == 0 else {}
            faults = list(_find_clip_faults(text, codes, voice, spec, code_hz))
            code_seconds = len(codes) / code_hz
            if abs(code_seconds - seconds) > max(DURATION_SLACK_SECONDS, DURATION_SLACK_SHARE * seconds):
                example = f"{len(codes):,} codes are {code_seconds:.2f} s, the clip has {seconds:.2f} s"
                faults.append(("clips-seconds", 0, example))
            if unknown_id is not None and (unknown := int(np.count_nonzero(text == unknown_id))):
                faults.append(("clips-text-unknown", unknown, f"{unknown} of {len(text)} tokens"))
            for code, values, example in faults:
                seen[code].append((clip, values, example))
            advance(1)
    findings = []
    for code, found in seen.items():
        if not found:
            continue
        # A clip can have a fault twice, in its text and in its codes: it is counted and named once.
        names = [clips.infos[clip].id for clip in dict.fromkeys(clip for clip, _, _ in found)]
        values = sum(count for _, count, _ in found)
        first = next((example for _, _, example in found if example), "")
        what = _FAULT_TEXTS[code].format(values=values)
        message = f"{len(names):,} of {len(clips):,} clips {what}: {format_clip_names(names)}"
        message += f" (first clip: {first})" if first else ""
        is_serious = code in _SHARE_DEPENDENT_FAULTS and len(names) >= MIN_ERROR_SHARE * len(clips)
        if code == "clips-text-unknown":
            is_serious = is_unknown_share_serious(values, int(clips.num_text.sum()))
        level: Level | None = "error" if is_serious else None
        findings.append(finding(code, message, where=clips.name, level=level))
    return findings


def is_unknown_share_serious(num_unknown: int, num_tokens: int) -> bool:
    """Whether so many tokens of a set are unknown that training is refused."""
    return num_unknown > 0 and num_unknown >= _UNKNOWN_ERROR_SHARE * num_tokens


def count_trailing_run(codes: AnyArray) -> int:
    """How often the last code is repeated at the end."""
    if not len(codes):
        return 0
    different = np.flatnonzero(codes != codes[-1])
    return len(codes) - (int(different[-1]) + 1 if len(different) else 0)


def _find_clip_faults(
    text: Int32Array, codes: Int32Array, voice: Mapping[str, AnyArray], spec: SequenceSpec, code_hz: float
) -> Iterator[tuple[str, int, str]]:
    """Faults of one clip: code of the finding, number of bad values, and an example."""
    if not len(text):
        yield "clips-no-content", 0, "no text"
    else:
        outside = (text < 0) | (text >= spec.num_text_ids)
        if outside.any():
            example = f"id {int(text[outside][0]):,}, valid are 0 to {spec.num_text_ids - 1:,}"
            yield "clips-text-outside", int(outside.sum()), example
        forbidden = np.isin(text, list(spec.forbidden_text_ids))
        if forbidden.any():
            yield "clips-text-barred", int(forbidden.sum()), f"id {int(text[forbidden][0])}"
        if len(text) > spec.max_text:
            yield "clips-too-long", 0, f"{len(text):,} text ids of at most {spec.max_text:,}"
    if not len(codes):
        yield "clips-no-content", 0, "no codes"
    else:
        outside = (codes < 0) | (codes >= spec.num_codes)
        if outside.any():
            example = f"code {int(codes[outside][0])} (valid: 0 to {spec.num_codes - 1:,})"
            yield "clips-codes-outside", int(outside.sum()), example
        if len(codes) > spec.max_codes:
            yield "clips-too-long", 0, f"{len(codes):,} codes of at most {spec.max_codes:,}"
        run = count_trailing_run(codes)
        if run >= MAX_TRAILING_RUN_SECONDS * code_hz:
            yield "clips-trailing-run", run, f"code {int(codes[-1])} for {run:,} of {len(codes):,}"
    for name, array in voice.items():
        is_float = np.issubdtype(array.dtype, np.floating)
        invalid = ~np.isfinite(array) if is_float else (array < 0) | (array >= spec.num_codes)
        if num_invalid := int(np.count_nonzero(invalid)):
            yield "clips-voice-broken", num_invalid, f"{num_invalid:,} of {array.size:,} numbers of {name}"
        elif not array.size:
            yield "clips-voice-broken", 0, f"{name} is empty"
        elif is_float and not array.any():
            yield "clips-voice-broken", array.size, f"{name} is all zeros"
