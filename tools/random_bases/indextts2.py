"""A random-weight IndexTTS-2 base: UnifiedVoice tensors, a SentencePiece model of the published structure, a config.

The published model has control pieces, then four tags, Han characters and pinyin syllables as user-defined pieces,
then a small vocabulary that was trained on text. The one made here has the same structure.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sentencepiece
import yaml
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2 as proto

from tools.random_bases import RandomBaseSize, RandomBaseSpec, random_blocks
from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import ConfigError
from voxgraft.core.files import atomic_write, write_text
from voxgraft.models.base import linear_shapes, norm_shapes, prefix_shapes
from voxgraft.models.indextts2.family import CODEC_NAME, STATISTICS_NAME, IndexTTS2, IndexTTS2TextFrontend
from voxgraft.models.indextts2.shapes import (
    CODEC_KERNEL,
    CONFIG_NAME,
    FEATURE_WIDTH,
    NUM_SEMANTIC_CODES,
    SEMANTIC_CODE_WIDTH,
    ConditioningEncoderSize,
    UnifiedVoiceSize,
    unified_voice_shapes,
)
from voxgraft.tokenizers import load_proof_corpus

if TYPE_CHECKING:
    from torch import Tensor

    from voxgraft.models.speech_model import SpeechModel

RANDOM_SIZES = {
    "tiny": RandomBaseSize(width=64, layers=2, pieces=1000),
    "small": RandomBaseSize(width=256, layers=4, pieces=12000),
    "full": RandomBaseSize(width=1280, layers=24, pieces=12000),
}
CHECKPOINT_NAME = IndexTTS2.checkpoint_names[0]
TOKENIZER_NAME = IndexTTS2.tokenizer_names[0]
LANGUAGE_TAGS = ("▁[ZH]", "▁[EN]", "▁[JA]", "▁[KO]")
NUM_LEARNED_PIECES = 1800
"""Learnt pieces of the published model; a smaller one gives half of its pieces to them."""
NUM_PINYIN = 1728
HAN_RANGE = range(0x4E00, 0xA000)

_PINYIN_INITIALS = ("", *"B P M F D T N L G K H J Q X ZH CH SH R Z C S Y W".split())
_PINYIN_FINALS = (
    "A AI AN ANG AO E EI EN ENG I IA IAN IANG IAO IE IN ING IU O ONG OU U UA UAI UAN UI UN UO V VE VAN VN".split()
)


def semantic_codec_shapes(width: int = 384, mlp: int = 2048, layers: int = 12) -> dict[str, Shape]:
    """The semantic codec (RepCodec), in the order of its file: 239 tensors at the published size."""
    side = linear_shapes("embed", width, FEATURE_WIDTH, CODEC_KERNEL) | norm_shapes("norm", width)
    for layer in range(layers):
        block = f"convnext.{layer}"
        side[f"{block}.gamma"] = (width,)
        side |= linear_shapes(f"{block}.dwconv", width, 1, CODEC_KERNEL) | norm_shapes(f"{block}.norm", width)
        side |= linear_shapes(f"{block}.pwconv1", mlp, width) | linear_shapes(f"{block}.pwconv2", width, mlp)
    side |= norm_shapes("final_layer_norm", width)
    shapes: dict[str, Shape] = {}
    for name in ("encoder", "decoder"):
        shapes |= prefix_shapes(f"{name}.0", side) | linear_shapes(f"{name}.1", FEATURE_WIDTH, width)
    quantizer = "quantizer.quantizers.0"
    for name, outputs, inputs in (
        ("in", SEMANTIC_CODE_WIDTH, FEATURE_WIDTH),
        ("out", FEATURE_WIDTH, SEMANTIC_CODE_WIDTH),
    ):
        project = f"{quantizer}.{name}_project"
        shapes[f"{project}.bias"] = (outputs,)
        shapes[f"{project}.weight_g"] = (outputs, 1, 1)
        shapes[f"{project}.weight_v"] = (outputs, inputs, 1)
    return shapes | {f"{quantizer}.codebook.weight": (NUM_SEMANTIC_CODES, SEMANTIC_CODE_WIDTH)}


def _random_side_shapes(size: RandomBaseSize) -> dict[str, dict[str, tuple[int, ...]]]:
    """The statistics of the features at their one size, and the semantic codec, narrow beside a narrow GPT."""
    full = size.width == UnifiedVoiceSize().width
    codec = semantic_codec_shapes() if full else semantic_codec_shapes(width=32, mlp=64, layers=2)
    return {STATISTICS_NAME: {"mean": (FEATURE_WIDTH,), "var": (FEATURE_WIDTH,)}, CODEC_NAME: codec}


def _write_side_files(folder: Path, size: RandomBaseSize) -> None:
    with atomic_write(folder / TOKENIZER_NAME) as stream:
        stream.write(_build_sentencepiece_model(size))
    write_text(folder / CONFIG_NAME, yaml.safe_dump(_build_config(size), sort_keys=False))


def _random_unified_voice_size(size: RandomBaseSize) -> UnifiedVoiceSize:
    """A narrow base gets narrow encoders as well; what stock code fixes at 1024 stays."""
    if size.width == UnifiedVoiceSize().width:
        return UnifiedVoiceSize(size.pieces, size.width, size.layers)
    speaker = ConditioningEncoderSize(width=32, mlp=64, heads=2, blocks=2, perceiver_mult=1)
    emotion = ConditioningEncoderSize(width=32, mlp=64, heads=2, blocks=1, perceiver_mult=1)
    return UnifiedVoiceSize(size.pieces, size.width, size.layers, speaker=speaker, emotion=emotion)


@lru_cache(maxsize=2)  # it depends on no seed, and tests make many bases
def _build_sentencepiece_model(size: RandomBaseSize) -> bytes:
    num_learnt = min(NUM_LEARNED_PIECES, size.pieces // 2)
    model = proto.ModelProto.FromString(_train_sentencepiece(size, num_learnt))
    specials, learnt = model.pieces[: len(IndexTTS2.special_ids)], model.pieces[len(IndexTTS2.special_ids) :]
    there = {piece.piece for piece in learnt}
    defined = _list_user_defined_pieces(size.pieces - len(specials) - len(learnt), there)
    made = proto.ModelProto()
    made.CopyFrom(model)
    del made.pieces[:]
    made.pieces.extend(specials)
    for piece in defined:
        made.pieces.add(piece=piece, score=0.0, type=proto.ModelProto.SentencePiece.USER_DEFINED)
    made.pieces.extend(learnt)
    made.trainer_spec.vocab_size = len(made.pieces)
    made.trainer_spec.user_defined_symbols.extend(defined)
    return bytes(made.SerializeToString(deterministic=True))


def _train_sentencepiece(size: RandomBaseSize, num_learnt: int) -> bytes:
    """Learnt from English alone: Chinese reaches the published model one user-defined character at a time."""
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_prepare_corpus("en"),
            model_writer=written,
            model_type=size.sentencepiece,
            vocab_size=num_learnt + len(IndexTTS2.special_ids),
            character_coverage=1.0,
            seed_sentencepiece_size=10 * num_learnt,
            normalization_rule_name="nmt_nfkc",
            bos_id=0,
            eos_id=1,
            unk_id=2,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError("config-value", f"no tokenizer of {size.pieces} pieces can be made: {reason}") from None
    return written.getvalue()


def _prepare_corpus(language: str) -> Iterator[str]:
    front = IndexTTS2TextFrontend()
    return (
        front.prepare(front.clean(sentence), language) for code, sentence in load_proof_corpus() if code == language
    )


def _list_user_defined_pieces(number: int, taken: set[str]) -> list[str]:
    """Tags, Han characters (those of the built-in text first, by how often they occur), pinyin where it has room."""
    counts = Counter(
        character for sentence in _prepare_corpus("zh") for character in sentence if ord(character) in HAN_RANGE
    )
    seen = sorted(counts, key=lambda character: (-counts[character], character))
    pinyin = sorted(
        f"{initial}{final}{tone}" for initial in _PINYIN_INITIALS for final in _PINYIN_FINALS for tone in range(1, 6)
    )
    room_for_pinyin = NUM_PINYIN if number > 2 * NUM_PINYIN else 0
    num_han = number - len(LANGUAGE_TAGS) - room_for_pinyin
    if num_han < 0:
        raise ConfigError(
            "config-value", f"{number} user-defined pieces were asked for", expected=f"{len(LANGUAGE_TAGS)} or more"
        )
    han = dict.fromkeys(chain(seen, map(chr, HAN_RANGE)))
    chosen = sorted(islice((character for character in han if character not in taken), num_han))
    return [*LANGUAGE_TAGS, *chosen, *islice(pinyin, room_for_pinyin)]


def _build_config(size: RandomBaseSize) -> dict[str, Any]:
    """The published keys. What belongs to the waveform end is not made here and only named."""
    full = _random_unified_voice_size(size)
    return {
        "dataset": {"bpe_model": TOKENIZER_NAME, "sample_rate": 24000, "squeeze": False},
        "gpt": {
            "model_dim": full.width,
            "max_mel_tokens": full.max_speech,
            "max_text_tokens": full.max_text,
            "heads": full.heads,
            "use_mel_codes_as_input": True,
            "mel_length_compression": 1024,
            "layers": full.layers,
            "number_text_tokens": full.text_pieces,
            "number_mel_codes": full.speech_rows,
            "start_mel_token": full.speech_rows - 2,
            "stop_mel_token": full.speech_rows - 1,
            "start_text_token": IndexTTS2.start_id,
            "stop_text_token": IndexTTS2.stop_id,
            "train_solo_embeddings": False,
            "condition_type": "conformer_perceiver",
            "condition_module": _build_encoder_config(full.speaker),
            "emo_condition_module": _build_encoder_config(full.emotion),
        },
        "semantic_codec": {"codebook_size": 8192, "hidden_size": 1024, "codebook_dim": 8},
        "gpt_checkpoint": CHECKPOINT_NAME,
        "w2v_stat": STATISTICS_NAME,
        "s2mel_checkpoint": "s2mel.pth",
        "emo_matrix": "feat2.pt",
        "spk_matrix": "feat1.pt",
        "version": 2.0,
    }


def _build_encoder_config(size: ConditioningEncoderSize) -> dict[str, Any]:
    return {
        "output_size": size.width,
        "linear_units": size.mlp,
        "attention_heads": size.heads,
        "num_blocks": size.blocks,
        "input_layer": "conv2d2",
        "perceiver_mult": size.perceiver_mult,
    }


def _random_unified_voice_blocks(name: str, shape: tuple[int, ...], seed: int) -> Iterator[NDArray[np.float32]]:
    """Random values, except for the two tables of sinusoidal positions, which stock code computes."""
    if not name.endswith(".pe"):
        return random_blocks(name, shape, seed)
    _, rows, width = shape
    rates = np.exp(np.arange(0, width, 2) * -(math.log(10000.0) / width))
    angles = np.arange(rows)[:, None] * rates
    return iter([np.stack([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32).ravel()])


RANDOM_BASE_SPEC = RandomBaseSpec(
    RANDOM_SIZES,
    CHECKPOINT_NAME,
    lambda size: unified_voice_shapes(_random_unified_voice_size(size)),
    _write_side_files,
    _random_unified_voice_blocks,
    _random_side_shapes,
)


def random_condition(model: SpeechModel, draw: np.random.Generator) -> Any:
    """A voice out of nothing, as the family's model is conditioned on it."""
    from voxgraft.models.indextts2.model import UnifiedVoice, UnifiedVoiceCondition

    assert isinstance(model, UnifiedVoice)
    width = model.size.width
    latents = draw.standard_normal((32, width), dtype=np.float32)
    return UnifiedVoiceCondition(latents, draw.standard_normal(width, dtype=np.float32))


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Weights of s2mel or BigVGAN, of a size that keeps the wave within its limits."""
    import torch

    draw, tensors = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.items():
        scale = 0.05 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5
        tensors[name] = torch.randn(shape, generator=draw) * scale
        if name.endswith((".weight_g", "norm.weight")):
            tensors[name] = 1 + 0.1 * torch.randn(shape, generator=draw)
        if name.endswith("weight_g") and (".convs2." in name or name.startswith("conv_post.")):
            tensors[name] = tensors[name] * 0.1  # else the wave is clipped most of the time
    return tensors
