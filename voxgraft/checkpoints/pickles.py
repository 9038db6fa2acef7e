"""Reading a pickle without running it: a small machine that follows the opcodes and calls nothing, ever.

What a pickle would call becomes a `PickleObject` that only remembers what it would have been. Bounded in bytes and steps;
nothing here hashes, compares or walks what a hostile pickle has nested.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeGuard

from voxgraft.checkpoints.base import Scalar, item_bytes, parse_shape, span_values
from voxgraft.core.errors import CheckpointError

MAX_PICKLE_BYTES = 64 << 20
MAX_STEPS = 1_000_000
"""A tensor takes about 30 steps; a model of 5,000 tensors with its optimizer stays below this."""
MAX_PROTOCOL = 5
PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
PERSISTENT_ID = "persistent id"
MAX_KEY_BITS = 60
"""Up to here no two numbers have the same hash."""
MAX_INT_BITS = 1024
"""Longer numbers cannot be printed; random generators keep their states in 128 bits."""


@dataclass(eq=False, repr=False, slots=True)
class PickleGlobal:
    """A name that the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, repr=False, slots=True)
class PickleDict:
    """A dict or an OrderedDict. `state` is what the pickle would set on it, such as torch's `_metadata`."""

    ordered: bool = False
    entries: dict[Any, Any] = field(default_factory=dict)
    state: Any = None


@dataclass(eq=False, repr=False, slots=True)
class PickleObject:
    """An object that was not made: the name of what would have made it, and from what."""

    maker: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return f"<{self.maker}>"


class PickleParseError(Exception):
    """The machine cannot go on."""


