"""Checkpoints that were damaged on purpose, the way their trainers damaged them, and sound ones that look odd.

Small bases of random weights; where a trainer's optimizer does the damage, torch's own AdamW does it here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentencepiece import sentencepiece_model_pb2 as proto

from tests.check_files import LETTERS, State, extended_sentencepiece, flat_map, old_yaml, saved, state_of
from voxgraft.extend import extend
from voxgraft.families.base import BaseFiles
from voxgraft.families.random_base import make_random_base
from voxgraft.families.random_values import RandomSize
from voxgraft.settings import ExtendSettings
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Additions, NewPiece

SIZES = {"chatterbox": RandomSize(16, 2, 640), "indextts2": RandomSize(16, 2, 1000)}
EMBEDDING = {"chatterbox": "text_emb.weight", "indextts2": "text_embedding.weight"}
SUFFIX = {"chatterbox": ".safetensors", "indextts2": ".pth"}
NEW_PIECES = 160


class Evil:
    """Would leave a file behind wherever it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("canary", "w"))


@dataclass(frozen=True)
class Ground:
    """A base, a grown tokenizer, and the base's tensors grown to it: what every trainer starts from."""

    name: str
    base: BaseFiles
    tokenizer: Path
    folder: Path

    @property
    def pieces(self) -> int:
        return SIZES[self.name].pieces

    @property
    def tables(self) -> list[str]:
        bias = ["text_head.bias"] if self.name == "indextts2" else []
        return [EMBEDDING[self.name], "text_head.weight", *bias]

    @cache  # noqa: B019 (a few small states that live as long as the tests)
    def _grown(self) -> State:
        path = self.folder / f"grown{SUFFIX[self.name]}"
        made = {"checkpoint": self.base.checkpoint, "tokenizer": self.tokenizer, "output": path, "verify": False}
        extend(ExtendSettings.model_validate({**made, "rows": {"init": "mean", "noise": 0.8}}))
        state = state_of(BaseFiles(path.parent, path, self.tokenizer))
        for name in self.tables:  # rows of a real base share a direction; those of random weights do not
            state[name][self.pieces : self.pieces + NEW_PIECES] += 0.03
        return state

    def grown(self) -> State:
        """A copy that may be changed."""
        return {name: tensor.clone() for name, tensor in self._grown().items()}

    def write(self, folder: Path, state: State, **beside: Any) -> Path:
        """As the family's trainers write it: alone, or under `model` with other things beside it."""
        suffix = ".pt" if beside and self.name == "chatterbox" else SUFFIX[self.name]
        path = folder / f"case{suffix}"
        if not beside:
            return saved(path, state)
        torch.save({"model": state, **beside}, path)
        return path


def make_ground(name: str, folder: Path) -> Ground:
    base = make_random_base(name, folder / "base", size=SIZES[name])
    if name == "indextts2":
        grown = extended_sentencepiece(base.tokenizer, folder / "grown.model", SIZES[name].pieces + NEW_PIECES)
        return Ground(name, base, grown, folder)
    own = open_tokenizer(base.tokenizer)
    letters = tuple(chr(code) for code in range(0x1200, 0x1400) if chr(code).isalpha())[: NEW_PIECES - 1]
    pieces = tuple(NewPiece(letter) for letter in letters)
    added = Additions(name, "am", own.kind, own.sha256, "[am]", pieces)
    (folder / "grown.json").write_bytes(own.grown(added))
    return Ground(name, base, folder / "grown.json", folder)


def adam(state: State, names: list[str], *, masked: int, free: int, pieces: int, rate: float = 1e-3) -> dict[str, Any]:
    """Train tables with random gradients: first `free` steps, then `masked` ones in which base rows get none.

    The tables are changed in place; the optimizer's state is what a trainer would save.
    """
    tables = [torch.nn.Parameter(state[name]) for name in names]
    optimizer = torch.optim.AdamW(tables, lr=rate, weight_decay=0.1)
    chance = torch.Generator().manual_seed(3)
    for step in range(free + masked):
        for table in tables:
            table.grad = torch.randn(table.shape, generator=chance)
            if step >= free:
                table.grad[:pieces] = 0
        optimizer.step()
    for name, table in zip(names, tables, strict=True):
        state[name] = table.detach()
    return optimizer.state_dict()


def moved_body(state: State, tables: list[str], share: float) -> State:
    """Every other tensor moved by that share of its length, in a random direction."""
    chance = torch.Generator().manual_seed(5)
    moved = dict(state)
    for name, tensor in state.items():
        if name not in tables and tensor.is_floating_point():
            step = torch.randn(tensor.shape, generator=chance)
            moved[name] = tensor + step * (share * tensor.norm() / step.norm().clamp(min=1e-12))
    return moved


