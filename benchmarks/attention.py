"""How fast attention over packed sequences is: torch's varlen_attn, and our tiles cut in several ways, in one run.

    python3 -m benchmarks.attention                on a GPU, about a minute
    python3 -m benchmarks.attention --quick        fewer ways

Times are of the device alone: ten launches recorded as a CUDA graph, the median of several replays. Errors are the
largest distance from float32, of numbers that are of order one. A way that fails is told and left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from voxgraft.nn import attention
from voxgraft.nn.attention import TileConfig

WIDTH, LONGEST = 64, 1536
LAUNCHES, REPLAYS, WORKERS, PATIENCE_SECONDS = 10, 7, 14, 45
CUTS: dict[str, list[TileConfig]] = {
    "forward": [
        TileConfig(64, 64, 4, 2, True),
        TileConfig(64, 64, 4, 2, False),
        TileConfig(64, 64, 4, 2, True, True),
        TileConfig(64, 64, 4, 3, True),
        TileConfig(64, 64, 4, 3, False),
        TileConfig(128, 64, 8, 2, True),
        TileConfig(64, 64, 4, 4, False),
        TileConfig(64, 32, 4, 2, True),
        TileConfig(64, 32, 4, 3, False),
        TileConfig(64, 128, 4, 2, False),
        TileConfig(128, 64, 8, 3, False),
        TileConfig(128, 64, 4, 2, False),
        TileConfig(128, 128, 8, 2, False),
        TileConfig(64, 64, 4, 2, False, registers=96),
    ],
    "queries": [
        TileConfig(64, 64, 4, 2, True),
        TileConfig(64, 64, 4, 2, False),
        TileConfig(64, 64, 4, 2, True, True),
        TileConfig(64, 64, 4, 3, True),
        TileConfig(64, 64, 4, 3, False),
        TileConfig(128, 64, 8, 2, True),
        TileConfig(64, 32, 4, 2, True),
        TileConfig(64, 32, 4, 3, False),
        TileConfig(64, 32, 4, 2, False),
        TileConfig(128, 64, 8, 2, False),
        TileConfig(64, 64, 4, 2, False, registers=104),
    ],
    "keys": [
        TileConfig(64, 64, 4, 2, True),
        TileConfig(64, 64, 4, 2, False),
        TileConfig(64, 32, 4, 2, True),
        TileConfig(64, 32, 4, 2, True, True),
        TileConfig(64, 32, 4, 3, False),
        TileConfig(64, 32, 4, 2, False),
        TileConfig(64, 64, 4, 3, False),
        TileConfig(64, 64, 4, 2, False, registers=168),
        TileConfig(64, 32, 4, 3, False, registers=128),
        TileConfig(128, 32, 8, 2, False),
        TileConfig(128, 64, 8, 2, False),
        TileConfig(64, 64, 8, 2, False),
        TileConfig(64, 16, 4, 3, False),
    ],
}


def some_lengths(num_positions: int) -> np.ndarray[Any, Any]:
    """50 to 1,500 positions, 260 on average, as many as it takes."""
    draw = np.random.default_rng(0)
    found: list[int] = []
    while sum(found) < num_positions:
        found.append(int(np.clip(np.exp(np.log(220) + 0.58 * draw.standard_normal()), 50, 1500)))
    found[-1] -= sum(found) - num_positions
    return np.asarray([length for length in found if length > 0])


@dataclass
class Case:
    """A pack with its gradient, and what float32 makes of it."""

    lengths: np.ndarray[Any, Any]
    qkv: tuple[Tensor, Tensor, Tensor]
    d_out: Tensor
    expected: list[Tensor]

    @classmethod
    def make(cls, num_positions: int, num_heads: int) -> Case:
        torch.manual_seed(0)
        lengths = some_lengths(num_positions)
        numbers = torch.randn(4, num_positions, num_heads, WIDTH, device="cuda", dtype=torch.bfloat16)
        q, k, v, d_out = numbers.unbind()
        leaves = [one.float().requires_grad_() for one in (q, k, v)]
        parts = zip(*(one.split(lengths.tolist()) for one in leaves), strict=True)
        out = torch.cat([_exactly(*part) for part in parts])
        expected = [out.detach(), *torch.autograd.grad(out, leaves, d_out.float())]
        return cls(lengths, (q, k, v), d_out, expected)

    def list_for(self, kernel: str, cut: TileConfig) -> Tensor:
        """As long as that of a recording for many packs."""
        entries = attention.build_tile_list(self.lengths, cut.tile, from_end=kernel == "keys")
        most = len(self.d_out) // cut.tile + int(1.1 * len(self.lengths)) + 16
        padded = np.concatenate([entries, np.zeros((most - len(entries), 3), dtype=np.int64)])
        return torch.from_numpy(padded.astype(np.int32)).to(self.d_out.device)


def _exactly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[L, H, D] each, float32"""
    scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH**0.5
    later = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


