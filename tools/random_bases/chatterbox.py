"""A random-weight Chatterbox base: T3 tensors, a tokenizer of the published structure, a made-up Cangjie table, voice
encoder and speech tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tools.random_bases import RandomBaseSize, RandomBaseSpec, bpe_tokenizer_json
from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import ConfigError
from voxgraft.core.files import write_json
from voxgraft.models.chatterbox.family import (
    CANGJIE_NAME,
    KANJI,
    RELEASES,
    S3GEN_FILES,
    SPACE_TOKEN,
    SPEECH_TOKENIZER_PREFIX,
    VOICE_ENCODER_FILES,
    VOICE_ENCODER_LAYERS,
    VOICE_ENCODER_MELS,
    VOICE_ENCODER_WIDTH,
    Chatterbox,
    ChatterboxTextFrontend,
    T3Size,
    speech_tokenizer_shapes,
    t3_shapes,
)
from voxgraft.tokenizers import load_proof_corpus

if TYPE_CHECKING:
    from voxgraft.models.speech_model import SpeechModel

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


def voice_encoder_shapes() -> dict[str, Shape]:
    """The 16 tensors of ve.pt, in its order."""
    shapes: dict[str, Shape] = {"similarity_weight": (1,), "similarity_bias": (1,)}
    gates = 4 * VOICE_ENCODER_WIDTH
    for layer in range(VOICE_ENCODER_LAYERS):
        shapes |= {
            f"lstm.weight_ih_l{layer}": (gates, VOICE_ENCODER_WIDTH if layer else VOICE_ENCODER_MELS),
            f"lstm.weight_hh_l{layer}": (gates, VOICE_ENCODER_WIDTH),
            f"lstm.bias_ih_l{layer}": (gates,),
            f"lstm.bias_hh_l{layer}": (gates,),
        }
    return shapes | {"proj.weight": (VOICE_ENCODER_WIDTH, VOICE_ENCODER_WIDTH), "proj.bias": (VOICE_ENCODER_WIDTH,)}


def _random_side_shapes(size: RandomBaseSize) -> dict[str, dict[str, tuple[int, ...]]]:
    """What hears: the voice encoder at its one size, and of S3Gen the speech tokenizer, narrow beside a narrow T3.

    A base of full size has the whole S3Gen and can sound. A small one would be mostly S3Gen: 13 million numbers of it
    do not shrink with its sizes.
    """
    full = size.width == T3Size().width
    tokenizer = speech_tokenizer_shapes() if full else speech_tokenizer_shapes(width=128, layers=2)
    in_s3gen = {SPEECH_TOKENIZER_PREFIX + name: shape for name, shape in tokenizer.items()}
    if full:
        from voxgraft.models.campplus import COUNTER
        from voxgraft.models.chatterbox.hift import published_shapes
        from voxgraft.models.chatterbox.s3gen import S3Gen
        from voxgraft.nn.layers import init_empty_weights

        with init_empty_weights():
            waveform_end = published_shapes(S3Gen())
        in_s3gen |= {name: shape for name, shape in waveform_end.items() if not name.endswith(COUNTER)}
    return {VOICE_ENCODER_FILES[0]: voice_encoder_shapes(), S3GEN_FILES[0]: in_s3gen}


def _write_side_files(folder: Path, size: RandomBaseSize) -> None:
    write_json(folder / CANGJIE_NAME, _build_fake_cangjie())
    write_json(folder / TOKENIZER_NAME, _build_tokenizer_json(size.pieces))


def _training_texts() -> Iterator[str]:
    """The built-in corpus as the tokenizer will see it, without what becomes added tokens. Kanji never reach it."""
    front = ChatterboxTextFrontend()
    for code, sentence in load_proof_corpus():
        if code in Chatterbox.languages:
            prepared = front.prepare(front.clean(sentence), None).replace(SPACE_TOKEN, " ")
            yield "".join(character for character in _BRACKETED_TOKEN.sub(" ", prepared) if ord(character) not in KANJI)


@lru_cache(maxsize=2)  # it depends on no seed, and tests make many bases
def _build_tokenizer_json(num_pieces: int) -> dict[str, Any]:
    texts = list(_training_texts())
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
    special = {*specials, *added}
    return bpe_tokenizer_json(vocabulary, [piece for piece in vocabulary if piece in special], merges)


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
    base = len(CANGJIE_LETTERS)
    numbers = {character: ord(character) % NUM_CANGJIE_CODES for character in han}
    return [
        f"{character}\t{''.join(CANGJIE_LETTERS[number // base**place % base] for place in range(3))}"
        for character, number in numbers.items()
    ]


RANDOM_BASE_SPEC = RandomBaseSpec(
    RANDOM_SIZES,
    RELEASES[0].checkpoint,
    lambda size: t3_shapes(T3Size(size.pieces, size.width, size.layers, 4 * size.width)),
    _write_side_files,
    side_shapes=_random_side_shapes,
)


def random_condition(model: SpeechModel, draw: np.random.Generator) -> Any:
    """A voice out of nothing, as the family's model is conditioned on it."""
    from voxgraft.models.chatterbox.model import T3Condition

    voice = draw.random(256, dtype=np.float32)
    prompt = draw.integers(0, model.spec.num_codes, int(draw.integers(3, 40)))
    return T3Condition(voice / np.linalg.norm(voice), prompt, float(draw.random()))