def stand_in(base: State, folder: Path) -> Path:
    """What one trainer builds in place of Chatterbox: an encoder with a spectrogram decoder, and the text table."""
    state = {
        "text_embedding.weight": torch.cat([base["text_emb.weight"], torch.randn(81, 16)]),
        "pos_encoding.pe": torch.randn(1, 50, 16),
        "transformer_encoder.layers.0.self_attn.in_proj_weight": torch.randn(48, 16),
        "mel_decoder.0.weight": torch.randn(16, 16),
        "duration_predictor.0.weight": torch.randn(1, 16),
    }
    path = folder / "checkpoint_best.pt"
    torch.save({"epoch": 3, "step": 100, "model_state_dict": state, "optimizer_state_dict": {}, "loss": 1.0}, path)
    return path


def standalone_sentencepiece(base: Path, path: Path) -> Path:
    """A tokenizer trained afresh, with the library's own order of special pieces."""
    model = proto.ModelProto.FromString(base.read_bytes())
    model.pieces[0].piece, model.pieces[2].piece = model.pieces[2].piece, model.pieces[0].piece
    model.pieces[0].type, model.pieces[2].type = model.pieces[2].type, model.pieces[0].type
    model.trainer_spec.unk_id, model.trainer_spec.bos_id, model.trainer_spec.eos_id = 0, 2, 1
    path.write_bytes(model.SerializeToString())
    return path


def without_letters(base: Path, path: Path, size: int) -> Path:
    """The first pieces of a larger candidate: pairs of letters, and no letter by itself."""
    model = proto.ModelProto.FromString(base.read_bytes())
    letters = [chr(code) for code in range(0x1200, 0x135B) if chr(code).isalpha()]
    pairs = (one + two for one in letters for two in letters)
    lowest = min(piece.score for piece in model.pieces if piece.type == 1)
    while len(model.pieces) < size:
        model.pieces.add(piece=next(pairs), score=lowest, type=1)
    path.write_bytes(model.SerializeToString())
    return path


def padded_data(folder: Path) -> Path:
    """Prepared clips as a batched preprocessing writes them: all as long as the longest, the length stated so."""
    chance = np.random.default_rng(0)
    (folder / "codes").mkdir(parents=True)
    (folder / "text_ids").mkdir()
    lines = []
    for number in range(32):
        own = int(chance.integers(60, 290))
        codes = np.full(300, 52, np.int32)
        codes[:own] = chance.integers(0, 8000, own)
        np.save(folder / "codes" / f"clip{number:03d}.npy", codes)
        np.save(folder / "text_ids" / f"clip{number:03d}.npy", np.array([1002, 1003, 5], np.int32))
        lines.append(json.dumps({"id": f"clip{number:03d}", "duration": own / 50, "code_len": 300}))
    (folder / "train_manifest.jsonl").write_text("\n".join(lines) + "\n")
    return folder


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
    return _with(ground, ground.write(folder, state, **beside))


