"""BigVGAN v2: the original's arrays inside and outside, the plain form of its filters, strict files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support import s2mel as golden
from tests.support.checkpoint_files import saved
from tests.support.shared import difference
from voxgraft.core.errors import CheckpointError, FileError
from voxgraft.models.indextts2.s2mel import fold_weight_norm
from voxgraft.models.indextts2.vocoder import (
    AntiAliasedSnake,
    BigVGAN,
    BigVGANSize,
    bigvgan_shapes,
    kaiser_sinc_filter,
)

# The golden README recommends 5e-5 for the wave and 1e-4 inside.
WAVE_LIMIT, INSIDE_LIMIT = 2e-5, 5e-5
TINY = BigVGANSize(channels=64, mels=80)


@cache
def golden_model(kind: str) -> BigVGAN:
    size = BigVGANSize.of(golden.shapes(f"bigvgan_{kind}"))
    shapes = bigvgan_shapes(size, weight_norm=True)
    return BigVGAN.from_tensors(size, {name: golden.golden_tensor(name, shape) for name, shape in shapes.items()})


def tiny_tensors(seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=draw) * 0.3 for name, shape in bigvgan_shapes(TINY, weight_norm=True).items()
    }


@pytest.mark.parametrize("kind", ["small", "full"])
@pytest.mark.parametrize("weight_norm", [True, False], ids=["weight norm", "plain"])
def test_every_published_name_is_read_or_a_filter(kind: str, *, weight_norm: bool) -> None:
    published = golden.shapes(f"bigvgan_{kind}" if weight_norm else f"bigvgan_{kind}_no_weight_norm")
    filters = {name for name, shape in published.items() if name.endswith(".filter") and shape == (1, 1, 12)}
    assert len(filters) == 218
    size = BigVGANSize.of(published)
    assert bigvgan_shapes(size, weight_norm=weight_norm) == {
        name: shape for name, shape in published.items() if name not in filters
    }


def test_the_filter_is_the_originals() -> None:
    assert difference(kaiser_sinc_filter(), golden.arrays()["bigvgan_filter"]) < 1e-7


@pytest.mark.long(fast="small-*")
@pytest.mark.parametrize(("kind", "utterance"), golden.CASES)
def test_the_wave_is_the_originals_inside_and_outside(kind: str, utterance: str) -> None:
    arrays, model = golden.arrays(), golden_model(kind)
    shape = (80, 20 if utterance == "a" else 33)
    mel = golden.floats(f"vocoder_mel.{utterance}", shape, 3.0) - 4
    assert torch.equal(mel[:4, :4], torch.from_numpy(arrays[f"vocoder_mel_{utterance}_first4x4"]))
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _module, _given, found: seen.update({name: found[0]})

    names = {"conv_pre": "conv_pre", "up": "ups.0", "act": "resblocks.0.activations.0", "block": "resblocks.0"}
    parts = {name: model.get_submodule(place) for name, place in names.items()}
    hooks = [part.register_forward_hook(keep(name)) for name, part in parts.items()]
    hooks.append(model.ups[1].register_forward_pre_hook(lambda _module, given: seen.update(stage=given[0][0])))
    try:
        wave = model(mel[None])[0]
    finally:
        for hook in hooks:
            hook.remove()
    assert difference(wave, arrays[f"{kind}_bigvgan_wave_{utterance}"]) < WAVE_LIMIT
    assert float((wave.abs() == 1).float().mean()) > 0.005  # the clamp is tested too
    for name, states in seen.items():
        assert difference(states[:8, :32], arrays[f"{kind}_bigvgan_{name}_{utterance}"]) < INSIDE_LIMIT


@pytest.mark.parametrize("length", [1, 2, 3, 5, 40])
def test_phases_are_the_plain_filters(length: int) -> None:
    """Replicate-padded transposed convolution, cut; snake; replicate-padded convolution with stride 2."""
    activation = AntiAliasedSnake(3)
    torch.manual_seed(0)
    nn.init.normal_(activation.act.alpha)
    nn.init.normal_(activation.act.beta)
    x, taps = torch.randn(2, 3, length), kaiser_sinc_filter().expand(3, 1, -1)
    up = 2 * F.conv_transpose1d(F.pad(x, (5, 5), mode="replicate"), taps, stride=2, groups=3)[..., 15:-15]
    alpha, beta = activation.act.alpha.exp()[:, None], activation.act.beta.exp()[:, None]
    snake = up + (up * alpha).sin().square() / (beta + 1e-9)
    plain = F.conv1d(F.pad(snake, (5, 6), mode="replicate"), taps, stride=2, groups=3)
    assert up.shape[-1] == 2 * length
    for found in (activation(x), activation.filter_by_shifts(x), activation.filter_by_convolution(x)):
        assert (found - plain).abs().max() < 1e-5


def test_clips_of_different_lengths_are_what_they_are_alone() -> None:
    model = BigVGAN.from_tensors(TINY, tiny_tensors())
    mels = [torch.randn(80, frames, generator=torch.Generator().manual_seed(frames)) for frames in (7, 3, 7, 11)]
    for mel, wave in zip(mels, model.vocode(mels), strict=True):
        assert wave.shape == (256 * mel.shape[1],)
        assert (wave - model(mel[None])[0]).abs().max() < 1e-5


def test_published_files_with_and_without_weight_norm_give_the_same_model(tmp_path: Path) -> None:
    tensors, mel = tiny_tensors(), torch.randn(1, 80, 4, generator=torch.Generator().manual_seed(1))
    wanted = BigVGAN.from_tensors(TINY, tensors)(mel)
    filters = {"activation_post.upsample.filter": torch.zeros(1, 1, 12)}
    folder = tmp_path / "bigvgan_v2_22khz_80band_256x"
    folder.mkdir()
    saved({"generator": tensors | filters}, folder / "bigvgan_generator.pt")
    saved({"generator": fold_weight_norm(tensors)}, tmp_path / "plain.pt")
    assert torch.equal(BigVGAN.load(folder)(mel), wanted)
    assert torch.equal(BigVGAN.load(tmp_path / "plain.pt")(mel), wanted)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop("ups.3.0.bias"), "ups.3.0.bias"),
        (lambda tensors: tensors.update({"conv_post.bias": torch.zeros(1)}), "conv_post.bias"),
        (lambda tensors: tensors.update({"conv_post.filter": torch.zeros(1, 1, 12)}), "conv_post.filter"),
        (lambda tensors: tensors.update({"ups.0.0.weight_g": torch.zeros(32, 1, 1)}), "ups.0.0.weight_g"),
        (lambda tensors: tensors.update({"resblocks.18.convs1.0.bias": torch.zeros(2)}), "resblocks.18.convs1.0.bias"),
    ],
    ids=["missing", "unknown", "a filter of nothing", "weight norm over the outputs", "a seventh stage"],
)
def test_a_file_that_is_no_whole_bigvgan_is_refused_by_name(
    change: Callable[[dict[str, Tensor]], object], named: str, tmp_path: Path
) -> None:
    tensors = tiny_tensors()
    change(tensors)
    saved({"generator": tensors}, tmp_path / "bigvgan_generator.pt")
    with pytest.raises(CheckpointError) as caught:
        BigVGAN.load(tmp_path)
    assert caught.value.code == "tensors-mismatch"
    assert named in caught.value.finding.found


def test_a_folder_without_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        BigVGAN.load(tmp_path)
    assert caught.value.code == "base-file-missing"
