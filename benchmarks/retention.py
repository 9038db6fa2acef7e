"""What each way of training gains in a new language and costs in the old ones, by the ear: the picture of the README.

    python -m benchmarks.retention_data --packages packages --out retention.safetensors     # see there
    python -m benchmarks.retention run --data retention.safetensors --results results.jsonl [--earlier other.jsonl]
    python -m benchmarks.retention draw --results results.jsonl --out docs/images/retention [--log log.md]

The shipped base, which speaks English and French, learns Amharic by every method of `retention_methods`; the built-in
listener judges 200 sentences of each language. `run` needs torch, NumPy and safetensors only, and is made for one GPU
(several processes share it); with `--device cpu` and small numbers it can be tried anywhere. A second `run` with the same
results goes on with what is missing. `draw` needs matplotlib and no GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.retention_methods import JOBS

STEPS, TOKENS, SEEDS, DRAWS = 800, 2_560, 3, 3
GRACE_SECONDS = 60.0


def main() -> None:
    asked = _parser().parse_args()
    {"run": _run_all, "job": _run_job, "draw": _draw}[asked.what](asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="what", required=True)
    for name in ("run", "job"):
        verb = verbs.add_parser(name)
        verb.add_argument("--data", type=Path, required=True, help="what benchmarks.retention_data has written")
        verb.add_argument("--results", type=Path, required=True, help="file of results, one line each; gone on with")
        verb.add_argument("--base", type=Path, help="folder of the base (default: the one that ships)")
        verb.add_argument("--device", default="cuda")
        verb.add_argument("--steps", type=int, default=STEPS)
        verb.add_argument("--tokens", type=int, default=TOKENS, help="positions of a step (default: about 32 phrases)")
        verb.add_argument("--seeds", type=int, default=SEEDS)
        verb.add_argument(
            "--draws", type=int, default=DRAWS, help="how often a sentence is said (default: %(default)s)"
        )
        verb.add_argument("--sentences", type=int, help="at most so many of each language (default: all 200)")
        verb.add_argument("--held-out", type=int, help="at most so many held-out recordings (default: all 150)")
        verb.add_argument("--plain", action="store_true", help="compile and record nothing")
        verb.add_argument("--until", type=float, help="no run begins after this time of the clock")
    verbs.choices["run"].add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    verbs.choices["run"].add_argument(
        "--workers", type=int, default=10, help="processes at once (default: %(default)s)"
    )
    verbs.choices["run"].add_argument("--seconds", type=float, help="no run begins after so many")
    verbs.choices["run"].add_argument("--earlier", type=Path, help="results of an earlier call, to go on with")
    verbs.choices["job"].add_argument("--job", required=True, choices=list(JOBS))
    draw = verbs.add_parser("draw")
    draw.add_argument("--results", type=Path, required=True)
    draw.add_argument("--out", type=Path, required=True, help="the picture without its ending: .png and .svg are made")
    draw.add_argument("--log", type=Path, help="file for the tables (default: they are printed)")
    return parser


def _run_job(asked: argparse.Namespace) -> None:
    """One process."""
    import torch

    from benchmarks.retention_hearing import Judge
    from benchmarks.retention_jobs import Ledger, Work, facts_of
    from benchmarks.retention_material import Material
    from benchmarks.retention_training import Bench
    from voxgraft.models import get_family

    torch.set_num_threads(1)
    base = asked.base or get_family("tiny").shipped_folder()
    assert base is not None
    material = Material(asked.data)
    bench = Bench(material, base, asked.device, asked.steps, asked.tokens, asked.held_out, asked.plain)
    material.require_base(bench.files.checkpoint, base / "codec.safetensors")
    judge = Judge(bench, asked.sentences, asked.draws)
    ledger = Ledger(asked.results, facts_of(bench, judge), asked.until)
    Work(bench, judge, ledger, asked.seeds).do(asked.job)


@dataclass
class _Crew:
    """Processes at work. One that fails is started once more with nothing compiled."""

    command: list[str]
    workers: int
    waiting: list[tuple[str, bool]]
    until: float | None
    at_work: dict[str, tuple[subprocess.Popen[bytes], bool, float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def work(self) -> None:
        try:
            while self.waiting or self.at_work:
                while self.waiting and len(self.at_work) < self.workers:
                    self._start(*self.waiting.pop(0))
                time.sleep(0.5)
                self._look()
        finally:
            for process, _, _ in self.at_work.values():
                process.kill()

    def _start(self, job: str, plain: bool) -> None:
        extra = ["--job", job, *(["--plain"] if plain else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environment["PYTHONUNBUFFERED"] = "1"
        process = subprocess.Popen([*self.command, *extra], env=environment)
        self.at_work[job] = (process, plain, time.time())

    def _look(self) -> None:
        late = self.until is not None and time.time() > self.until + GRACE_SECONDS
        for job, (process, plain, started) in list(self.at_work.items()):
            if late:
                process.kill()
            code = process.poll() if not late else process.wait()
            if code is None:
                continue
            del self.at_work[job]
            print(
                f"job {job}: {'done' if code == 0 else f'exit {code}'} after {time.time() - started:.0f} s", flush=True
            )
            if code != 0 and not plain and not late:
                self.waiting.insert(0, (job, True))
            elif code != 0:
                self.failed.append(job)


def _run_all(asked: argparse.Namespace) -> None:
    """All processes."""
    started = time.time()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever ends this ends its processes
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    if asked.earlier and not asked.results.exists():
        shutil.copyfile(asked.earlier, asked.results)
    until = asked.until or (started + asked.seconds if asked.seconds else None)
    command = [sys.executable, "-m", "benchmarks.retention", "job"]
    for name in ("data", "results", "base", "device", "steps", "tokens", "seeds", "draws", "sentences", "held_out"):
        value = getattr(asked, name)
        command += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    command += ["--until", str(until)] if until else []
    crew = _Crew(command, asked.workers, [(job, asked.plain) for job in JOBS if job in asked.jobs], until)
    crew.work()
    print(f"all jobs ended after {time.time() - started:.0f} s; failed: {', '.join(crew.failed) or 'none'}", flush=True)
    raise SystemExit(1 if crew.failed else 0)


def _draw(asked: argparse.Namespace) -> None:
    from benchmarks.retention_drawing import drawn
    from benchmarks.retention_jobs import read_results
    from benchmarks.retention_tables import tables

    results = read_results(asked.results)
    for form, content in drawn(results).items():
        path = asked.out.with_suffix(f".{form}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    text = tables(results)
    if asked.log:
        asked.log.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
