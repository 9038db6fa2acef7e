"""A table of checkpoints in the formats of both families, each with the verdict and the finding that it must get.

Beside what `damaged_cases` has from the trainers' own habits, here are neighbours: the same fault in another table, at
another place, in another wrapping, with and without an optimizer, and sound files that look like damaged ones.
"""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2 as proto

from tests.support.check_files import State, saved, state_of
from tests.support.damaged_checkpoints import INDEX, NEW_PIECES, T3, Ground, adam, moved_body

Made = dict[str, Any]
"""Settings of `diagnose` beside the base. `lost`: new rows that no repair can bring back, by table."""
Change = Callable[[Ground, State], None]

RESUME, REPAIR, FRESH = "RESUME", "REPAIR", "START FRESH"
SPEECH = {
    T3: ("speech_emb.weight", "speech_head.weight"),
    INDEX: ("mel_embedding.weight", "mel_head.weight"),
}
MARKS = {T3: (6561, 6562), INDEX: (8192, 8193)}
"""Start and stop of speech."""
POSITIONS = {T3: "speech_pos_emb.emb.weight", INDEX: "mel_pos_embedding.emb.weight"}
COMPUTED = ".pos_enc.pe"
SPARE = {T3: 0, INDEX: 1}


@dataclass(frozen=True)
class Case:
    """One checkpoint: how it is made, what must be said of it, and what a repair may change beside the fault."""

    name: str
    family: str
    make: Callable[[Ground, Path], Made]
    word: str
    code: str = ""
    """The main finding; empty where there is none."""
    says: str = ""
    """Words of the verdict's sentence."""
    keeps_body: bool = True
    """Whether a repair leaves the body's finite values as they are in the file or in the base."""
    not_codes: tuple[str, ...] = field(default=())
    by_hand: bool = False
    """Whether the user has to do something before any command can help."""


def new_rows(ground: Ground) -> slice:
    return slice(ground.pieces, ground.pieces + NEW_PIECES)


def body_of(ground: Ground, state: State) -> list[str]:
    """Matrices of the body, those that are tables of rows or computed left out."""
    tables = {*ground.tables, *SPEECH[ground.name], POSITIONS[ground.name]}
    return [name for name in state if name not in tables and state[name].dim() == 2 and "pos" not in name]


def changed(change: Change, lost: Callable[[Ground], dict[str, list[int]]] | None = None) -> Callable[..., Made]:
    """A grown and trained file with one thing done to it."""

    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        change(ground, state)
        made: Made = {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}
        return {**made, "lost": lost(ground)} if lost else made

    return make


# ---- 1: a row too many, or a piece too few -----------------------------------------------------------------------


def _tokenizer_without_last(ground: Ground, folder: Path, count: int = 1) -> Path:
    """The same tokenizer with its last pieces taken away."""
    if ground.name == INDEX:
        model = proto.ModelProto.FromString(ground.tokenizer.read_bytes())
        del model.pieces[-count:]
        path = folder / "shorter.model"
        path.write_bytes(model.SerializeToString())
        return path
    document = json.loads(ground.tokenizer.read_text(encoding="utf-8"))
    most = ground.pieces + NEW_PIECES - count
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {piece: at for piece, at in vocabulary.items() if at < most}
    document["added_tokens"] = [token for token in document["added_tokens"] if token["id"] < most]
    kept = document["model"]["vocab"]
    merges = document["model"].get("merges", [])
    document["model"]["merges"] = [
        one for one in merges if "".join(one.split(" ") if isinstance(one, str) else one) in kept
    ]
    path = folder / "shorter.json"
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return path


def piece_too_few(ground: Ground, folder: Path) -> Made:
    return {
        "checkpoint": ground.write(folder, ground.grown()),
        "tokenizer": _tokenizer_without_last(ground, folder),
    }


def piece_too_few_with_moments(ground: Ground, folder: Path) -> Made:
    state = ground.grown()
    kept = adam(state, ground.tables, masked=5, free=0, pieces=ground.pieces)
    for name in ground.tables:
        state[name][: ground.pieces] = state_of(ground.base)[name][: ground.pieces]
    path = ground.write(folder, state, optimizer=kept, step=5)
    return {"checkpoint": path, "tokenizer": _tokenizer_without_last(ground, folder)}


def second_spare(how: str) -> Callable[[Ground, Path], Made]:
    def make(ground: Ground, folder: Path) -> Made:
        state, base = ground.grown(), state_of(ground.base)
        for name in ground.tables:
            spare = base[name][ground.pieces : ground.pieces + 1]
            more = {"a copy": spare, "decayed": spare * 0.97, "zero": spare * 0}.get(how, torch.randn_like(spare))
            state[name] = torch.cat([state[name][:-1], more, state[name][-1:]])
        if how != "never trained":
            return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}
        tables = [torch.nn.Parameter(state[name].clone()) for name in ground.tables]
        optimizer = torch.optim.AdamW(tables, lr=1e-4)
        for table in tables:
            table.grad = torch.randn_like(table)
            table.grad[: ground.pieces] = 0
            table.grad[ground.pieces + NEW_PIECES :] = 0
        optimizer.step()
        path = ground.write(folder, state, optimizer=optimizer.state_dict(), step=1)
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


# ---- 2: computed tables --------------------------------------------------------------------------------------------


def trained_body(share: float) -> Callable[[Ground, Path], Made]:
    """As a trainer leaves it: computed tables stay what they are."""

    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        moved = moved_body(state, ground.tables, share)
        moved |= {name: tensor for name, tensor in state.items() if name.endswith(COMPUTED)}
        return {"checkpoint": ground.write(folder, moved), "tokenizer": ground.tokenizer}

    return make


# ---- 3: rows behind the text --------------------------------------------------------------------------------------


def speech_rows(table: int, rows: Callable[[Ground], Iterable[int]], how: str) -> Callable[..., Made]:
    def change(ground: Ground, state: State) -> None:
        name, picked = SPEECH[ground.name][table], list(rows(ground))
        if how == "zero":
            state[name][picked] = 0
        elif how == "random":
            state[name][picked] = torch.randn(len(picked), state[name].shape[1])
        elif how == "swapped":
            state[name][picked] = state[name][picked[::-1]]
        elif how == "nan":
            state[name][picked] = float("nan")
        else:
            state[name][picked] *= float(how)

    return changed(change)


