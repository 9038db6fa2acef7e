"""An exported IndexTTS-2 folder against its base, the graft and the golden list: every name, every shape, every bit.

    python -m tests.interop.indextts2_export [--work FOLDER]

At the published size: random weights, 3.5 GB, and 7 GB for the export; some minutes, 7 GB of memory. The same check runs
on a small export in the tests. Files are read by torch's own loader here, not by voxgraft's.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.support.shared import shared
from tests.support.synthesis import give_adapter
from tools.random_bases import make_random_base
from voxgraft.cli.app import run_cli

TABLES = ("text_embedding.weight", "text_head.weight", "text_head.bias")
CHECKPOINT = "gpt.pth"
PIECES = 40
Shapes = Mapping[str, tuple[int, ...]]
State = dict[str, torch.Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="voxgraft-export-", dir=arguments.work) as scratch:
        faults = exported_at_full_size(Path(scratch))
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")
    print("export: not as it should be" if faults else "export: all as it should be")
    return 1 if faults else 0


def exported_at_full_size(work: Path) -> list[str]:
    base, run = work / "base", work / "run"
    texts = str(resources.files("voxgraft") / "assets" / "demo" / "am.txt")
    began = time.monotonic()
    make_random_base("indextts2", base, size="full")
    for words in (
        ["new", str(run), "--base", str(base), "--language", "am", "--texts", texts],
        ["graft", str(run), f"--tokenizer.pieces={PIECES}"],
    ):
        assert run_cli([*words, "--quiet"]) == 0, words
    give_adapter(run / "graft", base, seed=1, strength=0.02)
    print(f"random base, graft and adapter: {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    assert run_cli(["export", str(run), "--to", "indextts2", "--quiet"]) == 0
    print(f"export of both folders, read again: {time.monotonic() - began:.0f} s", flush=True)
    golden = json.loads(shared("golden/indextts2/names.json").read_text(encoding="utf-8"))["unified_voice_full"]
    shapes = {name: tuple(shape) for name, shape in golden.items()}
    return faults_of(run / "export" / "indextts2", base, run / "graft", shapes, shapes)


def faults_of(export: Path, base: Path, graft: Path, names: Collection[str], shapes: Shapes | None = None) -> list[str]:
    """What is not as it must be in both folders; prints what was counted. `shapes` are those of the published base."""
    rows = load_file(graft / "rows.safetensors")
    old = opened(base / CHECKPOINT)
    faults: list[str] = []
    for part in ("extended", "merged"):
        new = opened(export / part / CHECKPOINT)
        faults += [f"{part}: {fault}" for fault in _names(new, names) + _forms(new, old, rows, shapes)]
        if not faults:
            changed = _changed(new, old)
            faults += [f"{part}: {fault}" for fault in _rows(new, old, rows)]
            faults += [f"{part}: {name} differs from the base" for name in sorted(changed) if part == "extended"]
            faults += [] if part == "extended" or changed else ["merged: nothing of the adapter is in it"]
            kept = old["text_embedding.weight"].shape[0] - 1
            print(
                f"{part}: {len(new)} of {len(names)} names, {len(new) - len(changed) - len(TABLES)} tensors and {kept:,} rows "
                f"with the base's bits, {len(changed)} changed"
            )
    return faults


def opened(path: Path) -> State:
    """By torch's own loader; values stay on the disk until they are looked at."""
    return dict(torch.load(path, weights_only=True, mmap=True))


def _names(new: State, names: Collection[str]) -> list[str]:
    wrong = {f"{name} is missing" for name in set(names) - set(new)} | {
        f"{name} is new" for name in set(new) - set(names)
    }
    return sorted(wrong)


def _forms(new: State, old: State, rows: State, shapes: Shapes | None) -> list[str]:
    faults = []
    for name in sorted(new.keys() & old.keys()):
        wanted = tuple(old[name].shape)
        if shapes is not None and wanted != tuple(shapes.get(name, ())):
            faults.append(f"the base's {name} is {wanted}, the golden list has {shapes.get(name)}")
        if name in TABLES:
            wanted = (wanted[0] + rows[name].shape[0], *wanted[1:])
        if tuple(new[name].shape) != wanted or new[name].dtype != old[name].dtype:
            faults.append(f"{name} is {new[name].dtype} {tuple(new[name].shape)}, not {old[name].dtype} {wanted}")
    return faults


def _rows(new: State, old: State, rows: State) -> list[str]:
    """Base rows first, the graft's next, the base's spare row last."""
    faults = []
    for name in TABLES:
        spare = old[name].shape[0] - 1
        wanted = torch.cat([old[name][:spare], rows[name].to(old[name].dtype), old[name][spare:]])
        if not _same_bits(new[name], wanted):
            faults.append(f"{name}: base rows, new rows and spare row are not in their places")
    return faults


def _changed(new: State, old: State) -> set[str]:
    return {name for name in new.keys() - set(TABLES) if not _same_bits(new[name], old[name])}


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8))


if __name__ == "__main__":
    sys.exit(main())
