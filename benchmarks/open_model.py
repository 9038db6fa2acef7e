"""Open a base's model, grow its text rows, save it, and open that again: seconds and peak memory of each step.

    python -m benchmarks.open_model                    all published families at full size (6 GB of disk each in turn)
    python -m benchmarks.open_model --size tiny

Each step runs in a process of its own, so that its peak memory is its own. The last one
compares the saved file with the base, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tests.support.families import PUBLISHED
from voxgraft.models.base import Family

NUM_NEW = 600
STEPS = ("open", "grow and save", "open again", "compare")


def measured_step(step: str, family_name: str, folder: Path) -> dict[str, Any]:
    """One step in this process, and what it took."""
    from voxgraft.models import get_family

    kind = get_family(family_name)
    start = time.perf_counter()
    note = {"open": opened, "grow and save": saved, "open again": opened_again, "compare": compared}[step](kind, folder)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": round(seconds, 1), "peak_gb": round(peak / 1e6, 2), "note": note}


def opened(kind: Family, folder: Path) -> str:
    from voxgraft.models.speech_model import load_model

    model = load_model(kind, kind.files(folder / "base"))
    return f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(model.state_dict())} tensors"


def saved(kind: Family, folder: Path) -> str:
    from voxgraft.models.speech_model import grow_model, load_model, save_model

    files = kind.files(folder / "base")
    model = load_model(kind, files)
    grow_model(model, NUM_NEW)
    grown = folder / "grown"
    grown.mkdir()
    save_model(model, grown / files.checkpoint.name)
    shutil.copy(files.tokenizer, grown)
    if files.config is not None:
        settings = yaml.safe_load(files.config.read_text())
        settings["gpt"]["number_text_tokens"] += NUM_NEW
        (grown / files.config.name).write_text(yaml.safe_dump(settings))
    return f"{NUM_NEW} new rows, {(grown / files.checkpoint.name).stat().st_size / 1e9:.2f} GB"


def opened_again(kind: Family, folder: Path) -> str:
    from voxgraft.models.base import BaseFiles
    from voxgraft.models.speech_model import load_model

    base = kind.files(folder / "base")
    config = None if base.config is None else folder / "grown" / base.config.name
    model = load_model(
        kind, BaseFiles(folder / "grown", folder / "grown" / base.checkpoint.name, base.tokenizer, config)
    )
    return f"{model.num_text_ids:,} text ids, {len(model.state_dict())} tensors"


def compared(kind: Family, folder: Path) -> str:
    """The saved file against the base, tensor by tensor, with nothing opened as a model."""
    import torch

    from voxgraft.checkpoints.load import iter_tensors, read_tensor_shapes

    checkpoint = kind.files(folder / "base").checkpoint
    tables = {point.tensor for point in kind.graft_points}
    shapes = read_tensor_shapes(checkpoint)
    grown_shapes = read_tensor_shapes(folder / "grown" / checkpoint.name)
    changed = 0
    for name, shape in shapes.items():
        old = next(iter_tensors(checkpoint, {name: shape}))[1]
        new = next(iter_tensors(folder / "grown" / checkpoint.name, {name: grown_shapes[name]}))[1]
        pieces = shape[0] - kind.spare_rows if name in tables else shape[0] if shape else 0
        changed += not torch.equal(old[:pieces], new[:pieces])
    return f"{changed} of {len(shapes)} tensors changed in the base's rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="full", choices=("tiny", "small", "full"))
    parser.add_argument("--families", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--folder", type=Path, help="where to work (a temporary folder by default)")
    parser.add_argument("--step", nargs=2, metavar=("FAMILY", "STEP"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(measured_step(arguments.step[1], arguments.step[0], arguments.folder)))
        return
    from tools.random_bases import make_random_base

    for name in arguments.families:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            make_random_base(name, folder / "base", size=arguments.size)
            size = sum(f.stat().st_size for f in (folder / "base").glob("*"))
            print(f"\n{name}, {size / 1e9:.2f} GB\n| step | seconds | peak GB | |\n|---|---|---|---|")
            for step in STEPS:
                command = [sys.executable, "-m", "benchmarks.open_model", "--folder", str(folder), "--step", name, step]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                print(f"| {step} | {found['seconds']} | {found['peak_gb']} | {found['note']} |", flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