def both(ground: Ground) -> tuple[int, int]:
    return MARKS[ground.name]


def start(ground: Ground) -> tuple[int]:
    return (MARKS[ground.name][0],)


def stop(ground: Ground) -> tuple[int]:
    return (MARKS[ground.name][1],)


def _position_zero(ground: Ground, state: State) -> None:
    state[POSITIONS[ground.name]][:3] = 0


def _stop_bias_sunk(_ground: Ground, state: State) -> None:
    state["mel_head.bias"][MARKS[INDEX][1]] = -1e4


def _both_tables(ground: Ground, state: State) -> None:
    for name in SPEECH[ground.name]:
        state[name][list(MARKS[ground.name])] = 0


def _text_marks_zero(ground: Ground, state: State) -> None:
    ids = [255, 0] if ground.name == T3 else [0, 1]
    for name in ground.tables[:2]:
        state[name][ids] = 0


def trained_speech(ground: Ground, folder: Path) -> Made:
    """Speech tables that were trained a little, start and stop more than others: no fault."""
    state = ground.grown()
    chance = torch.Generator().manual_seed(8)
    for name in SPEECH[ground.name]:
        step = torch.randn(state[name].shape, generator=chance)
        state[name] += 0.01 * step * state[name].norm() / step.norm()
        marks = list(MARKS[ground.name])
        state[name][marks] *= 1.2
    return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}


# ---- 4: pieces that no text becomes -------------------------------------------------------------------------------


def dead_piece(ground: Ground, folder: Path) -> Made:
    model = proto.ModelProto.FromString(ground.tokenizer.read_bytes())
    model.pieces[-1].piece = "lowercase\u12ab"
    path = folder / "dead.model"
    path.write_bytes(model.SerializeToString())
    return {"checkpoint": ground.write(folder, ground.grown()), "tokenizer": path}


# ---- 6: formats, wrappings, growth, single values ----------------------------------------------------------------


def legacy(*, damaged: bool = False, wrapped: bool = True) -> Callable[[Ground, Path], Made]:
    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        if damaged:
            for name in ground.tables:
                state[name][: ground.pieces] *= 0.98
        path = folder / "old.pth"
        content: Any = {"model": state, "step": 3} if wrapped else state
        torch.save(content, path, _use_new_zipfile_serialization=False)
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


def legacy_cut(ground: Ground, folder: Path) -> Made:
    made = legacy()(ground, folder)
    made["checkpoint"].write_bytes(made["checkpoint"].read_bytes()[:-5000])
    return made


def packed(how: str) -> Callable[[Ground, Path], Made]:
    """A whole file inside something else."""

    def make(ground: Ground, folder: Path) -> Made:
        inner, path = ground.write(folder, ground.grown()), folder / "packed.pth"
        if how == "tar":
            with tarfile.open(path, "w") as tar:
                tar.add(inner, inner.name)
        elif how == "compressed":
            torch.save(ground.grown(), inner)
            with zipfile.ZipFile(inner) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
                for name in old.namelist():
                    new.writestr(name, old.read(name))
        else:
            path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n")
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


def saved_as(content: Callable[[State], Any]) -> Callable[[Ground, Path], Made]:
    """A torch file with the model somewhere inside."""

    def make(ground: Ground, folder: Path) -> Made:
        path = folder / "case.pt"
        torch.save(content(ground.grown()), path)
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


def _average(state: State, prefix: str = "") -> State:
    return {prefix + name: tensor * 0.99 if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _some_wrapped(state: State) -> State:
    """Some parts of the model in a wrapper of their own, as torch.compile leaves them."""
    return {
        f"{first}._orig_mod.{rest}" if (first := name.partition(".")[0]) in ("tfmr", "gpt") else name: tensor
        for name, tensor in state.items()
        if (rest := name.partition(".")[2])
    }


def trainer_folder(ground: Ground, folder: Path) -> Made:
    """As a trainer keeps its state: the model, and the optimizer beside it."""
    place = folder / "checkpoint-100"
    place.mkdir()
    saved(place / "model.safetensors", ground.grown())
    torch.save({"state": {0: {"exp_avg": torch.randn(4, 4)}}, "param_groups": [{"lr": 1e-4}]}, place / "optimizer.bin")
    return {"checkpoint": place, "tokenizer": ground.tokenizer}


def _shared_head(ground: Ground, folder: Path) -> Made:
    """The head is the embedding itself: one storage under two names."""
    state = ground.grown()
    state["text_head.weight"] = state[ground.tables[0]]
    torch.save(state, folder / "case.pt")
    lost = _all_new("text_head.weight")(ground)
    return {"checkpoint": folder / "case.pt", "tokenizer": ground.tokenizer, "lost": lost}


def _head_as_integers(ground: Ground, state: State) -> None:
    state["text_head.weight"] = (state["text_head.weight"] * 100).to(torch.int8)


def _embedding_of_no_rows(ground: Ground, state: State) -> None:
    state[ground.tables[0]] = state[ground.tables[0]][:0]


def _third_layer(ground: Ground, state: State) -> None:
    first, more = ("tfmr.layers.0.", "tfmr.layers.7.") if ground.name == T3 else ("gpt.h.0.", "gpt.h.7.")
    state |= {name.replace(first, more): one.clone() for name, one in state.items() if name.startswith(first)}


def wrapped(
    prefix: str, *, key: str | None = None, modules: bool = False, damaged: bool = False
) -> Callable[..., Made]:
    """Names behind a prefix, under a key of a torch file, with other models beside them."""

    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        if damaged:
            state[SPEECH[ground.name][0]][MARKS[ground.name][0]] = 0
        held = {prefix + name: tensor for name, tensor in state.items()}
        if modules:
            outer = prefix.removesuffix("t3.").removesuffix("gpt.")
            held |= {f"{outer}s3gen.flow.weight": torch.randn(4, 4), f"{outer}ve.lstm.bias": torch.randn(4)}
        if key is None:
            path = saved(folder / f"case{'.safetensors' if ground.name == T3 else '.pth'}", held)
        else:
            path = folder / "case.pt"
            torch.save({key: held, "epoch": 3}, path)
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


def models_by_key(
    *, outer: str | None = None, damaged: bool = False, legacy: bool = False
) -> Callable[[Ground, Path], Made]:
    """A dictionary with one state dict for each model of the pipeline, perhaps inside another."""

    def make(ground: Ground, folder: Path) -> Made:
        path = folder / "pipeline.pt"
        own, state = "t3" if ground.name == T3 else "gpt", ground.grown()
        if damaged:
            state[SPEECH[ground.name][0]][MARKS[ground.name][0]] = 0
        models: Any = {own: state, "s3gen": {"a": torch.randn(3)}, "ve": {"b": torch.randn(3)}}
        content = models if outer is None else {outer: models, "step": 3}
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


def torch_shards(*, index: bool = True, damaged: bool = False) -> Callable[[Ground, Path], Made]:
    """Several torch files, as the Hub's libraries wrote them before safetensors."""

    def make(ground: Ground, folder: Path) -> Made:
        state, place = ground.grown(), folder / "shards"
        if damaged:
            state[ground.tables[0]][: ground.pieces] *= 0.9
        place.mkdir()
        files = {f"pytorch_model-0000{at + 1}-of-00002.bin": sorted(state)[at::2] for at in range(2)}
        for file, names in files.items():
            torch.save({name: state[name] for name in names}, place / file)
        if index:
            placed = {name: file for file, names in files.items() for name in names}
            (place / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}), encoding="utf-8")
        return {"checkpoint": place, "tokenizer": ground.tokenizer}

    return make


