"""What stands in a pickle, in a few words for people: "dictionary of 2 (state, param_groups), 1,330 tensors".

Every node is looked at once, whatever refers to it, and only so many of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard

from voxgraft.checkpoints.dtypes import item_bytes
from voxgraft.checkpoints.model import Scalar
from voxgraft.checkpoints.pickles import Dictionary, Foreign, Global
from voxgraft.checkpoints.torch_tensors import BadTensor, TorchTensor, is_tensor, tensor_of

MAX_NODES = 300_000
MAX_PLAIN_DEPTH = 8
MAX_TEXT = 1 << 16
MAX_BITS = 64


@dataclass(slots=True)
class Looks:
    """How many nodes may still be looked at. Descriptions of one file share them: a thousand entries of a hostile
    file can all lead to the same hundred thousand nodes."""

    left: int = MAX_NODES


def is_scalar(node: Any) -> TypeGuard[Scalar]:
    """Whether a node is a plain value, small enough to be carried along."""
    if isinstance(node, str):
        return len(node) <= MAX_TEXT
    if isinstance(node, int):
        return node.bit_length() < MAX_BITS
    return node is None or isinstance(node, float)


def is_plain(node: Any) -> bool:
    """Whether a node is made of scalars, lists, tuples and dictionaries only, not too deep and not too many."""
    waiting, seen = [(node, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, Dictionary) and node.state is None and all(is_scalar(key) for key in node.entries):
            children = list(node.entries.values())
        elif isinstance(node, list | tuple):
            children = list(node)
        elif is_scalar(node):
            continue
        else:
            return False
        seen += len(children)
        if seen > MAX_NODES or depth > MAX_PLAIN_DEPTH:
            return False
        waiting.extend((child, depth + 1) for child in children)
    return True


def description_of(node: Any, looks: Looks) -> str:
    """A node in a few words, with the tensors that hang on it."""
    if is_tensor(node):
        tensor = _quiet_tensor(node)
        return f"tensor {tensor.dtype} {list(tensor.shape)}" if tensor else "tensor"
    if isinstance(node, Dictionary):
        return _dictionary(node, looks)
    if isinstance(node, list | tuple):
        return f"{type(node).__name__} of {len(node)}{_tensors_on(node, looks)}"
    if isinstance(node, Foreign):
        return f"object {node.maker[:80]}{_tensors_on(node, looks)}"
    if isinstance(node, str | bytes | bytearray):
        return f"text of {len(node)}" if isinstance(node, str) else f"{len(node):,} bytes"
    if node is None:
        return "nothing"
    if isinstance(node, int) and not is_scalar(node):
        return f"number of {node.bit_length():,} bits"
    return f"name {node}"[:80] if isinstance(node, Global) else f"{type(node).__name__} {node}"


def _dictionary(node: Dictionary, looks: Looks) -> str:
    keys = [str(key)[:24] for key in islice(node.entries, 4) if isinstance(key, str)]
    names = f" ({', '.join(keys)}{', ...' if len(node.entries) > len(keys) else ''})" if keys else ""
    return f"dictionary of {len(node.entries)}{names}{_tensors_on(node, looks)}"


def _tensors_on(root: Any, looks: Looks) -> str:
    """How many tensors can be reached from a node, and how large they are."""
    waiting: list[Any] = [root]
    seen: set[int] = set()
    count = size = 0
    while waiting and looks.left:
        looks.left -= 1
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if is_tensor(node):
            tensor = _quiet_tensor(node)
            count += 1
            size += math.prod(tensor.shape) * item_bytes(tensor.dtype) if tensor else 0
        else:
            waiting.extend(_children(node))
    return f", {count:,} tensor{'s' * (count != 1)}, {size / 1e6:,.1f} MB" if count else ""


def _children(node: Any) -> list[Any]:
    if isinstance(node, Dictionary):
        return list(node.entries.values())
    if isinstance(node, Foreign):
        return [node.args, node.state, *node.items]
    return list(node) if isinstance(node, list | tuple) else []


def _quiet_tensor(node: Any) -> TorchTensor | None:
    try:
        return tensor_of(node)
    except BadTensor:
        return None
