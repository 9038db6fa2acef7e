"""Measure the package: size, shape, coupling and what commands import. Run `python tools/measure_code.py`.

Code lines are lines that are neither blank, comment nor docstring; a comment line is a line that holds only a comment.
`--clip` runs a talk with subtitles through `new` and `go` instead, and lists the files of the package whose functions ran,
with the stages that they ran in and the number of their functions. It takes about five minutes.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "voxgraft"


def module_name(path: Path, root: Path) -> str:
    """The dotted name of a module file; a package is named without `__init__`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def load_modules(root: Path = ROOT, package: str = PACKAGE) -> dict[str, tuple[Path, str, ast.Module]]:
    """Every module of the package by name: path, source and syntax tree."""
    modules = {}
    for path in sorted((root / package).glob("**/*.py")):
        source = path.read_text(encoding="utf-8")
        modules[module_name(path, root)] = (path, source, ast.parse(source))
    return modules


@cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """The nodes that any figure needs. A tree has far more of them, and walking through it takes long."""
    wanted = (
        *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Constant, ast.JoinedStr),
        *(ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Expr, ast.ExceptHandler),
    )
    return [node for node in ast.walk(tree) if isinstance(node, wanted)]


def count_lines(source: str, tree: ast.Module) -> Counter[str]:
    """Lines by kind: code, docstring, comment, blank."""
    docstrings: set[int] = set()
    rows = source.splitlines()
    strings: set[int] = set()  # lines that begin inside a string, where # is no comment
    for node in nodes_of(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            # Strings that are written one below the other are one node, between which there may be comments.
            segment = "\n".join(rows[node.lineno - 1 : node.end_lineno])
            if '"""' in segment or "'''" in segment or "\\\n" in segment:
                strings.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    kinds: Counter[str] = Counter()
    for number, line in enumerate(rows, start=1):
        if number in docstrings:
            kinds["docstring"] += 1
        elif not line.strip():
            kinds["blank"] += 1
        elif number not in strings and line.lstrip().startswith("#"):
            kinds["comment"] += 1
        else:
            kinds["code"] += 1
    return kinds


def imported_modules(tree: ast.AST, modules: Iterable[str]) -> set[str]:
    """Modules of the package that a module imports anywhere, lazily or for types too."""
    known = set(modules)
    found: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.update(
                    name for name in (full, node.module) if name in known and (name == full or full not in known)
                )
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in known)
    return found


def named_modules(tree: ast.AST, modules: Iterable[str]) -> set[str]:
    """Modules of the package that a module loads by a name in a text, as the table of commands does."""
    texts = {node.value for node in nodes_of(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for text in texts if (name := text.partition(":")[0]) in modules}


def value_class_kind(node: ast.ClassDef) -> str:
    """`dataclass` or `NamedTuple`, for a class that is one; a NamedTuple is no cheaper to read than a dataclass."""
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return "dataclass"
    return "NamedTuple" if any("NamedTuple" in ast.unparse(base) for base in node.bases) else ""


def find_cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of packages that import each other (strongly connected, more than one member)."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(node: str, graph: dict[str, set[str]], out: list[str]) -> None:
        stack = [(node, iter(sorted(graph.get(node, ()))))]
        seen.add(node)
        while stack:
            current, rest = stack[-1]
            following = next((child for child in rest if child not in seen), None)
            if following is None:
                out.append(current)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(sorted(graph.get(following, ())))))

    for node in sorted(edges):
        if node not in seen:
            visit(node, edges, order)
    backwards: dict[str, set[str]] = defaultdict(set)
    for node, targets in edges.items():
        for target in targets:
            backwards[target].add(node)
    seen = set()
    groups = []
    for node in reversed(order):
        if node not in seen:
            group: list[str] = []
            visit(node, backwards, group)
            groups.append(sorted(group))
    return [group for group in groups if len(group) > 1]


