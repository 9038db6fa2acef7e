"""Whether a run that cannot learn is seen, and one that can is left in peace: plateaus made on purpose, and healthy runs.

    python -m benchmarks.plateaus [FOLDER] [--jobs 12] [--out FILE.json] [--first-seed 100] [--healthy 20]

Tiny bases that read made-up English aloud are taught made-up Amharic by the real verb, each run from another seed and
with other settings, in processes of one thread. Any finding of level warning or error is an alarm. In a healthy run it
is a false one; a plateau is seen when an alarm that names its cause comes within 500 steps. Ends with 1 unless there is
no false alarm and every plateau of the seeds is seen; what lies beyond them is shown. Needs no GPU; about a minute a run
on one core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.plateau_runs import BEYOND, FAULTS, MOST_STEPS, WAYS, Task, Told, make_base, make_run
from voxgraft.training.validation import LearningThresholds

FAMILIES = ("chatterbox", "indextts2")
SIZES = (800, 300, 1_500)
"""Clips of healthy runs, in turn."""


def main() -> None:
    """Train all, print the tables, write them, and say in one line whether all is well."""
    asked = _asked()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are to come
    started = time.perf_counter()
    reported: list[Told] = []
    with tempfile.TemporaryDirectory() as made:
        for one in _all_told(asked, asked.folder or Path(made)):
            print(_line(one), flush=True)
            reported.append(one)
            reported.sort(key=lambda one: (list(FAULTS).index(one.fault) if one.fault else -1, one.seed))
            summary = _summary(reported, asked, time.perf_counter() - started)
            if asked.out:  # anew each time, so that what is done is known even if the rest never is
                asked.out.write_text(json.dumps(summary, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"thresholds: {LearningThresholds()}", *_healthy_table(reported), "", *_spoiled_table(reported), "", sep="\n")
    print(summary["in_words"])
    sys.exit(0 if summary["all_well"] else 1)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?", help="where bases and runs are left; empty means nowhere")
    parser.add_argument("--out", type=Path, help="file for all that was told, as JSON")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, one run and one thread each")
    parser.add_argument("--first-seed", type=int, default=100, help="seed of the first run")
    parser.add_argument("--healthy", type=int, default=20, help="healthy runs, shared by the families")
    parser.add_argument("--steps", type=int, default=MOST_STEPS, help="of healthy runs")
    parser.add_argument("--spoiled-steps", type=int, default=350, help="of runs that cannot learn")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), help="plateaus to be made; empty means none")
    return parser.parse_args()


def _all_told(asked: argparse.Namespace, folder: Path) -> Iterator[Told]:
    """Every run as soon as it is over. Runs of a family begin when its base is there."""
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
        bases = {pool.submit(make_base, name, folder / f"base-{name}"): name for name in asked.families}
        runs: list[Future[Told]] = []
        for base in as_completed(bases):
            tasks = _tasks(asked, folder, bases[base], base.result())
            runs += [pool.submit(make_run, task, keep=asked.folder is not None) for task in tasks]
        for run in as_completed(runs):
            yield run.result()


def _tasks(asked: argparse.Namespace, folder: Path, name: str, base: Path) -> list[Task]:
    """All runs of a family, the longest first."""
    tasks = []
    for at in range(asked.families.index(name), asked.healthy, len(asked.families)):
        turn, seed = at // len(asked.families), asked.first_seed + at
        way = list(WAYS)[turn % len(WAYS)]
        size = SIZES[(turn + turn // len(WAYS)) % len(SIZES)]
        place = folder / f"healthy-{seed}-{name}"
        tasks.append(Task(f"{way}, {size:,} clips", name, seed, asked.steps, place, base, way=way, clips=size))
    tasks.sort(key=lambda task: "mode" not in WAYS[task.way])
    for at, fault in enumerate(asked.faults):
        seed = asked.first_seed + 50 + at * len(asked.families) + asked.families.index(name)
        place = folder / f"{re.sub('[^a-z]+', '-', fault)}-{seed}-{name}"
        tasks.append(Task(fault, name, seed, asked.spoiled_steps, place, base, fault=fault))
    return tasks


def _line(reported: Told) -> str:
    said = (
        "failed: " + reported.failed.splitlines()[-1]
        if reported.failed
        else f"before {reported.before}, during {reported.during}"
    )
    return f"{reported.name} ({reported.family}, seed {reported.seed}, {reported.seconds:.0f} s): {said}, {reported.states}"


def _summary(reported: Sequence[Told], asked: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Everything for programs, and one line for people."""
    healthy = [one for one in reported if not one.fault]
    seeds, beyond = ([one for one in reported if one.fault and (one.fault in BEYOND) is far] for far in (False, True))
    alarmed, missed, beyond_missed = ([one for one in group if not one.good] for group in (healthy, seeds, beyond))
    wanted = asked.healthy + len(asked.faults) * len(asked.families)
    failed = sum(bool(one.failed) for one in reported)
    well = bool(reported) and len(reported) == wanted and not alarmed and not missed and not failed
    last = max([one.seen[0] for one in seeds if one.seen], default=0)
    peak_mb = max([one.peak_mb for one in reported], default=0)
    in_words = (
        f"{'all well' if well else 'NOT WELL'}: {len(alarmed)} of {len(healthy)} healthy runs with a false alarm; "
        f"{len(seeds) - len(missed)} of {len(seeds)} plateaus of the seeds told by their cause, the last at step {last}, "
        f"and {len(beyond) - len(beyond_missed)} of {len(beyond)} beyond them; "
        f"{failed} runs failed, {wanted - len(reported)} not made; "
        f"{seconds / 60:.1f} min with {asked.jobs} jobs, up to {peak_mb:,} MB each"
    )
    return {
        "all_well": well,
        "in_words": in_words,
        "num_healthy": len(healthy),
        "false_alarms": [_line(one) for one in alarmed],
        "num_plateaus": len(seeds),
        "missed": [_line(one) for one in missed],
        "num_beyond_the_seeds": len(beyond),
        "missed_beyond_the_seeds": [_line(one) for one in beyond_missed],
        "last_seen_at_step": last,
        "seconds": round(seconds, 1),
        "jobs": asked.jobs,
        "first_seed": asked.first_seed,
        "thresholds": asdict(LearningThresholds()),
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0]},
        "runs": [{**asdict(one), "seen": one.seen, "good": one.good} for one in reported],
    }


