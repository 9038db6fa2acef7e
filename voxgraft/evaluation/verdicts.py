"""What the measurements say, in words: a checklist that is ticked by them alone, and one word on what was kept.

A point that was not measured is neither ticked nor crossed, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from voxgraft.core.errors import FileError
from voxgraft.core.files import read_json, require_file
from voxgraft.evaluation.audio import WHO_CODEC, WHO_RECORDINGS
from voxgraft.evaluation.judge import WHO_AFTER, WHO_BEFORE, WHO_SHUFFLED, EvaluatedUtterance, Evaluation
from voxgraft.evaluation.scores import ERROR_MEASURES, SCORE_MEASURES, Score, ScoreRow
from voxgraft.synthesis.engine import SpeakingModel
from voxgraft.training.monitors import LearningThresholds

ChecklistAnswer = Literal["yes", "no", "unknown"]
REFERENCE_TOLERANCE = 0.03
"""Within three points of the error that the listener itself makes, the mark counts as reached."""
MAX_RECOGNIZER_ERROR = 0.5
"""A listener that hears half of the recordings wrong says nothing about speech."""
MAX_FAILURE_RATE = 0.02
PACE_RANGE = (0.8, 1.25)
MAX_ERROR_RISE = 0.01
"""Of an old language's error where it is not proven equal: drawing anew changes about a point."""
_MEASURES_BY_NAME = {measure.name: measure for measure in SCORE_MEASURES}


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """One line of the checklist."""

    name: str
    question: str
    answer: ChecklistAnswer
    found: str

    def to_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


def format_score(name: str, score: Score) -> str:
    """A score as people read it; a dash where there is none."""
    if score.value is None:
        return "–"
    form = _MEASURES_BY_NAME[name].form if name in _MEASURES_BY_NAME else "percent"
    text = f"{100 * score.value:.1f} %" if form == "percent" else f"{score.value:.{2 if form != 'nats' else 3}f}"
    return text.removeprefix("-") if not any(digit in text for digit in "123456789") else text


def measure_title(name: str) -> str:
    """A measure as people call it."""
    return _MEASURES_BY_NAME[name].title if name in _MEASURES_BY_NAME else name


def choose_main_error(found: Evaluation) -> str | None:
    """The error that is looked at first: of phones if the new language has it, else of letters; None without any."""
    row = found.row(found.language or next(iter(found.languages), ""), WHO_AFTER)
    return next((name for name in ERROR_MEASURES[:2] if row is not None and row.score(name).value is not None), None)


def summarize_retention(found: Evaluation) -> str:
    """Equal, not equal, or not measured: base speech logits with and without what was added."""
    answers = [kept.equal for kept in found.kept]
    if not answers or None in answers:
        return "not measured"
    return "equal" if all(answers) else "not equal"


@dataclass(frozen=True, slots=True)
class RetentionChanges:
    """By how much base languages' scores rose. One that is proven equal has not changed at all."""

    rises: dict[str, float]
    missing: tuple[str, ...]
    """Languages that are not proven equal and have no score."""

    @classmethod
    def of(cls, equal: Mapping[str, bool | None], score: Callable[[str, str], float | None]) -> RetentionChanges:
        """`equal` by language; `score` of a language, before or after."""
        rises: dict[str, float] = {}
        for language, same in equal.items():
            old, new = score(language, WHO_BEFORE), score(language, WHO_AFTER)
            if same:
                rises[language] = 0.0
            elif old is not None and new is not None:
                rises[language] = new - old
        return cls(rises, tuple(name for name in equal if name not in rises))

    @property
    def worst(self) -> tuple[str, float] | None:
        """The language that has lost most of those that were measured, and how much."""
        return max(self.rises.items(), key=lambda item: item[1]) if self.rises else None


def compute_retention_changes(found: Evaluation, name: str) -> RetentionChanges:
    """What base languages have lost by one score."""

    def score(language: str, who: str) -> float | None:
        row = found.row(language, who)
        return row.score(name).value if row else None

    return RetentionChanges.of({kept.language: kept.equal for kept in found.kept}, score)


def is_unreached_goal(point: ChecklistItem) -> bool:
    """Whether a no is only a goal that is not reached yet: nothing is broken."""
    return point.name == "near-mark" and point.answer == "no"


