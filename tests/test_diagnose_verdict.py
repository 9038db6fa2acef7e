"""The verdict: whatever is found, RESUME is said only of what is known to do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxgraft.core.errors import CATALOGUE, finding
from voxgraft.inspect.verdict import DiagnosisCase, decide_verdict

HARMLESS = {"config-vs-rows", "config-vs-tokenizer", "proof-changed", "moments-mismatch"}
"""Errors of what lies beside a checkpoint: they are reported with RESUME, and what to do about them."""
ERRORS = [code for code, entry in CATALOGUE.items() if entry.level == "error" and code not in HARMLESS]
FILE = DiagnosisCase(Path("a.safetensors"), Path("base"), None, "Chatterbox")
RUN = DiagnosisCase(Path("run"), Path("base"), None, "Chatterbox", run=Path("run"), steps=(4,))


@pytest.mark.parametrize("case", [FILE, RUN], ids=["a file", "a run"])
def test_no_error_of_the_catalogue_is_ever_resumed_unless_it_is_known_to_be_harmless(case: DiagnosisCase) -> None:
    for code in ERRORS:
        verdict = decide_verdict([finding(code, "odd")], case)
        assert verdict.word != "RESUME", code
        assert verdict.commands, code
    assert len(ERRORS) > 200


@pytest.mark.parametrize("code", sorted(HARMLESS))
def test_what_is_harmless_is_reported_with_resume(code: str) -> None:
    verdict = decide_verdict([finding(code, "odd")], FILE)
    assert verdict.word == "RESUME"
    assert "nothing is wrong with it, but" in verdict.sentence


def test_an_error_that_no_rule_knows_comes_with_its_cure() -> None:
    verdict = decide_verdict([finding("journal-broken", "line 3 is odd")], RUN)
    assert verdict.word == "REPAIR"
    assert "line 3 is odd" in verdict.sentence
    assert CATALOGUE["journal-broken"].cure in verdict.reason
    assert verdict.repairs == ()


def test_a_tensor_far_from_the_base_s_is_borne_where_old_languages_were_measured() -> None:
    lost = [finding("body-lost", "1 of 9 tensors")]
    assert decide_verdict(lost, FILE).repairs == ("missing",)
    measured = DiagnosisCase(Path("a.safetensors"), Path("base"), None, kept=True, distance=0.01, unusable=0.1)
    assert decide_verdict(lost, measured).word == "RESUME"
