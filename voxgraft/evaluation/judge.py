"""What models make of held-out recordings: losses, whether text and voice are used, and the pace of speech."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.asr import Transcript
from voxgraft.audio.files import encode_audio, resample
from voxgraft.checkpoints import Checkpoint, open_checkpoint
from voxgraft.checkpoints.tensors import read_stored_tensor
from voxgraft.core import rng
from voxgraft.dataset.held_out import HeldOutData
from voxgraft.dataset.sampler import DataSamplerOptions, list_samples
from voxgraft.dataset.shards import AnyArray, ClipDataset, Int32Array
from voxgraft.evaluation.audio import ReferenceRecording, SpeechRenderer, VoiceComparer
from voxgraft.evaluation.scores import (
    Score,
    ScoreRow,
    SpeakingPace,
    Transcriber,
    compute_error_rates,
    compute_sentence_errors,
    compute_stop_scores,
    measure_spoken_pace,
    score_without_interval,
    unmeasured_error_rates,
    unmeasured_score,
)
from voxgraft.evaluation.sentences import EvalSentence, SentenceSet, normalize_letters
from voxgraft.evaluation.synthesis import SpokenSentence, synthesize_sentences
from voxgraft.models.base import build_sequence
from voxgraft.models.speech_model import PackedBatch, compute_hidden_states, pack_batch
from voxgraft.synthesis.engine import SpeakingModel
from voxgraft.synthesis.voices import ReferenceVoice
from voxgraft.training.prefetch import BatchBuilder, kl_sum
from voxgraft.training.trainable import TrainableModel
from voxgraft.training.validation import Validator

LOSS_MEASURES = ("speech_loss", "text_loss", "text_use", "voice_use")
VALIDATION_MICROBATCH_TOKENS = 4_096


def compute_held_out_losses(system: SpeakingModel, held_out: HeldOutData, language: str) -> dict[str, Score]:
    """Losses of a system on the held-out recordings of a language, with what it makes of the text and the voice."""
    sets = held_out.sets.get(language)
    if not sets:
        return dict.fromkeys(LOSS_MEASURES, unmeasured_score(held_out.reason(language)))
    spelled = tuple(_RetokenizedClipSet(clips, system, language) for clips in sets)
    usable = tuple(clips for clips in spelled if len(clips))
    if not usable:
        why = f"{system.name} has no piece for any letter of the held-out texts"
        return dict.fromkeys(LOSS_MEASURES, unmeasured_score(why))
    order = DataSamplerOptions(
        min_prompt_seconds=held_out.min_prompt_seconds, num_conditioning=system.model.frame.num_conditioning
    )
    items = list_samples(usable, held_out.seed, order)
    examples = BatchBuilder(system.family, system.model, usable)
    found = Validator(
        TrainableModel(system.model, {}, system.gate),
        examples,
        items,
        VALIDATION_MICROBATCH_TOKENS,
        is_open=system.is_open(language),
    ).run()
    swapped = {
        "text_use": unmeasured_score("there are not two texts to swap"),
        "voice_use": unmeasured_score("there are not two speakers to swap"),
    }
    return {
        name: swapped[name]
        if (value := getattr(found, name)) is None
        else score_without_interval(value, found.num_clips)
        for name in LOSS_MEASURES
    }


def measure_recorded_pace(held_out: HeldOutData, language: str) -> float | None:
    """Seconds that a letter of the language takes in the held-out recordings, in the middle; None without any."""
    paces = []
    for clips in held_out.sets.get(language, ()):
        for place in range(len(clips)):
            count = len(normalize_letters(clips.infos[place].text, language))
            if count:
                paces.append(float(clips.num_codes[place]) / clips.header.code_hz / count)
    return median(paces) if paces else None


class _RetokenizedClipSet(ClipDataset):
    """The clips of a set as a system reads their texts: the base alone has no rows for a grown tokenizer's ids.

    Clips whose text it cannot read at all are left out. Voices that a set brings along stay behind its clips.
    """

    def __init__(self, whole: ClipDataset, system: SpeakingModel, language: str) -> None:
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

    def text_ids(self, clip: int) -> Int32Array:
        return self._ids[clip]

    def codes(self, clip: int) -> Int32Array:
        return self._whole.codes(self._places[clip])

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._whole.voice(self._places[clip])

    def prompt_of(self, clip: int) -> int | None:
        given = self._whole.prompt_of(self._places[clip])
        return None if given is None else self._moved.get(given)


PROOF_BATCH_SIZE = 16
"""Utterances in one pack."""


@dataclass(frozen=True, slots=True)
class LanguageRetention:
    """What one base language has kept: logits over all positions of what the base said, and the codes themselves."""

    language: str
    equal: bool | None
    """None where it could not be measured; `why` tells."""
    largest_difference: float | None
    positions: int
    same_codes: int
    spoken: int
    kl: Score
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__ if name not in ("kl", "language")}
        return {**values, "kl": self.kl.to_json()}


@dataclass(frozen=True, slots=True)
class BaseValueChange:
    """How many values of the base's tensors are others than they were."""

    changed: int
    total: int
    tensors: tuple[str, ...]
    """The tensors that have changed."""
    compared: str
    """What was held against what, in words."""

    def to_json(self) -> dict[str, Any]:
        return {"changed": self.changed, "total": self.total, "tensors": list(self.tensors), "compared": self.compared}


