"""Writing the pickle of a torch archive: dictionaries, plain values and tensors, and nothing else.

Protocol 2 with the operations that `torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import struct
from typing import Any

from voxgraft.checkpoints.model import Scalar
from voxgraft.checkpoints.pickles import PickleDict
from voxgraft.checkpoints.torch_tensors import UNTYPED_DTYPES, UNTYPED_STORAGE, TorchStorage, TorchTensor

DTYPE_NAMES = {dtype: name for name, dtype in UNTYPED_DTYPES.items()}
REBUILD_TENSOR, REBUILD_UNTYPED_TENSOR = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"
REBUILD_PARAMETER = "torch._utils _rebuild_parameter"
ORDERED_DICT = "collections OrderedDict"


def dump_pickle(tree: Any) -> bytes:
    """The pickle of a tree of `PickleDict`, list, tuple, scalars and `TorchTensor`."""
    writer = _PickleWriter()
    writer.value(tree)
    return b"\x80\x02" + b"".join(writer.parts) + b"."


class _PickleWriter:
    """Collects the operations. Texts and names that come again are recalled, not repeated."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._kept: dict[tuple[str, str], int] = {}

    def value(self, value: Any) -> None:
        if isinstance(value, TorchTensor):
            self._tensor(value)
        elif isinstance(value, PickleDict):
            self._dictionary(value)
        elif isinstance(value, tuple | list):
            self._sequence(value)
        else:
            self._scalar(value)

    def _scalar(self, value: Scalar) -> None:
        if value is None:
            self.parts.append(b"N")
        elif isinstance(value, bool):
            self.parts.append(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            self.parts.append(_encode_int(value))
        elif isinstance(value, float):
            self.parts.append(b"G" + struct.pack(">d", value))
        else:
            # A lone surrogate cannot be refused here: it came out of a pickle, which may hold one.
            data = value.encode("utf-8", "surrogatepass")
            self._write_memoized("text", value, b"X" + struct.pack("<I", len(data)) + data)

    def _name(self, module_and_name: str) -> None:
        module, name = module_and_name.split(" ")
        self._write_memoized("name", module_and_name, f"c{module}\n{name}\n".encode())

    def _write_memoized(self, kind: str, text: str, operation: bytes) -> None:
        index = self._kept.get((kind, text))
        if index is not None:
            self.parts.append(b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index))
            return
        index = self._kept[kind, text] = len(self._kept)
        self.parts += [operation, b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)]

    def _sequence(self, values: tuple[Any, ...] | list[Any]) -> None:
        is_tuple = isinstance(values, tuple)
        self.parts.append(b"(" if is_tuple else b"](")
        for value in values:
            self.value(value)
        self.parts.append(b"t" if is_tuple else b"e")

    def _dictionary(self, node: PickleDict) -> None:
        if node.ordered:
            self._empty_ordered()
        else:
            self.parts.append(b"}")
        self.parts.append(b"(")
        for key, value in node.entries.items():
            self._scalar(key)
            self.value(value)
        self.parts.append(b"u")
        if node.state is not None:
            self.value(node.state)
            self.parts.append(b"b")

    def _empty_ordered(self) -> None:
        self._name(ORDERED_DICT)
        self.parts.append(b")R")

    def _tensor(self, tensor: TorchTensor) -> None:
        if tensor.parameter:
            self._name(REBUILD_PARAMETER)
            self.parts.append(b"(")
            self._view(tensor, requires_grad=False)
            self._scalar(tensor.requires_grad)
            self._empty_ordered()
            self.parts.append(b"tR")
        else:
            self._view(tensor, requires_grad=tensor.requires_grad)

    def _view(self, tensor: TorchTensor, *, requires_grad: bool) -> None:
        untyped = tensor.storage.kind == UNTYPED_STORAGE
        self._name(REBUILD_UNTYPED_TENSOR if untyped else REBUILD_TENSOR)
        self.parts.append(b"(")
        self._storage(tensor.storage)
        for part in (tensor.offset, tensor.shape, tensor.strides, requires_grad):
            self.value(part)
        self._empty_ordered()
        if untyped:
            self._name(DTYPE_NAMES[tensor.dtype].replace(".", " "))
        self.parts.append(b"tR")

    def _storage(self, storage: TorchStorage) -> None:
        module, _, name = storage.kind.rpartition(".")
        self.parts.append(b"(")
        self._scalar("storage")
        self._name(f"{module} {name}")
        for part in (storage.key, storage.location, storage.num_items):
            self._scalar(part)
        self.parts.append(b"tQ")


def _encode_int(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data
