"""A repaired file on its way to the disk, in the format that its name says; the inputs are only read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from voxgraft import progress
from voxgraft.checkpoints.grow import check_output_path
from voxgraft.checkpoints.model import Checkpoint, CheckpointExtra
from voxgraft.checkpoints.sink import ByteSink
from voxgraft.checkpoints.torch_file import STATE_DICT_KEYS
from voxgraft.checkpoints.write import STORAGE_CLASSES, TensorBytes, write_safetensors, write_torch
from voxgraft.errors import CheckpointError
from voxgraft.files import atomic_write

__all__ = ["OUTPUT_SUFFIXES", "list_dropped_extras", "write_repaired_checkpoint"]

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
OUTPUT_SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def write_repaired_checkpoint(
    tuned: Checkpoint, tensors: Mapping[str, TensorBytes], output: Path, *, overwrite: bool
) -> str:
    """Write all tensors, whole or not at all; the SHA-256 of the file."""
    if output.suffix not in OUTPUT_SUFFIXES:
        expected = f"a name that ends with {', '.join(OUTPUT_SUFFIXES)}"
        raise CheckpointError("output-suffix", f"the output is called {output.name}", expected=expected, where=output)
    size = sum(tensor.num_bytes for tensor in tensors.values())
    check_output_path(tuned, output, size)
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in STORAGE_CLASSES]
    if odd and output.suffix in TORCH_SUFFIXES:
        found = f"{odd[0]} is {tensors[odd[0]].dtype}, which is not written into torch archives here"
        raise CheckpointError("output-suffix", found, expected="NAME.safetensors", where=output)
    with (
        atomic_write(output, overwrite=overwrite) as stream,
        progress.progress_task(f"writing {output.name}", size) as advance,
    ):
        sink = ByteSink(stream, hashed=True, advance=advance)
        if output.suffix in TORCH_SUFFIXES:
            write_torch(sink, tensors, wrapper=_output_wrapper_key(tuned), extras=_kept_extras(tuned))
        else:
            write_safetensors(sink, tensors, tuned.metadata)
        tuned.source.check_unchanged()
    assert sink.sha256 is not None
    return sink.sha256


def _output_wrapper_key(tuned: Checkpoint) -> str | None:
    """The key that the new file keeps its tensors under. Other programs do not know a pipeline's own (`t3`, `gpt`)."""
    return tuned.wrapper if tuned.wrapper in STATE_DICT_KEYS else None


def list_dropped_extras(tuned: Checkpoint, output: Path) -> list[CheckpointExtra]:
    """What the new file does not have: everything that is no tensor of the model and no plain value beside it."""
    kept = _kept_extras(tuned) if output.suffix in TORCH_SUFFIXES else {}
    return [extra for extra in tuned.extras if extra.name not in kept]


def _kept_extras(tuned: Checkpoint) -> dict[str, bool | int | float | str | None]:
    if _output_wrapper_key(tuned) is None:
        return {}
    return {extra.name: extra.value for extra in tuned.extras if extra.kept and extra.name != tuned.wrapper}
