"""Dead rows: new rows whose pieces were in the texts of the last steps, and that have never had a gradient.

Looks at the data order and at the optimizer's moments, which every saved step holds; remembers nothing itself.

Shapes: N new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.corpus.clips import ClipDataset
from voxgraft.corpus.obstacles import count_text_ids
from voxgraft.corpus.stream import DeterministicSampler
from voxgraft.errors import Finding, finding
from voxgraft.nn.grown import GrownLayer, RowLayout
from voxgraft.training.parts import TrainableModel

__all__ = ["DeadRowMonitor"]

DEAD_ROW_WINDOW_STEPS = 250
"""Steps before a look whose texts count. A moment fades, but not within so few steps."""
MIN_CLIPS_SEEN = 3
"""Clips that must have had a piece: under a loss scaler, steps may be left out at the beginning."""
MAX_ROWS_NAMED = 8


class DeadRowMonitor:
    """Looks for dead rows of one training."""

    def __init__(
        self,
        trained: TrainableModel,
        optimizer: torch.optim.Optimizer,
        stream: DeterministicSampler,
        sets: Sequence[ClipDataset],
        piece_of: Callable[[int], str],
    ) -> None:
        """`piece_of` gives the piece of an id, as people know it."""
        self._trained, self._optimizer, self._piece_of = trained, optimizer, piece_of
        self._stream, self._sets = stream, sets
        self._in_data: NDArray[np.bool_] | None = None

    def findings(self, step: int) -> list[Finding]:
        """Dead rows of each text table after a step. The same rows give the same text."""
        layers = self._layers()
        if not layers or step < 1:
            return []
        layout = next(iter(layers.values())).rows
        still = {name: self._rows_in_data(layout) & ~self._rows_with_gradient(layer) for name, layer in layers.items()}
        if not any(rows.any() for rows in still.values()):
            return []
        met = self._count_clips_seen(step, layout) >= MIN_CLIPS_SEEN
        return [
            self._finding(name, np.flatnonzero(rows & met) + layout.base_pieces, int(met.sum()))
            for name, rows in still.items()
            if (rows & met).any()
        ]

    def _layers(self) -> Mapping[str, GrownLayer]:
        model = self._trained.model
        names = (model.text_embedding_name, model.text_head_name)
        modules = {name: model.get_submodule(name) for name in names}
        return {name: found for name, found in modules.items() if isinstance(found, GrownLayer) and found.rows.num_new}

    def _rows_in_data(self, layout: RowLayout) -> NDArray[np.bool_]:
        """Rows whose pieces stand in the data at all, counted once. [N]"""
        if self._in_data is None:
            self._in_data = count_text_ids(self._sets, layout.num_ids)[layout.base_pieces :] > 0
        return self._in_data

    def _count_clips_seen(self, step: int, layout: RowLayout) -> NDArray[np.int64]:
        """In how many clips of the last steps each new row's piece was to be seen. [N]"""
        met = np.zeros(layout.num_new, dtype=np.int64)
        for number in range(max(1, step - DEAD_ROW_WINDOW_STEPS + 1), step + 1):
            for item in self._stream.step(number):
                if not item.silent:
                    rows = np.unique(self._sets[item.set].text_ids(item.clip)) - layout.base_pieces
                    met[rows[(rows >= 0) & (rows < layout.num_new)]] += 1
        return met

    def _rows_with_gradient(self, layer: GrownLayer) -> NDArray[np.bool_]:
        """Rows whose weight has had a gradient, as the moments tell. [N]"""
        moments = self._optimizer.state.get(layer.new_weight, {})
        alive = torch.zeros(layer.rows.num_new, dtype=torch.bool, device=layer.new_weight.device)
        for name in ("exp_avg", "exp_avg_sq"):
            if isinstance(moments.get(name), Tensor):
                alive |= (moments[name] != 0).any(dim=1)
        found: NDArray[np.bool_] = alive.cpu().numpy()
        return found

    def _finding(self, table: str, ids: NDArray[np.int64], num_met: int) -> Finding:
        named = ", ".join(f"{self._piece_of(token)!r} ({token})" for token in ids[:MAX_ROWS_NAMED].tolist())
        more = f" and {len(ids) - MAX_ROWS_NAMED:,} more" if len(ids) > MAX_ROWS_NAMED else ""
        text = f"{len(ids):,} new rows whose pieces were learnt from have had no gradient: {named}{more}"
        return finding("dead-rows", text, expected=f"none of {num_met:,}", where=table)
