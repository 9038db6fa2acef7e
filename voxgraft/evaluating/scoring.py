"""What one system's speech of one language is worth: errors, stop failures, length, likeness. Decides nothing.

Every measure is always there, by name; one that could not be taken says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from voxgraft.corpus.clips import AnyArray
from voxgraft.evaluating.forms import normalize_letters
from voxgraft.evaluating.hearing import ERROR_MEASURES
from voxgraft.evaluating.rates import (
    Score,
    compute_mean_score,
    compute_median_score,
    score_without_interval,
    unmeasured_score,
)
from voxgraft.evaluating.speaking import SpokenSentence
from voxgraft.speaking.watch import MAX_LOOP_PERIOD_SECONDS, MIN_LOOP_ROUNDS, MIN_LOOP_SECONDS

__all__ = [
    "SCORE_MEASURES",
    "ScoreMeasure",
    "ScoreRow",
    "SpeakingPace",
    "compute_stop_scores",
    "compute_voice_similarity",
    "measure_spoken_pace",
    "select_shown_measures",
]

MIN_FIT_SENTENCES = 5
"""Sentences that a correlation takes."""
CUT_OFF_RATIO = 0.4
"""Speech of less than this share of its usual length has lost words."""


BASE_SPEECH = "the base's own speech"


@dataclass(frozen=True, slots=True)
class ScoreMeasure:
    """What a score is called, how it is written, and which way is better."""

    name: str
    title: str
    form: str
    """percent, ratio, nats or number."""
    about: str


SCORE_MEASURES = (
    ScoreMeasure("phone_error", "phone error", "percent", "Sounds that were heard wrong, left out or put in."),
    ScoreMeasure("cer", "letter error", "percent", "The same in letters (character error rate)."),
    ScoreMeasure("wer", "word error", "percent", "The same in words (word error rate)."),
    ScoreMeasure(
        "unsaid", "not said", "percent", "Sentences that could not be said at all; they count as heard empty."
    ),
    ScoreMeasure("runaway", "runaway", "percent", "Sentences that did not come to an end before their limit."),
    ScoreMeasure("cut", "cut off", "percent", "Sentences that ended after less than 0.4 of their usual length."),
    ScoreMeasure(
        "duration",
        "length",
        "ratio",
        "Length of the speech: in the new language against the usual pace, in old ones against the base; 1 is equal.",
    ),
    ScoreMeasure(
        "repeats", "repeats", "percent", "Sentences in which two seconds or more are the same sounds over and over."
    ),
    ScoreMeasure(
        "length_fit",
        "length fit",
        "number",
        "Correlation of the length of the speech with the number of letters: 1 is exact, 0 is speech without its text.",
    ),
    ScoreMeasure(
        "distinct", "distinct", "percent", "Sentences whose speech is not that of another sentence, code for code."
    ),
    ScoreMeasure("likeness", "voice", "number", "Likeness to the voice that was asked for; 1 is the same."),
    ScoreMeasure("speech_loss", "speech loss", "nats", "Cross-entropy of held-out recordings, per speech code."),
    ScoreMeasure("text_use", "text use", "nats", "How much worse the speech loss is with another sentence's text."),
    ScoreMeasure("kl", "KL to base", "nats", "How far what is said next is from what the base would say."),
)


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """All scores of one system in one language, or of a control. `who` is before, after, shuffled, or a mark."""

    language: str
    who: str
    title: str
    scores: Mapping[str, Score]

    def score(self, name: str) -> Score:
        return self.scores.get(name) or unmeasured_score("not looked at")


def select_shown_measures(rows: Sequence[ScoreRow]) -> list[ScoreMeasure]:
    """Measures that any row has: a column of dashes says nothing, nor does one that everything could be said."""
    found = [one for one in SCORE_MEASURES if any(row.score(one.name).value is not None for row in rows)]
    dull = {"unsaid": 0.0, "distinct": 1.0}
    return [
        one
        for one in found
        if one.name not in dull or any(row.score(one.name).value not in (None, dull[one.name]) for row in rows)
    ]


@dataclass(frozen=True, slots=True)
class SpeakingPace:
    """Seconds that a letter takes, and whose pace that is."""

    seconds_per_letter: float
    of: str

    def seconds(self, text: str, language: str) -> float:
        return self.seconds_per_letter * max(1, len(normalize_letters(text, language)))


def measure_spoken_pace(said: Sequence[SpokenSentence]) -> SpeakingPace | None:
    """The middle pace of what the base said and ended."""
    paces = [
        one.seconds / len(normalize_letters(one.sentence.text, one.sentence.language))
        for one in said
        if one.codes and one.stopped and normalize_letters(one.sentence.text, one.sentence.language)
    ]
    return SpeakingPace(median(paces), BASE_SPEECH) if paces else None


def compute_stop_scores(
    said: Sequence[SpokenSentence], pace: SpeakingPace | None, before: Sequence[SpokenSentence] | None, seed: int
) -> dict[str, Score]:
    """Stop failures and length. `before` is the same from the base, which lengths are held against if it is there."""
    spoken = [one for one in said if one.codes is not None]
    unsaid = {"unsaid": compute_mean_score([float(one.codes is None) for one in said], seed)}
    if not spoken:
        why = said[0].why if said else "there is no sentence"
        names = ("runaway", "cut", "duration", "repeats", "length_fit", "distinct")
        return unsaid | dict.fromkeys(names, unmeasured_score(f"nothing could be said: {why}"))
    counts = Counter(one.codes for one in spoken)
    return {
        **unsaid,
        "runaway": compute_mean_score([float(one.is_runaway) for one in spoken], seed),
        "cut": _score_cut_off(spoken, pace, seed),
        "duration": _score_duration(said, pace, before, seed),
        "repeats": compute_mean_score([float(has_code_loop(one.codes or (), one.code_hz)) for one in spoken], seed),
        "length_fit": _score_length_fit(spoken),
        "distinct": compute_mean_score([float(counts[one.codes] == 1) for one in spoken], seed),
    }


def has_code_loop(codes: Sequence[int], code_hz: float) -> bool:
    """Whether codes go round in a loop somewhere, not only at their end."""
    least, array = round(MIN_LOOP_SECONDS * code_hz), np.asarray(codes)
    for period in range(1, round(MAX_LOOP_PERIOD_SECONDS * code_hz) + 1):
        needed = max(least, MIN_LOOP_ROUNDS * period) - period
        if len(array) - period < needed:
            return False
        breaks = np.flatnonzero(array[period:] != array[:-period])
        edges = np.concatenate([[-1], breaks, [len(array) - period]])
        if np.diff(edges).max() - 1 >= needed:
            return True
    return False


def _score_length_fit(spoken: Sequence[SpokenSentence]) -> Score:
    """Speech that ignores its text has a length of its own, whatever stands in the text."""
    lengths = [float(len(normalize_letters(one.sentence.text, one.sentence.language))) for one in spoken]
    seconds = [one.seconds for one in spoken]
    if len(spoken) < MIN_FIT_SENTENCES or np.std(lengths) == 0:
        return unmeasured_score(f"that takes {MIN_FIT_SENTENCES} sentences of different lengths")
    if np.std(seconds) == 0:
        return score_without_interval(0.0, len(spoken))
    return score_without_interval(float(np.corrcoef(lengths, seconds)[0, 1]), len(spoken))


def compute_voice_similarity(found: Sequence[AnyArray], wanted: Sequence[AnyArray], seed: int) -> Score:
    """The mean cosine between voices that were heard and voices that were asked for."""
    cosines = [
        float(np.dot(one, two) / max(1e-9, float(np.linalg.norm(one) * np.linalg.norm(two))))
        for one, two in zip(found, wanted, strict=True)
    ]
    return compute_mean_score(cosines, seed)


def unmeasured_error_rates(why: str) -> dict[str, Score]:
    """The errors of speech that nobody listened to."""
    return dict.fromkeys(ERROR_MEASURES, unmeasured_score(why))


def _score_cut_off(spoken: Sequence[SpokenSentence], pace: SpeakingPace | None, seed: int) -> Score:
    if pace is None:
        return unmeasured_score("there is nothing to know the usual length from")
    usual = [pace.seconds(one.sentence.text, one.sentence.language) for one in spoken]
    return compute_mean_score(
        [float(one.seconds < CUT_OFF_RATIO * due) for one, due in zip(spoken, usual, strict=True)], seed
    )


def _score_duration(
    said: Sequence[SpokenSentence], pace: SpeakingPace | None, before: Sequence[SpokenSentence] | None, seed: int
) -> Score:
    if before is not None:
        ratios = [
            one.seconds / old.seconds
            for one, old in zip(said, before, strict=True)
            if one.codes and old.codes and old.stopped
        ]
    elif pace is not None and pace.of == BASE_SPEECH:
        return unmeasured_score("it is what lengths are held against")
    elif pace is not None:
        ratios = [one.seconds / pace.seconds(one.sentence.text, one.sentence.language) for one in said if one.codes]
    else:
        return unmeasured_score("there is nothing to hold the length against")
    return (
        compute_median_score(ratios, seed)
        if ratios
        else unmeasured_score("there is no utterance to hold the length against")
    )
