"""Errors are told apart where they arise: hardly any place may catch everything, and each of those says why."""

from __future__ import annotations

import ast
import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.pickle_mutations import HOSTILE
from tests.fuzz.target import CANARY, Target
from tests.fuzz.targets import make_target, target_names
from tools.measure_code import ROOT, load_modules, nodes_of

PACKAGE = ROOT / "voxgraft"
ALLOWED = {
    "cli/app.py": "the one place that shows a bug as a bug, with its own exit code",
    "tokenizers/formats.py": "the library raises nothing narrower than Exception for a document that it refuses",
    "checkpoints/load.py": "closes the files and raises the same error again",
    "companions/environments.py": "kills the stock program's process and raises the same error again",
    "companions/worker.py": "runs in the stock program's own environment, and tells the other end whatever it does wrong",
    "dataset/sets.py": "runs in a thread, and keeps the error for the thread that waits",
    "asr/__init__.py": "faster-whisper and the hub raise errors of many packages for a model that is not there",
    "ui/server.py": "answers a request that gradio fails on; errors of the disk are raised again",
    "server/app.py": "answers a request with OpenAI's error shape, whatever failed",
    "server/scheduler.py": "runs in threads: the requests of a batch fail, and the server remains",
    "nn/layers.py": "ends a failed capture of a CUDA graph and raises the same error again",
    "nn/decode.py": "a compiler's error in any form: torch's own kernels compute the same",
    "nn/flow_ops.py": "a compiler's error in any form: torch's own kernels compute the same",
    "checkpoints/write.py": "stops the hashing thread and raises the same error again",
}


def _broad_handlers(tree: ast.Module) -> Iterator[ast.ExceptHandler]:
    for node in nodes_of(tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {kind.id if isinstance(kind, ast.Name) else None for kind in kinds}
            if node.type is None or names & {"Exception", "BaseException"}:
                yield node


def _handlers() -> dict[str, list[ast.ExceptHandler]]:
    """The handlers that catch everything, by module."""
    found = {
        str(path.relative_to(PACKAGE)): list(_broad_handlers(tree)) for path, _, tree in load_modules(ROOT).values()
    }
    return {name: handlers for name, handlers in found.items() if handlers}


def test_only_the_named_places_catch_everything() -> None:
    assert set(_handlers()) == set(ALLOWED)


@pytest.mark.parametrize("name", [name for name, why in ALLOWED.items() if "again" in why])
def test_a_handler_that_only_tidies_up_raises_the_same_error_again(name: str) -> None:
    for handler in _handlers()[name]:
        last = handler.body[-1]
        assert isinstance(last, ast.Raise)
        assert last.exc is None


@pytest.mark.parametrize("name", [name for name in target_names() if "verbs" not in name])
def test_the_same_seed_and_number_give_the_same_mutant(name: str, tmp_path: Path) -> None:
    one, two = (_loaded(name, tmp_path) for _ in range(2))
    for number in (0, 1, 17, 300):
        assert one.numbered(5, number) == two.numbered(5, number)


def _loaded(name: str, folder: Path) -> Target:
    target = make_target(name)
    if not (folder / name).exists():
        (folder / name).mkdir()
        target.make_seeds(folder / name)
    target.load(folder / name)
    return target


def test_the_hostile_pickles_would_really_run_a_program(tmp_path: Path) -> None:
    """Otherwise it would prove nothing that they do not when they are read here."""
    ran = 0
    for snippet in HOSTILE:
        with contextlib.chdir(tmp_path), contextlib.suppress(Exception):
            pickle.loads(b"\x80\x04" + snippet + b".")
        ran += (tmp_path / CANARY).exists()
        (tmp_path / CANARY).unlink(missing_ok=True)
    assert ran >= 8
