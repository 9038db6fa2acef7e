"""Checkpoint files: safetensors, torch archives, the pickles inside them."""

from __future__ import annotations

import base64
import io
import json
import pickletools
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.fuzz import byte_mutations, json_mutations, pickle_mutations, safetensors_mutations, zip_mutations
from tests.fuzz.target import Mutant, Random, Target
from voxgraft.checkpoints import find_dangerous_globals, open_any_checkpoint, open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors

Meaning = list[tuple[object, ...]]


def checkpoint_meaning(path: Path, *, foreign: bool = False) -> Meaning:
    """Every tensor by name, type, shape and bytes; reads all values in both ways that there are."""
    meaning: Meaning = []
    with (open_any_checkpoint if foreign else open_checkpoint)(path) as checkpoint:
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
        assert find_dangerous_globals(path) == [] or data[8:9] != b"{"
        return checkpoint_meaning(path)


def _trained_parts() -> tuple[dict[str, Any], Any, Any]:
    """What the torch seeds hold, the same at each call: a state dict (two names for one table, strided views, bf16),
    and a layer with the optimizer that has trained it.
    """
    import torch

    torch.manual_seed(0)
    shared = torch.randn(6, 4)
    state = {
        "text_embedding.weight": shared,
        "text_head.weight": shared,
        "text_head.bias": torch.randn(12)[::2],
        "body.weight": torch.randn(3, 5).t().to(torch.bfloat16),
        "step": torch.tensor(7),
    }
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    return state, layer, optimizer


class TorchTarget(Target):
    """What the two kinds of damage to a torch archive share: seeds that torch itself wrote, and the reading."""

    def make_seeds(self, folder: Path) -> None:
        import torch

        state, layer, optimizer = _trained_parts()
        state["body.mask"] = torch.ones(1, 1).expand(3, 4)
        whole = {
            "model": {**layer.state_dict(), "weight": torch.nn.Parameter(layer.weight.half())},
            "optimizer": optimizer.state_dict(),
            "numpy": {"state": np.random.default_rng(0).bit_generator.state, "value": np.float64(1.5)},
            "rng": torch.get_rng_state(),
            "epoch": 3,
            "name": "ሙከራ",
            "u": torch.tensor([1, 2, 3], dtype=torch.uint16),
        }
        torch.save(state, folder / "state.pth")
        torch.save(whole, folder / "whole.pt")
        torch.save(layer.state_dict(), folder / "ordered.pth", pickle_protocol=4)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "model.pth"
        path.write_bytes(data)
        find_dangerous_globals(path)
        return checkpoint_meaning(path)


class TorchZipTarget(TorchTarget):
    """Archives that lie about their records."""

    name: ClassVar[str] = "torch-zip"
    count: ClassVar[int] = 2500

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        choice = rng.random()
        if choice < 0.12:
            made, how = zip_mutations.reformed(data, rng)
            return Mutant(seed, how, made, same=True)
        if choice < 0.55:
            made, how = zip_mutations.lying(data, rng)
        elif choice < 0.75:
            made, how = zip_mutations.damaged_tail(data, rng)
        else:
            made, how = byte_mutations.damaged(data, rng)
        return Mutant(seed, how, made)


class TorchPickleTarget(TorchTarget):
    """Sound archives with damaged and hostile pickles inside, and such pickles by themselves."""

    name: ClassVar[str] = "torch-pickle"
    count: ClassVar[int] = 2500

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        pickle = zip_mutations.record(data, "data.pkl")
        choice = rng.random()
        if choice < 0.1:
            made, how = pickle_mutations.reformed(pickle, rng)
            return Mutant(seed, how, zip_mutations.with_record(data, "data.pkl", made), same=True)
        if choice < 0.8:
            made, how = pickle_mutations.edited(pickle, rng)
        else:
            made, how = byte_mutations.damaged(pickle, rng)
        if rng.random() < 0.08:
            return Mutant(seed, f"bare pickle: {how}", made)
        return Mutant(seed, how, zip_mutations.with_record(data, "data.pkl", made))