def compare_base_values(base: SpeakingModel, after: SpeakingModel) -> BaseValueChange:
    """Compare every tensor of the base with the same one now, bit for bit; new rows do not count.

    Two checkpoints are compared as they are stored: in memory both may be rounded, and small changes lost. What has no
    checkpoint of its own is the base's, opened from the same file, and is compared where it computes.
    """
    spare, names = base.model.spare_rows, list(base.model.state_dict())
    if base.checkpoint is None or after.checkpoint is None:
        old, now = base.model.state_dict(), after.model.state_dict()
        dtype = str(next(base.model.parameters()).dtype).removeprefix("torch.")
        compared = f"the base as it computes alone and as it computes with {after.name}, in memory, in {dtype}"
        return _count_changes(names, old.__getitem__, now.get, spare, compared)
    with open_checkpoint(base.checkpoint) as one, open_checkpoint(after.checkpoint) as two:
        compared = f"{one.path.name} of the base and {two.path.name} of {after.name}, both as they are stored"
        return _count_changes(
            names, partial(_read_stored_tensor, one), partial(_read_stored_tensor, two), spare, compared
        )


def _count_changes(
    names: Sequence[str],
    old: Callable[[str], Tensor | None],
    new: Callable[[str], Tensor | None],
    spare_rows: int,
    compared: str,
) -> BaseValueChange:
    changed, total, tensors = 0, 0, []
    for name in names:
        was, now = old(name), new(name)
        assert was is not None
        total += was.numel()
        count = was.numel() if now is None else _count_different_values(was, now, spare_rows)
        changed += count
        tensors += [name] if count else []
    return BaseValueChange(changed, total, tuple(tensors), compared)


def _read_stored_tensor(checkpoint: Checkpoint, name: str) -> Tensor | None:
    return read_stored_tensor(checkpoint, name) if name in checkpoint.tensors else None


@torch.no_grad()
def measure_retention(
    base: SpeakingModel, after: SpeakingModel, before: Sequence[SpokenSentence], now: Sequence[SpokenSentence]
) -> LanguageRetention:
    """Whether a base language is spoken as before. `before` and `now` are what both said of the same sentences."""
    language = before[0].sentence.language if before else ""
    usable = [one for one in before if one.codes]
    same = sum(old.codes == new.codes for old, new in zip(before, now, strict=True) if old.codes is not None)
    if not usable:
        why = "the base could not say a sentence"
        return LanguageRetention(language, None, None, 0, same, 0, unmeasured_score(why), why)
    equal, largest, positions, kl = True, 0.0, 0, 0.0
    for first in range(0, len(usable), PROOF_BATCH_SIZE):
        some = usable[first : first + PROOF_BATCH_SIZE]
        old_hidden, old = _compute_speech_logits(base, _build_proof_batch(base, some), language)
        new_hidden, new = _compute_speech_logits(after, _build_proof_batch(after, some), language)
        equal = equal and torch.equal(old, new)
        largest = max(largest, float((old.float() - new.float()).abs().max()))
        positions += len(old)
        kl += float(kl_sum(after.model.speech_logits, new_hidden, base.model.speech_logits, old_hidden, chunk=None))
    return LanguageRetention(
        language, equal, largest, positions, same, len(usable), score_without_interval(kl / positions, positions)
    )


