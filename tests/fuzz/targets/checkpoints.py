"""Checkpoint files: safetensors, torch archives, the pickles inside them."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.fuzz import byte_mutations, safetensors_mutations
from tests.fuzz.target import Mutant, Random, Target
from voxgraft.checkpoints import TensorBytes, dangerous_globals, open_checkpoint, write_safetensors

Meaning = list[tuple[object, ...]]


def checkpoint_meaning(path: Path) -> Meaning:
    """Every tensor by name, type, shape and bytes; reads all values in both ways that there are."""
    meaning: Meaning = []
    with open_checkpoint(path) as checkpoint:
        for name, info in checkpoint.tensors.items():
            streamed = b"".join(bytes(piece) for piece in checkpoint.raw(name))
            assert checkpoint.read(name, raw=True).tobytes() == streamed
            if info.shape:
                checkpoint.read_rows(name, 0, min(2, info.shape[0]))
            meaning.append((name, info.dtype, info.shape, zlib.crc32(streamed)))
    return sorted(meaning)


class SafetensorsTarget(Target):
    """Headers that lie, and every other injury."""

    name: ClassVar[str] = "safetensors"
    count: ClassVar[int] = 4000

    def make_seeds(self, folder: Path) -> None:
        values = np.random.default_rng(0)
        tables = {
            "text_emb.weight": TensorBytes.of(values.normal(size=(6, 4)).astype(np.float32)),
            "text_head.weight": TensorBytes.of(values.normal(size=(6, 4)).astype(np.float32), "BF16"),
            "body.bias": TensorBytes.of(values.normal(size=5).astype(np.float32), "F16"),
            "step": TensorBytes.of(np.array(7, dtype=np.int64)),
            "none": TensorBytes.of(np.zeros((0, 3), dtype=np.float32)),
        }
        with (folder / "mixed.safetensors").open("wb") as stream:
            write_safetensors(stream, tables, {"format": "pt", "maker": "ጸሐፊ"})
        with (folder / "plain.safetensors").open("wb") as stream:
            write_safetensors(stream, {"text_emb.weight": tables["text_emb.weight"]})

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        choice = rng.random()
        if choice < 0.15:
            made, how = safetensors_mutations.reformed(data, rng)
            return Mutant(seed, how, made, same=True)
        if choice < 0.4:
            made, how = safetensors_mutations.lying(data, rng)
        elif choice < 0.45:
            made, how = safetensors_mutations.lying_length(data, rng)
        elif choice < 0.7:
            made, how = safetensors_mutations.edited_header(data, rng)
        else:
            made, how = byte_mutations.damaged(data, rng)
        return Mutant(seed, how, made)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "model.safetensors"
        path.write_bytes(data)
        assert dangerous_globals(path) == [] or not data[8:9] == b"{"
        return checkpoint_meaning(path)
