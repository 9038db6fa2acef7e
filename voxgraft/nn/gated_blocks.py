"""All blocks of a frozen body with adapters as one autograd function: what gated training needs, and nothing else.

A frozen layer needs no weight gradient, and an adapter's wide results need not exist in memory. So the matrix products
are the base's own, with the adapter as more columns of their factors, and kernels between the products do the rest
(`nn/block_kernels.py`; plain torch on a CPU). Kept for the backward pass are the inputs of both norms, the projections
and the attention's output; norms and activations are computed again. Knows no family and no optimizer.

Every product has the adapter inside it, and is rounded once: an adapter that has learned little is smaller than half a
unit in the last place of the product, and `round(round(base) + adapter)` is `round(base)`.

Shapes: T positions, W width, M width of the MLP, H heads of width D, R rank, N layers that share an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.nn.adapter import LoraLayer
from voxgraft.nn.attention import (
    FORWARD_TILES,
    KEY_GRADIENT_TILES,
    QUERY_GRADIENT_TILES,
    AttentionContext,
    Packing,
    attention_forward,
    attention_key_gradients,
    attention_query_gradients,
)

# Ranks that the kernels' small products take, and what widths must be multiples of.
RANKS = (16, 32, 64)
WIDTH_UNIT = 64


@dataclass(frozen=True, slots=True)
class BlockParts:
    """A pre-norm block: layers that share an input are together, in the order of their outputs."""

    norm_in: nn.Module
    attention_in: tuple[nn.Module, ...]
    attention_out: nn.Module
    norm_mlp: nn.Module
    mlp_in: tuple[nn.Module, ...]
    """Gate and up of a gated MLP, else one layer before a GELU."""
    mlp_out: nn.Module

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        return (*self.attention_in, self.attention_out, *self.mlp_in, self.mlp_out)


def can_run_gated(blocks: Sequence[BlockParts], final_norm: nn.Module, x: Tensor, context: AttentionContext) -> bool:
    """Whether the function below computes what these blocks would: adapters that learn beside a body that does not."""
    if not (torch.is_grad_enabled() and isinstance(context, Packing) and context.closed is None):
        return False
    modules = [layer for block in blocks for layer in block.layers]
    layers = [layer for layer in modules if isinstance(layer, LoraLayer)]
    if len(layers) < len(modules):
        return False
    first = layers[0]
    norms = [final_norm, *(norm for block in blocks for norm in (block.norm_in, block.norm_mlp))]
    fixed = [tensor for layer in layers for tensor in layer.base_tensors().values()]
    fixed += [value for norm in norms for value in norm.parameters()]
    if not first.gate.on or any(value.requires_grad or value.dtype != x.dtype for value in fixed):
        return False
    if any((layer.rank, layer.gate, layer.scale) != (first.rank, first.gate, first.scale) for layer in layers):
        return False
    if not x.is_cuda:
        return True
    widths = {size for layer in layers for size in (layer.in_features, layer.out_features)}
    fits = first.rank in RANKS and all(width % WIDTH_UNIT == 0 for width in widths)
    return fits and context.backend == "tiles" and x.element_size() == 2


def run_gated(
    blocks: Sequence[BlockParts],
    final_norm: nn.Module,
    x: Tensor,
    context: Packing,
    num_heads: int,
    rotation: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """All blocks and the final norm. Gradients flow to x and the adapters alone. [T, W] -> [T, W]"""
    body = _Body(blocks, final_norm, context, num_heads, x.shape[1] // num_heads, rotation)
    adapters = [value for block in blocks for layer in block.layers for value in (layer.down, layer.up)]
    out: Tensor = _GatedBlocks.apply(x, body, *adapters)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True, slots=True)
class _Body:
    """What stays the same in both passes."""

    blocks: Sequence[BlockParts]
    final_norm: nn.Module
    packing: Packing
    num_heads: int
    head_width: int
    rotation: tuple[Tensor, Tensor] | None  # cosines and sines of Llama's angles, [T, 1, D / 2] each


@dataclass(frozen=True, slots=True)
class _Group:
    """Frozen layers that share an input, and their adapters rounded to the layers' precision."""

    weights: tuple[Tensor, ...]  # [O, I] each; views where the base keeps them transposed
    bias: Tensor | None  # [sum of O]
    down: Tensor  # [N R, I], times the adapter's scale
    up: Tensor  # [sum of O, R]

    wide_up: Tensor | None = None
    """Of layers whose backward pass needs the narrow values: `up` of each beside the others', then a unit matrix.

    [sum of O + N R, N R]
    """

    @property
    def num_outputs(self) -> int:
        return len(self.up)

    def joined_with_up(self) -> Tensor:
        """The layers' weights and `up` as one matrix, for an input with its narrow values beside it.

        With `wide_up` the product also copies the narrow values. [sum of O, + N R, I + N R]
        """
        first = self.weights[0]
        if self.wide_up is not None:
            zeros = self.down.new_zeros(self.down.shape)
            if len(self.weights) == 1 and first.stride(0) == 1:
                return torch.cat([torch.cat([first.T, zeros.T], 1), self.wide_up.T]).T
            return torch.cat([torch.cat([*self.weights, zeros]), self.wide_up], 1)
        assert len(self.weights) == 1
        return torch.cat([first.T, self.up.T]).T if first.stride(0) == 1 else torch.cat([first, self.up], 1)

    def joined(self) -> Tensor:
        """The layers' weights and `down` as one matrix, so that one product does both. [sum of O + N R, I]"""
        first = self.weights[0]
        if len(self.weights) == 1 and first.stride(0) == 1:
            return torch.cat([first.T, self.down.T], 1).T
        return torch.cat([*self.weights, self.down])