def _build_proof_batch(system: SpeakingModel, said: Sequence[SpokenSentence]) -> PackedBatch:
    """What the base said, to be said again: text as this system reads it, voice and codes as they were."""
    frame, language = system.model.frame, said[0].sentence.language
    layouts = [build_sequence(frame, system.ids(one.sentence.text, language), one.codes) for one in said]
    return pack_batch(system.model, layouts, [system.family.condition(one.voice.clip) for one in said])


def _compute_speech_logits(system: SpeakingModel, batch: PackedBatch, language: str) -> tuple[Tensor, Tensor]:
    with system.set_gate_for(language):
        hidden = compute_hidden_states(system.model, batch)[batch.speech.scored]
        return hidden, system.model.speech_logits(hidden)


def _count_different_values(old: Tensor, new: Tensor, spare_rows: int) -> int:
    """Values that differ in any bit. Where rows were added, the base's own stand first, and spare ones last."""
    if old.shape == new.shape:
        return sum(_count_different_bits(old, new))
    if old.shape[1:] != new.shape[1:] or len(new) < len(old):
        return old.numel()
    own = len(old) - spare_rows
    parts = [(old[:own], new[:own]), (old[own:], new[len(new) - spare_rows :] if spare_rows else new[:0])]
    return sum(count for one, two in parts for count in _count_different_bits(one, two))


def _count_different_bits(old: Tensor, new: Tensor) -> Iterator[int]:
    """In the wider of the two types, if they are kept in two: what one of them cannot hold has changed."""
    if old.numel():
        wide = torch.promote_types(old.dtype, new.dtype)
        whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[wide.itemsize]
        yield int((old.to(wide).contiguous().view(whole) != new.to(wide).contiguous().view(whole)).sum())


Wave = NDArray[np.float32]
WHO_BEFORE, WHO_AFTER, WHO_SHUFFLED, WHO_ORIGINAL = "before", "after", "shuffled", "original"
CONTROL_TITLE = "control: held against other sentences"
IS_BASE_REASON = "this is the base"
NEW_LANGUAGE_KL_REASON = "the base is not changed by the new language: it is compared in its own languages"


@dataclass(frozen=True, slots=True)
class EvaluatedUtterance:
    """One sentence as one system said it, for whoever looks or listens."""

    sentence: EvalSentence
    who: str
    voice: str
    seconds: float
    stopped: bool
    num_codes: int | None
    heard: Transcript | None
    errors: Mapping[str, float | None]
    wav: bytes | None = None
    """Only of a few, which are played in the report."""
    why: str = ""
    ids: tuple[int, ...] = ()
    """Text tokens that the model was given; none for a recording."""


@dataclass
class Evaluation:
    """Everything that was measured."""

    language: str | None
    """The new one, if there is one."""
    rows: list[ScoreRow] = field(default_factory=list)
    kept: list[LanguageRetention] = field(default_factory=list)
    change: BaseValueChange | None = None
    utterances: list[EvaluatedUtterance] = field(default_factory=list)
    paces: dict[str, str] = field(default_factory=dict)
    """By language: what lengths are held against, in words."""

    def row(self, language: str, who: str) -> ScoreRow | None:
        return next((row for row in self.rows if (row.language, row.who) == (language, who)), None)

    def add(self, row: ScoreRow | None) -> None:
        """One more row, behind those of its language; none is none."""
        if row is not None:
            order = [*self.languages, row.language]
            self.rows = sorted([*self.rows, row], key=lambda one: order.index(one.language))

    @property
    def languages(self) -> list[str]:
        """The new one first."""
        return list(dict.fromkeys(row.language for row in self.rows))


