"""What a merged checkpoint costs the old languages, as far as that was measured; nothing is guessed.

Merged training measures itself; `evaluate` measures anything. A graft that was folded in for an export was measured by
nobody yet, and the export says how to do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import VoxgraftError
from voxgraft.evaluating.judging import WHO_AFTER, WHO_BEFORE
from voxgraft.evaluating.scores_file import SCORES_NAME, read_scores
from voxgraft.exporting.sources import ExportSource
from voxgraft.files import is_file

__all__ = ["LanguageCost", "collect_language_costs"]

COST_MEASURES = {"phone_error": "phone error", "cer": "letter error", "speech_loss": "speech loss"}


@dataclass(frozen=True, slots=True)
class LanguageCost:
    """One language before and after, and who measured it."""

    language: str
    measure: str
    before: float | None
    after: float
    source: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def collect_language_costs(source: ExportSource) -> list[LanguageCost]:
    """All that was measured of the merged checkpoint that is exported."""
    if source.merged is None or source.run is None:
        return []
    return [
        *_training_costs(source.merged),
        *_evaluation_costs(source.run.eval, str(source.merged["checkpoint_sha256"])),
    ]


def _training_costs(card: dict[str, Any]) -> Iterator[LanguageCost]:
    first = card.get("speech_losses_before") or {}
    for point in card.get("points") or []:
        if point.get("share") == card.get("share"):
            for language, loss in (point.get("speech_losses") or {}).items():
                yield LanguageCost(
                    str(language), "speech loss", first.get(language), float(loss), "held out in training"
                )


def _evaluation_costs(folder: Path, sha256: str) -> Iterator[LanguageCost]:
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not is_file(place / SCORES_NAME):
            continue
        try:
            scores = read_scores(place / SCORES_NAME)
        except VoxgraftError:  # of another version, or half of one: it says nothing then
            continue
        # A step alone would not do: merging again with another share leaves another checkpoint of the same step.
        if scores.about.get("mode") != "merged" or scores.about.get("checkpoint_sha256") != sha256:
            continue
        for language in dict.fromkeys(language for language, _ in scores.scores):
            yield from _score_costs(scores.scores, language, place.name)


def _score_costs(scores: dict[tuple[str, str], dict[str, Any]], language: str, name: str) -> Iterator[LanguageCost]:
    before, after = (scores.get((language, who), {}) for who in (WHO_BEFORE, WHO_AFTER))
    for key, title in COST_MEASURES.items():
        if key in after and after[key].value is not None:
            was = before[key].value if key in before else None
            yield LanguageCost(language, title, was, after[key].value, f"evaluation {name}")
