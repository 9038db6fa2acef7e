"""IndexTTS-2's s2mel: speech codes and GPT latents to a mel spectrogram in the voice of a prompt.

Latent projection, length regulator, and the flow solver around the estimator (`dit`). The original is under licences
that do not allow copying: this is written from tensor names, shapes, formulas and its outputs.

Shapes: B rows, n codes, G GPT width, P prompt frames, F target frames, T = P + F, M = 80 bands, C content width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.features import exact_float32
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError
from voxgraft.models.base import linear_shapes, norm_shapes, prefix_shapes, require_exact_tensors
from voxgraft.models.indextts2.dit import (
    MAX_FRAMES,
    NUM_MELS,
    TIME_FREQUENCIES,
    DiTSize,
    FlowEstimator,
    build_frame_mask,
)
from voxgraft.models.indextts2.shapes import FEATURE_WIDTH
from voxgraft.nn.layers import SolverGraphs, init_empty_weights, pad_frames

Shape = tuple[int, ...]
# Mel frames for each code: the true ratio is 86.13 / 50 = 1.7227, and the original rounds it.
FRAMES_PER_CODE = np.float32(1.72)
# The published file holds the model's tables under this key, beside an optimizer.
S2MEL_KEY = "net"
NUM_STEPS = 25
GUIDANCE = 0.7
REGULATOR_NORM_EPS = 1e-5
# Where the regulator's convolutions and norms are in its list; Mish has no tensors.
REGULATOR_CONVS, REGULATOR_NORMS, REGULATOR_OUT = (0, 3, 6, 9), (1, 4, 7, 10), 12
REGULATOR_KERNEL = 3
# In the file and never read by the original; skip_in_linear of the first blocks too.
UNREAD_TENSORS = (
    "cfm.estimator.x_embedder.bias",
    "cfm.estimator.x_embedder.weight_g",
    "cfm.estimator.x_embedder.weight_v",
    "cfm.estimator.cond_embedder.weight",
    "cfm.estimator.content_mask_embedder.weight",
    "length_regulator.embedding.weight",
    "length_regulator.mask_token",
    # Tables that the original computes anyway.
    "cfm.estimator.input_pos",
    "cfm.estimator.t_embedder.freqs",
    "cfm.estimator.t_embedder2.freqs",
)


PUBLISHED_DIT = DiTSize()


@dataclass(frozen=True, slots=True)
class S2MelSize:
    """Sizes of s2mel; as published by default."""

    dit: DiTSize = PUBLISHED_DIT
    latents: tuple[int, ...] = (1280, 256, 128, FEATURE_WIDTH)
    """Widths of the latent projection, the GPT's first."""

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], heads: int | None = None) -> S2MelSize:
        """The size that the tensors of a file have; as published where they do not say."""

        def get(name: str, dimensions: int) -> Shape:
            shape = shapes.get(name, ())
            return shape if len(shape) == dimensions and min(shape) > 0 else ()

        estimator = "cfm.estimator."
        layers = {name.split(".")[4] for name in shapes if name.startswith(f"{estimator}transformer.layers.")}
        waves = {name.split(".")[4] for name in shapes if name.startswith(f"{estimator}wavenet.in_layers.")}
        mlp = get(f"{estimator}transformer.layers.0.feed_forward.w1.weight", 2)
        content = get(f"{estimator}cond_projection.weight", 2)
        merged = get(f"{estimator}cond_x_merge_linear.weight", 2)
        wave = get(f"{estimator}wavenet.in_layers.0.conv.conv.weight_v", 3)
        latents = [get(f"gpt_layer.{layer}.weight", 2) for layer in range(3)]
        if not (layers and waves and mlp and content and merged and wave and all(latents)):
            return cls()
        width = content[0]
        heads = heads or min(DiTSize().heads, width)
        dit = DiTSize(
            width=width,
            heads=heads,
            layers=len(layers),
            mlp=mlp[0],
            content=content[1],
            style=max(1, merged[1] - 2 * NUM_MELS - width),
            wavenet_layers=len(waves),
            wavenet_kernel=wave[2],
        )
        return cls(dit, (latents[0][1], *(shape[0] for shape in latents)))


