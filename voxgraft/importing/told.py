"""Every problem that is known of a dataset: those of its sources, and of files that no source was made of.

What was found while looking for sources is kept by place, so that an import replaces only what it looked at again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from voxgraft.errors import Finding
from voxgraft.files import atomic_write, is_file, parse_json, read_lines
from voxgraft.importing.dataset import IMPORTS_FOLDER, DatasetFolder
from voxgraft.importing.problems import SourceProblem
from voxgraft.results import Line

__all__ = ["PROBLEMS_FILE", "collect_problems", "format_problems", "store_scan_problems", "write_problems_file"]

PROBLEMS_FILE = "problems.jsonl"
SCAN_PROBLEMS_FILE = ".found"
"""In the folder of the journals, and none of them."""
MAX_SHOWN_PROBLEMS = 12
SHOWN_NOTE_CODES = ("table-duplicate",)
"""Notes about which a user can do something."""


def collect_problems(dataset: DatasetFolder) -> list[SourceProblem]:
    """Everything that is known, of every import so far, with whole paths: every list may be called metadata.csv."""
    kept = []
    for journal in dataset.journals():
        text = Path(str(journal.source.get("text")))
        folder = text if journal.source.get("kind") == "folder" else text.parent
        kept += [replace(problem, file=str(folder / problem.file)) for problem in journal.problems]
    return list(dict.fromkeys((*kept, *_read_scan_problems(dataset))))


def store_scan_problems(
    dataset: DatasetFolder, places: Sequence[Path], problems: Iterable[SourceProblem]
) -> list[SourceProblem]:
    """Note what was found in places while looking for sources, instead of what was found in them before."""
    looked = [os.path.abspath(place) for place in places]
    now = [replace(problem, file=os.path.abspath(problem.file)) for problem in problems]
    before = [
        problem for problem in _read_scan_problems(dataset) if not any(_is_under(problem.file, one) for one in looked)
    ]
    _write_problems_jsonl(dataset.folder / IMPORTS_FOLDER / SCAN_PROBLEMS_FILE, dict.fromkeys((*before, *now)))
    return now


def write_problems_file(dataset: DatasetFolder) -> None:
    """Write `problems.jsonl` anew, each problem with its cure."""
    known = collect_problems(dataset)
    _write_problems_jsonl(
        dataset.folder / PROBLEMS_FILE, [replace(problem, cure=problem.finding().cure) for problem in known]
    )


def format_problems(problems: Sequence[SourceProblem], file: Path) -> list[Line]:
    """The worst problems in full, some of each kind, and how many there are of each kind."""
    if not problems:
        return ["every line of the sources was used"]
    order = {"error": 0, "warning": 1, "note": 2}
    turns: Counter[str] = Counter()
    ranked: list[tuple[int, int, Finding]] = []
    for item in (problem.finding() for problem in problems):
        ranked.append((order[item.level], turns[item.code], item))  # one of each kind before the second of any
        turns[item.code] += 1
    ranked.sort(key=lambda one: one[:2])
    shown = [item for _, _, item in ranked if item.level != "note" or item.code in SHOWN_NOTE_CODES][
        :MAX_SHOWN_PROBLEMS
    ]
    told = ", ".join(f"{code} {count:,}" for code, count in turns.most_common())
    lines: list[Line] = [line for item in shown for line in item.lines()]
    return [*lines, f"not used as they stand: {told} (every line: {file})"]


def _read_scan_problems(dataset: DatasetFolder) -> list[SourceProblem]:
    path = dataset.folder / IMPORTS_FOLDER / SCAN_PROBLEMS_FILE
    if not is_file(path) or path.stat().st_size == 0:
        return []
    return [SourceProblem.from_json(parse_json(line, path)) for _, line in read_lines(path)]


def _is_under(file: str, place: str) -> bool:
    return file == place or file.startswith(place.rstrip(os.sep) + os.sep)


def _write_problems_jsonl(path: Path, problems: Iterable[SourceProblem]) -> None:
    with atomic_write(path, overwrite=True) as stream:
        for problem in problems:
            stream.write(json.dumps(problem.to_json(), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
