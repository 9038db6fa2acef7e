"""What in the data would keep a model from learning, though every clip is sound by itself.

Ids that another tokenizer made, new rows that never occur, prompts that are their own target. Changes nothing; what is
wrong with single clips is told by `set_checks`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from voxgraft.core import progress
from voxgraft.core.errors import Finding, Level, finding
from voxgraft.dataset.sampler import DeterministicSampler, Sample
from voxgraft.dataset.shards import AnyArray, ClipDataset, ClipInfo, Int32Array, format_clip_names

if TYPE_CHECKING:
    from voxgraft.models.sequence import SequenceSpec


MAX_SAME_CUT_SECONDS = 0.1
"""Two clips of one recording with one text, whose lengths differ by no more, are the same clip cut or encoded again."""
EncodeTextFn = Callable[[str], Sequence[int]]
NUM_CHECKED_TEXTS = 200
"""Clips of a set whose text is spelled anew; another tokenizer shows in the first few."""
NUM_CHECKED_PROMPTS = 2_000
"""Items of the data order whose prompts are compared with their targets."""
MIN_WARNING_SHARE, MIN_ERROR_SHARE = 0.01, 0.2
"""Up to few, some clips that stand twice explain it; from many on, training would learn it."""


def check_text_tokenization(clips: ClipDataset, spell: EncodeTextFn) -> list[Finding]:
    """Whether the ids spell the texts. A tokenizer of the same size with other pieces shows in nothing else."""
    places = [clip for clip in range(len(clips)) if clips.infos[clip].text.strip()]
    step = max(1, len(places) // NUM_CHECKED_TEXTS)
    compared = places[::step][:NUM_CHECKED_TEXTS]
    different = [clip for clip in compared if clips.text_ids(clip).tolist() != list(spell(clips.infos[clip].text))]
    if not different:
        return []
    first = clips.infos[different[0]].text
    ids, spelled = clips.text_ids(different[0]).tolist(), list(spell(first))
    at = next((at for at, (one, other) in enumerate(zip(ids, spelled, strict=False)) if one != other), None)
    shown = f"id {ids[at]} at place {at}, spelled {spelled[at]}" if at is not None else f"{len(ids)} ids"
    names = format_clip_names([clips.infos[clip].id for clip in different])
    text = f"{len(different):,} of {len(compared):,} texts are spelled otherwise: {names}"
    text += f" (the first: {first!r:.80}, {shown})"
    level: Level = "error" if len(different) > MIN_ERROR_SHARE * len(compared) else "warning"
    return [finding("clips-other-tokenizer", text, expected="0", where=clips.name, level=level)]


def check_held_out_overlap(train_sets: Sequence[ClipDataset], held_out: ClipDataset) -> list[Finding]:
    """Held-out clips that are also learnt from: the same codes, or the same text of the same recording.

    The same text in another recording is a lesser thing: the model has read it, and not heard this saying of it.
    """
    codes = {held_out.codes(clip).tobytes(): clip for clip in range(len(held_out))}
    texts: dict[str, list[int]] = {}
    for clip in range(len(held_out)):
        if text := held_out.infos[clip].text.strip():
            texts.setdefault(text, []).append(clip)
    lengths = np.unique(held_out.num_codes)
    same: dict[int, str] = {}
    read: dict[int, str] = {}
    for clips in train_sets:
        # Codes are compared where a held-out clip has as many, which leaves most of a large set unread.
        as_long = np.isin(clips.num_codes, lengths)
        for clip in range(len(clips)):
            info = clips.infos[clip]
            known = codes.get(clips.codes(clip).tobytes()) if as_long[clip] else None
            if known is not None:
                same.setdefault(known, f"{clips.name}/{info.id}")
            for place in texts.get(info.text.strip(), ()):
                is_same = _is_same_cut(info, held_out.infos[place])
                (same if is_same else read).setdefault(place, f"{clips.name}/{info.id}")
    only_read = {place: name for place, name in read.items() if place not in same}
    return [
        *_overlap_finding("clips-not-held-out", held_out, same, "are also learnt from", "is"),
        *_overlap_finding(
            "texts-not-held-out", held_out, only_read, "say a text that is also learnt from", "says the text of"
        ),
    ]


def _overlap_finding(code: str, held_out: ClipDataset, places: dict[int, str], what: str, verb: str) -> list[Finding]:
    if not places:
        return []
    pairs = [f"{held_out.infos[place].id} {verb} {name}" for place, name in sorted(places.items())]
    text = f"{len(places):,} of {len(held_out):,} held-out clips {what}: {format_clip_names(pairs)}"
    many = code == "texts-not-held-out" and len(places) > MIN_ERROR_SHARE * len(held_out)
    level: Level | None = "warning" if many else None
    return [finding(code, text, expected="0", where=held_out.name, level=level)]


def _is_same_cut(one: ClipInfo, other: ClipInfo) -> bool:
    recording = bool(one.recording) and (one.recording, one.speaker) == (other.recording, other.speaker)
    return recording and abs(one.seconds - other.seconds) <= MAX_SAME_CUT_SECONDS


def count_text_ids(sets: Sequence[ClipDataset], num_ids: int) -> NDArray[np.int64]:
    """How often each text id occurs in the clips of some sets; ids that have no row are told elsewhere."""
    counts = np.zeros(num_ids, dtype=np.int64)
    for clips in sets:
        for clip in range(len(clips)):
            ids = clips.text_ids(clip)
            np.add.at(counts, ids[(ids >= 0) & (ids < num_ids)], 1)
    return counts


def check_unused_rows(sets: Sequence[ClipDataset], base_pieces: int, num_new: int) -> list[Finding]:
    """New rows that no clip of the new language uses; a script is grafted whole, so that some is usual."""
    if not num_new:
        return []
    counts = count_text_ids(sets, base_pieces + num_new)
    unused = int(np.count_nonzero(counts[base_pieces:] == 0))
    where = ", ".join(clips.name for clips in sets)
    if unused == num_new:
        text = f"none of {int(counts.sum()):,} text ids is one of the {num_new:,} new rows"
        return [finding("text-off-new-rows", text, where=where)]
    if unused:
        text = f"{unused:,} of {num_new:,} new rows never occur in the data and stay as they are"
        return [finding("rows-unused", text, where=where)]
    return []


def check_prompt_copies(
    sets: Sequence[ClipDataset], stream: DeterministicSampler, num_items: int = NUM_CHECKED_PROMPTS
) -> list[Finding]:
    """Items of the first pass whose voice comes from a clip with the very same codes: a recording that stands twice.

    A speaker's only clip, learnt with its own voice, is told by the data order itself.
    """
    items = list(_first_samples(stream, num_items))
    copies = [item for item in items if item.prompt != (item.set, item.clip) and _is_prompt_copy(sets, item)]
    if not copies:
        return []
    names = [f"{_clip_name(sets, item.set, item.clip)} by {_clip_name(sets, *item.prompt)}" for item in copies]
    text = f"{len(copies):,} of {len(items):,} prompts have the codes of their target: {format_clip_names(names)}"
    share = len(copies) / len(items)
    level: Level = "error" if share >= MIN_ERROR_SHARE else "warning" if share >= MIN_WARNING_SHARE else "note"
    return [finding("prompt-is-target", text, expected="another recording", level=level)]


def _first_samples(stream: DeterministicSampler, num_items: int) -> Iterator[Sample]:
    count = 0
    for step in range(1, int(stream.steps_per_epoch) + 2):
        for item in stream.step(step):
            yield item
            count += 1
        if count >= num_items:
            return


def _is_prompt_copy(sets: Sequence[ClipDataset], item: Sample) -> bool:
    where, prompt = item.prompt
    if prompt >= len(sets[where]):  # a place that lends a voice and has no codes
        return False
    own, others = sets[item.set], sets[where]
    same_length = own.num_codes[item.clip] == others.num_codes[prompt]
    return bool(same_length) and np.array_equal(own.codes(item.clip), others.codes(prompt))


def _clip_name(sets: Sequence[ClipDataset], where: int, clip: int) -> str:
    return sets[where].infos[clip].id


FAULT_ERROR_SHARE = 0.2
"""From this share of clips on, what is a warning for a few becomes an error: training would learn it."""
MAX_TRAILING_RUN_SECONDS = 1.0
"""Recordings end in silence, but rarely in a whole second of one and the same code."""
DURATION_SLACK_SECONDS, DURATION_SLACK_SHARE = 0.25, 0.05
_UNKNOWN_ERROR_SHARE = 0.01


@dataclass(slots=True)
class _FaultTally:
    """One kind of fault: the clips that have it, and what the first one looked like."""

    clips: list[int] = field(default_factory=list)
    values: int = 0
    first: str = ""

    def add(self, clip: int, values: int, shown: str) -> None:
        self.clips.append(clip)
        self.values += values
        self.first = self.first or shown


_FAULT_TEXTS = {
    "clips-text-outside": "{values:,} text ids have no row",
    "clips-text-barred": "{values:,} text ids are ones that the stock program takes out",
    "clips-codes-outside": "{values:,} speech codes are none of the family's",
    "clips-too-long": "longer than the model has positions for",
    "clips-no-content": "no text or no codes",
    "clips-voice-broken": "their voice holds numbers that cannot be used",
    "clips-trailing-run": "their codes end in one code over and over",
    "clips-seconds": "as many codes as another length would have",
    "clips-text-unknown": "{values:,} unknown tokens in their text",
}
_SHARE_DEPENDENT_FAULTS = ("clips-trailing-run", "clips-seconds")


def check_clip_dataset(
    clips: ClipDataset,
    frame: SequenceSpec,
    code_hz: float,
    *,
    unknown_id: int | None = None,
    max_voices: int | None = None,
) -> list[Finding]:
    """Every fault with a count and the first clips that have it.

    Voices are large; with `max_voices` only so many are read, spread over the set.
    """
    seen: dict[str, _FaultTally] = {code: _FaultTally() for code in _FAULT_TEXTS}
    step = 1 if max_voices is None else max(1, -(-len(clips) // max(1, max_voices)))
    with progress.progress_task(f"checking {clips.name}", len(clips)) as advance:
        for clip in range(len(clips)):
            text, codes = clips.text_ids(clip), clips.codes(clip)
            faults = [*_text_faults(text, frame), *_code_faults(codes, frame, code_hz)]
            faults += _duration_faults(clips.infos[clip].seconds, len(codes), code_hz)
            if unknown_id is not None and (unknown := int(np.count_nonzero(text == unknown_id))):
                faults.append(("clips-text-unknown", unknown, f"{unknown} of {len(text)} tokens"))
            if clip % step == 0:
                faults += _voice_faults(clips.voice(clip), frame)
            for code, values, shown in faults:
                seen[code].add(clip, values, shown)
            advance(1)
    return [_fault_finding(code, found, clips) for code, found in seen.items() if found.clips]


def count_trailing_run(codes: AnyArray) -> int:
    """How many times the last code stands at the end."""
    if not len(codes):
        return 0
    different = np.flatnonzero(codes != codes[-1])
    return len(codes) - (int(different[-1]) + 1 if len(different) else 0)


_ClipFault = tuple[str, int, str]


def _text_faults(text: Int32Array, frame: SequenceSpec) -> Iterator[_ClipFault]:
    if not len(text):
        yield "clips-no-content", 0, "no text"
        return
    outside = (text < 0) | (text >= frame.num_text_ids)
    if outside.any():
        shown = f"id {int(text[outside][0])}, and there are 0 to {frame.num_text_ids - 1:,}"
        yield "clips-text-outside", int(outside.sum()), shown
    barred = np.isin(text, list(frame.forbidden_text_ids)) if frame.forbidden_text_ids else np.zeros(len(text), bool)
    if barred.any():
        yield "clips-text-barred", int(barred.sum()), f"id {int(text[barred][0])}"
    if len(text) > frame.max_text:
        yield "clips-too-long", 0, f"{len(text):,} text ids of at most {frame.max_text:,}"


def _code_faults(codes: Int32Array, frame: SequenceSpec, code_hz: float) -> Iterator[_ClipFault]:
    if not len(codes):
        yield "clips-no-content", 0, "no codes"
        return
    outside = (codes < 0) | (codes >= frame.num_codes)
    if outside.any():
        shown = f"code {int(codes[outside][0])}, and there are 0 to {frame.num_codes - 1:,}"
        yield "clips-codes-outside", int(outside.sum()), shown
    if len(codes) > frame.max_codes:
        yield "clips-too-long", 0, f"{len(codes):,} codes of at most {frame.max_codes:,}"
    run = count_trailing_run(codes)
    if run >= MAX_TRAILING_RUN_SECONDS * code_hz:
        yield "clips-trailing-run", run, f"code {int(codes[-1])} for {run:,} of {len(codes):,}"


def _duration_faults(seconds: float, num_codes: int, code_hz: float) -> Iterator[_ClipFault]:
    spoken = num_codes / code_hz
    if abs(spoken - seconds) > max(DURATION_SLACK_SECONDS, DURATION_SLACK_SHARE * seconds):
        yield "clips-seconds", 0, f"{num_codes:,} codes are {spoken:.2f} s, the clip has {seconds:.2f} s"


def _voice_faults(voice: dict[str, AnyArray], frame: SequenceSpec) -> Iterator[_ClipFault]:
    for name, array in voice.items():
        wrong = _count_invalid_numbers(array, frame)
        if wrong:
            yield "clips-voice-broken", wrong, f"{wrong:,} of {array.size:,} numbers of {name}"
        elif not array.size:
            yield "clips-voice-broken", 0, f"{name} is empty"
        elif np.issubdtype(array.dtype, np.floating) and not array.any():
            yield "clips-voice-broken", array.size, f"{name} is all zeros"


def _count_invalid_numbers(array: AnyArray, frame: SequenceSpec) -> int:
    if np.issubdtype(array.dtype, np.floating):
        return int(np.count_nonzero(~np.isfinite(array)))
    return int(np.count_nonzero((array < 0) | (array >= frame.num_codes)))


def _fault_finding(code: str, seen: _FaultTally, clips: ClipDataset) -> Finding:
    """A clip may have a fault twice, in its text and in its codes; it is counted and named once."""
    names = [clips.infos[clip].id for clip in dict.fromkeys(seen.clips)]
    what = _FAULT_TEXTS[code].format(values=seen.values)
    text = f"{len(names):,} of {len(clips):,} clips: {what}; {format_clip_names(names)} (the first: {seen.first})"
    many = code in _SHARE_DEPENDENT_FAULTS and len(names) >= FAULT_ERROR_SHARE * len(clips)
    if code == "clips-text-unknown":
        many = seen.values >= _UNKNOWN_ERROR_SHARE * int(clips.num_text.sum())
    level: Level | None = "error" if many else None
    return finding(code, text, where=clips.name, level=level)


PaddingEvidence = Literal["stated", "seconds", "run"]
MAX_CODE_SLACK = 5
"""Codes over a clip's length that a rounded duration explains, and that are kept of a run."""
MIN_PADDING_RUN = 10
MAX_PADDED_BATCH = 32
"""Batch mates stand that close to one another, in the order of their names."""
MIN_PADDED_SHARE = 0.5
"""In padded data nearly every clip has a neighbour of its own stored length; by chance about one in twenty has."""


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """One clip's codes as they are stored. `run` is how often `last`, the last code, stands at the end."""

    name: str
    length: int
    last: int
    run: int
    stated: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class TrimmedLength:
    """How many codes are the clip's own, and what showed it; no reason where nothing is cut."""

    length: int
    reason: PaddingEvidence | None = None