def kernels(
    case: Case, out: Tensor, log_total: Tensor, pairs: Tensor
) -> dict[str, Callable[[TileConfig], Callable[[], Any]]]:
    """Each kernel as something to call, once its list is made."""
    qkv, d_out = case.qkv, case.d_out

    def forward(cut: TileConfig) -> Callable[[], Any]:
        entries = case.list_for("forward", cut)
        return lambda: attention.attention_forward(*qkv, entries, cut)

    def queries(cut: TileConfig) -> Callable[[], Any]:
        entries = case.list_for("queries", cut)
        return lambda: attention.attention_query_gradients(qkv, (out, d_out), log_total, entries, cut)

    def keys(cut: TileConfig) -> Callable[[], Any]:
        entries = case.list_for("keys", cut)
        return lambda: attention.attention_key_gradients(qkv, d_out, pairs, entries, cut)

    return {"forward": forward, "queries": queries, "keys": keys}


def warm_up() -> None:
    """The device's clocks need some work before they are what they stay at."""
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(200):
        x @ x
    torch.cuda.synchronize()


def milliseconds(launch: Callable[[], Any]) -> float:
    stream: torch.cuda.Stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / LAUNCHES)
    return statistics.median(times[1:])


def distances(found: Any, expected: list[Tensor]) -> str:
    return " ".join(f"{float((a.float() - b).abs().max()):.4f}" for a, b in zip(found, expected, strict=False))


def measure_varlen(case: Case) -> float:
    """Prints what torch's own takes; gives forward and backward together."""
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int32)).cuda()
    leaves = q, k, v = [one.detach().requires_grad_() for one in case.qkv]
    theirs: Any = varlen_attn

    def forward() -> Tensor:
        out: Tensor = theirs(q, k, v, offsets, offsets, LONGEST, LONGEST, window_size=(-1, 0))
        return out

    def both() -> list[Tensor]:
        out = forward()
        return [out.detach(), *torch.autograd.grad(out, leaves, case.d_out)]

    one, two = milliseconds(forward), milliseconds(both)
    found = distances(both(), case.expected)
    print(f"varlen_attn            forward {one:.4f} ms, backward {two - one:.4f} ms; errors {found}", flush=True)
    return two


def measure_whole(case: Case) -> float | None:
    """The operator as training calls it, cut as the module says."""
    lists = attention.build_work_lists(
        case.lengths, attention.max_num_tiles(len(case.d_out), len(case.lengths) + 16)
    ).cuda()
    leaves = q, k, v = [one.detach().requires_grad_() for one in case.qkv]

    def both() -> list[Tensor]:
        out = attention.tiled_attention(q, k, v, lists)
        return [out.detach(), *torch.autograd.grad(out, leaves, case.d_out)]

    one, two = milliseconds(lambda: attention.tiled_attention(q, k, v, lists)), milliseconds(both)
    found, again = both(), both()
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    print(f"tiles, as they are set forward {one:.4f} ms, backward {two - one:.4f} ms; ", end="")
    print(f"errors {distances(found, case.expected)}; the same twice: {same}", flush=True)
    return None


