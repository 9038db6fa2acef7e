"""Mutation check: change one place of a core module at a time and see whether the fast tests notice.

    python tools/mutate.py --count 40 --seed 1             # run 40 mutations, spread over the topics
    python tools/mutate.py --topic sampler --count 10      # of one topic
    python tools/mutate.py --count 40 --list               # print the mutations and run nothing

Works on a copy of the tree; the tree itself is never changed. Exit code 0 if at most 5 % survive, 1 if more do, 2 if a
test fails without a mutation. Modules and their tests are in one table, `TOPICS`: adjust it when a module moves.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_SURVIVING_SHARE = 0.05
TIMEOUT_SECONDS = 400
# Imported once and inherited by every run through fork; they take longer to import than most tests take to run.
PRELOADED = ("torch", "numpy", "pytest", "hypothesis", "safetensors", "sentencepiece", "tokenizers", "pydantic", "yaml")


@dataclass(frozen=True, slots=True)
class Topic:
    """Core modules, and the fast tests that exercise them: the quickest and most specific first."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    functions: tuple[str, ...] = ()
    """Only these top-level functions and classes; all of them if empty."""


TOPICS = (
    Topic(
        "layout",
        ("voxgraft/models/base.py",),
        ("tests/test_sequence.py", "tests/contract/test_refusals.py", "tests/contract/test_agreement.py"),
        (
            "SequenceSpec",
            "SequencePart",
            "TokenSequence",
            "build_sequence",
            "code_position",
            "_build_part",
            "_validate_ids",
        ),
    ),
    Topic(
        "packing",
        ("voxgraft/models/speech_model.py",),
        (
            "tests/test_packing.py",
            "tests/contract/test_refusals.py",
            "tests/contract/test_agreement.py",
            "tests/contract/test_spans.py",
            "tests/contract/test_promises.py",
        ),
        (
            "LossSums",
            "pack_batch",
            "compute_hidden_states",
            "compute_losses",
            "compute_speech_latents",
            "_pack_part",
            "_require_part",
        ),
    ),
    Topic(
        "rows",
        ("voxgraft/nn/rows.py",),
        ("tests/test_nn_rows.py", "tests/test_nn_rows_frozen.py", "tests/contract/test_promises.py"),
    ),
    Topic(
        "row-init",
        ("voxgraft/graft/rows.py",),
        ("tests/test_rows_init.py", "tests/test_graft_and_extend.py", "tests/test_check_rows.py"),
    ),
    Topic(
        "gate",
        ("voxgraft/nn/adapter.py",),
        (
            "tests/test_nn_adapter.py",
            "tests/test_nn_adapter_models.py",
            "tests/test_nn_low_rank.py",
            "tests/test_nn_peft.py",
        ),
    ),
    Topic(
        "sampler",
        ("voxgraft/dataset/sampler.py",),
        ("tests/test_dataset_sampler.py", "tests/test_dataset_packing.py"),
    ),
    Topic(
        "checkpoint",
        ("voxgraft/training/checkpoint.py", "voxgraft/checkpoints/steps.py"),
        (
            "tests/test_steps_save.py",
            "tests/test_steps_load.py",
            "tests/test_steps_errors.py",
            "tests/test_clean.py",
            "tests/test_steps_killed.py",
            "tests/test_training_loop.py",
        ),
    ),
    Topic(
        "files",
        (
            "voxgraft/checkpoints/base.py",
            "voxgraft/checkpoints/write.py",
            "voxgraft/checkpoints/torch_file.py",
            "voxgraft/checkpoints/pickles.py",
        ),
        (
            "tests/test_tensors.py",
            "tests/test_checkpoints_read.py",
            "tests/test_checkpoints_write.py",
            "tests/test_checkpoints_refused.py",
            "tests/test_checkpoints_grow.py",
            "tests/test_checkpoints_fuzz.py",
            "tests/fuzz/test_fuzz_checkpoints.py",
        ),
    ),
    Topic(
        "forms",
        ("voxgraft/checkpoints/load.py",),
        (
            "tests/test_tensors.py",
            "tests/test_base_folders.py",
            "tests/test_verdict_table.py",
            "tests/test_checkpoints_refused.py",
        ),
    ),
    Topic(
        "tokenizer",
        ("voxgraft/tokenizers/train.py", "voxgraft/tokenizers/formats.py", "voxgraft/tokenizers/__init__.py"),
        (
            "tests/test_tokenizers_formats.py",
            "tests/test_tokenizers_merges.py",
            "tests/test_tokenizers_characters.py",
            "tests/test_tokenizers_promise.py",
            "tests/test_tokenizers_languages.py",
            "tests/test_tokenizers_prove.py",
            "tests/test_text_read.py",
        ),
    ),
    Topic(
        "normalizer",
        tuple(str(path.relative_to(ROOT)) for path in sorted((ROOT / "voxgraft/text/normalize").glob("*.py"))),
        (
            "tests/test_text_rules.py",
            "tests/test_text_generic.py",
            "tests/test_text_normalize.py",
            "tests/test_text_pronunciations.py",
            "tests/test_text_front_end.py",
        ),
    ),
    Topic("xtts-text", ("voxgraft/models/xtts/text.py",), ("tests/test_xtts_text.py",)),
    Topic("spans", ("voxgraft/text/spans.py",), ("tests/test_text_spans.py",)),
    Topic("batching", ("voxgraft/synthesis/batching.py",), ("tests/test_batching.py", "tests/test_serve.py")),
)


