"""Continuous batching: rows of different grafts join and leave one decode batch, and each has the codes it has alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from tests.support.synthesis import made_graft, settings_of
from voxgraft.core.errors import GraftError
from voxgraft.models import get_family
from voxgraft.nn.adapter import LoraLayer, adapter_state, add_adapter, load_adapter_state
from voxgraft.nn.backbones import Backbone
from voxgraft.nn.decode import iter_block_modules
from voxgraft.synthesis.batching import DecodeBatch, DecodeRow, PackedRowAdapters, RowLoraLayer, join_adapters
from voxgraft.synthesis.command import build_request, plan_utterance
from voxgraft.synthesis.engine import (
    SpeakingModel,
    SynthesisEngine,
    SynthesisModels,
    SynthesisRequest,
    open_synthesis_models,
)
from voxgraft.synthesis.inputs import UtteranceRequest, VoiceLoader

TEXTS = {"am": ("ሰላም", "[en]box[/en] ነው"), "ti": ("ሰላም ከመይ ኣለኻ",), "en": ("no", "take the red box"), "fr": ("le pain",)}
Work = list[tuple[SynthesisRequest, SpeakingModel]]


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> SynthesisModels:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    folder = tmp_path_factory.mktemp("grafts")
    grafts = [made_graft(folder, base, language, seed) for seed, language in enumerate(("am", "ti"), 3)]
    return open_synthesis_models(settings_of("x", *(f"--graft={graft}" for graft in grafts), "--device=cpu"))


def build_work(speakers: SynthesisModels, seeds: Sequence[int], seconds: float) -> Work:
    work: Work = []
    for seed in seeds:
        settings = settings_of("x", "--device=cpu", f"--max-seconds={seconds}", f"--seed={seed}")
        voices = VoiceLoader(speakers, settings)
        for language, texts in TEXTS.items():
            for text in texts:
                plan = plan_utterance(speakers, voices, UtteranceRequest("x", text, language), settings)
                condition = voices.condition(plan.voice)
                work += [
                    (
                        build_request(one, condition),
                        plan.system,
                    )
                    for one in plan.pieces
                ]
    return work


def build_batch(speakers: SynthesisModels, guidance: float = 0.0) -> DecodeBatch:
    family = speakers.context.family
    sampling = replace(family.upstream_sampling(), readable=True, guidance=guidance)
    return DecodeBatch(speakers.all, sampling, code_hz=family.code_hz)


def run_together(batch: DecodeBatch, work: Work, seed: int, most: int) -> list[tuple[int, ...]]:
    """All of it, in a random order, some joining between any two blocks, and now and then one that is cancelled."""
    draw, waiting = random.Random(seed), list(enumerate(work))
    live: dict[int, tuple[int, DecodeRow]] = {}
    draw.shuffle(waiting)
    found: dict[int, tuple[int, ...]] = {}
    extra: DecodeRow | None = None
    while waiting or live:
        if extra is not None and extra in batch.rows and draw.random() < 0.5:
            batch.remove(extra)
        if draw.random() < 0.3:
            extra = batch.join(*draw.choice(work))
        for _ in range(draw.randint(0, 3)):
            if waiting and len(live) < most:
                position, own = waiting.pop()
                row = batch.join(*own)
                live[id(row)] = position, row
        for row in batch.advance():
            if id(row) in live:
                position, _ = live.pop(id(row))
                assert row.result is not None
                found[position] = row.result.codes
    return [found[position] for position in range(len(work))]


def test_codes_are_those_of_the_request_alone_whatever_is_beside_it(speakers: SynthesisModels) -> None:
    work, batch = build_work(speakers, [0], 0.6), build_batch(speakers)
    alone = []
    for own in work:
        row = batch.join(*own)
        while row.result is None:
            batch.advance()
        alone.append(row.result.codes)
    assert run_together(build_batch(speakers), work, 1, 12) == alone
    assert len(set(alone)) == len(work)


@pytest.mark.long
def test_long_utterances_in_any_company_have_the_codes_that_speak_gives_one_by_one(speakers: SynthesisModels) -> None:
    work = build_work(speakers, [0, 1], 8.0)
    engines = {
        id(one): SynthesisEngine(
            one.model,
            replace(one.family.upstream_sampling(), readable=True),
            set_gate=one.set_gate_for,
            batch_size=1,
            loop_code_hz=one.family.code_hz,
        )
        for one in speakers.all
    }
    expected = [engines[id(system)].run([request], "test")[0].codes for request, system in work]
    assert run_together(build_batch(speakers), work, 2, 20) == expected


def test_a_row_without_an_adapter_has_the_bits_of_the_base(speakers: SynthesisModels) -> None:
    base = speakers.base
    assert base is not None
    models = [speakers.context.model() for _ in range(2)]
    for seed, model in enumerate(models):
        name = model.adapter_layers()[seed]  # different layers of the two have an adapter
        add_adapter(model, [name], rank=2 + seed, alpha=3, seed=seed)
        load_adapter_state(model, {key: torch.full_like(value, 0.3) for key, value in adapter_state(model).items()})
    joined, choice = join_adapters(models)
    layers = {name: layer for name, layer in joined.named_modules() if isinstance(layer, RowLoraLayer)}
    assert list(layers) == models[0].adapter_layers()[:2]
    for number, (name, layer) in enumerate(layers.items(), 1):
        x = torch.randn(8, layer.down.shape[1])
        plain, own = (model.get_submodule(name) for model in (base.model, models[number - 1]))
        with torch.no_grad():
            own.gate.on = True  # type: ignore[union-attr]
            expected = plain(x)
            choice.choose(torch.tensor([0, number, 0, 3 - number] * 2))
            found = layer(x)
            choice.choose(None)
            assert torch.equal(layer(x), expected)
            assert torch.equal(found[::2], expected[::2])
            assert torch.equal(found[3::4], expected[3::4]), "this layer has no adapter of the other model"
            torch.testing.assert_close(found[1::4], own(x)[1::4])
            assert not torch.equal(found[1::4], expected[1::4])


def test_adapters_of_several_models_beside_one_layer_act_in_their_own_rows_alone(speakers: SynthesisModels) -> None:
    models = [speakers.context.model() for _ in range(3)]
    names = models[0].adapter_layers()[:2]
    for seed, model in enumerate(models):
        if seed == 1:
            continue  # it has an adapter beside the second layer only
        add_adapter(model, names, rank=2 + seed, alpha=3 + seed, seed=seed)
        load_adapter_state(model, {key: torch.full_like(value, 0.3) for key, value in adapter_state(model).items()})
    add_adapter(models[1], names[1:], rank=1, alpha=5, seed=1)
    load_adapter_state(models[1], {key: torch.full_like(value, 0.2) for key, value in adapter_state(models[1]).items()})
    joined, choice = join_adapters(models)
    numbers = torch.tensor([1, 2, 3, 0, 3, 2, 1, 0])
    choice.choose(numbers)
    for name in names:
        layer = joined.get_submodule(name)
        assert isinstance(layer, RowLoraLayer)
        x = torch.randn(8, layer.down.shape[1], generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found = layer(x)
            for number, model in enumerate(models, 1):
                own = model.get_submodule(name)
                if isinstance(own, LoraLayer):
                    own.gate.on = True
                torch.testing.assert_close(found[numbers == number], own(x)[numbers == number])


def test_adapters_of_models_that_do_not_share_their_base_are_refused(speakers: SynthesisModels) -> None:
    models = [speakers.context.model(), copy.deepcopy(speakers.context.model())]
    for model in models:
        add_adapter(model, model.adapter_layers()[:1], rank=1, alpha=1, seed=0)
    with pytest.raises(GraftError) as refused:
        join_adapters(models)
    assert refused.value.code == "adapter-mismatch"


def test_the_batch_grows_with_its_rows_and_positions_and_keeps_what_it_holds(speakers: SynthesisModels) -> None:
    work, batch = build_work(speakers, [0], 0.9), build_batch(speakers)
    rows = [
        batch.join(*work[0]),
        *(batch.join(replace(request, max_codes=400), system) for request, system in work * 2),
    ]
    while rows[0].result is None:
        batch.advance()
    alone = build_batch(speakers)
    row = alone.join(*work[0])
    while row.result is None:
        alone.advance()
    assert rows[0].result == row.result
    for left in list(batch.rows):
        batch.remove(left)
    assert batch.advance() == []


def test_a_batch_that_could_not_grow_has_what_it_had(speakers: SynthesisModels) -> None:
    (request, system), batch = build_work(speakers, [0], 0.6)[0], build_batch(speakers)
    row = batch.join(request, system)
    sizes, device = (len(batch._adapters), len(batch._noise), batch._state.cache.length), batch.model.device
    whole = batch._state
    batch._state = replace(whole, heard=torch.zeros(2, 3, device=device))  # this cannot be copied
    for _ in range(2):
        with pytest.raises(RuntimeError):
            batch._reserve(50, 2000)
        assert (len(batch._adapters), len(batch._noise), batch._state.cache.length) == sizes
    batch._state = whole
    alone = build_batch(speakers)
    other = alone.join(request, system)
    for own, one in ((batch, row), (alone, other)):
        while one.result is None:
            own.advance()
    assert row.result == other.result


@pytest.mark.parametrize("family", ["chatterbox", "indextts2"])
@pytest.mark.long
def test_guidance_and_latents_are_those_of_the_engine(family: str, fixtures: object, tmp_path: Path) -> None:
    """With two rows per stream (Chatterbox), and with a second pass for latents (IndexTTS-2)."""
    from tests.support.fixtures import Fixtures

    assert isinstance(fixtures, Fixtures)
    run = fixtures.trained_run(family)
    models = open_synthesis_models(settings_of("x", f"--run={run.path}", "--device=cpu"))
    settings = settings_of("x", f"--run={run.path}", "--max-seconds=1")
    voices, (system,) = VoiceLoader(models, settings), models.all
    sampling, latents = replace(models.context.family.upstream_sampling(), readable=True), family == "indextts2"
    rate = models.context.family.code_hz
    engine = SynthesisEngine(
        system.model, sampling, set_gate=system.set_gate_for, batch_size=1, loop_code_hz=rate, latents=latents
    )
    batch = DecodeBatch([system], sampling, code_hz=rate, latents=latents)
    requests = []
    for language, text in (("am", "ሰላም"), ("en", "ha no"), ("am", "ቤቱ ትልቅ")):
        plan = plan_utterance(models, voices, UtteranceRequest("x", text, language), settings)
        requests += [build_request(one, voices.condition(plan.voice)) for one in plan.pieces]
    rows = [batch.join(request, system) for request in requests]
    while any(row.result is None for row in rows):
        batch.advance()
    assert (sampling.guidance > 0) == (family == "chatterbox")
    for request, row in zip(requests, rows, strict=True):
        (expected,) = engine.run([request], "test")
        assert row.result is not None
        assert row.result.codes == expected.codes
        assert (row.result.latents is not None) == latents
        if latents:
            torch.testing.assert_close(torch.tensor(row.result.latents), torch.tensor(expected.latents))


def test_adapters_of_joined_products_are_those_of_the_layers(speakers: SynthesisModels) -> None:
    """What the fused step adds to a product of several layers is what each layer's own adapters add."""
    models = [speakers.context.model() for _ in range(2)]
    for seed, model in enumerate(models):
        names = model.adapter_layers()[seed:9]  # the first layer has an adapter of one model alone
        add_adapter(model, names, rank=2 + seed, alpha=3, seed=seed)
        load_adapter_state(model, {key: torch.randn(value.shape) for key, value in adapter_state(model).items()})
    joined, choice = join_adapters(models)
    body = joined.body
    assert isinstance(body, Backbone)
    adapters = PackedRowAdapters(body, choice)
    choice.choose(torch.tensor([0, 1, 2, 1]))
    *blocks, _ = iter_block_modules(body)
    compared = 0
    for number, (_, qkv, out, _, up, down) in enumerate(blocks):
        for name, layers in (("qkv", qkv), ("out", out), ("up", up), ("down", down)):
            plain = [layer.plain if isinstance(layer, RowLoraLayer) else layer for layer in layers]
            x = torch.randn(4, cast("int", plain[0].in_features))
            with torch.no_grad():
                base = torch.cat([layer(x) for layer in plain], 1)
                found = adapters(base, x, number, name)
                expected = torch.cat([layer(x) for layer in layers], 1)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert torch.equal(found[0], base[0])
            base[0, 0], x[0] = -0.0, torch.inf  # neither a sign nor an overflow of the adapter reaches this row
            with torch.no_grad():
                bits = adapters(base, x, number, name)[0].view(torch.int32)
            assert torch.equal(bits, base[0].view(torch.int32))
            compared += not torch.equal(found, base)
    assert compared > 2