class _GatedBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, body: _Body, *adapters: Tensor) -> Tensor:
        groups, scale = _round_adapters(body, adapters, x.dtype)
        saved: list[dict[str, Any]] = []
        wide = _with_narrow(x, groups[0][0])
        _, stats = _norm(x, body.blocks[0].norm_in, wide)
        for index, (attention_in, attention_out, mlp_in, mlp_out) in enumerate(groups):
            block = body.blocks[index]
            kept: dict[str, Any] = {"x": x, "stats": stats}
            _make_narrow(wide, attention_in)
            joint = _project(wide, attention_in)  # [T, 3 W + N R]
            _rotate_heads(joint, body)
            mixed = _with_narrow(x, attention_out)  # [T, W + R]
            kept["log_total"] = _attend(body, joint, mixed)
            _make_narrow(mixed, attention_out)
            between = _with_narrow(x, mlp_in)
            middle, _, kept["middle_stats"] = _add_norm(x, _project(mixed, attention_out), block.norm_mlp, between)
            kept |= {"joint": joint, "mixed": mixed, "middle": middle}
            _make_narrow(between, mlp_in)
            kept["inner"] = _project(between, mlp_in)  # [T, M or 2 M, + N R]
            values = _activate(kept["inner"], mlp_in, mlp_out.down)  # [T, M + R]
            kept["mlp_narrow"] = values[:, -mlp_out.up.shape[1] :].contiguous()  # a view would keep all values
            last = index + 1 == len(groups)
            norm = body.final_norm if last else body.blocks[index + 1].norm_in
            x, out, stats = _add_norm(middle, _project(values, mlp_out), norm, None if last else wide)
            saved.append(kept)
        ctx.body, ctx.groups, ctx.scale, ctx.saved, ctx.last = body, groups, scale, saved, (x, stats)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        body, groups, saved = ctx.body, ctx.groups, ctx.saved
        if not saved:
            raise RuntimeError("the blocks' backward pass was run a second time, and it keeps nothing for that")
        [d_out] = gradients
        x, stats = ctx.last
        ctx.last = None
        d_sum = _with_narrow(x, groups[-1][3])
        _norm_gradient(x, d_out.contiguous(), None, body.final_norm, stats, d_sum)
        found: list[list[Tensor]] = []
        for index in reversed(range(len(groups))):
            kept = saved.pop()  # its memory is free for the blocks before it
            d_sum, own = _block_gradients(d_sum, kept, groups[index], body.blocks[index], body)
            found += own[::-1]
        pairs = found[::-1]  # of each layer: down, up
        if ctx.scale != 1:
            torch._foreach_mul_([down for down, _ in pairs], ctx.scale)
        return d_sum[:, : x.shape[1]], None, *(value for pair in pairs for value in pair)


