"""Checkpoints that were damaged on purpose, the way their trainers damaged them, and sound ones that look odd.

Small bases of random weights; where a trainer's optimizer does the damage, torch's own AdamW does it here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentencepiece import sentencepiece_model_pb2 as proto

from tests.support.check_files import State, extended_sentencepiece, saved, state_of
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.config.commands import ExtendSettings
from voxgraft.graft.command import extend
from voxgraft.models.base import BaseFiles
from voxgraft.tokenizers import NewPiece, TokenizerAdditions, open_tokenizer

SIZES = {"chatterbox": RandomBaseSize(16, 1, 640), "indextts2": RandomBaseSize(16, 1, 1000)}
EMBEDDING = {"chatterbox": "text_emb.weight", "indextts2": "text_embedding.weight"}
SUFFIX = {"chatterbox": ".safetensors", "indextts2": ".pth"}
NEW_PIECES = 160
T3, INDEX = "chatterbox", "indextts2"


class Evil:
    """Would leave a file behind wherever it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("canary", "w"))


@dataclass(frozen=True)
class Ground:
    """A base, an extended tokenizer, and the base's tensors grown to it: what every trainer starts from."""

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
    added = TokenizerAdditions(name, "am", own.kind, own.sha256, "[am]", pieces)
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


def not_merged(state: State, *, whole: bool) -> State:
    """As PEFT keeps a model in training: factors beside each matrix of the body; or the factors alone."""
    kept: State = {}
    for name, tensor in state.items():
        is_adapted = tensor.dim() == 2 and "text" not in name and name.endswith(".weight")
        if is_adapted:
            layer = name.removesuffix(".weight")
            kept[f"base_model.model.{layer}.lora_A.default.weight"] = torch.randn(2, tensor.shape[1])
            kept[f"base_model.model.{layer}.lora_B.default.weight"] = torch.randn(tensor.shape[0], 2)
        if whole:
            own = name.replace(".weight", ".base_layer.weight") if is_adapted else name
            kept[f"base_model.model.{own}"] = tensor
    return kept


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


def interleaved(base: Path, path: Path) -> Path:
    """A grown model some of whose pieces are of Latin letters, and rank before the base's own."""
    model = proto.ModelProto.FromString(base.read_bytes())
    there = {piece.piece for piece in model.pieces}
    pairs = [one + two for one in "ETAOINSHR" for two in "ETAOINSHR" if one + two not in there]
    for piece, text in zip(list(model.pieces)[-12:], pairs, strict=False):
        piece.piece, piece.score = text, 0.0
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
