"""One of several processes, for tests of what becomes of the rest when one ends: `python -m tests.support.workers.ending HOW`."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from voxgraft.core.errors import GraftError, VoxgraftError
from voxgraft.training import distributed
from voxgraft.training.distributed import join_distributed

FOREVER = 600.0


def main(how: str) -> None:
    torch.set_num_threads(1)
    distributed.HEARTBEAT_SECONDS, distributed.EXIT_GRACE_SECONDS, distributed.HEARTBEAT_TIMEOUT_SECONDS = 0.1, 0.5, 1.5
    with join_distributed("cpu") as group:
        if how == "differ":
            group.require_same({"saved steps": "step-000500", "torch": "1" if group.rank else "2"})
        for number in range(10**9):
            group.all_reduce_sum(torch.ones(3))
            if number == 20 and how == "once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
                print(f"process {group.rank} is fine", flush=True)
                return
            if number == 20 and group.rank == 1:
                end(how)
            if number == 20 and how in ("raise-while-others-hang", "stop"):
                time.sleep(FOREVER)  # as in a call that nothing breaks off


def end(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        time.sleep(1)  # some signs of life first
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "bug":
        raise RuntimeError("shapes do not fit")
    raise GraftError("pack-too-small", "clip 7 has 900 positions", expected="at most 400")


def work(how: str) -> None:
    """As a program does it: an error of ours is said, and ends with 2."""
    try:
        main(how)
    except VoxgraftError as error:
        sys.stderr.write(str(error))
        sys.exit(2)


if __name__ == "__main__":
    work(sys.argv[1])
