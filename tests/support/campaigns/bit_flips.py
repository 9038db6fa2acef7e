"""One flipped bit in a file of a prepared run: `check` finds it, `train` refuses it, or it changes nothing that is trained.

    python -m tests.support.campaigns.bit_flips --flips 200 --out flips.json

Half of the flips are drawn by file and then by byte, half by byte over all files together, so that small files have their
part and large ones too. After each flip the run is checked and trained for two steps; what is not refused must end with
the very bits of the run that was left alone. In run.yaml a flip may make another valid value, which is what a user who
edits the file does: these are counted by themselves. Ends with 1 if a flip was used without a word.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.preprocess_runs import Preparing, make, resolved
from voxgraft.checkpoints.steps import load_step
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.inspect.check import check
from voxgraft.pipeline.train import train

FLAGS = {
    "train.steps": 2,
    "train.warmup_steps": 1,
    "train.batch_tokens": 400,
    "train.rank": 2,
    "train.log_every": 1,
    "train.device": "cpu",
    "train.tensorboard": "false",
    "train.sample_every": 1000,
    "train.sample_texts": "am:ሰ",
    "train.sample_sound": "false",
    "data.min_prompt_seconds": 0.1,
}


@dataclass(frozen=True)
class Flip:
    """One flip, and what became of it."""

    file: str
    at: int
    bit: int
    near: str
    """The text around it, where it is in a text."""
    check: str
    """Codes of the errors that `check` found; empty for none."""
    train: str
    """The code that `train` ended with; empty where it came to its end."""
    same: bool
    """Whether what was trained has the bits of the run that was left alone."""

    @property
    def verdict(self) -> str:
        if self.check or self.train:
            bug = "bug" in (self.check, self.train)
            return "BUG" if bug else "found by check and train" if self.check and self.train else "found by one"
        if self.same:
            return "harmless: the same bits"
        return "another valid setting" if self.file == RUN_FILE else "SILENT"


def flips(place: Preparing, folder: Path, count: int, seed: int = 0) -> list[Flip]:
    """Flip bits in copies of a prepared run, one at a time."""
    draw = random.Random(seed)
    files = sorted(path for path in place.run.path.rglob("*") if path.is_file() and path.name != ".lock")
    sizes = [path.stat().st_size for path in files]
    straight = _trained(place.copied(folder / "straight"))
    found = []
    for number in range(count):
        by_file = number % 2 == 0
        path = draw.choice(files) if by_file else draw.choices(files, sizes)[0]
        name = str(path.relative_to(place.run.path))
        found.append(_flipped(place, folder / "flipped", name, draw, straight))
        shutil.rmtree(folder / "flipped")
    return found


def _flipped(place: Preparing, folder: Path, name: str, draw: random.Random, straight: Any) -> Flip:
    copy = place.copied(folder)
    path = copy.run.path / name
    data = bytearray(path.read_bytes())
    at, bit = draw.randrange(len(data)), draw.randrange(8)
    near = bytes(data[max(0, at - 20) : at + 20]).decode(errors="replace") if path.suffix != ".safetensors" else ""
    data[at] ^= 1 << bit
    path.write_bytes(data)
    checked = _code(lambda: _errors(copy))
    outcome: list[Any] = []
    ended = _code(lambda: outcome.append(_trained(copy)) or "")  # type: ignore[func-returns-value]
    return Flip(name, at, bit, near, checked, ended, bool(outcome) and _is_same(outcome[0], straight))


def _code(call: Callable[[], str]) -> str:
    try:
        return call()
    except VoxgraftError as error:
        return error.code
    except Exception:
        traceback.print_exc()
        return "bug"


def _errors(place: Preparing) -> str:
    result = check(resolved(["check", *_words(place)]))
    return ",".join(sorted({item.code for item in result.findings if item.level == "error"}))


def _trained(place: Preparing) -> dict[str, Any]:
    train(resolved(["train", *_words(place)]))
    state = load_step(RunFolder(place.run.path)).state
    return {f"{group}/{name}": value for group, named in state.tensors.items() for name, value in named.items()}


def _words(place: Preparing) -> list[str]:
    return [str(place.run.path), *(f"--{key.replace('_', '-')}={value}" for key, value in FLAGS.items())]


def _is_same(found: dict[str, Any], straight: dict[str, Any]) -> bool:
    return found.keys() == straight.keys() and all(torch.equal(found[name], straight[name]) for name in straight)


def table(found: Sequence[Flip]) -> list[str]:
    """How many of each verdict, by file."""
    verdicts = sorted({one.verdict for one in found})
    lines = [f"| file | flips | {' | '.join(verdicts)} |", f"| --- | ---: |{' ---: |' * len(verdicts)}"]
    for name in [*sorted({one.file for one in found}), "all"]:
        mine = [one for one in found if name in (one.file, "all")]
        counts = Counter(one.verdict for one in mine)
        lines.append(f"| {name} | {len(mine)} | {' | '.join(str(counts[verdict]) for verdict in verdicts)} |")
    return lines


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for every flip")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "made")
        place = Preparing(folder / "made")
        place.prepare()
        found = flips(place, folder, asked.flips, asked.seed)
    print("\n".join(table(found)))
    for one in found:
        if one.verdict not in ("found by check and train",):
            print(f"{one.verdict}: {one.file} at {one.at}, check {one.check!r}, train {one.train!r}: {one.near!r}")
    if asked.out:
        asked.out.write_text(json.dumps([{**asdict(one), "verdict": one.verdict} for one in found], indent=1) + "\n")
    return 1 if any(one.verdict in ("SILENT", "BUG") for one in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
