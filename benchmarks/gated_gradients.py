"""Whether fused gated training computes what plain training does: its gradients and its loss, both beside float32.

    python3 -m benchmarks.gated_gradients                                  T3 at full size, on a GPU (under a minute)
    python3 -m benchmarks.gated_gradients --size tiny --device cpu --positions 600    for trying the script

One batch, the same random weights. Gradients are compared by kind of parameter, for an adapter that has learned nothing
and for one that has learned a little. *Projection* is <g, g32> / <g32, g32>: 1 where rounding has no direction. *Error*
is |g - g32| / |g32|. *Lowest* and *highest* are projections of single tensors.

Gradients do not show what the forward pass rounds away, so the last table moves one kind of `up` against its gradient's
sign, by as much as the first steps of training do, and prints by how much the loss falls.
"""

from __future__ import annotations

import argparse
import gc
import re
import time
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.train_step import Bench
from tests.support.families import PUBLISHED
from voxgraft.nn import layers
from voxgraft.training.step import TrainStep

# Name, precision of the model, whether its blocks are compiled, fused, and its loss is a kernel.
VARIANTS: dict[str, tuple[torch.dtype, bool, bool, bool]] = {
    "float32": (torch.float32, False, False, False),
    "plain": (torch.bfloat16, True, False, False),
    "fused": (torch.bfloat16, False, True, False),
    "fused, loss": (torch.bfloat16, False, True, True),
}
LEARNED = 1e-4
"""By how much an element of `up` has moved for the second comparison: eleven steps of the benchmark's warm-up."""
MOVES = (1e-5, 3e-5, 1e-4)


def kind_of(name: str) -> str:
    """A parameter's name without its layer's number."""
    return re.sub(r"^.*?\.\d+\.", "", name)


class Variant:
    """One way to train the same model on the same batch."""

    def __init__(self, bench: Bench, name: str, positions: int) -> None:
        dtype, compiled, fused, fused_loss = VARIANTS[name]
        torch.manual_seed(1)
        self.stepper: TrainStep
        self.stepper, stream = bench.stepper(
            positions, dtype=dtype, mode="gated", compile=compiled and bench.device == "cuda"
        )
        self.stepper.cuda_graphs = None  # microbatches are neither padded nor replayed
        self.stepper.set_microbatch_tokens(self.stepper.options.microbatch_tokens)
        self.stepper.trained.model.body.fused_gated = fused
        self.fused_loss = fused_loss
        self.share = self.stepper.prefetcher.batches(stream.step(1))
        groups = self.stepper.optimizer.param_groups
        self.parameters = {
            str(name): value for group in groups for name, value in zip(group["names"], group["params"], strict=True)
        }

    def gradients(self) -> dict[str, Tensor]:
        """On the CPU."""
        layers.FUSED_CROSS_ENTROPY = self.fused_loss
        self.stepper._compute_gradients(self.share)
        return {name: value.grad.cpu() for name, value in self.parameters.items() if value.grad is not None}

    def loss(self) -> float:
        layers.FUSED_CROSS_ENTROPY = self.fused_loss
        total = torch.zeros(3)
        for batch, _, _ in self.share.batches:
            with self.stepper._gate_open():  # with gradients, as only training takes the fused path
                total += self.stepper.loss_module(batch).detach().float().cpu()
        return sum(float(one) / count for one, count in zip(total, self.share.counts, strict=True))

    @torch.no_grad()
    def move(self, directions: dict[str, Tensor], by: float, kind: str = "") -> None:
        """Set `up` of the layers of this kind to a multiple of a direction, and of all others to zero."""
        for name, direction in directions.items():
            value = self.parameters[name]
            value.copy_(by * direction if kind in kind_of(name) else torch.zeros_like(value))


def compare(found: dict[str, Tensor], exact: dict[str, Tensor]) -> list[str]:
    """A line for each kind of parameter."""
    sums: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for name, reference in exact.items():
        if name not in found:
            sums[kind_of(name)].append((float("nan"),) * 3)
            continue
        one, other = found[name].double(), reference.double()
        sums[kind_of(name)].append(
            (float((one * other).sum()), float(other.square().sum()), float((one - other).square().sum()))
        )
    lines = []
    for kind, parts in sums.items():
        product, square, apart = (sum(column) for column in zip(*parts, strict=True))
        if square == 0:  # `down`, while `up` is zero
            lines.append(f"  {kind:<28}zero in float32; {'differs' if apart else 'the same'}")
            continue
        single = [own / size for own, size, _ in parts if size]
        lines.append(
            f"  {kind:<28}{product / square:10.5f}{(apart / square) ** 0.5:10.4f}{min(single):10.4f}{max(single):10.4f}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="chatterbox", choices=PUBLISHED)
    parser.add_argument("--size", default="full", choices=("tiny", "full"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS, help="float32 comes first")
    options = parser.parse_args(arguments)
    bench = Bench(options.family, options.size, options.device, steps=1)
    began = time.perf_counter()
    exact: list[dict[str, Tensor]] = []
    directions: dict[str, Tensor] = {}
    falls: dict[str, list[float]] = {}
    chosen = ["float32", *(name for name in options.variants if name != "float32")]
    for label in chosen:
        variant = Variant(bench, label, options.positions)
        made = [variant.gradients()]
        if not directions:
            directions = {name: -one.sign().to(bench.device) for name, one in made[0].items() if name.endswith(".up")}
        variant.move(directions, LEARNED)
        made.append(variant.gradients())
        print(f"\n{label}: {variant.share.num_positions:,} positions, {time.perf_counter() - began:.0f} s", flush=True)
        if not exact:
            exact = made
        else:
            for title, found, reference in zip(("nothing", f"{LEARNED:g}"), made, exact, strict=True):
                print(f"learned {title:<22}projection     error    lowest   highest")
                print("\n".join(compare(found, reference)), flush=True)
        kinds = sorted({kind_of(name) for name in directions})
        variant.move(directions, 0.0)
        before = variant.loss()
        falls[label] = [before]
        for kind in (*kinds, ""):
            for by in MOVES:
                variant.move(directions, by, kind)
                falls[label].append(before - variant.loss())
        del variant, made
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    layers.FUSED_CROSS_ENTROPY = False
    names = ["loss", *(f"{kind or 'all'} by {by:g}" for kind in (*kinds, "") for by in MOVES)]
    print(f"\nfall of the loss{'':<16}" + "".join(f"{label:>13}" for label in chosen))
    for at, name in enumerate(names):
        print(f"  {name:<30}" + "".join(f"{falls[label][at]:13.5f}" for label in chosen))
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
