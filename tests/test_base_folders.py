"""Base folders are reported apart by looking: every published form opens, sizes are exact, and what is none is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.support.base_files import (
    SMALL_T3,
    SMALL_VOICE,
    chatterbox_base,
    first_index_shapes,
    gpt2_t3_shapes,
    hollow,
    index_base,
    index_config,
    json_tokenizer,
    next_index_shapes,
    sentencepiece_tokenizer,
    thin,
)
from tests.support.shared import shared
from tools.random_bases.chatterbox import voice_encoder_shapes
from tools.random_bases.indextts2 import semantic_codec_shapes
from voxgraft.checkpoints import open_checkpoint
from voxgraft.cli import run_cli
from voxgraft.core.errors import CheckpointError, ConfigError, FileError, VoxgraftError
from voxgraft.graft.folder import load_base_tokenizer
from voxgraft.models import detect_family, get_family, resolve_base_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.chatterbox.family import RELEASES, ChatterboxEnglishFrontend, T3Size, t3_shapes
from voxgraft.models.indextts2.shapes import UnifiedVoiceSize, unified_voice_shapes

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 2143989752\n"
STAND_IN = {
    "text_embedding.weight": (2454, 8),
    "pos_encoding.pe": (1, 50, 8),
    "transformer_encoder.layers.0.linear1.weight": (8, 8),
    "mel_decoder.0.weight": (8, 8),
    "duration_predictor.0.weight": (8, 8),
}


def files_of(folder: Path) -> BaseFiles:
    return detect_family(folder).files(folder)


def refused(folder: Path, kind: type[VoxgraftError] = VoxgraftError) -> VoxgraftError:
    """The error that a folder meets; every one says where it was and what to do."""
    with pytest.raises(kind) as caught:
        detect_family(folder)
    assert caught.value.finding.where
    assert caught.value.finding.cure
    return caught.value


# ---- published forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.title)
def test_every_chatterbox_release_opens_at_its_published_size(tmp_path: Path, release: Any) -> None:
    rows = {"first multilingual": 2352, "English": 704}.get(release.title, 2454)
    chatterbox_base(tmp_path, release.checkpoint, release.tokenizer, T3Size(rows))
    files = files_of(tmp_path)
    with open_checkpoint(files.checkpoint) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    size = T3Size.of(shapes)
    assert size == T3Size(rows)
    assert (size.heads, size.perceiver_heads, len(shapes)) == (16, 4, 292)
    assert get_family("chatterbox").describe(files, rows).release == release.title


@pytest.mark.parametrize(("wrapper", "aliases"), [(None, False), ("model", False), ("model", True)])
def test_gpt_pth_opens_plain_wrapped_and_with_the_aliases_of_inference(
    tmp_path: Path, wrapper: str | None, aliases: bool
) -> None:
    shapes = unified_voice_shapes(UnifiedVoiceSize())
    extra = {"gpt.wte.weight": (8194, 1280)} | {f"inference_model.{number}": (1280,) for number in range(299)}
    thin(tmp_path / "gpt.pth", shapes | extra if aliases else shapes, wrapper)
    index_config(tmp_path / "config.yaml", UnifiedVoiceSize())
    sentencepiece_tokenizer(tmp_path / "bpe.model", 12000)
    files = files_of(tmp_path)
    with open_checkpoint(files.checkpoint) as checkpoint:
        stored = {name: info.shape for name, info in checkpoint.tensors.items()}
    assert len(stored) == (965 if aliases else 665)
    assert get_family("indextts2").infer_size(files, stored) == UnifiedVoiceSize()
    assert UnifiedVoiceSize().heads == 20


def test_the_published_config_states_the_published_size() -> None:
    config = yaml.safe_load(shared("real/indextts2/config.yaml").read_text(encoding="utf-8"))
    assert UnifiedVoiceSize.of(config, unified_voice_shapes(UnifiedVoiceSize())) == UnifiedVoiceSize()


# ---- names of one's own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2454, 2352, 704, 2535])
def test_a_fine_tune_with_names_of_its_own_is_known_by_its_tensors(tmp_path: Path, rows: int) -> None:
    chatterbox_base(tmp_path, "model.safetensors", "my_tokenizer.json", T3Size(rows, 64, 2, 128))
    (tmp_path / "config.json").write_text('{"learning_rate": 1}')
    json_tokenizer(tmp_path / "older.json", 300)
    files = files_of(tmp_path)
    assert (files.checkpoint.name, files.tokenizer.name) == ("model.safetensors", "my_tokenizer.json")
    front = get_family("chatterbox").front(files.tokenizer)
    assert isinstance(front, ChatterboxEnglishFrontend) == (rows == 704)


def test_the_english_front_is_reported_by_the_tokenizer_where_the_checkpoint_has_a_name_of_its_own(
    tmp_path: Path,
) -> None:
    chatterbox_base(tmp_path, "checkpoint-500.safetensors", "tokenizer.json", SMALL_T3)
    assert isinstance(get_family("chatterbox").front(files_of(tmp_path).tokenizer), ChatterboxEnglishFrontend)


def test_two_checkpoints_that_would_do_are_named_and_refused(tmp_path: Path) -> None:
    chatterbox_base(tmp_path, "step-100.safetensors", "mine.json")
    hollow(tmp_path / "step-200.safetensors", t3_shapes(SMALL_T3))
    error = refused(tmp_path, FileError)
    assert error.code == "base-several"
    for name in ("step-100.safetensors (704 text rows)", "step-200.safetensors (704 text rows)"):
        assert name in error.finding.found


def test_two_tokenizers_that_would_do_are_named_and_refused(tmp_path: Path) -> None:
    chatterbox_base(tmp_path, "model.safetensors", "one.json")
    shutil.copy(tmp_path / "one.json", tmp_path / "two.json")
    error = refused(tmp_path, FileError)
    assert error.code == "base-several"
    assert "one.json, two.json" in error.finding.found


def test_a_checkpoint_without_its_tokenizer_says_which_ones_are_there(tmp_path: Path) -> None:
    hollow(tmp_path / "t3_mtl23ls_v2.safetensors", t3_shapes(T3Size(2454, 64, 1, 64)))
    json_tokenizer(tmp_path / "tokenizer.json", 704)
    error = refused(tmp_path, FileError)
    assert error.code == "base-file-missing"
    assert "2,454 tokens" in error.finding.found
    assert "tokenizer.json has 704" in error.finding.found


@pytest.mark.parametrize("named", [True, False])
def test_an_indextts2_checkpoint_with_a_name_of_its_own_is_known_by_its_tensors(tmp_path: Path, named: bool) -> None:
    index_base(tmp_path, "model_step5000.pth", gpt_checkpoint="gpt.pth" if named else None)
    assert files_of(tmp_path).checkpoint.name == "model_step5000.pth"


def test_a_file_that_the_config_names_is_not_replaced_by_another(tmp_path: Path) -> None:
    index_base(tmp_path, gpt_checkpoint="amharic.pth")
    error = refused(tmp_path, FileError)
    assert "amharic.pth is not in the folder" in error.finding.found


def test_each_of_several_trained_checkpoints_still_finds_its_tokenizer(tmp_path: Path) -> None:
    folder = index_base(tmp_path, "step-1.pth")
    thin(tmp_path / "step-2.pth", unified_voice_shapes(SMALL_VOICE))
    assert refused(folder, FileError).code == "base-several"
    assert get_family("indextts2").find_tokenizer(tmp_path / "step-2.pth").name == "bpe.model"


def test_an_own_checkpoint_in_a_published_folder_gets_the_tokenizer_that_fits_its_rows(tmp_path: Path) -> None:
    for release, rows in zip(RELEASES[1:], (2454, 2352, 704), strict=True):
        chatterbox_base(tmp_path, release.checkpoint, release.tokenizer, T3Size(rows, 64, 1, 64))
    mine = hollow(tmp_path / "mine.safetensors", t3_shapes(T3Size(2352, 64, 1, 64)))
    assert get_family("chatterbox").find_tokenizer(mine).name == "mtl_tokenizer.json"


def test_an_indextts2_checkpoint_without_a_config_is_reported_what_it_lacks(tmp_path: Path) -> None:
    index_base(tmp_path)
    (tmp_path / "config.yaml").unlink()
    error = refused(tmp_path, FileError)
    assert "gpt.pth contains IndexTTS-2's tensors" in error.finding.found
    assert "config.yaml" in error.finding.cure


# ---- sizes by looking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [
        T3Size(),
        T3Size(640, 64, 2, 256),
        T3Size(300, 128, 1, 64, speech_rows=50, text_positions=9, speech_positions=11, speaker_width=3),
        T3Size(300, 4, 3, 8, perceiver_queries=2),
    ],
)
def test_a_t3_of_any_size_is_measured_exactly(size: T3Size) -> None:
    assert T3Size.of(t3_shapes(size)) == size


def without(part: str) -> Callable[[dict[str, Any]], None]:
    def damage(shapes: dict[str, Any]) -> None:
        for name in [name for name in shapes if part in name]:
            del shapes[name]

    return damage


def instead(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, Any]], None]:
    return lambda shapes: shapes.update({name: shape})


@pytest.mark.parametrize(
    ("damage", "named", "count"),
    [
        (without("layers.7."), "tfmr.layers.7.self_attn.q_proj.weight [1024, 1024] is missing", 9),
        (without("speech_head"), "speech_head.weight [8194, 1024] is missing", 1),
        (without("text_emb"), "text_emb.weight [2454, 1024] is missing", 1),
        (instead("text_head.weight", (2535, 1024)), "text_head.weight is [2535, 1024], not [2454, 1024]", 1),
        (instead("tfmr.layers.3.mlp.up_proj.weight", (4095, 1024)), "up_proj.weight is [4095, 1024]", 1),
        (instead("tfmr.layers.0.input_layernorm.weight", (512,)), "input_layernorm.weight is [512]", 1),
        (instead("text_emb.weight", ()), "text_emb.weight is []", 1),
        (instead("tfmr.layers.99.mlp.up_proj.weight", (1, 1)), "tfmr.layers.30.self_attn", 630),
        (instead("tfmr.layers.9999.mlp.up_proj.weight", (1, 1)), "tfmr.layers.9999.mlp.up_proj.weight [1, 1] is no", 1),
        (instead("lm_head.weight", (3, 3)), "lm_head.weight [3, 3] is not part of it", 1),
    ],
)
def test_tensors_that_make_no_whole_t3_are_listed_and_counted(
    damage: Callable[[dict[str, Any]], None], named: str, count: int
) -> None:
    shapes = t3_shapes(T3Size())
    damage(shapes)
    with pytest.raises(CheckpointError) as caught:
        T3Size.of(shapes, "base/t3.safetensors")
    found = caught.value.finding.found
    assert caught.value.code == "tensors-mismatch"
    assert caught.value.finding.where == "base/t3.safetensors"
    assert named in found
    assert found.count(";") == min(count, 7) - 1
    assert (f"and {count - 6:,} more" in found) == (count > 6)


def test_a_width_that_no_heads_divide_is_refused() -> None:
    with pytest.raises(CheckpointError, match="200 wide"):
        T3Size.of(t3_shapes(T3Size(704, 200, 1, 64)))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("number_text_tokens", 24000, "text_embedding.weight is [401, 64], not [24001, 64]"),
        ("model_dim", 128, "not [3, 128]"),
        ("layers", 3, "gpt.h.2.ln_1.weight [64] is missing"),
        ("layers", 1, "gpt.h.1.attn.c_attn.bias [192] is not part of it"),
        ("max_mel_tokens", 100, "mel_pos_embedding.emb.weight is [1818, 64], not [103, 64]"),
    ],
)
def test_a_config_unlike_the_tensors_is_refused_with_the_differences(key: str, value: int, named: str) -> None:
    config = _config()
    config["gpt"][key] = value
    with pytest.raises(CheckpointError) as caught:
        UnifiedVoiceSize.of(config, unified_voice_shapes(SMALL_VOICE))
    assert caught.value.code == "tensors-mismatch"
    if key != "model_dim":  # there nearly everything differs
        assert named in caught.value.finding.found
    assert "config.yaml" in caught.value.finding.found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("heads", 7),
        ("heads", None),
        ("heads", 0),
        ("layers", 10**9),
        ("layers", "2"),
        ("model_dim", True),
        ("condition_module", None),
        ("condition_module", {"output_size": 32}),
        ("emo_condition_module", "small"),
        ("condition_type", "perceiver"),
        ("start_text_token", 3),
        ("stop_text_token", 0),
        ("start_mel_token", 8193),
        ("stop_mel_token", 8192),
    ],
)
def test_a_config_without_usable_sizes_is_refused(key: str, value: Any) -> None:
    config = _config()
    config["gpt"][key] = value
    with pytest.raises(ConfigError) as caught:
        UnifiedVoiceSize.of(config, unified_voice_shapes(SMALL_VOICE), config_path="base/config.yaml")
    assert caught.value.code == "base-config"
    assert f"gpt.{key}" in caught.value.finding.found or key in ("heads", "model_dim")


def test_an_extra_tensor_that_is_no_alias_is_refused() -> None:
    with pytest.raises(CheckpointError, match="bonus"):
        UnifiedVoiceSize.of(_config(), unified_voice_shapes(SMALL_VOICE) | {"bonus.weight": (1,)})


def _config() -> dict[str, Any]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        loaded: dict[str, Any] = yaml.safe_load(index_config(Path(folder) / "config.yaml").read_text())
        return loaded


# ---- near misses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(
    ("file", "layers", "width", "name"),
    [
        ("t3_turbo_v1.safetensors", 24, 1024, "Chatterbox Turbo"),
        ("t3_nano_v1.safetensors", 12, 768, "Chatterbox Nano"),
        ("model.safetensors", 6, 512, "similar to Chatterbox Turbo and Nano"),
    ],
)
def test_turbo_and_nano_are_refused_by_name(
    tmp_path: Path, file: str, layers: int, width: int, name: str, published: bool
) -> None:
    file = "t3_mtl23ls_v2.safetensors" if published else file
    hollow(tmp_path / file, gpt2_t3_shapes(layers, width))
    json_tokenizer(tmp_path / "grapheme_mtl_merged_expanded_v1.json", 300)
    error = refused(tmp_path, CheckpointError)
    assert error.code == "base-turbo"
    assert f"{file} is {name}: a GPT-2 backbone ({layers} layers, {width:,} wide), 50,276 text rows" in str(error)
    assert "no perceiver" in error.finding.found
    assert "t3_mtl23ls_v2.safetensors" in error.finding.cure


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("wrapper", [None, "model"])
def test_indextts_1_is_refused_by_name(tmp_path: Path, wrapper: str | None, stated: bool) -> None:
    index_config(tmp_path / "config.yaml", **({"version": 1.5} if stated else {"version": None}))
    thin(tmp_path / "gpt.pth", first_index_shapes(), wrapper)
    sentencepiece_tokenizer(tmp_path / "bpe.model", 12000)
    error = refused(tmp_path)
    assert error.code == "base-version"
    name = "IndexTTS 1.5" if stated else "IndexTTS 1.0 or 1.5 (1,024 wide, 20 layers)"
    assert name in error.finding.found
    assert "no emotion part" in error.finding.found


@pytest.mark.parametrize("config", ["stated", "silent", "missing"])
def test_indextts_2_5_is_refused_by_name(tmp_path: Path, config: str) -> None:
    if config != "missing":
        index_config(tmp_path / "config.yaml", version=2.5 if config == "stated" else None)
    thin(tmp_path / "gpt.pth", next_index_shapes())
    sentencepiece_tokenizer(tmp_path / "bpe.model", 400)
    error = refused(tmp_path)
    assert error.code == "base-version"
    assert ("IndexTTS 2.5" if config == "stated" else "IndexTTS-2.5") in error.finding.found
    assert "no speed_emb" in error.finding.found
    if config != "stated":
        assert "lang_embedding.weight [5, 64]" in error.finding.found
        assert "spk_layer.weight [64, 192]" in error.finding.found


def test_part_of_an_indextts2_checkpoint_is_not_taken_for_another_generation(tmp_path: Path) -> None:
    index_base(tmp_path)
    trained = {name: shape for name, shape in unified_voice_shapes(SMALL_VOICE).items() if not name.startswith("emo")}
    thin(tmp_path / "gpt.pth", trained)
    files = files_of(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        get_family("indextts2").infer_size(files, trained)
    assert caught.value.code == "tensors-mismatch"


def test_the_stand_in_of_an_amharic_project_is_refused_by_name(tmp_path: Path) -> None:
    thin(tmp_path / "checkpoint_best.pt", STAND_IN, "model_state_dict")
    (tmp_path / "Am_tokenizer_merged.json").write_text('{"[STOP]": 0, "a": 1}')
    error = refused(tmp_path, CheckpointError)
    assert error.code == "checkpoint-stand-in"
    assert "duration_predictor, mel_decoder" in error.finding.found


S3GEN = {"flow.input_embedding.weight": (6561, 4), "mel2wav.conv_pre.bias": (4,), "speaker_encoder.x": (1,)}


def _write_s3gen(folder: Path) -> None:
    thin(folder / "s3gen.pt", S3GEN)
    json_tokenizer(folder / "tokenizer.json", 300)


def _write_json(name: str, value: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(json.dumps(value))


def _write_lora(folder: Path) -> None:
    _write_json("adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "ResembleAI/chatterbox"})(
        folder
    )
    hollow(folder / "adapter_model.safetensors", {"base_model.model.text_emb.lora_A.weight": (4, 8)})


def _write_wrapped(folder: Path) -> None:
    thin(folder / "last.pt", {f"module.{name}": shape for name, shape in t3_shapes(SMALL_T3).items()})


@pytest.mark.parametrize(
    ("make", "code", "named"),
    [
        (_write_s3gen, "base-speech-parts", "s3gen.pt (Chatterbox's vocoder S3Gen)"),
        (lambda folder: thin(folder / "ve.pt", voice_encoder_shapes()), "base-speech-parts", "voice encoder"),
        (
            lambda folder: hollow(folder / "model.safetensors", semantic_codec_shapes(32, 64, 1)),
            "base-speech-parts",
            "semantic codec",
        ),
        (lambda folder: thin(folder / "s2mel.pth", {"net": (3,)}), "base-speech-parts", "s2mel.pth"),
        (lambda folder: json_tokenizer(folder / "tokenizer.json", 300), "base-tokenizer-only", "tokenizer.json"),
        (lambda folder: sentencepiece_tokenizer(folder / "am.model", 30), "base-tokenizer-only", "am.model"),
        (_write_lora, "base-adapter", "a LoRA adapter for ResembleAI/chatterbox"),
        (lambda folder: thin(folder / "lora.pt", {"a.lora_B.weight": (1, 2)}), "base-adapter", "lora.pt"),
        (_write_json("config.json", {"architectures": ["LlamaForCausalLM"]}), "base-other-model", "LlamaForCausalLM"),
        (_write_json("config.json", {"model_type": "vits"}), "base-other-model", "transformers model, vits"),
        (
            _write_json("model_index.json", {"_class_name": "StableDiffusionPipeline"}),
            "base-other-model",
            "diffusers pipeline, StableDiffusionPipeline",
        ),
        (_write_wrapped, "checkpoint-prefixed", "every tensor name starts with 'module.'"),
        (lambda folder: (folder / "x.pth").write_text(POINTER), "checkpoint-lfs", "x.pth is a Git LFS pointer"),
        (lambda folder: (folder / "notes.txt").write_text("x"), "base-unknown", "none of t3_mtl23ls_v2.safetensors"),
    ],
)
def test_a_folder_that_is_no_base_is_reported_what_it_is(
    tmp_path: Path, make: Callable[[Path], object], code: str, named: str
) -> None:
    make(tmp_path)
    error = refused(tmp_path, FileError)
    assert error.code == code
    assert named in error.finding.found


@pytest.mark.parametrize("broken", ['{"architectures": [', "[1]", '{"architectures": 3}', "{}"])
def test_settings_of_another_kind_make_no_other_model(tmp_path: Path, broken: str) -> None:
    (tmp_path / "config.json").write_text(broken)
    assert refused(tmp_path, FileError).code == "base-unknown"


@pytest.mark.parametrize(
    ("pointer", "file"),
    [("checkpoint", "t3_cfg.safetensors"), ("tokenizer", "tokenizer.json")],
)
def test_a_pointer_under_a_published_name_is_refused_before_anything_is_made(
    tmp_path: Path, pointer: str, file: str
) -> None:
    folder = chatterbox_base(tmp_path / "base", "t3_cfg.safetensors", "tokenizer.json")
    (folder / file).write_text(POINTER)
    error = refused(folder, CheckpointError)
    assert error.code == "checkpoint-lfs"
    assert file in error.finding.found
    assert "git lfs pull" in error.finding.cure


def test_a_whole_base_is_not_refused_for_what_else_lies_in_its_folder(tmp_path: Path) -> None:
    folder = index_base(tmp_path)
    _write_lora(folder)
    _write_s3gen(folder)
    hollow(folder / "t3_turbo_v1.safetensors", gpt2_t3_shapes(2, 8))
    thin(folder / "checkpoint_best.pt", STAND_IN)
    assert detect_family(folder).name == "indextts2"
    assert files_of(folder).checkpoint.name == "gpt.pth"


def test_a_folder_of_a_hundred_checkpoints_is_no_base_and_none_is_opened(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"step-{number}.pt").write_bytes(b"PK\x03\x04")
    assert refused(tmp_path, FileError).code == "base-unknown"


def test_a_tokenizer_alone_still_serves_the_tokenizer_verbs(tmp_path: Path) -> None:
    json_tokenizer(tmp_path / "tokenizer.json", 300)
    found, tokenizer = load_base_tokenizer(tmp_path, None)
    assert (found.name, tokenizer.size) == ("chatterbox", 300)


def test_a_named_family_refuses_its_near_misses_too(tmp_path: Path) -> None:
    hollow(tmp_path / "t3_turbo_v1.safetensors", gpt2_t3_shapes(24, 1024))
    with pytest.raises(CheckpointError, match="Chatterbox Turbo"):
        resolve_base_family(tmp_path, "chatterbox").files(tmp_path)


def test_the_command_line_refuses_a_near_miss_with_its_cure_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "turbo"
    hollow(base / "t3_turbo_v1.safetensors", gpt2_t3_shapes(24, 1024))
    assert run_cli(["new", str(tmp_path / "run"), "--base", str(base), "--language", "am"]) == 2
    assert run_cli(["show", str(base / "t3_turbo_v1.safetensors")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("error base-turbo") == 2
    assert "fix: use Chatterbox multilingual" in printed
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_torch_is_looked_at_without_running_its_pickle(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.write_text, (tmp_path / "ran", "x"))

    torch.save({"model": {"a": torch.zeros(1)}, "trap": Trap()}, tmp_path / "gpt.pth")
    refused(tmp_path, FileError)
    assert not (tmp_path / "ran").exists()
