"""A growth that is killed leaves no output, and can be done again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from tests.support.checkpoint_files import saved, values
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import GrowthPlan, TableGrowth, grow_checkpoint, verify_growth
from voxgraft.core.files import compute_sha256

CHILD = """
import sys, time
from contextlib import contextmanager
from pathlib import Path
import numpy as np
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import GrowthPlan, TableGrowth, grow_checkpoint
from voxgraft.core import progress

class StopHalfWay:
    @contextmanager
    def task(self, name, total):
        done = 0
        def advance(amount):
            nonlocal done
            done += amount
            if done > total // 2:
                print("half way", flush=True)
                time.sleep(60)
        yield advance

plan = GrowthPlan({"table": TableGrowth(1000, 0, np.ones((10, 64), np.float32))})
with open_checkpoint(Path(sys.argv[1])) as checkpoint, progress.use_progress_listener(StopHalfWay()):
    grow_checkpoint(checkpoint, plan, Path(sys.argv[2]))
"""


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_process_killed_half_way_leaves_no_output(kind: str, tmp_path: Path) -> None:
    tensors = {f"t{n}": values(256, 1024, seed=n) for n in range(6)} | {"table": values(1000, 64)}
    path, output = tmp_path / "m", tmp_path / "out" / "g"
    save_file(tensors, path) if kind == "safetensors" else saved(tensors, path)
    before = compute_sha256(path)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(output)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half way\n"
    unfinished = [entry.stat().st_size for entry in output.parent.iterdir()]
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    assert len(unfinished) == 1
    assert unfinished[0] > 1 << 20  # it really was in the middle of writing
    assert not output.exists()
    assert all(entry.name.startswith(".") and entry.name.endswith(".part") for entry in output.parent.iterdir())
    assert compute_sha256(path) == before
    plan = GrowthPlan({"table": TableGrowth(1000, 0, np.ones((10, 64), np.float32))})
    with open_checkpoint(path) as old:
        grow_checkpoint(old, plan, output)
        with open_checkpoint(output) as new:
            assert verify_growth(old, new, plan).rows_new == 10
