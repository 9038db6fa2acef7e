"""The architecture: packages import downwards, names are unique, modules have a place and a size, commands stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import mutate
from tools.measure_code import (
    SPEAK,
    find_cycles,
    imported_modules,
    load_modules,
    measure,
    modules_imported_by,
    nodes_of,
)
from voxgraft.models import family_names

ROOT = Path(__file__).resolve().parent.parent

# From the ground up. A package imports packages that come before it, and never one behind it.
ORDER = (
    *("core", "config", "companions", "tokenizers", "text", "audio", "checkpoints", "nn"),
    *("models", "data", "graft", "dataset"),
    *("preprocess", "asr", "synthesis", "training"),
    *("evaluation", "inspect", "export", "server"),
    *("pipeline", "demo", "cli", "ui"),
)
LOOSE = {"__init__.py", "__main__.py"}
# Ceilings follow the code down. A new family or language needs a few modules more; raise one only with a reason in the
# commit. Ratios are per 1,000 code lines.
MAX_MODULES = 205
MAX_MODULE_LINES = 1_000
MAX_FUNCTIONS = 72.0
MAX_VALUE_CLASSES = 5.6  # dataclasses and NamedTuples together: neither is cheaper to read than the other
MIN_COMMENT_LINES = 30.0
# Modules that one other imports, which may be parts of it. Some must be apart: they are copied into exports, run by the
# Python of another environment, or need packages that are optional.
MAX_SINGLE_IMPORTERS = 26
MAX_MODULES_OF_SPEAK = 57


def _modules() -> dict[str, tuple[Path, str, ast.Module]]:
    return load_modules(ROOT)


def _package(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else None


def upward_imports(modules: dict[str, tuple[Path, str, ast.Module]]) -> list[str]:
    """`module -> module` for every import of a package that is higher."""
    wrong = []
    for name, (_, _, tree) in modules.items():
        for target in imported_modules(tree, modules):
            here, there = _package(name), _package(target)
            if here and there and ORDER.index(there) > ORDER.index(here):
                wrong.append(f"{name} -> {target}")
    return sorted(wrong)


def repeated_classes(modules: dict[str, tuple[Path, str, ast.Module]]) -> list[str]:
    """Class names that two classes have."""
    counts = Counter(
        node.name for _, _, tree in modules.values() for node in nodes_of(tree) if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in counts.items() if count > 1)


def loose_modules(folder: Path) -> list[str]:
    """Files directly in the package that belong into one of its packages."""
    return sorted(path.name for path in folder.glob("*.py") if path.name not in LOOSE)


def test_packages_import_downwards_only() -> None:
    assert upward_imports(_modules()) == []


def test_every_package_has_its_place_in_the_order() -> None:
    packages = {path.name for path in (ROOT / "voxgraft").iterdir() if (path / "__init__.py").is_file()}
    assert packages == set(ORDER)


def test_packages_form_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for name, (_, _, tree) in _modules().items():
        here = _package(name)
        for target in imported_modules(tree, _modules()):
            there = _package(target)
            if here and there and here != there:
                edges.setdefault(here, set()).add(there)
    assert find_cycles(edges) == []


def test_class_names_are_unique() -> None:
    assert repeated_classes(_modules()) == []


def test_no_module_is_loose() -> None:
    assert loose_modules(ROOT / "voxgraft") == []


def test_modules_stay_few_and_of_a_readable_size() -> None:
    sizes = {name: source.count("\n") for name, (_, source, _) in _modules().items()}
    assert len(sizes) <= MAX_MODULES
    assert {name: size for name, size in sizes.items() if size > MAX_MODULE_LINES} == {}


def test_code_is_not_cut_into_small_pieces() -> None:
    figures = measure(ROOT)

    def figure(name: str) -> float:
        value = figures[name]
        assert isinstance(value, float | int)
        return value

    each = "per 1,000 code lines"
    assert figure(f"functions {each}") <= MAX_FUNCTIONS
    assert figure(f"dataclasses {each}") + figure(f"NamedTuples {each}") <= MAX_VALUE_CLASSES
    assert figure(f"comment lines {each}") >= MIN_COMMENT_LINES
    assert figure("modules imported by exactly one other") <= MAX_SINGLE_IMPORTERS


def family_tables(modules: dict[str, tuple[Path, str, ast.Module]]) -> list[str]:
    """Modules with a list, table or choice of families; each belongs into the registry or a family's facts.toml."""
    names = set(family_names())
    return sorted(
        name
        for name, (_, _, tree) in modules.items()
        # Old trainers had these two families and get no third; their formats are told apart here.
        if name != "voxgraft.inspect.legacy"
        and any(
            len(names & {leaf.value for leaf in ast.iter_child_nodes(node) if isinstance(leaf, ast.Constant)}) > 1
            for node in nodes_of(tree)
            if isinstance(node, ast.Dict | ast.List | ast.Set | ast.Tuple)
        )
    )


