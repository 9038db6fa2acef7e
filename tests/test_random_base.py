"""Random bases: the published names, shapes and structures, the same bytes for the same seed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer

from tests.support.shared import shared
from tools.random_bases import RandomBaseSize, get_random_base_spec, make_random_base
from tools.random_bases.chatterbox import voice_encoder_shapes
from tools.random_bases.indextts2 import semantic_codec_shapes
from voxgraft.core.errors import ConfigError, FileError
from voxgraft.core.files import compute_sha256
from voxgraft.models import detect_family, family_names, get_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.chatterbox.family import T3Size, speech_tokenizer_shapes, t3_shapes
from voxgraft.models.indextts2.shapes import (
    ConditioningEncoderSize,
    UnifiedVoiceSize,
    unified_voice_shapes,
)
from voxgraft.models.xtts.shapes import dvae_shapes
from voxgraft.tokenizers import load_proof_corpus

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", params=family_names())
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, BaseFiles]:
    name: str = request.param
    return name, make_random_base(name, tmp_path_factory.mktemp("bases") / name, seed=7)


def tensors_of(files: BaseFiles) -> dict[str, np.ndarray[Any, Any]]:
    if files.checkpoint.suffix == ".safetensors":
        return load_file(files.checkpoint)
    state = torch.load(files.checkpoint, weights_only=True)
    state = state.get("model", state)
    return {name: value.numpy() for name, value in state.items()}


# ---- names and shapes ---------------------------------------------------------------------------------------


def golden_shapes(file: str, table: str) -> dict[str, tuple[int, ...]]:
    names = json.loads(shared(file).read_text(encoding="utf-8"))[table]
    return {name: tuple(shape) for name, shape in names.items()}


def test_t3_has_the_published_names_and_shapes_in_their_order() -> None:
    full = golden_shapes("golden/chatterbox/names.json", "t3_full")
    assert len(full) == 292
    assert list(t3_shapes(T3Size()).items()) == list(full.items())
    reduced = golden_shapes("golden/chatterbox/names.json", "t3_reduced")
    assert list(t3_shapes(T3Size(layers=2, mlp=512)).items()) == list(reduced.items())


def test_unified_voice_has_the_published_names_and_shapes_in_their_order() -> None:
    full = golden_shapes("golden/indextts2/names.json", "unified_voice_full")
    assert len(full) == 665
    assert list(unified_voice_shapes(UnifiedVoiceSize()).items()) == list(full.items())
    speaker, emotion = ConditioningEncoderSize(32, 64, 2, 2, 1), ConditioningEncoderSize(32, 64, 2, 1, 1)
    tiny = UnifiedVoiceSize(12000, 64, 2, max_text=96, max_speech=256, speaker=speaker, emotion=emotion)
    golden = golden_shapes("golden/indextts2/names.json", "unified_voice_tiny")
    assert list(unified_voice_shapes(tiny).items()) == list(golden.items())


def test_what_hears_has_the_published_names_and_shapes_in_their_order() -> None:
    chatterbox, index = "golden/chatterbox/names.json", "golden/indextts2/names.json"
    assert list(voice_encoder_shapes().items()) == list(golden_shapes(chatterbox, "ve").items())
    assert list(semantic_codec_shapes().items()) == list(golden_shapes(index, "repcodec_full").items())
    assert list(semantic_codec_shapes(32, 64, 2).items()) == list(golden_shapes(index, "repcodec_small").items())
    small = golden_shapes(chatterbox, "s3_small")
    assert list(speech_tokenizer_shapes(128, 2).items()) == list(small.items())
    full = golden_shapes(chatterbox, "s3_full")
    computed = {name: full.pop(name) for name in ("_mel_filters", "window")}
    assert computed == {"_mel_filters": (128, 201), "window": (400,)}
    assert list(speech_tokenizer_shapes().items()) == list(full.items())


@pytest.mark.parametrize(
    ("name", "tensors", "values"),
    [("chatterbox", 292, 535_989_248), ("indextts2", 665, 871_100_639), ("xtts", 963, 466_900_598)],
)
def test_a_full_size_base_would_have_the_published_number_of_values(name: str, tensors: int, values: int) -> None:
    maker = get_random_base_spec(name)
    shapes = maker.shapes(maker.sizes["full"])
    assert len(shapes) == tensors
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == values


# ---- files --------------------------------------------------------------------------------------------------


def test_a_tiny_base_is_a_base_of_its_family(tiny: tuple[str, BaseFiles]) -> None:
    name, files = tiny
    maker = get_random_base_spec(name)
    assert detect_family(files.folder).name == name
    tensors = tensors_of(files)
    assert {key: value.shape for key, value in tensors.items()} == maker.shapes(maker.sizes["tiny"])
    rows = maker.sizes["tiny"].pieces + get_family(name).spare_rows
    for point in get_family(name).graft_points:
        assert tensors[point.tensor].shape[0] == rows


def test_values_have_the_magnitudes_of_trained_tables(tiny: tuple[str, BaseFiles]) -> None:
    for name, values in tensors_of(tiny[1]).items():
        if name.startswith(("hifigan_decoder.", "gpt.conditioning_", "mel_stats")):
            continue  # XTTS's other networks: their weights keep the size of what goes through them
        assert values.dtype == np.float32
        assert np.isfinite(values).all(), name
        if values.ndim > 1 and values.size > 1000 and not name.endswith(".pe"):
            assert 0.015 < values.std() < 0.05, name
            assert abs(values.mean()) < 0.01, name


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(
    tiny: tuple[str, BaseFiles], tmp_path: Path
) -> None:
    name, files = tiny
    again = make_random_base(name, tmp_path / "again", seed=7)
    paths = [path for path in files.folder.rglob("*") if path.is_file()]
    assert len(paths) >= 5
    for path in paths:
        assert compute_sha256(path) == compute_sha256(again.folder / path.relative_to(files.folder)), path.name
    other = make_random_base(name, tmp_path / "other", seed=8)
    assert compute_sha256(other.checkpoint) != compute_sha256(files.checkpoint)
    assert compute_sha256(other.tokenizer) == compute_sha256(files.tokenizer)


def test_what_hears_lies_beside_the_checkpoint_as_torch_and_safetensors_read_it(tiny: tuple[str, BaseFiles]) -> None:
    name, files = tiny
    if name == "chatterbox":
        voice = torch.load(files.folder / "ve.pt", weights_only=True)
        assert {key: tuple(value.shape) for key, value in voice.items()} == voice_encoder_shapes()
        heard = torch.load(files.folder / "s3gen.pt", weights_only=True)
        expected = {f"tokenizer.{key}": shape for key, shape in speech_tokenizer_shapes(128, 2).items()}
        assert {key: tuple(value.shape) for key, value in heard.items()} == expected
        assert all(value.isfinite().all() for value in (*voice.values(), *heard.values()))
    elif name == "tiny":
        codec = load_file(files.folder / "codec.safetensors")
        assert all(np.isfinite(values).all() for values in codec.values())
    elif name == "xtts":
        dvae = torch.load(files.folder / "dvae.pth", weights_only=True)
        assert {key: tuple(value.shape) for key, value in dvae.items()} == dvae_shapes(16, 2)
        assert all(value.isfinite().all() for value in dvae.values())
    else:
        statistics = torch.load(files.folder / "wav2vec2bert_stats.pt", weights_only=True)
        published = torch.load(shared("real/indextts2/wav2vec2bert_stats.pt"), weights_only=True)
        assert {key: value.shape for key, value in statistics.items()} == {k: v.shape for k, v in published.items()}
        assert (statistics["var"] > 0.1).all()
        codec = load_file(files.folder / "semantic_codec/model.safetensors")
        assert {key: value.shape for key, value in codec.items()} == semantic_codec_shapes(32, 64, 2)


@pytest.mark.long(fast="BF16*")
@pytest.mark.parametrize(("dtype", "torch_dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_a_base_in_half_precision_holds_the_same_values_rounded(tmp_path: Path, dtype: Any, torch_dtype: Any) -> None:
    size = replace(get_random_base_spec("indextts2").sizes["tiny"], layers=1)
    wide = make_random_base("indextts2", tmp_path / "wide", size=size)
    narrow = make_random_base("indextts2", tmp_path / "narrow", size=replace(size, dtype=dtype))
    expected = torch.load(wide.checkpoint, weights_only=True)
    for name, value in torch.load(narrow.checkpoint, weights_only=True).items():
        assert value.dtype == torch_dtype
        assert torch.equal(value, expected[name].to(torch_dtype)), name


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileError) as caught:
        make_random_base("chatterbox", tmp_path)
    assert caught.value.code == "file-exists"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", family_names())
def test_too_few_pieces_are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        make_random_base(name, tmp_path / "base", size=RandomBaseSize(width=64, layers=1, pieces=20))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long(fast="indextts2")
def test_the_module_writes_the_base_that_the_function_makes(tiny: tuple[str, BaseFiles], tmp_path: Path) -> None:
    name, files = tiny
    command = [sys.executable, "-m", "tools.random_bases", name, str(tmp_path / "again"), "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert compute_sha256(tmp_path / "again" / files.checkpoint.name) == compute_sha256(files.checkpoint)


# ---- tokenizers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_the_chatterbox_tokenizer_has_the_published_structure(tmp_path: Path, size: str) -> None:
    maker = get_random_base_spec("chatterbox")
    maker.write_side_files(tmp_path, maker.sizes[size])
    chatterbox = get_family("chatterbox")
    path = tmp_path / chatterbox.tokenizer_names[0]
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["pre_tokenizer"] == {"type": "Whitespace"}
    assert stored["normalizer"] is None
    assert stored["model"]["unk_token"] == "[UNK]"
    assert sorted(stored["model"]["vocab"].values()) == list(range(maker.sizes[size].pieces))
    assert {piece: stored["model"]["vocab"][piece] for piece in chatterbox.special_ids} == chatterbox.special_ids
    tokenizer = Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size() == maker.sizes[size].pieces
    for code in chatterbox.languages:
        assert tokenizer.encode(f"[{code}]a").tokens[0] == f"[{code}]"


def test_the_chatterbox_tokenizer_spells_its_own_languages_and_no_amharic(tmp_path: Path) -> None:
    maker = get_random_base_spec("chatterbox")
    maker.write_side_files(tmp_path, maker.sizes["tiny"])
    chatterbox = get_family("chatterbox")
    front = chatterbox.front(tmp_path / chatterbox.tokenizer_names[0])
    tokenizer = Tokenizer.from_file(str(tmp_path / chatterbox.tokenizer_names[0]))
    for code, sentence in load_proof_corpus():
        if code in chatterbox.languages and code != "ja":  # kanji need pykakasi
            encoded = tokenizer.encode(front.prepare(front.clean(sentence), code))
            assert 1 not in encoded.ids, sentence
    assert tokenizer.encode(front.prepare("ሰላም", None)).ids == [1, 1, 1]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("size", ["tiny", "full"])
def test_the_indextts2_tokenizer_has_the_published_structure(tmp_path: Path, size: str, kind: Any) -> None:
    maker = get_random_base_spec("indextts2")
    chosen = replace(maker.sizes[size], sentencepiece=kind)
    maker.write_side_files(tmp_path, chosen)
    model = proto.ModelProto.FromString((tmp_path / "bpe.model").read_bytes())
    types = Counter(piece.type for piece in model.pieces)
    Piece = proto.ModelProto.SentencePiece  # noqa: N806
    assert len(model.pieces) == model.trainer_spec.vocab_size == chosen.pieces
    assert (types[Piece.CONTROL], types[Piece.UNKNOWN]) == (2, 1)
    assert types[Piece.USER_DEFINED] + types[Piece.NORMAL] == chosen.pieces - 3
    assert [piece.piece for piece in model.pieces[3:7]] == ["▁[ZH]", "▁[EN]", "▁[JA]", "▁[KO]"]
    assert model.pieces[3].type == Piece.USER_DEFINED
    assert model.pieces[-1].type == Piece.NORMAL
    assert model.normalizer_spec.name == "nmt_nfkc"
    processor = SentencePieceProcessor(model_file=str(tmp_path / "bpe.model"))
    assert [processor.bos_id(), processor.eos_id(), processor.unk_id(), processor.pad_id()] == [0, 1, 2, -1]
    assert len({piece.piece for piece in model.pieces}) == chosen.pieces
    assert not any(character.islower() for piece in model.pieces[3:] for character in piece.piece)
    assert get_family("indextts2").read_config_pieces(tmp_path / "config.yaml") == chosen.pieces


def test_the_indextts2_tokenizer_spells_english_and_chinese_and_no_amharic(tmp_path: Path) -> None:
    maker = get_random_base_spec("indextts2")
    maker.write_side_files(tmp_path, maker.sizes["full"])
    front = get_family("indextts2").front()
    processor = SentencePieceProcessor(model_file=str(tmp_path / "bpe.model"))
    counted = [
        2 in processor.encode(front.prepare(front.clean(s), c)) for c, s in load_proof_corpus() if c in ("en", "zh")
    ]
    assert sum(counted) < len(counted) / 100
    assert 2 in processor.encode(front.prepare("ሰላም", None))


def test_the_indextts2_config_has_the_published_keys(tmp_path: Path) -> None:
    published = yaml.safe_load(shared("real/indextts2/config.yaml").read_text(encoding="utf-8"))
    maker = get_random_base_spec("indextts2")
    maker.write_side_files(tmp_path, maker.sizes["full"])
    made = yaml.safe_load((tmp_path / "config.yaml").read_text(encoding="utf-8"))
    assert made["gpt"] == published["gpt"]
    assert set(made) <= set(published)
    assert made["version"] == published["version"]
