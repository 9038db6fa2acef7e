"""IndexTTS-2's features of speech: w2v-bert 2.0 after its 17th layer, normalised by the base's statistics; 50 a second.

Takes 16 kHz and does not resample; the stock program goes through 24 kHz first, and so must whoever wants its numbers.
The network is transformers' (an optional package); its files are read by our own reader. Frozen: never trained here.

Shapes: B clips, N samples, T frames, A = 160 numbers of a pair of filter bank frames, C = 1024 features.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from voxgraft.audio.exact import exact_float32
from voxgraft.audio.waves import Waveform, WaveformLimits, batch_by_length, pad_rows, validate_waveforms
from voxgraft.errors import CheckpointError, ConfigError, VoxgraftError
from voxgraft.nn.unfilled import init_empty_weights

__all__ = ["STATISTICS_FILES", "W2vBertFeatureExtractor", "count_feature_frames"]

STATISTICS_FILES = ("wav2vec2bert_stats.pt",)
"""Name of the file with mean and variance in a base folder."""
W2V_BERT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of the file in the folder of w2v-bert 2.0."""

NUM_USED_LAYERS = 17
"""The features are what comes out of this layer; those behind it are not built."""
SAMPLE_RATE = 16_000
FRAME = 400
HOP = 160
FRAMES_PER_PAIR = 2
LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=FRAME + HOP, max_samples=580_800)
"""One pair of filter bank frames; 36.3 s, more than which the base's GPT cannot speak."""
FEATURE_BATCH_FRAMES = 6_000
MAX_W2V_BERT_SIZE = 1 << 16
"""No network of this kind has a larger dimension; a damaged file can claim any number."""
REQUIRED_CONFIG_VALUES = {
    "model_type": "wav2vec2-bert",
    "feature_projection_input_dim": 160,
    "hidden_act": "swish",
    "position_embeddings_type": "relative_key",
}
"""What every published config says; another network would need other code."""
DEFAULT_CONFIG_SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "left_max_position_embeddings": 64,
    "right_max_position_embeddings": 8,
    "conv_depthwise_kernel_size": 31,
}
"""What may differ; as published where the config does not say."""