def test_families_are_listed_in_the_registry_only() -> None:
    assert family_tables(_modules()) == ["voxgraft.core.families"]


def texts_listing_families(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Texts for users that name several families: each would need an edit for a new one."""
    words = {
        name: re.compile(rf"\b{name.rstrip('0123456789')}", re.IGNORECASE) for name in family_names() if name != "tiny"
    }
    return sorted(
        place
        for place, own in texts.items()
        for text in own
        if sum(bool(word.search(text.replace("-", ""))) for word in words.values()) > 1
    )


def test_help_and_messages_list_no_families() -> None:
    """The registry writes such lists. Docstrings of modules and functions, which explain code, may compare families."""
    texts: dict[str, list[str]] = {}
    for name, (_, _, tree) in _modules().items():
        docstrings = {
            id(node.body[0].value)
            for node in (tree, *nodes_of(tree))
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        texts[name] = [
            node.value
            for node in nodes_of(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        ]
    messages = tomllib.loads((ROOT / "voxgraft" / "core" / "messages.toml").read_text(encoding="utf-8"))
    texts |= {code: list(map(str, message.values())) for code, message in messages.items()}
    assert texts_listing_families(texts) == []
    assert texts_listing_families(
        {"a": ["Chatterbox and IndexTTS-2"], "b": ["XTTS v2"], "c": ["index-tts or xtts"]}
    ) == ["a", "c"]


def test_only_the_registry_names_a_family() -> None:
    """Code outside of a family's folder imports no module of it; the registry loads families by name."""
    families = tuple(f"voxgraft.models.{name}" for name in family_names())
    wrong = [
        f"{name} -> {target}"
        for name, (_, _, tree) in _modules().items()
        for target in imported_modules(tree, _modules())
        if target.startswith(families) and not name.startswith("voxgraft.models.")
    ]
    assert wrong == []


def test_help_imports_no_torch() -> None:
    code = "import sys; sys.argv = ['voxgraft', '--help']\nfrom voxgraft.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr[-2000:]


def test_speak_imports_no_trainer() -> None:
    loaded = modules_imported_by(SPEAK)
    assert [name for name in loaded if name.startswith(("voxgraft.training", "voxgraft.evaluation"))] == []
    assert len(loaded) <= MAX_MODULES_OF_SPEAK


def test_the_mutation_check_names_modules_and_tests_that_exist() -> None:
    assert mutate.find_missing() == []


def test_the_checks_find_what_they_look_for(tmp_path: Path) -> None:
    """Each check fails on a package with one fault of its kind."""
    package = tmp_path / "voxgraft"
    for name in ("core", "nn"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "core" / "a.py").write_text("from voxgraft.nn import b\n\n\nclass Same: ...\n")
    (package / "nn" / "b.py").write_text('class Same: ...\n\n\nSPEEDS = {"chatterbox": 1, "tiny": 2}\n')
    (package / "left.py").write_text("")
    modules = load_modules(tmp_path)
    modules.pop("voxgraft.left")
    assert upward_imports(modules) == ["voxgraft.core.a -> voxgraft.nn.b"]
    assert repeated_classes(modules) == ["Same"]
    assert family_tables(modules) == ["voxgraft.nn.b"]
    assert loose_modules(package) == ["left.py"]
