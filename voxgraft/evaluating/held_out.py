"""Held-out recordings of a run, by language, and what two systems make of them: losses, and whether they are read.

Opens sets, never training ones. What cannot be opened is a reason, not an error: speech can be judged without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from voxgraft.corpus.clips import Array, ClipSet, Ids
from voxgraft.corpus.community import open_pairs, split_language
from voxgraft.corpus.sets import open_set
from voxgraft.corpus.stream import StreamOptions, items_of
from voxgraft.errors import VoxgraftError
from voxgraft.evaluating.forms import letters
from voxgraft.evaluating.rates import Score, single, unmeasured
from voxgraft.evaluating.systems import Place, System
from voxgraft.families.tensors import stored_shapes
from voxgraft.files import is_folder, is_there
from voxgraft.graft_folder import Graft
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.self_replay import NAME as SELF_REPLAY
from voxgraft.spelling import Spelling, text_mark
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.examples import Examples
from voxgraft.training.replay import parts_of
from voxgraft.training.validation import Validation

__all__ = ["HeldOut", "losses_of", "open_held_out", "pace_of"]

LOSSES = ("speech_loss", "text_loss", "text_use", "voice_use")
PACK_TOKENS = 4_096
NO_RUN = "no run was given, so there are no held-out recordings"


@dataclass
class HeldOut:
    """Sets by language; and by language, or of all (""), why there are none."""

    sets: dict[str, tuple[ClipSet, ...]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    min_prompt_seconds: float = 3.0
    seed: int = 0

    def reason(self, language: str) -> str:
        return self.why.get(language) or self.why.get("") or f"the run has no held-out recordings in {language}"

    @property
    def all_sets(self) -> list[ClipSet]:
        return [clips for sets in self.sets.values() for clips in sets]


def open_held_out(run: RunFolder, settings: RunSettings, place: Place, graft: Graft) -> HeldOut:
    """What a run holds out: of the new language, of base languages, and of what the base said itself."""
    held_out = HeldOut(min_prompt_seconds=settings.data.min_prompt_seconds, seed=settings.train.seed)
    opener = _Opener(place, graft)
    own = graft.card.language
    for path in settings.data.valid or (run.data_set("valid"),):
        opener.add(held_out, path, own)
    for path in settings.data.replay_valid:
        opener.add(held_out, path, None)
    made = run.data_set(SELF_REPLAY)
    if is_there(made):
        opener.add_self_made(held_out, made)
    return held_out


@dataclass(frozen=True, slots=True)
class _Opener:
    place: Place
    graft: Graft

    def add(self, held_out: HeldOut, path: Path, language: str | None) -> None:
        """One set; `language` is the new one's, or None for a set of a base language, which says itself."""
        try:
            clips = self._opened(path, language)
        except VoxgraftError as error:
            held_out.why[language or ""] = f"held-out recordings cannot be used: {error.finding.found}"
            return
        name = clips.header.language
        held_out.sets[name] = (*held_out.sets.get(name, ()), clips)

    def add_self_made(self, held_out: HeldOut, path: Path) -> None:
        try:
            _, parts = parts_of(open_set(path, expected=self._expected(None)))
        except VoxgraftError as error:
            held_out.why[""] = f"what the base said itself cannot be used: {error.finding.found}"
            return
        for language, clips in parts.items():
            held_out.sets.setdefault(language, (clips,))

    def _opened(self, path: Path, language: str | None) -> ClipSet:
        if is_folder(path) or split_language(str(path))[0].suffix != ".jsonl":
            return open_set(path, expected=self._expected(language))
        manifest, stated = split_language(str(path))
        base = open_tokenizer(self.place.files.tokenizer)
        spelling = Spelling.of(
            self.place.family, base, self.graft.tokenizer, self.graft.card.language, self.graft.card.rules
        )
        family, files = self.place.family, self.place.files
        frame = family.frame(self.graft.tokenizer.size, family.size_of(files, stored_shapes(files.checkpoint)))
        return open_pairs(
            manifest,
            lambda text: spelling.encode(text, language),
            frame,
            language=stated or language,
            role="valid",
            name=manifest.stem,
        )

    def _expected(self, language: str | None) -> dict[str, object]:
        card = self.graft.card
        tokenizer = card.tokenizer_sha256 if language else card.base["tokenizer_sha256"]
        text = text_mark(card.rules) if language else ""
        made_from = {"tokenizer_sha256": tokenizer, "base_sha256": card.base["checkpoint_sha256"], "text": text}
        return {"family": card.family, **({"language": language} if language else {}), "made_from": made_from}


