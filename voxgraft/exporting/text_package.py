"""The text front end of a graft as a Python package of its own, for programs that run without voxgraft.

An export has it in the folder `voxgraft_text`: our own modules as they are, with relative imports, and the graft's text
rules. It needs `regex`, and num2words for languages whose numbers that reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources

from voxgraft.graft_folder import TEXT_FOLDER, TEXT_RULES_NAME
from voxgraft.normalising import TextRules

__all__ = ["build_text_package"]

TEXT_PACKAGE = "voxgraft.normalising"
TEXT_PACKAGE_MODULES = (
    *("abbreviations", "amharic", "base", "ethiopic", "languages", "numbers", "plain", "reading", "rules", "shapes"),
    *("tigrinya", "words"),
)
"""What `rules` needs, and it itself."""
_INIT_TEMPLATE = '''"""How text was normalised in training, for use without voxgraft. Part of voxgraft, Apache-2.0.

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


def build_text_package(rules: TextRules, body: str, modules: Mapping[str, str]) -> dict[str, str]:
    """The files of the package, by their place in the export.

    `body` is what `prepared` does, by the family; `modules` are sources of the family's own that it imports.
    """
    imports = [f"from .{name} import *" for name in modules] + ["from .rules import TextRules"]
    needs = " and `num2words`" if rules.numbers else ""
    folder = resources.files(TEXT_PACKAGE)
    sources = {name: folder.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in TEXT_PACKAGE_MODULES}
    files = {f"{name}.py": _make_imports_relative(source) for name, source in sources.items()}
    files |= {f"{name}.py": source for name, source in modules.items()}
    start = _INIT_TEMPLATE.format(
        imports="\n".join(sorted(imports)), rules_name=TEXT_RULES_NAME, body=body, needs=needs
    )
    files["__init__.py"] = start
    files[TEXT_RULES_NAME] = json.dumps(rules.to_json(), ensure_ascii=False, indent=2) + "\n"
    return {f"{TEXT_FOLDER}/{name}": text for name, text in files.items()}


def _make_imports_relative(source: str) -> str:
    made = source.replace(f"from {TEXT_PACKAGE}.", "from .").replace(f"from {TEXT_PACKAGE} import", "from . import")
    assert f"import {TEXT_PACKAGE}" not in made
    assert "from voxgraft" not in made
    return made
