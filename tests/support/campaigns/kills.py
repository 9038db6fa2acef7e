"""Trainings that are really killed, again and again, and continued with: do they end as the one that was left alone?

    python -m tests.support.campaigns.kills --kills 100 --in-saves 40 --jobs 12 --out kills.json

Every life of a run is a process of its own that SIGKILL ends. One kind of kill hits anywhere: from outside, after a
random number of lines of the journal and a random wait. The other hits inside a save, at a random one of the points that
saves cross. Then the run is continued with to its end, and everything is compared with the straight run, bit for bit. A
kill that came too late, when the run was over, does not count, and another is made in its place; that run is compared as
well. `--each N` kills every run up to N times in a row before it may end. Ends with 1 unless all are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from tests.support.runs import Child, child
from tests.support.trainers import OPTIONS, Place
from tests.support.workers.kill import ENDED, life
from voxgraft.checkpoints.steps import list_complete_steps, load_step
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.run import JournalEntry, RunFolder, RunJournal, strip_clock_fields

PATIENCE_SECONDS = 300
LONG = {"steps": 12}
"""The runs of a campaign; those of the suite are shorter."""
Kind = Literal["in a save", "anywhere"]
MOST_TRIES = 20
"""Runs that are made to hit as often as wanted, for each kill of them."""
COMPARED = ("weights", "optimizer", "state", "steps", "losses", "rates", "clip ids", "journal")


class LifeError(Exception):
    """A life that ended with an error of its own."""


@dataclass(frozen=True)
class Kill:
    """One life of a run, and how it ended."""

    kind: Kind
    at: str
    """The point of a save, or the line of the journal."""
    from_step: int
    """The saved step that this life began with; -1 where none was there yet."""
    hit: bool
    """Whether SIGKILL ended it, and not the end of training."""


@dataclass(frozen=True)
class Round:
    """One run, killed and continued with to its end."""

    family: str
    kills: tuple[Kill, ...]
    different: tuple[str, ...]
    """What was not as in the straight run."""

    @property
    def was_killed(self) -> bool:
        return any(kill.hit for kill in self.kills)

    @property
    def same(self) -> bool:
        return not self.different


@dataclass(frozen=True)
class Straight:
    """The run that was left alone."""

    lives: Lives
    run: Path
    points: tuple[str, ...]
    """Everything that its saves crossed, in order."""

    @property
    def num_lines(self) -> int:
        return len(RunJournal(RunFolder(self.run).journal).read())

    @property
    def line_seconds(self) -> float:
        """Between two lines of the journal."""
        times = [line["wall_time"] for line in RunJournal(RunFolder(self.run).journal).read()]
        return float(times[-1] - times[0]) / len(times)


@dataclass(frozen=True)
class Lives:
    """How the runs of a campaign are trained."""

    place: Place
    changed: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the tests' own options and intervals."""

    @property
    def num_steps(self) -> int:
        return int(self.changed.get("steps", OPTIONS.steps))

    def start(self, run: Path, fault: str = "") -> Child:
        """A life of a run, which writes down the points that its saves cross."""
        _points(run).unlink(missing_ok=True)
        return child(life, self.place.folder, run, self.changed, _points(run), fault=fault)

    def finish(self, run: Path) -> tuple[str, ...]:
        """Train to the end; gives the points that were crossed."""
        points, was_killed = _ended(self.start(run), run)
        if was_killed:
            raise LifeError("killed by somebody else")
        return tuple(points)


def left_alone(lives: Lives, run: Path) -> Straight:
    return Straight(lives, run, lives.finish(run))


def differences(run: Path, straight: Path) -> tuple[str, ...]:
    """What a run did not end with as the straight one did, of all that is compared."""
    mine, wanted = _ending(run), _ending(straight)
    return tuple(name for name in COMPARED if not _is_equal(mine[name], wanted[name]))


def rounds(
    lives: Lives, folder: Path, kills: int, in_saves: int, seed: int = 0, *, each: int = 1, jobs: int = 1
) -> list[Round]:
    """Runs that are killed so often in all, each compared with one that was left alone."""
    family_name = lives.place.family_name
    straight = left_alone(lives, folder / f"straight-{family_name}")
    kinds: list[Kind] = ["in a save" if at < in_saves else "anywhere" for at in range(kills)]
    random.Random(f"{seed} {family_name}").shuffle(kinds)
    shares = [kinds[at : at + each] for at in range(0, kills, each)]
    places = [folder / f"{family_name}-{at}" for at in range(len(shares))]
    with ThreadPoolExecutor(jobs) as pool:  # threads only wait: all work is in processes of their own
        draws = [random.Random(f"{seed} {family_name} {at}") for at in range(len(shares))]
        made = pool.map(_killed_as_wanted, [straight] * len(shares), places, shares, draws)
        return [one for some in made for one in some]


