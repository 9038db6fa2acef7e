"""IndexTTS-2's clip encoder: w2v-bert features, from these codes at 50 a second, and voice and emotion vectors.

An emotion comes from the voice, from another recording, or from eight sliders: rows of `feat2.pt`, chosen by whose
voice in `feat1.pt` is nearest to the speaker's. The original's fourth way, emotion from a text, needs another language
model (a fine-tuned Qwen) and is left out.

All networks run in exact float32 and mask their padding: a clip gives the same result in any batch.

Shapes: B clips, T frames, C = 1024 features, W width of the codec, D numbers of a codebook entry, K entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.features import (
    Waveform,
    WaveformLimits,
    batch_by_length,
    exact_float32,
    run_padded_batches,
    validate_waveforms,
)
from voxgraft.checkpoints.base import ByteSource
from voxgraft.checkpoints.torch_file import read_torch_tensor
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, FileError, GraftError, VoxgraftError
from voxgraft.core.files import is_file
from voxgraft.models.base import REFERENCE_AUDIO, BaseFiles, Clip, ClipEncoder, EmotionSource
from voxgraft.models.indextts2.family import (
    CAMPPLUS_NAME,
    CODEC_NAME,
    CONFIG_NAMED_FILES,
    STATISTICS_NAME,
    W2V_BERT_FILES,
    W2V_BERT_FOLDER,
    get_statistics_name,
)
from voxgraft.models.indextts2.model import (
    UnifiedVoice,
    UnifiedVoiceCondition,
    build_training_condition,
    interpolate_emotion,
)
from voxgraft.models.indextts2.shapes import (
    CODEC_KERNEL,
    FEATURE_WIDTH,
    NUM_SEMANTIC_CODES,
    SEMANTIC_CODE_WIDTH,
    get_config_file_name,
    read_base_config,
)
from voxgraft.nn.layers import init_empty_weights

if TYPE_CHECKING:
    from voxgraft.models.campplus import CAMPPlus

STYLE = "style"
"""Among a voice's arrays: the vector that CAM++ computes of it. [192]"""
SPEAKER_EMOTION = "speaker_emotion"
"""Among a voice's arrays: the emotion that another one is blended with (see `encoder`). [W]"""

EMOTIONS = ("happy", "angry", "sad", "afraid", "disgusted", "melancholic", "surprised", "calm")
# Vectors of each emotion, one after another in the file, unless the config says otherwise.
VECTORS_PER_EMOTION: tuple[int, ...] = (3, 17, 2, 8, 4, 5, 10, 24)
# The original's page weighs the sliders before it hands them on, since some emotions are stronger than others, and
# lets them take at most 0.8 of the whole. Its library does neither.
SLIDER_BIAS = (0.9375, 0.875, 1.0, 1.0, 0.9375, 0.9375, 0.6875, 0.5625)
MAX_SLIDER_SUM = 0.8

Vector = NDArray[np.float32]

UNUSED_PREFIXES = ("decoder.",)
NORM_EPS = 1e-6
# No network here has a larger dimension; a damaged file can claim any number.
MAX_NETWORK_SIZE = 1 << 16
# Frames (50 a second) that go through a network together, padding included.
BATCH_FRAMES = 6_000


@dataclass(frozen=True, slots=True)
class SemanticCodecSize:
    """The sizes that may differ; as published by default."""

    width: int = 384
    mlp: int = 2048
    layers: int = 12
    features: int = FEATURE_WIDTH
    codes: int = NUM_SEMANTIC_CODES
    code_width: int = SEMANTIC_CODE_WIDTH

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> SemanticCodecSize:
        """The size that the tensors of a file have; as published where they do not say."""
        embed = shapes.get("encoder.0.embed.weight", ())
        mlp = shapes.get("encoder.0.convnext.0.pwconv1.weight", ())
        codebook = shapes.get("quantizer.quantizers.0.codebook.weight", ())
        layers = {name.split(".")[3] for name in shapes if name.startswith("encoder.0.convnext.")}
        if (len(embed), len(mlp), len(codebook)) != (3, 2, 2):
            return cls()
        if not all(1 <= size <= MAX_NETWORK_SIZE for size in (*embed, *mlp, *codebook)):
            return cls()
        return cls(embed[0], mlp[0], len(layers), embed[1], *codebook)