def modules_imported_by(code: str) -> list[str]:
    """Modules of the package that are loaded after some Python code ran in a process of its own."""
    lines = [
        code,
        "import sys, json",
        f"print(json.dumps(sorted(m for m in sys.modules if m.split('.')[0] == '{PACKAGE}')))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


SPEAK = """
import contextlib, io, sys, tempfile
from voxgraft.cli import main
with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
    words = ["speak", "bring me the blue cup", "--base", "tiny", "--language", "en", "--output", folder + "/cup.wav"]
    sys.argv = ["voxgraft", *words]
    try:
        main()
    except SystemExit:
        pass
"""


def measure(root: Path = ROOT) -> dict[str, object]:
    """All figures that need no run of the program."""
    modules = load_modules(root)
    lines: Counter[str] = Counter()
    functions: list[int] = []
    values: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    importers: dict[str, set[str]] = defaultdict(set)
    packages: dict[str, set[str]] = defaultdict(set)
    named: set[str] = set()
    for name, (_, source, tree) in modules.items():
        lines += count_lines(source, tree)
        for node in nodes_of(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif isinstance(node, ast.ClassDef):
                values[value_class_kind(node)] += 1
                classes[node.name] += 1
        named |= named_modules(tree, modules)
        for target in imported_modules(tree, modules):
            importers[target].add(name)
            here, there = name.split(".")[1:2], target.split(".")[1:2]
            if here and there and here != there:
                packages[here[0]].add(there[0])
    thousand = lines["code"] / 1000
    loose = [m for m, (path, *_) in modules.items() if path.parent == root / PACKAGE and m != PACKAGE]
    # A module that is also loaded by its name, as those of commands are, is no part of its importer.
    parts = [m for m, (path, *_) in modules.items() if len(importers[m]) == 1 and path.name != "__init__.py"]
    single = [m for m in parts if m not in named]
    return {
        "modules": len(modules),
        "loose modules": sorted(loose),
        "lines": sum(lines.values()),
        "code lines": lines["code"],
        "functions per 1,000 code lines": round(len(functions) / thousand, 1),
        "median function length": median(functions),
        "dataclasses per 1,000 code lines": round(values["dataclass"] / thousand, 1),
        "NamedTuples per 1,000 code lines": round(values["NamedTuple"] / thousand, 1),
        "comment lines per 1,000 code lines": round(lines["comment"] / thousand, 1),
        "modules imported by exactly one other": len(single),
        "class names used twice": sorted(name for name, count in classes.items() if count > 1),
        "package cycles": find_cycles(packages),
    }


# Runs a command line and writes the files and names of all functions of the package that ran, as JSON lines. Module and
# class bodies are left out, and what they call: they run when a module is imported, whether the clip needs it or not.
TRACED = f"""
import json, sys, threading
from pathlib import Path
import {PACKAGE}
root, seen, out = str(Path({PACKAGE}.__file__).parent), set(), sys.argv.pop(1)
def trace(frame, event, argument):
    code = frame.f_code
    if code in seen or not code.co_filename.startswith(root) or not code.co_flags & 1:  # 1: optimised, so a function
        return
    while (frame := frame.f_back) is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(root):
            return
    seen.add(code)
threading.settrace(trace)
sys.settrace(trace)
from {PACKAGE}.cli import main
try:
    main()
finally:
    sys.settrace(None)
    ran = sorted({{(str(Path(code.co_filename).relative_to(root)), code.co_qualname) for code in seen}})
    Path(out).write_text(json.dumps(ran), encoding="utf-8")
"""
CLIP_STAGES = ("import", "split", "graft", "prepare", "check", "train", "evaluate", "export")
CLIP_SETTINGS = "--train.steps 8 --train.warmup-steps 2 --train.valid-every 4 --train.save-every 4 --max-sentences 2 --quiet".split()


def trace_clip(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Functions that ran from a talk with subtitles to an export: by file, by stage. Worker processes are not traced."""
    from voxgraft.demo.data import write_talks

    write_talks(folder / "talks", 1, 14)
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    run, out = str(folder / "run"), folder / "ran.json"
    new = ["new", run, "--base", "tiny", "--language", "am", "--sources", str(folder / "talks"), "--quiet"]
    commands = [("new", new)]
    commands += [(stage, ["go", run, "--until", stage, *CLIP_SETTINGS]) for stage in CLIP_STAGES]
    for stage, words in commands:
        subprocess.run([sys.executable, "-c", TRACED, str(out), *words], cwd=ROOT, check=True)
        for file, function in json.loads(out.read_text(encoding="utf-8")):
            found[file][stage].add(function)
    return found


def main() -> None:
    if sys.argv[1:] == ["--clip"]:
        with tempfile.TemporaryDirectory() as folder:
            found = trace_clip(Path(folder))
        for file, stages in sorted(found.items()):
            print(f"{file}: {len(set().union(*stages.values()))} ({', '.join(stages)})")
        print(
            f"{sum(file.endswith('.py') for file in found)} files of Python and {sum(not file.endswith('.py') for file in found)} templates"
        )
        return
    figures = measure()
    figures["modules imported by `speak --base tiny`"] = len(modules_imported_by(SPEAK))
    for name, value in figures.items():
        print(f"{name}: {value if not isinstance(value, list) else (len(value), value[:60])}")


if __name__ == "__main__":
    main()
