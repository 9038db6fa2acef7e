"""`show`: what a base is, on one screen and as JSON; its fingerprint is the frozen model's; nothing is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.support.base_files import SMALL_T3, chatterbox_base, hollow, index_base, index_config, thin
from tests.support.fixtures import Fixtures
from tests.support.shared import shared
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.base import RAW_DTYPES, TORCH_DTYPES, combine_digests, tensor_digests
from voxgraft.cli import run_cli
from voxgraft.config.commands import ShowSettings
from voxgraft.core.errors import CheckpointError, VoxgraftError
from voxgraft.core.results import Table, plain_text
from voxgraft.inspect.show import BaseReport, show_base
from voxgraft.models import family_names, get_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.chatterbox.family import RELEASES, T3Size, t3_shapes
from voxgraft.models.indextts2.shapes import UnifiedVoiceSize, unified_voice_shapes
from voxgraft.models.speech_model import load_model
from voxgraft.nn.rows import compute_base_fingerprint, hash_base_tensors

State = dict[str, Tensor]


@pytest.fixture(scope="module", params=family_names())
def base(request: pytest.FixtureRequest, fixtures: Fixtures) -> tuple[str, BaseFiles]:
    name: str = request.param
    return name, fixtures.base(name)


def shown(place: Path, *, fingerprint: bool = True) -> BaseReport:
    return show_base(ShowSettings(base=place, fingerprint=fingerprint))


def state_of(files: BaseFiles) -> State:
    if files.checkpoint.suffix == ".safetensors":
        return load_file(files.checkpoint)
    loaded: Any = torch.load(files.checkpoint, weights_only=True)
    state: State = loaded.get("model", loaded)
    return state


class Holder(nn.Module):
    """A module that holds tensors under their own dotted names, as parameters or, where that cannot be, as buffers."""

    def __init__(self, state: State) -> None:
        super().__init__()
        for name, tensor in state.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            if tensor.is_floating_point() and last != "pe":
                owner.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
            else:
                owner.register_buffer(last, tensor)


def lines_of(report: BaseReport) -> list[str]:
    lines: list[str] = []
    for line in report.lines():
        lines += line.lines() if isinstance(line, Table) else [plain_text(line)]
    return lines


# ---- what is shown ------------------------------------------------------------------------------------------


def test_a_tiny_base_is_shown_with_its_parts_rows_tokenizer_and_files(base: tuple[str, BaseFiles]) -> None:
    name, files = base
    report = shown(files.folder)
    reported = report.to_json()
    state = state_of(files)
    assert (reported["family"], report.exit_code, reported["findings"]) == (name, 0, [])
    release = {"chatterbox": "multilingual v2", "indextts2": "IndexTTS-2", "tiny": "a copy", "xtts": "XTTS v2"}[name]
    assert reported["release"] == release
    assert reported["licence"] == get_family(name).licence
    assert any(get_family(name).licence in line for line in lines_of(report))
    assert reported["checkpoint"]["tensors"] == len(state)
    assert reported["checkpoint"]["values"] == sum(tensor.numel() for tensor in state.values())
    counters = sum(not tensor.is_floating_point() for tensor in state.values())
    assert reported["checkpoint"]["dtypes"].get("I64", 0) == counters
    assert reported["checkpoint"]["dtypes"]["F32"] == len(state) - counters
    assert sum(part["values"] for part in reported["parts"]) == reported["checkpoint"]["values"]
    assert "other" not in {part["part"] for part in reported["parts"]}
    heads = {"chatterbox": 1, "indextts2": 4, "tiny": 1, "xtts": 4}[name]
    assert reported["size"] == {"width": 64, "layers": 2, "heads": heads}
    assert set(reported["text_rows"].values()) == {reported["tokenizer"]["pieces"] + reported["spare_rows"]}
    assert reported["tokenizer"]["file"] == files.tokenizer.name
    assert reported["languages"] == list(get_family(name).languages)
    there = {file["name"]: file["there"] for file in reported["files"]}
    expected = {
        "chatterbox": {"ve.pt": True, "conds.pt": False},
        "indextts2": {"wav2vec2bert_stats.pt": True, "s2mel.pth": False},
        "tiny": {"codec.safetensors": True, "voices.json": True},
        "xtts": {"dvae.pth": True, "mel_stats.pth": False, "speakers_xtts.pth": True},
    }[name]
    assert {file: there[file] for file in expected} == expected


def test_a_report_fits_on_one_screen_and_says_the_same_as_its_json(base: tuple[str, BaseFiles]) -> None:
    report = shown(base[1].folder)
    lines = lines_of(report)
    text = "\n".join(lines)
    assert len(lines) <= 40
    assert report.tokenizer is not None
    for fact in (report.fingerprint, report.tokenizer.sha256, report.release, *report.languages):
        assert str(fact) in text
    for file in report.files:
        assert f"{file['name']} " in text
    assert len(report.parts) + 1 == sum(line.endswith("%") for line in lines)


def test_the_command_line_prints_text_and_json(base: tuple[str, BaseFiles], capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(base[1].folder)
    assert run_cli(["show", folder, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert run_cli(["show", folder, "--no-fingerprint"]) == 0
    printed = capsys.readouterr().out
    assert reported["family"] == base[0]
    assert f"{reported['checkpoint']['values']:,}" in printed
    assert reported["fingerprint"] not in printed


def test_the_parts_of_a_published_t3_have_the_published_sizes(tmp_path: Path) -> None:
    chatterbox_base(tmp_path, "t3_mtl23ls_v3.safetensors", "grapheme_mtl_merged_expanded_v1.json", T3Size())
    shutil.copy(shared("real/chatterbox/grapheme_mtl_merged_expanded_v1.json"), tmp_path)
    report = shown(tmp_path, fingerprint=False)
    assert (report.exit_code, report.release) == (0, "multilingual v3")
    assert sum(values for _, _, values in report.parts) == 535_989_248
    assert report.size == T3Size()
    values = {part: values for part, _, values in report.parts}
    assert values["speech tables"] == 2 * 8194 * 1024
    assert values["text tables"] == 2 * 2454 * 1024
    assert {file["name"]: file["there"] for file in report.files if file["needed_for"]}["s3gen.pt"] is False


def test_the_parts_of_a_published_indextts2_have_the_published_sizes(tmp_path: Path) -> None:
    hollow(tmp_path / "gpt.pth", unified_voice_shapes(UnifiedVoiceSize()))
    for name in ("bpe.model", "config.yaml", "wav2vec2bert_stats.pt"):
        shutil.copy(shared(f"real/indextts2/{name}"), tmp_path)
    report = shown(tmp_path, fingerprint=False)
    assert report.exit_code == 0
    assert report.tokenizer is not None
    assert (report.tokenizer.kind, report.tokenizer.size) == ("sentencepiece-unigram", 12000)
    values = {part: values for part, _, values in report.parts}
    assert values == {
        "backbone": 472_261_120 + 2_560,
        "voice conditioning": 159_250_944 + 19_053_224,
        "emotion conditioning": 146_622_976 + 11_018_580 + 1_639_680 + 1_312_000,
        "text tables": 15_373_281 + 15_361_280,
        "speech tables": 10_496_514 + 10_488_320,
        "positions": 2_327_040 + 770_560,
        "speed rows": 2_560,
        "computed tables": 871_100_639 - 865_980_639,
    }
    missing = {file["name"] for file in report.files if file["needed_for"] and not file["there"]}
    assert "bigvgan_v2_22khz_80band_256x" in missing
    assert "wav2vec2bert_stats.pt" not in missing


def test_file_names_that_the_config_gives_are_the_ones_looked_for(tmp_path: Path) -> None:
    folder = index_base(tmp_path, w2v_stat="my_stats.pt")
    (folder / "my_stats.pt").write_bytes(b"x")
    there = {file["name"]: file["there"] for file in shown(folder).files}
    assert there["my_stats.pt"] is True
    assert "wav2vec2bert_stats.pt" not in there


def test_every_name_under_which_a_part_is_loaded_counts_as_there(tmp_path: Path) -> None:
    for release, expected in ((RELEASES[0], "s3gen.pt"), (RELEASES[-1], "s3gen.safetensors")):
        for name in (None, "s3gen.pt", "s3gen.safetensors", "s3gen_v3.pt", "s3gen_v3.safetensors"):
            folder = tmp_path / f"{release.checkpoint}-{name}"
            chatterbox_base(folder, release.checkpoint, release.tokenizer, SMALL_T3)
            if name:
                (folder / name).write_bytes(b"x")
            files = {file["name"]: file["there"] for file in shown(folder).files if file["what"].startswith("S3Gen")}
            assert files == {name or expected: name is not None}


# ---- what is wrong with it ----------------------------------------------------------------------------------


def test_a_base_that_is_not_whole_is_shown_with_the_reason_and_exit_1(tmp_path: Path) -> None:
    chatterbox_base(tmp_path, "t3_cfg.safetensors", "tokenizer.json", SMALL_T3)
    shapes = t3_shapes(SMALL_T3)
    del shapes["speech_head.weight"]
    hollow(tmp_path / "t3_cfg.safetensors", shapes)
    report = shown(tmp_path)
    assert (report.exit_code, report.size, report.languages) == (1, None, ("en",))
    assert [item.code for item in report.findings] == ["tensors-mismatch"]
    assert any("speech_head.weight" in line for line in lines_of(report))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_weights_that_are_not_finite_are_counted_and_named(tmp_path: Path, dtype: torch.dtype) -> None:
    chatterbox_base(tmp_path, "t3_cfg.safetensors", "tokenizer.json", SMALL_T3)
    path = tmp_path / "t3_cfg.safetensors"
    state = {name: torch.zeros_like(tensor, dtype=dtype) for name, tensor in load_file(path).items()}
    names = sorted(name for name, tensor in state.items() if tensor.numel() > 3)[:2]
    state[names[0]].view(-1)[1] = float("nan")
    state[names[1]].view(-1)[0:2] = float("-inf")
    save_file(state, path)
    report = shown(tmp_path)
    (item,) = [item for item in report.findings if item.code == "weights-not-finite"]
    assert item.found.startswith("3 of ")
    assert all(name in item.found for name in names)
    assert report.exit_code == 1
    save_file({name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}, path)
    (item,) = [item for item in shown(tmp_path).findings if item.code == "weights-not-finite"]
    assert item.found.startswith("all ")


def test_rows_that_do_not_fit_the_tokenizer_are_a_finding(tmp_path: Path) -> None:
    folder = index_base(tmp_path)
    grown = UnifiedVoiceSize(401, 64, 2, speaker=UnifiedVoiceSize().speaker, emotion=UnifiedVoiceSize().emotion)
    thin(folder / "gpt.pth", unified_voice_shapes(grown))
    index_config(folder / "config.yaml", grown)
    report = shown(folder, fingerprint=False)
    assert report.exit_code == 1
    assert [item.code for item in report.findings] == ["rows-vs-tokenizer"]


def test_a_broken_tokenizer_does_not_hide_the_rest(tmp_path: Path) -> None:
    chatterbox_base(tmp_path, "t3_cfg.safetensors", "tokenizer.json", SMALL_T3)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    report = shown(tmp_path)
    assert report.exit_code == 1
    assert report.tokenizer is None
    assert report.size == SMALL_T3
    assert report.fingerprint is not None


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VoxgraftError) as caught:
        shown(tmp_path / "nowhere")
    assert caught.value.code == "file-missing"


# ---- other places -------------------------------------------------------------------------------------------


def test_one_checkpoint_file_is_shown_with_what_lies_beside_it(base: tuple[str, BaseFiles], tmp_path: Path) -> None:
    files = base[1]
    beside = shown(files.checkpoint)
    assert beside.to_json() == {**shown(files.folder).to_json(), "place": str(files.checkpoint)}
    alone = Path(shutil.copy(files.checkpoint, tmp_path / f"alone{files.checkpoint.suffix}"))
    report = shown(alone)
    assert report.fingerprint == beside.fingerprint
    assert report.tokenizer is None
    assert report.exit_code == 1
    assert "base-file-missing" in {item.code for item in report.findings}


def error_of(place: Path) -> VoxgraftError:
    with pytest.raises(VoxgraftError) as caught:
        shown(place)
    return caught.value


def test_a_grown_file_alone_is_reported_which_tokenizer_it_lacks_and_shown_whole_beside_it(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    state = load_file(fixtures.base("chatterbox").checkpoint)
    for point in get_family("chatterbox").graft_points:
        state[point.tensor] = torch.cat([state[point.tensor], torch.ones(3, state[point.tensor].shape[1])])
    alone = tmp_path / "grown" / "grown.safetensors"
    alone.parent.mkdir()
    save_file(state, alone)
    report = shown(alone)
    rows = next(iter(report.text_rows.values()))
    assert report.release == f"no published release ({rows:,} text rows)"
    (item,) = report.findings
    assert f"text rows for {rows:,} tokens" in item.found
    assert "copy the tokenizer of this checkpoint" in item.cure
    assert "download" not in item.cure


def test_an_empty_folder_a_tokenizer_a_graft_and_a_set_are_called_what_they_are(
    base: tuple[str, BaseFiles], tmp_path: Path
) -> None:
    error = error_of(tmp_path)
    assert (error.code, error.finding.found) == ("base-unknown", f"{tmp_path} is an empty folder")
    tokenizer = base[1].tokenizer
    error = error_of(tokenizer)
    assert error.code == "checkpoint-unknown"
    assert error.finding.found.startswith(f"{tokenizer.name} is a tokenizer (")
    assert f"--base {tokenizer}" in error.finding.cure
    for name, what in (("graft.json", "a graft"), ("set.json", "a set of clips")):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        assert error_of(folder).finding.found == f"{folder} is {what} ({name} is in it)"


def test_several_releases_in_one_folder_are_named_and_each_can_be_shown(tmp_path: Path) -> None:
    for release, rows in zip(RELEASES, (2454, 2454, 2352, 704), strict=True):
        chatterbox_base(tmp_path, release.checkpoint, release.tokenizer, T3Size(rows, 64, 1, 64))
    report = shown(tmp_path)
    assert report.release == "multilingual v2"
    assert report.others == ("t3_mtl23ls_v3.safetensors", "t3_23lang.safetensors", "t3_cfg.safetensors")
    assert any(f"also in this folder: {', '.join(report.others)}" in line for line in lines_of(report))
    english = shown(tmp_path / "t3_cfg.safetensors")
    assert (english.release, english.languages, english.exit_code) == ("English", ("en",), 0)
    assert len(english.others) == 3


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "t3."])
def test_a_file_saved_from_inside_a_wrapper_is_refused_with_its_prefix(tmp_path: Path, prefix: str) -> None:
    thin(tmp_path / "last.pt", {prefix + name: shape for name, shape in t3_shapes(SMALL_T3).items()})
    with pytest.raises(CheckpointError) as caught:
        shown(tmp_path / "last.pt")
    assert caught.value.code == "checkpoint-prefixed"
    assert repr(prefix) in caught.value.finding.found


def test_a_run_shows_its_base(base: tuple[str, BaseFiles], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"base: {base[1].folder}\nlanguage: am\n")
    assert shown(tmp_path).to_json() == shown(base[1].folder).to_json()


def test_nothing_is_written_and_torch_is_not_loaded(base: tuple[str, BaseFiles]) -> None:
    folder = base[1].folder
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}
    program = (
        "import sys; from voxgraft.cli import run_cli; status = run_cli(['show', sys.argv[1], '--quiet'])\n"
        "sys.exit(status or ('torch' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=Path(__file__).parent.parent)
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))} == before


# ---- the fingerprint ----------------------------------------------------------------------------------------


def test_the_fingerprint_is_that_of_the_frozen_model(base: tuple[str, BaseFiles]) -> None:
    name, files = base
    fingerprint = shown(files.folder).fingerprint
    assert fingerprint == compute_base_fingerprint(Holder(state_of(files)))
    assert fingerprint == compute_base_fingerprint(load_model(get_family(name), files, dtype=None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_fingerprint_does_not_depend_on_the_file_format(
    fixtures: Fixtures, tmp_path: Path, dtype: torch.dtype
) -> None:
    base = fixtures.base("indextts2")
    state = {key: tensor.to(dtype) for key, tensor in state_of(base).items()}
    aliases = {f"inference_model.{key}": state[key] for key in list(state)[:5]} | {"gpt.wte.weight": torch.ones(3)}
    found: set[str | None] = set()
    for name, saved in {"plain": state, "wrapped": {"model": state, "epoch": 3}, "alias": {**state, **aliases}}.items():
        folder = Path(shutil.copytree(base.folder, tmp_path / name))
        torch.save(saved, folder / "gpt.pth")
        found.add(shown(folder).fingerprint)
    folder = Path(shutil.copytree(base.folder, tmp_path / "safetensors"))
    save_file(dict(reversed(state.items())), folder / "gpt.pth")
    found.add(shown(folder).fingerprint)
    assert found == {compute_base_fingerprint(Holder(state))}


def test_one_bit_a_name_a_shape_or_a_number_format_changes_the_fingerprint(tmp_path: Path) -> None:
    state = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.zeros(4)}
    bit = torch.zeros(4)
    bit[3] = torch.finfo(torch.float32).smallest_normal
    others: list[State] = [
        state,
        {**state, "b.bias": bit},
        {**state, "b.bias": -torch.zeros(4)},
        {**state, "a.weight": state["a.weight"].reshape(3, 2)},
        {**state, "b.bias": torch.zeros(4, dtype=torch.int32)},
        {"a.weight": state["a.weight"], "c.bias": state["b.bias"]},
    ]
    found = []
    for number, other in enumerate(others):
        save_file(other, tmp_path / f"{number}.safetensors")
        found.append(fingerprint_at(tmp_path / f"{number}.safetensors"))
        assert found[-1] == compute_base_fingerprint(Holder(other))
    assert len(set(found)) == len(others)


def test_odd_tensors_have_the_digests_of_torch(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    state = {
        "turned": whole.t(),
        "window": whole[1:3, ::2],
        "repeated": torch.ones(1).expand(3, 2),
        "number": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "flag": torch.tensor([True, False]),
        "eighth": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
        "large": torch.arange(400_000, dtype=torch.int64),
    }
    torch.save(state, tmp_path / "odd.pt")
    with open_checkpoint(tmp_path / "odd.pt") as checkpoint:
        digests = tensor_digests(checkpoint, checkpoint.tensors)
    holder = nn.Module()
    for name, tensor in state.items():
        holder.register_buffer(name, tensor)
    assert digests == hash_base_tensors(holder)


def test_every_number_format_has_the_name_that_torch_gives_it() -> None:
    assert TORCH_DTYPES.keys() == RAW_DTYPES.keys()
    for name, torch_name in TORCH_DTYPES.items():
        dtype = getattr(torch, torch_name)
        assert str(dtype) == f"torch.{torch_name}"
        assert dtype.itemsize == RAW_DTYPES[name].itemsize


def test_a_file_that_changes_while_it_is_hashed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(3)}, path)
    with open_checkpoint(path) as checkpoint:
        data = path.read_bytes()
        path.write_bytes(data + b"x")
        with pytest.raises(CheckpointError) as caught:
            tensor_digests(checkpoint, ["a"])
    assert caught.value.code == "checkpoint-changed"


def fingerprint_at(path: Path) -> str:
    with open_checkpoint(path) as checkpoint:
        return combine_digests(tensor_digests(checkpoint, checkpoint.tensors))


def test_hashing_tells_how_far_it_is(tmp_path: Path) -> None:
    from contextlib import contextmanager

    from voxgraft.core import progress

    reported: list[Any] = []

    class Listener:
        @contextmanager
        def task(self, name: str, total: int | None) -> Any:
            reported.append((name, total))
            done: list[int] = []
            yield done.append
            reported.append(sum(done))

        def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
            reported.append((kind, step, values))

    save_file({"a": torch.zeros(300_000), "b": torch.zeros(5)}, tmp_path / "a.safetensors")
    with progress.use_progress_listener(Listener()):
        fingerprint_at(tmp_path / "a.safetensors")
    assert reported == [("hashing a.safetensors", 1_200_020), 1_200_020]
