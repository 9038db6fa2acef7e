"""Two systems judged side by side: every language spoken by both, listened to, scored, and held against each other.

Takes what is opened already and gives an `Evaluation`; reads no settings and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.resample import resampled
from voxgraft.audio.wav import wav_bytes
from voxgraft.corpus import chance
from voxgraft.evaluating.hearing import Ear, errors_of, sentence_error
from voxgraft.evaluating.held_out import HeldOut, losses_of, pace_of
from voxgraft.evaluating.marks import Recording
from voxgraft.evaluating.proofs import Change, Kept, changed_values, kept_of
from voxgraft.evaluating.rates import Score, unmeasured
from voxgraft.evaluating.scoring import Pace, Row, nothing_heard, pace_of_speech, stops_of
from voxgraft.evaluating.sentences import Sentence, SentenceSet
from voxgraft.evaluating.sound import Sound, VoiceEar
from voxgraft.evaluating.speaking import Said, say
from voxgraft.evaluating.systems import System
from voxgraft.listening import Heard
from voxgraft.training.replay import Voice

__all__ = ["Evaluation", "Judge", "Utterance"]

Wave = NDArray[np.float32]
BEFORE, AFTER, SHUFFLED, ORIGINAL = "before", "after", "shuffled", "original"
CONTROL = "control: held against other sentences"
IS_BASE = "this is the base"
SAME_BY_DESIGN = "the base is not changed by the new language: it is compared in its own languages"


@dataclass(frozen=True, slots=True)
class Utterance:
    """One sentence as one system said it, for whoever looks or listens."""

    sentence: Sentence
    who: str
    voice: str
    seconds: float
    stopped: bool
    num_codes: int | None
    heard: Heard | None
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
    rows: list[Row] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    change: Change | None = None
    utterances: list[Utterance] = field(default_factory=list)
    paces: dict[str, str] = field(default_factory=dict)
    """By language: what lengths are held against, in words."""

    def row(self, language: str, who: str) -> Row | None:
        return next((row for row in self.rows if (row.language, row.who) == (language, who)), None)

    def add(self, row: Row | None) -> None:
        """One more row, behind those of its language; none is none."""
        if row is not None:
            order = [*self.languages, row.language]
            self.rows = sorted([*self.rows, row], key=lambda one: order.index(one.language))

    @property
    def languages(self) -> list[str]:
        """The new one first."""
        return list(dict.fromkeys(row.language for row in self.rows))


@dataclass(frozen=True)
class _Spoken:
    """What one system said of one language, as far as it got."""

    said: Sequence[Said]
    waves: Sequence[Wave] | None
    heard: Sequence[Heard] | None


@dataclass
class Judge:
    """Who is judged, and with what."""

    base: System
    after: System
    sentences: Mapping[str, SentenceSet]
    voices: Sequence[Voice]
    sound: Sound
    ear: Ear
    voice_ear: VoiceEar
    held_out: HeldOut
    seed: int = 0
    players: int = 8
    originals: Mapping[str, Sequence[Recording]] = field(default_factory=dict)
    """Recordings of the sentences by language, to be played beside what was spoken."""

    def run(self) -> Evaluation:
        """All languages, the new one first."""
        language = self.after.spelling.language
        found = Evaluation(language, change=changed_values(self.base, self.after))
        order = sorted(self.sentences, key=lambda name: (name != language, list(self.sentences).index(name)))
        for name in order:
            self._language(found, name)
        return found

    def _language(self, found: Evaluation, language: str) -> None:
        is_new = language == found.language
        sentences = self.sentences[language].sentences
        before = self._spoken(self.base, sentences, f"the base, {language}")
        after = self._spoken(self.after, sentences, f"{self.after.name}, {language}", like=before)
        pace = self._pace(language, before.said, is_new)
        found.paces[language] = _pace_in_words(pace, is_new)
        kept = None if is_new else kept_of(self.base, self.after, before.said, after.said)
        found.kept += [kept] if kept else []
        found.rows.append(Row(language, BEFORE, "base", self._scores(self.base, before, pace, None)))
        scores = self._scores(self.after, after, pace, None if is_new else before.said)
        scores["kl"] = kept.kl if kept else unmeasured(SAME_BY_DESIGN)
        found.rows.append(Row(language, AFTER, self.after.name, scores))
        if is_new and after.heard is not None:
            found.rows.append(Row(language, SHUFFLED, CONTROL, self._control(sentences, after.heard)))
        found.utterances += [*self._utterances(before, BEFORE), *self._utterances(after, AFTER)]
        found.utterances += self._originals(language, [one.sentence for one in after.said])

    def _spoken(self, system: System, sentences: Sequence[Sentence], who: str, like: _Spoken | None = None) -> _Spoken:
        """Said, sounded and heard. The same codes in the same voice are the same sound, and are not heard twice."""
        said = say(system, sentences, self.voices, self.seed, who)
        if self.sound.vocoder is None:
            return _Spoken(said, None, None)
        if like is not None and [one.codes for one in said] == [one.codes for one in like.said]:
            return _Spoken(said, like.waves, like.heard)
        waves = self.sound.waves(said, who)
        language = sentences[0].language
        deaf = self.ear.deaf_to(language)
        return _Spoken(said, waves, None if deaf else self.ear.hear(waves, self.sound.rate, language, who))

    def _scores(
        self, system: System, spoken: _Spoken, pace: Pace | None, before: Sequence[Said] | None
    ) -> dict[str, Score]:
        language = spoken.said[0].sentence.language
        scores = self._errors(spoken, language)
        scores |= stops_of(spoken.said, pace, before, self.seed)
        if spoken.waves is None:
            scores["likeness"] = unmeasured(self.sound.why)
        else:
            scores["likeness"] = self.voice_ear.likeness(spoken.said, spoken.waves, self.sound.rate, self.seed)
        scores |= losses_of(system, self.held_out, language)
        scores["kl"] = unmeasured(IS_BASE)
        return scores

    def _errors(self, spoken: _Spoken, language: str) -> dict[str, Score]:
        if spoken.heard is None:
            return nothing_heard(self.sound.why or self.ear.deaf_to(language))
        return errors_of([one.sentence for one in spoken.said], spoken.heard, self.seed)

    def _control(self, sentences: Sequence[Sentence], heard: Sequence[Heard]) -> dict[str, Score]:
        if len(sentences) < 2:
            return nothing_heard("there is no other sentence to hold it against")
        return errors_of(_others(sentences, self.seed), heard, self.seed)

    def _pace(self, language: str, before: Sequence[Said], is_new: bool) -> Pace | None:
        recorded = pace_of(self.held_out, language)
        if recorded is not None:
            return Pace(recorded, "the held-out recordings")
        return None if is_new else pace_of_speech(before)

    def _played(self, count: int) -> set[int]:
        """Places of the sentences that the report plays."""
        some = count > self.players
        return {at * count // self.players for at in range(self.players)} if some else set(range(count))

    def _originals(self, language: str, sentences: Sequence[Sentence]) -> list[Utterance]:
        """Recordings of the sentences that are played, at no higher rate than the speech beside them."""
        recorded = {one.sentence: one for one in self.originals.get(language, ())}
        made = []
        for at in sorted(self._played(len(sentences))):
            if (one := recorded.get(sentences[at])) is None or self.sound.vocoder is None:
                continue
            rate = min(one.rate, self.sound.rate)
            wav = wav_bytes(resampled(one.wave, one.rate, rate), rate)
            seconds = len(one.wave) / one.rate
            made.append(Utterance(sentences[at], ORIGINAL, "", seconds, True, None, None, {}, wav))
        return made

    def _utterances(self, spoken: _Spoken, who: str) -> list[Utterance]:
        played = self._played(len(spoken.said))
        made = []
        for at, one in enumerate(spoken.said):
            heard = spoken.heard[at] if spoken.heard is not None else None
            errors = sentence_error(one.sentence, heard) if heard is not None else {}
            wave = spoken.waves[at] if spoken.waves is not None and at in played else None
            wav = wav_bytes(wave, self.sound.rate) if wave is not None and len(wave) else None
            num_codes = None if one.codes is None else len(one.codes)
            made.append(
                Utterance(
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


def _others(sentences: Sequence[Sentence], seed: int) -> list[Sentence]:
    """Every sentence's place taken by another one: all are moved along a circle in an order by chance."""
    order = chance.permutation(len(sentences), "shuffled", seed).tolist()
    moved = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [sentences[moved[at]] for at in range(len(sentences))]


def _pace_in_words(pace: Pace | None, is_new: bool) -> str:
    if pace is None:
        return "there is nothing to know the usual length from"
    if is_new:
        return f"lengths are held against {pace.of}"
    return f"lengths are held against what the base says of the same sentence; cut-off speech is known by {pace.of}"