def measure_cuts(case: Case, cuts: dict[str, list[TileConfig]]) -> dict[str, list[tuple[float, TileConfig]]]:
    """Every kernel cut in every way, quickest first."""
    out = case.expected[0].to(case.d_out.dtype)
    usual = TileConfig(64, 64, 4, 2, False)
    _, log_total = attention.attention_forward(*case.qkv, case.list_for("forward", usual), usual)
    _, pairs = attention.attention_query_gradients(
        case.qkv, (out, case.d_out), log_total, case.list_for("queries", usual), usual
    )
    wanted = {"forward": case.expected[:1], "queries": case.expected[1:2], "keys": case.expected[2:]}
    found: dict[str, list[tuple[float, TileConfig]]] = {}
    for name, prepared in kernels(case, out, log_total, pairs).items():
        found[name] = []
        for cut in cuts[name]:
            label = f"{name:8} tile {cut.tile:3} block {cut.block:3} warps {cut.warps} stages {cut.stages} peel {cut.peel:d} heads first {cut.heads_first:d} registers {cut.registers or '-'}"
            try:
                launch = prepared(cut)
                error = distances(launch(), wanted[name])
                taken = milliseconds(launch)
            except Exception as failed:
                print(f"{label}: failed: {str(failed)[-160:]!r}", flush=True)
                continue
            found[name].append((taken, cut))
            print(f"{label}: {taken:.4f} ms, error {error}", flush=True)
        found[name].sort(key=lambda one: one[0])
    return found


def compile_one(name: str, cut: TileConfig) -> None:
    """Into the compiler's cache on disk, from where other processes have it."""
    if not torch.cuda.is_available():
        return
    lengths = np.asarray([100, 28])
    q = torch.zeros(128, 16, WIDTH, device="cuda", dtype=torch.bfloat16)
    lines = torch.zeros(16, 128, device="cuda")
    case = Case(lengths, (q, q, q), q, [])
    kernels(case, q, lines, torch.zeros(16, 128, 2, device="cuda"))[name](cut)()
    torch.cuda.synchronize()


def compile_all(cuts: dict[str, list[TileConfig]]) -> None:
    """Beside each other; what goes wrong here is told when it is measured."""
    began = time.perf_counter()
    pool = ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))
    jobs = [pool.submit(compile_one, name, cut) for name, ways in cuts.items() for cut in ways]
    failed = 0
    for job in jobs:
        try:
            failed += job.exception(timeout=max(0.1, PATIENCE_SECONDS + began - time.perf_counter())) is not None
        except Exception:
            failed += 1
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:  # one that still compiles would be in the way
        worker.terminate()
    print(f"{len(jobs)} kernels compiled in {time.perf_counter() - began:.0f} s, {failed} failed", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=16384)
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 20])
    parser.add_argument("--quick", action="store_true", help="four ways of each kernel")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    cuts = {name: ways[:4] for name, ways in CUTS.items()} if options.quick else CUTS
    compile_all(cuts)
    for at, num_heads in enumerate(options.heads):
        case = Case.make(options.positions, num_heads)
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}: {options.positions} positions,", end=" ")
        print(f"{len(case.lengths)} sequences up to {case.lengths.max()}, {num_heads} heads x {WIDTH}", flush=True)
        theirs = None
        warm_up()
        for measure in (measure_varlen, measure_whole):
            try:
                theirs = measure(case) or theirs
            except Exception as failed:
                print(f"{measure.__name__} failed: {str(failed)[-600:]!r}", flush=True)
        found = measure_cuts(case, cuts)
        if all(found.values()):
            best = {name: ways[0] for name, ways in found.items()}
            ours = sum(taken for taken, _ in best.values())
            print("best:", *(f"{name} {taken:.4f} {cut}" for name, (taken, cut) in best.items()), sep="\n  ")
            ratio = "" if theirs is None else f", varlen_attn {theirs:.4f} ms: {theirs / ours:.2f} x"
            print(f"together {ours:.4f} ms{ratio}", flush=True)
        if at == 0:
            cuts = {name: [cut for _, cut in ways[:3]] for name, ways in found.items()}


if __name__ == "__main__":
    main()
