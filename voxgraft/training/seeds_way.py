"""Training as the trainers did it from which voxgraft comes: kept for comparison, so that the difference can be shown.

The text tables are ordinary parameters, and a hook masks the gradients of the base's rows. That is no freezing: weight
decay shrinks masked rows all the same, and the body, which has no mask, forgets the old languages.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from voxgraft.families.model import SpeechModel
from voxgraft.nn.grown import GrownEmbedding, GrownHead, GrownLayer

__all__ = ["MASKED_BASELINE_LABEL", "mask_base_row_gradients"]

MASKED_BASELINE_LABEL = "as in the seeds, for comparison: this loses the old languages"


def mask_base_row_gradients(model: SpeechModel) -> None:
    """Make the grown text tables of a model ordinary parameters, and take the gradients of base rows to zero."""
    for name in (model.text_embedding_name, model.text_head_name):
        grown = model.get_submodule(name)
        assert isinstance(grown, GrownLayer)
        plain = _to_plain_layer(grown)
        for table in plain.parameters():
            mask = partial(_zero_base_rows, num_rows=grown.rows.base_pieces)
            table.register_hook(mask)  # type: ignore[no-untyped-call]
        model.set_submodule(name, plain)


def _zero_base_rows(gradient: Tensor, *, num_rows: int) -> Tensor:
    masked = gradient.clone()
    masked[:num_rows] = 0
    return masked


def _to_plain_layer(grown: GrownLayer) -> nn.Embedding | nn.Linear:
    """The same rows in the layer that the base has: pieces, new, spare."""
    tables = grown.state_dict()
    rows, width = tables["weight"].shape
    layer: nn.Embedding | nn.Linear
    with torch.device("meta"):
        if isinstance(grown, GrownEmbedding):
            layer = nn.Embedding(rows, width)
        else:
            assert isinstance(grown, GrownHead)
            layer = nn.Linear(width, rows, bias="bias" in tables)
    layer.load_state_dict(tables, assign=True)
    layer.train(grown.training)
    return layer
