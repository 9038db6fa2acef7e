"""Whether a file's tensors make a whole model: every difference counted, the first few named.

Looks at names and shapes only, and needs neither torch nor a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from voxgraft.errors import CheckpointError

ShapeLike = tuple[int, ...]
MAX_LISTED_DIFFERENCES = 6


def require_exact_tensors(
    found: Mapping[str, ShapeLike], expected: Mapping[str, ShapeLike], model: str, where: str | Path = ""
) -> None:
    """Raise unless a file has exactly the tensors of the model: none missing, none of another shape, none besides."""
    differences = list(_iter_differences(found, expected))
    if not differences:
        return
    named = "; ".join(differences[:MAX_LISTED_DIFFERENCES])
    more = (
        f"; and {len(differences) - MAX_LISTED_DIFFERENCES:,} more" if len(differences) > MAX_LISTED_DIFFERENCES else ""
    )
    text = f"{len(found):,} tensors that are no whole {model}: {named}{more}"
    raise CheckpointError("tensors-mismatch", text, expected=f"{len(expected):,} tensors", where=where)


def _iter_differences(found: Mapping[str, ShapeLike], expected: Mapping[str, ShapeLike]) -> Iterator[str]:
    for name, shape in expected.items():
        if name not in found:
            yield f"{name} {list(shape)} is missing"
        elif found[name] != shape:
            yield f"{name} is {list(found[name])}, not {list(shape)}"
    for name in sorted(found.keys() - expected.keys()):
        yield f"{name[:80]} {list(found[name])} is no tensor of it"
