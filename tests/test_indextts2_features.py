"""Features of speech for IndexTTS-2: transformers' own numbers, the clip's own length in any batch, strict files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.audio import UNUSABLE, noise, recordings, refuses_unusable
from tests.support.checkpoint_files import saved
from tests.support.shared import shared
from tools.random_bases import make_random_base
from voxgraft.audio.features import pad_rows
from voxgraft.core.errors import CheckpointError, ConfigError, FileError, VoxgraftError
from voxgraft.models import get_family
from voxgraft.models.indextts2.encoder import UnifiedVoiceClipEncoder, W2vBertFeatureExtractor, count_feature_frames
from voxgraft.models.speech_model import load_model

WIDTH, DEPTH, LIMIT = 32, 19, 5e-5


@pytest.fixture(scope="module")
def transformers() -> Any:
    reason = "NOT TESTED: transformers is not installed (pip install 'voxgraft[indextts2]')"
    return pytest.importorskip("transformers", reason=reason)


@pytest.fixture(scope="module")
def network(transformers: Any) -> Any:
    """A small network of w2v-bert's kind, with weights at which every part of it can be heard."""
    torch.manual_seed(0)
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=2, intermediate_size=48
    )
    network = transformers.Wav2Vec2BertModel(config).eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return network


@pytest.fixture(scope="module")
def folder(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as transformers saves it, and statistics beside it."""
    folder = tmp_path_factory.mktemp("w2v-bert")
    network.save_pretrained(folder)
    saved({"mean": noise(WIDTH), "var": noise(WIDTH, 1).abs() + 0.1}, folder / "wav2vec2bert_stats.pt")
    return folder


@pytest.fixture(scope="module")
def features(folder: Path) -> W2vBertFeatureExtractor:
    return W2vBertFeatureExtractor.load(folder, folder)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """The folder with some settings of its config changed."""

    def copy(**changes: Any) -> Path:
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        config = json.loads((folder / "config.json").read_text()) | changes
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return copy


def stock(extractor: Any, network: Any, wave: Tensor, folder: Path) -> Tensor:
    """What the stock recipe gives for one clip: hidden state 17 of the whole network, minus mean, by deviation."""
    inputs = extractor(wave.numpy(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        hidden = network(**inputs, output_hidden_states=True).hidden_states[17][0]
    statistics = torch.load(folder / "wav2vec2bert_stats.pt", weights_only=True)
    found: Tensor = (hidden - statistics["mean"]) / statistics["var"].sqrt()
    return found


@pytest.mark.parametrize("num_samples", [560, 719, 720, 16_000, 16_160, 24_001])
def test_features_are_those_of_the_stock_recipe(
    transformers: Any, network: Any, folder: Path, features: W2vBertFeatureExtractor, num_samples: int
) -> None:
    wave, extractor = noise(num_samples), transformers.SeamlessM4TFeatureExtractor(padding_value=1)
    found, wanted = features.extract([wave])[0], stock(extractor, network, wave, folder)
    assert len(wanted) - len(found) in (0, 1)  # the stock recipe fills up an odd filter bank frame with padding
    assert float((found - wanted[: len(found)]).abs().max()) < LIMIT
    whole = features.extract_reference(wave)  # with the filled-up frame, as the original program has it of a reference
    assert whole.shape == wanted.shape
    assert float((whole - wanted).abs().max()) < LIMIT


def test_a_filled_up_frame_of_the_stock_recipe_is_the_one_that_its_own_mask_leaves_out(transformers: Any) -> None:
    extractor = transformers.SeamlessM4TFeatureExtractor()
    for num_samples in range(560, 2_000, 37):
        inputs = extractor(noise(num_samples).numpy(), sampling_rate=16_000, return_tensors="pt")
        assert count_feature_frames(num_samples) == int(inputs["attention_mask"].sum())


def test_every_clip_has_its_own_length_and_its_own_features_in_any_batch(features: W2vBertFeatureExtractor) -> None:
    clips = recordings()[1:5]
    alone = [features.extract([clip])[0] for clip in clips]
    for batch_frames in (1, 500, 100_000):
        for clip, own, batched in zip(clips, alone, features.extract(clips, batch_frames), strict=True):
            assert own.shape == batched.shape == (count_feature_frames(len(clip)), WIDTH)
            assert float((own - batched).abs().max()) < LIMIT


def test_nothing_of_a_neighbour_leaks_through_the_mask(folder: Path) -> None:
    exact = W2vBertFeatureExtractor.load(folder, folder).double()
    clips = [noise(9_000), noise(20_001, seed=1), noise(560, seed=2), noise(14_400, seed=3)]
    together = exact(*pad_rows([exact.filter_bank(clip).double() for clip in clips]))
    for clip, batched in zip(clips, together, strict=True):
        alone = exact.extract([clip])[0]
        assert float((alone - batched[: len(alone)]).abs().max()) < 1e-10


def test_there_are_fifty_frames_a_second() -> None:
    assert count_feature_frames(16_000 * 36) == 36 * 50 - 1
    assert count_feature_frames(0) == count_feature_frames(559) == 0


def test_silence_has_features(features: W2vBertFeatureExtractor) -> None:
    assert bool(features.extract([torch.zeros(16_000)])[0].isfinite().all())


def test_the_published_statistics_are_read(network: Any) -> None:
    path = shared("real/indextts2/wav2vec2bert_stats.pt")
    from voxgraft.models.indextts2.encoder import _read_statistics

    mean, variance = _read_statistics(path.parent, 1024)
    wanted = torch.load(path, weights_only=True)
    assert torch.equal(mean, wanted["mean"])
    assert torch.equal(W2vBertFeatureExtractor(network, mean, variance).deviation, wanted["var"].sqrt())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model_type", "wav2vec2"),
        ("position_embeddings_type", "rotary"),
        ("num_hidden_layers", 16),
        ("hidden_size", 33),
        ("hidden_size", "32"),
        ("intermediate_size", 1 << 62),
        ("num_attention_heads", 0),
        ("conv_depthwise_kernel_size", 30),
        ("layer_norm_eps", None),
    ],
)
def test_another_networks_config_is_refused(copied: Callable[..., Path], setting: str, value: Any) -> None:
    place = copied(**{setting: value})
    with pytest.raises(ConfigError) as caught:
        W2vBertFeatureExtractor.load(place, place)
    assert caught.value.code == "base-config"
    assert f"{setting} " in caught.value.finding.found
    assert str(place / "config.json") in str(caught.value)


def test_weights_of_another_size_are_refused(copied: Callable[..., Path]) -> None:
    place = copied(intermediate_size=64)
    with pytest.raises(CheckpointError, match=r"is \[48, 32\], not \[64, 32\]"):
        W2vBertFeatureExtractor.load(place, place)


def test_a_missing_file_is_named(copied: Callable[..., Path]) -> None:
    for file in ("wav2vec2bert_stats.pt", "model.safetensors", "config.json"):
        place = copied()
        (place / file).unlink()
        with pytest.raises(FileError, match=file.replace(".", r"\.")):
            W2vBertFeatureExtractor.load(place, place)


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf")])
def test_statistics_that_cannot_be_divided_by_are_refused(copied: Callable[..., Path], variance: float) -> None:
    place = copied()
    spoilt = torch.ones(WIDTH)
    spoilt[3] = variance
    saved({"mean": torch.zeros(WIDTH), "var": spoilt}, place / "wav2vec2bert_stats.pt")
    with pytest.raises(CheckpointError) as caught:
        W2vBertFeatureExtractor.load(place, place)
    assert caught.value.code == "statistics-broken"


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_waveform_that_cannot_be_used_is_refused_by_its_place(features: W2vBertFeatureExtractor, kind: str) -> None:
    refuses_unusable(features.extract, kind)


def test_a_clip_longer_than_the_base_can_speak_is_refused(features: W2vBertFeatureExtractor) -> None:
    with pytest.raises(VoxgraftError) as caught:
        features.extract([noise(580_801)])
    assert caught.value.code == "audio-too-long"


WITHOUT = """
import sys
sys.modules["transformers"] = None  # as Python marks a package that cannot be imported
from pathlib import Path
from voxgraft.core.errors import VoxgraftError
from voxgraft.models.indextts2.encoder import W2vBertFeatureExtractor
try:
    W2vBertFeatureExtractor.load(Path(sys.argv[1]), Path(sys.argv[1]))
except VoxgraftError as error:
    print(error)
"""


@pytest.mark.long
def test_without_transformers_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT, tmp_path], capture_output=True, text=True, check=True)
    assert "package-missing" in run.stdout
    assert "pip install 'voxgraft[indextts2]'" in run.stdout


def test_the_encoder_of_a_base_reads_the_statistics_that_its_config_names(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_random_base("indextts2", base, size="tiny", seed=0)
    (base / "w2v-bert-2.0").mkdir()
    for path in folder.iterdir():
        (base / "w2v-bert-2.0" / path.name).write_bytes(path.read_bytes())
    (base / "wav2vec2bert_stats.pt").unlink()
    saved({"mean": torch.full((WIDTH,), 3.0), "var": torch.ones(WIDTH)}, base / "own_stats.pt")
    config = base / "config.yaml"
    config.write_text(config.read_text().replace("wav2vec2bert_stats.pt", "own_stats.pt"))
    found = get_family("indextts2")
    files = found.files(base)
    encoder = found.encoder(files, load_model(found, files))
    assert isinstance(encoder, UnifiedVoiceClipEncoder)
    assert bool((encoder.features.mean == 3).all())
