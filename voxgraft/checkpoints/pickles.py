"""Read pickles without running them: an interpreter that follows the opcodes and never calls anything.

What a pickle would call becomes a `PickleObject` that records the callable's name and its arguments. Reading is bounded
in bytes and steps. Nothing here hashes, compares or recurses into what a hostile pickle has nested. The second half
turns the resulting tree into descriptions of tensors and of everything else that a checkpoint holds.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, TypeGuard

from voxgraft.checkpoints.base import TORCH_DTYPES, Scalar, item_bytes, parse_shape, span_values
from voxgraft.core.errors import CheckpointError

MAX_PICKLE_BYTES = 64 << 20
# A tensor takes about 30 steps: a model of 5,000 tensors with its optimizer stays below this.
MAX_STEPS = 1_000_000
# Trees of the last pickles up to this size are kept. That of 1,100 tensors has 130 kB; an optimizer makes it larger.
MAX_KEPT_BYTES = 256 << 10
MAX_PROTOCOL = 5
PERSISTENT_ID = "persistent id"
PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
# Integers hash to themselves modulo 2**61 - 1. Longer keys can be chosen to collide, and a dict of them is quadratic.
MAX_KEY_BITS = 60
# Longer integers cannot be printed in reasonable time; random generators keep their states in 128 bits.
MAX_INT_BITS = 1024


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
    """An object that was not created: the name of what would have created it, and its arguments."""

    maker: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return f"<{self.maker}>"


class PickleParseError(Exception):
    """The pickle is broken, or has an operation that no checkpoint needs."""


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


class PickleInterpreter:
    """Follows one pickle. `globals` collects the imported names, also of a pickle that breaks off later."""

    def __init__(self) -> None:
        self.globals: dict[str, PickleGlobal] = {}
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        # The memo of the pickle machine: values that later operations recall by number.
        self._memo: dict[int, Any] = {}

    def run(self, stream: io.BytesIO) -> Any:
        """The value that the pickle describes. Afterwards the stream is at the end of the pickle."""
        steps = 0
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                steps += 1
                if steps > MAX_STEPS:
                    raise PickleParseError(f"over {MAX_STEPS:,} steps")
                if opcode.name == "STOP":
                    return self._pop()
                self._step(opcode.name, argument)
        except ValueError as error:  # the only exception of genops for bytes that are no pickle
            raise PickleParseError(str(error).splitlines()[0][:120]) from None
        raise PickleParseError("it has no end marker")

    def _step(self, name: str, argument: Any) -> None:
        """One operation of the pickle machine; what each does is documented in `pickletools`."""
        if name in _PUSH_OPCODES:
            if isinstance(argument, int) and argument.bit_length() > MAX_INT_BITS:
                argument = PickleObject(f"a number of {argument.bit_length():,} bits")
            self._stack.append(argument)
            return
        if name in _CONSTANT_OPCODES:
            self._stack.append(_CONSTANT_OPCODES[name]())
            return
        match name:
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE" | "PUT":
                self._memo[len(self._memo) if argument is None else int(argument)] = self._top()
            case "BINGET" | "LONG_BINGET" | "GET":
                if int(argument) not in self._memo:
                    raise PickleParseError(f"it reads memo entry {argument}, which was never stored")
                self._stack.append(self._memo[int(argument)])
            case "MARK":
                self._marks.append(self._stack)
                self._stack = []
            case "TUPLE":
                items = tuple(self._pop_mark())
                self._stack.append(items)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                reverse = [self._pop() for _ in range(int(name[-1]))]  # the last item is on top
                self._stack.append(tuple(reversed(reverse)))
            case "REDUCE" | "NEWOBJ":
                args, maker = self._pop(), self._pop()
                self._make(maker, args)
            case "BINPERSID" | "PERSID":
                identity = self._pop() if argument is None else argument
                self._stack.append(PickleObject(PERSISTENT_ID, identity))
            case "SETITEM":
                value, key = self._pop(), self._pop()
                self._set_items([key, value])
            case "SETITEMS":
                self._set_items(self._pop_mark())
            case "APPEND":
                self._extend([self._pop()])
            case "APPENDS" | "ADDITEMS":
                self._extend(self._pop_mark())
            case "LIST":
                listed = self._pop_mark()
                self._stack.append(listed)
            case "DICT":
                listed = self._pop_mark()
                self._stack.append(PickleDict())
                self._set_items(listed)
            case "FROZENSET":
                listed = self._pop_mark()
                self._stack.append(PickleObject("builtins.frozenset", items=listed))
            case "GLOBAL":
                self._push_global(*str(argument).split(" ", 1))
            case "STACK_GLOBAL":
                own, module = self._pop(), self._pop()
                if not isinstance(own, str) or not isinstance(module, str):
                    raise PickleParseError("a name that is not a string")
                self._push_global(module, own)
            case "EXT1" | "EXT2" | "EXT4":  # a number that copyreg maps to a name, which is not known here
                self._push_global("copyreg", f"extension {argument}")
            case "NEWOBJ_EX":
                keywords, args, maker = self._pop(), self._pop(), self._pop()
                self._make(maker, args)
                self._set_state(keywords)
            case "INST":
                items = tuple(self._pop_mark())
                self._push_global(*str(argument).split(" ", 1))
                self._make(self._pop(), items)
            case "OBJ":
                listed = self._pop_mark()
                if not listed:
                    raise PickleParseError("an object without a class")
                self._make(listed[0], tuple(listed[1:]))
            case "BUILD":
                self._set_state(self._pop())
            case "POP":
                if self._stack:
                    self._stack.pop()
                else:
                    self._pop_mark()
            case "POP_MARK":
                self._pop_mark()
            case "DUP":
                self._stack.append(self._top())
            case "PROTO":
                if argument > MAX_PROTOCOL:
                    raise PickleParseError(f"protocol {argument}")
            case "FRAME":  # only a hint for buffering
                pass
            case _:
                raise PickleParseError(f"the opcode {name} is not allowed in a checkpoint")

    def _pop(self) -> Any:
        if not self._stack:
            raise PickleParseError("it pops a value from an empty stack")
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            raise PickleParseError("it reads a value from an empty stack")
        return self._stack[-1]

    def _pop_mark(self) -> list[Any]:
        if not self._marks:
            raise PickleParseError("a stack mark is missing")
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _push_global(self, module: str, name: str = "") -> None:
        self._stack.append(self.globals.setdefault(f"{module}.{name}", PickleGlobal(module, name)))

    def _make(self, maker: Any, args: Any) -> None:
        """Where a pickle would call `maker(*args)`. Only an empty OrderedDict is really made."""
        if _describe_value(maker) == "collections.OrderedDict" and isinstance(args, tuple) and not args:
            self._stack.append(PickleDict(ordered=True))
        else:
            self._stack.append(PickleObject(_describe_value(maker), args))

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, PickleObject | list):
            raise PickleParseError(f"it appends to {_describe_value(target)}")
        (target.items if isinstance(target, PickleObject) else target).extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._top()
        if len(items) % 2:
            raise PickleParseError("a key without a value")
        if isinstance(target, PickleObject):
            target.items.extend(items)
        elif isinstance(target, PickleDict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                # Nested tuples can take forever to hash; see MAX_KEY_BITS for integers. Such keys are only kept.
                plain = isinstance(key, PLAIN_KEYS) and not (isinstance(key, int) and key.bit_length() > MAX_KEY_BITS)
                target.entries[key if plain else PickleObject("key", key)] = value
        else:
            raise PickleParseError(f"it sets a key of {_describe_value(target)}")

    def _set_state(self, state: Any) -> None:
        target = self._top()
        if not isinstance(target, PickleObject | PickleDict):
            raise PickleParseError(f"it sets the state of {_describe_value(target)}")
        target.state = state


def _describe_value(value: Any) -> str:
    return str(value) if isinstance(value, PickleGlobal) else f"a {type(value).__name__.lower()}"


def read_pickle(data: bytes, where: object) -> Any:
    """The value of the one pickle in `data`, with everything that it would call left as a `PickleObject`."""
    try:
        return _interpret_once(data) if len(data) <= MAX_KEPT_BYTES else PickleInterpreter().run(io.BytesIO(data))
    except PickleParseError as error:
        raise CheckpointError("torch-pickle", f"the pickle cannot be read: {error}", where=str(where)) from None


@lru_cache(maxsize=4)
def _interpret_once(data: bytes) -> Any:
    # One command opens a file a dozen times: to find its family, to check it, to load it. Nobody changes a tree.
    return PickleInterpreter().run(io.BytesIO(data))


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
# Names that make values and do nothing else. Everything outside could run anything.
SAFE_GLOBALS = frozenset(
    f"{module}.{name}" for module, names in _SAFE_NAMES_BY_MODULE.items() for name in names.split()
)


def find_unsafe_globals(data: bytes) -> list[str]:
    """Names outside SAFE_GLOBALS that the pickles in `data` would import, also those before one that breaks off."""
    found: dict[str, None] = {}
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        interpreter = PickleInterpreter()
        try:
            interpreter.run(stream)
        except PickleParseError:
            break
        finally:
            found.update(dict.fromkeys(interpreter.globals))
    return [name for name in found if name not in SAFE_GLOBALS]


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
# Types without a storage class of their own: torch keeps their bytes untyped and names the type beside them.
UNTYPED_DTYPES = {f"torch.{TORCH_DTYPES[name]}": name for name in ("U16", "U32", "U64", "F8_E4M3", "F8_E5M2")}


class TensorParseError(Exception):
    """A tensor that cannot be described."""


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A view of a storage, the values of one record of the archive. `offset` and `strides` count values."""

    storage: str
    """Key of the storage, and name of its record."""
    storage_class: str
    location: str
    storage_items: int
    """Values in the storage, or bytes if it is untyped."""
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False


