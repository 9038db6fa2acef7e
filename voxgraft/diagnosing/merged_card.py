"""The card that merged training leaves beside its checkpoint: of which training, and were old languages measured?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxgraft.errors import VoxgraftError
from voxgraft.files import compute_sha256, is_file, read_json

__all__ = ["find_merged_card", "is_of_last_training", "keeps_old_languages"]

MERGED_CARD_NAME = "merged.json"
MERGED_CARD_FORMAT = "voxgraft-merged-1"
MAX_LOSS_RISE = 0.05
"""Of a held-out speech loss; what merged training is held to by default."""


def find_merged_card(checkpoint: Path) -> dict[str, Any] | None:
    """The card in the folder of a checkpoint, if it names one that is there."""
    path = checkpoint.parent / MERGED_CARD_NAME
    if not is_file(path):
        return None
    try:
        card = read_json(path)
    except VoxgraftError:
        return None  # a broken card says nothing, and whoever reads the whole folder tells of it
    file = card.get("checkpoint") if isinstance(card, dict) else None
    named = isinstance(file, str) and "/" not in file and is_file(path.parent / file)
    return card if named else None


def is_of_last_training(card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the point that a card tells of is the one that the journal says was written.

    A training that was begun anew and has not come to its end leaves the folder of the one before where it is.
    """
    chosen = next((line for line in reversed(journal) if line["kind"] == "interpolation" and line.get("chosen")), None)
    points = card.get("points")
    listed = [one for one in points if isinstance(one, dict)] if isinstance(points, list) else []
    own = next((one for one in listed if one.get("share") == card.get("share")), None)
    if chosen is None or own is None:
        return False
    return all(own.get(name) == chosen.get(name) for name in ("share", "speech_losses"))


def keeps_old_languages(checkpoint: Path) -> bool | None:
    """What held-out losses say of old languages in this very checkpoint; None where none stand behind it.

    Judged by the losses themselves: the bound of a run is its user's, and may be as loose as they like.
    """
    card = find_merged_card(checkpoint)
    if card is None or card["checkpoint"] != checkpoint.name or card.get("label"):
        return None
    if card.get("format") != MERGED_CARD_FORMAT or compute_sha256(checkpoint) != card.get("checkpoint_sha256"):
        return None  # what was measured is another file
    points, before = card.get("points"), card.get("speech_losses_before")
    listed = [one for one in points if isinstance(one, dict)] if isinstance(points, list) else []
    own = next((one for one in listed if one.get("share") == card.get("share")), {})
    now = own.get("speech_losses")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return None
    old = {name: (before[name], loss) for name, loss in now.items() if name in before and name != card.get("language")}
    if not old or not all(isinstance(loss, int | float) for pair in old.values() for loss in pair):
        return None
    return all(loss <= first * (1 + MAX_LOSS_RISE) for first, loss in old.values())
