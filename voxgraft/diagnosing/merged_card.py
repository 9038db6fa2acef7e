"""The card that merged training leaves beside its checkpoint: were old languages measured, and within their bound?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.errors import VoxgraftError
from voxgraft.files import is_file, read_json

__all__ = ["card_beside", "is_measured"]

CARD_NAME = "merged.json"


def card_beside(checkpoint: Path) -> dict[str, Any] | None:
    """The card in the folder of a checkpoint, if it names one that is there."""
    path = checkpoint.parent / CARD_NAME
    if not is_file(path):
        return None
    try:
        card = read_json(path)
    except VoxgraftError:
        return None  # a broken card says nothing, and whoever reads the whole folder tells of it
    file = card.get("checkpoint") if isinstance(card, dict) else None
    named = isinstance(file, str) and "/" not in file and is_file(path.parent / file)
    return card if named else None


def is_measured(checkpoint: Path) -> bool:
    """Whether held-out losses of old languages stand behind this very checkpoint, all of them within their bound."""
    card = card_beside(checkpoint)
    if card is None or card["checkpoint"] != checkpoint.name or card.get("label"):
        return False
    points = card.get("points")
    listed = [one for one in points if isinstance(one, dict)] if isinstance(points, list) else []
    own = [one for one in listed if one.get("share") == card.get("share")]
    measured = [one for one in own if isinstance(one.get("speech_losses"), dict) and len(one["speech_losses"]) > 1]
    return bool(measured) and not any(one.get("past_bound") for one in measured)
