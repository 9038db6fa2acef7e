"""IndexTTS-2's checkout as a companion: says whether it can be imported, and which packages it has.

It makes no sound of codes yet: the program's own interface takes text, which an export speaks with `load.py`. Loaded by
`companions/worker.py` in the environment of the checkout, so it imports nothing of voxgraft.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def start(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The requests that are answered (none), and the packages whose versions are reported."""
    sys.path.append(arguments[0])
    import_module("indextts.infer_v2")
    return {}, ["torch", "numpy", "transformers"]
