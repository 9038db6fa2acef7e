"""Files for the tests of `check`, in the formats that the original programs and the community forks really write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from sentencepiece import sentencepiece_model_pb2 as proto

from voxgraft.config.commands import CheckSettings
from voxgraft.config.run import TokenizerSettings
from voxgraft.inspect.check import CheckResult, check
from voxgraft.models.base import BaseFiles

State = dict[str, torch.Tensor]
LETTERS = [chr(code) for code in range(0x1208, 0x1248)]
SENTENCES = ("ሰላም ለዓለም", "ሀገሬ ቆንጆ ነች", "በሰላም ግቡ", "ደህና ነህ ወይ")


PIECES = 50
"""Pieces that the grafts of the tests were learned with."""


def checked(*, tokenizer: Path | None = None, pieces: int = PIECES, **settings: Any) -> CheckResult:
    """`check` on loose files or a run."""
    return check(CheckSettings(tokenizer=TokenizerSettings(file=tokenizer, pieces=pieces), **settings))


def codes(result: CheckResult, level: str | None = None) -> set[str]:
    return {item.code for item in result.findings if level in (None, item.level)}


def found(result: CheckResult, code: str) -> str:
    """What all findings of a code say, in one text."""
    return "\n".join(f"{item.found} | {item.expected}" for item in result.findings if item.code == code)


def state_of(base: BaseFiles) -> State:
    """The tensors of a base, by torch's or safetensors' own loader."""
    if base.checkpoint.suffix == ".safetensors":
        return load_file(base.checkpoint)
    loaded = torch.load(base.checkpoint, weights_only=True)
    return dict(loaded.get("model", loaded))


def saved(path: Path, state: Mapping[str, Any]) -> Path:
    """Written as `.safetensors` or as torch writes its archives."""
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(dict(state), path)
    return path


def grown_state(state: State, names: Iterable[str], rows: int, *, copied: int, std: float = 0.02) -> State:
    """The forks' way: fresh normal tables, with the first `copied` old rows written over their beginning."""
    generator = torch.Generator().manual_seed(1)
    grown = dict(state)
    for name in names:
        old = state[name]
        table = torch.randn((rows, *old.shape[1:]), generator=generator) * std
        table[:copied] = old[:copied]
        grown[name] = table
    return grown


def extended_sentencepiece(base: Path, path: Path, size: int) -> Path:
    """A base model with Ethiopic letters and pairs of them appended until it has `size` pieces."""
    model = proto.ModelProto.FromString(base.read_bytes())
    letters = [chr(code) for code in range(0x1200, 0x135B) if chr(code).isalpha()]
    pairs = (one + two for one in letters for two in letters)
    lowest = min(piece.score for piece in model.pieces if piece.type == 1)
    for letter in letters[: size - len(model.pieces)]:
        model.pieces.add(piece=letter, score=lowest, type=1)
    while len(model.pieces) < size:
        model.pieces.add(piece=next(pairs), score=lowest, type=1)
    path.write_bytes(model.SerializeToString())
    return path


def flat_map(base: Path, path: Path, new: Iterable[str]) -> Path:
    """The forks' merge: the base's vocabulary and new tokens behind its highest id, as one flat map."""
    document = json.loads(base.read_text(encoding="utf-8"))
    ids = {**document["model"]["vocab"], **{token["content"]: token["id"] for token in document["added_tokens"]}}
    at = max(ids.values()) + 1
    for token in new:
        ids[token] = at
        at += 1
    path.write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    return path


def old_yaml(path: Path, **sections: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(sections), encoding="utf-8")
    return path
