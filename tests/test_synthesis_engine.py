"""The synthesis engine: order of the results, batches by language, limits, and independence of the order of requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from voxgraft.models import get_family
from voxgraft.synthesis.engine import (
    ModelContext,
    SpeakingModel,
    SynthesisEngine,
    SynthesisRequest,
    SynthesisResult,
    draw_seed,
    limit_codes,
    max_sentence_seconds,
    open_base_model,
)

TEXTS = ("no", "bring me the blue cup", "go", "take the red box", "yes")


@cache
def base_context() -> ModelContext:
    family = get_family("tiny")
    folder = family.shipped_folder()
    assert folder is not None
    return ModelContext(family, family.files(folder), "cpu", torch.float32)


@cache
def speaking_model() -> SpeakingModel:
    return open_base_model(base_context())


def build_requests(max_codes: int = 12, languages: tuple[str, ...] = ("en",)) -> list[SynthesisRequest]:
    model = speaking_model()
    clip = next(iter(model.family.voices(base_context().files).values()))
    return [
        SynthesisRequest(
            model.ids(text, languages[at % len(languages)]),
            model.family.condition(clip),
            draw_seed("test", at, text),
            max_codes=max_codes,
            language=languages[at % len(languages)],
            sort_key=(len(text), at),
        )
        for at, text in enumerate(TEXTS)
    ]


def generate(requests: list[SynthesisRequest], batch_size: int = 2) -> list[SynthesisResult]:
    model = speaking_model()
    return SynthesisEngine(model.model, model.family.upstream_sampling(), batch_size=batch_size).run(requests, "test")


def test_results_are_in_the_order_of_the_requests_whatever_that_is() -> None:
    requests = build_requests()
    results = generate(requests)
    assert generate(requests[::-1])[::-1] == results
    assert len({result.codes for result in results}) == len(TEXTS)


def test_languages_never_share_a_batch_and_each_batch_has_its_gate() -> None:
    gates: list[str] = []

    @contextmanager
    def set_gate(language: str) -> Iterator[None]:
        gates.append(language)
        yield

    model, requests = speaking_model(), build_requests(languages=("fr", "en"))
    engine = SynthesisEngine(model.model, model.family.upstream_sampling(), set_gate=set_gate, batch_size=2)
    batches = [[position for position, _ in batch] for batch in engine.iterate(requests)]
    assert gates == ["fr", "fr", "en"]
    assert batches == [[0, 2], [4], [3, 1]]  # by length, then by position


def test_an_utterance_is_cut_at_its_own_limit_and_not_at_that_of_its_batch() -> None:
    short, long = build_requests(max_codes=4)[:1], build_requests(max_codes=12)[1:2]
    first, second = generate(short + long)
    assert len(first.codes) <= 4 < len(second.codes) <= 12
    assert (first.stop, second.stop) == ("limit", "limit")
    assert not first.ended


def test_limits_have_at_least_one_code_and_at_most_what_the_model_can_speak() -> None:
    assert limit_codes(0.001, 25.0, 500) == 1
    assert limit_codes(1.0, 25.0, 500) == 25
    assert limit_codes(100.0, 25.0, 500) == 500
    assert max_sentence_seconds("ten signs!") == pytest.approx(6.0)


def test_seeds_depend_on_the_purpose_and_fit_into_torch() -> None:
    seeds = {draw_seed(purpose, 0, "en", "no") for purpose in ("speak", "evaluate")}
    assert len(seeds) == 2
    assert max(seeds) < 2**63
