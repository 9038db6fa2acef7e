"""The sets of a run out of what is encoded: ids by the run's own tokenizer, voices, clips in the manifest's order.

What is in a set already is taken from there, so that texts are spelled anew without any sound being read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from voxgraft import progress
from voxgraft.corpus.clips import Array, ClipInfo, ClipSet, Ids, MadeFrom, PreparedClip, Role, SetHeader
from voxgraft.corpus.set_header import read_set_file
from voxgraft.corpus.sets import open_set, write_set
from voxgraft.errors import Finding, GraftError, VoxgraftError, finding
from voxgraft.families.layout import Frame
from voxgraft.files import is_there
from voxgraft.preparing.batch_files import BatchFiles, EncodedClip
from voxgraft.preparing.choosing import WantedClip
from voxgraft.preparing.keys import FrontEnd
from voxgraft.preparing.ledger import Ledger
from voxgraft.run import RunFolder
from voxgraft.run_data import Wanted
from voxgraft.spelling import text_mark

__all__ = ["Encoded", "MadeSet", "SetMaker", "encoded_so_far"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Everything that is encoded: in the sets of an earlier `prepare`, and in batches that are in no set yet."""

    batches: BatchFiles
    in_sets: Mapping[str, tuple[ClipSet, int]] = field(default_factory=dict)
    failed: Mapping[str, Finding] = field(default_factory=dict)
    """What an earlier `prepare` found wrong with sound that is still the same."""

    def has(self, key: str) -> bool:
        return key in self.in_sets or key in self.batches.places or self.fault(key) is not None

    def fault(self, key: str) -> Finding | None:
        return self.batches.failed.get(key) or self.failed.get(key)

    def num_codes(self, key: str) -> int:
        """Of a clip that is there and has no fault."""
        if key in self.batches.places:
            return self.batches.places[key][3]
        clips, place = self.in_sets[key]
        return int(clips.num_codes[place])

    def clip(self, key: str) -> EncodedClip:
        if key in self.batches.places:
            return self.batches.clip(key)
        clips, place = self.in_sets[key]
        return EncodedClip(key, clips.infos[place].seconds, clips.codes(place), clips.voice(place))


def encoded_so_far(run: RunFolder, batches: BatchFiles, ledger: Ledger, front_end: FrontEnd) -> Encoded:
    """What need not be encoded. A set that is damaged, of another front end or not the ledger's counts for nothing."""
    in_sets: dict[str, tuple[ClipSet, int]] = {}
    keys = {record.id: record.key for record in ledger.clips.values() if record.key and record.set}
    for name, fingerprint in ledger.sets.items():
        if (clips := _set_of(run, name, fingerprint, front_end)) is not None:
            places = ((keys.get(info.id), place) for place, info in enumerate(clips.infos))
            in_sets |= {key: (clips, place) for key, place in places if key is not None}
    records = (record for record in ledger.clips.values() if record.key is not None)
    failed = {str(one.key): one.left_out for one in records if one.left_out and one.left_out.code in LASTING}
    return Encoded(batches, in_sets, failed)


def _set_of(run: RunFolder, name: str, fingerprint: str, front_end: FrontEnd) -> ClipSet | None:
    """The set that the ledger knows: in its place, or beside it where another has just been put into its place."""
    expected = {"made_from": {"base_sha256": front_end.base_sha256, "front_end": front_end.made_from}}
    for place in (run.data_set(name), run.data_set(f"{name}.previous")):
        try:
            if is_there(place) and read_set_file(place).fingerprint == fingerprint:
                return open_set(place, expected=expected, verify="hashes")
        except VoxgraftError:
            continue
    return None


LASTING = frozenset(
    (
        "audio-shape",
        "audio-scale",
        "audio-not-finite",
        "audio-too-short",
        "audio-too-long",
        "audio-silent",
        "sound-broken",
    )
)
"""Faults that lie in the sound itself: the same bytes have them again."""


@dataclass(frozen=True, slots=True)
class MadeSet:
    """A set as it is now, and the clips that could not go into it."""

    name: str
    clips: ClipSet
    left_out: Mapping[str, Finding]
    """By id."""
    is_new: bool
    """Whether it was written, or was there already with these very clips."""