def s2mel_shapes(size: S2MelSize) -> dict[str, Shape]:
    """Names and shapes of every tensor that is read, as the published file has them."""
    dit, d = size.dit, size.dit.width
    estimator: dict[str, Shape] = {}
    for layer in range(dit.layers):
        block = f"transformer.layers.{layer}"
        estimator[f"{block}.attention.wqkv.weight"] = (3 * d, d)
        estimator[f"{block}.attention.wo.weight"] = (d, d)
        estimator[f"{block}.feed_forward.w1.weight"] = (dit.mlp, d)
        estimator[f"{block}.feed_forward.w3.weight"] = (dit.mlp, d)
        estimator[f"{block}.feed_forward.w2.weight"] = (d, dit.mlp)
        for norm in ("ffn_norm", "attention_norm"):
            estimator |= linear_shapes(f"{block}.{norm}.project_layer", 2 * d, d)
            estimator[f"{block}.{norm}.norm.weight"] = (d,)
        if layer > dit.layers // 2:
            estimator |= linear_shapes(f"{block}.skip_in_linear", d, 2 * d)
    estimator |= linear_shapes("transformer.norm.project_layer", 2 * d, d)
    estimator["transformer.norm.norm.weight"] = (d,)
    estimator |= linear_shapes("cond_projection", d, dit.content)
    for embedder in ("t_embedder", "t_embedder2"):
        estimator |= linear_shapes(f"{embedder}.mlp.0", d, 2 * TIME_FREQUENCIES)
        estimator |= linear_shapes(f"{embedder}.mlp.2", d, d)
    estimator |= linear_shapes("conv1", d, d) | linear_shapes("conv2", NUM_MELS, d, 1)
    for layer in range(dit.wavenet_layers):
        last = layer == dit.wavenet_layers - 1
        estimator |= _weight_norm_shapes(f"wavenet.in_layers.{layer}.conv.conv", 2 * d, d, dit.wavenet_kernel)
        estimator |= _weight_norm_shapes(f"wavenet.res_skip_layers.{layer}.conv.conv", d if last else 2 * d, d, 1)
    estimator |= _weight_norm_shapes("wavenet.cond_layer.conv.conv", 2 * d * dit.wavenet_layers, d, 1)
    estimator |= _weight_norm_shapes("final_layer.linear", d, d)
    estimator |= linear_shapes("final_layer.adaLN_modulation.1", 2 * d, d) | linear_shapes("res_projection", d, d)
    estimator |= linear_shapes("skip_linear", d, d + NUM_MELS)
    estimator |= linear_shapes("cond_x_merge_linear", d, 2 * NUM_MELS + d + dit.style)
    regulator: dict[str, Shape] = {}
    for conv, group_norm in zip(REGULATOR_CONVS, REGULATOR_NORMS, strict=True):
        regulator |= linear_shapes(f"model.{conv}", dit.content, dit.content, REGULATOR_KERNEL)
        regulator |= norm_shapes(f"model.{group_norm}", dit.content)
    regulator |= linear_shapes(f"model.{REGULATOR_OUT}", dit.content, dit.content, 1)
    regulator |= linear_shapes("content_in_proj", dit.content, size.latents[-1])
    shapes = prefix_shapes("cfm.estimator", estimator) | prefix_shapes("length_regulator", regulator)
    for layer, (inputs, outputs) in enumerate(zip(size.latents, size.latents[1:], strict=False)):
        shapes |= linear_shapes(f"gpt_layer.{layer}", outputs, inputs)
    return shapes


def _weight_norm_shapes(name: str, outputs: int, inputs: int, *kernel: int) -> dict[str, Shape]:
    ones = (1,) * (1 + len(kernel))
    return {
        f"{name}.bias": (outputs,),
        f"{name}.weight_g": (outputs, *ones),
        f"{name}.weight_v": (outputs, inputs, *kernel),
    }


