"""Human clips in one small file that NumPy alone can read: about 3.4 kB per second at 16 kHz.

So the training machine needs no audio libraries. Waves are stored as the rounded
coefficients of a lapped cosine transform (MDCT), coarser where the speech is louder, and compressed with LZMA. Mu-law
(16 kB per second) is included for comparison.

Shapes: F frames of 20 ms, K coefficients of a frame, B bands.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "HumanClip",
    "Samples",
    "Split",
    "decode",
    "encode",
    "mu_law_decode",
    "mu_law_encode",
    "read_pack",
    "write_pack",
]

Split = Literal["train", "valid", "test", "unseen"]
"""`unseen`: the whole speaker is held out."""
Samples = NDArray[np.int16]
FORMAT = "voxgraft-human-pack-1"
FRAME = 320
EDGES = (0, 4, 8, 12, 16, 20, 24, 28, 32, 38, 46, 54, 65, 77, 92, 110, 132, 157, 187, 224, 267, 320)
"""Band edges: 100 Hz wide at the bottom, a quarter of an octave above 800 Hz."""
STEP, EXPONENT = 0.12, 0.5
"""A band is rounded to STEP times its level to the power of EXPONENT: louder bands hide more noise."""
QUIETEST = 1e-4
LEVELS = 64
"""Number of band levels, in steps of half a power of two."""
ROUNDING = 0.4
"""Below a half: values near zero become zero, which costs nothing to store."""
PRESET = 4
MU = 255.0


@dataclass(frozen=True, slots=True)
class HumanClip:
    """One recording of a person."""

    package: str
    name: str
    language: str
    speaker: str
    text: str
    licence: str
    split: Split
    wave: Samples
    """At 16 kHz."""


def write_pack(path: Path, clips: Sequence[HumanClip], step: float = STEP) -> None:
    """Write all clips into one file."""
    coded = [encode(clip.wave, step) for clip in clips]
    rows = [{**asdict(clip), "wave": len(clip.wave)} for clip in clips]
    notes = {"format": FORMAT, "step": step, "clips": rows}
    parts = {
        "notes": json.dumps(notes, ensure_ascii=False).encode(),
        "codes": np.concatenate([codes for codes, _ in coded]).tobytes(),
        # Neighbouring levels are alike: their differences are small numbers.
        "levels": np.diff(np.concatenate([levels for _, levels in coded]), axis=0, prepend=np.int8(0)).T.tobytes(),
    }
    stream = io.BytesIO()
    squeezed = {name: np.frombuffer(lzma.compress(data, preset=PRESET), np.uint8) for name, data in parts.items()}
    np.savez(stream, notes=squeezed["notes"], codes=squeezed["codes"], levels=squeezed["levels"])
    made = path.with_name(f"{path.name}.part")
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(stream.getvalue())
    made.replace(path)


def read_pack(path: Path) -> list[HumanClip]:
    """Read the clips, in order. Samples may differ by one between machines."""
    try:
        with np.load(path) as stored:
            parts = {name: lzma.decompress(stored[name].tobytes()) for name in ("notes", "codes", "levels")}
    except (EOFError, KeyError, lzma.LZMAError) as fault:
        raise ValueError(f"{path} is damaged, or is not a pack of human voices: {fault}") from fault
    notes: dict[str, Any] = json.loads(parts["notes"])
    if notes.get("format") != FORMAT:
        raise ValueError(f"{path} is not a pack of human voices ({FORMAT}), but {notes.get('format')!r}")
    codes = np.frombuffer(parts["codes"], np.int8).reshape(-1, FRAME)
    moves = np.frombuffer(parts["levels"], np.int8).reshape(len(EDGES) - 1, -1).T
    levels = np.cumsum(moves, axis=0, dtype=np.int8)
    clips, first = [], 0
    for row in notes["clips"]:
        end = first + num_frames(row["wave"])
        wave = decode(codes[first:end], levels[first:end], row["wave"], notes["step"])
        clips.append(HumanClip(**{**row, "wave": wave}))
        first = end
    return clips


def num_frames(num_samples: int) -> int:
    """Number of half-overlapping frames; each sample is in two."""
    return -(-num_samples // FRAME) + 1


def encode(wave: Samples, step: float = STEP) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Rounded coefficients [F, K] and levels of the bands [F, B]."""
    frames = num_frames(len(wave))
    padded = np.pad(wave / 32768.0, (FRAME, frames * FRAME - len(wave)))
    pieces = np.concatenate([padded[:-FRAME].reshape(-1, FRAME), padded[FRAME:].reshape(-1, FRAME)], 1)
    coefficients = (pieces * _window()) @ _cosines().T  # [F, K]
    power = np.stack([(coefficients[:, a:b] ** 2).mean(1) for a, b in pairwise(EDGES)], 1)
    levels = np.round(2 * np.log2(np.maximum(np.sqrt(power), QUIETEST) / QUIETEST)).clip(0, LEVELS - 1).astype(np.int8)
    scaled = coefficients / _steps(levels, step)
    rounded = np.sign(scaled) * np.floor(np.abs(scaled) + ROUNDING)
    return rounded.clip(-127, 127).astype(np.int8), levels


def decode(codes: NDArray[np.int8], levels: NDArray[np.int8], num_samples: int, step: float = STEP) -> Samples:
    """Decode the output of `encode` (lossy)."""
    pieces = ((codes * _steps(levels, step)) @ _cosines()) * _window()  # [F, 2 K]
    # Each frame overlaps half of the frame before it. The first half of the first frame is padding.
    wave = (pieces[1:, :FRAME] + pieces[:-1, FRAME:]).reshape(-1)[:num_samples]
    return np.round(wave * 32768).clip(-32768, 32767).astype(np.int16)


def mu_law_encode(wave: Samples) -> NDArray[np.uint8]:
    """Encode to eight bits per sample, with finer steps near zero."""
    values = wave / 32768.0
    bent = np.sign(values) * np.log1p(MU * np.abs(values)) / np.log1p(MU)
    return np.asarray(np.round((bent + 1) / 2 * MU), np.uint8)


def mu_law_decode(codes: NDArray[np.uint8]) -> Samples:
    """Decode the output of `mu_law_encode`."""
    bent = codes / MU * 2 - 1
    return np.asarray(np.round(np.sign(bent) * np.expm1(np.abs(bent) * np.log1p(MU)) / MU * 32767), np.int16)


def _steps(levels: NDArray[np.int8], step: float) -> NDArray[np.float64]:
    """Quantizer step of each coefficient. [F, B] -> [F, K]"""
    scale = (QUIETEST * 2 ** (levels / 2)) ** EXPONENT * step
    return np.repeat(scale, np.diff(EDGES), 1)


@cache
def _window() -> NDArray[np.float64]:
    return np.asarray(np.sin(np.pi * (np.arange(2 * FRAME) + 0.5) / (2 * FRAME)))


@cache
def _cosines() -> NDArray[np.float64]:
    """[K, 2 K]"""
    rows, columns = np.arange(FRAME)[:, None] + 0.5, np.arange(2 * FRAME)[None] + 0.5 + FRAME / 2
    return np.asarray(np.cos(np.pi / FRAME * columns * rows) * np.sqrt(2 / FRAME))
