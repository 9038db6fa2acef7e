"""When training needs replay that the base makes itself, and the set that holds it: reused if it fits, else made anew.

Sentences come from the user's texts of base languages, or from the built-in corpus. `training/replay.py` does the work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from voxgraft.corpus.clips import ClipDataset, DatasetHeader, DatasetProvenance
from voxgraft.corpus.sets import open_clip_dataset, write_clip_dataset
from voxgraft.errors import Finding, GraftError, TextError, VoxgraftError, finding
from voxgraft.families.base import BaseFiles
from voxgraft.families.layout import SequenceSpec
from voxgraft.families.opening import load_model
from voxgraft.files import path_exists
from voxgraft.graft_folder import Graft
from voxgraft.run import RunFolder
from voxgraft.run_settings import DataSettings
from voxgraft.spelling import TextEncoder
from voxgraft.text.texts import load_proof_corpus, read_user_corpus
from voxgraft.training.options import TrainModeOrBaseline
from voxgraft.training.processes import is_main_process
from voxgraft.training.replay import (
    SELF_REPLAY_ORIGIN,
    ReplayGenerator,
    ReplayUtterance,
    choose_voices,
    has_only_plain_ids,
    hash_utterances,
    plan_replay,
)

__all__ = ["SelfReplayBuilder", "resolve_self_replay_count"]

SELF_REPLAY_NAME = "self-replay"
DEFAULT_UTTERANCES = 400
SEVERAL_LANGUAGES = "mul"
"""ISO 639's own code for a collection in more than one language."""
MIN_SENTENCE_CHARACTERS, MAX_SENTENCE_CHARACTERS = 8, 200
"""Characters of a built-in sentence that is said: no single words, nothing longer than a breath or two."""
MAX_DROPPED_SHARE = 0.5
POLL_SECONDS = 1.0


def resolve_self_replay_count(data: DataSettings, mode: TrainModeOrBaseline) -> int:
    """How many utterances the base shall speak. Merged mode has replay unless the user says that there shall be none.

    The way of the seeds has no replay, and makes some only to be measured with, when it is asked to.
    """
    if mode not in ("merged", "as-in-the-seeds"):
        return 0
    if data.self_replay is not None:
        return data.self_replay
    needed = bool(data.replay_texts) or (mode == "merged" and not data.replay)
    return DEFAULT_UTTERANCES if needed else 0


@dataclass(frozen=True)
class SelfReplayBuilder:
    """What is needed to have the set: the run, its base, and whose voices are borrowed."""

    run: RunFolder
    data: DataSettings
    files: BaseFiles
    graft: Graft
    spelling: TextEncoder
    frame: SequenceSpec
    """Of the base alone."""
    seed: int

    @property
    def folder(self) -> Path:
        return self.run.data_set(SELF_REPLAY_NAME)

    def load_or_generate(
        self, count: int, train: Sequence[ClipDataset], device: str, dtype: torch.dtype
    ) -> tuple[ClipDataset, Finding]:
        """The set, and where it came from. One process makes it; the others wait until it is there."""
        utterances = self.plan(count)
        header = self._header(utterances)
        while not is_main_process() and self._fitting(header) is None:
            time.sleep(POLL_SECONDS)
        there = self._fitting(header)
        if there is not None:
            return there, finding("self-replay", f"{len(there):,} utterances that the base spoke before are used again")
        speaking = self._generate_set(utterances, header, train, (device, dtype))
        made = open_clip_dataset(self.folder, expected=asdict(header))
        return made, _self_replay_finding(speaking, utterances)

    def plan(self, count: int) -> list[ReplayUtterance]:
        """What is to be said, from the base's own spelling."""
        fits = partial(has_only_plain_ids, frame=self.frame, unknown_id=self.spelling.base.unknown_id)
        utterances = plan_replay(self._sentences(), self.spelling.encode, fits, count, self.seed)
        if not any(not one.held_out for one in utterances):
            where = ", ".join(map(str, self.data.replay_texts))
            raise TextError("replay-texts-empty", "no sentence that the base can spell", where=where)
        return utterances

    def _sentences(self) -> Iterator[tuple[str, str]]:
        family = self.spelling.family
        spoken = family.describe(self.files, self.spelling.base.size + family.spare_rows).languages
        known = frozenset(spoken) - {self.graft.card.language}
        if not self.data.replay_texts:
            yield from (
                pair
                for pair in load_proof_corpus()
                if pair[0] in known and MIN_SENTENCE_CHARACTERS <= len(pair[1]) <= MAX_SENTENCE_CHARACTERS
            )
            return
        for path in self.data.replay_texts:
            if path.stem not in known:
                expected = f"a base language as the name, such as en.txt: {', '.join(sorted(known))}"
                raise TextError("replay-text-language", f"{path.name} names no language", expected=expected, where=path)
        yield from ((language, text) for language, text in read_user_corpus(self.data.replay_texts, known) if language)

    def _header(self, utterances: Sequence[ReplayUtterance]) -> DatasetHeader:
        languages = sorted({one.language for one in utterances})
        family, card = self.spelling.family, self.graft.card
        settings: dict[str, Any] = {
            "sentences_sha256": hash_utterances(utterances),
            "sampling": asdict(family.stock_sampling()),
            "seed": self.seed,
        }
        made_from = DatasetProvenance(
            self.spelling.base.sha256, card.base["checkpoint_sha256"], {"codes": SELF_REPLAY_ORIGIN}, settings
        )
        language = languages[0] if len(languages) == 1 else SEVERAL_LANGUAGES
        return DatasetHeader(family.name, language, "replay", family.code_hz, made_from)

    def _fitting(self, header: DatasetHeader) -> ClipDataset | None:
        """The set that is there, if it is whole and what would be made now."""
        if not path_exists(self.folder):
            return None
        try:
            return open_clip_dataset(self.folder, expected=asdict(header))
        except VoxgraftError:
            return None

    def _generate_set(
        self,
        utterances: Sequence[ReplayUtterance],
        header: DatasetHeader,
        train: Sequence[ClipDataset],
        place: tuple[str, torch.dtype],
    ) -> ReplayGenerator:
        device, dtype = place
        model = load_model(self.spelling.family, self.files, device=device, dtype=dtype)
        voices = choose_voices(train, self.data.min_prompt_seconds, len(utterances), self.seed)
        speaking = ReplayGenerator(self.spelling.family, model, voices, self.seed)
        try:
            write_clip_dataset(self.folder, header, speaking.clips(utterances))
        except GraftError as error:
            raise GraftError.of(replace(error.finding, where=str(self.folder))) from None
        return speaking


def _self_replay_finding(speaking: ReplayGenerator, utterances: Sequence[ReplayUtterance]) -> Finding:
    languages = ", ".join(sorted({one.language for one in utterances}))
    found = f"{speaking.num_kept:,} utterances spoken by the base ({languages}), {speaking.num_dropped:,} left out"
    many = speaking.num_dropped >= MAX_DROPPED_SHARE * len(utterances)
    return finding("self-replay", f"{found} that did not come to an end", level="warning" if many else None)