def _healthy_table(reported: Sequence[Told]) -> list[str]:
    columns = ("healthy run", "family", "seed", "alarms", "notes", "state (from step)", "loss", "text use", "voice use")
    return _table(
        columns,
        [
            (
                one.name,
                one.family,
                str(one.seed),
                "failed" if one.failed else _alarms(one.alarms) or "none",
                ", ".join(one.notes),
                ", ".join(f"{state} ({step})" for step, state in one.states),
                f"{one.first_loss:.2f} to {one.speech_loss:.2f}",
                f"{one.text_use:.2f}",
                f"{one.voice_use:.3f}",
            )
            for one in reported
            if not one.fault
        ],
    )


def _spoiled_table(reported: Sequence[Told]) -> list[str]:
    """What `train` refuses was trained all the same."""
    columns = (
        "plateau",
        "family",
        "told by",
        "at step",
        "before step 1",
        "on the way (step)",
        "state (from step)",
        "loss",
    )
    return _table(
        columns,
        [
            (
                one.name,
                one.family,
                "failed" if one.failed else one.seen[1] if one.seen else "MISSED",
                str(one.seen[0]) if one.seen else "",
                ("refused: " if one.refused else "") + ", ".join(dict.fromkeys(one.before)),
                _alarms(one.during),
                ", ".join(f"{state} ({step})" for step, state in one.states),
                f"{one.first_loss:.2f} to {one.speech_loss:.2f}",
            )
            for one in reported
            if one.fault
        ],
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """In Markdown, for docs/log.md."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] if rows else []


def _alarms(alarms: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{code} ({step})" for step, code in dict.fromkeys(alarms))


if __name__ == "__main__":
    main()
