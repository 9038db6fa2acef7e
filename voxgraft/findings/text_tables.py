"""The text tables of a checkpoint by the family's names, also in the stand-in models that some forks train."""

from __future__ import annotations

from voxgraft.checkpoints.dtypes import FLOATS
from voxgraft.checkpoints.model import Checkpoint, TensorInfo
from voxgraft.families.base import Family, GraftPoint

_STAND_IN_PARTS = ("transformer_encoder.", "mel_decoder.", "duration_predictor.")
_STAND_IN_TABLE = "text_embedding.weight"


def is_stand_in(checkpoint: Checkpoint) -> bool:
    """Whether this is an encoder with a spectrogram decoder that only borrows the base's text table."""
    return _STAND_IN_TABLE in checkpoint.tensors and all(
        any(name.startswith(part) for name in checkpoint.tensors) for part in _STAND_IN_PARTS
    )


def text_tables(checkpoint: Checkpoint, family: Family) -> dict[GraftPoint, TensorInfo]:
    """The tables that are there and have the form of rows, in the family's order."""
    tables: dict[GraftPoint, TensorInfo] = {}
    for point in family.graft_points:
        name = _STAND_IN_TABLE if point.role == "embedding" and is_stand_in(checkpoint) else point.tensor
        info = checkpoint.tensors.get(name)
        rank = 1 if point.role == "head-bias" else 2
        if info is not None and info.dtype in FLOATS and len(info.shape) == rank:
            tables[point] = info
    return tables
