"""Self-made replay: what the frozen base says for given sentences, kept as an ordinary dataset.

Everything random is a function of the seed and the sentence. An utterance that did not end on its own is left out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from voxgraft.config.run import DataSettings
from voxgraft.config.train_options import TrainModeOrBaseline
from voxgraft.core import progress, rng
from voxgraft.core.errors import Finding, GraftError, TextError, VoxgraftError, finding
from voxgraft.core.files import path_exists
from voxgraft.core.run import RunFolder
from voxgraft.dataset.run_data import HELD_OUT_RECORDING, SELF_REPLAY_NAME, SELF_REPLAY_ORIGIN, TRAIN_RECORDING
from voxgraft.dataset.sets import count_trailing_run, open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import ClipDataset, DatasetHeader, DatasetProvenance
from voxgraft.graft.folder import Graft
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, Clip, Family, SequenceSpec
from voxgraft.models.speech_model import SpeechModel, load_model
from voxgraft.synthesis.engine import SynthesisEngine, SynthesisRequest, draw_seed
from voxgraft.synthesis.inputs import ReferenceVoice, choose_voices
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import load_proof_corpus, read_user_corpus
from voxgraft.tokenizers.prove import UNREAD_CODES
from voxgraft.training.distributed import is_main_process

# One utterance in so many is held out.
HELD_OUT_ONE_IN = 8
DEFAULT_UTTERANCES = 400
# ISO 639's own code for a collection in more than one language.
SEVERAL_LANGUAGES = "mul"
# Characters of a built-in sentence: no single words, nothing longer than a breath or two.
MIN_SENTENCE_CHARACTERS, MAX_SENTENCE_CHARACTERS = 8, 200
MAX_DROPPED_SHARE = 0.5
POLL_SECONDS = 1.0
# Text and language to ids of the base.
EncodeTextFunction = Callable[[str, str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class ReplayUtterance:
    """One sentence to be spoken."""

    id: str
    language: str
    text: str
    text_ids: tuple[int, ...]
    held_out: bool


def plan_replay(
    sentences: Iterable[tuple[str, str]],
    encode: EncodeTextFunction,
    is_plain: Callable[[Sequence[int]], bool],
    count: int,
    seed: int,
) -> list[ReplayUtterance]:
    """About `count` utterances, as many of each language, one in eight held out by its sentence.

    Of every language sentences are taken in an order by chance; those whose ids are not plain text are passed by. Where
    there are fewer sentences than asked for, those that are trained on are spoken again, by other voices.
    """
    by_language: dict[str, dict[str, None]] = {}
    for language, text in sentences:
        by_language.setdefault(language, {})[text] = None
    found: list[ReplayUtterance] = []
    for language, texts in sorted(by_language.items()):
        num_utterances = max(1, round(count / len(by_language)))
        order = sorted(texts, key=lambda text: rng.hash_int("self-replay", seed, language, text))
        spelled = ((text, tuple(encode(text, language))) for text in order)
        usable = list(islice(((text, ids) for text, ids in spelled if is_plain(ids)), num_utterances))
        num_held_out = max(1, min(num_utterances, len(usable)) // HELD_OUT_ONE_IN) if len(usable) > 1 else 0
        train_pairs = islice(cycle(usable[num_held_out:]), num_utterances - num_held_out)
        chosen = [*((pair, True) for pair in usable[:num_held_out]), *((pair, False) for pair in train_pairs)]
        found += [
            ReplayUtterance(f"{language}-{number:05d}", language, text, ids, held_out)
            for number, ((text, ids), held_out) in enumerate(chosen)
        ]
    return found


class ReplayGenerator:
    """The base saying utterances; afterwards, how many were kept and how many were not."""

    def __init__(self, family: Family, model: SpeechModel, voices: Sequence[ReferenceVoice], seed: int) -> None:
        self.family, self.model, self.voices, self.seed = family, model, voices, seed
        sampling = family.upstream_sampling()
        self.sampling = replace(sampling, max_codes=min(sampling.max_codes, model.spec.max_codes))
        self.num_kept = self.num_dropped = 0

    def clips(self, utterances: Sequence[ReplayUtterance]) -> Iterator[Clip]:
        """Every utterance that came to its end. All of a speaker share one voice, that of the prompt.

        An error when none of the first ones does: such a base cannot teach itself.
        """
        voiced = [(utterance, self.voices[index % len(self.voices)]) for index, utterance in enumerate(utterances)]
        # The base has no gate, so all languages are batched together.
        requests = [
            SynthesisRequest(
                utterance.text_ids,
                self.family.condition(voice.clip),
                draw_seed("speak", self.seed, utterance.id, utterance.text),
                max_codes=self.sampling.max_codes,
                language="",
                sort_key=(len(utterance.text_ids), utterance.id),
            )
            for utterance, voice in voiced
        ]
        with progress.progress_task("speaking replay with the base", len(requests)) as advance:
            for batch in SynthesisEngine(self.model, self.sampling).iterate(requests):
                for index, result in batch:
                    utterance, voice = voiced[index]
                    codes = np.asarray(result.codes, dtype=np.int32)
                    # A code that repeats for a second at the end is no speech, even if the model stopped on its own.
                    if not result.ended or not len(codes) or count_trailing_run(codes) >= self.family.code_hz:
                        self.num_dropped += 1
                        continue
                    self.num_kept += 1
                    recording = HELD_OUT_RECORDING if utterance.held_out else TRAIN_RECORDING
                    seconds, arrays = len(codes) / self.family.code_hz, voice.clip.voice
                    yield Clip(
                        codes, arrays, utterance.text_ids, utterance.id, voice.name, recording, seconds, utterance.text
                    )
                advance(len(batch))
                if not self.num_kept:
                    found = f"all {self.num_dropped:,} utterances of the base reached the length limit"
                    raise GraftError("self-replay-runaway", found, expected="utterances that end")


def resolve_self_replay_count(data: DataSettings, mode: TrainModeOrBaseline) -> int:
    """How many utterances the base speaks. Merged mode has replay unless the user says that there is none.

    The masked-finetune baseline has no replay; it makes some only to be measured with, when the user asks for it.
    """
    if mode not in ("merged", "masked-finetune"):
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
    text_encoder: TextEncoder
    spec: SequenceSpec
    """Of the base alone."""
    seed: int

    @property
    def family(self) -> Family:
        return get_family(self.graft.card.family)

    @property
    def folder(self) -> Path:
        return self.run.data_set(SELF_REPLAY_NAME)

    def load_or_generate(
        self, count: int, train: Sequence[ClipDataset], device: str, dtype: torch.dtype
    ) -> tuple[ClipDataset, Finding]:
        """The set, and where it came from. One process makes it; the others wait until it exists."""
        utterances = self.plan(count)
        header = self._header(utterances)
        while not is_main_process() and self._fitting(header) is None:
            time.sleep(POLL_SECONDS)
        existing = self._fitting(header)
        if existing is not None:
            return existing, finding("self-replay", f"{len(existing):,} earlier utterances of the base are used again")
        model = load_model(self.family, self.files, device=device, dtype=dtype)
        voices = choose_voices(train, self.data.min_prompt_seconds, len(utterances), self.seed)
        generator = ReplayGenerator(self.family, model, voices, self.seed)
        try:
            write_clip_dataset(self.folder, header, generator.clips(utterances))
        except GraftError as error:
            raise GraftError.of(replace(error.finding, where=str(self.folder))) from None
        dataset = open_clip_dataset(self.folder, expected=asdict(header))
        languages = ", ".join(sorted({utterance.language for utterance in utterances}))
        found = f"{generator.num_kept:,} utterances spoken by the base ({languages})"
        found += f"; {generator.num_dropped:,} left out because they did not end"
        level: Literal["warning"] | None = None
        if generator.num_dropped >= MAX_DROPPED_SHARE * len(utterances):
            level = "warning"
        return dataset, finding("self-replay", found, level=level)

    def plan(self, count: int) -> list[ReplayUtterance]:
        """What is to be spoken, from the base's own spelling."""
        spec = self.spec
        forbidden_ids = spec.forbidden_text_ids | {self.text_encoder.base.unknown_id, spec.text_start, spec.text_stop}

        def is_plain(ids: Sequence[int]) -> bool:
            return 0 < len(ids) <= spec.max_text and forbidden_ids.isdisjoint(ids)

        def encode(text: str, language: str) -> Sequence[int]:
            """No ids for a sentence that the base's own program cannot read, such as digits in XTTS's Hindi."""
            try:
                return self.text_encoder.encode(text, language)
            except VoxgraftError as error:
                if error.finding.code not in UNREAD_CODES:
                    raise
                return ()

        utterances = plan_replay(self._sentences(), encode, is_plain, count, self.seed)
        if not any(not utterance.held_out for utterance in utterances):
            where = ", ".join(map(str, self.data.replay_texts))
            raise TextError("replay-texts-empty", "no sentence can be used", where=where)
        return utterances

    def _sentences(self) -> Iterator[tuple[str, str]]:
        family = self.family
        languages = family.describe(self.files, self.text_encoder.base.size + family.spare_rows).languages
        known = frozenset(languages) - {self.graft.card.language}
        if not self.data.replay_texts:
            yield from (
                pair
                for pair in load_proof_corpus()
                if pair[0] in known and MIN_SENTENCE_CHARACTERS <= len(pair[1]) <= MAX_SENTENCE_CHARACTERS
            )
            return
        for path in self.data.replay_texts:
            if path.stem not in known:
                expected = f"a file name such as en.txt, with one of {', '.join(sorted(known))}"
                raise TextError(
                    "replay-text-language",
                    f"{path.stem!r} is not a language of the base",
                    expected=expected,
                    where=path,
                )
        yield from ((language, text) for language, text in read_user_corpus(self.data.replay_texts, known) if language)

    def _header(self, utterances: Sequence[ReplayUtterance]) -> DatasetHeader:
        languages = sorted({utterance.language for utterance in utterances})
        family, card = self.family, self.graft.card
        sentence_list = "".join(f"{utterance.id}\t{utterance.text}\t{utterance.held_out}\n" for utterance in utterances)
        settings: dict[str, Any] = {
            "sentences_sha256": hashlib.sha256(sentence_list.encode()).hexdigest(),
            "sampling": asdict(family.upstream_sampling()),
            "seed": self.seed,
        }
        made_from = DatasetProvenance(
            self.text_encoder.base.sha256, card.base["checkpoint_sha256"], {"codes": SELF_REPLAY_ORIGIN}, settings
        )
        language = languages[0] if len(languages) == 1 else SEVERAL_LANGUAGES
        return DatasetHeader(family.name, language, "replay", family.code_hz, made_from)

    def _fitting(self, header: DatasetHeader) -> ClipDataset | None:
        """The set that exists, if it is whole and what would be made now."""
        if not path_exists(self.folder):
            return None
        try:
            return open_clip_dataset(self.folder, expected=asdict(header))
        except VoxgraftError:
            return None