_REBUILD_VIEW = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
_REBUILD_UNTYPED = "torch._utils._rebuild_tensor_v3"
_REBUILD_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_REBUILD_SUBCLASS = "torch._tensor._rebuild_from_type_v2"
_REBUILDERS = frozenset((*_REBUILD_VIEW, _REBUILD_UNTYPED, *_REBUILD_PARAMETER, _REBUILD_SUBCLASS))


def is_tensor(node: Any) -> bool:
    """Whether the pickle would make a tensor of this node."""
    return isinstance(node, PickleObject) and node.maker in _REBUILDERS


def parse_tensor(maker: str, args: Any, depth: int = 0) -> TorchTensor:
    """What torch's function of that name would build. A parameter or a subclass holds a tensor one level down."""
    if maker not in _REBUILDERS or not isinstance(args, tuple) or depth > 2:
        raise TensorParseError("it is not built like a tensor")
    if maker in _REBUILD_PARAMETER:  # (tensor, requires_grad, hooks), perhaps with a state, which is left out
        if len(args) < 2 or not isinstance(args[0], PickleObject) or not isinstance(args[1], bool):
            raise TensorParseError("it is a parameter without a tensor")
        tensor = parse_tensor(args[0].maker, args[0].args, depth + 1)
        return replace(tensor, requires_grad=args[1], parameter=True)
    if maker == _REBUILD_SUBCLASS:  # (rebuilder, class, arguments, state); class and state are left out
        if len(args) != 4 or not isinstance(args[0], PickleGlobal):
            raise TensorParseError("it is of a class that cannot be read")
        return parse_tensor(str(args[0]), args[2], depth + 1)
    if maker == _REBUILD_UNTYPED:  # (storage, offset, shape, strides, requires_grad, hooks, dtype)
        if len(args) not in (7, 8) or not isinstance(args[6], PickleGlobal):
            raise TensorParseError("its dtype is missing")
        storage, dtype = _parse_storage(args[0]), UNTYPED_DTYPES.get(str(args[6]))
        if storage[0] != UNTYPED_STORAGE or dtype is None:
            raise TensorParseError(f"its dtype is {args[6]}, stored as {storage[0]}")
        return _build_view(storage, dtype, args)
    if len(args) not in (4, 6, 7):  # (storage, offset, shape, strides), and v2 adds requires_grad, hooks, notes
        raise TensorParseError(f"it has {len(args)} parts")
    notes = args[6] if len(args) == 7 else None
    if notes is not None and not (isinstance(notes, PickleDict) and not notes.entries):
        raise TensorParseError("it is conjugated or negated when it is read")
    storage = _parse_storage(args[0])
    if storage[0] not in STORAGE_DTYPES:
        raise TensorParseError(f"its values are stored as {storage[0]}")
    return _build_view(storage, STORAGE_DTYPES[storage[0]], args)


