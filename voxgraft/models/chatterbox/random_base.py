"""A random-weight Chatterbox base: T3 tensors, a tokenizer of the published structure, a made-up Cangjie table, and
the two networks that hear."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from voxgraft.core.errors import ConfigError
from voxgraft.core.files import write_json
from voxgraft.models.chatterbox.family import RELEASES, S3GEN_FILES, VOICE_ENCODER_FILES, Chatterbox
from voxgraft.models.chatterbox.shapes import (
    SPEECH_TOKENIZER_PREFIX,
    T3Size,
    speech_tokenizer_shapes,
    t3_shapes,
    voice_encoder_shapes,
)
from voxgraft.models.chatterbox.text import CANGJIE_NAME, KANJI, SPACE_TOKEN, ChatterboxTextFrontend
from voxgraft.models.random_base import RandomBaseSize, RandomBaseSpec
from voxgraft.tokenizers.base import load_proof_corpus

RANDOM_SIZES = {
    "tiny": RandomBaseSize(width=64, layers=2, pieces=640),
    "small": RandomBaseSize(width=256, layers=4, pieces=2454),
    "full": RandomBaseSize(width=1024, layers=30, pieces=2454),
}
TOKENIZER_NAME = RELEASES[0].tokenizer
CANGJIE_KEYS = "abcdefghijklmnopqrstuvwxyz0123456789."
CANGJIE_LETTERS = CANGJIE_KEYS[:25]
NUM_CANGJIE_CODES = 4999
"""Fewer codes than characters, so that some share one, as in the published table."""

_BRACKETED_TOKEN = re.compile(r"\[[^\]]*\]")


def _random_t3_shapes(size: RandomBaseSize) -> dict[str, tuple[int, ...]]:
    return t3_shapes(T3Size(size.pieces, size.width, size.layers, 4 * size.width))


def _random_side_shapes(size: RandomBaseSize) -> dict[str, dict[str, tuple[int, ...]]]:
    """What hears: the voice encoder at its one size, and of S3Gen the speech tokenizer, narrow beside a narrow T3."""
    full = size.width == T3Size().width
    tokenizer = speech_tokenizer_shapes() if full else speech_tokenizer_shapes(width=128, layers=2)
    in_s3gen = {SPEECH_TOKENIZER_PREFIX + name: shape for name, shape in tokenizer.items()}
    return {VOICE_ENCODER_FILES[0]: voice_encoder_shapes(), S3GEN_FILES[0]: in_s3gen}


def _write_side_files(folder: Path, size: RandomBaseSize) -> None:
    write_json(folder / CANGJIE_NAME, _build_fake_cangjie())
    write_json(folder / TOKENIZER_NAME, _cached_tokenizer_json(size.pieces))


@lru_cache(maxsize=2)
def _cached_tokenizer_json(num_pieces: int) -> dict[str, Any]:
    """The same for every seed."""
    return _build_tokenizer_json(list(_training_texts()), num_pieces)


def _training_texts() -> Iterator[str]:
    """The built-in corpus as the tokenizer will see it, without what becomes added tokens. Kanji never reach it."""
    front = ChatterboxTextFrontend()
    for code, sentence in load_proof_corpus():
        if code in Chatterbox.languages:
            prepared = front.prepare(front.clean(sentence), None).replace(SPACE_TOKEN, " ")
            yield "".join(character for character in _BRACKETED_TOKEN.sub(" ", prepared) if ord(character) not in KANJI)


def _build_tokenizer_json(texts: list[str], num_pieces: int) -> dict[str, Any]:
    added = [f"[{code}]" for code in Chatterbox.languages] + [f"[cj_{key}]" for key in CANGJIE_KEYS]
    specials = Chatterbox.special_ids
    characters = sorted({character for text in texts for character in text if not character.isspace()})
    fixed = len(specials) + len(added) + len(characters)
    if num_pieces < fixed:
        expected = f"{fixed} or more, for the characters and tags alone"
        raise ConfigError("config-value", f"a tokenizer of {num_pieces} pieces was asked for", expected=expected)
    merges = _learn_merges(texts, len(characters) + num_pieces - fixed)
    added += [f"[PLACEHOLDER{number}]" for number in range(num_pieces - fixed - len(merges))]
    plain = iter([*characters, *("".join(merge) for merge in merges), *added])
    by_id = {at: piece for piece, at in specials.items()}
    vocabulary = {by_id.get(at) or next(plain): at for at in range(num_pieces)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(piece, at) for piece, at in vocabulary.items() if piece in {*specials, *added}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "[UNK]",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": vocabulary,
            "merges": [" ".join(merge) for merge in merges],
        },
    }


def _added_token(piece: str, at: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": at, "content": piece, **flags, "special": True}


def _learn_merges(texts: Iterable[str], num_pieces: int) -> list[tuple[str, str]]:
    """The merges that make a vocabulary of that many characters and pieces."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=num_pieces, special_tokens=[], show_progress=False)
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]["merges"]
    return [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in learnt]


def _build_fake_cangjie() -> list[str]:
    """A code for every Han character of the built-in Chinese text; three letters that mean nothing."""
    chinese = (sentence for code, sentence in load_proof_corpus() if code == "zh")
    han = sorted({character for sentence in chinese for character in sentence if ord(character) in KANJI})
    return [f"{character}\t{_fake_cangjie_code(ord(character) % NUM_CANGJIE_CODES)}" for character in han]


def _fake_cangjie_code(number: int) -> str:
    base = len(CANGJIE_LETTERS)
    return "".join(CANGJIE_LETTERS[number // base**place % base] for place in range(3))


MAKER = RandomBaseSpec(
    RANDOM_SIZES, RELEASES[0].checkpoint, _random_t3_shapes, _write_side_files, side_shapes=_random_side_shapes
)
