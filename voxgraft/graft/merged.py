"""Merged folders: one ordinary checkpoint of a run, with a card that says what it was made of and what it cost.

`training/outputs.py` writes them; everybody else reads them here, without the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxgraft.core.errors import GraftError, VoxgraftError
from voxgraft.core.files import compute_sha256, is_file, read_json, require_file, require_folder
from voxgraft.graft.folder import MERGED_CARD_NAME

MERGED_FOLDER_NAME, BASELINE_FOLDER_NAME = "merged", "masked-finetune"
"""Folders in the run."""
MERGED_FORMAT = "voxgraft-merged-1"
MASKED_BASELINE_LABEL = "as the masked-finetune baseline, for comparison: this loses the old languages"
"""Shown wherever a model is shown that was trained the way of the seeds."""
MAX_LOSS_RISE = 0.05
"""Of a held-out speech loss; what merged training is held to by default."""


def read_merged_card(folder: Path) -> dict[str, Any]:
    """The card of a merged folder, whose files are there and are the ones that were written."""
    path = require_folder(folder) / MERGED_CARD_NAME
    card = read_json(require_file(path))
    if not isinstance(card, dict) or card.get("format") != MERGED_FORMAT:
        raise GraftError("merged-broken", f"{MERGED_CARD_NAME} has no format {MERGED_FORMAT!r}", where=path)
    for name in ("checkpoint", "tokenizer"):
        file, stated = str(card.get(name)), card.get(f"{name}_sha256")
        if "/" in file or compute_sha256(folder / file) != stated:
            raise GraftError("merged-broken", f"{file} is not the {name} that {MERGED_CARD_NAME} names", where=folder)
    return card


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
    if card.get("format") != MERGED_FORMAT or compute_sha256(checkpoint) != card.get("checkpoint_sha256"):
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
