"""The semantic codec: the original's codes, one a frame in any batch, strict files and inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.audio import DEVICES
from tests.support.checkpoint_files import saved
from tests.support.shared import difference, expected, formula, golden_state, names
from voxgraft.audio.features import pad_rows
from voxgraft.core.errors import CheckpointError, VoxgraftError
from voxgraft.models.indextts2.encoder import SemanticCodec, SemanticCodecSize

GOLDEN_SMALL = SemanticCodecSize(width=32, mlp=64, layers=2)
LATENT_LIMIT, GAP = 5e-5, 1e-4
FRAMES = {"a": 120, "b": 77}
TINY = SemanticCodecSize(width=12, mlp=20, layers=2, features=16, codes=50, code_width=4)


def golden_features(utterance: str) -> Tensor:
    shape = (FRAMES[utterance], 1024)
    return torch.from_numpy(formula().golden_floats(f"input.indextts2.features.{utterance}", shape, 1.7))


def random_features(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, TINY.features, generator=generator) for length in lengths]


def encoder_names(kind: str) -> dict[str, tuple[int, ...]]:
    known = names("indextts2", f"repcodec_{kind}")
    return {name: shape for name, shape in known.items() if not name.startswith("decoder.")}


@pytest.fixture(scope="module", params=DEVICES)
def golden(request: pytest.FixtureRequest) -> Callable[[str], SemanticCodec]:
    made: dict[str, SemanticCodec] = {}

    def make(kind: str) -> SemanticCodec:
        if kind not in made:
            codec = SemanticCodec(GOLDEN_SMALL if kind == "small" else SemanticCodecSize())
            codec.load_state_dict(golden_state(encoder_names(kind)))
            made[kind] = codec.to(request.param)
        return made[kind]

    return make


@pytest.fixture(scope="module")
def tiny() -> SemanticCodec:
    torch.manual_seed(0)
    return SemanticCodec(TINY)


@pytest.mark.parametrize("kind", ["small", "full"])
def test_names_and_shapes_are_upstreams_without_the_decoder(kind: str) -> None:
    codec = SemanticCodec(GOLDEN_SMALL if kind == "small" else SemanticCodecSize())
    assert {name: tuple(tensor.shape) for name, tensor in codec.state_dict().items()} == encoder_names(kind)


@pytest.mark.parametrize("kind", ["small", "full"])
@pytest.mark.parametrize("utterance", ["a", "b"])
def test_codes_are_the_originals(golden: Callable[[str], SemanticCodec], kind: str, utterance: str) -> None:
    arrays, codec = expected("indextts2", "repcodec_expected.npz"), golden(kind)
    features = [golden_features(utterance)]
    assert difference(codec.latents(features)[0].cpu(), arrays[f"{kind}_latent_{utterance}"]) < LATENT_LIMIT
    clear = arrays[f"{kind}_gap_{utterance}"] > GAP
    assert clear.all()
    assert np.array_equal(codec.encode(features)[0], arrays[f"{kind}_ids_{utterance}"])


@pytest.mark.parametrize("kind", ["small", "full"])
@pytest.mark.parametrize("utterance", ["a", "b"])
def test_codes_stand_for_the_originals_features(
    golden: Callable[[str], SemanticCodec], kind: str, utterance: str
) -> None:
    arrays = expected("indextts2", "repcodec_expected.npz")
    codes = torch.from_numpy(arrays[f"{kind}_ids_{utterance}"])
    embedded = golden(kind).vq2emb(codes).cpu()
    for name in ("vq2emb", "quantized"):
        assert difference(embedded[:16, :16], arrays[f"{kind}_{name}_{utterance}_first16"]) < LATENT_LIMIT


def test_every_clip_has_its_own_length_and_its_own_codes_in_any_batch(
    golden: Callable[[str], SemanticCodec],
) -> None:
    arrays, codec = expected("indextts2", "repcodec_expected.npz"), golden("full")
    clips = [golden_features("b"), golden_features("a")]
    latents = codec(*pad_rows([clip.to(next(codec.parameters())) for clip in clips]))
    for utterance, padded, own in zip("ba", latents, codec.encode(clips), strict=True):
        assert np.array_equal(own, arrays[f"full_ids_{utterance}"])
        assert np.array_equal(codec.nearest(padded[: len(own)]).cpu().numpy(), own)


def test_nothing_of_a_neighbour_leaks_through_the_mask() -> None:
    torch.manual_seed(0)
    codec = SemanticCodec(TINY).double()
    clips = random_features(3, 40, 1, 17, 40)
    together = codec(*pad_rows([clip.double() for clip in clips]))
    for clip, batched in zip(clips, together, strict=True):
        alone = codec.latents([clip])[0]
        assert float((alone - batched[: len(clip)]).abs().max()) < 1e-12


@pytest.mark.parametrize("batch_frames", [1, 100, 10_000])
def test_latents_are_as_many_as_frames_in_any_batch(tiny: SemanticCodec, batch_frames: int) -> None:
    clips = random_features(33, 40, 1, 37, 40)
    for clip, batched in zip(clips, tiny.latents(clips, batch_frames), strict=True):
        alone = tiny.latents([clip])[0]
        assert alone.shape == batched.shape == (len(clip), TINY.code_width)
        assert float((alone - batched).abs().max()) < LATENT_LIMIT


@pytest.mark.parametrize("file", ["semantic_codec/model.safetensors", "model.safetensors", "codec.pt"])
def test_it_gives_the_same_codes_after_its_way_through_a_file(tmp_path: Path, tiny: SemanticCodec, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    state = tiny.state_dict() | {"decoder.0.embed.weight": torch.zeros(12, 16, 7), "decoder.1.bias": torch.zeros(16)}
    if file.endswith(".pt"):
        saved(state, path)
    else:
        save_file(state, path)
    loaded = SemanticCodec.load(path if file == "codec.pt" else tmp_path)
    assert loaded.size == TINY
    clips = random_features(20, 9)
    for own, found in zip(tiny.latents(clips), loaded.latents(clips), strict=True):
        assert torch.equal(own, found)


def test_a_codec_of_another_version_is_refused_with_what_it_has_besides(tmp_path: Path, tiny: SemanticCodec) -> None:
    state = tiny.state_dict() | {"down.weight": torch.zeros(16, 16, 3)}
    with pytest.raises(CheckpointError, match=r"down.weight \[16, 16, 3\] is not part of it"):
        SemanticCodec.load(saved(state, tmp_path / "model.safetensors"))


def test_a_file_with_a_hole_is_refused_with_its_name(tmp_path: Path, tiny: SemanticCodec) -> None:
    state = tiny.state_dict()
    del state["quantizer.quantizers.0.in_project.weight_g"]
    state["encoder.1.weight"] = torch.zeros(16, 13)
    path = saved(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        SemanticCodec.load(tmp_path)
    assert caught.value.code == "tensors-mismatch"
    assert "quantizer.quantizers.0.in_project.weight_g [4, 1, 1] is missing" in str(caught.value)
    assert "encoder.1.weight is [16, 13], not [16, 12]" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "features",
    [torch.zeros(0, 16), torch.zeros(5, 15), torch.zeros(1, 5, 16), torch.zeros(16), torch.full((5, 16), float("nan"))],
)
def test_features_that_cannot_be_used_are_refused_by_their_place(tiny: SemanticCodec, features: Tensor) -> None:
    with pytest.raises(VoxgraftError) as caught:
        tiny.encode([*random_features(4), features])
    assert caught.value.code == "features-form"
    assert caught.value.finding.where == "clip 2 of 2"


@pytest.mark.parametrize("code", [-1, TINY.codes])
def test_a_code_outside_the_codebook_is_refused(tiny: SemanticCodec, code: int) -> None:
    with pytest.raises(VoxgraftError, match="0 to 49"):
        tiny.vq2emb(torch.tensor([3, code]))
