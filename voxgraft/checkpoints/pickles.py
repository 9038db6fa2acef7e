"""Reading a pickle without running it: a small machine that follows the opcodes and calls nothing, ever.

What a pickle would call becomes a `PickleObject` that only remembers what it would have been. Bounded in bytes and steps;
nothing here hashes, compares or walks what a hostile pickle has nested.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from voxgraft.errors import CheckpointError

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
    """A dict or an OrderedDict. `state` is what the pickle would set on it, such as torch's `_parse_metadata`."""

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
