"""A random-weight tiny base: a T3 of few queries, a real tokenizer, a codec and four made-up speakers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from voxgraft.checkpoints import TensorBytes, open_checkpoint, write_safetensors
from voxgraft.families.chatterbox.shapes import T3Size, t3_shapes
from voxgraft.families.random_values import RandomMaker, RandomSize
from voxgraft.families.tiny.family import CARD_NAME, CHECKPOINT_NAME, CODEC_NAME, TOKENIZER_NAME, Tiny
from voxgraft.families.tiny.frame import SHIPPED_SIZE
from voxgraft.families.tiny.text import TinyFront
from voxgraft.families.tiny.tokenizer_file import tokenizer_document
from voxgraft.families.tiny.voices import write_voices
from voxgraft.files import replacing, write_json
from voxgraft.text.texts import proof_corpus

SPEAKERS = ("one", "two", "three", "four")
SIZES = {
    "tiny": RandomSize(width=64, layers=2, pieces=160),
    "small": RandomSize(width=128, layers=4, pieces=160),
    "full": RandomSize(width=SHIPPED_SIZE.width, layers=SHIPPED_SIZE.layers, pieces=SHIPPED_SIZE.text_rows),
}
MIN_COUNT = 20


def random_size(size: RandomSize) -> T3Size:
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
        speaker_width=len(SPEAKERS),
    )


def _shapes(size: RandomSize) -> dict[str, tuple[int, ...]]:
    return t3_shapes(random_size(size))


def _write_beside(folder: Path, size: RandomSize) -> None:
    write_json(folder / TOKENIZER_NAME, tokenizer_document(_texts(), size.pieces, MIN_COUNT))
    write_voices(folder, SPEAKERS)
    card = {"family": Tiny.name, "what": "random weights, which cannot speak", "licence": Tiny.licence}
    write_json(folder / CARD_NAME, card)
    _write_codec(folder / CODEC_NAME)


def _write_codec(path: Path) -> None:
    """A small one of random weights: what it hears and what it sounds like mean nothing."""
    import torch

    from voxgraft.families.tiny.codec import Codec, CodecConfig

    narrow = CodecConfig(SPEAKERS, encoder_width=32, decoder_width=32, voice_width=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        codec = Codec(narrow)
    codec.save(path)
    _in_order(path)


def _in_order(path: Path) -> None:
    """The same file, its notes sorted: the library that wrote it puts them in another order each time."""
    with open_checkpoint(path) as made:
        notes = dict(sorted((made.metadata or {}).items()))
        tensors = {name: TensorBytes.of(made.read(name)) for name in made.tensors}
    with replacing(path, overwrite=True) as stream:
        write_safetensors(stream, tensors, notes)


def _texts() -> Iterator[str]:
    front = TinyFront()
    for code, sentence in proof_corpus():
        if code in Tiny.languages:
            yield front.prepare(front.clean(sentence), None)


MAKER = RandomMaker(SIZES, CHECKPOINT_NAME, _shapes, _write_beside)
