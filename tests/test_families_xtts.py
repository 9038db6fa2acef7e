"""XTTS as a base: which folders are one, which files are something else, and its tokenizer with ids that no piece has."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Mapping
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.shared import shared
from tests.support.tokenizers import demo_texts
from tools.random_bases import make_random_base
from voxgraft.checkpoints.load import find_dangerous_globals, find_model_prefix, open_checkpoint, strip_model_prefix
from voxgraft.cli import run_cli
from voxgraft.config.commands import CheckSettings
from voxgraft.config.run import DataSettings, VocabularySettings
from voxgraft.core.errors import CheckpointError, FileError, TextError, VoxgraftError
from voxgraft.core.run import RunFolder
from voxgraft.graft.folder import load_base_tokenizer, load_graft
from voxgraft.inspect.check import check
from voxgraft.models import detect_family, get_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.speech_model import load_model
from voxgraft.models.xtts.model import XTTSModel
from voxgraft.models.xtts.shapes import read_xtts_config
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.tokenizers import load_proof_corpus, open_tokenizer, parse_tokenizer, prove
from voxgraft.training.replay import SelfReplayBuilder

XTTS = get_family("xtts")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseFiles:
    return make_random_base("xtts", tmp_path_factory.mktemp("bases") / "xtts")


def state_of(files: BaseFiles) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(files.checkpoint, weights_only=True)["model"]
    return dict(state)


def folder_with(base: BaseFiles, folder: Path, state: Mapping[str, Tensor], name: str = "model.pth") -> Path:
    """The base with another checkpoint."""
    shutil.copytree(base.folder, folder, ignore=lambda _folder, _names: [base.checkpoint.name])
    if name.endswith(".safetensors"):
        save_file(dict(state), folder / name)
    else:
        torch.save({"model": dict(state), "step": 3}, folder / name)
    return folder


def refused(folder: Path, kind: type[VoxgraftError]) -> VoxgraftError:
    def open_base() -> None:
        XTTS.build_empty_model(detect_family(folder).files(folder))

    with pytest.raises(kind) as caught:
        open_base()
    assert caught.value.finding.where
    return caught.value


# ---- folders that are one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors", "mine.pth"])
def test_a_folder_is_detected_and_its_tensors_are_the_files_bit_for_bit(
    base: BaseFiles, tmp_path: Path, name: str
) -> None:
    state = state_of(base)
    folder = folder_with(base, tmp_path / "base", state, name)
    assert detect_family(folder).name == "xtts"
    model = load_model(XTTS, XTTS.files(folder))
    assert isinstance(model, XTTSModel)
    loaded = model.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(tensor, state[key]) and tensor.dtype == state[key].dtype for key, tensor in loaded.items())


def test_second_names_of_version_1_files_are_passed_over(base: BaseFiles, tmp_path: Path) -> None:
    state = state_of(base)
    state["gpt.gpt.wte.weight"] = torch.zeros(4, 4)
    state["gpt.gpt_inference.transformer.h.0.ln_1.weight"] = torch.zeros(4)
    files = XTTS.files(folder_with(base, tmp_path / "base", state))
    assert len(load_model(XTTS, files).state_dict()) == len(state) - 2
    assert XTTS.get_part_name("gpt.gpt.wte.weight") is None


def test_the_config_may_hold_the_bare_word_infinity(base: BaseFiles) -> None:
    assert base.config is not None
    assert "Infinity" in base.config.read_text()
    assert read_xtts_config(base.config)["max_audio_len"] == float("inf")


def test_settings_pickled_beside_the_tensors_are_no_fault_and_anything_else_is(
    base: BaseFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published checkpoint holds objects of the program's classes: a check that refuses them refuses the base."""
    assert find_dangerous_globals(shared("golden/xtts/model_like.pth")) == []
    folder = tmp_path / "base"
    shutil.copytree(base.folder, folder)
    state = torch.load(base.checkpoint, weights_only=True)["model"]
    for module, name, codes in (
        ("TTS.tts.models.xtts", "XttsArgs", set()),
        ("TTS.tts.models.xtts", "Xtts", {"pickle-code"}),
    ):
        made = types.ModuleType(module)
        kind = type(name, (), {"__module__": module})
        setattr(made, name, kind)
        for part in ("TTS", "TTS.tts", "TTS.tts.models"):
            monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
        monkeypatch.setitem(sys.modules, module, made)
        torch.save({"config": kind(), "model": state, "step": 3}, folder / "model.pth")
        settings = CheckSettings(base=folder, checkpoint=folder / "model.pth")
        assert {item.code for item in check(settings).findings if item.level == "error"} == codes