class PickleInterpreter:
    """Follows one pickle. `globals` fills as names are met, also when the pickle breaks off later."""

    def __init__(self) -> None:
        self.globals: dict[str, PickleGlobal] = {}
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self, stream: io.BytesIO) -> Any:
        """The value that the pickle describes. The stream stands after it."""
        steps = 0
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                steps += 1
                if steps > MAX_STEPS:
                    raise PickleParseError(f"over {MAX_STEPS:,} steps")
                if opcode.name == "STOP":
                    return self._pop()
                self._step(opcode.name, argument)
        except ValueError as error:  # all that genops raises for bytes that are no pickle
            raise PickleParseError(str(error).splitlines()[0][:120]) from None
        raise PickleParseError("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _PUSH_OPCODES:
            self._push(argument)
        elif name in _CONSTANT_OPCODES:
            self._stack.append(_CONSTANT_OPCODES[name]())
        elif name in _OPCODE_HANDLERS:
            _OPCODE_HANDLERS[name](self, argument)
        else:
            raise PickleParseError(f"the operation {name} has no place in a checkpoint")

    def _push(self, value: Any) -> None:
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            value = PickleObject(f"a number of {value.bit_length():,} bits")
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise PickleParseError("it takes a value that it has not put down")
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            raise PickleParseError("it uses a value that it has not put down")
        return self._stack[-1]

    def _mark(self, _: Any) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        if not self._marks:
            raise PickleParseError("it closes a list that it has not opened")
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _drop(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _drop_mark(self, _: Any) -> None:
        self._pop_mark()

    def _duplicate(self, _: Any) -> None:
        self._stack.append(self._top())

    def _remember(self, index: Any) -> None:
        self._memo[len(self._memo) if index is None else int(index)] = self._top()

    def _recall(self, index: Any) -> None:
        if int(index) not in self._memo:
            raise PickleParseError(f"it recalls value {index}, which it has not kept")
        self._stack.append(self._memo[int(index)])

    def _tuple(self, _: Any) -> None:
        items = tuple(self._pop_mark())
        self._stack.append(items)

    def _tuple_of(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(items)))

    def _list(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(items)

    def _dict(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(PickleDict())
        self._set(items)

    def _collection(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(PickleObject("builtins.frozenset", items=items))

    def _append(self, _: Any) -> None:
        self._extend([self._pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._pop_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if isinstance(target, PickleObject):
            target.items.extend(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise PickleParseError(f"it appends to {_describe_value(target)}")

    def _set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def _set_items(self, _: Any) -> None:
        self._set(self._pop_mark())

    def _set(self, items: list[Any]) -> None:
        target = self._top()
        if len(items) % 2:
            raise PickleParseError("a key without a value")
        if isinstance(target, PickleObject):
            target.items.extend(items)
        elif isinstance(target, PickleDict):
            pairs = zip(items[::2], items[1::2], strict=True)
            target.entries.update((key if _is_plain_key(key) else PickleObject("key", key), v) for key, v in pairs)
        else:
            raise PickleParseError(f"it sets a key of {_describe_value(target)}")

    def _global(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self._push_global(module, name)

    def _stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleParseError("a name that is no text")
        self._push_global(module, name)

    def _extension(self, argument: Any) -> None:
        self._push_global("copyreg", f"extension {argument}")

    def _push_global(self, module: str, name: str) -> None:
        found = self.globals.setdefault(f"{module}.{name}", PickleGlobal(module, name))
        self._stack.append(found)

    def _reduce(self, _: Any) -> None:
        args, maker = self._pop(), self._pop()
        self._make(maker, args)

    def _new_with_keywords(self, _: Any) -> None:
        keywords, args, maker = self._pop(), self._pop(), self._pop()
        self._make(maker, args)
        self._build_with(keywords)

    def _instance(self, argument: Any) -> None:
        items = tuple(self._pop_mark())
        self._global(argument)
        self._make(self._pop(), items)

    def _object(self, _: Any) -> None:
        items = self._pop_mark()
        if not items:
            raise PickleParseError("an object of no kind")
        self._make(items[0], tuple(items[1:]))

    def _make(self, maker: Any, args: Any) -> None:
        """Where a pickle would call `maker(*args)`; only an empty OrderedDict is really made."""
        if _describe_value(maker) == "collections.OrderedDict" and isinstance(args, tuple) and not args:
            self._stack.append(PickleDict(ordered=True))
        else:
            self._stack.append(PickleObject(_describe_value(maker), args))

    def _build(self, _: Any) -> None:
        self._build_with(self._pop())

    def _build_with(self, state: Any) -> None:
        target = self._top()
        if not isinstance(target, PickleObject | PickleDict):
            raise PickleParseError(f"it sets the state of {_describe_value(target)}")
        target.state = state

    def _persistent(self, argument: Any) -> None:
        identity = self._pop() if argument is None else argument
        self._stack.append(PickleObject(PERSISTENT_ID, identity))

    def _protocol(self, argument: Any) -> None:
        if argument > MAX_PROTOCOL:
            raise PickleParseError(f"protocol {argument}")

    def _nothing(self, _: Any) -> None:
        """A frame is only a hint for buffering."""


_PUSH_OPCODES = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)
_CONSTANT_OPCODES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": PickleDict,
    "EMPTY_SET": lambda: PickleObject("builtins.set"),
}
_OPCODE_HANDLERS: dict[str, Callable[[PickleInterpreter, Any], None]] = {
    "MARK": PickleInterpreter._mark,
    "POP": PickleInterpreter._drop,
    "POP_MARK": PickleInterpreter._drop_mark,
    "DUP": PickleInterpreter._duplicate,
    "TUPLE": PickleInterpreter._tuple,
    "TUPLE1": lambda machine, _: machine._tuple_of(1),
    "TUPLE2": lambda machine, _: machine._tuple_of(2),
    "TUPLE3": lambda machine, _: machine._tuple_of(3),
    "LIST": PickleInterpreter._list,
    "DICT": PickleInterpreter._dict,
    "FROZENSET": PickleInterpreter._collection,
    "APPEND": PickleInterpreter._append,
    "APPENDS": PickleInterpreter._appends,
    "ADDITEMS": PickleInterpreter._appends,
    "SETITEM": PickleInterpreter._set_item,
    "SETITEMS": PickleInterpreter._set_items,
    "GLOBAL": PickleInterpreter._global,
    "STACK_GLOBAL": PickleInterpreter._stack_global,
    "EXT1": PickleInterpreter._extension,
    "EXT2": PickleInterpreter._extension,
    "EXT4": PickleInterpreter._extension,
    "REDUCE": PickleInterpreter._reduce,
    "NEWOBJ": PickleInterpreter._reduce,
    "NEWOBJ_EX": PickleInterpreter._new_with_keywords,
    "INST": PickleInterpreter._instance,
    "OBJ": PickleInterpreter._object,
    "BUILD": PickleInterpreter._build,
    "PERSID": PickleInterpreter._persistent,
    "BINPERSID": PickleInterpreter._persistent,
    "PROTO": PickleInterpreter._protocol,
    "FRAME": PickleInterpreter._nothing,
}
_OPCODE_HANDLERS.update(dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), PickleInterpreter._remember))
_OPCODE_HANDLERS.update(dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), PickleInterpreter._recall))


def read_pickle(data: bytes, where: object) -> Any:
    """The value of the one pickle in `data`, with everything that it would call left as a `PickleObject`."""
    try:
        return PickleInterpreter().run(io.BytesIO(data))
    except PickleParseError as error:
        raise CheckpointError("torch-pickle", f"the pickle cannot be read: {error}", where=str(where)) from None


def _is_plain_key(key: Any) -> bool:
    """Whether a key may be looked up. Tuples take for ever to hash, and long numbers can be chosen to hash alike."""
    return isinstance(key, PLAIN_KEYS) and not (isinstance(key, int) and key.bit_length() > MAX_KEY_BITS)


def _describe_value(value: Any) -> str:
    return str(value) if isinstance(value, PickleGlobal) else f"a {type(value).__name__.lower()}"


_SAFE_NAMES_BY_MODULE = {
    "_codecs": "encode",
    "argparse": "Namespace",
    "builtins": "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple",
    "collections": "Counter OrderedDict defaultdict deque",
    "copyreg": "_reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "numpy": "dtype ndarray bool_ float16 float32 float64 int16 int32 int64 int8 uint16 uint32 uint64 uint8",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.multiarray": "_reconstruct scalar",
    "pathlib": "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath",
    "torch": "Size Tensor device bfloat16 bool complex128 complex64 float16 float32 float64 float8_e4m3fn float8_e5m2 "
    "int16 int32 int64 int8 uint16 uint32 uint64 uint8 BFloat16Storage BoolStorage ByteStorage CharStorage "
    "ComplexDoubleStorage ComplexFloatStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage "
    "ShortStorage",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch._utils": "_rebuild_device_tensor_from_numpy _rebuild_meta_tensor_no_storage _rebuild_parameter "
    "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor _rebuild_tensor _rebuild_tensor_v2 "
    "_rebuild_tensor_v3",
    "torch.nn.parameter": "Buffer Parameter",
    "torch.serialization": "_get_layout",
    "torch.storage": "TypedStorage UntypedStorage",
}
_SAFE_NAMES_BY_MODULE["__builtin__"] = _SAFE_NAMES_BY_MODULE["builtins"]
SAFE_GLOBALS = frozenset(
    f"{module}.{name}" for module, names in _SAFE_NAMES_BY_MODULE.items() for name in names.split()
)
"""Names that make values and do nothing else. Everything outside could run anything."""


def find_unsafe_globals(pickles: Iterable[bytes]) -> list[str]:
    """Names outside HARMLESS that these pickles would import, also those before the place where one breaks off."""
    found: dict[str, None] = {}
    for data in pickles:
        stream = io.BytesIO(data)
        broken = False
        while not broken and stream.tell() < len(data):
            broken = _collect_globals(stream, found)
    return [name for name in found if name not in SAFE_GLOBALS]


def _collect_globals(stream: io.BytesIO, found: dict[str, None]) -> bool:
    """Add the names of the next pickle in the stream to `found`; whether it broke off."""
    machine = PickleInterpreter()
    try:
        machine.run(stream)
    except PickleParseError:
        return True
    finally:
        found.update(dict.fromkeys(machine.globals))
    return False


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