def _block_gradients(
    d_sum: Tensor, kept: dict[str, Any], groups: tuple[_Group, ...], block: BlockParts, body: _Body
) -> tuple[Tensor, list[list[Tensor]]]:
    """The gradient of a block's input from that of its output, and those of its adapters (down, up) by layer.

    Both gradients have room for narrow ones. [T, W + R] -> [T, W + R]
    """
    attention_in, attention_out, mlp_in, mlp_out = groups
    width = len(mlp_out.up)

    d_values = _input_gradient(d_sum, mlp_out)  # [T, M]
    d_sum, d_narrow = d_sum[:, :width], d_sum[:, width:]
    mlp_out_up = _weight_gradient(d_sum, kept["mlp_narrow"])
    d_inner, mlp_out_down, mlp_in_up = _activation_gradient(kept["inner"], d_values, d_narrow, mlp_in)
    del d_values
    d_norm = _input_gradient(d_inner, mlp_in)
    d_middle = _with_narrow(kept["x"], attention_out)
    _, norm = _norm_gradient(kept["middle"], d_norm, d_sum, block.norm_mlp, kept["middle_stats"], d_middle)
    mlp_in_down = _weight_gradient(d_inner[:, mlp_in.num_outputs :], norm)
    del d_inner, d_norm

    d_mixed = _input_gradient(d_middle, attention_out)
    d_middle, d_narrow = d_middle[:, :width], d_middle[:, width:]
    attention_out_up = _weight_gradient(d_middle, kept["mixed"][:, width:])
    attention_out_down = _weight_gradient(d_narrow, kept["mixed"][:, :width])
    d_heads = _attention_gradient(body, kept, d_mixed)
    d_joint, attention_in_up = _heads_gradient(d_heads, kept["joint"], attention_in, body)
    d_norm = _input_gradient(d_joint, attention_in)
    d_x = _with_narrow(kept["x"], mlp_out)
    _, norm = _norm_gradient(kept["x"], d_norm, d_middle, block.norm_in, kept["stats"], d_x)
    attention_in_down = _weight_gradient(d_joint[:, attention_in.num_outputs :], norm)
    pairs = [
        *_split(attention_in_down, attention_in_up, len(attention_in.weights)),
        [attention_out_down, attention_out_up],
        *_split(mlp_in_down, mlp_in_up, len(mlp_in.weights)),
        [mlp_out_down, mlp_out_up],
    ]
    return d_x, pairs


def _split(down: Tensor, up: Tensor, num_layers: int) -> list[list[Tensor]]:
    return [list(pair) for pair in zip(down.chunk(num_layers), up.chunk(num_layers), strict=True)]


def _round_adapters(
    body: _Body, adapters: Sequence[Tensor], dtype: torch.dtype
) -> tuple[list[tuple[_Group, ...]], float]:
    """The adapters of every block side by side in the precision of the products; the scale that is in `down`."""
    first: Any = body.blocks[0].mlp_out
    scale, rank = float(first.scale), int(first.rank)
    targets: list[Tensor] = []
    wide_targets: list[Tensor] = []
    templates: dict[torch.Size, Tensor] = {}
    groups = []
    for block in body.blocks:
        made = []
        for members in (block.attention_in, (block.attention_out,), block.mlp_in, (block.mlp_out,)):
            layers: list[Any] = list(members)
            outputs = sum(layer.out_features for layer in layers)
            down = adapters[0].new_empty(len(layers) * rank, layers[0].in_features, dtype=dtype)
            up = adapters[0].new_empty(outputs, rank, dtype=dtype)
            for pair in zip(
                down.chunk(len(layers)), torch.split(up, [one.out_features for one in layers]), strict=True
            ):
                targets += pair
            biases = [layer.base_tensors().get("bias") for layer in layers]
            bias = None if biases[0] is None else biases[0] if len(layers) == 1 else torch.cat(biases)
            weights = tuple(layer.base_weight.T if layer.transposed else layer.base_weight for layer in layers)
            wide_up = None
            if members is block.attention_in or members is block.mlp_in:
                if down.shape + up.shape not in templates:
                    unit = torch.eye(len(down), dtype=dtype, device=down.device)
                    templates[down.shape + up.shape] = torch.cat([down.new_zeros(outputs, len(down)), unit])
                wide_up = templates[down.shape + up.shape].clone()
                own = torch.split(wide_up[:outputs], [one.out_features for one in layers])
                wide_targets += [one[:, at * rank : (at + 1) * rank] for at, one in enumerate(own)]
            made.append(_Group(tuple(weight.detach() for weight in weights), bias, down, up, wide_up))
        groups.append(tuple(made))
    # One kernel for all of them; what is scaled is scaled before it is rounded.
    sources = [value.detach() for value in adapters]
    if scale != 1:
        sources[::2] = torch._foreach_mul(sources[::2], scale)
    torch._foreach_copy_(targets, sources)
    several = [group for made in groups for group in made if group.wide_up is not None]
    torch._foreach_copy_(wide_targets, [up for group in several for up in group.up.chunk(len(group.weights))])
    return groups, scale