def count_feature_frames(num_samples: int) -> int:
    """How many frames of features a clip of that many samples has.

    Filter bank frames are taken in pairs. Of an odd number the last is left out: the stock program fills its pair up
    with padding, which no other frame hears.
    """
    return max(0, 1 + (num_samples - FRAME) // HOP) // FRAMES_PER_PAIR


class W2vBertFeatureExtractor(nn.Module):
    """w2v-bert 2.0 cut after the layer that is needed, with the statistics."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, mean: Tensor, variance: Tensor) -> None:
        """`network` takes features [B, T, A] and a mask; mean and variance are [C]."""
        super().__init__()
        self.network = network
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", variance.sqrt())
        self._filter_bank = import_transformers().SeamlessM4TFeatureExtractor()
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, w2v_bert: Path, statistics: Path) -> W2vBertFeatureExtractor:
        """From the folder of w2v-bert 2.0, and from the statistics file or the base folder that holds it."""
        network, width = _load_w2v_bert(w2v_bert)
        return cls(network, *_read_statistics(statistics, width))

    @torch.no_grad()
    def extract(self, waves: Sequence[Waveform], batch_frames: int = FEATURE_BATCH_FRAMES) -> list[Tensor]:
        """The features of each clip, as many frames as `count_feature_frames` says and as if it were alone. -> [T, C] a clip

        16 kHz waveforms. Silence has features like any other sound. `batch_frames` counts padding too.
        """
        rows = [self.filter_bank(wave).to(self.mean) for wave in validate_waveforms(waves, LIMITS)]
        found: dict[int, Tensor] = {}
        for places in batch_by_length([len(row) for row in rows], batch_frames):
            features = self(*pad_rows([rows[place] for place in places]))
            for row, place in enumerate(places):
                found[place] = features[row, : len(rows[place])].clone()
        return [found[place] for place in range(len(rows))]

    def forward(self, filter_banks: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, A], and where the clips are, [B, T] -> [B, T, C]"""
        there = None if mask is None else mask.long()
        with exact_float32():
            hidden: Tensor = self.network(filter_banks, attention_mask=there).last_hidden_state
        return (hidden - self.mean) / self.deviation

    def filter_bank(self, wave: Tensor) -> Tensor:
        """Pairs of filter bank frames, each band with mean 0 and variance 1 over the clip. [N] -> [T, A]"""
        found = self._filter_bank(wave.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
        pairs: Tensor = found["input_features"][0]
        return pairs[: count_feature_frames(len(wave))]


def import_transformers() -> Any:
    """The optional package, or an error that says how to get it."""
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        found = f"the package {error.name} is not installed"
        cure = "pip install 'voxgraft[indextts2]'"
        raise VoxgraftError("package-missing", found, expected="transformers", cure=cure) from None


def _load_w2v_bert(folder: Path) -> tuple[nn.Module, int]:
    from voxgraft.families.tensors import find_part_file, read_tensors

    library = import_transformers()
    sizes = _read_w2v_bert_sizes(folder / "config.json")
    changed = {"num_hidden_layers": NUM_USED_LAYERS, "apply_spec_augment": False, "mask_time_prob": 0.0}
    config = library.Wav2Vec2BertConfig(**sizes | changed)
    with init_empty_weights():
        network: nn.Module = library.Wav2Vec2BertModel(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    network.load_state_dict(read_tensors(find_part_file(folder, W2V_BERT_FILES), shapes), assign=True)
    return network.eval(), int(sizes["hidden_size"])


def _read_w2v_bert_sizes(path: Path) -> dict[str, Any]:
    """What the config says of the network; refused where it is not w2v-bert 2.0."""
    from voxgraft.files import read_json

    said = read_json(path)
    if not isinstance(said, dict):
        found = f"{path.name} holds a {type(said).__name__}"
        raise ConfigError("base-config", found, expected="settings by name", where=path)
    for name, value in REQUIRED_CONFIG_VALUES.items():
        if said.get(name, value) != value:
            raise ConfigError("base-config", f"{name} is {said[name]!r}", expected=repr(value), where=path)
    sizes: dict[str, Any] = {name: said.get(name, published) for name, published in DEFAULT_CONFIG_SIZES.items()}
    for name, size in sizes.items():
        least = NUM_USED_LAYERS if name == "num_hidden_layers" else 1
        if type(size) is not int or not least <= size <= MAX_W2V_BERT_SIZE:
            expected = f"a whole number, {least} to {MAX_W2V_BERT_SIZE:,}"
            raise ConfigError("base-config", f"{name} is {size!r}", expected=expected, where=path)
    if sizes["hidden_size"] % sizes["num_attention_heads"] or sizes["conv_depthwise_kernel_size"] % 2 == 0:
        found = ", ".join(f"{name} {size}" for name, size in sizes.items())
        expected = "heads that share the width evenly, and an odd kernel"
        raise ConfigError("base-config", found, expected=expected, where=path)
    epsilon = said.get("layer_norm_eps", 1e-5)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ConfigError("base-config", f"layer_norm_eps is {epsilon!r}", expected="about 1e-05", where=path)
    return sizes | {"layer_norm_eps": epsilon}


def _read_statistics(place: Path, width: int) -> tuple[Tensor, Tensor]:
    from voxgraft.families.tensors import find_part_file, read_tensors

    path = find_part_file(place, STATISTICS_FILES)
    found = read_tensors(path, {"mean": (width,), "var": (width,)})
    mean, variance = found["mean"], found["var"]
    if not bool(mean.isfinite().all() & variance.isfinite().all() & (variance > 0).all()):
        lowest = float(variance.nan_to_num(float("-inf")).min())
        told = f"the lowest variance is {lowest:.3g}"
        raise CheckpointError("statistics-broken", told, expected="finite means, variances above 0", where=path)
    return mean, variance
