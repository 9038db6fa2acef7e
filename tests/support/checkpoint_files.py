"""Small checkpoint files for the tests: as trainers write them, and as nobody should."""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BASE_ROWS, SPARE_ROWS, WIDTH, NEW_ROWS = 12, 1, 8, 5


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def speech_model(dtype: torch.dtype = torch.float32) -> OrderedDict[str, Tensor]:
    """A state dict with text tables in the manner of IndexTTS-2: pieces and one spare row, a head with a bias."""
    rows = BASE_ROWS + SPARE_ROWS
    return OrderedDict(
        {
            "gpt.h.0.weight": values(WIDTH, 3 * WIDTH, seed=1, dtype=dtype),
            "text_embedding.weight": values(rows, WIDTH, seed=2, dtype=dtype),
            "counter": torch.tensor(7),
            "text_head.weight": values(rows, WIDTH, seed=3, dtype=dtype),
            "text_head.bias": values(rows, seed=4, dtype=dtype),
            "empty": torch.zeros(0, 3, dtype=dtype),
            "final_norm.weight": values(WIDTH, seed=5, dtype=dtype),
        }
    )


def trainer_extras() -> dict[str, Any]:
    """What trainers put beside the model, random states and NumPy scalars among it."""
    return {
        "optimizer": {
            "state": {0: {"exp_avg": values(4, 4)}, 1: {"exp_avg": values(2)}},
            "param_groups": [{"lr": 0.1}],
        },
        "scheduler": {"last_epoch": 3, "_last_lr": [0.1]},
        "epoch": 3,
        "step": 4096,
        "best_val_loss": 1.25,
        "amp": True,
        "note": "ሰላም",
        "scaler": None,
        "mean_loss": np.float64(0.5),
        "args": argparse.Namespace(lr=0.1, name="x"),
        "rng_state": {"torch_cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "python": (3, (1, 2), None)},
        "recent_checkpoints": ["a.pth", "b.pth"],
    }


def bits(tensor: Tensor) -> bytes:
    """A tensor's values as bytes, in row-major order."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def safetensors_bytes(header: dict[str, Any] | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header, right or wrong."""
    text = json.dumps(header) if isinstance(header, dict) else header
    raw = text if isinstance(text, bytes) else text.encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def archive(pickle: bytes, records: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A torch archive around any pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as packed:
        packed.writestr("x/data.pkl", pickle)
        for name, data in (records or {}).items():
            packed.writestr(f"x/{name}", data)
    return stream.getvalue()


def saved(value: Any, path: Path) -> Path:
    torch.save(value, path)
    return path


def written(data: bytes, path: Path) -> Path:
    path.write_bytes(data)
    return path


FLOAT_VIEW = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ%s%s%s\x89ccollections\nOrderedDict\n)RtR"
)


def one_tensor(offset: bytes = b"K\x00", shape: bytes = b"K\x02\x85", strides: bytes = b"K\x01\x85") -> bytes:
    """A pickle of {"a": a view of two floats}, with any offset, shape and strides."""
    return b"\x80\x02}X\x01\x00\x00\x00a" + FLOAT_VIEW % (offset, shape, strides) + b"s."


TWO_FLOATS = {"data/0": np.array([1, 2], "<f4").tobytes()}