def _killed_as_wanted(straight: Straight, folder: Path, wanted: Sequence[Kind], draw: random.Random) -> list[Round]:
    """As many runs as it takes to hit as often as wanted: one, unless a run was over too soon."""
    left, made = list(wanted), []
    for number in range(MOST_TRIES * len(wanted)):
        run = folder.with_name(f"{folder.name}.{number}")
        kills: list[Kill] = []
        try:
            while left and (not kills or kills[-1].hit):
                kills.append(_one_kill(straight, run, left[0], draw))
                del left[: kills[-1].hit]
            straight.lives.finish(run)
            different = differences(run, straight.run)
        except (LifeError, VoxgraftError) as error:
            different = (f"not continued with: {error}",)
        made.append(Round(straight.lives.place.family_name, tuple(kills), different))
        if made[-1].same:
            shutil.rmtree(run)
        if not left or not made[-1].same:
            break
    return made


def _one_kill(straight: Straight, run: Path, kind: Kind, draw: random.Random) -> Kill:
    run.mkdir(exist_ok=True)
    saved = max(list_complete_steps(RunFolder(run)), default=-1)
    if kind == "in a save":
        return _killed_in_a_save(straight, run, saved, draw)
    steps = [line["step"] for line in RunJournal(RunFolder(run).journal).read()]
    kept = sum(step <= saved for step in steps)
    first = kept if len(steps) > kept else kept + 1  # a kill at the cut, where there will be one
    lines = draw.randint(first, max(first, straight.num_lines - 1))
    hit = _killed_anywhere(straight.lives, run, (kept, lines), draw.uniform(0, straight.line_seconds))
    return Kill(kind, f"line {lines}", saved, hit)


def _killed_in_a_save(straight: Straight, run: Path, saved: int, draw: random.Random) -> Kill:
    """Kill at a point of a save. Every point is as likely as any other, however often it is crossed."""
    point = draw.choice(sorted(set(straight.points)))
    to_come = round(straight.points.count(point) * (1 - max(0, saved) / straight.lives.num_steps))
    started = straight.lives.start(run, f"{point}:{draw.randint(1, max(1, to_come))}:kill")
    crossed, hit = _ended(started, run)
    return Kill("in a save", point, saved, hit and point in crossed)


