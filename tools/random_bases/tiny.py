"""A random-weight tiny base: a T3 of few queries, a real tokenizer, a codec and four made-up speakers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.random_bases import RandomBaseSize, RandomBaseSpec, bpe_tokenizer_json
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.core.errors import ConfigError
from voxgraft.core.files import atomic_write, write_json
from voxgraft.models.chatterbox.family import T3Size, t3_shapes
from voxgraft.models.tiny.family import (
    CARD_NAME,
    CHECKPOINT_NAME,
    CODEC_NAME,
    SHIPPED_SIZE,
    SIMPLE_PUNCTUATION,
    SPACE_TOKEN,
    TOKENIZER_NAME,
    Tiny,
    TinyTextFrontend,
    write_voice_vectors,
    write_voices,
)

if TYPE_CHECKING:
    from voxgraft.models.speech_model import SpeechModel

MergePair = tuple[str, str]
WORD_PATTERN = re.compile(r"\w+|[^\w\s]+")
"""How text between special pieces is cut; pieces never reach across."""


def build_tokenizer_json(texts: Iterable[str], num_pieces: int, min_count: int = 1) -> dict[str, Any]:
    """A tokenizer of that many pieces for prepared texts (without tags), as its JSON file holds it.

    Characters that occur less than `min_count` times are left out, and so unknown to the base.
    """
    words = Counter(word for text in texts for word in WORD_PATTERN.findall(text.replace(SPACE_TOKEN, " ")))
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update({character: count * word.count(character) for character in set(word)})
    characters = sorted({c for c, count in counts.items() if count >= min_count} | set(SIMPLE_PUNCTUATION))
    tags = [f"[{language}]" for language in Tiny.languages]
    fixed = len(Tiny.special_ids) + len(tags) + len(characters)
    if num_pieces < fixed:
        expected = f"{fixed} or more, for the characters and tags alone"
        raise ConfigError("config-value", f"a tokenizer of {num_pieces} pieces was asked for", expected=expected)
    merges = learn_merges({word: n for word, n in words.items() if set(word) <= set(characters)}, num_pieces - fixed)
    filled = [f"[PLACEHOLDER{number}]" for number in range(num_pieces - fixed - len(merges))]
    special = [*sorted(Tiny.special_ids, key=Tiny.special_ids.__getitem__), *tags]
    pieces = [*special, *characters, *("".join(merge) for merge in merges), *filled]
    return bpe_tokenizer_json({piece: at for at, piece in enumerate(pieces)}, [*special, *filled], merges)


def learn_merges(words: Mapping[str, int], num_merges: int) -> list[MergePair]:
    """The commonest pair of neighbours becomes a piece, again and again; of equally common ones the first by name."""
    spelled = {word: list(word) for word in words}
    counts: Counter[MergePair] = Counter()
    holders: defaultdict[MergePair, set[str]] = defaultdict(set)

    def count(word: str, sign: int) -> None:
        for pair in pairwise(spelled[word]):
            counts[pair] += sign * words[word]
            holders[pair].add(word)

    for word in words:
        count(word, 1)
    merges: list[MergePair] = []
    while len(merges) < num_merges:
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=("", ""))
        if counts[best] < 1:
            break
        merges.append(best)
        for word in tuple(holders[best]):
            count(word, -1)
            merge_pair_in_place(spelled[word], best)
            count(word, 1)
    return merges


def merge_pair_in_place(pieces: list[str], pair: MergePair) -> None:
    """Make one piece of every such pair, from the left."""
    at = 0
    while at < len(pieces) - 1:
        if pieces[at] == pair[0] and pieces[at + 1] == pair[1]:
            pieces[at : at + 2] = ["".join(pair)]
        at += 1


RANDOM_SPEAKERS = ("one", "two", "three", "four")
RANDOM_SIZES = {
    "tiny": RandomBaseSize(width=64, layers=2, pieces=160),
    "small": RandomBaseSize(width=128, layers=4, pieces=160),
    "full": RandomBaseSize(width=SHIPPED_SIZE.width, layers=SHIPPED_SIZE.layers, pieces=SHIPPED_SIZE.text_rows),
}
# A base whose voices are vectors of recordings.
CLONING_SIZE = replace(RANDOM_SIZES["tiny"], voice_vector=16)
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
        speaker_width=size.voice_vector or len(RANDOM_SPEAKERS),
    )


def _write_side_files(folder: Path, size: RandomBaseSize) -> None:
    write_json(folder / TOKENIZER_NAME, build_tokenizer_json(_training_texts(), size.pieces, MIN_CHARACTER_COUNT))
    if size.voice_vector:
        write_voice_vectors(folder, size.voice_vector, _random_vectors(size.voice_vector))
    else:
        write_voices(folder, RANDOM_SPEAKERS)
    card = {"family": Tiny.name, "what": "random weights, which cannot speak", "licence": Tiny.licence}
    write_json(folder / CARD_NAME, card)
    _write_random_codec(folder / CODEC_NAME, size.voice_vector)


def _random_vectors(width: int) -> dict[str, list[float]]:
    """Two named voices."""
    vectors = np.random.default_rng(0).standard_normal((2, width))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return {name: vector.tolist() for name, vector in zip(RANDOM_SPEAKERS, units, strict=False)}


def _write_random_codec(path: Path, voice_vector: int) -> None:
    """A narrow codec of random weights: neither its codes nor its sound mean anything."""
    import torch

    from voxgraft.models.tiny.model import TinyCodec, TinyCodecConfig

    narrow = TinyCodecConfig(RANDOM_SPEAKERS, encoder_width=32, decoder_width=32, voice_width=32)
    if voice_vector:
        narrow = replace(narrow, speakers=(), voice_vector=voice_vector, speaker_width=32, speaker_blocks=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        codec = TinyCodec(narrow)
    codec.save(path)
    # safetensors writes its metadata in another order each time; sorted, the same seed gives the same bytes.
    with open_checkpoint(path) as made:
        metadata = dict(sorted((made.metadata or {}).items()))
        tensors = {name: TensorBytes.of(made.read(name)) for name in made.tensors}
    with atomic_write(path, overwrite=True) as stream:
        write_safetensors(stream, tensors, metadata)


def _training_texts() -> Iterator[str]:
    from voxgraft.tokenizers import load_proof_corpus  # needs regex; training a tiny base does not

    front = TinyTextFrontend()
    for code, sentence in load_proof_corpus():
        if code in Tiny.languages:
            yield front.prepare(front.clean(sentence), None)


RANDOM_BASE_SPEC = RandomBaseSpec(
    RANDOM_SIZES, CHECKPOINT_NAME, lambda size: t3_shapes(random_t3_size(size)), _write_side_files
)


def random_condition(model: SpeechModel, draw: np.random.Generator) -> Any:
    """A voice out of nothing, as the family's model is conditioned on it."""
    from voxgraft.models.tiny.model import TinyT3

    assert isinstance(model, TinyT3)
    if model.clones_voices:
        vector = draw.standard_normal(model.size.speaker_width)
        return (vector / np.linalg.norm(vector)).astype(np.float32)
    return draw.integers(0, model.size.speaker_width, 1)
