"""A part of a set, seen as a set of its own. Copies nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxgraft.corpus.clips import AnyArray, ClipDataset, DatasetRole, Int32Array

__all__ = ["DatasetSubset"]


class DatasetSubset(ClipDataset):
    """Some clips of a set in which all of a speaker's clips have one and the same voice.

    Each speaker's voice is lent by a place after the clips, as where a set brings its own prompts.
    """

    def __init__(self, whole: ClipDataset, clips: Sequence[int], name: str, role: DatasetRole, language: str) -> None:
        self._whole, self.name = whole, name
        self.header = replace(whole.header, role=role, language=language)
        lending: dict[str, int] = {}
        for clip in clips:
            lending.setdefault(whole.infos[clip].speaker, clip)
        speakers = {speaker: len(clips) + at for at, speaker in enumerate(lending)}
        self._prompts = [speakers[whole.infos[clip].speaker] for clip in clips]
        self._places = [*clips, *lending.values()]
        self.infos = [whole.infos[place] for place in self._places]
        self.num_text = whole.num_text[list(clips)]
        self.num_codes = whole.num_codes[list(clips)]
        self.fingerprint = whole.fingerprint

    def text_ids(self, clip: int) -> Int32Array:
        return self._whole.text_ids(self._places[clip])

    def codes(self, clip: int) -> Int32Array:
        """None for a place that only lends its voice."""
        return self._whole.codes(self._places[clip]) if clip < len(self) else np.zeros(0, dtype=np.int32)

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._whole.voice(self._places[clip])

    def shard_files(self) -> Mapping[Path, str]:
        return self._whole.shard_files()

    def prompt_of(self, clip: int) -> int:
        return self._prompts[clip]
