"""The table of sound checkpoints that look odd: none of them may raise an alarm."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.check_files import state_of
from tests.damaged_cases import Made, Maker, body_at, with_tokenizer
from tests.damaged_checkpoints import INDEX, NEW_PIECES, T3, Ground, adam


def _base_itself(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": ground.write(folder, state_of(ground.base))}


def _fresh(ground: Ground, folder: Path) -> Made:
    return with_tokenizer(ground, ground.write(folder, ground.grown()))


def _nameless(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": ground.write(folder, ground.grown())}


def _rows_trained(ground: Ground, folder: Path) -> Made:
    """New rows alone in the optimizer, as it should be."""
    state = ground.grown()
    rows = {name: state[name][ground.pieces : ground.pieces + NEW_PIECES].clone() for name in ground.tables}
    kept = adam(rows, ground.tables, masked=0, free=10, pieces=0)
    for name in ground.tables:
        state[name][ground.pieces : ground.pieces + NEW_PIECES] = rows[name]
    return with_tokenizer(ground, ground.write(folder, state, optimizer=kept, step=10, epoch=1))


def _rounded(dtype: torch.dtype) -> Maker:
    def make(ground: Ground, folder: Path) -> Made:
        state = {name: tensor.to(dtype) for name, tensor in ground.grown().items()}
        return with_tokenizer(ground, ground.write(folder, state))

    return make


def _wrapped(ground: Ground, folder: Path) -> Made:
    beside = {"epoch": 3, "scheduler": {"last_epoch": 10}, "rng": torch.get_rng_state(), "name": "x"}
    return with_tokenizer(ground, ground.write(folder, ground.grown(), **beside))


HEALTHY = [
    *((f"the base itself ({family})", family, _base_itself) for family in (T3, INDEX)),
    *((f"grown and not trained yet ({family})", family, _fresh) for family in (T3, INDEX)),
    *((f"new rows trained, optimizer inside ({family})", family, _rows_trained) for family in (T3, INDEX)),
    *((f"exported as bf16 ({family})", family, _rounded(torch.bfloat16)) for family in (T3, INDEX)),
    ("exported as fp16", T3, _rounded(torch.float16)),
    ("merged, with a body that moved a little", T3, body_at(0.01)),
    ("merged, with a body that moved a little (indextts2)", INDEX, body_at(0.01)),
    ("other things beside the model", INDEX, _wrapped),
    *((f"grown, the tokenizer not named ({family})", family, _nameless) for family in (T3, INDEX)),
]