class SemanticCodec(nn.Module):
    """ConvNeXt blocks over the features, then the nearest entry of a codebook, by angle."""

    def __init__(self, size: SemanticCodecSize | None = None) -> None:
        super().__init__()
        self.size = size or SemanticCodecSize()
        backbone, out = SemanticCodecBackbone(self.size), nn.Linear(self.size.width, self.size.features)
        self.encoder = nn.ModuleList([backbone, out])
        # Nested under the names that upstream gives them; there is one quantizer.
        self.quantizer = nn.ModuleDict({"quantizers": nn.ModuleList([SemanticQuantizer(self.size)])})
        self.requires_grad_(False).eval()

    @classmethod
    def read_shapes(cls, path: Path) -> tuple[SemanticCodecSize, dict[str, tuple[int, ...]]]:
        """Size and tensors of a file, its decoder left out; refused, by name, unless it has every tensor."""
        from voxgraft.checkpoints.load import read_tensor_shapes
        from voxgraft.models.base import require_exact_tensors

        stored = read_tensor_shapes(path)
        used = {name: shape for name, shape in stored.items() if not name.startswith(UNUSED_PREFIXES)}
        size = SemanticCodecSize.of(used)
        with init_empty_weights():
            shapes = {name: tuple(tensor.shape) for name, tensor in cls(size).state_dict().items()}
        # Also nothing besides: a codec at another rate has the same tensors and some more.
        require_exact_tensors(used, shapes, "semantic codec", path)
        return size, shapes

    @classmethod
    def load(cls, folder: Path) -> SemanticCodec:
        """From a file, or from the published folder that holds it."""
        from voxgraft.checkpoints.load import read_tensors
        from voxgraft.models.speech_model import find_part_file

        path = find_part_file(folder, (CODEC_NAME, Path(CODEC_NAME).name))
        size, shapes = cls.read_shapes(path)
        with init_empty_weights():
            codec = cls(size)
        codec.load_state_dict(read_tensors(path, shapes), assign=True)
        return codec.requires_grad_(False)

    def encode(self, features: Sequence[Tensor], batch_frames: int = BATCH_FRAMES) -> list[NDArray[np.int64]]:
        """The codes of each clip, one a frame, as if it were alone. Normalized features [T, C] a clip."""
        return [self.nearest(latent).cpu().numpy() for latent in self.latents(features, batch_frames)]

    @torch.no_grad()
    def latents(self, features: Sequence[Tensor], batch_frames: int = BATCH_FRAMES) -> list[Tensor]:
        """What is compared with the codebook: D numbers for each frame of each clip. -> [T, D] a clip"""
        rows = [
            self._validate_features(clip, f"clip {number} of {len(features)}")
            for number, clip in enumerate(features, 1)
        ]
        return run_padded_batches(self, rows, batch_frames)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, C], and where the clips are, [B, T] -> [B, T, D]"""
        with exact_float32():
            backbone, out = self.encoder
            latents: Tensor = self._quantizer.in_project(out(backbone(features, mask)))
        return latents

    @torch.no_grad()
    def nearest(self, latents: Tensor) -> Tensor:
        """The code whose entry points most nearly in the same direction. [..., D] -> [...]"""
        codebook = F.normalize(self._quantizer.codebook.weight, dim=-1)  # [K, D]
        with exact_float32():
            similarity = F.normalize(latents, dim=-1) @ codebook.T  # [..., K]
        return similarity.argmax(-1)

    @torch.no_grad()
    def vq2emb(self, codes: Tensor) -> Tensor:
        """What each code means, as features. [...] -> [..., C]"""
        highest = self.size.codes - 1
        if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) > highest):
            found = f"codes from {int(codes.min()):,} to {int(codes.max()):,}"
            raise AudioError("ids-outside", found, expected=f"0 to {highest:,}")
        device = self._quantizer.codebook.weight.device
        with exact_float32():
            embedded: Tensor = self._quantizer.out_project(self._quantizer.codebook(codes.to(device)))
        return embedded

    @property
    def _quantizer(self) -> SemanticQuantizer:
        return cast(SemanticQuantizer, self.quantizer.get_submodule("quantizers.0"))

    def _validate_features(self, features: Tensor, where: str) -> Tensor:
        if features.dim() != 2 or features.shape[1] != self.size.features or not len(features):
            expected = f"[frames, {self.size.features}], at least one frame"
            raise AudioError("features-form", f"features {list(features.shape)}", expected=expected, where=where)
        rows = features.detach().to(self._quantizer.codebook.weight)
        if not bool(rows.isfinite().all()):
            found = "features that are NaN or infinite"
            raise AudioError("features-form", found, expected="finite numbers", where=where)
        return rows


class SemanticCodecBackbone(nn.Module):
    """A convolution and ConvNeXt blocks, all over neighbouring frames."""

    def __init__(self, size: SemanticCodecSize) -> None:
        super().__init__()
        self.embed = nn.Conv1d(size.features, size.width, CODEC_KERNEL, padding=CODEC_KERNEL // 2)
        self.norm = nn.LayerNorm(size.width, eps=NORM_EPS)
        self.convnext = nn.ModuleList(ConvNextBlock(size.width, size.mlp) for _ in range(size.layers))
        self.final_layer_norm = nn.LayerNorm(size.width, eps=NORM_EPS)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C], [B, T] -> [B, T, W]"""
        x = self.norm(self.embed(features.transpose(1, 2)).transpose(1, 2))
        there = None if mask is None else mask[:, :, None]
        for block in self.convnext:
            # Padding is wiped out before every convolution: a clip alone has zeros there.
            x = block(x if there is None else x * there)
        normed: Tensor = self.final_layer_norm(x)
        return normed


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then a feed-forward for each frame, scaled and added."""

    def __init__(self, width: int, mlp: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.dwconv = nn.Conv1d(width, width, CODEC_KERNEL, padding=CODEC_KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(width, mlp)
        self.pwconv2 = nn.Linear(mlp, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] -> [B, T, W]"""
        convolved = self.norm(self.dwconv(x.transpose(1, 2)).transpose(1, 2))
        fed: Tensor = self.pwconv2(F.gelu(self.pwconv1(convolved)))
        return x + self.gamma * fed