@dataclass(frozen=True)
class _SystemSpeech:
    """What one system said of one language, as far as it got."""

    said: Sequence[SpokenSentence]
    waves: Sequence[Wave] | None
    heard: Sequence[Transcript] | None


def _is_same_speech(one: SpokenSentence, other: SpokenSentence) -> bool:
    """Whether two utterances in one voice sound the same. Behind an adapter equal codes may have other latents."""
    if one.codes != other.codes or (one.latents is None) != (other.latents is None):
        return False
    return one.latents is None or other.latents is None or np.array_equal(one.latents, other.latents)


@dataclass
class Evaluator:
    """Who is judged, and with what."""

    base: SpeakingModel
    after: SpeakingModel
    sentences: Mapping[str, SentenceSet]
    voices: Sequence[ReferenceVoice]
    sound: SpeechRenderer
    ear: Transcriber
    voice_comparer: VoiceComparer
    held_out: HeldOutData
    seed: int = 0
    players: int = 8
    originals: Mapping[str, Sequence[ReferenceRecording]] = field(default_factory=dict)
    """Recordings of the sentences by language, to be played beside what was spoken."""

    def run(self) -> Evaluation:
        """All languages, the new one first."""
        language = self.after.spelling.language
        found = Evaluation(language, change=compare_base_values(self.base, self.after))
        order = sorted(self.sentences, key=lambda name: (name != language, list(self.sentences).index(name)))
        for name in order:
            self._language(found, name)
        return found

    def _language(self, found: Evaluation, language: str) -> None:
        is_new = language == found.language
        sentences = self.sentences[language].sentences
        before = self._spoken(self.base, sentences, f"the base, {language}")
        after = self._spoken(self.after, sentences, f"{self.after.name}, {language}", like=before)
        pace = self._find_usual_pace(language, before.said, is_new)
        found.paces[language] = _describe_pace(pace, is_new)
        kept = None if is_new else measure_retention(self.base, self.after, before.said, after.said)
        found.kept += [kept] if kept else []
        found.rows.append(ScoreRow(language, WHO_BEFORE, "base", self._compute_scores(self.base, before, pace, None)))
        scores = self._compute_scores(self.after, after, pace, None if is_new else before.said)
        scores["kl"] = kept.kl if kept else unmeasured_score(NEW_LANGUAGE_KL_REASON)
        found.rows.append(ScoreRow(language, WHO_AFTER, self.after.name, scores))
        if is_new and after.heard is not None:
            found.rows.append(
                ScoreRow(language, WHO_SHUFFLED, CONTROL_TITLE, self._compute_control_scores(sentences, after.heard))
            )
        found.utterances += [*self._build_utterances(before, WHO_BEFORE), *self._build_utterances(after, WHO_AFTER)]
        found.utterances += self._build_originals(language, [one.sentence for one in after.said])

    def _spoken(
        self, system: SpeakingModel, sentences: Sequence[EvalSentence], who: str, like: _SystemSpeech | None = None
    ) -> _SystemSpeech:
        """Said, sounded and heard. The same codes in the same voice are the same sound, and are not heard twice."""
        said = synthesize_sentences(system, sentences, self.voices, self.seed, who, latents=self.sound.needs_latents)
        if self.sound.vocoder is None:
            return _SystemSpeech(said, None, None)
        if like is not None and all(map(_is_same_speech, said, like.said)):
            return _SystemSpeech(said, like.waves, like.heard)
        waves = self.sound.waves(said, who)
        language = sentences[0].language
        deaf = self.ear.why_unsupported(language)
        return _SystemSpeech(said, waves, None if deaf else self.ear.hear(waves, self.sound.rate, language, who))

    def _compute_scores(
        self,
        system: SpeakingModel,
        spoken: _SystemSpeech,
        pace: SpeakingPace | None,
        before: Sequence[SpokenSentence] | None,
    ) -> dict[str, Score]:
        language = spoken.said[0].sentence.language
        scores = self._errors(spoken, language)
        scores |= compute_stop_scores(spoken.said, pace, before, self.seed)
        if spoken.waves is None:
            scores["likeness"] = unmeasured_score(self.sound.why)
        else:
            scores["likeness"] = self.voice_comparer.score_similarity(
                spoken.said, spoken.waves, self.sound.rate, self.seed
            )
        scores |= compute_held_out_losses(system, self.held_out, language)
        scores["kl"] = unmeasured_score(IS_BASE_REASON)
        return scores

    def _errors(self, spoken: _SystemSpeech, language: str) -> dict[str, Score]:
        if spoken.heard is None:
            return unmeasured_error_rates(self.sound.why or self.ear.why_unsupported(language))
        return compute_error_rates([one.sentence for one in spoken.said], spoken.heard, self.seed)

    def _compute_control_scores(
        self, sentences: Sequence[EvalSentence], heard: Sequence[Transcript]
    ) -> dict[str, Score]:
        if len(sentences) < 2:
            return unmeasured_error_rates("there is no other sentence to hold it against")
        return compute_error_rates(_shuffle_sentences(sentences, self.seed), heard, self.seed)

    def _find_usual_pace(self, language: str, before: Sequence[SpokenSentence], is_new: bool) -> SpeakingPace | None:
        recorded = measure_recorded_pace(self.held_out, language)
        if recorded is not None:
            return SpeakingPace(recorded, "the held-out recordings")
        return None if is_new else measure_spoken_pace(before)

    def _choose_played(self, count: int) -> set[int]:
        """Places of the sentences that the report plays."""
        some = count > self.players
        return {at * count // self.players for at in range(self.players)} if some else set(range(count))

    def _build_originals(self, language: str, sentences: Sequence[EvalSentence]) -> list[EvaluatedUtterance]:
        """Recordings of the sentences that are played, at no higher rate than the speech beside them."""
        recorded = {one.sentence: one for one in self.originals.get(language, ())}
        made = []
        for at in sorted(self._choose_played(len(sentences))):
            if (one := recorded.get(sentences[at])) is None or self.sound.vocoder is None:
                continue
            rate = min(one.rate, self.sound.rate)
            wav = encode_audio(resample(one.wave, one.rate, rate), rate)
            seconds = len(one.wave) / one.rate
            made.append(EvaluatedUtterance(sentences[at], WHO_ORIGINAL, "", seconds, True, None, None, {}, wav))
        return made

    def _build_utterances(self, spoken: _SystemSpeech, who: str) -> list[EvaluatedUtterance]:
        played = self._choose_played(len(spoken.said))
        made = []
        for at, one in enumerate(spoken.said):
            heard = spoken.heard[at] if spoken.heard is not None else None
            errors = compute_sentence_errors(one.sentence, heard) if heard is not None else {}
            wave = spoken.waves[at] if spoken.waves is not None and at in played else None
            wav = encode_audio(wave, self.sound.rate) if wave is not None and len(wave) else None
            num_codes = None if one.codes is None else len(one.codes)
            made.append(
                EvaluatedUtterance(
                    one.sentence,
                    who,
                    one.voice.name,
                    one.seconds,
                    one.stopped,
                    num_codes,
                    heard,
                    errors,
                    wav,
                    one.why,
                    one.ids,
                )
            )
        return made


def _shuffle_sentences(sentences: Sequence[EvalSentence], seed: int) -> list[EvalSentence]:
    """Every sentence's place taken by another one: all are moved along a circle in an order by chance."""
    order = rng.hash_permutation(len(sentences), "shuffled", seed).tolist()
    moved = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [sentences[moved[at]] for at in range(len(sentences))]


def _describe_pace(pace: SpeakingPace | None, is_new: bool) -> str:
    if pace is None:
        return "there is nothing to know the usual length from"
    if is_new:
        return f"lengths are held against {pace.of}"
    return f"lengths are held against what the base says of the same sentence; cut-off speech is known by {pace.of}"