def build_checklist(found: Evaluation, after: SpeakingModel) -> list[ChecklistItem]:
    """Every point, in the order in which a reader asks."""
    points = [_check_base_values(found, after), _check_old_languages(found, after)]
    if found.language is None:
        return points
    now = found.row(found.language, WHO_AFTER)
    if now is None:
        return points
    own = [
        _check_intelligible(found, now),
        _check_near_reference(found, now),
        _check_reads_text(now),
        _check_stops(now),
        _check_loops(now),
        _check_pace(found, now),
    ]
    return [*points, *own]


def _check_base_values(found: Evaluation, after: SpeakingModel) -> ChecklistItem:
    assert found.change is not None
    change, question = found.change, "Is the base itself unchanged?"
    told = f"{change.changed:,} of {change.total:,} values of the base are others than before"
    if change.changed and not after.keeps_base:
        told += f": this is {after.mode}, not a graft"
    elif after.gate is not None and not after.keeps_base:
        told += "; but its adapter acts on every language"
    return ChecklistItem("base-values", question, "no" if change.changed else "yes", told)


def _check_old_languages(found: Evaluation, after: SpeakingModel) -> ChecklistItem:
    question = "Do the old languages sound as before?"
    word = summarize_retention(found)
    if word == "equal":
        names = ", ".join(kept.language for kept in found.kept)
        positions = sum(kept.positions for kept in found.kept)
        return ChecklistItem(
            "old-languages", question, "yes", f"speech logits are equal at all {positions:,} positions: {names}"
        )
    if word == "not measured":
        return ChecklistItem("old-languages", question, "unknown", "no base language was spoken")
    name = choose_main_error(found) or "speech_loss"
    changes = compute_retention_changes(found, name)
    if after.keeps_base:
        largest = max(kept.largest_difference or 0.0 for kept in found.kept)
        return ChecklistItem("old-languages", question, "no", f"speech logits differ by up to {largest:.3g}")
    if changes.worst is None:
        return ChecklistItem(
            "old-languages", question, "unknown", "logits differ, and by how much speech suffers was not heard"
        )
    language, rise = changes.worst
    told = f"{measure_title(name)} of {language} has changed by {_format_rise(name, rise)}"
    if changes.missing:
        told += f"; not measured: {', '.join(changes.missing)}"
    answer: ChecklistAnswer = "no" if rise > MAX_ERROR_RISE else "unknown" if changes.missing else "yes"
    return ChecklistItem("old-languages", question, answer, told)


def _check_intelligible(found: Evaluation, now: ScoreRow) -> ChecklistItem:
    """Better than the base without a graft, and than the same speech held against other texts, beyond chance."""
    question, name = "Is the new language understood?", choose_main_error(found)
    if name is None:
        return ChecklistItem("speaks", question, "unknown", f"nothing was listened to: {now.score('cer').why}")
    own = now.score(name)
    controls = {
        row.who: row.score(name)
        for row in found.rows
        if row.language == now.language and row.who in (WHO_BEFORE, WHO_SHUFFLED)
    }
    known = {who: score for who, score in controls.items() if score.low is not None}
    better = bool(known) and all((own.high or 0.0) < (score.low or 0.0) for score in known.values())
    against = ", ".join(f"{_CONTROL_TITLES[who]} {format_score(name, score)}" for who, score in known.items())
    score = f"{format_score(name, own)}{_format_interval(name, own)}"
    told = f"{measure_title(name)} {score}; {against or 'no control was measured'}"
    return ChecklistItem("speaks", question, "yes" if better else "no" if known else "unknown", told)


_CONTROL_TITLES = {WHO_BEFORE: "the base without the graft", WHO_SHUFFLED: "held against other sentences"}


def _check_near_reference(found: Evaluation, now: ScoreRow) -> ChecklistItem:
    question = "Is it as clear as recordings are to the same listener?"
    for name in ERROR_MEASURES[:2]:
        own = now.score(name)
        marks = [found.row(now.language, who) for who in (WHO_RECORDINGS, WHO_CODEC)]
        mark = next((row for row in marks if row is not None and row.score(name).value is not None), None)
        if own.value is None or mark is None:
            continue
        goal = mark.score(name)
        reference = f"{mark.title.removeprefix('mark: ')} {format_score(name, goal)}"
        told = f"{measure_title(name)} {format_score(name, own)}; {reference}"
        if (goal.value or 0.0) > MAX_RECOGNIZER_ERROR:
            return ChecklistItem(
                "near-mark", question, "unknown", f"{told}: the listener does not understand them itself"
            )
        near = own.value <= (goal.value or 0.0) + REFERENCE_TOLERANCE
        within = f"{100 * REFERENCE_TOLERANCE:.0f} points more count as clear"
        return ChecklistItem(
            "near-mark", question, "yes" if near else "no", told if near else f"not yet: {told}; {within}"
        )
    return ChecklistItem("near-mark", question, "unknown", "no recordings were listened to (--recordings FOLDER)")


