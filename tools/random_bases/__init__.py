"""Base models with random weights in the published file formats, of any size: for tests, benchmarks and recipes.

The tokenizers are real ones, trained on the built-in sentences; the weights are noise, so a base cannot speak.
`python -m tools.random_bases FAMILY FOLDER` writes one. Each family has a module here with its sizes, tensor shapes
and side files (`RANDOM_BASE_SPEC`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import ByteSink, from_float32
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.core.errors import FileError
from voxgraft.core.files import atomic_write, atomic_write_folder, is_folder, path_exists
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles

if TYPE_CHECKING:
    from voxgraft.models.speech_model import SpeechModel

Shape = tuple[int, ...]
RandomDtype = Literal["F32", "F16", "BF16"]
BlockGenerator = Callable[[str, Shape, int], Iterator[NDArray[np.float32]]]
BLOCK_VALUES = 1 << 20
EMBEDDING_STD = 0.04
WEIGHT_STD = 0.02
GAIN_STD = 0.1
UNKNOWN_TOKEN = "[UNK]"


@dataclass(frozen=True, slots=True)
class RandomBaseSize:
    """What may be chosen about a random base; the rest follows from the family."""

    width: int
    layers: int
    pieces: int
    dtype: RandomDtype = "F32"
    sentencepiece: Literal["unigram", "bpe"] = "unigram"
    """Kind of tokenizer, for families whose tokenizer is a SentencePiece model."""
    voice_vector: int = 0
    """Numbers of a voice vector, for tiny bases that clone voices; 0: voices by name."""


def random_blocks(name: str, shape: Shape, seed: int) -> Iterator[NDArray[np.float32]]:
    """The values of one tensor in order, as flat pieces: no tensor is ever whole in memory."""
    kind = name.rpartition(".")[2]
    if len(shape) == 1 and kind in ("weight", "gamma"):  # gains lie around 1, everything else around 0
        return _normal_blocks(name, shape, seed, 1.0, WEIGHT_STD)
    return _normal_blocks(name, shape, seed, 0.0, EMBEDDING_STD if "emb" in name else WEIGHT_STD)


def fan_in_scaled_blocks(name: str, shape: Shape, seed: int) -> Iterator[NDArray[np.float32]]:
    """As `random_blocks`, with weights large enough that a deep network still tells different inputs apart."""
    kind = name.rpartition(".")[2]
    if kind in ("weight_g", "original0", "var", "running_var", "alpha") or (
        len(shape) == 1 and kind in ("weight", "gamma")
    ):
        return _normal_blocks(name, shape, seed, 1.0, GAIN_STD)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else 0
    return _normal_blocks(name, shape, seed, 0.0, fan_in**-0.5 if fan_in else WEIGHT_STD)


def _normal_blocks(name: str, shape: Shape, seed: int, mean: float, std: float) -> Iterator[NDArray[np.float32]]:
    # The generator depends on the tensor's name, not on its place in the file: other tensors do not change it.
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    for start in range(0, math.prod(shape), BLOCK_VALUES):
        values = generator.standard_normal(min(BLOCK_VALUES, math.prod(shape) - start), dtype=np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
        yield values


def bpe_tokenizer_json(vocabulary: dict[str, int], added: list[str], merges: list[tuple[str, str]]) -> dict[str, Any]:
    """A tokenizer.json of the structure that the published Chatterbox file has."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[piece], "content": piece, **flags, "special": True} for piece in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN_TOKEN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": vocabulary,
            "merges": [" ".join(merge) for merge in merges],
        },
    }


@dataclass(frozen=True, slots=True)
class RandomBaseSpec:
    """What a family tells about its random bases."""

    sizes: Mapping[str, RandomBaseSize]
    checkpoint_name: str
    shapes: Callable[[RandomBaseSize], dict[str, Shape]]
    write_side_files: Callable[[Path, RandomBaseSize], None]
    """Writes everything but the checkpoint."""
    blocks: BlockGenerator = random_blocks
    """Name, shape and seed of one tensor to its values."""
    side_shapes: Callable[[RandomBaseSize], Mapping[str, Mapping[str, Shape]]] = lambda _size: {}
    """The tensors of the other checkpoints in the folder, by file name: what front ends read."""
    side_blocks: BlockGenerator = fan_in_scaled_blocks
    """Name, shape and seed of one of their tensors to its values."""
    wrapper: str | None = None
    """The key under which a torch checkpoint holds the tensors; None: they are the whole file."""
    is_counter: Callable[[str], bool] = lambda _name: False
    """Whether a tensor is a whole number, written as 0."""


RandomSizeName = Literal["tiny", "small", "full"]


def make_random_base(
    family_name: str, folder: Path, *, size: RandomSizeName | RandomBaseSize = "tiny", seed: int = 0
) -> BaseFiles:
    """Make a base folder, whole or not at all. The same arguments give the same bytes."""
    spec = get_random_base_spec(family_name)
    chosen = spec.sizes[size] if isinstance(size, str) else size
    if path_exists(folder) and (not is_folder(folder) or any(folder.iterdir())):
        raise FileError("file-exists", f"{folder.name} is there already and not empty", where=folder)
    if path_exists(folder):
        folder.rmdir()
    with atomic_write_folder(folder) as building:
        spec.write_side_files(building, chosen)
        for name, shapes in spec.side_shapes(chosen).items():
            tensors = _random_tensors(shapes, spec.side_blocks, "F32", seed)
            _write_checkpoint(building / name, tensors)
        tensors = _random_tensors(spec.shapes(chosen), spec.blocks, chosen.dtype, seed)
        counter = TensorBytes.of(np.zeros((), dtype=np.int64))
        tensors |= {name: counter for name in tensors if spec.is_counter(name)}
        _write_checkpoint(building / spec.checkpoint_name, tensors, spec.wrapper)
    return get_family(family_name).files(folder)


def get_random_base_spec(family_name: str) -> RandomBaseSpec:
    """How a family's random bases are made: its sizes by name, its tensors, its other files."""
    spec = import_module(f"tools.random_bases.{get_family(family_name).name}").RANDOM_BASE_SPEC
    assert isinstance(spec, RandomBaseSpec)
    return spec


def _write_checkpoint(path: Path, tensors: Mapping[str, TensorBytes], wrapper: str | None = None) -> None:
    """The tensors in the format that the file's name stands for, generated while they are written."""
    with atomic_write(path) as stream:
        if path.suffix == ".safetensors":
            write_safetensors(ByteSink(stream), tensors, None)
        else:
            write_torch(ByteSink(stream), tensors, wrapper=wrapper)


def _random_tensors(
    shapes: Mapping[str, Shape], blocks: BlockGenerator, dtype: RandomDtype, seed: int
) -> dict[str, TensorBytes]:
    return {name: _random_tensor_bytes(name, shape, blocks, dtype, seed) for name, shape in shapes.items()}


def _random_tensor_bytes(name: str, shape: Shape, blocks: BlockGenerator, dtype: RandomDtype, seed: int) -> TensorBytes:
    def chunks() -> Iterator[bytes]:
        for block in blocks(name, shape, seed):
            yield from_float32(block, dtype).tobytes()

    return TensorBytes(dtype, shape, chunks)


def random_condition(family_name: str, model: SpeechModel, draw: np.random.Generator) -> Any:
    """A random voice, as the family's model takes it."""
    made: Any = import_module(f"tools.random_bases.{get_family(family_name).name}").random_condition
    return made(model, draw)
