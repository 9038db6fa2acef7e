"""One step of decoding: from logits to the next code, and a backbone's fused step on CUDA.

Sampling follows the order of the originals, and nothing here waits for the device: guidance, repetition penalty,
temperature, top-k, min-p, top-p, draw. The fused step runs Triton kernels over packed weights. Needs torch only.

Shapes: N streams, V speech rows, R rows of the cache, W width.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.core.errors import ConfigError
from voxgraft.nn.adapter import LoraLayer, compute_merged_weight
from voxgraft.nn.attention import KVCache
from voxgraft.nn.backbones import Backbone, Gpt2Backbone, LlamaBackbone
from voxgraft.nn.layers import TransposedLinear

# Below this, logits divided by it could leave the range of numbers; 0 asks for the best code outright.
MIN_TEMPERATURE = 0.001


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How codes are drawn. Temperature 0 takes the best one."""

    temperature: float = 0.8
    top_k: int = 0
    """Only this many of the best codes; 0 is all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    guidance: float = 0.0
    """How far to go from the reading without text towards the one with it; 0 is the plain reading."""
    max_codes: int = 1000
    readable: bool = True
    """Only codes that the speech decoder can read, and stop. Off, the original program's own choice."""
    stock: bool = True
    """Begin and count positions as the original program does."""

    def __post_init__(self) -> None:
        wrong = {
            "temperature": self.temperature != 0 and not MIN_TEMPERATURE <= self.temperature < float("inf"),
            "top_k": self.top_k < 0,
            "top_p": not 0 < self.top_p <= 1,
            "min_p": not 0 <= self.min_p < 1,
            "repetition_penalty": not 0 < self.repetition_penalty < float("inf"),
            "guidance": not 0 <= self.guidance < float("inf"),
            "max_codes": self.max_codes < 1,
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError("sampling", f"{name} is {getattr(self, name)}", expected=_EXPECTED_RANGES[name])


_EXPECTED_RANGES = {
    "temperature": f"0, or {MIN_TEMPERATURE} or more",
    "top_k": "0 or more",
    "top_p": "above 0, at most 1",
    "min_p": "0 or more, below 1",
    "repetition_penalty": "above 0 (1 is none)",
    "guidance": "0 or more",
    "max_codes": "1 or more",
}


def apply_guidance(logits: Tensor, guidance: float) -> Tensor:
    """Rows with text, then the same rows without it -> one row a stream. [2 N, V] -> [N, V]"""
    with_text, without = logits.chunk(2)
    return with_text + guidance * (with_text - without)


def apply_repetition_penalty(logits: Tensor, seen_codes: Tensor, penalty: float) -> Tensor:
    """Codes heard before are made less likely, once each. [N, V], [N, V] bool -> [N, V]"""
    if penalty == 1.0:
        return logits
    return torch.where(seen_codes, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def filter_logits(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Logits after temperature and the cuts; what is cut is minus infinity. [N, V] -> [N, V]"""
    if sampling.temperature == 0:
        return logits
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        # Ties with the last of the k stay, as in transformers.
        lowest = logits.topk(sampling.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if sampling.min_p > 0:
        shares = logits.softmax(-1)
        logits = logits.masked_fill(shares < sampling.min_p * shares.amax(-1, keepdim=True), -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True)
        shares = ordered.softmax(-1)
        beyond = shares.cumsum(-1) - shares >= sampling.top_p  # what is needed to reach the share stays
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return logits


def sample_codes(logits: Tensor, noise: Tensor | None) -> Tensor:
    """The code of each stream. `noise` holds exponential draws; without it the best code is taken. [N, V] -> [N]"""
    if noise is None:
        return logits.argmax(-1)
    # argmax(p / exponential noise) draws with probability p, like torch.multinomial but without waiting for the device.
    return (logits.softmax(-1) / noise).argmax(-1)


LLAMA_BLOCK_MODULES = (
    ("input_layernorm",),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("post_attention_layernorm",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
GPT2_BLOCK_MODULES = (("ln_1",), ("attn.c_attn",), ("attn.c_proj",), ("ln_2",), ("mlp.c_fc",), ("mlp.c_proj",))


@dataclass(frozen=True, slots=True)
class BackboneKind:
    """What a body computes, apart from its weights."""

    norm: Literal["rms", "layer"]
    activation: Literal["gated", "gelu"]
    mlp: int
    eps: float
    frequencies: Tensor | None  # [D / 2] of rotary positions; None where the backbone has none


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A linear layer [O, I] or a norm [W]; layers that read the same vector are one.

    `moments` of a layer after a layer norm: its weights times the norm's scale, and its weights times the norm's shift
    plus its own bias, so that a norm can be applied after the product. [2, O] float32
    """

    weight: Tensor
    bias: Tensor | None = None
    moments: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """One block: norm, one projection to query, key and value, the way back; norm, up (gates, then values), down."""

    first_norm: PackedLayer
    qkv: PackedLayer
    out: PackedLayer
    second_norm: PackedLayer
    up: PackedLayer
    down: PackedLayer


def get_backbone_kind(body: Backbone) -> BackboneKind | None:
    """What kind of body this is; None for one that the fast step does not know."""
    if isinstance(body, LlamaBackbone):
        frequencies = body.frequencies_on(body.norm.weight.device)
        return BackboneKind("rms", "gated", body.size.mlp, body.size.eps, frequencies)
    if isinstance(body, Gpt2Backbone):
        return BackboneKind("layer", "gelu", 4 * body.size.width, body.size.eps, None)
    return None


class PackedBackbone:
    """A copy of a backbone's weights for the kernels. `refresh` updates it in place: graphs keep pointers."""

    def __init__(self, body: Backbone, dtype: torch.dtype) -> None:
        kind = get_backbone_kind(body)
        assert kind is not None
        self.kind, self.dtype = kind, dtype
        self.num_heads, self.head_width = body.num_heads, body.head_width
        self.width = body.num_heads * body.head_width
        self._version = _weights_version(body)
        *blocks, [[final_norm]] = iter_block_modules(body)
        self.blocks = [_pack_block(modules, dtype) for modules in blocks]
        self.final_norm = _pack_layer([final_norm], dtype)

    def refresh(self, body: Backbone) -> None:
        """Copy the backbone's weights again if one of them, or whether the adapter acts, has changed."""
        state = _weights_version(body)
        if state == self._version:
            return
        *blocks, [[final_norm]] = iter_block_modules(body)
        for block, modules in zip(self.blocks, blocks, strict=True):
            # One block at a time, so that no second copy of the whole backbone exists.
            fresh = _pack_block(modules, self.dtype)
            for field in fields(PackedBlock):
                _copy_layer(getattr(block, field.name), getattr(fresh, field.name))
        _copy_layer(self.final_norm, _pack_layer([final_norm], self.dtype))
        self._version = state


def iter_block_modules(body: Backbone) -> Iterator[list[list[nn.Module]]]:
    """The modules of each block, in the order of `PackedBlock`; last the final norm on its own."""
    assert isinstance(body, LlamaBackbone | Gpt2Backbone)
    is_llama = isinstance(body, LlamaBackbone)
    for block in body.blocks:
        names = LLAMA_BLOCK_MODULES if is_llama else GPT2_BLOCK_MODULES
        yield [[block.get_submodule(name) for name in group] for group in names]
    yield [[body.norm if isinstance(body, LlamaBackbone) else body.ln_f]]


def _pack_block(modules: list[list[nn.Module]], dtype: torch.dtype) -> PackedBlock:
    first_norm, qkv, out, second_norm, up, down = (_pack_layer(group, dtype) for group in modules)
    return PackedBlock(first_norm, _fold_norm(first_norm, qkv), out, second_norm, _fold_norm(second_norm, up), down)


@torch.no_grad()
def _pack_layer(modules: Sequence[nn.Module], dtype: torch.dtype) -> PackedLayer:
    weights = []
    for module in modules:
        # With the adapter folded in where its gate is open: the kernels know one weight only.
        acts = isinstance(module, LoraLayer) and module.gate.on
        weight = compute_merged_weight(module) if isinstance(module, LoraLayer) and acts else module.weight
        assert isinstance(weight, Tensor)
        weights.append(weight.T if isinstance(module, TransposedLinear) else weight)  # [O, I]; a norm's [W]
    biases = [bias for module in modules if isinstance(bias := getattr(module, "bias", None), Tensor)]
    return PackedLayer(
        weight=torch.cat(weights).to(dtype).contiguous(),
        bias=torch.cat(biases).to(dtype) if biases else None,
    )


def _fold_norm(norm: PackedLayer, layer: PackedLayer) -> PackedLayer:
    if norm.bias is None:
        return layer
    # W (scale * (x - mean) / spread + shift) + b, with the parts that do not depend on x computed here.
    weight = layer.weight.float()
    shifted = weight @ norm.bias.float()
    if layer.bias is not None:
        shifted += layer.bias.float()
    return PackedLayer(layer.weight, layer.bias, torch.stack([weight @ norm.weight.float(), shifted]))


def _copy_layer(part: PackedLayer, fresh: PackedLayer) -> None:
    for field in fields(PackedLayer):
        held, new = getattr(part, field.name), getattr(fresh, field.name)
        if held is not None:
            held.copy_(new)


def _weights_version(body: Backbone) -> tuple[object, ...]:
    """Changes whenever a weight is written to or replaced, or a gate is opened or closed."""
    # `_version` counts in-place writes, and the pointer changes when a parameter is replaced: no weight is read.
    gates = {module.gate.on for module in body.modules() if isinstance(module, LoraLayer)}
    return (frozenset(gates), *((parameter.data_ptr(), parameter._version) for parameter in body.parameters()))


# Up to here a thread has registers for the rows beside the weights that it reads; beyond, tensor cores are faster.
MAX_GEMV_ROWS = 2
# Numbers of half precision that a thread reads at once.
LANE_WIDTH = 8
# Numbers that a warp reads at once.
WARP_WIDTH = 32 * LANE_WIDTH
# Tiles of a line are unrolled in the kernels' code; more would make it too long.
MAX_TILES_PER_LINE = 32
# With few rows, positions are cut into so many parts, so that the whole device is busy.
NUM_CACHE_SPLITS = 4
# Programs of one warp that fit beside each other with the weights in their registers.
PROGRAMS_PER_SM = 12


def supports_fused_decode(body: Backbone, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `FusedDecodeStep` can step this body here; if not, `DecodeSession` does it anywhere."""
    kind = get_backbone_kind(body)
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None or kind is None:
        return False
    if dtype not in (torch.bfloat16, torch.float16) or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    heads_fit = body.head_width >= 2 * LANE_WIDTH and _power_of_two_divisor(body.head_width) == body.head_width
    widths = (body.num_heads * body.head_width, kind.mlp)
    return heads_fit and all(map(is_supported_width, widths))


def is_supported_width(width: int) -> bool:
    """Whether a line of so many numbers is a few tiles of whole lanes each."""
    tile = min(_power_of_two_divisor(width), WARP_WIDTH)
    return tile >= LANE_WIDTH and width // tile <= MAX_TILES_PER_LINE


# What adapters add to a product: its result [R, O] and input [R, I], the block's number and the product's name.
RowAdapters = Callable[[Tensor, Tensor, int, str], Tensor]


class FusedDecodeStep:
    """The step of one body over one cache. Everything it needs is allocated once, so that it can be captured."""

    def __init__(self, body: PackedBackbone, memory: KVCache, adapters: RowAdapters | None = None) -> None:
        """`adapters` give each row its own; the packed weights are then the base's."""
        self.body, self.cache, self._adapters = body, memory, adapters
        self.num_rows, self._few = memory.num_rows, memory.num_rows <= MAX_GEMV_ROWS and adapters is None
        weight, rows, width = body.final_norm.weight, memory.num_rows, body.width
        device = torch.cuda.get_device_properties(weight.device)
        self._early = device.major >= 9  # programmatic dependent launch exists from Hopper on
        self._programs = PROGRAMS_PER_SM * device.multi_processor_count
        # The residual, and what its rounding lost: in half precision dozens of small sums would drift (Kahan).
        self._x = weight.new_zeros(2, rows, width)
        self._splits = NUM_CACHE_SPLITS if self._few else 1
        self._mixed = weight.new_empty(self._splits, rows, width)
        self._lse = weight.new_empty(self._splits, rows, body.num_heads, dtype=torch.float32)
        self._hidden = weight.new_empty(rows, body.kind.mlp)
        self._normed = weight.new_empty(rows, width)
        self._nothing = weight.new_zeros(rows, width)
        # Cosines and sines of every position, [S, D]; a backbone without rotary positions never reads it.
        self._rotation = torch.zeros(1, device=weight.device)
        if body.kind.frequencies is not None:
            positions = torch.arange(memory.length, device=weight.device)
            angles = positions[:, None] * body.kind.frequencies.to(weight.device).float()
            self._rotation = torch.cat([angles.cos(), angles.sin()], 1)

    def __call__(self, vectors: Tensor) -> Tensor:
        """The backbone's output for one more vector in every row, which `cache.filled` counts already.

        Fewer vectors than rows are taken again and again. [R, W] or [a divisor of R, W] -> [R, W], valid until the next
        call.
        """
        self._x[0].view(-1, *vectors.shape).copy_(vectors)
        self._x[1].zero_()
        if not self._few:
            # Many rows: matrix products on tensor cores, which cuBLAS does best, and our kernels between them.
            y = self._nothing
            for layer, block in enumerate(self.body.blocks):
                self._add_norm(y, block.first_norm)
                self._attend(layer, self._product(self._normed, block.qkv, layer, "qkv"))
                self._add_norm(self._product(self._mixed[0], block.out, layer, "out"), block.second_norm)
                self._activate(self._product(self._normed, block.up, layer, "up"))
                y = self._product(self._hidden, block.down, layer, "down")
            self._add_norm(y, self.body.final_norm)
            return self._normed
        # Few rows: every product only reads its weights once, so norms, sums and activations ride along with them.
        qkv = self._normed.new_empty(self.num_rows, 3 * self.body.width, dtype=torch.float32)
        for layer, block in enumerate(self.body.blocks):
            self._normed_linear(block.first_norm, block.qkv, qkv, "none")
            self._attend(layer, qkv)
            self._mixed_linear(block.out)
            self._normed_linear(block.second_norm, block.up, self._hidden, self.body.kind.activation)
            self._added_linear(self._hidden, block.down)
        self._add_norm(self._nothing, self.body.final_norm)
        return self._normed

    def _product(self, x: Tensor, part: PackedLayer, layer: int, name: str) -> Tensor:
        y = F.linear(x, part.weight, part.bias)
        return y if self._adapters is None else self._adapters(y, x, layer, name)

    def _normed_linear(self, norm: PackedLayer, layer: PackedLayer, out: Tensor, activation: str) -> None:
        """All programs run beside each other; each makes four lines at once or, where room is short, two at a turn."""
        num_inputs, num_outputs = self.body.width, out.shape[1]
        # Four lines per program if all programs fit on the device at once with their weights in registers, else two.
        enough = len(layer.weight) <= 4 * self._programs and num_inputs * self.num_rows <= 8 * WARP_WIDTH
        lines = (4 if enough else 2) * num_outputs // len(layer.weight)
        programs = -(-num_outputs // lines)
        self._launch("normed_linear", min(self._programs, programs), 1)(
            self._x, norm.weight, layer.weight, self._lse if layer.moments is None else layer.moments, out,
            self.body.kind.eps, num_inputs, num_outputs, self.num_rows, self.body.kind.norm, activation,
            programs <= self._programs, lines, min(_power_of_two_divisor(num_inputs), WARP_WIDTH), self._early,
        )  # fmt: skip

    def _mixed_linear(self, layer: PackedLayer) -> None:
        body, lines = self.body, 4
        heads = min(_power_of_two_divisor(body.num_heads), 4 * WARP_WIDTH // body.head_width)
        self._launch("mixed_linear", -(-body.width // lines), max(1, heads * body.head_width // WARP_WIDTH))(
            self._mixed, self._lse, layer.weight, layer.weight if layer.bias is None else layer.bias, self._x,
            body.num_heads, body.head_width, body.width, self.num_rows, self._splits, layer.bias is not None, lines,
            heads, self._early,
        )  # fmt: skip

    def _added_linear(self, y: Tensor, layer: PackedLayer) -> None:
        num_outputs, num_inputs = layer.weight.shape
        lines, piece = 4, min(_power_of_two_divisor(num_inputs), 8 * WARP_WIDTH)
        self._launch("added_linear", -(-num_outputs // lines), max(1, piece // WARP_WIDTH))(
            y, layer.weight, layer.weight if layer.bias is None else layer.bias, self._x, num_inputs, num_outputs,
            self.num_rows, layer.bias is not None, lines, piece, self._early,
        )  # fmt: skip

    def _attend(self, layer: int, qkv: Tensor) -> None:
        body, memory = self.body, self.cache
        heads = self.num_rows * body.num_heads
        # Many heads fill the device with one warp each; few heads get four warps each.
        positions, warps = (32, 1) if heads * self._splits > 4 * self._programs // PROGRAMS_PER_SM else (128, 4)
        self._launch("attend", (heads, self._splits), warps)(
            qkv, self._rotation, memory.keys[layer], memory.values[layer], memory.filled, self._mixed, self._lse,
            memory.length, body.head_width**-0.5, self.num_rows, body.num_heads, body.head_width, self._splits,
            body.kind.frequencies is not None, positions, self._early,
        )  # fmt: skip

    def _add_norm(self, y: Tensor, norm: PackedLayer) -> None:
        width = self.body.width
        self._launch("add_norm", self.num_rows, 4)(
            y, self._x, norm.weight, norm.weight if norm.bias is None else norm.bias, self._normed,
            self.body.kind.eps, self.num_rows, width, self.body.kind.norm, 1 << (width - 1).bit_length(), self._early,
        )  # fmt: skip

    def _activate(self, x: Tensor) -> None:
        block, total = 1024, self._hidden.numel()
        self._launch("activate", -(-total // block), 4)(
            x, self._hidden, total, self.body.kind.mlp, self.body.kind.activation, block, self._early
        )

    def _launch(self, name: str, programs: int | tuple[int, int], warps: int) -> Any:
        from voxgraft.nn import decode_kernels  # needs Triton

        kernel = getattr(decode_kernels, name)[programs if isinstance(programs, tuple) else (programs,)]
        # Programmatic dependent launch, from Hopper on: see decode_kernels.
        options: dict[str, Any] = {"num_warps": warps} | ({"launch_pdl": True} if self._early else {})

        def launch(*arguments: Any) -> None:
            kernel(*arguments, **options)

        return launch


def _power_of_two_divisor(number: int) -> int:
    """The largest power of two that divides it."""
    return number & -number


# ---- vocoders --------------------------------------------------------------------------------------------------------

SNAKE_BLOCK = 256
_snakes_work = True
"""Until a kernel cannot be compiled or started."""


def apply_snake(x: Tensor, alpha: Tensor) -> Tensor | None:
    """x + sin(alpha x)^2 / alpha in one kernel; None where there is no kernel for it. [B, C, T], [C] -> [B, C, T]"""
    x = x.contiguous()
    out, total = torch.empty_like(x), x.numel()
    arguments = (x, alpha, out, total, x.shape[1], x.shape[2], SNAKE_BLOCK)
    return out if _run_snakes("snake_kernel", -(-total // SNAKE_BLOCK), x, arguments) else None


def smooth_snakes(x: Tensor, alpha: Tensor, beta: Tensor, taps: Tensor) -> Tensor | None:
    """BigVGAN's activation in one kernel; None where there is no kernel for it. [B, C, T], [C], [C], [12]"""
    x = x.contiguous()
    out, (rows, channels, length) = torch.empty_like(x), x.shape
    block = min(SNAKE_BLOCK, 1 << (length - 1).bit_length())
    num_blocks = -(-length // block)
    arguments = (x, alpha, beta, taps, out, channels, length, num_blocks, block)
    return out if _run_snakes("smoothed_snake_kernel", rows * channels * num_blocks, x, arguments) else None


def _run_snakes(name: str, programs: int, x: Tensor, arguments: tuple[Any, ...]) -> bool:
    global _snakes_work
    usable = _snakes_work and x.dtype == torch.float32 and torch.version.hip is None and find_spec("triton") is not None
    if not usable or not programs:
        return False
    try:
        from voxgraft.nn import decode_kernels

        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            getattr(decode_kernels, name)[(programs,)](*arguments)
    except Exception as failure:  # of the compiler, in whatever form: torch's own kernels do the same
        _snakes_work = False
        reason = str(failure).strip().partition("\n")[0]
        off = f"Triton kernels of vocoders are off: {type(failure).__name__} {reason}"
        warnings.warn(off, RuntimeWarning, stacklevel=3)
    return _snakes_work
