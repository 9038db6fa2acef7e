"""Random numbers as pure functions of named parts: the same on every machine, process and Python version.

The order of the training data is built on these, so that a step number alone says which clips it has. A resumed run
needs no generator state.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_HASH_BITS = 64


def hash_int(*parts: int | str) -> int:
    """A number below 2**64."""
    return int.from_bytes(_hash_parts(parts, _HASH_BITS // 8), "little")


def hash_uniform(*parts: int | str) -> float:
    """A number from 0 up to, and without, 1."""
    # The 53 bits that a float holds exactly, so that rounding never makes it 1.
    return (hash_int(*parts) >> 11) * 2.0**-53


def hash_permutation(count: int, *parts: int | str) -> NDArray[np.int64]:
    """The numbers below `count` in an order that depends on nothing but the parts."""
    key = int.from_bytes(_hash_parts(parts, 16), "little")
    draws = np.random.Philox(key=key).random_raw(count)
    return np.argsort(draws, kind="stable")


def _hash_parts(parts: tuple[int | str, ...], size: int) -> bytes:
    # The lengths keep ("ab", "c") apart from ("a", "bc"), and the kinds 1 apart from "1".
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        text = str(part).encode("utf-8")
        kind = b"i" if isinstance(part, int) else b"s"
        digest.update(b"%s%d:" % (kind, len(text)) + text)
    return digest.digest()