def _check_reads_text(now: ScoreRow) -> ChecklistItem:
    question, use, fit = "Does it read the text?", now.score("text_use"), now.score("length_fit")
    fits = "" if fit.value is None else f"its length follows that of the text with a correlation of {fit.value:.2f}"
    if use.value is None:
        return ChecklistItem("reads", question, "unknown", f"{use.why}; {fits}" if fits else use.why)
    told = f"another sentence's text makes held-out speech {use.value:.3f} nats a code less likely"
    answer: ChecklistAnswer = "yes" if use.value >= LearningThresholds().good_text_use else "no"
    return ChecklistItem("reads", question, answer, f"{told}; {fits}" if fits else told)


def _check_loops(now: ScoreRow) -> ChecklistItem:
    question, share, distinct = "Is it free of loops?", now.score("repeats"), now.score("distinct")
    if share.value is None:
        return ChecklistItem("repeats", question, "unknown", share.why)
    told = f"{format_score('repeats', share)} of {share.count} sentences repeat the same sounds for two seconds or more"
    if distinct.value is not None and distinct.value < 1:
        told += (
            f"; {format_score('distinct', Score(1 - distinct.value))} are code for code the speech of another sentence"
        )
    return ChecklistItem("repeats", question, "yes" if share.value <= MAX_FAILURE_RATE else "no", told)


def _check_stops(now: ScoreRow) -> ChecklistItem:
    question = "Does it come to an end?"
    runaway, cut = now.score("runaway"), now.score("cut")
    if runaway.value is None:
        return ChecklistItem("stops", question, "unknown", runaway.why)
    failures = max(runaway.value, cut.value or 0.0)
    listed = f"{format_score('runaway', runaway)} ran on, {format_score('cut', cut)} were cut off"
    told = f"{listed}, of {runaway.count} sentences"
    return ChecklistItem("stops", question, "yes" if failures <= MAX_FAILURE_RATE else "no", told)


def _check_pace(found: Evaluation, now: ScoreRow) -> ChecklistItem:
    question, ratio = "Does it keep the pace?", now.score("duration")
    if ratio.value is None:
        return ChecklistItem("pace", question, "unknown", ratio.why)
    fits = PACE_RANGE[0] <= ratio.value <= PACE_RANGE[1]
    told = f"{ratio.value:.2f} times the usual length, of which {PACE_RANGE[0]} to {PACE_RANGE[1]} counts as kept"
    against = found.paces.get(now.language)
    return ChecklistItem("pace", question, "yes" if fits else "no", f"{told}; {against}" if against else told)


def _format_rise(name: str, rise: float) -> str:
    form = _MEASURES_BY_NAME[name].form
    return f"{100 * rise:+.1f} points" if form == "percent" else f"{rise:+.3f} nats"


def _format_interval(name: str, score: Score) -> str:
    if score.low is None or score.high is None:
        return ""
    low, high = (format_score(name, Score(value)).removesuffix(" %") for value in (score.low, score.high))
    return f" ({low} to {high})"


SCORES_FORMAT = "voxgraft-scores-1"
SCORES_NAME = "scores.json"
MAX_SCORES_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredScores:
    """What a comparison needs of a scores.json."""

    path: Path
    about: dict[str, Any]
    language: str | None
    scores: dict[tuple[str, str], dict[str, Score]]
    """By language and who."""
    equal: dict[str, bool | None]
    """By base language."""
    how: dict[str, str]
    """What must be the same for two evaluations to be measured alike: language, sentences, listener, base."""

    def score(self, language: str, who: str, name: str) -> Score:
        return self.scores.get((language, who), {}).get(name, Score(None, why="not in the file"))


def build_scores_json(about: dict[str, Any], found: Evaluation, points: list[ChecklistItem]) -> dict[str, Any]:
    """The whole document."""
    assert found.change is not None
    return {
        "format": SCORES_FORMAT,
        **about,
        "language": found.language,
        "rows": [
            {
                "language": row.language,
                "who": row.who,
                "title": row.title,
                "scores": {name: score.to_json() for name, score in row.scores.items()},
            }
            for row in found.rows
        ],
        "retention": {
            "word": summarize_retention(found),
            "base_values": found.change.to_json(),
            "languages": {kept.language: kept.to_json() for kept in found.kept},
        },
        "lengths": found.paces,
        "checklist": [point.to_json() for point in points],
        "not_measured": _list_unmeasured(found),
        "utterances": [_utterance_json(one) for one in found.utterances],
    }


