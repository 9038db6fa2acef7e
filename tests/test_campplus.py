"""CAMPPlus: the original's voice vectors, the published names, strict files and inputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support import s3gen
from tests.support.audio import noise
from tests.support.checkpoint_files import saved
from tests.support.shared import difference, formula
from voxgraft.core.errors import AudioError, CheckpointError
from voxgraft.models.campplus import CAMPPLUS_LIMITS, CAMPPlus, CAMPPlusSize, kaldi_fbank, kaldi_filters

PREFIX = "speaker_encoder."
SMALL = CAMPPlusSize(growth=8, bottleneck=16, start=32)
SIZES = {"small": SMALL, "full": CAMPPlusSize()}
FBANK_LIMIT, VECTOR_LIMIT = 1e-3, 1e-5


@cache
def network(kind: str) -> CAMPPlus:
    made = CAMPPlus(SIZES[kind])
    made.load_state_dict(s3gen.state(f"s3gen_{kind}", PREFIX))
    return made


def wave(seconds: float) -> torch.Tensor:
    return torch.from_numpy(formula().golden_wave(seconds, 16_000))


@pytest.mark.parametrize("kind", SIZES)
def test_names_and_shapes_are_the_published_ones(kind: str) -> None:
    with torch.device("meta"):
        found = {PREFIX + name: tuple(tensor.shape) for name, tensor in CAMPPlus(SIZES[kind]).state_dict().items()}
    known = s3gen.shapes(f"s3gen_{kind}")
    assert found == {name: shape for name, shape in known.items() if name.startswith(PREFIX)}
    assert CAMPPlusSize.of({name.removeprefix(PREFIX): shape for name, shape in found.items()}) == SIZES[kind]


def test_the_filter_bank_is_the_originals() -> None:
    golden = s3gen.golden()
    fbank = kaldi_fbank(wave(3.0))
    assert difference(fbank, golden["w1.fbank_raw"]) < FBANK_LIMIT
    assert difference(fbank - fbank.mean(0), golden["w1.fbank"]) < FBANK_LIMIT
    assert difference(kaldi_filters(), golden["kaldi_mel_banks"]) < 2e-5


@pytest.mark.parametrize("kind", SIZES)
def test_the_voice_vectors_are_the_originals(kind: str) -> None:
    golden = s3gen.golden()
    vectors = network(kind).embed([wave(3.0), wave(2.07)])
    assert difference(vectors[0], golden[f"{kind}.xvector.w1"]) < VECTOR_LIMIT
    assert difference(vectors[1], golden[f"{kind}.xvector.w2"]) < VECTOR_LIMIT
    # 90 frames are 45 after the stride: less than one segment.
    short = torch.from_numpy(golden["w1.fbank"][None, :90])
    assert difference(network(kind)(short)[0], golden[f"{kind}.xvector.w1_first90frames"]) < VECTOR_LIMIT


def random_network() -> CAMPPlus:
    torch.manual_seed(0)
    return CAMPPlus(SMALL)


@pytest.mark.parametrize("file", ["campplus_cn_common.bin", "s3gen.safetensors"])
def test_it_gives_the_same_vectors_after_its_way_through_a_file(tmp_path: Path, file: str) -> None:
    made = random_network()
    prefix = "" if file.endswith(".bin") else PREFIX
    state = {prefix + name: tensor for name, tensor in made.state_dict().items()}
    if prefix:  # exports may leave the counters of training steps out, and hold other parts
        state = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
        state["flow.weight"] = torch.zeros(3)
        save_file(state, tmp_path / file)
    else:
        saved(state, tmp_path / file)
    loaded = CAMPPlus.load(tmp_path / file, prefix)
    assert loaded.size == SMALL
    assert torch.equal(loaded.embed([noise(9_000)]), made.embed([noise(9_000)]))


@pytest.mark.parametrize(
    ("change", "said"),
    [("missing", "head.bn1.running_var [32] is missing"), ("besides", "head.extra [2] is not part of it")],
)
def test_a_file_with_other_tensors_is_refused_by_name(tmp_path: Path, change: str, said: str) -> None:
    state = random_network().state_dict()
    if change == "missing":
        del state["head.bn1.running_var"]
    else:
        state["head.extra"] = torch.zeros(2)
    save_file(state, tmp_path / "campplus.safetensors")
    with pytest.raises(CheckpointError) as refusal:
        CAMPPlus.load(tmp_path / "campplus.safetensors")
    assert refusal.value.code == "tensors-mismatch"
    assert said in refusal.value.finding.found


def test_the_shortest_clip_has_a_finite_vector_and_a_shorter_one_is_refused() -> None:
    made = random_network()
    assert made.embed([noise(CAMPPLUS_LIMITS.min_samples)]).isfinite().all()
    with pytest.raises(AudioError) as refusal:
        made.embed([noise(CAMPPLUS_LIMITS.min_samples - 1)])
    assert refusal.value.code == "audio-too-short"
    assert made.embed([]).shape == (0, 192)
