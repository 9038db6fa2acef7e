"""The process between the server and a verb: starts it, outlives the server, and notes its end in the job folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from voxgraft.core.files import read_json, write_json
from voxgraft.core.run import machine_id, process_start_time


def run_job(folder: Path, lock: int) -> int:
    """Run one job to its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal to the group is for the verb. A function, since a child would inherit that a signal is ignored.
        signal.signal(number, lambda *_: None)
    asked = read_json(folder / "job.json")
    with (folder / "out.txt").open("wb") as out, (folder / "log.txt").open("ab") as log:
        child = subprocess.Popen(  # noqa: S603 (a list of words, never a shell)
            [sys.executable, "-P", "-m", "voxgraft", *asked["argv"]],
            cwd=asked["where"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            pass_fds=(lock,),
        )
    starts = {str(pid): process_start_time(pid) for pid in (child.pid, os.getpid())}
    about = {"pid": child.pid, "group": os.getpgrp(), "started": time.time(), "machine": machine_id()}
    write_json(folder / "pid.json", {**about, "starts": starts})
    if (folder / "stop.json").exists():  # asked before there was anybody to tell
        child.send_signal(signal.SIGINT)
    code = child.wait()
    write_json(folder / "exit.json", {"exit_code": code, "ended": time.time()})
    return 0


if __name__ == "__main__":
    sys.exit(run_job(Path(sys.argv[1]), int(sys.argv[2])))
