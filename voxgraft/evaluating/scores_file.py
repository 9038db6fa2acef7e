"""`scores.json`: everything that was measured, for machines. docs/evaluating.md says what each key is.

A number that was not measured is null and has its reason beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import FileError
from voxgraft.evaluating.judging import EvaluatedUtterance, Evaluation
from voxgraft.evaluating.rates import Score
from voxgraft.evaluating.verdicts import ChecklistItem, summarize_retention
from voxgraft.files import read_json, require_file

__all__ = ["SCORES_FORMAT", "SCORES_NAME", "StoredScores", "build_scores_json", "read_scores"]

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
