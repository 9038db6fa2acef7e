"""A language's tokenizer and rows. The package itself can be called: `voxgraft.graft(run)` is the command `graft`.

Function and package have one name, and importing a module of the package would hide the function.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return import_module("voxgraft.pipeline.api").graft(*arguments, **settings)


sys.modules[__name__].__class__ = _CallablePackage
