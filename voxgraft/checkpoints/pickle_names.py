"""Which names a pickle may import without being able to run anything, and which others a pickle asks for.

A list of what is known to be harmless, since nobody can list all that is not.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from voxgraft.checkpoints.pickles import PickleInterpreter, PickleParseError

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
