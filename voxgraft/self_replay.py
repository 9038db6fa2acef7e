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

from voxgraft.corpus.clips import ClipSet, MadeFrom, SetHeader
from voxgraft.corpus.sets import open_set, write_set
from voxgraft.errors import Finding, GraftError, TextError, VoxgraftError, finding
from voxgraft.families.base import BaseFiles
from voxgraft.families.layout import Frame
from voxgraft.families.opening import open_model
from voxgraft.files import is_there
from voxgraft.graft_folder import Graft
from voxgraft.run import RunFolder
from voxgraft.run_settings import DataSettings
from voxgraft.spelling import Spelling
from voxgraft.text.texts import proof_corpus, user_corpus
from voxgraft.training.options import Mode
from voxgraft.training.processes import is_first_of_all
from voxgraft.training.replay import (
    SELF_MADE,
    Speaking,
    Utterance,
    chosen_voices,
    is_plain,
    planned,
    sentences_sha256,
)

__all__ = ["SelfReplay", "num_self_made"]

NAME = "self-replay"
DEFAULT_UTTERANCES = 400
SEVERAL_LANGUAGES = "mul"
"""ISO 639's own code for a collection in more than one language."""
SHORTEST, LONGEST = 8, 200
"""Characters of a built-in sentence that is said: no single words, nothing longer than a breath or two."""
MANY_DROPPED = 0.5
LOOK_SECONDS = 1.0


def num_self_made(data: DataSettings, mode: Mode) -> int:
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
class SelfReplay:
    """What is needed to have the set: the run, its base, and whose voices are borrowed."""

    run: RunFolder
    data: DataSettings
    files: BaseFiles
    graft: Graft
    spelling: Spelling
    frame: Frame
    """Of the base alone."""
    seed: int

    @property
    def folder(self) -> Path:
        return self.run.data_set(NAME)

    def have(self, count: int, train: Sequence[ClipSet], device: str, dtype: torch.dtype) -> tuple[ClipSet, Finding]:
        """The set, and where it came from. One process makes it; the others wait until it is there."""
        utterances = self.plan(count)
        header = self._header(utterances)
        while not is_first_of_all() and self._fitting(header) is None:
            time.sleep(LOOK_SECONDS)
        there = self._fitting(header)
        if there is not None:
            return there, finding("self-replay", f"{len(there):,} utterances that the base spoke before are used again")
        speaking = self._speak(utterances, header, train, (device, dtype))
        made = open_set(self.folder, expected=asdict(header))
        return made, _told(speaking, utterances)

    def plan(self, count: int) -> list[Utterance]:
        """What is to be said, from the base's own spelling."""
        fits = partial(is_plain, frame=self.frame, unknown_id=self.spelling.base.unknown_id)
        utterances = planned(self._sentences(), self.spelling.encode, fits, count, self.seed)
        if not any(not one.held_out for one in utterances):
            where = ", ".join(map(str, self.data.replay_texts))
            raise TextError("replay-texts-empty", "no sentence that the base can spell", where=where)
        return utterances

    def _sentences(self) -> Iterator[tuple[str, str]]:
        family = self.spelling.family
        spoken = family.describe(self.files, self.spelling.base.size + family.spare_rows).languages
        known = frozenset(spoken) - {self.graft.card.language}
        if not self.data.replay_texts:
            yield from (pair for pair in proof_corpus() if pair[0] in known and SHORTEST <= len(pair[1]) <= LONGEST)
            return
        for path in self.data.replay_texts:
            if path.stem not in known:
                expected = f"a base language as the name, such as en.txt: {', '.join(sorted(known))}"
                raise TextError("replay-text-language", f"{path.name} names no language", expected=expected, where=path)
        yield from ((language, text) for language, text in user_corpus(self.data.replay_texts, known) if language)

    def _header(self, utterances: Sequence[Utterance]) -> SetHeader:
        languages = sorted({one.language for one in utterances})
        family, card = self.spelling.family, self.graft.card
        settings: dict[str, Any] = {
            "sentences_sha256": sentences_sha256(utterances),
            "sampling": asdict(family.stock_sampling()),
            "seed": self.seed,
        }
        made_from = MadeFrom(self.spelling.base.sha256, card.base["checkpoint_sha256"], {"codes": SELF_MADE}, settings)
        language = languages[0] if len(languages) == 1 else SEVERAL_LANGUAGES
        return SetHeader(family.name, language, "replay", family.code_hz, made_from)

    def _fitting(self, header: SetHeader) -> ClipSet | None:
        """The set that is there, if it is whole and what would be made now."""
        if not is_there(self.folder):
            return None
        try:
            return open_set(self.folder, expected=asdict(header))
        except VoxgraftError:
            return None

    def _speak(
        self,
        utterances: Sequence[Utterance],
        header: SetHeader,
        train: Sequence[ClipSet],
        place: tuple[str, torch.dtype],
    ) -> Speaking:
        device, dtype = place
        model = open_model(self.spelling.family, self.files, device=device, dtype=dtype)
        voices = chosen_voices(train, self.data.min_prompt_seconds, len(utterances), self.seed)
        speaking = Speaking(self.spelling.family, model, voices, self.seed)
        try:
            write_set(self.folder, header, speaking.clips(utterances))
        except GraftError as error:
            raise GraftError.of(replace(error.finding, where=str(self.folder))) from None
        return speaking


def _told(speaking: Speaking, utterances: Sequence[Utterance]) -> Finding:
    languages = ", ".join(sorted({one.language for one in utterances}))
    found = f"{speaking.num_kept:,} utterances spoken by the base ({languages}), {speaking.num_dropped:,} left out"
    many = speaking.num_dropped >= MANY_DROPPED * len(utterances)
    return finding("self-replay", f"{found} that did not come to an end", level="warning" if many else None)