def _parse_storage(node: Any) -> tuple[str, str, str, int]:
    """Class, key, location and number of items of a storage."""
    identity = node.args if isinstance(node, PickleObject) and node.maker == PERSISTENT_ID else None
    if isinstance(identity, tuple) and len(identity) == 6 and identity[5] is None:
        identity = identity[:5]  # files older than torch 1.6: a storage could be a part of another, which is not used
    if isinstance(identity, tuple) and len(identity) == 5 and identity[0] == "storage":
        _, kind, key, location, num_items = identity
        texts = isinstance(kind, PickleGlobal) and isinstance(key, str) and isinstance(location, str)
        if texts and type(num_items) is int and num_items >= 0:
            return str(kind), key, location, num_items
    raise TensorParseError("its storage does not have a torch name")


def _build_view(storage: tuple[str, str, str, int], dtype: str, args: tuple[Any, ...]) -> TorchTensor:
    """A view of a storage, from (storage, offset, shape, strides, requires_grad, ...)."""
    storage_class, key, location, num_items = storage
    # A torch.Size is pickled as a call with one argument.
    sizes = [
        node.args[0]
        if isinstance(node, PickleObject)
        and node.maker == "torch.Size"
        and isinstance(node.args, tuple)
        and len(node.args) == 1
        else node
        for node in args[2:4]
    ]
    offset, shape, strides = args[1], parse_shape(sizes[0]), sizes[1]
    if shape is None:
        raise TensorParseError("its shape is not a list of sizes")
    if type(offset) is not int or offset < 0:
        raise TensorParseError("its storage offset is not a number")
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        raise TensorParseError("its strides do not fit its shape")
    if not all(type(stride) is int and 0 <= stride < 1 << 63 for stride in strides):
        raise TensorParseError("its strides are not whole numbers")
    num_values = num_items // item_bytes(dtype) if storage_class == UNTYPED_STORAGE else num_items
    needed = offset + span_values(shape, strides)
    if needed > num_values:
        raise TensorParseError(f"it needs {needed:,} values of a storage of {num_values:,}")
    requires_grad = len(args) > 4 and args[4] is True
    return TorchTensor(key, storage_class, location, num_items, dtype, offset, shape, strides, requires_grad)