def _stale(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    kept = adam(state, ground.tables, masked=80, free=10, pieces=ground.pieces)
    return _with(ground, ground.write(folder, state, optimizer=kept, step=90))


def _unfrozen(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    kept = adam(state, ground.tables, masked=0, free=20, pieces=ground.pieces)
    beside = {"optimizer": kept, "step": 20} if ground.name == "indextts2" else {}
    return _with(ground, ground.write(folder, state, **beside))


def _overwritten(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    table = state[EMBEDDING[ground.name]]
    table[: ground.pieces] = table[: ground.pieces].flip(0)
    return _with(ground, ground.write(folder, state))


def _spare_copied(ground: Ground, folder: Path) -> Made:
    state, base = ground.grown(), state_of(ground.base)
    for name in ground.tables:
        state[name][ground.pieces] = base[name][ground.pieces]
    return _with(ground, ground.write(folder, state))


def _spare_twice(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    for name in ground.tables:
        state[name] = torch.cat([state[name], state[name][-1:] * 0.5])
    return _with(ground, ground.write(folder, state))


def _head_left(ground: Ground, folder: Path) -> Made:
    state, base = ground.grown(), state_of(ground.base)
    for name in ground.tables[1:]:
        state[name] = base[name]
    return _with(ground, ground.write(folder, state, epoch=3))


def _noise(ground: Ground, folder: Path) -> Made:
    """New rows from N(0, 0.02), and a training that never moved them."""
    state = ground.grown()
    end = -1 if ground.name == "indextts2" else None
    for name in ground.tables:
        rows = state[name][ground.pieces : end]
        rows.copy_(torch.randn(rows.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    return _with(ground, ground.write(folder, state))


def _three_numbers(ground: Ground, folder: Path) -> Made:
    """Fewer rows than the tokenizer has pieces, and more than the base."""
    state = {name: tensor[:-40] if name in ground.tables else tensor for name, tensor in ground.grown().items()}
    return _with(ground, ground.write(folder, state))


def _not_grown(ground: Ground, folder: Path) -> Made:
    return _with(ground, ground.write(folder, state_of(ground.base)))


def _body(share: float) -> Maker:
    def make(ground: Ground, folder: Path) -> Made:
        return _with(ground, ground.write(folder, moved_body(ground.grown(), ground.tables, share)))

    return make


def _body_not_finite(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    name = next(name for name in state if name not in ground.tables and state[name].dim() == 2)
    state[name][0, 0] = float("nan")
    return _with(ground, ground.write(folder, state))


def _body_missing(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    for name in [name for name in state if name not in ground.tables][:3]:
        del state[name]
    return _with(ground, ground.write(folder, state))


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


def _padded(ground: Ground, folder: Path) -> Made:
    return {**_with(ground, ground.write(folder, ground.grown())), "prepared": padded_data(folder / "prepared")}


def _start_stop(ground: Ground, folder: Path) -> Made:
    gpt = {"number_text_tokens": ground.pieces + NEW_PIECES, "start_text_token": 2, "stop_text_token": 3}
    old = old_yaml(folder / "config.yaml", gpt=gpt)
    return {**_with(ground, ground.write(folder, ground.grown())), "base_config": old}


def _other_config(ground: Ground, folder: Path) -> Made:
    old = old_yaml(folder / "config.yaml", gpt={"number_text_tokens": ground.pieces})
    return {**_with(ground, ground.write(folder, ground.grown())), "base_config": old}


def _code(ground: Ground, folder: Path) -> Made:
    return _with(ground, ground.write(folder, ground.grown(), epoch=3, extra=Evil()))


def _bit_flipped(ground: Ground, folder: Path) -> Made:
    path = ground.write(folder, ground.grown())
    data = bytearray(path.read_bytes())
    at = data.find(ground.grown()["text_head.weight"].numpy().tobytes()[:64])
    data[at + 5] ^= 0x10
    path.write_bytes(data)
    return _with(ground, path)


def _cut_off(ground: Ground, folder: Path) -> Made:
    path = ground.write(folder, ground.grown())
    path.write_bytes(path.read_bytes()[:-1000])
    return _with(ground, path)


def _restarted(ground: Ground, folder: Path) -> Made:
    """A resume that took 24,001 for a mismatch: the optimizer was thrown away, the step kept."""
    state = ground.grown()
    rows = {name: state[name][ground.pieces :].clone() for name in ground.tables}
    kept = adam(rows, ground.tables, masked=0, free=5, pieces=0)
    return _with(ground, ground.write(folder, state, optimizer=kept, step=38_000))


def _other_moments(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    smaller = {name: tensor[:-40].clone() for name, tensor in state.items() if name in ground.tables}
    kept = adam(smaller, ground.tables, masked=0, free=2, pieces=0)
    return _with(ground, ground.write(folder, state, optimizer=kept, step=2))


def _stand_in(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": stand_in(state_of(ground.base), folder)}


def _with(ground: Ground, path: Path) -> Made:
    return {"checkpoint": path, "tokenizer": ground.tokenizer}


T3, INDEX = "chatterbox", "indextts2"
FRESH = "START FRESH"
DAMAGED = [
    Damage(
        "stand-in", T3, _stand_in, FRESH, ("checkpoint-stand-in",), "this never was Chatterbox: nothing of the base"
    ),
    *(
        Damage("masked, with decay", family, _masked, "REPAIR", ("base-rows-shrunk",), "weight decay")
        for family in (T3, INDEX)
    ),
    Damage(
        "masked after it was trained", INDEX, _stale, "REPAIR", ("base-rows-changed", "moments-on-base-rows"), "changed"
    ),
    Damage("unfrozen", T3, _unfrozen, "REPAIR", ("base-rows-changed",), "text rows were changed"),
    Damage("unfrozen", INDEX, _unfrozen, "REPAIR", ("base-rows-changed", "moments-on-base-rows"), "changed"),
    *(
        Damage("rows overwritten", family, _overwritten, "REPAIR", ("base-rows-changed",), "text rows were changed")
        for family in (T3, INDEX)
    ),
    Damage("spare row on the first new piece", INDEX, _spare_copied, "REPAIR", ("spare-row-copied",), "spare row"),
    Damage("spare row counted twice", INDEX, _spare_twice, "REPAIR", ("spare-counted-twice",), "spare row too many"),
    *(
        Damage("head not grown", family, _head_left, "REPAIR", ("head-not-grown",), "the head did not")
        for family in (T3, INDEX)
    ),
    *(
        Damage("new rows still noise", family, _noise, FRESH, ("new-rows-random",), "nothing was learnt")
        for family in (T3, INDEX)
    ),
    Damage("three sizes", T3, _three_numbers, FRESH, ("ids-past-table",), "do not belong together"),
    Damage("no new rows", T3, _not_grown, "REPAIR", ("ids-past-table",), "no rows for the new pieces"),
    Damage("body moved", T3, _body(0.3), "REPAIR", ("body-changed",), "the body moved by 30%"),
    Damage("body moved", INDEX, _body(0.3), "REPAIR", ("body-changed",), "the body moved by 30%"),
    Damage("another body", T3, _body(1.2), FRESH, ("body-changed",), "the body is another"),
    Damage("body not finite", INDEX, _body_not_finite, FRESH, ("body-not-finite",), "blew up"),
    Damage("body not whole", INDEX, _body_missing, "REPAIR", ("body-missing",), "not in the file"),
    Damage("flat map", T3, _flat_map, FRESH, ("tokenizer-flat-map",), "a flat map in place of a tokenizer"),
    Damage("tokenizer of its own", INDEX, _standalone, FRESH, ("special-ids-moved",), "numbers everything anew"),
    Damage("no single characters", INDEX, _no_letters, FRESH, ("proof-unknown-letters",), "have no piece"),
    Damage("padded codes", INDEX, _padded, FRESH, ("prepared-codes-padded",), "it learnt padding"),
    Damage("wrong start and stop", INDEX, _start_stop, FRESH, ("config-start-stop",), "the wrong ids"),
    Damage("config unlike rows", INDEX, _other_config, "RESUME", ("config-vs-rows",), "its config is not its own"),
    Damage("code in the pickle", INDEX, _code, "REPAIR", ("pickle-code",), "carries code"),
    Damage("a bit flipped", INDEX, _bit_flipped, FRESH, ("torch-checksum",), "damaged after it was written"),
    Damage("cut off", T3, _cut_off, FRESH, ("checkpoint-truncated",), "cannot be read"),
    Damage("cut off", INDEX, _cut_off, FRESH, (), "cannot be read"),
    Damage("optimizer thrown away", INDEX, _restarted, "RESUME", ("optimizer-restarted",), "nothing is wrong"),
    Damage("optimizer of another table", INDEX, _other_moments, "RESUME", ("moments-mismatch",), "not to be used"),
]


def _base_itself(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": ground.write(folder, state_of(ground.base))}


def _fresh(ground: Ground, folder: Path) -> Made:
    return _with(ground, ground.write(folder, ground.grown()))


def _nameless(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": ground.write(folder, ground.grown())}


def _rows_trained(ground: Ground, folder: Path) -> Made:
    """New rows alone in the optimizer, as it should be."""
    state = ground.grown()
    rows = {name: state[name][ground.pieces : ground.pieces + NEW_PIECES].clone() for name in ground.tables}
    kept = adam(rows, ground.tables, masked=0, free=10, pieces=0)
    for name in ground.tables:
        state[name][ground.pieces : ground.pieces + NEW_PIECES] = rows[name]
    return _with(ground, ground.write(folder, state, optimizer=kept, step=10, epoch=1))


def _rounded(dtype: torch.dtype) -> Maker:
    def make(ground: Ground, folder: Path) -> Made:
        state = {name: tensor.to(dtype) for name, tensor in ground.grown().items()}
        return _with(ground, ground.write(folder, state))

    return make


def _wrapped(ground: Ground, folder: Path) -> Made:
    beside = {"epoch": 3, "scheduler": {"last_epoch": 10}, "rng": torch.get_rng_state(), "name": "x"}
    return _with(ground, ground.write(folder, ground.grown(), **beside))


HEALTHY = [
    *((f"the base itself ({family})", family, _base_itself) for family in (T3, INDEX)),
    *((f"grown and not trained yet ({family})", family, _fresh) for family in (T3, INDEX)),
    *((f"new rows trained, optimizer inside ({family})", family, _rows_trained) for family in (T3, INDEX)),
    *((f"exported as bf16 ({family})", family, _rounded(torch.bfloat16)) for family in (T3, INDEX)),
    ("exported as fp16", T3, _rounded(torch.float16)),
    ("merged, with a body that moved a little", T3, _body(0.02)),
    ("merged, with a body that moved a little (indextts2)", INDEX, _body(0.02)),
    ("other things beside the model", INDEX, _wrapped),
    *((f"grown, the tokenizer not named ({family})", family, _nameless) for family in (T3, INDEX)),
]
