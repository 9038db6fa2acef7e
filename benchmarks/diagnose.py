"""How long a diagnosis and a repair of full-size files take beside reading both once, and how much memory they need.

    python benchmarks/diagnose.py                        two T3 files of 2.1 GB, two gpt.pth of 3.5 GB
    python benchmarks/diagnose.py --size small --rounds 1  a few seconds, for trying the script
    python benchmarks/diagnose.py --files FOLDER --only-make   makes the files and keeps them, to be measured when it is quiet

A base of random weights is made, and beside it a checkpoint in which every tensor moved and the text tables grew: the
slowest case, since nothing is equal. Each measurement is a process of its own; files are warm in the page cache.
Reading once is `read` of both files in pieces of a megabyte. Prints JSON; ratios are medians over medians of one run.
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

from tools.random_bases import make_random_base
from voxgraft.checkpoints import Checkpoint, TensorInfo, open_checkpoint
from voxgraft.checkpoints.load import iter_values
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.core.files import atomic_write
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles

FAMILIES = ("chatterbox", "indextts2")
NEW_ROWS = 2000
MOVED = 0.02
READ_BYTES = 1 << 20


def main() -> None:
    options = _options()
    if options.child:
        _child(options.child, *map(Path, options.paths))
        return
    results = []
    for name in options.families:
        if options.files is not None:
            results.append(_measure(name, options, options.files / name))
            continue
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="diagnose-bench-") as folder:
            results.append(_measure(name, options, Path(folder)))
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.platform()}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    print(json.dumps({"date": now, **machine, **versions, "load": os.getloadavg()[0], "results": results}, indent=2))


def _measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    base, tuned = _files(name, options, folder)
    if options.only_make:
        return {"family": name, "files": [str(base.checkpoint), str(tuned)]}
    times: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for job in ("read", "diagnose", *(("repair",) if options.repair and not number else ())):
            output = folder / "repaired.safetensors"
            times.setdefault(job, []).append(_in_child(job, base, tuned, output))
            _remove(folder)
    seconds = {job: statistics.median(one["seconds"] for one in found) for job, found in times.items()}
    peaks = {job: max(one["peak_mb"] for one in found) for job, found in times.items()}
    return {
        "family": name,
        "bytes": [base.checkpoint.stat().st_size, tuned.stat().st_size],
        "seconds": seconds,
        "peak_mb": peaks,
        "by_reading_once": {job: round(value / seconds["read"], 2) for job, value in seconds.items()},
        "verdict": times["diagnose"][0].get("verdict"),
    }


def _files(name: str, options: argparse.Namespace, folder: Path) -> tuple[BaseFiles, Path]:
    """The base and the checkpoint that moved; what is there already is taken as it is."""
    if (folder / "base").is_dir():
        base = get_family(name).files(folder / "base")
    else:
        base = make_random_base(name, folder / "base", size=options.size)
    tuned = folder / f"tuned{base.checkpoint.suffix}"
    if not tuned.exists():
        _write_moved(name, base, tuned)
    return base, tuned


def _remove(folder: Path) -> None:
    """What a measurement has left."""
    for left in folder.glob("repaired*"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _write_moved(name: str, base: BaseFiles, path: Path) -> None:
    """Every value moved a little, text tables grown; streamed, so that this needs no memory either."""
    tables = {point.tensor for point in get_family(name).graft_points}
    with open_checkpoint(base.checkpoint) as checkpoint, atomic_write(path) as stream:
        tensors = {
            tensor: _moved(checkpoint, info, grown=tensor in tables) for tensor, info in checkpoint.tensors.items()
        }
        if path.suffix == ".safetensors":
            write_safetensors(stream, tensors)
        else:
            write_torch(stream, tensors, wrapper="model", extras={"step": 1000})


def _moved(checkpoint: Checkpoint, info: TensorInfo, *, grown: bool) -> TensorBytes:
    shape = (info.shape[0] + NEW_ROWS, *info.shape[1:]) if grown else info.shape

    def chunks() -> Iterator[bytes]:
        for raw in iter_values(checkpoint, info):
            yield (
                (raw * np.float32(1 + MOVED)).astype(np.float32).tobytes() if raw.dtype == np.float32 else raw.tobytes()
            )
        if grown:
            yield np.random.default_rng(0).normal(0.1, 0.05, (NEW_ROWS, *info.shape[1:])).astype("<f4").tobytes()

    return TensorBytes(info.dtype, shape, chunks)


def _in_child(job: str, *paths: Any) -> dict[str, float]:
    base, tuned, output = paths
    words = [sys.executable, __file__, "--child", job, str(base.folder), str(base.checkpoint), str(tuned), str(output)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _child(job: str, folder: Path, checkpoint: Path, tuned: Path, output: Path) -> None:
    began = time.monotonic()
    reported: dict[str, Any] = {}
    if job == "read":
        for path in (checkpoint, tuned):
            _read(path)
    elif job == "diagnose":
        from voxgraft.config.commands import DiagnoseSettings
        from voxgraft.inspect.diagnose import diagnose

        settings = DiagnoseSettings(checkpoint=tuned, base=folder, output=output.with_name("repaired-report"))
        reported["verdict"] = diagnose(settings).found.verdict.word
    else:
        from voxgraft.config.commands import RepairSettings
        from voxgraft.inspect.repair import repair

        repair(RepairSettings(checkpoint=tuned, base=folder, output=output, only=("rows", "body"), body=0.5))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": time.monotonic() - began, "peak_mb": round(peak, 1), **reported}))


def _read(path: Path) -> None:
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="full", choices=("tiny", "small", "full"))
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repair", action="store_true", help="also repair, once: writes and reads back a third file")
    parser.add_argument("--files", type=Path, help="folder for files that are kept, and taken if they are there")
    parser.add_argument("--only-make", action="store_true", help="measure nothing")
    parser.add_argument("--folder", type=Path, help="where temporary files go; four of them need 12 GB")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