class SemanticQuantizer(nn.Module):
    """The codebook and the ways to it and from it."""

    def __init__(self, size: SemanticCodecSize) -> None:
        super().__init__()
        self.in_project = WeightNormLinear(size.features, size.code_width)
        self.out_project = WeightNormLinear(size.code_width, size.features)
        self.codebook = nn.Embedding(size.codes, size.code_width)


class WeightNormLinear(nn.Module):
    """A linear layer stored as the direction and the length of each output's weights (`weight_v`, `weight_g`).

    The shapes are those of the convolution of one frame that upstream has here.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.weight_g = nn.Parameter(torch.ones(outputs, 1, 1))
        self.weight_v = nn.Parameter(torch.randn(outputs, inputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        directions = self.weight_v[:, :, 0]
        lengths = directions.norm(dim=1, keepdim=True)
        return F.linear(x, directions * (self.weight_g[:, :, 0] / lengths), self.bias)


# The features are what comes out of this layer; those behind it are not built.
NUM_USED_LAYERS = 17
SAMPLE_RATE = 16_000
FRAME = 400
HOP = 160
FRAMES_PER_PAIR = 2
# One pair of filter bank frames; 36.3 s, more than which the base's GPT cannot speak.
LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=FRAME + HOP, max_samples=580_800)
# What every published config says; another network would need other code.
REQUIRED_CONFIG_VALUES = {
    "model_type": "wav2vec2-bert",
    "feature_projection_input_dim": 160,
    "hidden_act": "swish",
    "position_embeddings_type": "relative_key",
}
# What may differ; as published where the config does not say.
DEFAULT_CONFIG_SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "left_max_position_embeddings": 64,
    "right_max_position_embeddings": 8,
    "conv_depthwise_kernel_size": 31,
}


def count_feature_frames(num_samples: int) -> int:
    """How many frames of features a clip of that many samples has.

    Filter bank frames are taken in pairs. Of an odd number the last is left out: the original program fills its pair up
    with padding, which no other frame sees.
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
        from voxgraft.checkpoints.load import read_tensors
        from voxgraft.models.speech_model import find_part_file

        library = import_transformers()
        sizes = read_w2v_bert_sizes(w2v_bert / "config.json")
        changed = {"num_hidden_layers": NUM_USED_LAYERS, "apply_spec_augment": False, "mask_time_prob": 0.0}
        with init_empty_weights():
            network: nn.Module = library.Wav2Vec2BertModel(library.Wav2Vec2BertConfig(**sizes | changed))
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        network.load_state_dict(read_tensors(find_part_file(w2v_bert, W2V_BERT_FILES), shapes), assign=True)
        return cls(network.eval(), *_read_statistics(statistics, int(sizes["hidden_size"])))

    @torch.no_grad()
    def extract(self, waves: Sequence[Waveform], batch_frames: int = BATCH_FRAMES) -> list[Tensor]:
        """The features of each clip as if it were alone, `count_feature_frames` of them. -> [T, C] a clip

        16 kHz waveforms. Silence has features like any other sound. `batch_frames` counts padding too.
        """
        rows = [self.filter_bank(wave).to(self.mean) for wave in validate_waveforms(waves, LIMITS)]
        return run_padded_batches(self, rows, batch_frames)

    @torch.no_grad()
    def extract_reference(self, wave: Waveform) -> Tensor:
        """The features of a voice's recording, all that the original program uses. -> [T or T + 1, C]

        An odd last filter bank frame is padded to a pair there, and the features of that pair are taken along although
        its own mask leaves it out. It adds a code to the prompt, which stretches the others: it is reproduced here.
        """
        (samples,) = validate_waveforms([wave], LIMITS)
        found = self._filter_bank(samples.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
        pairs: Tensor = found["input_features"].to(self.mean)  # [1, T or T + 1, A]
        num_frames = count_feature_frames(len(samples))
        mask = (
            torch.arange(pairs.shape[1], device=pairs.device)[None] < num_frames
            if num_frames < pairs.shape[1]
            else None
        )
        features: Tensor = self(pairs, mask)
        return features[0]

    def forward(self, filter_banks: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, A], and where the clips are, [B, T] -> [B, T, C]"""
        there = None if mask is None else mask.long()
        with exact_float32():
            hidden: Tensor = self.network(filter_banks, attention_mask=there).last_hidden_state
        return (hidden - self.mean) / self.deviation

    def filter_bank(self, wave: Tensor) -> Tensor:
        """Pairs of filter bank frames, each band with mean 0 and variance 1 over the clip. [N] -> [T, A]"""
        found = self._filter_bank(wave.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
        # The extractor pads an odd last frame to a pair; that pair is cut off.
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


def read_w2v_bert_sizes(path: Path) -> dict[str, Any]:
    """What the config says of the network; refused where it is not w2v-bert 2.0."""
    from voxgraft.core.files import read_json

    config = read_json(path)
    if not isinstance(config, dict):
        found = f"{path.name} contains a {type(config).__name__}"
        raise ConfigError("base-config", found, expected="keys with values", where=path)
    for name, value in REQUIRED_CONFIG_VALUES.items():
        if config.get(name, value) != value:
            raise ConfigError("base-config", f"{name} is {config[name]!r}", expected=repr(value), where=path)
    sizes: dict[str, Any] = {name: config.get(name, published) for name, published in DEFAULT_CONFIG_SIZES.items()}
    for name, size in sizes.items():
        least = NUM_USED_LAYERS if name == "num_hidden_layers" else 1
        if type(size) is not int or not least <= size <= MAX_NETWORK_SIZE:
            expected = f"a whole number, {least} to {MAX_NETWORK_SIZE:,}"
            raise ConfigError("base-config", f"{name} is {size!r}", expected=expected, where=path)
    if sizes["hidden_size"] % sizes["num_attention_heads"] or sizes["conv_depthwise_kernel_size"] % 2 == 0:
        found = ", ".join(f"{name} {size}" for name, size in sizes.items())
        expected = "a width that is a multiple of the number of heads, and an odd kernel size"
        raise ConfigError("base-config", found, expected=expected, where=path)
    epsilon = config.get("layer_norm_eps", 1e-5)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ConfigError("base-config", f"layer_norm_eps is {epsilon!r}", expected="about 1e-05", where=path)
    return sizes | {"layer_norm_eps": epsilon}


def _read_statistics(folder: Path, width: int) -> tuple[Tensor, Tensor]:
    from voxgraft.checkpoints.load import read_tensors
    from voxgraft.models.speech_model import find_part_file

    path = find_part_file(folder, (STATISTICS_NAME,))
    found = read_tensors(path, {"mean": (width,), "var": (width,)})
    mean, variance = found["mean"], found["var"]
    if not bool(mean.isfinite().all() & variance.isfinite().all() & (variance > 0).all()):
        lowest = float(variance.nan_to_num(float("-inf")).min())
        message = f"the lowest variance is {lowest:.3g}"
        raise CheckpointError("statistics-broken", message, expected="finite means, variances above 0", where=path)
    return mean, variance


# Feature frames (50 a second) that go through the conditioning encoders together.
CONDITIONING_BATCH_FRAMES = 3_000


class UnifiedVoiceClipEncoder(ClipEncoder):
    """w2v-bert, the semantic codec, and the conditioning encoders of the base itself."""

    def __init__(
        self,
        features: W2vBertFeatureExtractor,
        codec: SemanticCodec,
        model: UnifiedVoice,
        speakers: CAMPPlus | None = None,
    ) -> None:
        """`speakers` computes the style that the vocoder and the emotion sliders go by; training needs none."""
        self.features, self.codec, self.model, self.speakers = features, codec, model, speakers

    @classmethod
    def load(cls, files: BaseFiles, model: UnifiedVoice) -> UnifiedVoiceClipEncoder:
        """From the base folder: the statistics that its config names, `w2v-bert-2.0/` and `semantic_codec/`."""
        folder = files.folder
        features = W2vBertFeatureExtractor.load(folder / W2V_BERT_FOLDER, folder / get_statistics_name(files))
        codec = SemanticCodec.load(folder / CODEC_NAME)
        speakers = None
        if is_file(folder / CAMPPLUS_NAME):
            from voxgraft.models.campplus import CAMPPlus

            speakers = CAMPPlus.load(folder / CAMPPLUS_NAME).to(model.device)
        return cls(features.to(model.device), codec.to(model.device), model, speakers)

    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        features = self.features.extract(waves)
        codes = self.codec.encode(features)
        clips: dict[int, Clip] = {}
        for indices in batch_by_length([len(clip) for clip in features], CONDITIONING_BATCH_FRAMES):
            batch = [features[index] for index in indices]
            latents = self.model.batch_speaker_latents(batch).float().cpu().numpy()
            emotions = self.model.batch_emotion_vectors(batch).float().cpu().numpy()
            for index, voice, emotion in zip(indices, latents, emotions, strict=True):
                clips[index] = Clip(codes[index], {"latents": voice, "emotion": emotion})
        return [clips[index] for index in range(len(features))]

    def encode_voice(self, samples: NDArray[np.float32], rate: int) -> Clip:
        """A recording as a voice to speak with: at most 15 s, and resampled as the original does it.

        The voice's own emotion comes from the direct 16 kHz signal. Where another emotion is blended in, the original
        starts from the emotion of the speaker's signal instead, which went through two resamplers; so both are kept.
        """
        from voxgraft.models.indextts2.vocoder import prepare_reference

        wave, wave_16k, emotion_16k = prepare_reference(samples, rate)
        speaker = self.features.extract_reference(wave_16k)
        emotion = self.features.extract_reference(emotion_16k)
        voice: dict[str, NDArray[Any]] = {
            "latents": self.model.speaker_latents(speaker).float().cpu().numpy(),
            "emotion": self.model.emotion_vector(emotion).float().cpu().numpy(),
            SPEAKER_EMOTION: self.model.emotion_vector(speaker).float().cpu().numpy(),
            REFERENCE_AUDIO: wave,
        }
        if self.speakers is not None:
            voice[STYLE] = self.speakers.embed([wave_16k])[0].float().cpu().numpy()
        return Clip(self.codec.encode([speaker])[0], voice)


def build_unified_voice_condition(
    prompt: Clip, target: Clip | None, emotion_from: EmotionSource
) -> UnifiedVoiceCondition:
    """The voice of the prompt, and the emotion of the clip to be learned or of the prompt."""
    voice = _condition_from_clip(prompt)
    return voice if target is None else build_training_condition(voice, _condition_from_clip(target), emotion_from)


def blend_emotion(condition: UnifiedVoiceCondition, other: Clip, weight: float) -> UnifiedVoiceCondition:
    """Between the emotion that the condition has (0) and that of another clip (1)."""
    own = np.asarray(condition.emotion if condition.speaker_emotion is None else condition.speaker_emotion)
    target = np.asarray(other.voice["emotion"])
    if target.shape != own.shape:
        found = f"an emotion of shape {list(target.shape)}"
        raise GraftError("condition-form", found, expected=f"{list(own.shape)}, as in the base")
    merged = interpolate_emotion(torch.from_numpy(own.copy()), torch.from_numpy(target.copy()), weight)
    return replace(condition, emotion=merged.float().numpy())


def _condition_from_clip(clip: Clip) -> UnifiedVoiceCondition:
    return UnifiedVoiceCondition(
        np.asarray(clip.voice["latents"]), np.asarray(clip.voice["emotion"]), clip.voice.get(SPEAKER_EMOTION)
    )


@dataclass(frozen=True, slots=True)
class EmotionTable:
    """`feat1.pt` and `feat2.pt`: voices, and the emotion vector that goes with each."""

    voices: Vector  # [K, S]
    vectors: Vector  # [K, W]
    counts: tuple[int, ...] = VECTORS_PER_EMOTION

    def choose_rows(self, style: NDArray[np.floating]) -> list[int]:
        """Of each emotion, the row whose voice has the greatest cosine with a style; the first of equal ones. [S]"""
        voices, target = self.voices.astype(np.float64), np.asarray(style, np.float64)
        lengths = np.linalg.norm(voices, axis=1) * np.linalg.norm(target)
        similarity = voices @ target / np.maximum(lengths, 1e-8)
        return [first + int(similarity[first:last].argmax()) for first, last in pairwise([0, *accumulate(self.counts)])]

    def blend(self, shares: Sequence[float], style: NDArray[np.floating], own: Vector) -> Vector:
        """Shares of the eight, and of the voice's own emotion what they leave of 1. [S], [W] -> [W]

        As in the original's library, nothing is capped here: beyond a sum of 1 the voice's own emotion gets a negative
        weight, which changes the sound and so is reproduced. Sliders never get there (`weigh_sliders`).
        """
        chosen = self.vectors[self.choose_rows(style)]  # [8, W]
        weights = np.asarray(shares, np.float32)
        mixed: Vector = (weights[:, None] * chosen).sum(0) + (np.float32(1) - weights.sum()) * own
        return mixed.astype(np.float32)

    @classmethod
    def load(cls, files: BaseFiles) -> EmotionTable:
        """From the base folder, under the names that its config gives."""
        config = files.config
        settings = read_base_config(config) if config is not None else {}
        emotion_counts, counts = settings.get("emo_num"), VECTORS_PER_EMOTION
        if (
            isinstance(emotion_counts, list)
            and len(emotion_counts) == len(EMOTIONS)
            and all(type(n) is int and n > 0 for n in emotion_counts)
        ):
            counts = tuple(emotion_counts)

        def read(key: str) -> Vector:
            published, what = CONFIG_NAMED_FILES[key]
            name = get_config_file_name(settings, key, config) if config is not None else None
            return read_emotion_matrix(files.folder / (name or published), what, sum(counts))

        return cls(read("spk_matrix"), read("emo_matrix"), counts)


def read_emotion_matrix(path: Path, what: str, rows: int) -> Vector:
    """A file that holds one matrix, as `feat1.pt` and `feat2.pt` do. [rows, width]"""
    if not is_file(path):
        cure = "copy the file into the base folder (`voxgraft download indextts2` downloads it), or give a recording."
        raise FileError("base-file-missing", f"{path.name}, {what}, is missing from the base", where=path, cure=cure)
    source = ByteSource(path)
    try:
        matrix = np.asarray(read_torch_tensor(source), dtype=np.float32)
    finally:
        source.close()
    if matrix.ndim != 2 or len(matrix) != rows or not np.isfinite(matrix).all():
        found, expected = f"{path.name} has shape {list(matrix.shape)}", f"{rows} vectors of finite numbers"
        raise CheckpointError("tensors-mismatch", found, expected=expected, where=path)
    return matrix


def weigh_sliders(sliders: Sequence[float], *, bias: bool = True) -> list[float]:
    """Sliders as the original's page hands them on: weighed, and brought down where they take more than 0.8."""
    shares = [value * weight for value, weight in zip(sliders, SLIDER_BIAS, strict=True)] if bias else list(sliders)
    total = sum(shares)
    return [share * (MAX_SLIDER_SUM / total) for share in shares] if total > MAX_SLIDER_SUM else shares


def scale_shares(shares: Sequence[float], weight: float) -> list[float]:
    """Shares times the strength, from 0 to 1; cut to four decimals unless it is 1, as in the original."""
    weight = min(max(weight, 0.0), 1.0)
    return list(shares) if weight == 1 else [int(share * weight * 10_000) / 10_000 for share in shares]


def mix_emotions(files: BaseFiles, sliders: Sequence[float], weight: float, voice: Clip) -> Clip:
    """The emotion of a voice with eight sliders set, each from 0 to 1; `weight` is the strength of all of them.

    A slider outside of 0 to 1, or none that is set, is a mistake of the user and refused; the original takes both.
    """
    if len(sliders) != len(EMOTIONS) or not all(0 <= slider <= 1 for slider in sliders) or not any(sliders):
        found = ", ".join(f"{slider:g}" for slider in sliders)
        raise ConfigError(
            "manner-unknown", f"the emotions {found}", expected=f"a number from 0 to 1 for {', '.join(EMOTIONS)}"
        )
    table, own = EmotionTable.load(files), np.asarray(voice.voice["emotion"], np.float32)
    if STYLE not in voice.voice:
        raise GraftError("emotion-voice", "no stored voice can be selected for the eight emotions", where=files.folder)
    style = np.asarray(voice.voice[STYLE], np.float32)
    if table.voices.shape[1:] != style.shape or table.vectors.shape[1:] != own.shape:
        found = f"emotion files {list(table.voices.shape)} and {list(table.vectors.shape)}"
        expected = f"{len(style)} and {len(own)} wide, as in the voice and the base"
        raise CheckpointError("tensors-mismatch", found, expected=expected, where=files.folder)
    vector = table.blend(scale_shares(weigh_sliders(sliders), weight), style, own)
    return Clip(voice={"emotion": vector})
