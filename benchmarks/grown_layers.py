"""What the grown layers cost against plain ones of the same size, side by side, and where one matmul is not enough.

    python benchmarks/grown_layers.py [--rounds 30]

Needs torch only. Each line is the median of the rounds of each, taken in turn, and the ratio of the two medians.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.nn.rows import GrownEmbedding, GrownHead, compute_base_fingerprint, freeze_base, grow_layers

# family: pieces, new rows, spare rows, width
SIZES = {"T3": (2454, 1500, 0, 1024), "IndexTTS-2": (12_000, 2000, 1, 1280)}
POSITIONS = (1, 256, 4096)


def median_seconds(calls: list[Callable[[], object]], rounds: int, device: str) -> list[float]:
    """Medians of calls made in turn, so that all of them meet the same noise."""
    times: list[list[float]] = [[] for _ in calls]
    for round_index in range(rounds + 3):
        for call, seconds in zip(calls, times, strict=True):
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if round_index >= 3:  # the first ones warm up
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def forward_and_backward(layer: nn.Module, given: Tensor) -> None:
    layer.zero_grad()
    layer(given).sum().backward()


def compare(name: str, plain: nn.Module, grown: nn.Module, given: Tensor, rounds: int) -> None:
    def forward(layer: nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: layer(given))

    device = given.device.type
    alone = median_seconds([forward(plain), forward(grown)], rounds, device)
    both = median_seconds(
        [lambda: forward_and_backward(plain, given), lambda: forward_and_backward(grown, given)], rounds, device
    )
    cells = [f"{1e3 * a:.3f} | {1e3 * b:.3f} | {b / a:.2f}" for a, b in (alone, both)]
    print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)


def layers_of(family: str, device: str) -> tuple[nn.Module, nn.Module, nn.Module, nn.Module]:
    """A plain grown table as one parameter, and ours, for embedding and head."""
    pieces, num_new, spare, width = SIZES[family]
    rows = pieces + num_new + spare
    embedding, head = nn.Embedding(rows, width, device=device), nn.Linear(width, rows, device=device)
    grown_head = GrownHead.from_grown(head.weight, pieces, spare, bias=head.bias)
    return embedding, GrownEmbedding.from_grown(embedding.weight, pieces, spare), head, grown_head


def one_matmul_differs(family: str, device: str) -> list[str]:
    """For how many positions the base's columns of one matmul over all rows have the bits of the base alone."""
    pieces, num_new, spare, width = SIZES[family]
    base = torch.randn(pieces + spare, width, device=device)
    head = GrownHead.from_base(base, num_new, spare)
    whole = torch.cat([base, head.new_weight.detach()])
    cells = []
    for positions in (1, 2, 7, 33, 128):
        hidden = torch.randn(positions, width, device=device)
        alone = F.linear(hidden, base)
        one = torch.equal(F.linear(hidden, whole)[:, : len(base)], alone)
        two = torch.equal(head.base_logits(hidden), alone)
        cells.append(f"{positions}: one {'same' if one else 'DIFFERS'}, two {'same' if two else 'DIFFERS'}")
    return cells


def hash_rate() -> str:
    model = nn.Sequential(nn.Embedding(12_001, 1280), *(nn.Linear(4096, 4096, bias=False) for _ in range(8)))
    grow_layers(model, ["0"], 2000, 1)
    freeze_base(model)
    num_bytes = sum(4 * tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    start = time.perf_counter()
    compute_base_fingerprint(model)
    seconds = time.perf_counter() - start
    return f"base_fingerprint: {num_bytes / 1e6:.0f} MB in {seconds:.2f} s ({num_bytes / seconds / 1e9:.2f} GB/s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()}-thread CPU"
    print(f"torch {torch.__version__}, {platform.machine()}, {name}; milliseconds, float32\n")
    print("| layer, positions | forward plain | grown | ratio | forward + backward plain | grown | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for family, (pieces, num_new, _, width) in SIZES.items():
        embedding, grown_embedding, head, grown_head = layers_of(family, device)
        for positions in POSITIONS:
            ids = torch.randint(pieces + num_new, (positions,), device=device)
            compare(f"{family} embedding, {positions}", embedding, grown_embedding, ids, rounds)
        for positions in POSITIONS[:2] if device == "cpu" else POSITIONS:
            hidden = torch.randn(positions, width, device=device)
            compare(f"{family} head, {positions}", head, grown_head, hidden, rounds)
    print()
    for family in SIZES:
        print(f"base columns, {family}: {'; '.join(one_matmul_differs(family, device))}")
    print(hash_rate())


if __name__ == "__main__":
    main()