def test_the_published_pickle_with_its_config_object_is_read_without_running_it() -> None:
    with open_checkpoint(shared("golden/xtts/model_like.pth")) as checkpoint:
        assert checkpoint.wrapper == "model"
        assert {"mel_stats", "gpt.text_head.bias", "gpt.final_norm.weight"} <= checkpoint.tensors.keys()
        assert [extra.name for extra in checkpoint.extras if not extra.kept] == ["config"]


def test_voices_of_the_base_have_names(base: BaseFiles) -> None:
    voices = XTTS.voices(base)
    assert list(voices) == ["Ada Lovelace", "J. S. Bach"]
    assert {name: array.shape for name, array in voices["J. S. Bach"].voice.items()} == {
        "latents": (32, 64),
        "speaker": (512,),
    }


# ---- and files that are something else ----------------------------------------------------------------------


def test_a_missing_config_is_named(base: BaseFiles, tmp_path: Path) -> None:
    folder = folder_with(base, tmp_path / "base", state_of(base))
    (folder / "config.json").unlink()
    error = refused(folder, FileError)
    assert error.code == "base-file-missing"
    assert "config.json" in error.finding.found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpt_layers", 3),
        ("gpt_n_model_channels", 65),
        ("gpt_number_text_tokens", 641),
        ("gpt_stop_audio_token", 1024),
        ("gpt_start_text_token", 0),
        ("gpt_n_heads", 7),
        ("gpt_n_heads", "four"),
        ("gpt_layers", -1),
    ],
)
def test_a_config_that_does_not_fit_the_tensors_is_refused(
    base: BaseFiles, tmp_path: Path, key: str, value: object
) -> None:
    folder = folder_with(base, tmp_path / "base", state_of(base))
    config = json.loads((folder / "config.json").read_text())
    config["model_args"][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    error = refused(folder, VoxgraftError)
    assert error.code in ("base-config", "tensors-mismatch")


def test_missing_and_unknown_tensors_are_named(base: BaseFiles, tmp_path: Path) -> None:
    state = state_of(base)
    state["gpt.my_own"] = state.pop("gpt.gpt.ln_f.bias")
    error = refused(folder_with(base, tmp_path / "base", state), CheckpointError)
    assert error.code == "tensors-mismatch"
    assert "gpt.gpt.ln_f.bias [64] is missing" in error.finding.found
    assert "gpt.my_own [64] is not part of it" in error.finding.found


def test_a_counter_that_is_no_whole_number_is_refused(base: BaseFiles, tmp_path: Path) -> None:
    state = state_of(base)
    name = next(key for key in state if key.endswith(".num_batches_tracked"))
    state[name] = torch.tensor(0.5)
    files = XTTS.files(folder_with(base, tmp_path / "base", state))
    with pytest.raises(CheckpointError) as caught:
        load_model(XTTS, files)
    assert name in caught.value.finding.found


def test_version_1_is_refused_by_name(base: BaseFiles, tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in state_of(base).items() if "conditioning_perceiver" not in name}
    state["gpt.mel_embedding.weight"] = torch.zeros(8194, 64)
    error = refused(folder_with(base, tmp_path / "base", state), CheckpointError)
    assert error.code == "base-version"
    assert "8,194" in error.finding.found


def test_the_files_beside_the_checkpoint_alone_are_no_base(base: BaseFiles, tmp_path: Path) -> None:
    shutil.copytree(base.folder, tmp_path / "base", ignore=lambda _folder, _names: [base.checkpoint.name])
    assert refused(tmp_path / "base", FileError).code == "base-speech-parts"


@pytest.mark.parametrize("family", ["chatterbox", "indextts2", "tiny"])
def test_no_family_takes_another_ones_tensors_for_its_own(base: BaseFiles, tmp_path: Path, family: str) -> None:
    other = make_random_base(family, tmp_path / family)
    for files, owner in ((base, "xtts"), (other, family)):
        with open_checkpoint(files.checkpoint) as checkpoint:
            shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        for name in ("xtts", family):
            assert get_family(name).matches_tensors(shapes) == (name == owner)
            assert get_family(name).check_lookalike(files.checkpoint, shapes) is None


@pytest.mark.parametrize("wrapper", ["", "xtts.", "module.", "module.xtts."])
def test_the_models_own_prefix_is_no_wrapper(base: BaseFiles, tmp_path: Path, wrapper: str) -> None:
    """IndexTTS-2's trainers put `gpt.` before its names; XTTS's own begin with it."""
    state = {wrapper + name: tensor for name, tensor in state_of(base).items()}
    if "xtts." in wrapper:
        state[f"{wrapper.removesuffix('xtts.')}dvae.codebook.embed"] = torch.zeros(2, 4)
        state[f"{wrapper.removesuffix('xtts.')}torch_mel_spectrogram_dvae.mel_stft.window"] = torch.zeros(4)
    path = tmp_path / "best_model.pth"
    torch.save({"model": state}, path)
    with open_checkpoint(path) as checkpoint:
        assert find_model_prefix(checkpoint) == wrapper
        assert strip_model_prefix(checkpoint).tensors.keys() == state_of(base).keys()


def test_the_wrapper_of_an_indextts2_is_still_found(tmp_path: Path) -> None:
    other = make_random_base("indextts2", tmp_path / "base")
    own = torch.load(other.checkpoint, weights_only=True)
    torch.save({f"gpt.{name}": tensor for name, tensor in own.items()}, tmp_path / "wrapped.pth")
    with open_checkpoint(tmp_path / "wrapped.pth") as checkpoint:
        assert find_model_prefix(checkpoint) == "gpt."


# ---- the tokenizer, whose ids have holes --------------------------------------------------------------------

FILES = {
    "like the published one": ("golden/xtts/vocab_like.json", 1020, (1012, 1013)),
    "version 1": ("real/xtts/xtts1_test_vocab.json", 5413, (5024, 5025)),
}
every_file = pytest.mark.parametrize("name", FILES)


@cache
def opened(name: str) -> TextEncoder:
    family, tokenizer = load_base_tokenizer(shared(FILES[name][0]), "xtts")
    return TextEncoder.of(family, tokenizer, None, None)


@cache
def grown(name: str, language: str) -> TextEncoder:
    encoder = opened(name)
    before = TextEncoder.of(encoder.family, encoder.base, None, language)
    learnt = learn_language_pieces(before, demo_texts(language), VocabularySettings(pieces=100, min_count=2))
    return TextEncoder.of(encoder.family, encoder.base, learnt.grown, language)


@every_file
def test_rows_are_the_largest_id_and_one_and_holes_are_counted(name: str) -> None:
    tokenizer, (_, rows, holes) = opened(name).base, FILES[name]
    assert (tokenizer.kind, tokenizer.size, tokenizer.gaps) == ("bpe-json", rows, holes)
    assert len(tokenizer.ids) == rows - len(holes)
    for piece, at in XTTS.special_ids.items():
        assert tokenizer.ids[piece] == at


@every_file
def test_growth_appends_after_the_largest_id_and_moves_nothing(name: str) -> None:
    encoder = grown(name, "am")
    assert encoder.grown is not None
    before, after = json.loads(encoder.base.data), json.loads(encoder.grown.data)
    assert encoder.grown.pieces[: encoder.base.size] == encoder.base.pieces
    assert encoder.grown.gaps == encoder.base.gaps
    assert all(after["model"]["vocab"][piece] == at for piece, at in before["model"]["vocab"].items())
    assert after["model"]["merges"][: len(before["model"]["merges"])] == before["model"]["merges"]
    assert after["model"]["unk_token"] == "[UNK]"
    assert encoder.grown.ids["[am]"] == encoder.base.size
    assert encoder.grown.has_control_token("[am]")
    new = [piece for piece in encoder.grown.pieces[encoder.base.size + 1 :] if piece]
    assert new
    assert all(piece == piece.lower() for piece in new)  # text is lower-cased before it is spelled


@pytest.mark.long(fast="like the published one")
@every_file
def test_old_text_is_spelled_as_before_and_new_text_without_unknowns(name: str) -> None:
    encoder = grown(name, "am")
    assert encoder.grown is not None
    sentences = (one for one in load_proof_corpus() if one[0] in ("cs", "de", "en", "fr", "hu", "pl", "ru", "tr"))
    new = encoder.new_text(demo_texts("am").sentences)
    proof = prove.prove_tokenizer(encoder.base, encoder.grown, islice(sentences, 0, None, 5), encoder.prepare_base, new)
    assert proof.counts.changed == 0
    assert proof.counts.same > 200
    assert proof.unreachable == ()
    assert not {item.code for item in proof.findings} & {"tokenizer-gaps", "tokenizer-not-grown", "tag-splits"}
    assert encoder.grown.unknown_id not in encoder.encode("ሰላም ለዓለም", "am")


def test_a_piece_in_a_hole_or_a_new_hole_is_refused() -> None:
    encoder = grown("like the published one", "am")
    assert encoder.grown is not None
    document: Any = json.loads(encoder.grown.data)
    last = encoder.grown.size - 1
    piece = encoder.grown.pieces[last]

    def codes(at: int) -> set[str]:
        document["model"]["vocab"][piece] = at
        other = parse_tokenizer(json.dumps(document).encode(), Path("other.json"))
        return {item.code for item in prove.check_tokenizer_structure(encoder.base, other, "[am]")}

    assert codes(last) == set()
    assert codes(encoder.base.gaps[0]) == {"tokenizer-not-grown"}
    assert codes(last + 2) == {"tokenizer-gaps"}


def test_ids_of_the_recipe_that_counts_them_anew_are_refused() -> None:
    """The usual recipe numbers the old vocabulary again: all ids behind a hole move."""
    encoder = opened("like the published one")
    document: Any = json.loads(encoder.base.data)
    vocab = sorted(document["model"]["vocab"].items(), key=lambda item: item[1])
    document["model"]["vocab"] = {piece: at for at, (piece, _) in enumerate(vocab)}
    for token in document["added_tokens"]:
        token["id"] = document["model"]["vocab"][token["content"]]
    counted = parse_tokenizer(json.dumps(document).encode(), Path("counted.json"))
    findings = prove.check_tokenizer_structure(encoder.base, counted, None)
    assert "tokenizer-not-grown" in {item.code for item in findings}


def test_sentences_that_the_program_cannot_read_are_left_out_of_self_made_replay(
    base: BaseFiles, tmp_path: Path
) -> None:
    """Merged mode stopped at the first of them: the built-in Czech sentences have ordinals."""
    run, texts = tmp_path / "run", resources.files("voxgraft") / "assets" / "demo" / "am.txt"
    own = ["--base", str(base.folder), "--language", "am", "--texts", str(texts)]
    assert run_cli(["new", str(run), *own, "--quiet"]) == 0
    assert run_cli(["graft", str(run), "--tokenizer.pieces=20", "--quiet"]) == 0
    graft, base_tokenizer = load_graft(run / "graft"), open_tokenizer(base.tokenizer)
    encoder = TextEncoder.of(XTTS, base_tokenizer, graft.tokenizer, "am", graft.card.rules)
    spec = XTTS.sequence_spec(base_tokenizer.size)
    planned = SelfReplayBuilder(RunFolder(run), DataSettings(), base, graft, encoder, spec, seed=0).plan(10_000)
    unread = set()
    for language, text in load_proof_corpus():
        if language == "cs":
            try:
                encoder.encode(text, language)
            except TextError:
                unread.add(text)
    spoken = {utterance.text for utterance in planned if utterance.language == "cs"}
    assert unread
    assert spoken
    assert not unread & spoken
