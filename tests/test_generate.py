"""Speaking: stops and limits, who is spoken beside whom, what is refused; and the benchmark's smoke test."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.synthesis import STOP_BIAS, prompts, small_t3, small_voice
from voxgraft.core.errors import ConfigError, GraftError
from voxgraft.models.generate import (
    CODES_PER_CHECK,
    DecodeSession,
    GeneratedCodes,
    GenerationPrompt,
    SpeechGenerator,
    generate_codes,
)
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.adapter import adapter_state, add_adapter, load_adapter_state
from voxgraft.nn.decode import SamplingParams

WARM = SamplingParams(temperature=1.0, repetition_penalty=1.2, max_codes=3 * CODES_PER_CHECK + 1)


@pytest.fixture(scope="module", params=["t3", "voice"])
def model(request: pytest.FixtureRequest) -> SpeechModel:
    return small_t3() if request.param == "t3" else small_voice()


@pytest.fixture(scope="module")
def stopping() -> SpeechModel:
    return small_voice(stop_bias=STOP_BIAS)


def guidance_of(model: SpeechModel) -> float:
    return 0.5 if hasattr(model, "speech_head") else 0.0


def test_utterances_of_unequal_length_are_spoken_as_if_alone(model: SpeechModel) -> None:
    sampling = replace(WARM, guidance=guidance_of(model), min_p=0.02, top_k=50, top_p=0.95)
    given = prompts(model, (5, 12, 3))
    together = generate_codes(model, given, sampling)
    assert together == [generate_codes(model, [prompt], sampling)[0] for prompt in given]
    assert together != generate_codes(model, [replace(prompt, seed=prompt.seed + 9) for prompt in given], sampling)


def test_utterances_that_stop_are_spoken_as_if_alone(stopping: SpeechModel) -> None:
    given = prompts(stopping, (4,) * 8)
    sampling = replace(WARM, max_codes=60)
    together = generate_codes(stopping, given, sampling)
    assert together == [generate_codes(stopping, [prompt], sampling)[0] for prompt in given]
    assert len({len(spoken.codes) for spoken in together}) > 3


def test_no_utterance_holds_its_stop_or_anything_after_it(stopping: SpeechModel) -> None:
    for spoken in generate_codes(stopping, prompts(stopping, (4,) * 8), replace(WARM, max_codes=60)):
        assert stopping.spec.speech_stop not in spoken.codes
        assert spoken.stopped == (len(spoken.codes) < 60)


@pytest.mark.long(fast="7")
@pytest.mark.parametrize("max_codes", [1, CODES_PER_CHECK - 1, CODES_PER_CHECK, CODES_PER_CHECK + 1, 40])
def test_the_limit_cuts_and_changes_nothing_before_it(stopping: SpeechModel, max_codes: int) -> None:
    given = prompts(stopping, (4,) * 8)
    whole = generate_codes(stopping, given, replace(WARM, max_codes=60))
    for cut, spoken in zip(generate_codes(stopping, given, replace(WARM, max_codes=max_codes)), whole, strict=True):
        assert cut.codes == spoken.codes[:max_codes]
        assert cut.stopped == (spoken.stopped and len(spoken.codes) < max_codes)


def test_an_utterance_that_stops_at_once_is_empty() -> None:
    model = small_voice(stop_bias=1e4)
    assert generate_codes(model, prompts(model, (3, 4)), WARM) == [GeneratedCodes([], True)] * 2


def test_only_codes_that_the_decoder_reads_are_spoken() -> None:
    model = small_t3()
    with torch.no_grad():  # rows that stand for nothing come to score highest
        model.speech_head.weight[model.spec.num_codes :] *= 3
    given = prompts(model)
    hot = replace(WARM, temperature=2.0)
    readable = [code for spoken in generate_codes(model, given, hot) for code in spoken.codes]
    assert max(readable) < model.spec.num_codes
    stock = [code for spoken in generate_codes(model, given, replace(hot, readable=False)) for code in spoken.codes]
    assert max(stock) > model.spec.speech_stop


def test_without_guidance_there_is_one_row_a_stream_and_with_it_two(model: SpeechModel) -> None:
    given = prompts(model)
    assert len(DecodeSession(model, given, WARM).logits) == 3
    if model.spec.guided:
        assert len(DecodeSession(model, given, replace(WARM, guidance=0.5)).logits) == 6
    else:
        with pytest.raises(ConfigError, match="not trained for guidance"):
            DecodeSession(model, given, replace(WARM, guidance=0.5))


def test_beginning_as_learnt_is_not_beginning_as_the_stock_program_does(model: SpeechModel) -> None:
    given = prompts(model)
    learnt, stock = (DecodeSession(model, given, replace(WARM, stock=stock)) for stock in (False, True))
    for streams in (learnt, stock):
        streams.sample_next_codes(torch.ones_like(streams.logits))
        streams.feed_codes()
    assert not torch.equal(learnt.logits, stock.logits)


def test_a_speaker_says_the_same_again_and_follows_the_model_and_its_gate(model: SpeechModel) -> None:
    model = copy.deepcopy(model)
    given, sampling = prompts(model), replace(WARM, guidance=guidance_of(model))
    speaker = SpeechGenerator(model)
    base = speaker.speak(given, sampling)
    assert speaker.speak(given, sampling) == base == generate_codes(model, given, sampling)
    gate = add_adapter(model, model.adapter_layers(), rank=2, alpha=2, seed=0)
    state = adapter_state(model)
    generator = torch.Generator().manual_seed(0)
    load_adapter_state(model, {name: torch.randn(value.shape, generator=generator) for name, value in state.items()})
    with gate.opened():
        assert speaker.speak(given, sampling) == generate_codes(model, given, sampling) != base
    assert speaker.speak(given, sampling) == base


def test_more_codes_than_the_model_has_positions_are_refused(model: SpeechModel) -> None:
    with pytest.raises(ConfigError, match="max_codes is 5,000"):
        generate_codes(model, prompts(model), replace(WARM, max_codes=5000))


def test_no_prompts_are_refused(model: SpeechModel) -> None:
    with pytest.raises(GraftError, match="no prompts"):
        generate_codes(model, [], WARM)


def test_text_ids_out_of_range_are_refused_before_anything_is_computed(model: SpeechModel) -> None:
    good = prompts(model)[0]
    with pytest.raises(GraftError) as caught:
        generate_codes(model, [good, GenerationPrompt([5, model.num_text_ids], good.condition)], WARM)
    assert caught.value.code == "ids-outside"


@pytest.mark.long
def test_the_benchmark_runs_and_writes_what_it_measured(tmp_path: Path) -> None:
    out = tmp_path / "decode.json"
    command = [sys.executable, "-m", "benchmarks.decode", "--tiny", "--device", "cpu", "--no-peer", "--out", str(out)]
    root = Path(__file__).resolve().parent.parent
    ran = subprocess.run(
        [*command, "--rounds", "1", "--streams", "1", "2"], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    written = json.loads(out.read_text())
    measured = {(line["model"], line["streams"]) for line in written["lines"]}
    assert measured == {(name, streams) for name in ("T3, guidance", "UnifiedVoice") for streams in (1, 2)}
    assert all(line["codes_per_second"] > 0 for line in written["lines"])
    assert "| voxgraft |" in ran.stdout
    assert written["about"]["torch"] == torch.__version__
