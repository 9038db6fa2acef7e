"""What in the data would keep a model from learning, though every clip is sound by itself.

Ids that another tokenizer made, new rows that never occur, prompts that are their own target. Changes nothing; what is
wrong with single clips is told by `set_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from voxgraft.corpus.clips import ClipSet, named_clips
from voxgraft.corpus.stream import Item, Stream
from voxgraft.errors import Finding, Level, finding

__all__ = ["id_counts", "prompt_findings", "row_findings", "spelling_findings"]

Spell = Callable[[str], Sequence[int]]
NUM_SPELLED = 200
"""Clips of a set whose text is spelled anew; another tokenizer shows in the first few."""
NUM_PROMPTS = 2_000
"""Items of the data order whose prompts are compared with their targets."""
FEW, MANY = 0.01, 0.2
"""Up to few, some clips that stand twice explain it; from many on, training would learn it."""


def spelling_findings(clips: ClipSet, spell: Spell) -> list[Finding]:
    """Whether the ids spell the texts. A tokenizer of the same size with other pieces shows in nothing else."""
    places = [clip for clip in range(len(clips)) if clips.infos[clip].text.strip()]
    step = max(1, len(places) // NUM_SPELLED)
    compared = places[::step][:NUM_SPELLED]
    different = [clip for clip in compared if clips.text_ids(clip).tolist() != list(spell(clips.infos[clip].text))]
    if not different:
        return []
    first = clips.infos[different[0]].text
    ids, spelled = clips.text_ids(different[0]).tolist(), list(spell(first))
    at = next((at for at, (one, other) in enumerate(zip(ids, spelled, strict=False)) if one != other), None)
    shown = f"id {ids[at]} at place {at}, spelled {spelled[at]}" if at is not None else f"{len(ids)} ids"
    names = named_clips([clips.infos[clip].id for clip in different])
    text = f"{len(different):,} of {len(compared):,} texts are spelled otherwise: {names}"
    text += f" (the first: {first!r:.80}, {shown})"
    level: Level = "error" if len(different) > MANY * len(compared) else "warning"
    return [finding("clips-other-tokenizer", text, expected="0", where=clips.name, level=level)]


def id_counts(sets: Sequence[ClipSet], num_ids: int) -> NDArray[np.int64]:
    """How often each text id occurs in the clips of some sets; ids that have no row are told elsewhere."""
    counts = np.zeros(num_ids, dtype=np.int64)
    for clips in sets:
        for clip in range(len(clips)):
            ids = clips.text_ids(clip)
            np.add.at(counts, ids[(ids >= 0) & (ids < num_ids)], 1)
    return counts


def row_findings(sets: Sequence[ClipSet], base_pieces: int, num_new: int) -> list[Finding]:
    """New rows that no clip of the new language uses; a script is grafted whole, so that some is usual."""
    if not num_new:
        return []
    counts = id_counts(sets, base_pieces + num_new)
    unused = int(np.count_nonzero(counts[base_pieces:] == 0))
    where = ", ".join(clips.name for clips in sets)
    if unused == num_new:
        text = f"none of {int(counts.sum()):,} text ids is one of the {num_new:,} new rows"
        return [finding("text-off-new-rows", text, where=where)]
    if unused:
        text = f"{unused:,} of {num_new:,} new rows never occur in the data and stay as they are"
        return [finding("rows-unused", text, where=where)]
    return []


def prompt_findings(sets: Sequence[ClipSet], stream: Stream, num_items: int = NUM_PROMPTS) -> list[Finding]:
    """Items of the first pass whose voice comes from a clip with the very same codes: a recording that stands twice.

    A speaker's only clip, learnt with its own voice, is told by the data order itself.
    """
    items = list(_first_items(stream, num_items))
    copies = [item for item in items if item.prompt != (item.set, item.clip) and _is_copy(sets, item)]
    if not copies:
        return []
    names = [f"{_name(sets, item.set, item.clip)} by {_name(sets, *item.prompt)}" for item in copies]
    text = f"{len(copies):,} of {len(items):,} prompts have the codes of their target: {named_clips(names)}"
    share = len(copies) / len(items)
    level: Level = "error" if share >= MANY else "warning" if share >= FEW else "note"
    return [finding("prompt-is-target", text, expected="another recording", level=level)]


def _first_items(stream: Stream, num_items: int) -> Iterator[Item]:
    count = 0
    for step in range(1, int(stream.steps_per_epoch) + 2):
        for item in stream.step(step):
            yield item
            count += 1
        if count >= num_items:
            return


def _is_copy(sets: Sequence[ClipSet], item: Item) -> bool:
    where, prompt = item.prompt
    if prompt >= len(sets[where]):  # a place that lends a voice and has no codes
        return False
    own, others = sets[item.set], sets[where]
    same_length = own.num_codes[item.clip] == others.num_codes[prompt]
    return bool(same_length) and np.array_equal(own.codes(item.clip), others.codes(prompt))


def _name(sets: Sequence[ClipSet], where: int, clip: int) -> str:
    return sets[where].infos[clip].id
