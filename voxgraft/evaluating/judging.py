"""Two systems judged side by side: every language spoken by both, listened to, scored, and held against each other.

Takes what is opened already and gives an `Evaluation`; reads no settings and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.resample import resample
from voxgraft.audio.wav import encode_wav
from voxgraft.corpus import chance
from voxgraft.evaluating.hearing import Transcriber, compute_error_rates, compute_sentence_errors
from voxgraft.evaluating.held_out import HeldOutData, compute_held_out_losses, measure_recorded_pace
from voxgraft.evaluating.marks import ReferenceRecording
from voxgraft.evaluating.proofs import BaseValueChange, LanguageRetention, compare_base_values, measure_retention
from voxgraft.evaluating.rates import Score, unmeasured_score
from voxgraft.evaluating.scoring import (
    ScoreRow,
    SpeakingPace,
    compute_stop_scores,
    measure_spoken_pace,
    unmeasured_error_rates,
)
from voxgraft.evaluating.sentences import EvalSentence, SentenceSet
from voxgraft.evaluating.sound import SpeechRenderer, VoiceComparer
from voxgraft.evaluating.speaking import SpokenSentence, synthesize_sentences
from voxgraft.evaluating.systems import SpeakingModel
from voxgraft.listening import Transcript
from voxgraft.training.replay import ReferenceVoice

__all__ = ["EvaluatedUtterance", "Evaluation", "Evaluator"]

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
        said = synthesize_sentences(system, sentences, self.voices, self.seed, who)
        if self.sound.vocoder is None:
            return _SystemSpeech(said, None, None)
        if like is not None and [one.codes for one in said] == [one.codes for one in like.said]:
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
            wav = encode_wav(resample(one.wave, one.rate, rate), rate)
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
            wav = encode_wav(wave, self.sound.rate) if wave is not None and len(wave) else None
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
    order = chance.hash_permutation(len(sentences), "shuffled", seed).tolist()
    moved = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [sentences[moved[at]] for at in range(len(sentences))]


def _describe_pace(pace: SpeakingPace | None, is_new: bool) -> str:
    if pace is None:
        return "there is nothing to know the usual length from"
    if is_new:
        return f"lengths are held against {pace.of}"
    return f"lengths are held against what the base says of the same sentence; cut-off speech is known by {pace.of}"