@dataclass(frozen=True, slots=True)
class SetMaker:
    """Makes the sets of one run."""

    wanted: Wanted
    front_end: FrontEnd
    encoded: Encoded
    code_hz: float
    voices: Mapping[str, tuple[str, Mapping[str, Array]]]
    """By speaker, the name of the base's own voice and its arrays; empty where every voice is a recording."""

    def make(self, name: str, role: Role, clips: Sequence[tuple[WantedClip, str | None]]) -> MadeSet:
        """One set of clips with their keys (None: there is no sound). One that is as it should be is left alone."""
        left_out: dict[str, Finding] = {}
        fitting: list[tuple[WantedClip, str, Ids]] = []
        with progress.task(f"spelling {name}", len(clips)) as advance:
            for one, key in clips:
                ids, fault = self._looked_at(one, key)
                if fault is not None or key is None:
                    left_out[one.clip.id] = fault or _missing(one)
                else:
                    fitting.append((one, key, ids))
                advance(1)
        if not fitting:
            raise _nothing(name, self.wanted.run.data_set(name), left_out)
        header, place = self._header(role, fitting), self.wanted.run.data_set(name)
        there = _as_wanted(place, header)
        if there is None:
            write_set(place, header, self._prepared(name, fitting))
        return MadeSet(name, there or open_set(place), left_out, there is None)

    def _looked_at(self, one: WantedClip, key: str | None) -> tuple[Ids, Finding | None]:
        ids = np.asarray(self.wanted.spelling.encode(one.clip.text, self.wanted.language), dtype=np.int32)
        if key is None or not self.encoded.has(key):
            return ids, None if key is None else _missing(one)
        fault = self.encoded.fault(key)
        if fault is None and not any(map(str.isalnum, one.clip.text)):
            fault = finding("clips-no-content", f"nothing is said in the text {one.clip.text!r}", expected="words")
        return ids, fault or _fault(ids, self.encoded.num_codes(key), self.wanted.frame)

    def _header(self, role: Role, clips: Sequence[tuple[WantedClip, str, Ids]]) -> SetHeader:
        """What the set is made of is one hash, so that another `prepare` sees whether it would make the same."""
        digest = hashlib.sha256()
        for one, key, _ in clips:
            clip = one.clip
            voice = self.voices[clip.speaker][0] if self.voices else ""
            digest.update(json.dumps([clip.id, clip.speaker, clip.recording, clip.text, key, voice]).encode() + b"\n")
        card = self.wanted.graft.card
        settings = {"clips_sha256": digest.hexdigest()}
        text = text_mark(card.rules)
        made_from = MadeFrom(
            card.tokenizer_sha256, card.base["checkpoint_sha256"], self.front_end.made_from, settings, text
        )
        return SetHeader(card.family, card.language, role, self.code_hz, made_from)

    def _prepared(self, name: str, clips: Sequence[tuple[WantedClip, str, Ids]]) -> Iterator[PreparedClip]:
        with progress.task(f"writing {name}", len(clips)) as advance:
            for one, key, ids in clips:
                clip, encoded = one.clip, self.encoded.clip(key)
                info = ClipInfo(clip.id, clip.speaker, clip.recording, encoded.seconds, clip.text)
                voice = self.voices[clip.speaker][1] if self.voices else encoded.voice
                yield PreparedClip(info, ids, encoded.codes, voice)
                advance(1)


def _as_wanted(place: Path, header: SetHeader) -> ClipSet | None:
    if not is_there(place):
        return None
    try:
        clips = open_set(place)
    except VoxgraftError:
        return None
    return clips if clips.header == header else None


def _fault(ids: Ids, num_codes: int, frame: Frame) -> Finding | None:
    """What `train` would refuse in a clip."""
    barred = sorted(frame.barred_text.intersection(ids.tolist()))
    if not len(ids) or not num_codes:
        return finding("clips-no-content", f"{len(ids)} text ids and {num_codes} codes", expected="some of each")
    if len(ids) > frame.max_text:
        return finding("clips-too-long", f"{len(ids):,} text ids", expected=f"at most {frame.max_text:,}")
    if num_codes > frame.max_codes:
        return finding("clips-too-long", f"{num_codes:,} codes", expected=f"at most {frame.max_codes:,}")
    return finding("clips-text-barred", f"the text id {barred[0]}") if barred else None


def _nothing(name: str, place: Path, left_out: Mapping[str, Finding]) -> GraftError:
    first, item = next(iter(left_out.items()))
    found = f"all {len(left_out):,} clips for {name} are left out; the first, {first}: {item.code}, {item.found}"
    return GraftError("set-empty", found, where=place, cure=item.cure)


def _missing(one: WantedClip) -> Finding:
    return finding("file-missing", f"{one.path.name} is not there", where=one.path)