def read_scores(path: Path) -> StoredScores:
    """A scores.json of this format, whoever wrote it."""
    value = read_json(require_file(path), MAX_SCORES_BYTES)
    if not isinstance(value, dict) or value.get("format") != SCORES_FORMAT:
        stated = value.get("format") if isinstance(value, dict) else None
        raise FileError(
            "scores-format", f"{path.name} has the format {stated!r}", expected=repr(SCORES_FORMAT), where=path
        )
    rows, retention = value.get("rows"), value.get("retention")
    if not isinstance(rows, list) or not isinstance(retention, dict):
        raise FileError("scores-format", f"{path.name} has no rows, or says nothing of retention", where=path)
    scores = dict(_parse_row(row, number, path) for number, row in enumerate(rows, 1))
    kept = retention.get("languages")
    equal = {
        str(name): one.get("equal") if isinstance(one, dict) else None
        for name, one in (kept if isinstance(kept, dict) else {}).items()
    }
    language = value.get("language")
    about = value.get("subject")
    if not isinstance(about, dict) or not isinstance(about.get("mode"), str | None):
        raise FileError("scores-format", f"{path.name} does not say in words what was judged (subject)", where=path)
    return StoredScores(
        path, about, language if isinstance(language, str) else None, scores, equal, _list_measurement_conditions(value)
    )


def _parse_row(row: Any, number: int, path: Path) -> tuple[tuple[str, str], dict[str, Score]]:
    """One row by language and who; an error where it is none, rather than scores that nobody gave."""
    scores = row.get("scores") if isinstance(row, dict) else None
    if not isinstance(scores, dict):
        raise FileError("scores-format", f"row {number} of {path.name} has no scores by name", where=path)
    for name, score in scores.items():
        if not isinstance(score, dict) or not isinstance(score.get("count", 0), int):
            found = f"row {number} of {path.name} has for {name!r:.60} {score!r:.80}"
            raise FileError("scores-format", found, expected="a value with a count, or none and why", where=path)
    return (str(row.get("language")), str(row.get("who"))), {
        str(name): Score.from_json(score) for name, score in scores.items()
    }


def _list_measurement_conditions(value: dict[str, Any]) -> dict[str, str]:
    listener, sentences, base = value.get("listener"), value.get("sentences"), Path(str(value.get("base") or ""))
    sets, digest = sentences if isinstance(sentences, dict) else {}, value.get("base_sha256")
    told = (
        f"{language} {one.get('count')} of {str(one.get('sha256'))[:8]}"
        for language, one in sorted(sets.items())
        if isinstance(one, dict)
    )
    return {
        "language": str(value.get("language")),
        "sentences": ", ".join(told) or "?",
        "listener": str(listener.get("name") or "nobody") if isinstance(listener, dict) else "?",
        "base": f"{base.name} {digest[:8]}" if isinstance(digest, str) else str(base),
    }


def _list_unmeasured(found: Evaluation) -> list[dict[str, Any]]:
    """Every reason once, with what it kept from being measured."""
    by_reason: dict[str, list[str]] = {}
    for row in found.rows:
        for name, score in row.scores.items():
            if score.value is None:
                by_reason.setdefault(score.why, []).append(f"{row.language} {row.who} {name}")
    return [{"why": why, "what": what} for why, what in by_reason.items()]


def _utterance_json(one: EvaluatedUtterance) -> dict[str, Any]:
    return {
        "language": one.sentence.language,
        "who": one.who,
        "text": one.sentence.text,
        "text_ids": list(one.ids),
        "rare": list(one.sentence.rare),
        "voice": one.voice,
        "codes": one.num_codes,
        "seconds": round(one.seconds, 3) if math.isfinite(one.seconds) else None,
        "stopped": one.stopped,
        "heard": None if one.heard is None else one.heard.text,
        "heard_phones": None if one.heard is None or one.heard.phones is None else " ".join(one.heard.phones),
        **{name: None if value is None else round(value, 4) for name, value in one.errors.items()},
        **({"why": one.why} if one.why else {}),
    }
