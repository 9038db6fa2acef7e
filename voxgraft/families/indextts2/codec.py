"""IndexTTS-2's semantic codec (RepCodec): features of speech to one of 8192 codes a frame, 50 a second, and back.

Only the way to the codes and from them (`vq2emb`) is built; the file's `decoder.*` tensors, which turn codes into
features again, are left unread. Tensor names are upstream's. Frozen: it is never trained here.

Shapes: B clips, T frames, C = 1024 features, W width, D = 8 numbers of a code, K = 8192 codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.exact import exact_float32
from voxgraft.audio.waves import batch_by_length, pad_rows
from voxgraft.errors import AudioError
from voxgraft.nn.unfilled import init_empty_weights

__all__ = ["CODEC_FILES", "SemanticCodec", "SemanticCodecSize"]

CODEC_FILES = ("semantic_codec/model.safetensors", "model.safetensors")
"""Where the file lies in the published folder."""
UNUSED_PREFIXES = ("decoder.",)
CONV_KERNEL = 7
NORM_EPS = 1e-6
MAX_CODEC_SIZE = 1 << 16
"""No codec of this kind has a larger dimension; a damaged file can claim any number."""
CODEC_BATCH_FRAMES = 6_000


@dataclass(frozen=True, slots=True)
class SemanticCodecSize:
    """The sizes that may differ; as published by default."""

    width: int = 384
    mlp: int = 2048
    layers: int = 12
    features: int = 1024
    codes: int = 8192
    code_width: int = 8

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> SemanticCodecSize:
        """The size that the tensors of a file have; as published where they do not say."""
        embed = shapes.get("encoder.0.embed.weight", ())
        mlp = shapes.get("encoder.0.convnext.0.pwconv1.weight", ())
        codebook = shapes.get("quantizer.quantizers.0.codebook.weight", ())
        layers = {name.split(".")[3] for name in shapes if name.startswith("encoder.0.convnext.")}
        if (len(embed), len(mlp), len(codebook)) != (3, 2, 2):
            return cls()
        if not all(1 <= size <= MAX_CODEC_SIZE for size in (*embed, *mlp, *codebook)):
            return cls()
        return cls(embed[0], mlp[0], len(layers), embed[1], *codebook)


class SemanticCodec(nn.Module):
    """ConvNeXt blocks over the features, then the nearest entry of a codebook, by angle."""

    def __init__(self, size: SemanticCodecSize | None = None) -> None:
        super().__init__()
        self.size = size or SemanticCodecSize()
        backbone, out = SemanticCodecBackbone(self.size), nn.Linear(self.size.width, self.size.features)
        self.encoder = nn.ModuleList([backbone, out])
        self.quantizer = SemanticQuantizerList(self.size)
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, place: Path) -> SemanticCodec:
        """From a file, or from the published folder that holds it."""
        from voxgraft.families.differences import require_exact_tensors
        from voxgraft.families.tensors import find_part_file, read_tensor_shapes, read_tensors

        path = find_part_file(place, CODEC_FILES)
        stored = {
            name: shape for name, shape in read_tensor_shapes(path).items() if not name.startswith(UNUSED_PREFIXES)
        }
        with init_empty_weights():
            codec = cls(SemanticCodecSize.of(stored))
        shapes = {name: tuple(tensor.shape) for name, tensor in codec.state_dict().items()}
        # Also nothing besides: a codec at another rate has the same tensors and some more.
        require_exact_tensors(stored, shapes, "semantic codec", path)
        codec.load_state_dict(read_tensors(path, shapes), assign=True)
        return codec.requires_grad_(False)

    def encode(self, features: Sequence[Tensor], batch_frames: int = CODEC_BATCH_FRAMES) -> list[NDArray[np.int64]]:
        """The codes of each clip, one a frame, as if it were alone. Normalised features [T, C] a clip."""
        return [self.nearest(latent).cpu().numpy() for latent in self.latents(features, batch_frames)]

    @torch.no_grad()
    def latents(self, features: Sequence[Tensor], batch_frames: int = CODEC_BATCH_FRAMES) -> list[Tensor]:
        """What is compared with the codebook: D numbers for each frame of each clip. -> [T, D] a clip"""
        rows = [
            self._validate_features(clip, f"clip {number} of {len(features)}")
            for number, clip in enumerate(features, 1)
        ]
        found: dict[int, Tensor] = {}
        for places in batch_by_length([len(row) for row in rows], batch_frames):
            batch, mask = pad_rows([rows[place] for place in places])
            latents = self(batch, mask)
            for row, place in enumerate(places):
                found[place] = latents[row, : len(rows[place])].clone()
        return [found[place] for place in range(len(rows))]

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
            likeness = F.normalize(latents, dim=-1) @ codebook.T  # [..., K]
        return likeness.argmax(-1)

    @torch.no_grad()
    def vq2emb(self, codes: Tensor) -> Tensor:
        """What each code stands for, as features. [...] -> [..., C]"""
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
        return cast(SemanticQuantizer, self.quantizer.quantizers[0])

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
        self.embed = nn.Conv1d(size.features, size.width, CONV_KERNEL, padding=CONV_KERNEL // 2)
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
        self.dwconv = nn.Conv1d(width, width, CONV_KERNEL, padding=CONV_KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(width, mlp)
        self.pwconv2 = nn.Linear(mlp, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, W] -> [B, T, W]"""
        near = self.norm(self.dwconv(x.transpose(1, 2)).transpose(1, 2))
        fed: Tensor = self.pwconv2(F.gelu(self.pwconv1(near)))
        return x + self.gamma * fed


class SemanticQuantizerList(nn.Module):
    """Holds the one quantizer under the name that upstream gives it."""

    def __init__(self, size: SemanticCodecSize) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList([SemanticQuantizer(size)])


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
