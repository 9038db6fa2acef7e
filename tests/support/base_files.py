"""Base folders for the tests: checkpoints of the published sizes that take no room, tokenizers of any size."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from sentencepiece import sentencepiece_model_pb2 as proto

from voxgraft.models.chatterbox.family import T3Size, t3_shapes
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, UnifiedVoiceSize, unified_voice_shapes

Shape = tuple[int, ...]
SPECIALS = {0: "[STOP]", 1: "[UNK]", 2: "[SPACE]", 255: "[START]"}
SMALL_T3 = T3Size(704, width=64, layers=2, mlp=128)
SMALL_VOICE = UnifiedVoiceSize(
    400,
    width=64,
    layers=2,
    speaker=ConditioningEncoderSize(width=32, mlp=64, heads=2, blocks=1, perceiver_mult=1),
    emotion=ConditioningEncoderSize(width=32, mlp=64, heads=2, blocks=1, perceiver_mult=1),
)


def hollow(path: Path, shapes: Mapping[str, Shape]) -> Path:
    """A safetensors file of zeros at any size: all that the disk holds of it is its header."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return path


def thin(path: Path, shapes: Mapping[str, Shape], wrapper: str | None = None) -> Path:
    """A torch file whose tensors all repeat one stored number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, path)
    return path


def json_tokenizer(path: Path, pieces: int) -> Path:
    """A tokenizers-JSON file of single characters, with Chatterbox's special pieces on their ids."""
    vocabulary = {SPECIALS.get(at) or chr(0x4E00 + at): at for at in range(pieces)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document = {
        "version": "1.0",
        "added_tokens": [{"id": at, "content": name, **flags, "special": True} for at, name in SPECIALS.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "unk_token": "[UNK]", "fuse_unk": False, "vocab": vocabulary, "merges": []},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def sentencepiece_tokenizer(path: Path, pieces: int) -> Path:
    """A SentencePiece unigram model of single characters, with IndexTTS-2's special pieces on their ids."""
    model = proto.ModelProto()
    kinds = proto.ModelProto.SentencePiece
    model.pieces.add(piece="<s>", score=0, type=kinds.CONTROL)
    model.pieces.add(piece="</s>", score=0, type=kinds.CONTROL)
    model.pieces.add(piece="<unk>", score=0, type=kinds.UNKNOWN)
    for at in range(3, pieces):
        model.pieces.add(piece=chr(0x4E00 + at), score=-1, type=kinds.NORMAL)
    model.trainer_spec.model_type = proto.TrainerSpec.UNIGRAM
    model.trainer_spec.vocab_size = pieces
    model.trainer_spec.bos_id, model.trainer_spec.eos_id = 0, 1
    model.trainer_spec.unk_id, model.trainer_spec.pad_id = 2, -1
    model.normalizer_spec.name = "identity"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def index_config(path: Path, size: UnifiedVoiceSize = SMALL_VOICE, **more: Any) -> Path:
    """IndexTTS-2's config.yaml of a size, with other keys beside or instead."""

    def encoder(part: ConditioningEncoderSize) -> dict[str, Any]:
        names = ("output_size", "linear_units", "attention_heads", "num_blocks", "perceiver_mult")
        values = (part.width, part.mlp, part.heads, part.blocks, part.perceiver_mult)
        return {**dict(zip(names, values, strict=True)), "input_layer": "conv2d2"}

    gpt = {
        "model_dim": size.width,
        "layers": size.layers,
        "heads": size.heads,
        "number_text_tokens": size.text_pieces,
        "number_mel_codes": size.speech_rows,
        "max_text_tokens": size.max_text,
        "max_mel_tokens": size.max_speech,
        "condition_type": "conformer_perceiver",
        "condition_module": encoder(size.speaker),
        "emo_condition_module": encoder(size.emotion),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"gpt": gpt, "version": 2.0, **more}), encoding="utf-8")
    return path


def index_base(folder: Path, name: str = "gpt.pth", size: UnifiedVoiceSize = SMALL_VOICE, **config: Any) -> Path:
    """A folder with the three files of an IndexTTS-2 base."""
    thin(folder / name, unified_voice_shapes(size))
    sentencepiece_tokenizer(folder / "bpe.model", size.text_pieces)
    index_config(folder / "config.yaml", size, **config)
    return folder


def chatterbox_base(folder: Path, checkpoint: str, tokenizer: str, size: T3Size = SMALL_T3) -> Path:
    """A folder with the two files of a Chatterbox base."""
    hollow(folder / checkpoint, t3_shapes(size))
    json_tokenizer(folder / tokenizer, size.text_rows)
    return folder


def gpt2_t3_shapes(layers: int, width: int) -> dict[str, Shape]:
    """What Chatterbox Turbo and Nano hold: a GPT-2 body, no perceiver, no learned positions."""
    shapes: dict[str, Shape] = {"tfmr.wte.weight": (50276, width), "tfmr.wpe.weight": (8196, width)}
    for layer in range(layers):
        shapes[f"tfmr.h.{layer}.attn.c_attn.weight"] = (width, 3 * width)
        shapes[f"tfmr.h.{layer}.mlp.c_fc.weight"] = (width, 4 * width)
    return shapes | {
        "tfmr.ln_f.weight": (width,),
        "cond_enc.spkr_enc.weight": (width, 256),
        "text_emb.weight": (50276, width),
        "speech_emb.weight": (6563, width),
        "text_head.weight": (50276, width),
        "speech_head.weight": (6563, width),
        "speech_head.bias": (6563,),
    }


def first_index_shapes() -> dict[str, Shape]:
    """The GPT of IndexTTS 1.0 and 1.5: 1,024 wide, 20 layers, no emotion part, no speed rows."""
    shapes = unified_voice_shapes(UnifiedVoiceSize(width=1024, layers=20, max_text=402, max_speech=605))
    return {name: shape for name, shape in shapes.items() if not name.startswith(("emo", "speed_emb"))}


def next_index_shapes() -> dict[str, Shape]:
    """The GPT of IndexTTS-2.5: a language embedding, one linear layer from the speaker vector, no speed rows."""
    shapes = unified_voice_shapes(SMALL_VOICE)
    dropped = ("conditioning_encoder.", "perceiver_encoder.", "speed_emb")
    kept = {name: shape for name, shape in shapes.items() if not name.startswith(dropped)}
    return kept | {"lang_embedding.weight": (5, 64), "spk_layer.weight": (64, 192), "spk_layer.bias": (64,)}
