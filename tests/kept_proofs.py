"""Proofs of promise 1 that are kept while the tests run, for runs that are trained again and again with the same tokenizers.

Training looks at its run as `check` does, which spells the whole built-in corpus twice. Tests of `graft` and of promise
1 do that every time (conftest.py names them); all others do it once for each pair of tokenizers. What has a finding is
never kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from voxgraft.inspect import text
from voxgraft.text.encoder import TextEncoder, prove_text_encoder
from voxgraft.tokenizers.base import TextCorpus
from voxgraft.tokenizers.prove import TokenizerProof

_KEPT: dict[tuple[Any, ...], TokenizerProof] = {}


@contextmanager
def proofs_kept() -> Iterator[None]:
    """Training, and `check`, take a proof that was made before, where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "prove_text_encoder", _kept_or_made)
        yield


def _kept_or_made(spelling: TextEncoder, texts: TextCorpus, proof_texts: tuple[Path, ...]) -> TokenizerProof:
    base, grown = spelling.base, spelling.grown
    assert grown is not None
    # The path of the base stands for its front, which has tables in files beside the tokenizer.
    key = (spelling.family.name, spelling.language, base.path, base.sha256, grown.sha256, texts.sentences)
    if proof_texts or key not in _KEPT:
        proof = prove_text_encoder(spelling, texts, proof_texts)
        if proof_texts or proof.findings:
            return proof
        _KEPT[key] = proof
    return _KEPT[key]
