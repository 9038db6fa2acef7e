"""A random-weight XTTS base: all tensors of model.pth, a tokenizer with holes in its ids, a DVAE and two voices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tools.random_bases import (
    RandomBaseSize,
    RandomBaseSpec,
    bpe_tokenizer_json,
    fan_in_scaled_blocks,
    random_blocks,
)
from voxgraft.checkpoints.base import ByteSink, row_major_strides
from voxgraft.checkpoints.pickles import PickleDict, TorchTensor
from voxgraft.checkpoints.write import StorageBytes, write_torch_tree
from voxgraft.core.errors import ConfigError
from voxgraft.core.files import atomic_write, write_text
from voxgraft.models.xtts.family import CHECKPOINT_NAME, DVAE_NAME, SPEAKERS_NAME, TOKENIZER_NAME, XTTS
from voxgraft.models.xtts.shapes import (
    CONFIG_NAME,
    COUNTER_SUFFIX,
    DECODER_PREFIX,
    MEL_STATS_NAME,
    SPEAKER_VECTOR_WIDTH,
    VOICE_LATENTS,
    XTTSSize,
    dvae_shapes,
    xtts_shapes,
)
from voxgraft.tokenizers import load_proof_corpus

if TYPE_CHECKING:
    from voxgraft.models.speech_model import SpeechModel

RANDOM_SIZES = {
    "tiny": RandomBaseSize(width=64, layers=2, pieces=640),
    "small": RandomBaseSize(width=256, layers=4, pieces=6681),
    "full": RandomBaseSize(width=1024, layers=30, pieces=6681),
}
CODEBOOK_SPREAD = 1.0
VOICE_NAMES = ("Ada Lovelace", "J. S. Bach")
# Ids counted from the end that no piece has; tags follow them, as in the published kind of file.
HOLES = (8, 7)
# Languages of the built-in corpus whose letters reach the tokenizer as they are written.
ALPHABETIC = tuple("ar cs de en es fr hu it nl pl pt ru tr".split())
ASCII_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'-"


def _random_xtts_size(size: RandomBaseSize) -> XTTSSize:
    """A narrow base gets narrow vocoder and speaker encoder as well."""
    if size.width == XTTSSize().width:
        return XTTSSize(size.pieces, size.width, size.layers)
    return XTTSSize(size.pieces, size.width, size.layers, vocoder_width=32, speaker_width=8)


def _random_side_shapes(size: RandomBaseSize) -> dict[str, dict[str, tuple[int, ...]]]:
    full = size.width == XTTSSize().width
    return {DVAE_NAME: dvae_shapes() if full else dvae_shapes(hidden=16, code_width=2)}


def _write_side_files(folder: Path, size: RandomBaseSize) -> None:
    document = _build_tokenizer_json(size.pieces)
    write_text(folder / TOKENIZER_NAME, json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / CONFIG_NAME, _build_config_text(_random_xtts_size(size)))
    _write_voices(folder / SPEAKERS_NAME, size.width)


def _write_voices(path: Path, width: int) -> None:
    """Voices by name in the published form: two tensors of each, latents first."""
    draw, tree, storages = np.random.default_rng(width), PickleDict(), {}
    for voice in VOICE_NAMES:
        arrays = {
            "gpt_cond_latent": draw.standard_normal((1, VOICE_LATENTS, width), dtype=np.float32),
            "speaker_embedding": draw.standard_normal((1, SPEAKER_VECTOR_WIDTH, 1), dtype=np.float32),
        }
        entries = {}
        for name, array in arrays.items():
            key = str(len(storages))
            fields = (key, "torch.FloatStorage", "cpu", array.size, "F32", 0, array.shape)
            entries[name] = TorchTensor(*fields, row_major_strides(array.shape))
            storages[key] = StorageBytes(array.nbytes, partial(list, [array.tobytes()]))
        tree.entries[voice] = PickleDict(entries=entries)
    with atomic_write(path) as stream:
        write_torch_tree(ByteSink(stream), tree, storages)


def _build_config_text(size: XTTSSize) -> str:
    """The keys of the published file that matter here, and one of the bare words that it holds."""
    config = {
        "model": "xtts",
        "languages": [*(code for code in XTTS.languages if code != "zh"), "zh-cn"],
        "audio": {"sample_rate": 22050, "output_sample_rate": 24000},
        "model_args": {
            "gpt_batch_size": 1,
            "gpt_max_audio_tokens": size.speech_positions - 3,
            "gpt_max_text_tokens": size.text_positions - 2,
            "gpt_max_prompt_tokens": 70,
            "gpt_layers": size.layers,
            "gpt_n_model_channels": size.width,
            "gpt_n_heads": size.heads,
            "gpt_number_text_tokens": size.text_rows,
            "gpt_start_text_token": XTTS.start_id,
            "gpt_stop_text_token": XTTS.stop_id,
            "gpt_num_audio_tokens": size.speech_rows,
            "gpt_start_audio_token": size.speech_rows - 2,
            "gpt_stop_audio_token": size.speech_rows - 1,
            "gpt_use_perceiver_resampler": True,
            "input_sample_rate": 22050,
            "output_sample_rate": 24000,
            "output_hop_length": 256,
            "decoder_input_dim": size.width,
            "d_vector_dim": 512,
        },
        "temperature": 0.75,
        "length_penalty": 1.0,
        "repetition_penalty": 5.0,
        "top_k": 50,
        "top_p": 0.85,
        "gpt_cond_len": 30,
        "gpt_cond_chunk_len": 4,
        "max_ref_len": 30,
        "sound_norm_refs": False,
        "max_audio_len": math.inf,
    }
    return json.dumps(config, indent=4) + "\n"


@lru_cache(maxsize=2)  # it depends on no seed, and tests make many bases
def _build_tokenizer_json(num_pieces: int) -> dict[str, Any]:
    texts = [text.lower() for code, text in load_proof_corpus() if code in ALPHABETIC]
    tags = [XTTS().tag(code) or "" for code in XTTS.languages]
    specials = XTTS.special_ids
    characters = sorted(
        {character for text in texts for character in text if not character.isspace()} | {*ASCII_LETTERS}
    )
    fixed = len(specials) + len(tags) + len(characters) + len(HOLES)
    if num_pieces < max(fixed, XTTS.start_id + len(tags)):
        expected = f"{fixed} or more, for the characters and tags alone"
        raise ConfigError("config-value", f"a tokenizer of {num_pieces} pieces was asked for", expected=expected)
    merges = _learn_merges(texts, len(characters) + num_pieces - fixed)
    added = [*tags, *(f"[PLACEHOLDER{number}]" for number in range(num_pieces - fixed - len(merges)))]
    plain = iter([*characters, *("".join(merge) for merge in merges), *added])
    by_id = {at: piece for piece, at in specials.items()}
    holes = {num_pieces - hole for hole in HOLES}
    vocabulary = {by_id.get(at) or next(plain): at for at in range(num_pieces) if at not in holes}
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


def _random_dvae_blocks(name: str, shape: tuple[int, ...], seed: int) -> Iterator[NDArray[np.float32]]:
    """A codebook as wide as what is looked up in it, so that a recording has many different codes."""
    if name != "codebook.embed":
        return fan_in_scaled_blocks(name, shape, seed)
    spread = np.float32(CODEBOOK_SPREAD * math.sqrt(shape[1]))
    return (spread * block for block in fan_in_scaled_blocks(name, shape, seed))


def _random_xtts_blocks(name: str, shape: tuple[int, ...], seed: int) -> Iterator[NDArray[np.float32]]:
    """Random values; deep networks get larger weights, and the mel spectrograms a scale of their size."""
    if name == MEL_STATS_NAME:
        return iter([np.full(shape, 5.0, dtype=np.float32)])
    if name.startswith((DECODER_PREFIX, "gpt.conditioning_")):
        return fan_in_scaled_blocks(name, shape, seed)
    return random_blocks(name, shape, seed)


RANDOM_BASE_SPEC = RandomBaseSpec(
    RANDOM_SIZES,
    CHECKPOINT_NAME,
    lambda size: xtts_shapes(_random_xtts_size(size)),
    _write_side_files,
    _random_xtts_blocks,
    _random_side_shapes,
    _random_dvae_blocks,
    wrapper="model",
    is_counter=lambda name: name.endswith(COUNTER_SUFFIX),
)


def random_condition(model: SpeechModel, draw: np.random.Generator) -> Any:
    """A voice out of nothing, as the family's model is conditioned on it."""
    from voxgraft.models.xtts.model import XTTSModel

    assert isinstance(model, XTTSModel)
    return draw.standard_normal((VOICE_LATENTS, model.size.width), dtype=np.float32)
