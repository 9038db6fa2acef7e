"""Checks of prepared sets before training: faults of single clips, and faults that only show across clips or sets.

Single clips: ids without a row, codes out of range, broken voices, wrong durations, padding. Across clips: ids of
another tokenizer, new rows that never occur, prompts that are their own target, held-out clips that are learned.
Changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.core import progress
from voxgraft.core.errors import Finding, Level, finding
from voxgraft.dataset.sampler import DeterministicSampler, Sample
from voxgraft.dataset.shards import AnyArray, ClipDataset, Int32Array, format_clip_names

if TYPE_CHECKING:
    from voxgraft.models.base import SequenceSpec


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
    "clips-text-outside": "{values:,} text ids have no row",
    "clips-text-barred": "{values:,} text ids are removed by the original program",
    "clips-codes-outside": "{values:,} speech codes are outside the family's range",
    "clips-too-long": "longer than the model's maximum",
    "clips-no-content": "no text or no codes",
    "clips-voice-broken": "the voice condition has unusable values",
    "clips-trailing-run": "the codes end with one repeated code",
    "clips-seconds": "the number of codes does not match the length",
    "clips-text-unknown": "{values:,} unknown tokens in the text",
}
_SHARE_DEPENDENT_FAULTS = ("clips-trailing-run", "clips-seconds")
PaddingEvidence = Literal["stated", "seconds", "run"]
# Other programs store codes padded to the longest clip of a batch.
# Codes beyond a clip's length that a rounded duration explains, and that are kept of a run at its end.
MAX_CODE_SLACK = 5
MIN_PADDING_RUN = 10
# Clips of one batch are this close to each other in the order of their names.
MAX_PADDED_BATCH = 32
# In padded data nearly every clip has a neighbour of the same stored length; by chance about one in twenty has.
MIN_PADDED_SHARE = 0.5


def check_text_tokenization(clips: ClipDataset, spell: EncodeText) -> list[Finding]:
    """Whether the ids are those of the texts. Nothing else reveals a tokenizer of the same size with other pieces."""
    places = [clip for clip in range(len(clips)) if clips.infos[clip].text.strip()]
    step = max(1, len(places) // NUM_CHECKED_TEXTS)
    compared = places[::step][:NUM_CHECKED_TEXTS]
    different = [clip for clip in compared if clips.text_ids(clip).tolist() != list(spell(clips.infos[clip].text))]
    if not different:
        return []
    first = clips.infos[different[0]].text
    ids, spelled = clips.text_ids(different[0]).tolist(), list(spell(first))
    at = next((at for at, (one, other) in enumerate(zip(ids, spelled, strict=False)) if one != other), None)
    shown = f"id {ids[at]} at position {at}, expected {spelled[at]}" if at is not None else f"{len(ids)} ids"
    names = format_clip_names([clips.infos[clip].id for clip in different])
    text = f"{len(different):,} of {len(compared):,} texts are encoded differently: {names}"
    text += f" (the first: {first!r:.80}, {shown})"
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
    same: dict[int, str] = {}
    read: dict[int, str] = {}
    for clips in train_sets:
        # Codes are read only where a held-out clip has as many: most of a large set stays unread.
        as_long = np.isin(clips.num_codes, lengths)
        for clip in range(len(clips)):
            info = clips.infos[clip]
            known = codes.get(clips.codes(clip).tobytes()) if as_long[clip] else None
            if known is not None:
                same.setdefault(known, f"{clips.name}/{info.id}")
            for place in texts.get(info.text.strip(), ()):
                other = held_out.infos[place]
                origin = bool(info.recording) and (info.recording, info.speaker) == (other.recording, other.speaker)
                is_same = origin and abs(info.seconds - other.seconds) <= MAX_SAME_CUT_SECONDS
                (same if is_same else read).setdefault(place, f"{clips.name}/{info.id}")
    only_read = {place: name for place, name in read.items() if place not in same}
    findings = []
    for code, places, what, verb in (
        ("clips-not-held-out", same, "are also in training", "is"),
        ("texts-not-held-out", only_read, "have a text that is also in training", "has the text of"),
    ):
        if places:
            pairs = [f"{held_out.infos[place].id} {verb} {name}" for place, name in sorted(places.items())]
            text = f"{len(places):,} of {len(held_out):,} held-out clips {what}: {format_clip_names(pairs)}"
            many = places is only_read and len(places) > MIN_ERROR_SHARE * len(held_out)
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


def check_unused_rows(sets: Sequence[ClipDataset], base_pieces: int, num_new: int) -> list[Finding]:
    """New rows that no clip uses; a few are normal, because a script is added as a whole."""
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
    """Samples of the first epoch whose voice comes from a clip with the same codes: a recording that occurs twice.

    A speaker's only clip, learned with its own voice, is reported by the sampler itself.
    """
    items: list[Sample] = []
    for step in range(1, int(stream.steps_per_epoch) + 2):
        items += stream.step(step)
        if len(items) >= num_items:
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
    text = f"{len(copies):,} of {len(items):,} prompts have the codes of their target: {format_clip_names(copies)}"
    share = len(copies) / len(items)
    level: Level = "error" if share >= MIN_ERROR_SHARE else "warning" if share >= MIN_WARNING_SHARE else "note"
    return [finding("prompt-is-target", text, expected="another recording", level=level)]


def check_clip_dataset(
    clips: ClipDataset,
    frame: SequenceSpec,
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
            faults = list(_find_clip_faults(text, codes, voice, frame, code_hz))
            spoken = len(codes) / code_hz
            if abs(spoken - seconds) > max(DURATION_SLACK_SECONDS, DURATION_SLACK_SHARE * seconds):
                shown = f"{len(codes):,} codes are {spoken:.2f} s, the clip has {seconds:.2f} s"
                faults.append(("clips-seconds", 0, shown))
            if unknown_id is not None and (unknown := int(np.count_nonzero(text == unknown_id))):
                faults.append(("clips-text-unknown", unknown, f"{unknown} of {len(text)} tokens"))
            for code, values, shown in faults:
                seen[code].append((clip, values, shown))
            advance(1)
    findings = []
    for code, found in seen.items():
        if not found:
            continue
        # A clip can have a fault twice, in its text and in its codes: it is counted and named once.
        names = [clips.infos[clip].id for clip in dict.fromkeys(clip for clip, _, _ in found)]
        values = sum(count for _, count, _ in found)
        first = next((shown for _, _, shown in found if shown), "")
        what = _FAULT_TEXTS[code].format(values=values)
        told = f"{len(names):,} of {len(clips):,} clips: {what}; {format_clip_names(names)} (the first: {first})"
        is_serious = code in _SHARE_DEPENDENT_FAULTS and len(names) >= MIN_ERROR_SHARE * len(clips)
        if code == "clips-text-unknown":
            is_serious = values >= _UNKNOWN_ERROR_SHARE * int(clips.num_text.sum())
        level: Level | None = "error" if is_serious else None
        findings.append(finding(code, told, where=clips.name, level=level))
    return findings


def count_trailing_run(codes: AnyArray) -> int:
    """How often the last code is repeated at the end."""
    if not len(codes):
        return 0
    different = np.flatnonzero(codes != codes[-1])
    return len(codes) - (int(different[-1]) + 1 if len(different) else 0)


def _find_clip_faults(
    text: Int32Array, codes: Int32Array, voice: Mapping[str, AnyArray], frame: SequenceSpec, code_hz: float
) -> Iterator[tuple[str, int, str]]:
    """Faults of one clip: code of the finding, number of bad values, and an example."""
    if not len(text):
        yield "clips-no-content", 0, "no text"
    else:
        outside = (text < 0) | (text >= frame.num_text_ids)
        if outside.any():
            shown = f"id {int(text[outside][0])} (valid: 0 to {frame.num_text_ids - 1:,})"
            yield "clips-text-outside", int(outside.sum()), shown
        barred = np.isin(text, list(frame.forbidden_text_ids))
        if barred.any():
            yield "clips-text-barred", int(barred.sum()), f"id {int(text[barred][0])}"
        if len(text) > frame.max_text:
            yield "clips-too-long", 0, f"{len(text):,} text ids of at most {frame.max_text:,}"
    if not len(codes):
        yield "clips-no-content", 0, "no codes"
    else:
        outside = (codes < 0) | (codes >= frame.num_codes)
        if outside.any():
            shown = f"code {int(codes[outside][0])} (valid: 0 to {frame.num_codes - 1:,})"
            yield "clips-codes-outside", int(outside.sum()), shown
        if len(codes) > frame.max_codes:
            yield "clips-too-long", 0, f"{len(codes):,} codes of at most {frame.max_codes:,}"
        run = count_trailing_run(codes)
        if run >= MAX_TRAILING_RUN_SECONDS * code_hz:
            yield "clips-trailing-run", run, f"code {int(codes[-1])} for {run:,} of {len(codes):,}"
    for name, array in voice.items():
        is_float = np.issubdtype(array.dtype, np.floating)
        invalid = ~np.isfinite(array) if is_float else (array < 0) | (array >= frame.num_codes)
        if wrong := int(np.count_nonzero(invalid)):
            yield "clips-voice-broken", wrong, f"{wrong:,} of {array.size:,} numbers of {name}"
        elif not array.size:
            yield "clips-voice-broken", 0, f"{name} is empty"
        elif is_float and not array.any():
            yield "clips-voice-broken", array.size, f"{name} is all zeros"


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
    order = sorted(range(len(clips)), key=lambda at: clips[at].name)
    places: dict[int, list[int]] = defaultdict(list)
    for place, at in enumerate(order):
        places[clips[at].length].append(place)
    mated = [False] * len(clips)
    for near in places.values():
        for one, other in pairwise(near):
            if other - one < MAX_PADDED_BATCH:
                mated[order[one]] = mated[order[other]] = True
    is_padded = sum(mated) >= MIN_PADDED_SHARE * len(clips)
    ends = Counter(clip.last for clip in clips if clip.run >= MIN_PADDING_RUN)
    result: list[tuple[int, PaddingEvidence | None]] = []
    for mate, clip in zip(mated, clips, strict=True):
        padded_end = is_padded and mate and clip.run >= MIN_PADDING_RUN and ends[clip.last] > 1
        length: int = clip.length
        evidence: PaddingEvidence | None = None
        if clip.stated is not None and 0 < clip.stated < clip.length:
            length, evidence = clip.stated, "stated"
        if clip.seconds is not None:
            spoken = max(1, round(clip.seconds * code_hz))
            if length > spoken + MAX_CODE_SLACK:
                length, evidence = spoken, "seconds"
        elif padded_end and (own := clip.length - clip.run + MAX_CODE_SLACK) < length:
            length, evidence = own, "run"
        result.append((length, evidence))
    return result
