"""A companion's worker that does as it is asked: answers, fails, prints, waits for ever, dies. A real process, with real ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "voxgraft" / "companions"))
worker: Any = import_module("worker")

Words = dict[str, Any]
Arrays = dict[str, Any]
SAMPLES_PER_CODE = 960


def echo(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    print("a library that talks", words.get("text"), flush=True)
    os.write(1, b"and one that writes to the descriptor\n")
    return {"text": words.get("text"), "pid": os.getpid()}, {name: array * 2 for name, array in arrays.items()}


def fail(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    raise ValueError("the original program cannot do that")


def wait(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    """For ever, with a child that would outlive it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(words["sign"]).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
    return {}, {}


def die(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    print("these are its last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}, {}


def sound(words: Words, arrays: Arrays) -> tuple[Words, Arrays]:
    """A tone as long as the codes say, whose height tells which voice was given."""
    if words.get("seed") is None or not Path(words["s3gen"]).is_file():
        raise ValueError("not asked as the real worker is")
    high = 440.0 if "reference" in arrays else 220.0
    time_s = np.arange(SAMPLES_PER_CODE * len(arrays["codes"])) / 24_000
    return {"sample_rate": 24_000}, {"samples": (0.2 * np.sin(2 * np.pi * high * time_s)).astype(np.float32)}


if __name__ == "__main__":
    if "broken" in sys.argv:
        sys.exit("ModuleNotFoundError: No module named 'chatterbox'")
    if "noise" in sys.argv:
        os.write(1, b"this is no frame of ours, and long enough to be read as one")
        time.sleep(600)
    worker.serve({"echo": echo, "fail": fail, "wait": wait, "die": die, "sound": sound}, {"versions": {"fake": "1"}})