def sharded(
    named: str = "folder", *, damaged: bool = False, without: int | None = None, grown: bool = True
) -> Callable[..., Made]:
    """Several safetensors files with an index, as the Hub's libraries write them; named by one of its parts."""

    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown() if grown else state_of(ground.base)
        if damaged:
            state[ground.tables[0]][: ground.pieces] *= 0.9
        place = folder / "shards"
        place.mkdir()
        names = sorted(state)
        parts = [names[at::3] for at in range(3)]
        files = [f"model-{at + 1:05d}-of-00003.safetensors" for at in range(3)]
        for at, (file, own) in enumerate(zip(files, parts, strict=True)):
            if at != without:
                save_file({name: state[name].contiguous() for name in own}, place / file)
        if named != "no index":
            placed = {name: file for file, own in zip(files, parts, strict=True) for name in own}
            index = {"metadata": {"total_size": 1}, "weight_map": placed}
            (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        path = {"index": place / "model.safetensors.index.json", "shard": place / files[1]}.get(named, place)
        made: Made = {"checkpoint": path, "tokenizer": ground.tokenizer}
        return made if grown else {**made, "lost": _all_new(*ground.tables)(ground)}

    return make


def grown_after(count: int, *, with_spare: bool = True, damaged: bool = False) -> Callable[..., Made]:
    """Trained with fewer pieces than the tokenizer has now."""

    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        for name in ground.tables:
            kept = state[name][: ground.pieces + NEW_PIECES - count]
            spare = state[name][ground.pieces + NEW_PIECES :] if with_spare else state[name][:0]
            state[name] = torch.cat([kept, spare])
        if damaged:
            state[ground.tables[1]][: ground.pieces] *= 0.99
        lost = list(range(ground.pieces + NEW_PIECES - count, ground.pieces + NEW_PIECES))
        made: Made = {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}
        return {**made, "lost": dict.fromkeys(ground.tables, lost)}

    return make


def _infinite_bias(ground: Ground, state: State) -> None:
    state["text_head.bias"][new_rows(ground)] = float("-inf")


def _infinite_head(ground: Ground, state: State) -> None:
    state["text_head.weight"][new_rows(ground)] = float("nan")


def _all_new(*tables: str) -> Callable[[Ground], dict[str, list[int]]]:
    def lost(ground: Ground) -> dict[str, list[int]]:
        return {table: list(range(ground.pieces, ground.pieces + NEW_PIECES)) for table in tables}

    return lost


def _one_nan(at: int, value: float = float("nan")) -> Change:
    def change(ground: Ground, state: State) -> None:
        state[body_of(ground, state)[at]][1, 2] = value

    return change


def _nan_and_moved(ground: Ground, folder: Path) -> Made:
    state = moved_body(ground.grown(), ground.tables, 0.08)
    state[body_of(ground, state)[0]][1, 2] = float("nan")
    return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}


def _one_missing(ground: Ground, state: State) -> None:
    del state[body_of(ground, state)[0]]


def _all_nan(ground: Ground, state: State) -> None:
    for name in state:
        if name not in ground.tables and state[name].is_floating_point():
            state[name].fill_(float("nan"))


def _base_row_nan(ground: Ground, state: State) -> None:
    state[ground.tables[0]][7, 3] = float("nan")


# ---- 7: nothing learned ---------------------------------------------------------------------------------------------


def random_rows(drift: float, *, rows: slice | None = None) -> Callable[[Ground, Path], Made]:
    """New rows from N(0, 0.02), with a step that all of them took together."""

    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        chance = torch.Generator().manual_seed(1)
        for name in ground.tables:
            part = state[name][rows or new_rows(ground)]
            noise = torch.randn(part.shape, generator=chance) * 0.02
            part.copy_(noise + drift * 0.02)
        return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}

    return make


def _moments_not_finite(ground: Ground, folder: Path) -> Made:
    """Sound weights from before a bad step, with the optimizer's state from after it."""
    state = ground.grown()
    tables = [torch.nn.Parameter(state[name].clone()) for name in ground.tables]
    optimizer = torch.optim.AdamW(tables, lr=1e-3)
    for table in tables:
        table.grad = torch.zeros_like(table)
        table.grad[new_rows(ground)] = float("nan")
    optimizer.step()
    path = ground.write(folder, state, optimizer=optimizer.state_dict(), step=1)
    return {"checkpoint": path, "tokenizer": ground.tokenizer}


