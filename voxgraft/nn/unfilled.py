"""Networks whose tensors come from a file: built with nothing drawn or filled before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["init_empty_weights", "no_init_weights"]


class no_init_weights(TorchFunctionMode):  # noqa: N801 (used as a function)
    """Parameters of modules that are made here hold whatever was in memory; buffers are computed as always."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def init_empty_weights() -> Iterator[None]:
    """Modules that are made here have shapes and no memory: every tensor has to be given before they compute.

    Without `no_init_weights`, drawing numbers for no memory would load torch's compiler, which takes a second.
    """
    with torch.device("meta"), no_init_weights():
        yield
