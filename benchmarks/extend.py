"""How long growing a checkpoint takes against a plain copy of the same file, and how much memory it needs.

    python benchmarks/extend.py                       full size: a T3 file of 2.1 GB and a gpt.pth of 3.5 GB
    python benchmarks/extend.py --size small          a few seconds, for trying the script

Every round copies the file (`cp --reflink=never`, then `sync` of the copy) and grows it, with and without hashing, each
growth in a process of its own. Files are warm in the page cache; every time ends when the file is on the disk. Ratios
are medians over medians of the same run. Prints JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.families import PUBLISHED
from tools.random_bases import get_random_base_spec
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import (
    GrowthPlan,
    TableGrowth,
    TensorBytes,
    grow_checkpoint,
    verify_growth,
    write_safetensors,
    write_torch,
)
from voxgraft.core.files import atomic_write
from voxgraft.models import family_names, get_family

NEW_ROWS = 1046
"""2,454 rows become 3,500."""


def main() -> None:
    options = _options()
    if options.child:
        print(json.dumps(_child(Path(options.child[0]), Path(options.child[1]), options.families[0], options.hash)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="extend-bench-") as folder:
        results = [_measure(name, options.size, Path(folder), options.rounds) for name in options.families]
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.platform(), "cpu": _cpu()}
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    print(json.dumps({"date": now, **machine, **versions, "load": os.getloadavg()[0], "results": results}, indent=2))


def _measure(name: str, size: str, folder: Path, rounds: int) -> dict[str, Any]:
    source = folder / get_random_base_spec(name).checkpoint_name
    tensors = _make(source, name, size)
    num_bytes = source.stat().st_size
    target = folder / "target"
    copies, plain, hashed = [], [], []
    for _ in range(rounds):
        copies.append(_copy(source, target))
        plain.append(_grow_in_child(source, target, name, hashed=False))
        hashed.append(_grow_in_child(source, target, name, hashed=True))
    proof = _proof(source, target, name)
    source.unlink()
    target.unlink()
    copy = statistics.median(copies)
    return {
        "family": name,
        "file": source.name,
        "bytes": num_bytes,
        "tensors": tensors,
        "copy_seconds": _rounded(copies),
        "grow": _summary(plain, copy),
        "grow_with_sha256_of_input_and_output": _summary(hashed, copy),
        "proof": proof,
    }


def _summary(runs: list[dict[str, float]], copy: float) -> dict[str, Any]:
    seconds = [run["seconds"] for run in runs]
    return {
        "seconds": _rounded(seconds),
        "ratio_to_copy": round(statistics.median(seconds) / copy, 2),
        "process_seconds": _rounded([run["process_seconds"] for run in runs]),
        "peak_mb_above_start": round(max(run["peak_mb"] - run["start_mb"] for run in runs), 1),
        "start_mb": round(max(run["start_mb"] for run in runs), 1),
    }


def _make(path: Path, name: str, size: str) -> int:
    """A random checkpoint of the family, streamed; left warm in the page cache. The number of its tensors."""
    maker = get_random_base_spec(name)
    shapes = maker.shapes(maker.sizes[size])
    needed = 2 * sum(4 * int(np.prod(shape)) for shape in shapes.values()) + (1 << 30)
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        sys.exit(f"{path.parent} has {free:,} bytes free, {needed:,} are needed")

    def tensor(tensor_name: str, shape: tuple[int, ...]) -> TensorBytes:
        def chunks() -> Iterator[bytes]:
            for block in maker.blocks(tensor_name, shape, 0):
                yield block.tobytes()

        return TensorBytes("F32", shape, chunks)

    tensors = {tensor_name: tensor(tensor_name, shape) for tensor_name, shape in shapes.items()}
    with atomic_write(path) as stream:
        if path.suffix == ".safetensors":
            write_safetensors(stream, tensors)
        else:
            write_torch(stream, tensors)
    with path.open("rb") as warm:
        while warm.read(1 << 24):
            pass
    return len(tensors)


def _plan(path: Path, name: str) -> GrowthPlan:
    """Random new rows for every text table."""
    spare = get_family(name).spare_rows
    random = np.random.default_rng(0)
    tables = {}
    with open_checkpoint(path) as checkpoint:
        for point in get_family(name).graft_points:
            rows, *width = checkpoint.info(point.tensor).shape
            new = random.standard_normal((NEW_ROWS, *width), dtype=np.float32)
            tables[point.tensor] = TableGrowth(rows - spare, spare, new)
    return GrowthPlan(tables)


def _proof(source: Path, target: Path, name: str) -> dict[str, Any]:
    """The last output against its input: every byte that is not new is the same."""
    start = time.perf_counter()
    with open_checkpoint(source) as old, open_checkpoint(target) as new:
        proof = verify_growth(old, new, _plan(source, name))
    return {**proof.to_json(), "seconds": round(time.perf_counter() - start, 2)}


def _child(source: Path, target: Path, name: str, hashed: bool) -> dict[str, float]:
    """One growth in this process: its time, and its memory before and at the peak."""
    start_mb = _resident_mb()
    start = time.perf_counter()
    plan = _plan(source, name)
    with open_checkpoint(source) as checkpoint:
        grow_checkpoint(checkpoint, plan, target, hashed=hashed)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "start_mb": start_mb, "peak_mb": _peak_mb()}


def _grow_in_child(source: Path, target: Path, name: str, *, hashed: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(source), str(target), "--families", name]
    _clear(target)
    start = time.perf_counter()
    done = subprocess.run([*command, *(["--hash"] if hashed else [])], check=True, capture_output=True, text=True)
    return {**json.loads(done.stdout), "process_seconds": time.perf_counter() - start}


def _copy(source: Path, target: Path) -> float:
    _clear(target)
    start = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", str(source), str(target)], check=True)
    subprocess.run(["sync", str(target)], check=True)
    return time.perf_counter() - start


def _clear(target: Path) -> None:
    """Start with nothing left to write from before."""
    target.unlink(missing_ok=True)
    os.sync()


def _resident_mb() -> float:
    """Resident memory now (Linux), without what other processes of this run have used."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=["tiny", "small", "full"], default="full")
    parser.add_argument("--families", nargs="+", choices=family_names(), default=list(PUBLISHED))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the files are made and removed again")
    parser.add_argument("--hash", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