def is_optional_tensor(name: str, size: S2MelSize) -> bool:
    """Whether the original never reads a tensor, or computes it anyway: a file may hold it or not."""
    if name in UNREAD_TENSORS:
        return True
    unread = range(size.dit.layers // 2 + 1)  # blocks that pop no skip
    blocks = (f"cfm.estimator.transformer.layers.{layer}.skip_in_linear" for layer in unread)
    return name.endswith((".weight", ".bias")) and name.rpartition(".")[0] in blocks


def fold_weight_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weight_g` and `weight_v` as the one weight that they represent; the norm is over all but the first dimension."""
    folded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if kind == "weight_v":
            lengths = tensor.flatten(1).norm(dim=1).view(-1, *[1] * (tensor.dim() - 1))
            folded[f"{stem}.weight"] = tensor * (tensors[f"{stem}.weight_g"] / lengths)
        elif kind != "weight_g":
            folded[name] = tensor
    return folded


class S2Mel(nn.Module):
    """Everything in `s2mel.pth`."""

    def __init__(self, size: S2MelSize | None = None) -> None:
        super().__init__()
        self.size = size or S2MelSize()
        widths = self.size.latents
        # Three layers with nothing between them: one affine map of rank 128, kept as it is stored.
        self.gpt_layer = nn.Sequential(*map(nn.Linear, widths, widths[1:]))
        self.length_regulator = LengthRegulator(widths[-1], self.size.dit.content)
        self.estimator = FlowEstimator(self.size.dit)
        self.graphs = SolverGraphs()
        self.requires_grad_(False).eval()

    @classmethod
    def read_size(cls, path: Path, config: Mapping[Any, Any] | None = None) -> S2MelSize:
        """The size of a file's model; refused, by name, unless it has every tensor and none besides. Reads no values.

        The original drops tensors whose shape differs and fills missing ones with noise; here both are errors.
        """
        from voxgraft.checkpoints.base import ALL_FLOAT_DTYPES
        from voxgraft.checkpoints.load import open_nested_checkpoint

        with open_nested_checkpoint(path, S2MEL_KEY) as checkpoint:
            infos = {_strip_wrapper(name): info for name, info in checkpoint.tensors.items()}
        size = S2MelSize.of({name: info.shape for name, info in infos.items()}, read_num_heads(config or {}, path))
        own = {name: info.shape for name, info in infos.items() if not is_optional_tensor(name, size)}
        require_exact_tensors(own, s2mel_shapes(size), "s2mel", path)
        if non_float := [name for name in own if infos[name].dtype not in ALL_FLOAT_DTYPES]:
            found = f"{non_float[0]} is {infos[non_float[0]].dtype}"
            raise CheckpointError("tensors-mismatch", found, expected="floating-point numbers", where=path)
        if size.dit.width % (2 * size.dit.heads):
            found = f"s2mel is {size.dit.width:,} wide and has {size.dit.heads:,} heads"
            raise ConfigError(
                "base-config",
                found,
                expected="a model width that is a multiple of the number of heads, and an even width per head",
                where=path,
            )
        return size

    @classmethod
    def load(cls, path: Path, config: Mapping[Any, Any] | None = None) -> S2Mel:
        """From the published file, or from safetensors with the same names. `config` is config.yaml, if known."""
        from voxgraft.checkpoints.load import open_nested_checkpoint, read_stored_tensor

        size = cls.read_size(path, config)
        with open_nested_checkpoint(path, S2MEL_KEY) as checkpoint:
            names = {_strip_wrapper(name): name for name in checkpoint.tensors}
            tensors = {name: read_stored_tensor(checkpoint, names[name]).float() for name in s2mel_shapes(size)}
        return cls.from_tensors(size, tensors)

    @classmethod
    def from_tensors(cls, size: S2MelSize, tensors: Mapping[str, Tensor]) -> S2Mel:
        """From tensors under the names of the published file."""
        with init_empty_weights():
            model = cls(size)
        state: dict[str, Tensor] = {}
        for name, tensor in fold_weight_norm(tensors).items():
            short = name.removeprefix("cfm.").replace(".conv.conv.", ".")
            if short.endswith("wavenet.cond_layer.weight"):
                tensor = tensor[..., 0]  # a linear layer here, since the time is the same on every frame
            if short.endswith(".feed_forward.w1.weight"):
                third = tensors[name.replace(".w1.", ".w3.")]
                state[short.replace(".w1.", ".w13.")] = torch.cat([tensor, third])
            elif not short.endswith(".feed_forward.w3.weight"):
                state[short] = tensor
        model.load_state_dict(state, assign=True)
        return model.requires_grad_(False).eval()

    def embed_content(self, embedded: Tensor, latents: Tensor) -> Tensor:
        """What the regulator is fed for the target: code embeddings plus projected latents. [n, 1024], [n, G]"""
        out: Tensor = embedded + self.gpt_layer(latents)
        return out

    @torch.no_grad()
    @exact_float32()
    def solve(
        self,
        prompts: Sequence[FlowPrompt],
        contents: Sequence[Tensor],
        noises: Sequence[Tensor],
        num_steps: int = NUM_STEPS,
        guidance: float = GUIDANCE,
        dtype: torch.dtype | None = None,
    ) -> list[Tensor]:
        """Mels of the targets. Contents [F, C], standard normal noises [M, P + F] -> [M, F] a row

        Each row is what it would be alone. A half-precision `dtype` is for the estimator's matrices and convolutions
        (autocast); mels, times and steps stay float32.
        """
        lengths = [prompt.mel.shape[1] + len(content) for prompt, content in zip(prompts, contents, strict=True)]
        if max(lengths) > MAX_FRAMES:
            found = f"{max(lengths):,} frames of prompt and speech"
            raise AudioError(
                "audio-too-long", found, expected=f"at most {MAX_FRAMES:,}; the model has no more positions"
            )
        device = self.estimator.conv1.weight.device
        longest = max(lengths) if dtype is None else pad_frames(max(lengths), device)

        def stack(rows: Sequence[Tensor]) -> Tensor:
            return torch.stack([F.pad(row, (0, 0, 0, longest - len(row))) for row in rows])

        prompt = stack([flow_prompt.mel.T for flow_prompt in prompts])  # [B, T, M]
        content = stack(
            [torch.cat([flow_prompt.condition, own]) for flow_prompt, own in zip(prompts, contents, strict=True)]
        )
        style = torch.stack([flow_prompt.style for flow_prompt in prompts])  # [B, S]
        x = stack([noise.to(device, torch.float32).T for noise in noises])  # [B, T, M]
        starts = torch.tensor([flow_prompt.mel.shape[1] for flow_prompt in prompts], device=device)[:, None]
        ends = torch.tensor(lengths, device=device)[:, None]
        frame_indices = torch.arange(longest, device=device)
        target = ((frame_indices >= starts) & (frame_indices < ends))[..., None].to(x.dtype)  # [B, T, 1]
        estimator, mask = self.estimator, build_frame_mask(lengths, self.estimator.wavenet.reflect, device, longest)
        rounded = estimator if dtype is None else self.graphs.round_matrices(estimator, dtype)
        condition = estimator.condition(prompt, content, style)  # [B, T, d]
        if guidance > 0:
            # Without prompt, style and content the biases still act.
            nothing = estimator.condition(*(torch.zeros_like(part) for part in (prompt, content, style)))
            condition = torch.cat([condition, nothing])  # [2 B, T, d]
        moments = torch.linspace(0, 1, num_steps + 1, device=device)
        tables = estimator.times(moments[:-1])

        def integrate(x: Tensor, condition: Tensor, target: Tensor, moments: Tensor, *tensors: Tensor) -> Tensor:
            """Nothing in the loop depends on values: a GPU is never waited for, and the loop can be captured."""
            norms, wavenet, final, cosines, sines, *masks = tensors
            own = (masks[0], masks[1]) if masks else None
            x = x * target  # the prompt is seen through its own columns only
            for step in range(num_steps):
                with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
                    times = (norms[step], wavenet[step], final[step])
                    velocity = rounded(x, condition, times, (cosines, sines), own).float()
                if guidance > 0:
                    guided, free = velocity.chunk(2)
                    velocity = (1 + guidance) * guided - guidance * free
                x = (x + (moments[step + 1] - moments[step]) * velocity) * target
            return x

        inputs = (x, condition, target, moments, *tables, *estimator.rotary(longest), *(mask or ()))
        # A model that was moved has other weights at other places, which a captured solver does not know.
        kind = (num_steps, guidance, dtype, estimator.conv1.weight.data_ptr())
        # float32 runs as it is: the exact path has no second way.
        all_frames = x.shape[0] * longest
        x = integrate(*inputs) if dtype is None else self.graphs.run(integrate, kind, *inputs, num_frames=all_frames)
        rows = zip(x, prompts, lengths, strict=True)
        return [row[flow_prompt.mel.shape[1] : length].T.contiguous() for row, flow_prompt, length in rows]


@dataclass(frozen=True, slots=True)
class FlowPrompt:
    """The reference as the solver takes it."""

    mel: Tensor  # [M, P]
    condition: Tensor  # [P, C]
    style: Tensor  # [S]

    def to(self, device: torch.device | str) -> FlowPrompt:
        return replace(self, mel=self.mel.to(device), condition=self.condition.to(device), style=self.style.to(device))


def _strip_wrapper(name: str) -> str:
    """Tables of a model that was trained in parallel have `module.` before their own names."""
    table, _, rest = name.partition(".")
    return f"{table}.{rest.removeprefix('module.')}"


def read_num_heads(config: Mapping[Any, Any], where: str | Path) -> int | None:
    """`s2mel.DiT.num_heads` of config.yaml, the one size that no tensor shows."""
    section: Any = config
    for name in ("s2mel", "DiT"):
        section = section.get(name) if isinstance(section, Mapping) else None
    heads = section.get("num_heads") if isinstance(section, Mapping) else None
    if heads is not None and (type(heads) is not int or not 1 <= heads <= 1024):
        raise ConfigError("base-config", f"s2mel.DiT.num_heads is {heads!r}", expected="a whole number", where=where)
    return heads


def count_target_frames(num_codes: int) -> int:
    """Mel frames of that many codes; the product is rounded to float32, as in the original."""
    return int(np.float32(num_codes) * FRAMES_PER_CODE)


def stretch_index(num_codes: int, num_frames: int) -> NDArray[np.int64]:
    """Which code each frame takes: nearest neighbour in float32. -> [frames]

    Whole-number arithmetic picks other codes for some counts (26, 64, 70, ...), which is audible as a shift.
    """
    scale = np.float32(num_codes / num_frames)
    indices: NDArray[np.int64] = np.floor(np.arange(num_frames, dtype=np.float32) * scale).astype(np.int64)
    return indices.clip(max=num_codes - 1)


class LengthRegulator(nn.Module):
    """Code vectors to mel frames: a linear layer, nearest-neighbour stretching, four convolutions with norms."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.content_in_proj = nn.Linear(inputs, width)
        layers: list[nn.Module] = []
        for _ in REGULATOR_CONVS:
            layers.append(nn.Conv1d(width, width, REGULATOR_KERNEL, padding=REGULATOR_KERNEL // 2))
            layers += [nn.GroupNorm(1, width, eps=REGULATOR_NORM_EPS), nn.Mish()]
        self.model = nn.Sequential(*layers, nn.Conv1d(width, width, 1))

    @torch.no_grad()
    @exact_float32()
    def forward(self, contents: Sequence[Tensor], num_frames: Sequence[int]) -> list[Tensor]:
        """Each clip as if it were alone: [n, 1024] -> [m, C] a clip, m as `num_frames` says

        The norms span a whole clip, so that clips can be neither joined nor cut into chunks. The original stretches a
        batch to its longest row, which is wrong for the others; this does not.
        """
        device = self.content_in_proj.weight.device
        rows = []
        for content, frames in zip(contents, num_frames, strict=True):
            index = torch.from_numpy(stretch_index(len(content), frames)).to(device)
            rows.append(self.content_in_proj(content)[index])  # [m, C]
        if len(rows) == 1 or len(set(num_frames)) == 1:
            x = self.model(torch.stack(rows).transpose(1, 2)).transpose(1, 2)
            return list(x)
        x = nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2)  # [B, C, m]
        counts = torch.tensor(list(num_frames), device=device)
        mask = (torch.arange(x.shape[-1], device=device) < counts[:, None])[:, None].to(x.dtype)  # [B, 1, m]
        for layer in self.model:
            if isinstance(layer, nn.GroupNorm):
                x = _masked_group_norm(x * mask, layer, mask, counts)
            else:
                x = layer(x) * mask
        return [row[:, :frames].T for row, frames in zip(x, num_frames, strict=True)]


def _masked_group_norm(x: Tensor, norm: nn.GroupNorm, mask: Tensor, counts: Tensor) -> Tensor:
    """One group over the frames that a row has. [B, C, m], zero in the padding"""
    size = (counts * x.shape[1])[:, None, None]
    mean = x.sum((1, 2), keepdim=True) / size
    centred = (x - mean) * mask
    variance = centred.square().sum((1, 2), keepdim=True) / size
    normed = centred * (variance + norm.eps).rsqrt()
    return (normed * norm.weight[:, None] + norm.bias[:, None]) * mask
