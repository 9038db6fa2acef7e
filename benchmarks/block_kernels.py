"""How long each part of a fused gated block takes, and which way of cutting a kernel's work is fastest.

    python3 -m benchmarks.block_kernels                    T3's block, on a GPU (about two minutes)
    python3 -m benchmarks.block_kernels --body gpt2 --only ACTIVATE ACTIVATION_GRADIENT
    python3 -m benchmarks.block_kernels --device cpu --positions 520    for trying the script: nothing is a kernel there

Every kernel of `nn/gated_blocks.py` runs with each of several configurations; its time stands beside the time in which
the bytes that it must read and write pass through memory, at the rate of a large copy measured in the same run. Then the
matrix products of a block, with their rate. Configurations whose results differ from plain torch in float32 are marked WRONG.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor

from voxgraft.nn import gated_blocks
from voxgraft.nn.adapter import add_adapter
from voxgraft.nn.attention import Packing
from voxgraft.nn.backbones import Backbone, Gpt2Backbone, Gpt2Size, LlamaBackbone, LlamaSize
from voxgraft.nn.gated_blocks import KernelConfig

REPEATS = 20
BODIES: dict[str, Callable[[], Backbone]] = {
    "llama": lambda: LlamaBackbone(LlamaSize(1024, 1, 16, 4096)),
    "gpt2": lambda: Gpt2Backbone(Gpt2Size(1280, 1, 20)),
    "small llama": lambda: LlamaBackbone(LlamaSize(192, 1, 3, 256)),
    "small gpt2": lambda: Gpt2Backbone(Gpt2Size(128, 1, 2)),
}
# Largest error relative to plain torch in float32 of results that are rounded to bf16.
TOLERANCE = 1e-2
# (rows, warps, columns, stages, registers, chunks)
CANDIDATES: dict[str, list[tuple[int, int, int, int, int | None, int]]] = {
    "ADD_NORM": [(rows, warps, block, 2, None, 16) for rows in (32, 64) for warps in (4, 8) for block in (64, 128)],
    "NORM_GRADIENT": [(rows, warps, 64, 2, None, 16) for rows in (1, 2, 4, 8) for warps in (4, 8)],
    "ROTATE_HEADS": [(rows, warps, 64, 2, None, 16) for rows in (32, 64, 128) for warps in (2, 4, 8)],
    "HEADS_GRADIENT": [
        (rows, 4, 64, stages, None, chunks) for rows in (32, 64) for stages in (2, 3, 4) for chunks in (8, 16, 32)
    ],
    "ACTIVATE": [
        (rows, warps, 64, stages, None, 16) for rows, warps in ((64, 4), (64, 8), (32, 4)) for stages in (2, 3, 4)
    ],
    # Programs that fit at once on 132 multiprocessors: 264 with 183 registers a thread, 396 with at most 168; a chunk has
    # a program for each 64 of 4,096 columns.
    "ACTIVATION_GRADIENT": [
        *((64, 4, 64, stages, None, chunks) for stages in (2, 3) for chunks in (4, 8, 16)),
        *((32, 4, 64, stages, None, chunks) for stages in (3, 4) for chunks in (6, 12, 16)),
        (64, 4, 64, 2, 168, 6), (64, 4, 64, 2, 168, 12), (32, 8, 64, 3, 128, 16), (64, 8, 64, 3, None, 16),
    ],
}  # fmt: skip


def milliseconds(run: Callable[[], object]) -> float:
    times = []
    if not torch.cuda.is_available():
        start_s = time.perf_counter()
        run()
        return (time.perf_counter() - start_s) * 1e3
    for _ in range(3):
        run()
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)))
    return statistics.median(times)


def tensors_in(found: object) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, tuple):
        for one in found:
            yield from tensors_in(one)


class Block:
    """One block's tensors at full size, and what each kernel does with them."""

    def __init__(self, name: str, num: int, rank: int, device: str) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            body = BODIES[name]()
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        body = body.to(dtype).requires_grad_(False)
        layers = [key for key, module in body.named_modules() if key.endswith(("_proj", "c_attn", "c_fc"))]
        add_adapter(body, layers, rank, float(rank), seed=0)
        parts = body.parts_of(body.blocks[0])
        rotation = None
        if isinstance(body, LlamaBackbone):
            angles = torch.arange(num, device=device)[:, None, None] % 300 * body.frequencies_on(torch.device(device))
            rotation = (angles.cos(), angles.sin())
        packing = Packing.of([260] * (num // 260) + [num % 260] * (num % 260 > 0), device)
        self.body = gated_blocks._Body([parts], body.final_norm, packing, body.num_heads, body.head_width, rotation)
        adapters: Any = [value for layer in parts.layers for value in (layer.down, layer.up)]
        with torch.no_grad():
            for value in adapters:
                value.normal_(std=0.02)
        [self.groups], _ = gated_blocks._round_adapters(self.body, adapters, dtype)
        self.attention_in, self.attention_out, self.mlp_in, self.mlp_out = self.groups
        width, hidden = body.num_heads * body.head_width, self.mlp_out.down.shape[1]
        self.norm = parts.norm_in

        def made(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, dtype=dtype)

        self.x, self.delta, self.d_norm = made(num, width), made(num, width + rank), made(num, width)
        self.narrow = made(num, rank)
        self.wide = made(num, width + len(self.attention_in.down))
        self.joint = made(num, self.attention_in.num_outputs + len(self.attention_in.weights) * rank)
        self.inner = made(num, self.mlp_in.num_outputs + len(self.mlp_in.weights) * rank)
        self.d_heads = (made(num, width), made(num, width), made(num, width))
        self.d_values = made(num, hidden)
        with torch.no_grad():
            self.stats = gated_blocks._norm(self.x, self.norm)[1]

    def in_float32(self) -> Block:
        """The same values with more precision."""
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(made, name, value.float())
        made.groups = tuple(
            replace(
                group,
                weights=tuple(weight.float() for weight in group.weights),
                bias=None if group.bias is None else group.bias.float(),
                down=group.down.float(),
                up=group.up.float(),
            )
            for group in self.groups
        )
        made.attention_in, made.attention_out, made.mlp_in, made.mlp_out = made.groups
        query, key, value = self.d_heads
        made.d_heads = (query.float(), key.float(), value.float())
        made.norm = copy.deepcopy(self.norm).float()
        return made

    def expected(self, name: str) -> list[Tensor]:
        """What plain torch makes of the same values in float32."""
        usual = gated_blocks.uses_kernels
        gated_blocks.uses_kernels = lambda x: False  # noqa: ARG005
        try:
            return list(tensors_in(self.in_float32().kernels()[name][0]()))
        finally:
            gated_blocks.uses_kernels = usual

    def error(self, name: str, expected: Sequence[Tensor]) -> float:
        """The largest relative error of a kernel's results with its present configuration; infinite where one is NaN."""
        pairs = zip(tensors_in(self.kernels()[name][0]()), expected, strict=True)
        errors = [float((one.float() - other).norm() / other.norm().clamp_min(1e-9)) for one, other in pairs]
        return max(math.inf if math.isnan(error) else error for error in errors)

    def kernels(self) -> dict[str, tuple[Callable[[], object], int]]:
        """What each runs, and the bytes of positions that it must move. What it runs returns all that it has written."""
        x, inner = self.x.numel() * 2, self.inner.numel() * 2
        hidden = self.d_values.numel() * 2

        def written(found: tuple[Tensor, ...], group: gated_blocks._Group) -> tuple[Tensor, ...]:
            """Without the columns for the narrow gradients, which a product writes later: until then they hold anything."""
            return found[0][:, : group.num_outputs], *found[1:]

        return {
            "ADD_NORM": (
                lambda: gated_blocks._add_norm(self.x, self.d_norm, self.norm, self.wide),
                4 * x,
            ),
            "NORM_GRADIENT": (
                lambda: gated_blocks._norm_gradient(self.x, self.d_norm, self.x, self.norm, self.stats),
                5 * x,
            ),
            # A copy, since it works in place: its bytes are counted, and so is the time of the copy.
            "ROTATE_HEADS": (self._rotate_heads, 2 * self.joint.numel() * 2 + 4 * x),
            "HEADS_GRADIENT": (
                lambda: written(
                    gated_blocks._heads_gradient(self.d_heads, self.joint, self.attention_in, self.body),
                    self.attention_in,
                ),
                6 * x,
            ),
            "ACTIVATE": (
                lambda: gated_blocks._activate(self.inner, self.mlp_in, self.mlp_out.down),
                inner + hidden,
            ),
            "ACTIVATION_GRADIENT": (
                lambda: written(
                    gated_blocks._activation_gradient(self.inner, self.d_values, self.narrow, self.mlp_in),
                    self.mlp_in,
                ),
                2 * inner + hidden,
            ),
        }

    def _rotate_heads(self) -> Tensor:
        joint = self.joint.clone()
        gated_blocks._rotate_heads(joint, self.body)
        return joint

    def products(self) -> dict[str, tuple[Callable[[], object], int]]:
        """The matrix products of a block, and the operations of the base in each."""
        attention_in, attention_out, mlp_in, mlp_out = self.groups
        num, weights = len(self.x), [[*group.weights] for group in self.groups]
        flops = [2 * num * sum(weight.numel() for weight in own) for own in weights]
        d_sum, d_middle = self.x, self.delta
        hidden = mlp_out.down.shape[1]
        values = torch.cat([self.d_values, self.narrow], 1)
        between = torch.cat([self.x, self.inner[:, mlp_in.num_outputs :]], 1)
        num_mlp_in = len(mlp_in.weights)

        def weight_gradients() -> None:
            """What ACTIVATION_GRADIENT sums up on its way, if products did it: its time without them must be that much less."""
            narrow = self.inner[:, mlp_in.num_outputs :].chunk(num_mlp_in, 1)
            for index, own in enumerate(narrow):
                gated_blocks._weight_gradient(self.inner[:, index * hidden : (index + 1) * hidden], own)
            gated_blocks._weight_gradient(self.narrow, self.d_values)

        return {
            "attention in": (lambda: gated_blocks._project(self.wide, attention_in), flops[0]),
            "attention out": (lambda: gated_blocks._project(self.delta, attention_out), flops[1]),
            "mlp in": (lambda: gated_blocks._project(between, mlp_in), flops[2]),
            "mlp out": (lambda: gated_blocks._project(values, mlp_out), flops[3]),
            "mlp out, backward, with narrow": (lambda: gated_blocks._input_gradient(d_middle, mlp_out), flops[3]),
            "mlp in, backward, with narrow": (lambda: gated_blocks._input_gradient(self.inner, mlp_in), flops[2]),
            "attention out, backward, with narrow": (
                lambda: gated_blocks._input_gradient(d_middle, attention_out),
                flops[1],
            ),
            "attention in, backward, with narrow": (
                lambda: gated_blocks._input_gradient(self.joint, attention_in),
                flops[0],
            ),
            # The narrow gradients as more columns of the product with the base, then what `down` makes of them added.
            "mlp in, backward, narrow as columns": (_narrow_as_columns(self.inner, mlp_in), flops[2]),
            "attention in, backward, narrow as columns": (_narrow_as_columns(self.joint, attention_in), flops[0]),
            "weight gradients around the activation": (weight_gradients, 0),
            "joining mlp in": (lambda: mlp_in.joined(), 0),
            "joining attention in": (lambda: attention_in.joined(), 0),
            "narrow values of attention in": (lambda: gated_blocks._make_narrow(self.wide, attention_in), 0),
            "narrow gradient of mlp out": (lambda: d_sum @ mlp_out.up, 0),
            "weight gradient, up of mlp out": (lambda: gated_blocks._weight_gradient(d_sum, self.narrow), 0),
            "weight gradient, down of mlp in": (
                lambda: gated_blocks._weight_gradient(self.inner[:, mlp_in.num_outputs :], self.x),
                0,
            ),
        }


def _narrow_as_columns(joint: Tensor, group: gated_blocks._Group) -> Callable[[], Tensor]:
    """Another way to compute what `_input_gradient` does: d_outputs is read once, not twice."""
    ups: Tensor = torch.block_diag(*group.up.chunk(len(group.weights)))  # type: ignore[no-untyped-call]  # [sum of O, N R]
    inputs = group.down.shape[1]

    def run() -> Tensor:
        weight = torch.cat([torch.cat(group.weights), ups], 1)
        made = joint[:, : group.num_outputs] @ weight
        return made[:, :inputs].addmm_(made[:, inputs:], group.down)

    return run


def copy_rate(device: str) -> float:
    """Bytes per second of a large copy, read and written."""
    source = torch.randn(1 << (29 if device == "cuda" else 20), device=device).to(torch.bfloat16)
    target = torch.empty_like(source)
    return 4 * source.numel() / milliseconds(lambda: target.copy_(source)) * 1e3


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--body", default="llama", choices=BODIES)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--positions", type=int, default=16_640)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--only", nargs="*", choices=CANDIDATES, help="kernels; all of them if none is given")
    options = parser.parse_args(arguments)
    rate = copy_rate(options.device)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}: copy {rate / 1e12:.2f} TB/s", flush=True)
    block = Block(options.body, options.positions, options.rank, options.device)
    for name, (run, size) in block.kernels().items():
        if options.only and name not in options.only:
            continue
        default: KernelConfig = getattr(gated_blocks, name)
        expected = block.expected(name)
        found = []
        for config in itertools.chain([astuple(default)], CANDIDATES[name]):
            setattr(gated_blocks, name, KernelConfig(*config))
            try:
                error = block.error(name, expected)
                found.append((milliseconds(run), config, "" if error < TOLERANCE else f"  WRONG by {error:.1e}"))
            except Exception as failure:  # too much shared memory, or a configuration that does not compile
                print(f"  {name} {config}: {str(failure)[:120]}", flush=True)
        setattr(gated_blocks, name, default)
        print(f"\n{name}: {size / rate * 1e3:.3f} ms for its bytes; rows, warps, columns, stages, registers, chunks")
        print(f"  {found[0][0]:.3f} ms  {found[0][1]} (the default){found[0][2]}")
        for spent, config, note in sorted(found[1:], key=lambda one: one[0]):
            print(f"  {spent:.3f} ms  {config}{note}", flush=True)
    print("\nmatrix products")
    for name, (run, flops) in block.products().items():
        spent = milliseconds(run)
        print(f"  {spent:.3f} ms  {f'{flops / spent / 1e9:5.0f} TFLOP/s' if flops else '':14}{name}", flush=True)


if __name__ == "__main__":
    main()