def losses_of(system: System, held_out: HeldOut, language: str) -> dict[str, Score]:
    """Losses of a system on the held-out recordings of a language, with what it makes of the text and the voice."""
    sets = held_out.sets.get(language)
    if not sets:
        return dict.fromkeys(LOSSES, unmeasured(held_out.reason(language)))
    spelled = tuple(_Respelled(clips, system, language) for clips in sets)
    usable = tuple(clips for clips in spelled if len(clips))
    if not usable:
        why = f"{system.name} has no piece for any letter of the held-out texts"
        return dict.fromkeys(LOSSES, unmeasured(why))
    order = StreamOptions(
        min_prompt_seconds=held_out.min_prompt_seconds, num_conditioning=system.model.frame.num_conditioning
    )
    items = items_of(usable, held_out.seed, order)
    examples = Examples(system.family, system.model, usable)
    found = Validation(system.trained, examples, items, PACK_TOKENS, is_open=system.is_open(language)).run()
    swapped = {
        "text_use": unmeasured("there are not two texts to swap"),
        "voice_use": unmeasured("there are not two speakers to swap"),
    }
    return {
        name: swapped[name] if (value := getattr(found, name)) is None else single(value, found.num_clips)
        for name in LOSSES
    }


def pace_of(held_out: HeldOut, language: str) -> float | None:
    """Seconds that a letter of the language takes in the held-out recordings, in the middle; None without any."""
    paces = []
    for clips in held_out.sets.get(language, ()):
        for place in range(len(clips)):
            count = len(letters(clips.infos[place].text, language))
            if count:
                paces.append(float(clips.num_codes[place]) / clips.header.code_hz / count)
    return median(paces) if paces else None


class _Respelled(ClipSet):
    """The clips of a set as a system reads their texts: the base alone has no rows for a grown tokenizer's ids.

    Clips whose text it cannot read at all are left out. Voices that a set brings along stay behind its clips.
    """

    def __init__(self, whole: ClipSet, system: System, language: str) -> None:
        self._whole, self.name, self.header = whole, whole.name, whole.header
        spelled = {at: system.ids(whole.infos[at].text, language) for at in range(len(whole))}
        most = system.model.frame.max_text
        clips = [at for at, ids in spelled.items() if 0 < len(ids) <= most]
        self._ids = [np.asarray(spelled[at], dtype=np.int32) for at in clips]
        lending = range(len(whole), len(whole.infos))
        self._places = [*clips, *lending]
        self._moved: Mapping[int, int] = {place: at for at, place in enumerate(self._places)}
        self.infos = [whole.infos[place] for place in self._places]
        self.num_text = np.array([len(ids) for ids in self._ids], dtype=np.int64)
        self.num_codes = whole.num_codes[clips]
        self.fingerprint = whole.fingerprint

    def text_ids(self, clip: int) -> Ids:
        return self._ids[clip]

    def codes(self, clip: int) -> Ids:
        return self._whole.codes(self._places[clip])

    def voice(self, clip: int) -> dict[str, Array]:
        return self._whole.voice(self._places[clip])

    def prompt_of(self, clip: int) -> int | None:
        given = self._whole.prompt_of(self._places[clip])
        return None if given is None else self._moved.get(given)