def compute_trimmed_lengths(clips: Sequence[StoredCodes], code_hz: float) -> list[TrimmedLength]:
    """For each clip its own length: as stated, by its duration, or, where that is unknown, by its end."""
    padded = _detect_padded_ends(clips)
    return [_trim_clip(clip, code_hz, at_end) for clip, at_end in zip(clips, padded, strict=True)]


def _trim_clip(clip: StoredCodes, code_hz: float, padded_end: bool) -> TrimmedLength:
    length: int = clip.length
    reason: PaddingEvidence | None = None
    if clip.stated is not None and 0 < clip.stated < length:
        length, reason = clip.stated, "stated"
    if clip.seconds is not None:
        spoken = max(1, round(clip.seconds * code_hz))
        return TrimmedLength(spoken, "seconds") if length > spoken + MAX_CODE_SLACK else TrimmedLength(length, reason)
    own = clip.length - clip.run + MAX_CODE_SLACK
    if padded_end and own < length:
        return TrimmedLength(own, "run")
    return TrimmedLength(length, reason)


def _detect_padded_ends(clips: Sequence[StoredCodes]) -> list[bool]:
    """Whether a clip was stored with batch mates, at one length, and ends as others of the set do."""
    order = sorted(range(len(clips)), key=lambda at: clips[at].name)
    places: dict[int, list[int]] = defaultdict(list)
    for place, at in enumerate(order):
        places[clips[at].length].append(place)
    mated = [False] * len(clips)
    for near in places.values():
        for one, other in pairwise(near):
            if other - one < MAX_PADDED_BATCH:
                mated[order[one]] = mated[order[other]] = True
    if sum(mated) < MIN_PADDED_SHARE * len(clips):
        return [False] * len(clips)
    ends = Counter(clip.last for clip in clips if clip.run >= MIN_PADDING_RUN)
    return [
        mate and clip.run >= MIN_PADDING_RUN and ends[clip.last] > 1 for mate, clip in zip(mated, clips, strict=True)
    ]
