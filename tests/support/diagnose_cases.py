"""Checkpoints for `diagnose`: damaged on purpose, with the finding that each must get, and healthy ones that look odd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.check_files import LETTERS, flat_map, old_yaml, state_of
from tests.support.damaged_checkpoints import (
    EMBEDDING,
    INDEX,
    NEW_PIECES,
    SIZES,
    T3,
    Evil,
    Ground,
    adam,
    interleaved,
    moved_body,
    not_merged,
    padded_data,
    stand_in,
    standalone_sentencepiece,
    without_letters,
)
from tools.random_bases import make_random_base

SPEECH_HEAD = {T3: "speech_head.weight", INDEX: "mel_head.weight"}
Made = dict[str, Any]
Maker = Callable[[Ground, Path], Made]
"""Gives the settings of `diagnose` beside the base: at least `checkpoint`."""


@dataclass(frozen=True)
class Damage:
    """One case: what was done, who does it, and what must be said of it."""

    name: str
    family: str
    make: Maker
    word: str
    codes: tuple[str, ...]
    says: str
    """Words of the verdict's sentence."""


def _masked(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    kept = adam(state, ground.tables, masked=60, free=0, pieces=ground.pieces)
    beside = {"optimizer": kept, "step": 60} if ground.name == "indextts2" else {}
    return with_tokenizer(ground, ground.write(folder, state, **beside))


def _stale(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    kept = adam(state, ground.tables, masked=80, free=10, pieces=ground.pieces)
    return with_tokenizer(ground, ground.write(folder, state, optimizer=kept, step=90))


def _unfrozen(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    kept = adam(state, ground.tables, masked=0, free=20, pieces=ground.pieces)
    beside = {"optimizer": kept, "step": 20} if ground.name == "indextts2" else {}
    return with_tokenizer(ground, ground.write(folder, state, **beside))


def _overwritten(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    table = state[EMBEDDING[ground.name]]
    table[: ground.pieces] = table[: ground.pieces].flip(0)
    return with_tokenizer(ground, ground.write(folder, state))


def _spare_copied(ground: Ground, folder: Path) -> Made:
    state, base = ground.grown(), state_of(ground.base)
    for name in ground.tables:
        state[name][ground.pieces] = base[name][ground.pieces]
    return with_tokenizer(ground, ground.write(folder, state))


def _spare_twice(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    for name in ground.tables:
        state[name] = torch.cat([state[name], state[name][-1:] * 0.5])
    return with_tokenizer(ground, ground.write(folder, state))


def _head_left(ground: Ground, folder: Path) -> Made:
    state, base = ground.grown(), state_of(ground.base)
    for name in ground.tables[1:]:
        state[name] = base[name]
    return with_tokenizer(ground, ground.write(folder, state, epoch=3))


def _noise(ground: Ground, folder: Path) -> Made:
    """New rows from N(0, 0.02), and a training that never moved them."""
    state = ground.grown()
    end = -1 if ground.name == "indextts2" else None
    for name in ground.tables:
        rows = state[name][ground.pieces : end]
        rows.copy_(torch.randn(rows.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    return with_tokenizer(ground, ground.write(folder, state))


def _three_numbers(ground: Ground, folder: Path) -> Made:
    """Fewer rows than the tokenizer has pieces, and more than the base."""
    state = {name: tensor[:-40] if name in ground.tables else tensor for name, tensor in ground.grown().items()}
    return with_tokenizer(ground, ground.write(folder, state))


def _not_grown(ground: Ground, folder: Path) -> Made:
    return with_tokenizer(ground, ground.write(folder, state_of(ground.base)))


def body_at(share: float) -> Maker:
    def make(ground: Ground, folder: Path) -> Made:
        return with_tokenizer(ground, ground.write(folder, moved_body(ground.grown(), ground.tables, share)))

    return make


def _body_not_finite(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    name = next(name for name in state if name not in ground.tables and state[name].dim() == 2)
    state[name][0, 0] = float("nan")
    return with_tokenizer(ground, ground.write(folder, state))


def _other_form(ground: Ground, folder: Path) -> Made:
    """One matrix of the body for a model of another width, one of whole numbers."""
    state = ground.grown()
    first, second = [name for name in state if name not in ground.tables and state[name].dim() == 2][:2]
    state[first] = torch.randn(3, 5)
    state[second] = (state[second] * 1000).to(torch.int32)
    return with_tokenizer(ground, ground.write(folder, state))


def _all_other_forms(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    for name in [name for name in state if name not in ground.tables and state[name].dim()]:
        state[name] = torch.randn(*(size + 1 for size in state[name].shape))
    return with_tokenizer(ground, ground.write(folder, state))


def _all_whole_numbers(ground: Ground, folder: Path) -> Made:
    body = {name: tensor for name, tensor in ground.grown().items() if name not in ground.tables}
    state = {**ground.grown(), **{name: tensor.to(torch.int32) for name, tensor in body.items()}}
    return with_tokenizer(ground, ground.write(folder, state))


def _emptied(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    state[SPEECH_HEAD[ground.name]] *= 0
    return with_tokenizer(ground, ground.write(folder, state))


def _no_head(ground: Ground, folder: Path) -> Made:
    state = {name: tensor for name, tensor in ground.grown().items() if name not in ground.tables[1:]}
    return with_tokenizer(ground, ground.write(folder, state))


def _new_row_not_finite(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    state[ground.tables[0]][ground.pieces + 3] = float("nan")
    return with_tokenizer(ground, ground.write(folder, state))


def _new_rows_not_finite(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    state[ground.tables[0]][ground.pieces : ground.pieces + NEW_PIECES] = float("nan")
    return with_tokenizer(ground, ground.write(folder, state))


def _new_rows_empty(count: int) -> Maker:
    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        state[ground.tables[0]][ground.pieces + 2 : ground.pieces + 2 + count] = 0
        return with_tokenizer(ground, ground.write(folder, state))

    return make


def _body_missing(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    for name in [name for name in state if name not in ground.tables][:3]:
        del state[name]
    return with_tokenizer(ground, ground.write(folder, state))


def _flat_map(ground: Ground, folder: Path) -> Made:
    tokenizer = flat_map(ground.base.tokenizer, folder / "merged.json", LETTERS)
    base = state_of(ground.base)
    state = {name: ground.grown()[name][: ground.pieces + len(LETTERS)] for name in ground.tables}
    return {"checkpoint": ground.write(folder, {**base, **state}), "tokenizer": tokenizer}


def _standalone(ground: Ground, folder: Path) -> Made:
    tokenizer = standalone_sentencepiece(ground.tokenizer, folder / "standalone.model")
    return {"checkpoint": ground.write(folder, ground.grown()), "tokenizer": tokenizer}


def _no_letters(ground: Ground, folder: Path) -> Made:
    tokenizer = without_letters(ground.base.tokenizer, folder / "pairs.model", ground.pieces + NEW_PIECES)
    return {"checkpoint": ground.write(folder, ground.grown()), "tokenizer": tokenizer, "language": "am"}


def _interleaved(ground: Ground, folder: Path) -> Made:
    tokenizer = interleaved(ground.tokenizer, folder / "interleaved.model")
    return {"checkpoint": ground.write(folder, ground.grown()), "tokenizer": tokenizer}


def _padded(ground: Ground, folder: Path) -> Made:
    return {
        **with_tokenizer(ground, ground.write(folder, ground.grown())),
        "prepared": padded_data(folder / "prepared"),
    }


def _start_stop(ground: Ground, folder: Path) -> Made:
    gpt = {"number_text_tokens": ground.pieces + NEW_PIECES, "start_text_token": 2, "stop_text_token": 3}
    old = old_yaml(folder / "config.yaml", gpt=gpt)
    return {**with_tokenizer(ground, ground.write(folder, ground.grown())), "training_config": old}


def _other_config(ground: Ground, folder: Path) -> Made:
    old = old_yaml(folder / "config.yaml", gpt={"number_text_tokens": ground.pieces})
    return {**with_tokenizer(ground, ground.write(folder, ground.grown())), "training_config": old}


def _code(ground: Ground, folder: Path) -> Made:
    return with_tokenizer(ground, ground.write(folder, ground.grown(), epoch=3, extra=Evil()))


def _bit_flipped(ground: Ground, folder: Path) -> Made:
    path = ground.write(folder, ground.grown())
    data = bytearray(path.read_bytes())
    at = data.find(ground.grown()["text_head.weight"].numpy().tobytes()[:64])
    data[at + 5] ^= 0x10
    path.write_bytes(data)
    return with_tokenizer(ground, path)


def _cut_off(ground: Ground, folder: Path) -> Made:
    path = ground.write(folder, ground.grown())
    path.write_bytes(path.read_bytes()[:-1000])
    return with_tokenizer(ground, path)


def _restarted(ground: Ground, folder: Path) -> Made:
    """A resume that took 24,001 for a mismatch: the optimizer was thrown away, the step kept."""
    state = ground.grown()
    rows = {name: state[name][ground.pieces :].clone() for name in ground.tables}
    kept = adam(rows, ground.tables, masked=0, free=5, pieces=0)
    return with_tokenizer(ground, ground.write(folder, state, optimizer=kept, step=38_000))


def _other_moments(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    smaller = {name: tensor[:-40].clone() for name, tensor in state.items() if name in ground.tables}
    kept = adam(smaller, ground.tables, masked=0, free=2, pieces=0)
    return with_tokenizer(ground, ground.write(folder, state, optimizer=kept, step=2))


def _prefixed(ground: Ground, folder: Path) -> Made:
    prefix = "module." if ground.name == T3 else "module._orig_mod."
    return with_tokenizer(
        ground, ground.write(folder, {prefix + name: tensor for name, tensor in ground.grown().items()})
    )


def _in_a_class(ground: Ground, folder: Path) -> Made:
    prefix = "t3." if ground.name == T3 else "gpt."
    return with_tokenizer(
        ground, ground.write(folder, {prefix + name: tensor for name, tensor in ground.grown().items()})
    )


def _not_merged(ground: Ground, folder: Path) -> Made:
    return with_tokenizer(ground, ground.write(folder, not_merged(ground.grown(), whole=True)))


def _adapter_alone(ground: Ground, folder: Path) -> Made:
    return with_tokenizer(ground, ground.write(folder, not_merged(ground.grown(), whole=False)))


def _whole_object(ground: Ground, folder: Path) -> Made:
    path = folder / "model.pth"
    torch.save(torch.nn.Linear(2, 2), path)
    return with_tokenizer(ground, path)


def _other_base(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": make_random_base(ground.name, folder / "other", size=SIZES[ground.name], seed=9).checkpoint}


def _equal_rows(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    for name in ground.tables[:2]:
        state[name][ground.pieces : ground.pieces + NEW_PIECES] = state[name][ground.pieces]
    return with_tokenizer(ground, ground.write(folder, state))


def _stand_in(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": stand_in(state_of(ground.base), folder)}


def with_tokenizer(ground: Ground, path: Path) -> Made:
    return {"checkpoint": path, "tokenizer": ground.tokenizer}


FRESH = "START FRESH"
DAMAGED = [
    Damage(
        "stand-in", T3, _stand_in, FRESH, ("checkpoint-stand-in",), "this was never Chatterbox, so nothing of the base"
    ),
    *(
        Damage("masked, with decay", family, _masked, "REPAIR", ("base-rows-shrunk",), "weight decay")
        for family in (T3, INDEX)
    ),
    Damage("masked after training", INDEX, _stale, "REPAIR", ("base-rows-changed", "moments-on-base-rows"), "changed"),
    Damage("unfrozen", T3, _unfrozen, "REPAIR", ("base-rows-changed",), "text rows were changed"),
    Damage("unfrozen", INDEX, _unfrozen, "REPAIR", ("base-rows-changed", "moments-on-base-rows"), "changed"),
    *(
        Damage("rows overwritten", family, _overwritten, "REPAIR", ("base-rows-changed",), "text rows were changed")
        for family in (T3, INDEX)
    ),
    Damage(
        "spare row on the first new token", INDEX, _spare_copied, "REPAIR", ("spare-row-copied",), "spare (unused) row"
    ),
    Damage("spare row counted twice", INDEX, _spare_twice, "REPAIR", ("spare-counted-twice",), "spare row too many"),
    *(
        Damage("head not extended", family, _head_left, "REPAIR", ("head-not-grown",), "but not the head")
        for family in (T3, INDEX)
    ),
    *(
        Damage("new rows still noise", family, _noise, FRESH, ("new-rows-random",), "was not learned")
        for family in (T3, INDEX)
    ),
    Damage("three sizes", T3, _three_numbers, "REPAIR", ("ids-past-table",), "more tokens than it has rows for"),
    Damage("no new rows", T3, _not_grown, "REPAIR", ("ids-past-table",), "no rows for the new tokens"),
    Damage("backbone moved", T3, body_at(0.1), "REPAIR", ("body-changed",), "the backbone changed by 10.0%"),
    Damage("backbone moved", INDEX, body_at(0.1), "REPAIR", ("body-changed",), "the backbone changed by 10.0%"),
    Damage("another backbone", T3, body_at(0.5), FRESH, ("body-changed",), "the backbone is another one"),
    Damage("backbone not finite", INDEX, _body_not_finite, "REPAIR", ("body-not-finite",), "not finite"),
    Damage("tensors missing", INDEX, _body_missing, "REPAIR", ("body-missing",), "missing from the file"),
    *(
        case
        for family in (T3, INDEX)
        for case in (
            Damage(
                "tensors of another shape or dtype",
                family,
                _other_form,
                "REPAIR",
                ("body-form",),
                "another shape or type",
            ),
            Damage(
                "another model size", family, _all_other_forms, FRESH, ("body-form",), "the backbone is another one"
            ),
            Damage("integers only", family, _all_whole_numbers, FRESH, ("body-form",), "the backbone is another one"),
            Damage("speech head zero", family, _emptied, "REPAIR", ("body-lost",), "nothing in common with the base's"),
            Damage("head missing", family, _no_head, "REPAIR", ("head-missing",), "the text head is missing"),
            Damage(
                "one new row not finite", family, _new_row_not_finite, "REPAIR", ("tensor-not-finite",), "NaN, infinite"
            ),
            Damage("new rows not finite", family, _new_rows_not_finite, FRESH, ("tensor-not-finite",), "rows are lost"),
            Damage("one new row zero", family, _new_rows_empty(1), "RESUME", ("new-rows-zero",), "still empty"),
            Damage("new rows zero", family, _new_rows_empty(150), FRESH, ("new-rows-zero",), "was not learned"),
            Damage("new rows equal", family, _equal_rows, "RESUME", ("new-rows-equal",), "copies of one another"),
            Damage("of another base", family, _other_base, FRESH, ("body-lost",), "the backbone is another one"),
            Damage(
                "adapter not merged",
                family,
                _not_merged,
                "REPAIR",
                ("checkpoint-low-rank",),
                "cannot be judged in this form",
            ),
            Damage(
                "adapter alone",
                family,
                _adapter_alone,
                "REPAIR",
                ("checkpoint-low-rank",),
                "cannot be judged in this form",
            ),
            Damage(
                "names prefixed by a trainer",
                family,
                _in_a_class,
                "RESUME",
                ("checkpoint-prefixed",),
                "names have a prefix",
            ),
            Damage(
                "names prefixed by a wrapper",
                family,
                _prefixed,
                "RESUME",
                ("checkpoint-prefixed",),
                "names have a prefix",
            ),
        )
    ),
    Damage("flat map", T3, _flat_map, FRESH, ("tokenizer-flat-map",), "a flat map instead of a tokenizer"),
    Damage("standalone tokenizer", INDEX, _standalone, FRESH, ("special-ids-moved",), "assigns all ids again"),
    Damage("no single characters", INDEX, _no_letters, FRESH, ("proof-unknown-letters",), "have no token"),
    Damage("old text encoded differently", INDEX, _interleaved, "RESUME", ("proof-changed",), "encodes old languages"),
    Damage("padded codes", INDEX, _padded, FRESH, ("prepared-codes-padded",), "trained on padding"),
    Damage("wrong start and stop", INDEX, _start_stop, FRESH, ("config-start-stop",), "wrong start and stop ids"),
    Damage(
        "config unlike rows", INDEX, _other_config, "RESUME", ("config-vs-rows",), "its config belongs to another model"
    ),
    Damage("whole model object", INDEX, _whole_object, "REPAIR", ("torch-contents",), "cannot be judged in this form"),
    Damage("code in the pickle", INDEX, _code, "REPAIR", ("pickle-code",), "contains code"),
    Damage("flipped bit", INDEX, _bit_flipped, FRESH, ("torch-checksum",), "damaged after it was written"),
    Damage("cut off", T3, _cut_off, FRESH, ("checkpoint-truncated",), "cannot be read"),
    Damage("cut off", INDEX, _cut_off, FRESH, (), "cannot be read"),
    Damage("optimizer discarded", INDEX, _restarted, "RESUME", ("optimizer-restarted",), "nothing is wrong"),
    Damage("optimizer of another table", INDEX, _other_moments, "RESUME", ("moments-mismatch",), "must not be used"),
]


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
