"""The text front end of a graft as a Python package of its own, for programs that run without voxgraft.

An export has it in the folder `voxgraft_text`: our own modules as they are, with relative imports, and the graft's text
rules. It needs `regex`, and num2words for languages whose numbers that reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources

from voxgraft.graft_folder import RULES_NAME, TEXT_FOLDER
from voxgraft.normalising import TextRules

__all__ = ["text_package"]

PACKAGE = "voxgraft.normalising"
MODULES = (
    *("abbreviations", "amharic", "base", "ethiopic", "languages", "numbers", "plain", "reading", "rules", "shapes"),
    *("tigrinya", "words"),
)
"""What `rules` needs, and it itself."""
_START = '''"""How text was normalised in training, for use without voxgraft. Part of voxgraft, Apache-2.0.

    from voxgraft_text import prepared
    prepared("...")  # text of the new language, as the original program has to be given it

Needs `regex`{needs}.
"""

import json
from pathlib import Path

{imports}

RULES = TextRules.from_json(json.loads((Path(__file__).parent / "{rules_name}").read_text(encoding="utf-8")))
RULES.require_edition()


def prepared(text):
    """Text of the new language as the original program has to be given it. Preparing it twice changes nothing."""
{body}
'''


def text_package(rules: TextRules, body: str, modules: Mapping[str, str]) -> dict[str, str]:
    """The files of the package, by their place in the export.

    `body` is what `prepared` does, by the family; `modules` are sources of the family's own that it imports.
    """
    imports = [f"from .{name} import *" for name in modules] + ["from .rules import TextRules"]
    needs = " and `num2words`" if rules.numbers else ""
    folder = resources.files(PACKAGE)
    sources = {name: folder.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    files = {f"{name}.py": _relative(source) for name, source in sources.items()}
    files |= {f"{name}.py": source for name, source in modules.items()}
    start = _START.format(imports="\n".join(sorted(imports)), rules_name=RULES_NAME, body=body, needs=needs)
    files["__init__.py"] = start
    files[RULES_NAME] = json.dumps(rules.to_json(), ensure_ascii=False, indent=2) + "\n"
    return {f"{TEXT_FOLDER}/{name}": text for name, text in files.items()}


def _relative(source: str) -> str:
    made = source.replace(f"from {PACKAGE}.", "from .").replace(f"from {PACKAGE} import", "from . import")
    assert f"import {PACKAGE}" not in made
    assert "from voxgraft" not in made
    return made
