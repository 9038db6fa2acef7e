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
from voxgraft.checkpoints.pickles import PickleDict, PickleGlobal, PickleObject
from voxgraft.checkpoints.torch_tensors import TensorParseError, TorchTensor, is_tensor, parse_tensor

MAX_NODES = 300_000
MAX_PLAIN_DEPTH = 8
MAX_TEXT_CHARACTERS = 1 << 16
MAX_SCALAR_BITS = 64


@dataclass(slots=True)
class NodeBudget:
    """How many nodes may still be looked at. Descriptions of one file share them: a thousand entries of a hostile
    file can all lead to the same hundred thousand nodes."""

    left: int = MAX_NODES


def is_small_scalar(node: Any) -> TypeGuard[Scalar]:
    """Whether a node is a plain value, small enough to be carried along."""
    if isinstance(node, str):
        return len(node) <= MAX_TEXT_CHARACTERS
    if isinstance(node, int):
        return node.bit_length() < MAX_SCALAR_BITS
    return node is None or isinstance(node, float)


def is_plain_tree(node: Any) -> bool:
    """Whether a node is made of scalars, lists, tuples and dictionaries only, not too deep and not too many."""
    waiting, seen = [(node, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, PickleDict) and node.state is None and all(is_small_scalar(key) for key in node.entries):
            children = list(node.entries.values())
        elif isinstance(node, list | tuple):
            children = list(node)
        elif is_small_scalar(node):
            continue
        else:
            return False
        seen += len(children)
        if seen > MAX_NODES or depth > MAX_PLAIN_DEPTH:
            return False
        waiting.extend((child, depth + 1) for child in children)
    return True


def describe_node(node: Any, looks: NodeBudget) -> str:
    """A node in a few words, with the tensors that hang on it."""
    if is_tensor(node):
        tensor = _tensor_or_none(node)
        return f"tensor {tensor.dtype} {list(tensor.shape)}" if tensor else "tensor"
    if isinstance(node, PickleDict):
        return _describe_dictionary(node, looks)
    if isinstance(node, list | tuple):
        return f"{type(node).__name__} of {len(node)}{_describe_tensors(node, looks)}"
    if isinstance(node, PickleObject):
        return f"object {node.maker[:80]}{_describe_tensors(node, looks)}"
    if isinstance(node, str | bytes | bytearray):
        return f"text of {len(node)}" if isinstance(node, str) else f"{len(node):,} bytes"
    if node is None:
        return "nothing"
    if isinstance(node, int) and not is_small_scalar(node):
        return f"number of {node.bit_length():,} bits"
    return f"name {node}"[:80] if isinstance(node, PickleGlobal) else f"{type(node).__name__} {node}"


def _describe_dictionary(node: PickleDict, looks: NodeBudget) -> str:
    keys = [str(key)[:24] for key in islice(node.entries, 4) if isinstance(key, str)]
    names = f" ({', '.join(keys)}{', ...' if len(node.entries) > len(keys) else ''})" if keys else ""
    return f"dictionary of {len(node.entries)}{names}{_describe_tensors(node, looks)}"


def _describe_tensors(root: Any, looks: NodeBudget) -> str:
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
            tensor = _tensor_or_none(node)
            count += 1
            size += math.prod(tensor.shape) * item_bytes(tensor.dtype) if tensor else 0
        else:
            waiting.extend(_child_nodes(node))
    return f", {count:,} tensor{'s' * (count != 1)}, {size / 1e6:,.1f} MB" if count else ""


def _child_nodes(node: Any) -> list[Any]:
    if isinstance(node, PickleDict):
        return list(node.entries.values())
    if isinstance(node, PickleObject):
        return [node.args, node.state, *node.items]
    return list(node) if isinstance(node, list | tuple) else []


def _tensor_or_none(node: Any) -> TorchTensor | None:
    try:
        return parse_tensor(node)
    except TensorParseError:
        return None