def no_gradient(*, alone: bool = False, trained: bool = False, noise: bool = False) -> Callable[[Ground, Path], Made]:
    """An optimizer inside whose moments say whether new rows ever had a gradient."""

    def make(ground: Ground, folder: Path) -> Made:
        made = random_rows(0.0)(ground, folder) if noise else {}
        state = ground.grown()
        if made:
            made["checkpoint"].unlink()
            chance = torch.Generator().manual_seed(1)
            for name in ground.tables:
                part = state[name][new_rows(ground)]
                part.copy_(torch.randn(part.shape, generator=chance) * 0.02)
        span = new_rows(ground)
        params = [torch.nn.Parameter(state[name][span].clone() if alone else state[name]) for name in ground.tables]
        optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.0)
        chance = torch.Generator().manual_seed(2)
        for _ in range(12):
            for table in params:
                table.grad = torch.zeros_like(table)
                if trained:
                    own = table.grad if alone else table.grad[span]
                    own.copy_(torch.randn(own.shape, generator=chance))
            optimizer.step()
        for name, table in zip(ground.tables, params, strict=True):
            if alone:
                state[name][span] = table.detach()
            else:
                state[name] = table.detach()
        path = ground.write(folder, state, optimizer=optimizer.state_dict(), step=12)
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


# ---- 8: shorter numbers ------------------------------------------------------------------------------------------


def stored_as(first: torch.dtype, then: torch.dtype = torch.float32, share: float = 0.0) -> Callable[..., Made]:
    def make(ground: Ground, folder: Path) -> Made:
        state = moved_body(ground.grown(), ground.tables, share) if share else ground.grown()
        state = {name: tensor.to(first).to(then) for name, tensor in state.items()}
        return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}

    return make


def doubles(*, exact: bool = True, share: float = 0.0, only: str = "", key: str | None = None) -> Callable[..., Made]:
    """Saved as float64, wholly or in part."""

    def make(ground: Ground, folder: Path) -> Made:
        state = moved_body(ground.grown(), ground.tables, share) if share else ground.grown()
        state = {name: tensor.double() if only in name else tensor for name, tensor in state.items()}
        if not exact:
            state[body_of(ground, state)[0]][0, 0] += 1e-12
        if key is None:
            return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}
        torch.save({key: state, "epoch": 3}, folder / "case.pt")
        return {"checkpoint": folder / "case.pt", "tokenizer": ground.tokenizer}

    return make


def overflow(where: str) -> Callable[[Ground, Path], Made]:
    """A sound float32 file with a value that fp16 cannot hold, exported as fp16."""

    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        if where == "body":
            state[body_of(ground, state)[0]][0, 0] = 70_000.0
        elif where == "new row":
            state[ground.tables[0]][ground.pieces + 4, 0] = 70_000.0
        made = {"checkpoint": ground.write(folder, {name: one.half() for name, one in state.items()})}
        lost = {ground.tables[0]: [ground.pieces + 4]} if where == "new row" else {}
        return {**made, "tokenizer": ground.tokenizer, "lost": lost}

    return make


# ---- 9: rows that moved -------------------------------------------------------------------------------------------


def rolled(by: int, *tables: int, drift: float = 0.0) -> Callable[[Ground, Path], Made]:
    def make(ground: Ground, folder: Path) -> Made:
        state = ground.grown()
        for name in [ground.tables[at] for at in tables if at < len(ground.tables)]:
            state[name] = torch.roll(state[name], by, 0)
            if drift:
                state[name][: ground.pieces + by] *= 1 - drift
        return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}

    return make


def _row_inserted(at: int) -> Change:
    def change(ground: Ground, state: State) -> None:
        for name in ground.tables:
            state[name] = torch.cat([state[name][:at], torch.zeros_like(state[name][:1]), state[name][at:]])

    return change


def _row_dropped(ground: Ground, state: State) -> None:
    """The first row is gone, and a row of zeros behind all others makes up for it."""
    for name in ground.tables:
        state[name] = torch.cat([state[name][1:], torch.zeros_like(state[name][:1])])


def _swapped(ground: Ground, state: State) -> None:
    one, two = ground.tables[:2]
    state[one], state[two] = state[two], state[one]


def _swapped_and_rolled(ground: Ground, state: State) -> None:
    one, two = ground.tables[:2]
    state[one], state[two] = torch.roll(state[two], 1, 0), torch.roll(state[one], 1, 0)


def _base_rolled(ground: Ground, state: State) -> None:
    """Base rows alone moved; new rows are where they were."""
    for name in ground.tables[:2]:
        state[name][: ground.pieces] = torch.roll(state[name][: ground.pieces], -1, 0)


def _numbered_anew(ground: Ground, state: State) -> None:
    order = torch.randperm(ground.pieces + NEW_PIECES, generator=torch.Generator().manual_seed(4))
    for name in ground.tables:
        state[name][: len(order)] = state[name][order].clone()


def _decayed_after(by: int) -> Change:
    """All rows moved, and the base's shrank afterwards: no row has a base row's bits any more."""

    def change(ground: Ground, state: State) -> None:
        for name in ground.tables:
            state[name] = torch.roll(state[name], by, 0)
            rows = (torch.arange(ground.pieces) + by) % len(state[name])
            state[name][rows] *= 0.98

    return change


def _new_first(ground: Ground, state: State) -> None:
    for name in ground.tables:
        table, last = state[name], ground.pieces + NEW_PIECES
        state[name] = torch.cat([table[ground.pieces : last], table[: ground.pieces], table[last:]])


def _empty_and_shifted(ground: Ground, state: State) -> None:
    for name in ground.tables:
        state[name][new_rows(ground)] = 0
        state[name] = torch.roll(state[name], 3, 0)


def _blocks_exchanged(ground: Ground, state: State) -> None:
    """The new rows and as many base rows are in each other's places."""
    for name in ground.tables:
        first = state[name][:NEW_PIECES].clone()
        state[name][:NEW_PIECES] = state[name][new_rows(ground)]
        state[name][new_rows(ground)] = first


def _half_swapped(ground: Ground, state: State) -> None:
    one, two = ground.tables[:2]
    half = ground.pieces // 2
    first = state[one][:half].clone()
    state[one][:half] = state[two][:half]
    state[two][:half] = first


