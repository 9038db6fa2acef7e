"""What the measurements say, in words: a checklist that is ticked by them alone, and one word on what was kept.

A point that was not measured is neither ticked nor crossed, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from voxgraft.evaluating.hearing import ERRORS
from voxgraft.evaluating.judging import AFTER, BEFORE, SHUFFLED, Evaluation
from voxgraft.evaluating.marks import CODEC, RECORDINGS
from voxgraft.evaluating.rates import Score
from voxgraft.evaluating.scoring import MEASURES, Row
from voxgraft.evaluating.systems import System
from voxgraft.training.state_word import Thresholds

__all__ = ["Changes", "Point", "changes_of", "checklist", "is_goal", "kept_word", "main_error", "title_of", "written"]

Answer = Literal["yes", "no", "unknown"]
NEAR_MARK = 0.03
"""Within three points of the error that the listener itself makes, the mark counts as reached."""
DEAF = 0.5
"""A listener that hears half of the recordings wrong says nothing about speech."""
MOST_FAILURES = 0.02
PACES = (0.8, 1.25)
MOST_RISE = 0.01
"""Of an old language's error where it is not proven equal: drawing anew changes about a point."""
_FORMS = {measure.name: measure for measure in MEASURES}


@dataclass(frozen=True, slots=True)
class Point:
    """One line of the checklist."""

    name: str
    question: str
    answer: Answer
    found: str

    def to_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


def written(name: str, score: Score) -> str:
    """A score as people read it; a dash where there is none."""
    if score.value is None:
        return "–"
    form = _FORMS[name].form if name in _FORMS else "percent"
    text = f"{100 * score.value:.1f} %" if form == "percent" else f"{score.value:.{2 if form != 'nats' else 3}f}"
    return text.removeprefix("-") if not any(digit in text for digit in "123456789") else text


def title_of(name: str) -> str:
    """A measure as people call it."""
    return _FORMS[name].title if name in _FORMS else name


def main_error(found: Evaluation) -> str | None:
    """The error that is looked at first: of phones if the new language has it, else of letters; None without any."""
    row = found.row(found.language or next(iter(found.languages), ""), AFTER)
    return next((name for name in ERRORS[:2] if row is not None and row.score(name).value is not None), None)


def kept_word(found: Evaluation) -> str:
    """Equal, not equal, or not measured: base speech logits with and without what was added."""
    answers = [kept.equal for kept in found.kept]
    if not answers or None in answers:
        return "not measured"
    return "equal" if all(answers) else "not equal"


@dataclass(frozen=True, slots=True)
class Changes:
    """By how much base languages' scores rose. One that is proven equal has not changed at all."""

    rises: dict[str, float]
    missing: tuple[str, ...]
    """Languages that are not proven equal and have no score."""

    @classmethod
    def of(cls, equal: Mapping[str, bool | None], score: Callable[[str, str], float | None]) -> Changes:
        """`equal` by language; `score` of a language, before or after."""
        rises: dict[str, float] = {}
        for language, same in equal.items():
            old, new = score(language, BEFORE), score(language, AFTER)
            if same:
                rises[language] = 0.0
            elif old is not None and new is not None:
                rises[language] = new - old
        return cls(rises, tuple(name for name in equal if name not in rises))

    @property
    def worst(self) -> tuple[str, float] | None:
        """The language that has lost most of those that were measured, and how much."""
        return max(self.rises.items(), key=lambda item: item[1]) if self.rises else None


def changes_of(found: Evaluation, name: str) -> Changes:
    """What base languages have lost by one score."""

    def score(language: str, who: str) -> float | None:
        row = found.row(language, who)
        return row.score(name).value if row else None

    return Changes.of({kept.language: kept.equal for kept in found.kept}, score)


def is_goal(point: Point) -> bool:
    """Whether a no is only a goal that is not reached yet: nothing is broken."""
    return point.name == "near-mark" and point.answer == "no"


def checklist(found: Evaluation, after: System) -> list[Point]:
    """Every point, in the order in which a reader asks."""
    points = [_base_values(found, after), _old_languages(found, after)]
    if found.language is None:
        return points
    now = found.row(found.language, AFTER)
    if now is None:
        return points
    own = [_speaks(found, now), _near_mark(found, now), _reads(now), _stops(now), _repeats(now), _pace(found, now)]
    return [*points, *own]


def _base_values(found: Evaluation, after: System) -> Point:
    assert found.change is not None
    change, question = found.change, "Is the base itself unchanged?"
    told = f"{change.changed:,} of {change.total:,} values of the base are others than before"
    if change.changed and not after.keeps_base:
        told += f": this is {after.mode}, not a graft"
    elif after.gate is not None and not after.keeps_base:
        told += "; but its adapter acts on every language"
    return Point("base-values", question, "no" if change.changed else "yes", told)