class LegacyTarget(TorchTarget):
    """Torch files from before the archives: five pickles and the storages behind them, all of which can lie."""

    name: ClassVar[str] = "torch-legacy"
    count: ClassVar[int] = 3000

    def make_seeds(self, folder: Path) -> None:
        import torch

        state, layer, optimizer = _trained_parts()
        whole = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "ሙከራ"}
        nested = {"model": {"gpt": state, "s3gen": {"a": torch.ones(2)}}, "step": 1}
        for name, content in {"state": state, "whole": whole, "nested": nested}.items():
            torch.save(content, folder / f"{name}.pth", _use_new_zipfile_serialization=False)

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        ends = _pickle_ends(data)
        at = rng.choice((2, 3, 3, 3, 4))
        before, pickle, after = data[: ends[at - 1]], data[ends[at - 1] : ends[at]], data[ends[at] :]
        choice = rng.random()
        if choice < 0.1:
            made, how = pickle_mutations.reformed(pickle, rng)
            return Mutant(seed, f"pickle {at}: {how}", before + made + after, same=True)
        if choice < 0.6:
            made, how = pickle_mutations.edited(pickle, rng)
            return Mutant(seed, f"pickle {at}: {how}", before + made + after)
        if choice < 0.75:
            made, how = byte_mutations.damaged(data[ends[-1] :], rng)
            return Mutant(seed, f"storages: {how}", data[: ends[-1]] + made)
        made, how = byte_mutations.damaged(data, rng)
        return Mutant(seed, how, made)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "model.pth"
        path.write_bytes(data)
        find_dangerous_globals(path)
        return checkpoint_meaning(path, foreign=True)


def _pickle_ends(data: bytes) -> list[int]:
    """Where each of the five pickles of a legacy file ends."""
    stream = io.BytesIO(data)
    ends = []
    for _ in range(5):
        for _ in pickletools.genops(stream):
            pass
        ends.append(stream.tell())
    return ends


class ShardsTarget(Target):
    """Models in several files, of either kind: an index that lies, a part that is damaged, or missing."""

    name: ClassVar[str] = "shards"
    count: ClassVar[int] = 2500
    FILES: ClassVar[dict[str, str]] = {
        "safetensors": "model-0000{}-of-00002.safetensors",
        "bin": "m-0000{}-of-00002.bin",
    }

    def make_seeds(self, folder: Path) -> None:
        """One file with all three parts for each kind, since a seed is a single file."""
        import torch
        from safetensors.torch import save

        torch.manual_seed(0)
        parts = [{"text_emb.weight": torch.randn(6, 4), "a": torch.ones(3)}, {"text_head.weight": torch.randn(6, 4)}]
        for kind, file in self.FILES.items():
            files = {}
            for number, part in enumerate(parts, 1):
                stream = io.BytesIO()
                torch.save(part, stream)
                data = save(part) if kind == "safetensors" else stream.getvalue()
                files[file.format(number)] = base64.b64encode(data).decode()
            placed = {name: file.format(number) for number, part in enumerate(parts, 1) for name in part}
            index = json.dumps({"metadata": {"total_size": 1}, "weight_map": placed})
            (folder / kind).write_text(json.dumps({"index": index, **files}), encoding="utf-8")

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        files = json.loads(data)
        name = rng.choice(sorted(files))
        if name == "index":
            made, how = json_mutations.edited(files[name].encode(), rng)
            files[name] = made.decode("utf-8", "replace")
        elif rng.random() < 0.1:
            how = "not there"
            del files[name]
        else:
            made, how = byte_mutations.damaged(base64.b64decode(files[name]), rng)
            files[name] = base64.b64encode(made).decode()
        return Mutant(seed, f"{name}: {how}", json.dumps(files).encode())

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        files = json.loads(data)
        suffix = "safetensors" if seed == "safetensors" else "bin"
        (scratch / f"model.{suffix}.index.json").write_text(files.pop("index"), encoding="utf-8")
        for name, text in files.items():
            (scratch / name).write_bytes(base64.b64decode(text))
        find_dangerous_globals(scratch / f"model.{suffix}.index.json")
        return checkpoint_meaning(scratch, foreign=True)
