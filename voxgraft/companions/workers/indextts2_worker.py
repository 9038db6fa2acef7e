"""IndexTTS-2 in an environment of its own: says whether the checkout can be imported, and which packages are there.

It makes no sound of codes yet: the program's own interface takes text, which an export speaks with `load.py`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    serving: Any = import_module("serving")
    import_module("indextts.infer_v2")
    packages = {name: version(name) for name in ("torch", "transformers", "numpy")}
    serving.serve({}, {"program": "indextts2", "versions": packages})
