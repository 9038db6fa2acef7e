"""What in the data would keep a model from learning, though every clip is sound by itself.

Ids that another tokenizer made, new rows that never occur, prompts that are their own target. Changes nothing; what is
wrong with single clips is told by `set_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from voxgraft.corpus.clips import ClipDataset, ClipInfo, format_clip_names
from voxgraft.corpus.stream import DeterministicSampler, Sample
from voxgraft.errors import Finding, Level, finding

__all__ = [
    "check_held_out_overlap",
    "check_prompt_copies",
    "check_text_tokenization",
    "check_unused_rows",
    "count_text_ids",
]

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
