"""Reading a pickle without running it: a small machine that follows the opcodes and calls nothing, ever.

What a pickle would call becomes a `Foreign` that only remembers what it would have been. Bounded in bytes and steps;
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
HIGHEST_PROTOCOL = 5
PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
PERSISTENT = "persistent id"
MAX_KEY_BITS = 60
"""Up to here no two numbers have the same hash."""
MAX_BITS = 1024
"""Longer numbers cannot be printed; random generators keep their states in 128 bits."""


@dataclass(eq=False, repr=False, slots=True)
class Global:
    """A name that the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, repr=False, slots=True)
class Dictionary:
    """A dict or an OrderedDict. `state` is what the pickle would set on it, such as torch's `_metadata`."""

    ordered: bool = False
    entries: dict[Any, Any] = field(default_factory=dict)
    state: Any = None


@dataclass(eq=False, repr=False, slots=True)
class Foreign:
    """An object that was not made: the name of what would have made it, and from what."""

    maker: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return f"<{self.maker}>"


class BrokenPickle(Exception):  # noqa: N818 (never reaches a user: read_pickle turns it into an error with a code)
    """The machine cannot go on."""


class PickleMachine:
    """Follows one pickle. `globals` fills as names are met, also when the pickle breaks off later."""

    def __init__(self) -> None:
        self.globals: dict[str, Global] = {}
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
                    raise BrokenPickle(f"over {MAX_STEPS:,} steps")
                if opcode.name == "STOP":
                    return self._pop()
                self._step(opcode.name, argument)
        except ValueError as error:  # all that genops raises for bytes that are no pickle
            raise BrokenPickle(str(error).splitlines()[0][:120]) from None
        raise BrokenPickle("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _PUSHES:
            self._push(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        else:
            raise BrokenPickle(f"the operation {name} has no place in a checkpoint")

    def _push(self, value: Any) -> None:
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            value = Foreign(f"a number of {value.bit_length():,} bits")
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise BrokenPickle("it takes a value that it has not put down")
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            raise BrokenPickle("it uses a value that it has not put down")
        return self._stack[-1]

    def _mark(self, _: Any) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        if not self._marks:
            raise BrokenPickle("it closes a list that it has not opened")
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
            raise BrokenPickle(f"it recalls value {index}, which it has not kept")
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
        self._stack.append(Dictionary())
        self._set(items)

    def _collection(self, _: Any) -> None:
        items = self._pop_mark()
        self._stack.append(Foreign("builtins.frozenset", items=items))

    def _append(self, _: Any) -> None:
        self._extend([self._pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._pop_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if isinstance(target, Foreign):
            target.items.extend(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise BrokenPickle(f"it appends to {_kind(target)}")

    def _set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def _set_items(self, _: Any) -> None:
        self._set(self._pop_mark())

    def _set(self, items: list[Any]) -> None:
        target = self._top()
        if len(items) % 2:
            raise BrokenPickle("a key without a value")
        if isinstance(target, Foreign):
            target.items.extend(items)
        elif isinstance(target, Dictionary):
            pairs = zip(items[::2], items[1::2], strict=True)
            target.entries.update((key if _is_plain_key(key) else Foreign("key", key), v) for key, v in pairs)
        else:
            raise BrokenPickle(f"it sets a key of {_kind(target)}")

    def _global(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self._push_global(module, name)

    def _stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise BrokenPickle("a name that is no text")
        self._push_global(module, name)

    def _extension(self, argument: Any) -> None:
        self._push_global("copyreg", f"extension {argument}")

    def _push_global(self, module: str, name: str) -> None:
        found = self.globals.setdefault(f"{module}.{name}", Global(module, name))
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
            raise BrokenPickle("an object of no kind")
        self._make(items[0], tuple(items[1:]))

    def _make(self, maker: Any, args: Any) -> None:
        """Where a pickle would call `maker(*args)`; only an empty OrderedDict is really made."""
        if _kind(maker) == "collections.OrderedDict" and isinstance(args, tuple) and not args:
            self._stack.append(Dictionary(ordered=True))
        else:
            self._stack.append(Foreign(_kind(maker), args))

    def _build(self, _: Any) -> None:
        self._build_with(self._pop())

    def _build_with(self, state: Any) -> None:
        target = self._top()
        if not isinstance(target, Foreign | Dictionary):
            raise BrokenPickle(f"it sets the state of {_kind(target)}")
        target.state = state

    def _persistent(self, argument: Any) -> None:
        identity = self._pop() if argument is None else argument
        self._stack.append(Foreign(PERSISTENT, identity))

    def _protocol(self, argument: Any) -> None:
        if argument > HIGHEST_PROTOCOL:
            raise BrokenPickle(f"protocol {argument}")

    def _nothing(self, _: Any) -> None:
        """A frame is only a hint for buffering."""


_PUSHES = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": Dictionary,
    "EMPTY_SET": lambda: Foreign("builtins.set"),
}
_ACTIONS: dict[str, Callable[[PickleMachine, Any], None]] = {
    "MARK": PickleMachine._mark,
    "POP": PickleMachine._drop,
    "POP_MARK": PickleMachine._drop_mark,
    "DUP": PickleMachine._duplicate,
    "TUPLE": PickleMachine._tuple,
    "TUPLE1": lambda machine, _: machine._tuple_of(1),
    "TUPLE2": lambda machine, _: machine._tuple_of(2),
    "TUPLE3": lambda machine, _: machine._tuple_of(3),
    "LIST": PickleMachine._list,
    "DICT": PickleMachine._dict,
    "FROZENSET": PickleMachine._collection,
    "APPEND": PickleMachine._append,
    "APPENDS": PickleMachine._appends,
    "ADDITEMS": PickleMachine._appends,
    "SETITEM": PickleMachine._set_item,
    "SETITEMS": PickleMachine._set_items,
    "GLOBAL": PickleMachine._global,
    "STACK_GLOBAL": PickleMachine._stack_global,
    "EXT1": PickleMachine._extension,
    "EXT2": PickleMachine._extension,
    "EXT4": PickleMachine._extension,
    "REDUCE": PickleMachine._reduce,
    "NEWOBJ": PickleMachine._reduce,
    "NEWOBJ_EX": PickleMachine._new_with_keywords,
    "INST": PickleMachine._instance,
    "OBJ": PickleMachine._object,
    "BUILD": PickleMachine._build,
    "PERSID": PickleMachine._persistent,
    "BINPERSID": PickleMachine._persistent,
    "PROTO": PickleMachine._protocol,
    "FRAME": PickleMachine._nothing,
}
_ACTIONS.update(dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), PickleMachine._remember))
_ACTIONS.update(dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), PickleMachine._recall))


def read_pickle(data: bytes, where: object) -> Any:
    """The value of the one pickle in `data`, with everything that it would call left as a `Foreign`."""
    try:
        return PickleMachine().run(io.BytesIO(data))
    except BrokenPickle as error:
        raise CheckpointError("torch-pickle", f"the pickle cannot be read: {error}", where=str(where)) from None


def _is_plain_key(key: Any) -> bool:
    """Whether a key may be looked up. Tuples take for ever to hash, and long numbers can be chosen to hash alike."""
    return isinstance(key, PLAIN_KEYS) and not (isinstance(key, int) and key.bit_length() > MAX_KEY_BITS)


def _kind(value: Any) -> str:
    return str(value) if isinstance(value, Global) else f"a {type(value).__name__.lower()}"
