"""Tensors inside a torch pickle: from the calls that would rebuild them to plain descriptions.

Nothing is called. A description says which storage holds the values, where in it, and with which strides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from voxgraft.checkpoints.model import parse_shape, span_values
from voxgraft.checkpoints.pickles import PERSISTENT_ID, PickleDict, PickleGlobal, PickleObject

STORAGE_DTYPES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
    "torch.ComplexFloatStorage": "C64",
}
UNTYPED_STORAGE = "torch.storage.UntypedStorage"
UNTYPED_DTYPES = {
    "torch.uint16": "U16",
    "torch.uint32": "U32",
    "torch.uint64": "U64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
}
"""Types without a storage class of their own: torch keeps their bytes untyped and names the type beside them."""


class TensorParseError(Exception):
    """A tensor that cannot be described."""


@dataclass(frozen=True, slots=True)
class TorchStorage:
    """A run of values in one record of the archive. `num_items` counts values, or bytes if it is untyped."""

    key: str
    kind: str
    location: str
    num_items: int


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A view of a storage; `offset` and `strides` count values."""

    storage: TorchStorage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False


def is_tensor(node: Any) -> bool:
    """Whether the pickle would make a tensor of this node."""
    return isinstance(node, PickleObject) and node.maker in _REBUILDERS


def parse_tensor(node: PickleObject) -> TorchTensor:
    """The description of a node for which `is_tensor` holds."""
    return _rebuild(node.maker, node.args, 0)


def _rebuild(maker: Any, args: Any, depth: int) -> TorchTensor:
    if maker not in _REBUILDERS or not isinstance(args, tuple) or depth > 2:
        raise TensorParseError("it is made in a way that no tensor is")
    return _REBUILDERS[maker](args, depth)


def _rebuild_view(args: tuple[Any, ...], _: int) -> TorchTensor:
    """_rebuild_tensor(storage, offset, shape, strides) and v2, which adds requires_grad, hooks and notes."""
    if len(args) not in (4, 6, 7):
        raise TensorParseError(f"it has {len(args)} parts")
    notes = args[6] if len(args) == 7 else None
    if notes is not None and not (isinstance(notes, PickleDict) and not notes.entries):
        raise TensorParseError("it is conjugated or negated when it is read")
    storage = _parse_storage(args[0])
    if storage.kind not in STORAGE_DTYPES:
        raise TensorParseError(f"its values are kept as {storage.kind}")
    return _build_torch_tensor(storage, STORAGE_DTYPES[storage.kind], args, storage.num_items)


def _rebuild_untyped_view(args: tuple[Any, ...], _: int) -> TorchTensor:
    """_rebuild_tensor_v3(storage, offset, shape, strides, requires_grad, hooks, dtype)."""
    if len(args) not in (7, 8) or not isinstance(args[6], PickleGlobal):
        raise TensorParseError("it does not say its type")
    storage, dtype = _parse_storage(args[0]), UNTYPED_DTYPES.get(str(args[6]))
    if storage.kind != UNTYPED_STORAGE or dtype is None:
        raise TensorParseError(f"its type is {args[6]}, kept as {storage.kind}")
    item = int(dtype[1:]) // 8 if dtype[0] == "U" else 1
    return _build_torch_tensor(storage, dtype, args, storage.num_items // item)


def _rebuild_parameter(args: tuple[Any, ...], depth: int) -> TorchTensor:
    """_rebuild_parameter(tensor, requires_grad, hooks), or with a state after these, which is left out."""
    if len(args) < 2 or not isinstance(args[0], PickleObject) or not isinstance(args[1], bool):
        raise TensorParseError("it is a parameter without a tensor")
    tensor = _rebuild(args[0].maker, args[0].args, depth + 1)
    return replace(tensor, requires_grad=args[1], parameter=True)


def _rebuild_subclass(args: tuple[Any, ...], depth: int) -> TorchTensor:
    """_rebuild_from_type_v2(rebuilder, class, arguments, state); class and state are left out."""
    if len(args) != 4 or not isinstance(args[0], PickleGlobal):
        raise TensorParseError("it is of a class that cannot be read")
    return _rebuild(str(args[0]), args[2], depth + 1)


_REBUILDERS = {
    "torch._utils._rebuild_tensor": _rebuild_view,
    "torch._utils._rebuild_tensor_v2": _rebuild_view,
    "torch._utils._rebuild_tensor_v3": _rebuild_untyped_view,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_subclass,
}


def _parse_storage(node: Any) -> TorchStorage:
    identity = node.args if isinstance(node, PickleObject) and node.maker == PERSISTENT_ID else None
    if isinstance(identity, tuple) and len(identity) == 6 and identity[5] is None:
        identity = identity[:5]  # before the archives a storage could be a part of another, which no tensor needs
    if not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage":
        raise TensorParseError("its storage is not named as torch names it")
    _, kind, key, location, num_items = identity
    texts = isinstance(kind, PickleGlobal) and isinstance(key, str) and isinstance(location, str)
    if not texts or type(num_items) is not int or num_items < 0:
        raise TensorParseError("its storage is not named as torch names it")
    return TorchStorage(key, str(kind), location, num_items)


def _build_torch_tensor(storage: TorchStorage, dtype: str, args: tuple[Any, ...], num_values: int) -> TorchTensor:
    offset, shape, strides = args[1], parse_shape(_unwrap_size(args[2])), _unwrap_size(args[3])
    if shape is None:
        raise TensorParseError("its shape is no list of sizes")
    if type(offset) is not int or offset < 0:
        raise TensorParseError("its place in the storage is no number")
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        raise TensorParseError("its strides do not fit its shape")
    if not all(type(stride) is int and 0 <= stride < 1 << 63 for stride in strides):
        raise TensorParseError("its strides are no counts")
    if offset + span_values(shape, strides) > num_values:
        raise TensorParseError(
            f"it needs {offset + span_values(shape, strides):,} values of a storage of {num_values:,}"
        )
    return TorchTensor(storage, dtype, offset, shape, strides, len(args) > 4 and args[4] is True)


def _unwrap_size(node: Any) -> Any:
    """A torch.Size stands as a call with one argument."""
    if (
        isinstance(node, PickleObject)
        and node.maker == "torch.Size"
        and isinstance(node.args, tuple)
        and len(node.args) == 1
    ):
        return node.args[0]
    return node