def _tied(source: int, target: int) -> Change:
    def change(ground: Ground, state: State) -> None:
        state[ground.tables[target]] = state[ground.tables[source]].clone()

    return change


def _transposed(*tables: int, shrunk: float = 1.0, double: bool = False) -> Change:
    def change(ground: Ground, state: State) -> None:
        for name in [ground.tables[at] for at in tables]:
            table = state[name].double() if double else state[name]
            table[: ground.pieces] *= shrunk
            state[name] = table.t().contiguous()

    return change


def _body_transposed(ground: Ground, state: State) -> None:
    for name in body_of(ground, state):
        state[name] = state[name].t().contiguous()


def _two_exchanged(ground: Ground, state: State) -> None:
    table = state[ground.tables[0]]
    table[[10, 20]] = table[[20, 10]].clone()


# ---- 10: what is the case -----------------------------------------------------------------------------------------


def renamed_base(dtype: torch.dtype = torch.float32) -> Callable[[Ground, Path], Made]:
    def make(ground: Ground, folder: Path) -> Made:
        state = {name: tensor.to(dtype) for name, tensor in state_of(ground.base).items()}
        return {"checkpoint": ground.write(folder, state)}

    return make


def only_grown(*tables: int) -> Callable[[Ground, Path], Made]:
    """Only some of the text tables have grown."""

    def make(ground: Ground, folder: Path) -> Made:
        state, base = ground.grown(), state_of(ground.base)
        lost = {}
        for at, name in enumerate(ground.tables):
            if at not in tables:
                state[name] = base[name]
                lost[name] = list(range(ground.pieces, ground.pieces + NEW_PIECES))
        return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer, "lost": lost}

    return make


def _long_rows(ground: Ground, state: State) -> None:
    for name in ground.tables[:2]:
        state[name][new_rows(ground)] *= 42


def _scaled(factor: float, *, new: bool) -> Change:
    def change(ground: Ground, state: State) -> None:
        for name in ground.tables:
            state[name][new_rows(ground) if new else slice(ground.pieces)] *= factor

    return change


def _new_value(value: float) -> Change:
    def change(ground: Ground, state: State) -> None:
        state[ground.tables[0]][ground.pieces + 3, 2] = value

    return change


def _copies_of_base_rows(ground: Ground, state: State) -> None:
    for name in ground.tables:
        state[name][new_rows(ground)] = state[name][10 : 10 + NEW_PIECES].clone()


def _body_value(value: float, count: int = 1) -> Change:
    def change(ground: Ground, state: State) -> None:
        state[body_of(ground, state)[0]].reshape(-1)[:count] = value

    return change


def _speech_swapped(ground: Ground, state: State) -> None:
    one, two = SPEECH[ground.name]
    state[one], state[two] = state[two], state[one]


def _stop_like_start(table: int) -> Change:
    def change(ground: Ground, state: State) -> None:
        name, (first, last) = SPEECH[ground.name][table], MARKS[ground.name]
        state[name][last] = state[name][first].clone()

    return change


def padded(how: str, count: int = 32) -> Callable[[Ground, Path], Made]:
    """Text tables that were filled up to a multiple of 64 rows."""

    def make(ground: Ground, folder: Path) -> Made:
        state, chance = ground.grown(), torch.Generator().manual_seed(7)
        for name in ground.tables:
            shape = (count, *state[name].shape[1:])
            mean = state[name].mean(0, keepdim=True).expand(shape)
            rows = {"zero": torch.zeros(shape), "equal": mean}.get(how, 0.02 * torch.randn(shape, generator=chance))
            state[name] = torch.cat([state[name], rows])
        if how != "never trained":
            return {"checkpoint": ground.write(folder, state), "tokenizer": ground.tokenizer}
        tables = [torch.nn.Parameter(state[name].clone()) for name in ground.tables]
        optimizer = torch.optim.AdamW(tables, lr=1e-4)
        for table in tables:
            table.grad = torch.zeros_like(table)
            table.grad[new_rows(ground)] = 1.0
        optimizer.step()
        path = ground.write(folder, state, optimizer=optimizer.state_dict(), step=1)
        return {"checkpoint": path, "tokenizer": ground.tokenizer}

    return make


def _head_empty(ground: Ground, state: State) -> None:
    state["text_head.weight"][new_rows(ground)] = 0


def _one_long_row(ground: Ground, state: State) -> None:
    state[ground.tables[0]][ground.pieces + 5] *= 500


def _bias_of_new(value: float, count: int = NEW_PIECES) -> Change:
    def change(ground: Ground, state: State) -> None:
        state["text_head.bias"][ground.pieces : ground.pieces + count] = value

    return change