def _killed_anywhere(lives: Lives, run: Path, lines: tuple[int, int], wait_seconds: float) -> bool:
    """Kill a moment after the journal has so many lines, and was cut before to those that stay."""
    started = lives.start(run)
    kept, wanted = lines
    path = RunFolder(run).journal
    was_cut = False
    while not started.has_answered():
        found = path.read_bytes().count(b"\n") if path.exists() else 0
        was_cut |= found <= kept
        if was_cut and found >= wanted:
            time.sleep(wait_seconds)
            os.kill(started.process.pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    return _ended(started, run)[1]


def _ended(started: Child, run: Path) -> tuple[list[str], bool]:
    """The points that a life has crossed, and whether SIGKILL ended it: then it has answered nothing."""
    code = started.wait(PATIENCE_SECONDS)
    if started.answer not in (ENDED, None) or (started.answer is None and code != -signal.SIGKILL):
        raise LifeError(f"exit code {code}: {started.answer}")
    return _points(run).read_text().split() if _points(run).exists() else [], started.answer is None


def _points(run: Path) -> Path:
    return run.with_name(f"{run.name}.points")


def _ending(run: Path) -> dict[str, Any]:
    """Everything that a run ended with, under the names of what is compared."""
    state = load_step(RunFolder(run)).state
    groups = {name: dict(tensors) for name, tensors in state.tensors.items()}
    journal = [strip_clock_fields(line) for line in RunJournal(RunFolder(run).journal).read()]
    return {
        "optimizer": groups.pop("optimizer"),
        "weights": {f"{group}/{name}": value for group, named in groups.items() for name, value in named.items()},
        "state": {"step": state.step, **state.values},
        "steps": [(line["kind"], line["step"]) for line in journal],
        "losses": [_named(line, "text_loss", "speech_loss") for line in journal],
        "rates": [_named(line, "rates") for line in journal],
        "clip ids": [_named(line, "clips") for line in journal],
        "journal": journal,
    }


def _named(line: JournalEntry, *names: str) -> JournalEntry:
    return {name: line[name] for name in names if name in line}


def _is_equal(mine: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and any(isinstance(value, torch.Tensor) for value in wanted.values()):
        return mine.keys() == wanted.keys() and all(_is_same_bits(mine[name], wanted[name]) for name in wanted)
    return bool(mine == wanted)


def _is_same_bits(mine: torch.Tensor, wanted: torch.Tensor) -> bool:
    return mine.dtype == wanted.dtype and torch.equal(mine, wanted)


def summary_of(found: Sequence[Round], asked: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """What there is to know, for programs, and in one line for people."""
    kills = [kill for one in found for kill in one.kills]
    hits = [kill for kill in kills if kill.hit]
    in_saves = [kill for kill in hits if kill.kind == "in a save"]
    same = sum(one.same for one in found)
    points = Counter(kill.at for kill in in_saves)
    well = bool(found) and same == len(found) and len(hits) >= asked.kills and len(in_saves) >= asked.in_saves
    in_words = (
        f"{'all well' if well else 'NOT WELL'}: {len(found)} runs ({', '.join(asked.families)}) killed {len(hits)} times, "
        f"{len(in_saves)} of them inside a save at {len(points)} different points, each continued with; {same} of {len(found)} "
        f"ended as the straight run: {', '.join(COMPARED)}; {len(kills) - len(hits)} kills came too late and do not count; "
        f"{seconds / 60:.1f} min with {asked.jobs} jobs"
    )
    return {
        "all_well": well,
        "in_words": in_words,
        "runs": len(found),
        "same": same,
        "kills": len(hits),
        "kills_in_saves": len(in_saves),
        "kills_too_late": len(kills) - len(hits),
        "most_kills_of_a_run": max([sum(kill.hit for kill in one.kills) for one in found], default=0),
        "kills_that_began_with_a_saved_step": sum(kill.from_step >= 0 for kill in hits),
        "points": dict(sorted(points.items())),
        "compared": COMPARED,
        "different": {name: sum(name in one.different for one in found) for name in COMPARED},
        "seconds": round(seconds, 1),
        "jobs": asked.jobs,
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0]},
        "rounds": [asdict(one) for one in found],
    }


def main() -> None:
    asked = _asked()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as made:
        found = _rounds_of_all(asked, Path(asked.folder or made))
    summary = summary_of(found, asked, time.perf_counter() - started)
    for one in found:
        if not one.same:
            print(f"{one.family}: {one.kills} ended with other {', '.join(one.different)}")
    print(f"points: {summary['points']}", summary["in_words"], sep="\n")
    if asked.out:
        asked.out.write_text(json.dumps(summary, indent=1), encoding="utf-8")
    sys.exit(0 if summary["all_well"] else 1)


def _rounds_of_all(asked: argparse.Namespace, folder: Path) -> list[Round]:
    """The families share kills and jobs."""
    count = len(asked.families)
    places = [Place.make(name, folder / name) for name in asked.families]

    def make(at: int) -> list[Round]:
        kills, in_saves = (_share(number, at, count) for number in (asked.kills, asked.in_saves))
        jobs = max(1, asked.jobs // count)
        return rounds(Lives(places[at], LONG), folder, kills, in_saves, asked.seed, each=asked.each, jobs=jobs)

    with ThreadPoolExecutor(min(asked.jobs, count)) as pool:
        return [one for some in pool.map(make, range(count)) for one in some]


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--in-saves", type=int, default=40, help="so many of them inside a save")
    parser.add_argument("--each", type=int, default=1, help="kills of one run, in a row")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each a process of one thread")
    parser.add_argument("--families", nargs="+", default=["chatterbox", "indextts2"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where runs that ended otherwise are left; empty means nowhere")
    parser.add_argument("--out", type=Path, help="file for the summary, as JSON")
    return parser.parse_args()


def _share(count: int, at: int, shared_by: int) -> int:
    return count * (at + 1) // shared_by - count * at // shared_by


if __name__ == "__main__":
    main()