MAX_NODES = 300_000
MAX_PLAIN_DEPTH = 8
MAX_TEXT_CHARACTERS = 1 << 16
MAX_SCALAR_BITS = 64


def is_small_scalar(node: Any) -> TypeGuard[Scalar]:
    """Whether a node is a plain value, small enough to be copied into another file."""
    if isinstance(node, str):
        return len(node) <= MAX_TEXT_CHARACTERS
    if isinstance(node, int):
        return node.bit_length() < MAX_SCALAR_BITS
    return node is None or isinstance(node, float)


def is_plain_tree(node: Any) -> bool:
    """Whether a node consists of scalars, lists, tuples and dictionaries only, not too deep and not too many."""
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


class NodeDescriber:
    """Describes nodes in a few words. All descriptions of one file share a budget of nodes to visit.

    A thousand entries of a hostile file can all lead to the same hundred thousand nodes.
    """

    def __init__(self) -> None:
        self._nodes_left = MAX_NODES

    def describe(self, node: Any) -> str:
        """A node in a few words, with the tensors that can be reached from it."""
        if is_tensor(node):
            tensor = _tensor_or_none(node)
            return f"tensor {tensor.dtype} {list(tensor.shape)}" if tensor else "tensor"
        if isinstance(node, PickleDict):
            keys = [str(key)[:24] for key in islice(node.entries, 4) if isinstance(key, str)]
            names = f" ({', '.join(keys)}{', ...' if len(node.entries) > len(keys) else ''})" if keys else ""
            return f"dictionary of {len(node.entries)}{names}{self._tensors_below(node)}"
        if isinstance(node, list | tuple):
            return f"{type(node).__name__} of {len(node)}{self._tensors_below(node)}"
        if isinstance(node, PickleObject):
            return f"object {node.maker[:80]}{self._tensors_below(node)}"
        if isinstance(node, str | bytes | bytearray):
            return f"text of {len(node)}" if isinstance(node, str) else f"{len(node):,} bytes"
        if node is None:
            return "nothing"
        if isinstance(node, int) and not is_small_scalar(node):
            return f"number of {node.bit_length():,} bits"
        return f"name {node}"[:80] if isinstance(node, PickleGlobal) else f"{type(node).__name__} {node}"

    def _tensors_below(self, root: Any) -> str:
        """How many tensors can be reached from a node, and how large they are."""
        waiting: list[Any] = [root]
        seen: set[int] = set()
        count = size = 0
        while waiting and self._nodes_left:
            self._nodes_left -= 1
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if is_tensor(node):
                tensor = _tensor_or_none(node)
                count += 1
                size += math.prod(tensor.shape) * item_bytes(tensor.dtype) if tensor else 0
            else:
                waiting.extend(child_nodes(node))
        return f", {count:,} tensor{'s' * (count != 1)}, {size / 1e6:,.1f} MB" if count else ""


def child_nodes(node: Any) -> list[Any]:
    """What hangs directly on a node."""
    if isinstance(node, PickleDict):
        return [*node.entries.values(), node.state]
    if isinstance(node, PickleObject):
        return [node.args, node.state, *node.items]
    return list(node) if isinstance(node, list | tuple) else []


def _tensor_or_none(node: Any) -> TorchTensor | None:
    try:
        return parse_tensor(node.maker, node.args)
    except TensorParseError:
        return None