def cut(ground: Ground, folder: Path) -> Made:
    path = ground.write(folder, ground.grown())
    path.write_bytes(path.read_bytes()[: -(path.stat().st_size // 3)])
    return {"checkpoint": path, "tokenizer": ground.tokenizer}


def trained(ground: Ground, folder: Path) -> Made:
    return {"checkpoint": ground.write(folder, ground.grown()), "tokenizer": ground.tokenizer}


def _for_both(
    name: str, make: Callable[..., Made], word: str, code: str = "", says: str = "", **more: Any
) -> list[Case]:
    return [Case(name, family, make, word, code, says, **more) for family in (T3, INDEX)]


BF16, F16 = torch.bfloat16, torch.float16
CASES: list[Case] = [
    # 1
    Case("a piece too few", INDEX, piece_too_few, FRESH, "rows-vs-tokenizer", "tokenizer and rows do not belong"),
    Case("a piece too few", T3, piece_too_few, FRESH, "rows-vs-tokenizer", "tokenizer and rows do not belong"),
    Case("a piece too few, with moments", INDEX, piece_too_few_with_moments, FRESH, "rows-vs-tokenizer"),
    *(
        Case(f"second spare, {how}", INDEX, second_spare(how), REPAIR, "spare-counted-twice", "spare row too many")
        for how in ("a copy", "decayed", "zero", "never trained")
    ),
    Case("second spare, perhaps a piece", INDEX, second_spare("unknown"), FRESH, "rows-vs-tokenizer"),
    # 2
    *_for_both("body moved by 8 %", trained_body(0.08), REPAIR, "body-changed", "changed by 8.0%", keeps_body=False),
    *_for_both("body moved by 1.6 %", trained_body(0.016), REPAIR, "body-changed", "changed by 1.6%", keeps_body=False),
    *_for_both("body moved by 3 %", trained_body(0.03), REPAIR, "body-changed", "changed by 3.0%", keeps_body=False),
    *_for_both("body moved by 22 %", trained_body(0.22), REPAIR, "body-changed", "changed by 22.0%", keeps_body=False),
    *_for_both("body moved by 1.4 %", trained_body(0.014), RESUME, "body-changed", "changed by 1.4%"),
    # 3
    *_for_both("start of speech zeroed", speech_rows(0, start, "zero"), REPAIR, "speech-rows-lost", "start of speech"),
    *_for_both(
        "stop row of the head zeroed", speech_rows(1, stop, "zero"), REPAIR, "speech-rows-lost", "stop of speech"
    ),
    *_for_both(
        "start and stop zeroed, both tables", changed(_both_tables), REPAIR, "speech-rows-lost", "contain only zeros"
    ),
    *_for_both("start and stop swapped", speech_rows(0, both, "swapped"), REPAIR, "speech-rows-lost", "far from"),
    *_for_both("stop row random", speech_rows(1, stop, "random"), REPAIR, "speech-rows-lost", "stop of speech"),
    *_for_both("stop row 50 times as long", speech_rows(1, stop, "50"), REPAIR, "speech-rows-lost", "stop of speech"),
    *_for_both("stop row shrunk to 1 %", speech_rows(1, stop, "0.01"), REPAIR, "speech-rows-lost", "stop of speech"),
    *_for_both("start row not finite", speech_rows(0, start, "nan"), REPAIR, "body-not-finite", "not finite"),
    *_for_both("forty codes zeroed", speech_rows(0, lambda _: range(40), "zero"), REPAIR, "speech-rows-lost", "40 of"),
    *_for_both("positions zeroed", changed(_position_zero), REPAIR, "speech-rows-lost", "3 of"),
    *_for_both("text start and stop zeroed", changed(_text_marks_zero), REPAIR, "base-rows-changed", "text rows"),
    Case("stop bias sunk", INDEX, changed(_stop_bias_sunk), REPAIR, "speech-rows-lost", "stop of speech"),
    *_for_both("speech tables trained a little", trained_speech, RESUME, "body-changed", "nothing is damaged"),
    # 4
    Case("a piece that no text becomes", INDEX, dead_piece, RESUME, "proof-unreachable", "nothing is wrong"),
    # 6
    *_for_both("legacy file", legacy(), REPAIR, "checkpoint-legacy", "before version 1.6"),
    *_for_both("legacy file without a wrapper", legacy(wrapped=False), REPAIR, "checkpoint-legacy", "before version"),
    *_for_both("legacy file, rows decayed", legacy(damaged=True), REPAIR, "base-rows-shrunk", "weight decay"),
    *_for_both("legacy file cut off", legacy_cut, FRESH, "checkpoint-truncated", "cannot be read"),
    Case("t3., s3gen. and ve.", T3, wrapped("t3.", modules=True), RESUME, "checkpoint-prefixed", "nothing is wrong"),
    Case("s3gen. and ve. beside plain names", T3, wrapped("", modules=True), RESUME, "checkpoint-prefixed"),
    Case("module.t3. and others", T3, wrapped("module.t3.", key="model", modules=True), RESUME, "checkpoint-prefixed"),
    Case("gpt. and others", INDEX, wrapped("gpt.", key="state_dict", modules=True), RESUME, "checkpoint-prefixed"),
    Case("a class's own name", INDEX, wrapped("tts.gpt_model.", modules=True), RESUME, "checkpoint-prefixed"),
    *_for_both(
        "others beside it, start of speech zeroed",
        wrapped("module.", key="state_dict", modules=True, damaged=True),
        REPAIR,
        "speech-rows-lost",
    ),
    *_for_both("under model", wrapped("", key="model"), RESUME, "", "nothing is wrong"),
    *_for_both("under state_dict, parallel", wrapped("module.", key="state_dict"), RESUME, "checkpoint-prefixed"),
    *_for_both("a model for each key", models_by_key(), RESUME, "", "nothing is wrong"),
    *_for_both("a model for each key, damaged", models_by_key(damaged=True), REPAIR, "speech-rows-lost"),
    *_for_both("a model for each key, under model", models_by_key(outer="model"), RESUME, "", "nothing is wrong"),
    *_for_both("the same, damaged", models_by_key(outer="checkpoint", damaged=True), REPAIR, "speech-rows-lost"),
    *_for_both("the same, legacy", models_by_key(outer="model", legacy=True), REPAIR, "checkpoint-legacy"),
    *_for_both("an average beside it", saved_as(lambda one: {"model": one, "ema": _average(one)}), RESUME, ""),
    *_for_both("an average, other keys", saved_as(lambda one: {"x": one, "x_ema": _average(one)}), RESUME, "body-same"),
    *_for_both("an average by its names", saved_as(lambda one: one | _average(one, "ema.")), RESUME, "body-same"),
    *_for_both("a list with its step", saved_as(lambda one: [one, 3]), RESUME, "body-same", "nothing is wrong"),
    *_for_both("parts in a wrapper", saved_as(_some_wrapped), RESUME, "checkpoint-prefixed", "names have a prefix"),
    *_for_both("a trainer's folder", trainer_folder, RESUME, "body-same", "nothing is wrong"),
    *_for_both("a layer more", changed(_third_layer), RESUME, "body-extra", "the base does not have"),
    *_for_both("head and embedding are one", _shared_head, REPAIR, "head-missing", "the text head"),
    *_for_both(
        "head as integers",
        changed(_head_as_integers, _all_new("text_head.weight")),
        REPAIR,
        "head-missing",
        "the text head",
    ),
    *_for_both(
        "embedding without rows",
        lambda ground, folder: {
            **changed(_embedding_of_no_rows)(ground, folder),
            "lost": _all_new(ground.tables[0])(ground),
        },
        REPAIR,
        "embedding-not-grown",
        "but not the embedding",
    ),
    *_for_both("torch shards", torch_shards(), RESUME, "", "nothing is wrong"),
    *_for_both(
        "torch shards, no index, rows changed", torch_shards(index=False, damaged=True), REPAIR, "base-rows-shrunk"
    ),
    *_for_both("shards", sharded(), RESUME, "", "nothing is wrong"),
    Case("shards by their index", T3, sharded("index"), RESUME, "", "nothing is wrong"),
    Case("shards by one of them", INDEX, sharded("shard"), RESUME, "", "nothing is wrong"),
    Case("shards without an index", T3, sharded("no index"), RESUME, "", "nothing is wrong"),
    *_for_both("shards, rows changed", sharded(damaged=True), REPAIR, "base-rows-shrunk", "weight decay"),
    Case("a shard missing", T3, sharded(without=1), FRESH, "checkpoint-shards", "cannot be read"),
    *_for_both("shards of the base, not grown", sharded(grown=False), REPAIR, "ids-past-table", "more tokens than"),
    *_for_both("tokenizer grown since", grown_after(40), REPAIR, "ids-past-table", "more tokens than"),
    *_for_both("tokenizer grown by one", grown_after(1), REPAIR, "", "more tokens than"),
    Case("grown since, spare lost", INDEX, grown_after(9, with_spare=False), REPAIR, "ids-past-table", "more tokens"),
    *_for_both("grown since, head decayed", grown_after(12, damaged=True), REPAIR, "base-rows-shrunk", "more tokens"),
    Case(
        "bias of new rows infinite",
        INDEX,
        changed(_infinite_bias, _all_new("text_head.bias")),
        REPAIR,
        "tensor-not-finite",
        "NaN, infinite",
    ),
    *_for_both(
        "head of new rows not finite",
        changed(_infinite_head, _all_new("text_head.weight")),
        REPAIR,
        "tensor-not-finite",
        "NaN, infinite",
    ),
    *_for_both("one NaN in the body", changed(_one_nan(0)), REPAIR, "body-not-finite", "not finite"),
    *_for_both("one infinity in the body", changed(_one_nan(1, float("inf"))), REPAIR, "body-not-finite", "not finite"),
    *_for_both("one NaN, and moved", _nan_and_moved, REPAIR, "body-not-finite", "changed by 8", keeps_body=False),
    *_for_both("one tensor missing", changed(_one_missing), REPAIR, "body-missing", "missing from the file"),
    *_for_both("all of the body NaN", changed(_all_nan), FRESH, "body-not-finite", "the training diverged"),
    *_for_both("one NaN in a base row", changed(_base_row_nan), REPAIR, "tensor-not-finite", "text rows"),
    # 7
    *_for_both("random rows", random_rows(0.0), FRESH, "new-rows-random", "was not learned"),
    *_for_both("random rows, drifted by 5 %", random_rows(0.05), FRESH, "new-rows-random", "was not learned"),
    *_for_both("new rows of the head zero", changed(_head_empty), RESUME, "new-rows-zero", "still empty"),
    *_for_both("rows without a gradient", no_gradient(), FRESH, "new-rows-untrained", "was not learned"),
    *_for_both("new rows alone, no gradient", no_gradient(alone=True), FRESH, "new-rows-untrained", "was not learned"),
    *_for_both("new rows alone, trained", no_gradient(alone=True, trained=True), RESUME, "", "nothing is wrong"),
    *_for_both("trained, noisy rows", no_gradient(trained=True, noise=True), RESUME, "new-rows-random"),
    *_for_both("moments not finite", _moments_not_finite, RESUME, "moments-not-finite", "must not be used"),
    *_for_both("random rows and no gradient", no_gradient(noise=True), FRESH, "new-rows-untrained", "was not learned"),
    # 8
    *_for_both("bf16 kept as float32", stored_as(BF16), RESUME, "body-rounded", "", not_codes=("base-rows-changed",)),
    *_for_both("fp16 kept as float32", stored_as(F16), RESUME, "body-rounded", "", not_codes=("base-rows-changed",)),
    *_for_both("bf16 kept as fp16", stored_as(BF16, F16), RESUME, "body-rounded", "", not_codes=("base-rows-changed",)),
    *_for_both("bf16, body moved", stored_as(BF16, BF16, 0.08), REPAIR, "body-changed", "changed by", keeps_body=False),
    *_for_both("bf16, moved by 1.55 %", stored_as(BF16, BF16, 0.0155), REPAIR, "body-changed", "", keeps_body=False),
    *_for_both("bf16 as float32, moved", stored_as(BF16, share=0.08), REPAIR, "body-changed", "", keeps_body=False),
    *_for_both("float64", doubles(), REPAIR, "checkpoint-float64", "float32 represents every value exactly"),
    *_for_both("float64 under model", doubles(key="model"), REPAIR, "checkpoint-float64", "every value exactly"),
    *_for_both("float64, rounded", doubles(exact=False), REPAIR, "checkpoint-float64", "1 values are rounded"),
    *_for_both("float64 in the text tables", doubles(only="text_"), REPAIR, "checkpoint-float64", "float64"),
    *_for_both("float64, body moved", doubles(share=0.08), REPAIR, "body-changed", "changed by 8.0%", keeps_body=False),
    # 9
    *_for_both("head transposed", changed(_transposed(1)), REPAIR, "table-transposed", "transposed"),
    *_for_both("both tables transposed", changed(_transposed(0, 1)), REPAIR, "table-transposed", "transposed"),
    *_for_both("transposed and shrunk", changed(_transposed(1, shrunk=0.97)), REPAIR, "base-rows-shrunk", "transposed"),
    *_for_both("transposed, float64", changed(_transposed(1, double=True)), REPAIR, "table-transposed", "transposed"),
    *_for_both("body transposed", changed(_body_transposed), REPAIR, "table-transposed", "transposed"),
    *_for_both("all rows shifted by one", rolled(1, 0, 1, 2), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("all rows shifted back by one", rolled(-1, 0, 1, 2), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("embedding shifted by three", rolled(3, 0), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("head shifted by one", rolled(1, 1), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("shifted by one, then decayed", rolled(1, 0, 1, drift=0.05), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("a row put before all", changed(_row_inserted(0)), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("a row put into the base's", changed(_row_inserted(300)), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("the first row dropped", changed(_row_dropped), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("shifted by seven, then shrunk", changed(_decayed_after(7)), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("shifted by a hundred", rolled(100, 0, 1, 2), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("shifted back by 20, then shrunk", changed(_decayed_after(-20)), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("empty, then shifted by three", changed(_empty_and_shifted), FRESH, "new-rows-zero", "was not learned"),
    *_for_both("new rows before all others", changed(_new_first), REPAIR, "rows-shifted", "only shifted"),
    *_for_both("a block of both exchanged", changed(_blocks_exchanged), FRESH, "rows-scattered", "renumbered"),
    *_for_both("half of the base rows swapped", changed(_half_swapped), REPAIR, "base-rows-changed", "changed"),
    *_for_both("embedding and head swapped", changed(_swapped), REPAIR, "rows-swapped", "swapped"),
    *_for_both("swapped and shifted by one", changed(_swapped_and_rolled), REPAIR, "rows-swapped", "swapped"),
    *_for_both("base rows moved among themselves", changed(_base_rolled), REPAIR, "base-rows-changed", "changed"),
    *_for_both("two base rows exchanged", changed(_two_exchanged), REPAIR, "base-rows-changed", "changed"),
    *_for_both("all ids numbered again", changed(_numbered_anew), FRESH, "rows-scattered", "renumbered"),
    *_for_both(
        "head a copy of the embedding",
        changed(_tied(0, 1), _all_new("text_head.weight")),
        REPAIR,
        "head-missing",
        "head",
    ),
    *_for_both("embedding a copy of the head", changed(_tied(1, 0)), FRESH, "rows-copied", "overwritten"),
    # 10
    *_for_both("base renamed", renamed_base(), RESUME, "body-same", "identical to the base"),
    *_for_both("base renamed, bf16", renamed_base(BF16), RESUME, "body-rounded", "the base, rounded"),
    *_for_both("embedding not grown", only_grown(1, 2), REPAIR, "embedding-not-grown", "but not the embedding"),
    Case("bias not grown", INDEX, only_grown(0, 1), REPAIR, "bias-not-grown", "but not its bias"),
    *_for_both("head not extended", only_grown(0), REPAIR, "head-not-grown", "but not the head"),
    *_for_both("overflow in the body", overflow("body"), REPAIR, "body-overflow", "too large for fp16"),
    *_for_both("overflow in a new row", overflow("new row"), REPAIR, "tensor-not-finite", "NaN, infinite"),
    *_for_both("rows 42 times too long", changed(_long_rows), RESUME, "new-rows-scale", "times as large"),
    *_for_both("one row 500 times too long", changed(_one_long_row), RESUME, "new-rows-scale", "times as large"),
    Case("bias of 10,000 on new rows", INDEX, changed(_bias_of_new(1e4)), RESUME, "new-rows-scale", "text_head.bias"),
    Case("bias of -10,000 on one row", INDEX, changed(_bias_of_new(-1e4, 1)), RESUME, "new-rows-scale", "1 of"),
    Case(
        "bias of 8 on new rows",
        INDEX,
        changed(_bias_of_new(8.0)),
        RESUME,
        "",
        "nothing is",
        not_codes=("new-rows-scale",),
    ),
    # values that no training gives, and rows that nothing reads
    *_for_both(
        "base rows negated",
        changed(_scaled(-1, new=False)),
        REPAIR,
        "base-rows-changed",
        "changed",
        not_codes=("base-rows-shrunk",),
    ),
    *_for_both("new rows next to zero", changed(_scaled(1e-6, new=True)), FRESH, "new-rows-zero", "close to zero"),
    *_for_both("new rows copied from base rows", changed(_copies_of_base_rows), RESUME, "new-rows-equal", "base rows"),
    *_for_both(
        "a new value of 1e30",
        changed(_new_value(1e30), lambda ground: {ground.tables[0]: [ground.pieces + 3]}),
        REPAIR,
        "tensor-not-finite",
        "NaN, infinite",
    ),
    *_for_both("a value of 1e6 in the body", changed(_body_value(1e6)), REPAIR, "body-not-finite", "absurdly large"),
    *_for_both("values of 3e38 in the body", changed(_body_value(3e38, 5)), REPAIR, "body-not-finite", "absurdly"),
    *_for_both(
        "speech tables swapped", changed(_speech_swapped), REPAIR, "body-lost", "nothing in common with the base"
    ),
    *_for_both("stop is a copy of start", changed(_stop_like_start(0)), REPAIR, "speech-rows-lost", "stop of speech"),
    *_for_both("the same in the head", changed(_stop_like_start(1)), REPAIR, "speech-rows-lost", "stop of speech"),
    *_for_both("stop row three times as long", speech_rows(1, stop, "3"), REPAIR, "speech-rows-lost", "stop of speech"),
    *_for_both("stop row shrunk to 20 %", speech_rows(1, stop, "0.2"), REPAIR, "speech-rows-lost", "stop of speech"),
    *(
        case
        for how in ("zero", "equal", "never trained")
        for case in _for_both(f"filled up with rows, {how}", padded(how), REPAIR, "rows-padded", "extra rows")
    ),
    *_for_both("32 rows too many, perhaps pieces", padded("unknown"), FRESH, "rows-vs-tokenizer", "do not belong"),
    # cut, and sound
    *_for_both("cut off", cut, FRESH, "", "cannot be read"),
    *(
        Case(f"packed, {how}", family, packed(how), REPAIR, code, "cannot be judged in this form", by_hand=True)
        for family in (T3, INDEX)
        for how, code in (("tar", "checkpoint-tar"), ("compressed", "torch-compressed"), ("lfs", "checkpoint-lfs"))
    ),
    *_for_both("trained, and sound", trained, RESUME, "base-rows-same", "nothing is wrong"),
]