def _old_languages(found: Evaluation, after: System) -> Point:
    question = "Do the old languages sound as before?"
    word = kept_word(found)
    if word == "equal":
        names = ", ".join(kept.language for kept in found.kept)
        positions = sum(kept.positions for kept in found.kept)
        return Point(
            "old-languages", question, "yes", f"speech logits are equal at all {positions:,} positions: {names}"
        )
    if word == "not measured":
        return Point("old-languages", question, "unknown", "no base language was spoken")
    name = main_error(found) or "speech_loss"
    changes = changes_of(found, name)
    if after.keeps_base:
        largest = max(kept.largest_difference or 0.0 for kept in found.kept)
        return Point("old-languages", question, "no", f"speech logits differ by up to {largest:.3g}")
    if changes.worst is None:
        return Point(
            "old-languages", question, "unknown", "logits differ, and by how much speech suffers was not heard"
        )
    language, rise = changes.worst
    told = f"{title_of(name)} of {language} has changed by {_points(name, rise)}"
    if changes.missing:
        told += f"; not measured: {', '.join(changes.missing)}"
    answer: Answer = "no" if rise > MOST_RISE else "unknown" if changes.missing else "yes"
    return Point("old-languages", question, answer, told)


def _speaks(found: Evaluation, now: Row) -> Point:
    """Better than the base without a graft, and than the same speech held against other texts, beyond chance."""
    question, name = "Is the new language understood?", main_error(found)
    if name is None:
        return Point("speaks", question, "unknown", f"nothing was listened to: {now.score('cer').why}")
    own = now.score(name)
    controls = {
        row.who: row.score(name) for row in found.rows if row.language == now.language and row.who in (BEFORE, SHUFFLED)
    }
    known = {who: score for who, score in controls.items() if score.low is not None}
    better = bool(known) and all((own.high or 0.0) < (score.low or 0.0) for score in known.values())
    against = ", ".join(f"{_CONTROLS[who]} {written(name, score)}" for who, score in known.items())
    told = f"{title_of(name)} {written(name, own)}{_interval(name, own)}; {against or 'no control was measured'}"
    return Point("speaks", question, "yes" if better else "no" if known else "unknown", told)


_CONTROLS = {BEFORE: "the base without the graft", SHUFFLED: "held against other sentences"}


def _near_mark(found: Evaluation, now: Row) -> Point:
    question = "Is it as clear as recordings are to the same listener?"
    for name in ERRORS[:2]:
        own = now.score(name)
        marks = [found.row(now.language, who) for who in (RECORDINGS, CODEC)]
        mark = next((row for row in marks if row is not None and row.score(name).value is not None), None)
        if own.value is None or mark is None:
            continue
        goal = mark.score(name)
        told = f"{title_of(name)} {written(name, own)}; {mark.title.removeprefix('mark: ')} {written(name, goal)}"
        if (goal.value or 0.0) > DEAF:
            return Point("near-mark", question, "unknown", f"{told}: the listener does not understand them itself")
        near = own.value <= (goal.value or 0.0) + NEAR_MARK
        within = f"{100 * NEAR_MARK:.0f} points more count as clear"
        return Point("near-mark", question, "yes" if near else "no", told if near else f"not yet: {told}; {within}")
    return Point("near-mark", question, "unknown", "no recordings were listened to (--recordings FOLDER)")


def _reads(now: Row) -> Point:
    question, use, fit = "Does it read the text?", now.score("text_use"), now.score("length_fit")
    fits = "" if fit.value is None else f"its length follows that of the text with a correlation of {fit.value:.2f}"
    if use.value is None:
        return Point("reads", question, "unknown", f"{use.why}; {fits}" if fits else use.why)
    told = f"another sentence's text makes held-out speech {use.value:.3f} nats a code less likely"
    answer: Answer = "yes" if use.value >= Thresholds().good_text_use else "no"
    return Point("reads", question, answer, f"{told}; {fits}" if fits else told)


def _repeats(now: Row) -> Point:
    question, share, distinct = "Is it free of loops?", now.score("repeats"), now.score("distinct")
    if share.value is None:
        return Point("repeats", question, "unknown", share.why)
    told = f"{written('repeats', share)} of {share.count} sentences repeat the same sounds for two seconds or more"
    if distinct.value is not None and distinct.value < 1:
        told += f"; {written('distinct', Score(1 - distinct.value))} are code for code the speech of another sentence"
    return Point("repeats", question, "yes" if share.value <= MOST_FAILURES else "no", told)


def _stops(now: Row) -> Point:
    question = "Does it come to an end?"
    runaway, cut = now.score("runaway"), now.score("cut")
    if runaway.value is None:
        return Point("stops", question, "unknown", runaway.why)
    failures = max(runaway.value, cut.value or 0.0)
    told = f"{written('runaway', runaway)} ran on, {written('cut', cut)} were cut off, of {runaway.count} sentences"
    return Point("stops", question, "yes" if failures <= MOST_FAILURES else "no", told)


def _pace(found: Evaluation, now: Row) -> Point:
    question, ratio = "Does it keep the pace?", now.score("duration")
    if ratio.value is None:
        return Point("pace", question, "unknown", ratio.why)
    fits = PACES[0] <= ratio.value <= PACES[1]
    told = f"{ratio.value:.2f} times the usual length, of which {PACES[0]} to {PACES[1]} counts as kept"
    against = found.paces.get(now.language)
    return Point("pace", question, "yes" if fits else "no", f"{told}; {against}" if against else told)


def _points(name: str, rise: float) -> str:
    form = _FORMS[name].form
    return f"{100 * rise:+.1f} points" if form == "percent" else f"{rise:+.3f} nats"


def _interval(name: str, score: Score) -> str:
    if score.low is None or score.high is None:
        return ""
    low, high = (written(name, Score(value)).removesuffix(" %") for value in (score.low, score.high))
    return f" ({low} to {high})"
