"""Films for tests: made once for all of them, since espeak-ng speaks for a second or two."""

from __future__ import annotations

from functools import lru_cache

import pytest

from benchmarks.film import Film, make_film


@lru_cache(maxsize=8)
def film(num_sentences: int = 24, seed: int = 5, *, rolling: bool = False) -> Film:
    """A film with captions; skips the calling test where espeak-ng is absent."""
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    return make_film(num_sentences, seed, rolling=rolling)
