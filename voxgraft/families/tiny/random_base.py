"""A random-weight tiny base: a T3 of few queries, a real tokenizer, a codec and four made-up speakers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from voxgraft.checkpoints import TensorBytes, open_checkpoint, write_safetensors
from voxgraft.families.chatterbox.shapes import T3Size, t3_shapes
from voxgraft.families.random_values import RandomBaseSize, RandomBaseSpec
from voxgraft.families.tiny.family import CARD_NAME, CHECKPOINT_NAME, CODEC_NAME, TOKENIZER_NAME, Tiny
from voxgraft.families.tiny.frame import SHIPPED_SIZE
from voxgraft.families.tiny.text import TinyTextFrontend
from voxgraft.families.tiny.tokenizer_file import build_tokenizer_json
from voxgraft.families.tiny.voices import write_voices
from voxgraft.files import atomic_write, write_json
from voxgraft.text.texts import load_proof_corpus

RANDOM_SPEAKERS = ("one", "two", "three", "four")
RANDOM_SIZES = {
    "tiny": RandomBaseSize(width=64, layers=2, pieces=160),
    "small": RandomBaseSize(width=128, layers=4, pieces=160),
    "full": RandomBaseSize(width=SHIPPED_SIZE.width, layers=SHIPPED_SIZE.layers, pieces=SHIPPED_SIZE.text_rows),
}
MIN_CHARACTER_COUNT = 20


def random_t3_size(size: RandomBaseSize) -> T3Size:
    """All that is not chosen is as in the shipped base, the MLP in proportion to the width."""
    mlp = SHIPPED_SIZE.mlp * size.width // SHIPPED_SIZE.width
    heads = max(1, size.width // 64)
    return replace(
        SHIPPED_SIZE,
        text_rows=size.pieces,
        width=size.width,
        layers=size.layers,
        mlp=mlp,
        heads=heads,
        speaker_width=len(RANDOM_SPEAKERS),
    )


def _random_t3_shapes(size: RandomBaseSize) -> dict[str, tuple[int, ...]]:
    return t3_shapes(random_t3_size(size))


def _write_side_files(folder: Path, size: RandomBaseSize) -> None:
    write_json(folder / TOKENIZER_NAME, build_tokenizer_json(_training_texts(), size.pieces, MIN_CHARACTER_COUNT))
    write_voices(folder, RANDOM_SPEAKERS)
    card = {"family": Tiny.name, "what": "random weights, which cannot speak", "licence": Tiny.licence}
    write_json(folder / CARD_NAME, card)
    _write_random_codec(folder / CODEC_NAME)


def _write_random_codec(path: Path) -> None:
    """A small one of random weights: what it hears and what it sounds like mean nothing."""
    import torch

    from voxgraft.families.tiny.codec import TinyCodec, TinyCodecConfig

    narrow = TinyCodecConfig(RANDOM_SPEAKERS, encoder_width=32, decoder_width=32, voice_width=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        codec = TinyCodec(narrow)
    codec.save(path)
    _sort_metadata(path)


def _sort_metadata(path: Path) -> None:
    """The same file, its notes sorted: the library that wrote it puts them in another order each time."""
    with open_checkpoint(path) as made:
        notes = dict(sorted((made.metadata or {}).items()))
        tensors = {name: TensorBytes.of(made.read(name)) for name in made.tensors}
    with atomic_write(path, overwrite=True) as stream:
        write_safetensors(stream, tensors, notes)


def _training_texts() -> Iterator[str]:
    front = TinyTextFrontend()
    for code, sentence in load_proof_corpus():
        if code in Tiny.languages:
            yield front.prepare(front.clean(sentence), None)


MAKER = RandomBaseSpec(RANDOM_SIZES, CHECKPOINT_NAME, _random_t3_shapes, _write_side_files)
