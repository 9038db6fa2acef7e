"""Human clips in one small file as Opus packets: about 1.6 kB per second at 16 kHz, half of `pack.py`'s size.

libopus (Debian `libopus0`, BSD) is called through ctypes. The library file is copied to the training
machine together with the pack.
"""

from __future__ import annotations

import ctypes
import io
import json
import lzma
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from recipes.human_voices.pack import HumanClip, Samples

__all__ = ["Opus", "read_opus_pack", "write_opus_pack"]

FORMAT = "voxgraft-human-opus-1"
RATE_HZ, FRAME = 16_000, 960
"""Packets of 60 ms, the longest, for the smallest overhead."""
AUDIO, OK = 2049, 0
SET_BITRATE, SET_COMPLEXITY, GET_LOOKAHEAD, SET_SIGNAL, VOICE = 4002, 4010, 4027, 4024, 3001
LARGEST_PACKET = 1275 * 3


class Opus:
    """The library. Each clip gets a new encoder or decoder, so clips do not depend on their order."""

    def __init__(self, library: Path | str = "libopus.so.0") -> None:
        self._library = ctypes.CDLL(str(library))
        for name in ("opus_encoder_create", "opus_decoder_create"):
            getattr(self._library, name).restype = ctypes.c_void_p

    def encode(self, wave: Samples, bits_per_second: int) -> list[bytes]:
        """The packets of a clip."""
        fault = ctypes.c_int()
        made = self._library.opus_encoder_create(RATE_HZ, 1, AUDIO, ctypes.byref(fault))
        if fault.value != OK:
            raise RuntimeError(f"libopus gave no encoder: error {fault.value}")
        encoder = ctypes.c_void_p(made)
        for setting, value in ((SET_BITRATE, bits_per_second), (SET_COMPLEXITY, 2), (SET_SIGNAL, VOICE)):
            self._library.opus_encoder_ctl(encoder, setting, ctypes.c_int32(value))
        lookahead = ctypes.c_int32()
        self._library.opus_encoder_ctl(encoder, GET_LOOKAHEAD, ctypes.byref(lookahead))
        # The decoder is delayed by the lookahead, which is removed when the clip is read.
        padded = np.pad(wave, (0, lookahead.value + -(len(wave) + lookahead.value) % FRAME))
        packets = []
        buffer = ctypes.create_string_buffer(LARGEST_PACKET)
        for frame in np.ascontiguousarray(padded, np.int16).reshape(-1, FRAME):
            samples = frame.ctypes.data_as(ctypes.c_void_p)
            size = self._library.opus_encode(encoder, samples, FRAME, buffer, LARGEST_PACKET)
            if size < 0:
                raise RuntimeError(f"libopus did not encode a frame: error {size}")
            packets.append(buffer.raw[:size])
        self._library.opus_encoder_destroy(encoder)
        return [lookahead.value.to_bytes(2, "little"), *packets]

    def decode(self, packets: Sequence[bytes], num_samples: int) -> Samples:
        """Decode the packets of `encode` (lossy)."""
        fault = ctypes.c_int()
        made = self._library.opus_decoder_create(RATE_HZ, 1, ctypes.byref(fault))
        if fault.value != OK:
            raise RuntimeError(f"libopus gave no decoder: error {fault.value}")
        decoder = ctypes.c_void_p(made)
        lookahead = int.from_bytes(packets[0], "little")
        wave = np.zeros((len(packets) - 1, FRAME), np.int16)
        for packet, frame in zip(packets[1:], wave, strict=True):
            samples = frame.ctypes.data_as(ctypes.c_void_p)
            count = self._library.opus_decode(decoder, packet, len(packet), samples, FRAME, 0)
            if count != FRAME:
                raise RuntimeError(f"libopus decoded {count} samples of a packet instead of {FRAME}")
        self._library.opus_decoder_destroy(decoder)
        return wave.reshape(-1)[lookahead : lookahead + num_samples]


def write_opus_pack(path: Path, clips: Sequence[HumanClip], bits_per_second: int, opus: Opus, threads: int = 4) -> None:
    """Write all clips into one file. The library releases the GIL, so threads help."""
    with ThreadPoolExecutor(threads) as pool:
        coded = list(pool.map(lambda clip: opus.encode(clip.wave, bits_per_second), clips))
    lengths = [(len(clip.wave), len(own) - 1) for clip, own in zip(clips, coded, strict=True)]
    silent = np.zeros(0, np.int16)
    rows = [
        {**asdict(replace(clip, wave=silent)), "wave": samples, "packets": packets}
        for clip, (samples, packets) in zip(clips, lengths, strict=True)
    ]
    notes = json.dumps({"format": FORMAT, "clips": rows}, ensure_ascii=False).encode()
    packets = [packet for own in coded for packet in own]
    stream = io.BytesIO()
    np.savez(
        stream,
        notes=np.frombuffer(lzma.compress(notes), np.uint8),
        sizes=np.array([len(packet) for packet in packets], np.uint16),
        packets=np.frombuffer(b"".join(packets), np.uint8),
    )
    made = path.with_name(f"{path.name}.part")
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(stream.getvalue())
    made.replace(path)


def read_opus_pack(path: Path, opus: Opus, threads: int = 16) -> list[HumanClip]:
    """Read the clips, in order."""
    try:
        with np.load(path) as stored:
            notes: dict[str, Any] = json.loads(lzma.decompress(stored["notes"].tobytes()))
            sizes, blob = stored["sizes"], stored["packets"].tobytes()
    except (EOFError, KeyError, ValueError, lzma.LZMAError) as fault:
        raise ValueError(f"{path} is damaged, or is not a pack of human voices: {fault}") from fault
    if notes.get("format") != FORMAT:
        raise ValueError(f"{path} is not a pack of human voices ({FORMAT}), but {notes.get('format')!r}")
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    packets = [blob[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
    tasks: list[tuple[dict[str, Any], list[bytes]]] = []
    first = 0
    for row in notes["clips"]:
        count = row.pop("packets")
        tasks.append((row, packets[first : first + count + 1]))
        first += count + 1
    with ThreadPoolExecutor(threads) as pool:
        return list(
            pool.map(lambda task: HumanClip(**{**task[0], "wave": opus.decode(task[1], task[0]["wave"])}), tasks)
        )