def find_missing() -> list[str]:
    """Names in `TOPICS` that the tree no longer has: modules and tests that moved, functions that were renamed."""
    missing = [path for topic in TOPICS for path in (*topic.modules, *topic.tests) if not (ROOT / path).is_file()]
    for topic in TOPICS:
        trees = [ast.parse((ROOT / path).read_bytes()) for path in topic.modules if topic.functions]
        defined = {
            node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        missing += [f"{topic.name}: {name}" for name in topic.functions if name not in defined]
    return missing


COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Texts for people and protocols of Python: a change there is no change of behaviour that a test should fix.
SKIPPED_FUNCTIONS = frozenset({"__repr__", "extra_repr", "_shorten_json", "_format_rows"})
# Progress, hints to the system and points at which tests stop a process: leaving one out changes no result.
SKIPPED_CALLS = ("advance", "failpoint", "progress.", "os.posix_fadvise")
MESSAGE_NAMES = frozenset({"found", "cure", "text", "more", "fate", "what", "expected", "share", "shown", "line"})


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change: bytes `start` to `end` of a file become `new`."""

    topic: str
    path: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    def describe(self) -> str:
        return f"{self.topic:<10} {self.path}:{self.line} {self.kind}: `{self.old}` -> `{self.new}`"


def find_mutations(topic: Topic, path: str) -> list[Mutation]:
    """Every mutation of a module that a test should catch."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutation] = []

    def add(kind: str, node: ast.stmt | ast.expr, new: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        found.append(Mutation(topic.name, path, node.lineno, kind, start, end, source[start:end].decode(), new))

    for node in _walk(ast.parse(source), topic.functions):
        match node:
            case ast.Compare(ops=operators, left=left, comparators=comparators):
                sides = [ast.unparse(side) for side in (left, *comparators)]
                for at, operator in enumerate(operators):
                    if type(operator) not in COMPARISONS:
                        continue
                    signs = [ast.unparse(ast.Compare(ast.Name("a"), [one], [ast.Name("b")]))[2:-2] for one in operators]
                    signs[at] = COMPARISONS[type(operator)]
                    behind = " ".join(f"{sign} {side}" for sign, side in zip(signs, sides[1:], strict=True))
                    add("comparison", node, f"{sides[0]} {behind}")
            case ast.BoolOp(op=operator, values=values):
                new, word = (" or ", " and ") if isinstance(operator, ast.And) else (" and ", " or ")
                joined = new.join(f"({ast.unparse(value)})" for value in values)
                add("and/or", node, f"({joined})")
                for left_out in range(len(values)):
                    rest = [f"({ast.unparse(value)})" for at, value in enumerate(values) if at != left_out]
                    add("dropped clause", node, f"({word.join(rest)})")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                add("condition", node, f"({ast.unparse(operand)})")
            case ast.BinOp(op=operator, left=left, right=right) if type(operator) in OPERATORS:
                # On texts and paths any other operator is a TypeError, which every test catches.
                if any(
                    isinstance(part, ast.JoinedStr) or isinstance(getattr(part, "value", None), str)
                    for part in (left, right)
                ):
                    continue
                if isinstance(operator, ast.Div) and not _is_number(right):
                    continue
                new = OPERATORS[type(operator)]
                add(
                    "operator",
                    node,
                    f"(({ast.unparse(left)}) {new} ({ast.unparse(right)}))",
                )
                if isinstance(operator, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod):
                    sign = {ast.Sub: "-", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}[type(operator)]
                    add("swap", node, f"(({ast.unparse(right)}) {sign} ({ast.unparse(left)}))")
            case ast.Constant(value=bool() as value):
                add("constant", node, str(not value))
            case ast.Constant(value=int() as value):
                add("off by one", node, str(value + 1))
                if value > 0:
                    add("off by one", node, str(value - 1))
            case ast.Constant(value=float() as value):
                add("constant", node, str(2 * value + 1))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                add("sign", node, f"({ast.unparse(operand)})")
            case ast.AugAssign(op=operator, target=target, value=value) if type(operator) in OPERATORS:
                add("operator", node, f"{ast.unparse(target)} {OPERATORS[type(operator)]}= {ast.unparse(value)}")
                add("dropped statement", node, "pass")
            case ast.Break() | ast.Continue():
                add("dropped statement", node, "pass")
            case ast.Call(func=ast.Name(id=name) as called) if name in CALLS:
                add("min/max", called, CALLS[name])
            case ast.Expr(value=ast.Call() as call) if not ast.unparse(call.func).startswith(SKIPPED_CALLS):
                add("dropped call", node, "pass")
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                    add("condition", test, f"(not ({ast.unparse(test)}))")
                match node:
                    case ast.If(body=[*_, ast.Raise() | ast.Return() | ast.Continue() | ast.Break()]):
                        add("dropped guard", test, "False")
    return found


def _is_number(node: ast.AST) -> bool:
    """Whether what stands after a slash is a number rather than the name of a file."""
    return not isinstance(node, ast.Name) or not node.id.isupper()


def _walk(node: ast.AST, functions: tuple[str, ...] = ()) -> Iterator[ast.AST]:
    """The nodes that may be mutated: no annotations, messages, assertions or docstrings."""
    for name, field in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_comment"}:
            continue
        for child in field if isinstance(field, list) else [field]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                if functions and isinstance(node, ast.Module) and child.name not in functions:
                    continue
                if child.name in SKIPPED_FUNCTIONS:
                    continue
            elif functions and isinstance(node, ast.Module):
                continue
            if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Assign | ast.AugAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                if any(isinstance(target, ast.Name) and target.id in MESSAGE_NAMES for target in targets):
                    continue
            if isinstance(child, ast.Call) and ast.unparse(child.func) in {"dataclass", "finding"}:
                continue
            if (
                isinstance(child, ast.UnaryOp)
                and isinstance(node, ast.Call)
                and ast.unparse(node).endswith(".reshape(-1)")
            ):
                continue  # NumPy takes any negative number there
            called = getattr(child, "value" if isinstance(child, ast.Expr) else "context_expr", None)
            if called is not None and ast.unparse(called).startswith(SKIPPED_CALLS):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict" and ast.unparse(node).startswith("zip("):
                continue  # states that the lengths are equal, as an assertion does
            yield child
            yield from _walk(child)


def choose(topics: tuple[Topic, ...], count: int, seed: int) -> list[Mutation]:
    """As many of each topic as can be, drawn by the seed."""
    generator = random.Random(seed)
    drawn = []
    for topic in topics:
        found = [mutation for path in topic.modules for mutation in find_mutations(topic, path)]
        generator.shuffle(found)
        drawn.append(found)
    chosen: list[Mutation] = []
    while len(chosen) < count and any(drawn):
        chosen += [mutations.pop() for mutations in drawn if mutations]
    return chosen[:count]


def run_tests(copy: Path, tests: tuple[str, ...], log: Path) -> str:
    """`passed`, `failed` or `timeout`, of the tests in a forked process that has imported nothing of the copy yet."""
    process = os.fork()
    if process == 0:
        os.setsid()
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]
        # An editable installation of the tree may be found before the path is.
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
        import pytest

        words = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--no-header",
            f"--basetemp={log.with_suffix('')}",
        ]
        os._exit(int(pytest.main([*words, *tests])))
    limit = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < limit:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "timeout"


def make_copy(folder: Path) -> Path:
    """The tree's files, without what git ignores, and with the shared folder beside them."""
    copy = folder / "tree"
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT).decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    if "VOXGRAFT_SHARED" not in os.environ and (ROOT.parent / "shared").exists():
        os.environ["VOXGRAFT_SHARED"] = str((ROOT.parent / "shared").resolve())
    subprocess.run([sys.executable, "-m", "compileall", "-q", "voxgraft", "tests", "tools"], cwd=copy, check=True)
    return copy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topic", choices=[topic.name for topic in TOPICS], action="append")
    parser.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutation first")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="run only these numbers of the list")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    if missing := find_missing():
        print(f"TOPICS names what the tree does not have: {', '.join(missing)}")
        return 2
    topics = tuple(topic for topic in TOPICS if not arguments.topic or topic.name in arguments.topic)
    chosen = list(enumerate(choose(topics, arguments.count, arguments.seed), start=1))
    if arguments.only:
        chosen = [(number, mutation) for number, mutation in chosen if number in arguments.only]
    if arguments.list:
        for number, mutation in chosen:
            print(f"{number:>3} {mutation.describe()}")
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in PRELOADED:
        __import__(name)
    results = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        os.chmod(scratch, 0o755)  # some tests run a process as another user
        copy = make_copy(Path(scratch))
        tests = {topic.name: topic.tests for topic in TOPICS}
        if not arguments.no_baseline:
            for topic in topics:
                log = Path(scratch) / f"{topic.name}.log"
                if run_tests(copy, topic.tests, log) != "passed":
                    print(f"{topic.name}: the tests fail without a mutation:\n{log.read_text()[-3000:]}")
                    return 2
        for number, mutation in chosen:
            path = copy / mutation.path
            source = path.read_bytes()
            path.write_bytes(source[: mutation.start] + mutation.new.encode() + source[mutation.end :])
            for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                cached.unlink()
            begun = time.monotonic()
            log = Path(scratch) / f"{number}.log"
            outcome = run_tests(copy, tests[mutation.topic], log)
            path.write_bytes(source)
            shutil.rmtree(log.with_suffix(""), ignore_errors=True)
            word = "SURVIVED" if outcome == "passed" else "caught"
            first = next(
                (line for line in log.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))), outcome
            )
            print(f"{number:>3} {word:<8} {time.monotonic() - begun:4.0f} s  {mutation.describe()}", flush=True)
            if word == "caught":
                print(f"             by {first[:150]}", flush=True)
            results.append({"number": number, "outcome": word, "mutation": mutation.describe(), "by": first[:200]})
    survivors = [result for result in results if result["outcome"] == "SURVIVED"]
    print(f"{len(results) - len(survivors)} of {len(results)} caught")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2))
    return int(len(survivors) > MAX_SURVIVING_SHARE * len(results))


if __name__ == "__main__":
    sys.exit(main())
