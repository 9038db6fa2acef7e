"""The contract with users and other programs: files of a run, journal keys, JSON results and exit codes, in one snapshot.

Everything is observed from outside, through the command line and the files that it writes. `UPDATE_SNAPSHOTS=1` writes
the snapshot again; a change in it is a change for users and belongs in the release notes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SNAPSHOT = Path(__file__).parent / "snapshots" / "contract.json"
ROOT = Path(__file__).resolve().parent.parent
SHORT = (
    *("--train.steps=2", "--train.warmup-steps=1", "--train.rank=4", "--train.sample-every=1000"),
    *("--train.valid-every=2", "--train.save-every=1", "--train.log-every=1", "--tokenizer.pieces=20"),
    *("--data.min-prompt-seconds=0.5", "--train.sample-texts=am:ሰ", "--train.tensorboard=false"),
    *("--train.batch-tokens=256", "--max-sentences=2"),
)
"""A training of seconds."""


def command(folder: Path, *words: str) -> tuple[int, str]:
    """One command as a user runs it: exit code and standard output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "voxgraft", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.returncode, done.stdout


def shape_of(value: Any, depth: int = 2) -> Any:
    """The keys of a JSON value, `depth` levels of them; lists by their first item, other values by their kind."""
    if isinstance(value, dict):
        return {key: shape_of(item, depth - 1) for key, item in sorted(value.items())} if depth else "object"
    if isinstance(value, list):
        return [shape_of(value[0], depth - 1)] if value and depth else "list"
    return "null" if value is None else type(value).__name__


def masked(path: str) -> str:
    """A path without what differs between two runs: numbers, hashes."""
    return re.sub(r"[0-9a-f]{12,}", "HASH", re.sub(r"\d+", "N", path))


def observe(folder: Path) -> dict[str, Any]:
    """The contract as it is now."""
    found: dict[str, Any] = {"exit codes": {}, "json": {}}

    def run(name: str, *words: str, is_json: bool = True) -> None:
        code, output = command(folder, *words, *(["--json"] if is_json else []))
        found["exit codes"][name] = code
        if is_json:
            found["json"][name] = shape_of(json.loads(output))

    talks = subprocess.run(
        [sys.executable, "-c", "from pathlib import Path; import tests.test_contract as t; t.write_demo_talks(Path('talks'))"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert talks.returncode == 0, talks.stderr[-2000:]
    run("new", "new", "run", "--base", "tiny", "--language", "am", "--sources", "talks")
    run("go --dry-run", "go", "run", "--dry-run")
    run("go", "go", "run", *SHORT)
    run("go again", "go", "run")
    run("check", "check", "run")
    run("show", "show", "tiny")
    run("data info", "data", "info", "run/data")
    run("data list", "data", "list", "run")
    run("data text", "data", "text", "--language", "am", "በ1987")
    run("tokenizer show", "tokenizer", "show", "ሰላም", "--base", "tiny")
    run("diagnose", "diagnose", "run")
    run("speak", "speak", "ሰላም", "--run", "run", "--output", "said.wav", "--codes", "codes.json", "--max-seconds=0.4")
    run("clean", "clean", "run", "--yes")
    run("export", "export", "run", "--to", "graft", "--output", "out", "--data-licence", "CC0", "--consent", "yes")
    run("push", "push", "out", "out.zip")
    run("pull", "pull", "out.zip", "in")
    run("a missing file", "show", "nowhere")
    run("a wrong value", "train", "run", "--train.steps=-1")
    run("an unknown command", "fly", is_json=False)
    run("an unknown flag", "show", "tiny", "--wings", is_json=False)
    run("help", "--help", is_json=False)
    run("version", "--version", is_json=False)
    files = (path.relative_to(folder / "run").as_posix() for path in (folder / "run").rglob("*") if path.is_file())
    found["run folder"] = sorted({masked(path) for path in files if not Path(path).name.startswith(".")})
    lines = [json.loads(line) for line in (folder / "run" / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds: dict[str, set[str]] = {}
    for line in lines:
        kinds.setdefault(str(line.get("event", line.get("kind", "line"))), set()).update(line)
    found["journal"] = {kind: sorted(keys) for kind, keys in sorted(kinds.items())}
    for name in ("run/graft/graft.json", "run/card.json", "codes.json"):
        found["json"][Path(name).name] = shape_of(json.loads((folder / name).read_text(encoding="utf-8")), 1)
    return found


def write_demo_talks(folder: Path) -> None:
    """Four short talks with subtitles, of the speech that ships."""
    from voxgraft.demo.data import write_talks

    write_talks(folder, 4, 3)


@pytest.mark.long
def test_files_results_and_exit_codes_are_those_of_the_snapshot(tmp_path: Path) -> None:
    found = json.loads(json.dumps(observe(tmp_path)))
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        pytest.skip("the snapshot was written")
    expected = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    for part, values in expected.items():
        assert found[part] == values, part
