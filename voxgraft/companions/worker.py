"""The program that runs inside a companion environment: `python worker.py FAMILY [CHECKOUT]`.

`companion.py` in the family's folder loads the original program; its `start` returns the handlers of requests and the
packages whose versions are reported. Both files run by their paths, so they import nothing of voxgraft but `pipe.py`
beside this one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def main(name: str, arguments: list[str]) -> None:
    """Load the original program, then serve requests."""
    path = Path(__file__).resolve().parent.parent / "models" / name / "companion.py"
    spec = spec_from_file_location(f"{name}_companion", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 (the type checker asks for both)
    family = module_from_spec(spec)
    spec.loader.exec_module(family)
    handlers, packages = family.start(arguments)
    about = {"program": name, "versions": {package: version(package) for package in packages}}
    import_module("pipe").serve(handlers, about)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