def _weight_gradient(d_out: Tensor, x: Tensor) -> Tensor:
    """d_outᵀ x in float32, as the optimizer's masters are: not rounded in between. [T, O], [T, I] -> [O, I]"""
    if d_out.is_cuda and d_out.element_size() == 2:
        return torch.mm(d_out.T, x, out_dtype=torch.float32)  # type: ignore[call-overload,no-any-return,unused-ignore]
    return d_out.T @ x


def _input_gradient(d_joint: Tensor, group: _Group) -> Tensor:
    """The gradient of a group's input; the gradients of the narrow values are written beside those of the outputs.

    [T, sum of O + N R] -> [T, I]
    """
    num_layers, rank = len(group.weights), group.up.shape[1]
    outputs, narrow = d_joint[:, : group.num_outputs], d_joint[:, group.num_outputs :]
    step = group.num_outputs // num_layers
    for index in range(num_layers):
        own = slice(index * step, (index + 1) * step)
        torch.mm(outputs[:, own], group.up[own], out=narrow[:, index * rank : (index + 1) * rank])
    return d_joint @ group.joined()


def _with_narrow(x: Tensor, group: _Group) -> Tensor:
    """Room for an input of these layers, and for its narrow values beside it. [T, I] -> [T, I + N R]"""
    return x.new_empty(len(x), x.shape[1] + len(group.down))


def _make_narrow(wide: Tensor, group: _Group) -> None:
    """Fill the columns for the narrow values of an input. [T, I + N R]"""
    inputs = group.down.shape[1]
    torch.mm(wide[:, :inputs], group.down.T, out=wide[:, inputs:])


def _project(wide: Tensor, group: _Group) -> Tensor:
    """The outputs of layers with bias and adapters, rounded once, then the narrow values if `wide_up` copies them.

    [T, I + N R] -> [T, sum of O, + N R]
    """
    weight = group.joined_with_up().T
    if group.bias is None:
        return wide @ weight
    return torch.addmm(F.pad(group.bias, (0, weight.shape[1] - len(group.bias))), wide, weight)


def _attend(body: _Body, joint: Tensor, into: Tensor) -> Tensor | None:
    """Fills the first columns of `into`; returns what the backward pass of attention in tiles needs of each row.

    [T, 3 W + ..], [T, W + ..]
    """
    q, k, v = _heads(body, joint)
    mixed = torch.unflatten(into[:, : body.num_heads * body.head_width], 1, (body.num_heads, -1))
    if body.packing.backend == "tiles":
        assert body.packing.tiles is not None
        return attention_forward(q, k, v, body.packing.tiles[0], FORWARD_TILES, mixed)[1]
    mixed.copy_(body.packing.attend(0, q, k, v))
    return None


