"""A repaired file on its way to the disk, in the format that its name says; the inputs are only read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from voxgraft import progress
from voxgraft.checkpoints.grow import check_output
from voxgraft.checkpoints.model import Checkpoint, Extra
from voxgraft.checkpoints.sink import Sink
from voxgraft.checkpoints.torch_file import WRAPPERS
from voxgraft.checkpoints.write import STORAGE_KINDS, TensorBytes, write_safetensors, write_torch
from voxgraft.errors import CheckpointError
from voxgraft.files import replacing

__all__ = ["SUFFIXES", "left_out", "write_repaired"]

TORCH = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *TORCH)


def write_repaired(tuned: Checkpoint, tensors: Mapping[str, TensorBytes], output: Path, *, overwrite: bool) -> str:
    """Write all tensors, whole or not at all; the SHA-256 of the file."""
    if output.suffix not in SUFFIXES:
        expected = f"a name that ends with {', '.join(SUFFIXES)}"
        raise CheckpointError("output-suffix", f"the output is called {output.name}", expected=expected, where=output)
    size = sum(tensor.num_bytes for tensor in tensors.values())
    check_output(tuned, output, size)
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in STORAGE_KINDS]
    if odd and output.suffix in TORCH:
        found = f"{odd[0]} is {tensors[odd[0]].dtype}, which is not written into torch archives here"
        raise CheckpointError("output-suffix", found, expected="NAME.safetensors", where=output)
    with replacing(output, overwrite=overwrite) as stream, progress.task(f"writing {output.name}", size) as advance:
        sink = Sink(stream, hashed=True, advance=advance)
        if output.suffix in TORCH:
            write_torch(sink, tensors, wrapper=_wrapper(tuned), beside=_kept(tuned))
        else:
            write_safetensors(sink, tensors, tuned.metadata)
        tuned.source.check_unchanged()
    assert sink.sha256 is not None
    return sink.sha256


def _wrapper(tuned: Checkpoint) -> str | None:
    """The key that the new file keeps its tensors under. Other programs do not know a pipeline's own (`t3`, `gpt`)."""
    return tuned.wrapper if tuned.wrapper in WRAPPERS else None


def left_out(tuned: Checkpoint, output: Path) -> list[Extra]:
    """What the new file does not have: everything that is no tensor of the model and no plain value beside it."""
    kept = _kept(tuned) if output.suffix in TORCH else {}
    return [extra for extra in tuned.extras if extra.name not in kept]


def _kept(tuned: Checkpoint) -> dict[str, bool | int | float | str | None]:
    if _wrapper(tuned) is None:
        return {}
    return {extra.name: extra.value for extra in tuned.extras if extra.kept and extra.name != tuned.wrapper}