def _attention_gradient(body: _Body, kept: dict[str, Any], d_mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, dense. [T, W] -> [T, W] each"""
    qkv = _heads(body, kept["joint"])
    d_out = d_mixed.view(qkv[0].shape)
    if body.packing.backend == "tiles":
        tiles = body.packing.tiles
        assert tiles is not None
        out = torch.unflatten(kept["mixed"][:, : d_mixed.shape[1]], 1, (body.num_heads, -1))
        log_total = kept["log_total"]
        dq, pairs = attention_query_gradients(qkv, (out, d_out), log_total, tiles[1], QUERY_GRADIENT_TILES)
        dk, dv = attention_key_gradients(qkv, d_out, pairs, tiles[2], KEY_GRADIENT_TILES)
        return dq.flatten(1), dk.flatten(1), dv.flatten(1)
    with torch.enable_grad():  # computed again: only the tiled kernels have a backward pass that can be called alone
        leaves = [one.detach().requires_grad_() for one in qkv]
        found = torch.autograd.grad(body.packing.attend(0, *leaves), leaves, d_out)
    dq, dk, dv = (one.contiguous().flatten(1) for one in found)
    return dq, dk, dv


def _heads(body: _Body, joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views. [T, 3 W + ..] -> [T, H, D] each"""
    width = body.num_heads * body.head_width
    q, k, v = torch.unflatten(joint[:, : 3 * width], 1, (3, body.num_heads, -1)).unbind(1)
    return q, k, v


# ---- between the products: a kernel on a GPU, plain torch elsewhere --------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """How a kernel cuts its work."""

    rows: int
    """Positions of one program, or that it works on at a time."""
    warps: int
    block: int = WIDTH_UNIT
    """Columns that it works on at a time."""
    stages: int = 2
    """Loads in flight at once."""
    registers: int | None = None
    """Maximum registers of a thread; None leaves it to the compiler."""
    chunks: int = 16
    """Into how many chunks positions are cut where a weight gradient is summed over them."""


# The fastest of `benchmarks/block_kernels.py` on an H200 (docs/log.md, 2026-11-19). All but NORM_GRADIENT and
# HEADS_GRADIENT do less since, and were not measured again.
ADD_NORM = KernelConfig(rows=32, warps=4, block=128)
NORM_GRADIENT = KernelConfig(rows=4, warps=8)  # whole rows at a time
ROTATE_HEADS = KernelConfig(rows=64, warps=4)  # one head
HEADS_GRADIENT = KernelConfig(rows=64, warps=4, stages=3)  # one head
ACTIVATE = KernelConfig(rows=64, warps=4, stages=3)
ACTIVATION_GRADIENT = KernelConfig(rows=64, warps=4, stages=3)


def uses_kernels(x: Tensor) -> bool:
    """Whether the kernels run; else plain torch computes the same."""
    return x.is_cuda


def _launch(name: str, grid: tuple[int, ...], config: KernelConfig, *arguments: Any) -> None:
    from voxgraft.nn import block_kernels

    kernel: Callable[..., Any] = getattr(block_kernels, name)[grid]
    options = {"num_warps": config.warps, "num_stages": config.stages}
    options |= {} if config.registers is None else {"maxnreg": config.registers}
    with torch.cuda.device_of(next(one for one in arguments if isinstance(one, Tensor))):  # type: ignore[no-untyped-call]
        kernel(*arguments, **options)


def _add_norm(x: Tensor, delta: Tensor, norm: nn.Module, into: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta, its norm, and what the norm's gradient needs. The norm is written to the first columns of `into`."""
    if not uses_kernels(x):
        total = x + delta
        return total, *_norm(total, norm, into)
    return _launch_add_norm(x, delta, norm, into)


def _norm(x: Tensor, norm: nn.Module, into: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """[T, W] -> [T, W], and 1 / deviation and mean of each row, [2, T]"""
    if uses_kernels(x):
        return _launch_add_norm(x, None, norm, into)[1:]
    wide, eps = x.float() if x.element_size() == 2 else x, _eps(norm)
    mean = wide.mean(-1) if _is_layer_norm(norm) else wide.new_zeros(len(x))
    inverse = torch.rsqrt((wide - mean[:, None]).square().mean(-1) + eps)
    out: Tensor = norm(x)
    if into is not None:
        out = into[:, : x.shape[1]].copy_(out)
    return out, torch.stack([inverse, mean])


def _launch_add_norm(
    x: Tensor, delta: Tensor | None, norm: nn.Module, into: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    num, width = x.shape
    out = torch.empty_like(x) if into is None else into[:, :width]
    stats = x.new_empty(2, num, dtype=torch.float32)
    total = x if delta is None else torch.empty_like(x)
    weight, norm_bias = _norm_weights(norm)
    block = WIDTH_UNIT if width % ADD_NORM.block else ADD_NORM.block
    _launch(
        "add_norm_kernel", (-(-num // ADD_NORM.rows),), ADD_NORM,
        x, delta, weight, norm_bias, total, out, stats, x.stride(0), out.stride(0), num, _eps(norm),
        width, delta is not None, _is_layer_norm(norm), ADD_NORM.rows, block,
    )  # fmt: skip
    return total, out, stats


def _norm_gradient(
    x: Tensor, d_norm: Tensor, d_sum: Tensor | None, norm: nn.Module, stats: Tensor, into: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient of x, plus `d_sum`, written to the first columns of `into`; and the norm again. [T, W] each"""
    num, width = x.shape
    out = torch.empty_like(x) if into is None else into[:, :width]
    weight, norm_bias = _norm_weights(norm)
    if not uses_kernels(x):
        wide = x.to(stats.dtype)
        scaled, gradient = (wide - stats[1][:, None]) * stats[0][:, None], d_norm.to(stats.dtype) * weight
        result = gradient - scaled * (gradient * scaled).mean(-1, keepdim=True)
        if _is_layer_norm(norm):
            result = result - gradient.mean(-1, keepdim=True)
        result = result * stats[0][:, None]
        out.copy_(result if d_sum is None else result + d_sum)
        normed: Tensor = norm(x)
        return out, normed
    normed, rows = torch.empty_like(x), NORM_GRADIENT.rows
    _launch(
        "norm_gradient_kernel", (-(-num // rows),), NORM_GRADIENT,
        x, d_norm, d_sum, weight, norm_bias, stats, out, normed, 0 if d_sum is None else d_sum.stride(0),
        out.stride(0), num, width, d_sum is not None, _is_layer_norm(norm), rows, 1 << (width - 1).bit_length(),
    )  # fmt: skip
    return out, normed


def _rotate_heads(joint: Tensor, body: _Body) -> None:
    """Queries and keys turned by Llama's angles, in place. [T, 3 W + N R]"""
    if body.rotation is None:
        return
    cos, sin = body.rotation
    num_heads, head = 2 * body.num_heads, body.head_width
    if uses_kernels(joint):
        rows = ROTATE_HEADS.rows
        _launch(
            "rotate_heads_kernel", (-(-len(joint) // rows), num_heads), ROTATE_HEADS,
            joint, cos, sin, joint.stride(0), len(joint), head, rows,
        )  # fmt: skip
        return
    turned = torch.unflatten(joint[:, : num_heads * head], 1, (-1, head))
    one, other = turned.chunk(2, -1)
    turned.copy_(torch.cat([one * cos - other * sin, other * cos + one * sin], -1))


def _heads_gradient(
    d_heads: tuple[Tensor, Tensor, Tensor], joint: Tensor, group: _Group, body: _Body
) -> tuple[Tensor, Tensor]:
    """Gradients of the projections side by side, with room for the narrow ones, and of `up`. -> [T, 3 W + N R]"""
    d_joint = torch.empty_like(joint)
    num, num_layers, head = len(joint), len(group.weights), body.head_width
    cos, sin = body.rotation if body.rotation is not None else (None, None)
    if uses_kernels(joint):
        rows, chunks = HEADS_GRADIENT.rows, HEADS_GRADIENT.chunks
        parts = joint.new_empty(chunks, *group.up.shape, dtype=torch.float32)
        _launch(
            "heads_gradient_kernel", (3 * body.num_heads, chunks), HEADS_GRADIENT,
            *d_heads, joint, cos, sin, d_joint, parts, joint.stride(0), num, _per_chunk(num, HEADS_GRADIENT),
            group.num_outputs // 3, group.num_outputs // num_layers, head, group.up.shape[1], cos is not None, rows,
        )  # fmt: skip
        return d_joint, parts.sum(0)
    outputs = d_joint[:, : group.num_outputs]
    outputs.copy_(torch.cat(d_heads, 1))
    if cos is not None and sin is not None:
        turned = torch.unflatten(outputs[:, : group.num_outputs // 3 * 2], 1, (-1, head))
        one, other = turned.chunk(2, -1)
        turned.copy_(torch.cat([one * cos + other * sin, other * cos - one * sin], -1))
    return d_joint, _up_gradient(outputs, joint[:, group.num_outputs :], num_layers)


def _activate(inner: Tensor, group: _Group, down: Tensor) -> Tensor:
    """The MLP's inner values, and beside them what the next layer's `down` makes of them. -> [T, M + R]"""
    num, rank, gated, width = len(inner), group.up.shape[1], len(group.weights) == 2, down.shape[1]
    out = inner.new_empty(num, width + rank)
    if uses_kernels(inner):
        _launch(
            "activate_kernel", (-(-num // ACTIVATE.rows),), ACTIVATE,
            inner, down, out, inner.stride(0), out.stride(0), num, width, rank, gated, ACTIVATE.rows, ACTIVATE.block,
            ACTIVATE.stages,
        )  # fmt: skip
        return out
    out[:, :width] = _activation(_inner_values(inner, group))
    torch.mm(out[:, :width], down.T, out=out[:, width:])
    return out


def _activation_gradient(
    inner: Tensor, d_values: Tensor, d_narrow: Tensor, group: _Group
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the layers before the activation, with room for the narrow ones; of `down` after it, of `up` before.

    -> [T, sum of O + N R], [R, M], [sum of O, R]
    """
    num, rank, gated = len(inner), group.up.shape[1], len(group.weights) == 2
    d_inner = torch.empty_like(inner)
    if uses_kernels(inner):
        config, width = ACTIVATION_GRADIENT, d_values.shape[1]
        d_down = inner.new_empty(config.chunks, rank, width, dtype=torch.float32)
        d_up = inner.new_empty(config.chunks, *group.up.shape, dtype=torch.float32)
        _launch(
            "activation_gradient_kernel", (width // config.block, config.chunks), config,
            inner, d_values, d_narrow, d_inner, d_down, d_up, inner.stride(0), d_narrow.stride(0), num,
            _per_chunk(num, config), width, rank, gated, config.rows, config.block, config.stages,
        )  # fmt: skip
        return d_inner, d_down.sum(0), d_up.sum(0)
    with torch.enable_grad():
        before = _inner_values(inner, group).detach().requires_grad_()
        values = _activation(before)
        [gradient] = torch.autograd.grad(values, before, d_values)
    d_inner[:, : group.num_outputs] = gradient.flatten(1)
    narrow = inner[:, group.num_outputs :]
    return d_inner, d_narrow.T @ values.detach(), _up_gradient(gradient.flatten(1), narrow, len(group.weights))


def _per_chunk(num_positions: int, config: KernelConfig) -> int:
    """A multiple of the rows that a program works on: a chunk that ended within them would count the next one's too."""
    return -(-num_positions // (config.chunks * config.rows)) * config.rows


def _inner_values(inner: Tensor, group: _Group) -> Tensor:
    return torch.unflatten(inner[:, : group.num_outputs], 1, (len(group.weights), -1))


def _activation(inner: Tensor) -> Tensor:
    """[T, 1 or 2, M] -> [T, M]"""
    if inner.shape[1] == 2:
        return F.silu(inner[:, 0]) * inner[:, 1]
    return F.gelu(inner[:, 0], approximate="tanh")


def _up_gradient(d_outputs: Tensor, narrow: Tensor, num_layers: int) -> Tensor:
    """[T, sum of O], [T, N R] -> [sum of O, R]"""
    parts = zip(d_outputs.chunk(num_layers, 1), narrow.chunk(num_layers, 1), strict=True)
    return torch.cat([gradient.T @ own for gradient, own in parts])


def _norm_weights(norm: nn.Module) -> tuple[Tensor, Tensor | None]:
    named = dict(norm.named_parameters())
    return named["weight"], named.get("bias")


def _is_layer_norm(norm: nn.Module) -> bool:
    return isinstance(norm, nn.LayerNorm)


def _eps(norm: Any) -> float:
    return float(norm.eps)
