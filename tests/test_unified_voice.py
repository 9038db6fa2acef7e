"""UnifiedVoice against the original's outputs, packs against single sequences, cached speaking against full passes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.indextts2 import (
    GOLDEN_SIZE,
    LIMIT,
    RANDOM_SIZE,
    golden_condition,
    golden_model,
    random_condition,
    random_model,
)
from tests.support.shared import Shape, difference, expected, names, shared
from voxgraft.core.errors import GraftError
from voxgraft.models.base import SequencePart, TokenSequence, build_sequence, code_position
from voxgraft.models.generate import GenerationPrompt, generate_codes
from voxgraft.models.indextts2.family import unified_voice_sequence_spec
from voxgraft.models.indextts2.model import UnifiedVoice
from voxgraft.models.indextts2.shapes import UnifiedVoiceSize
from voxgraft.models.speech_model import PackedBatch, compute_hidden_states, compute_losses, pack_batch
from voxgraft.nn import IGNORE_INDEX
from voxgraft.nn.attention import DecodeContext, KVCache, PrefillContext
from voxgraft.nn.decode import SamplingParams, apply_repetition_penalty
from voxgraft.nn.layers import TransposedLinear
from voxgraft.nn.rows import grow_layers

UTTERANCES = ["a", "b"]


def golden_layout(utterance: str) -> TokenSequence:
    arrays = expected("indextts2")
    return build_sequence(golden_model().spec, arrays[f"text_{utterance}"], arrays[f"mel_{utterance}"])


def golden_pack(*utterances: str) -> PackedBatch:
    layouts = [golden_layout(utterance) for utterance in utterances]
    return pack_batch(golden_model(), layouts, [golden_condition(utterance) for utterance in utterances])


def parts_of(hidden: Tensor, layouts: Sequence[TokenSequence]) -> list[tuple[Tensor, Tensor]]:
    """The hidden states at each sequence's text and at its speech."""
    rows = torch.split(hidden, [layout.length for layout in layouts])
    cuts = [[layout.num_conditioning, len(layout.text.ids), len(layout.speech.ids)] for layout in layouts]
    parts = (torch.split(row, cut) for row, cut in zip(rows, cuts, strict=True))
    return [(text, speech) for _, text, speech in parts]


# ---- tensors ------------------------------------------------------------------------------------------------


def named_shapes(size: UnifiedVoiceSize) -> dict[str, Shape]:
    with torch.device("meta"):
        model = UnifiedVoice(size)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("size", "key", "number"),
    [(UnifiedVoiceSize(), "unified_voice_full", 665), (GOLDEN_SIZE, "unified_voice_tiny", 184)],
)
def test_every_tensor_has_upstreams_name_and_shape_in_upstreams_order(
    size: UnifiedVoiceSize, key: str, number: int
) -> None:
    found = named_shapes(size)
    known = json.loads(shared("golden/indextts2/names.json").read_text())[key]
    assert len(found) == number
    assert list(found.items()) == [(name, tuple(shape)) for name, shape in known.items()]


def test_loading_is_the_identity_and_a_missing_tensor_is_refused() -> None:
    model, state = random_model(), random_model(1).state_dict()
    model.load_state_dict(state, strict=True)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    del state["conditioning_encoder.embed.pos_enc.pe"]
    with pytest.raises(RuntimeError, match=r"pos_enc\.pe"):
        model.load_state_dict(state, strict=True)


def test_an_adapter_can_sit_on_every_linear_layer_of_the_body() -> None:
    model = random_model()
    linear = [name for name, module in model.named_modules() if isinstance(module, TransposedLinear)]
    assert model.adapter_layers() == linear
    assert len(linear) == 4 * RANDOM_SIZE.layers
    assert not any(isinstance(module, nn.Linear) for module in model.body.modules())


# ---- sequences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("utterance", UTTERANCES)
def test_sequences_are_laid_out_and_scored_as_in_the_original(utterance: str) -> None:
    arrays, layout = expected("indextts2"), golden_layout(utterance)
    for kind, part in (("text", layout.text), ("mel", layout.speech)):
        assert part.ids.tolist() == arrays[f"{kind}_inputs_{utterance}"].tolist()
        assert part.positions.tolist() == list(range(len(part.ids)))
        # Each part is scored over its length and one more; what the original asks of the last position is never read.
        assert part.targets[:-1].tolist() == arrays[f"{kind}_targets_{utterance}"][:-1].tolist()
        assert part.targets[-1] == IGNORE_INDEX


def test_the_published_size_has_the_published_limits() -> None:
    spec = unified_voice_sequence_spec(12000, UnifiedVoiceSize())
    assert (spec.max_text, spec.max_codes, spec.num_codes, spec.num_conditioning) == (600, 1815, 8192, 34)
    assert (spec.text_start, spec.text_stop, spec.speech_start, spec.speech_stop) == (0, 1, 8192, 8193)
    assert spec.initial_penalized_codes == (1, 8192)
    longest = build_sequence(spec, [5] * 600, [7] * 1815)
    assert longest.text.positions.max() == 601
    assert longest.speech.positions.max() == 1816
    assert code_position(spec, 1814) == 1816
    shapes = named_shapes(UnifiedVoiceSize())
    assert shapes["text_pos_embedding.emb.weight"][0] > 601
    assert shapes["mel_pos_embedding.emb.weight"][0] > 1816


@pytest.mark.parametrize(
    ("text", "codes", "code"),
    [
        ([5, 0, 6], [1], "ids-barred"),
        ([5, 1, 6], [1], "ids-barred"),
        ([60], [1], "ids-outside"),  # the spare row
        ([5], [40], "ids-outside"),  # the start of speech
        ([5] * 25, [1], "ids-length"),
        ([5], [1] * 41, "ids-length"),
        ([], [1], "ids-length"),
    ],
)
def test_what_the_model_has_no_place_for_is_refused(text: list[int], codes: list[int], code: str) -> None:
    with pytest.raises(GraftError) as error:
        build_sequence(unified_voice_sequence_spec(RANDOM_SIZE.text_pieces, RANDOM_SIZE), text, codes)
    assert error.value.code == code


def test_a_grown_table_widens_what_a_text_may_hold_and_never_reaches_the_spare_row() -> None:
    model = random_model()
    grow_layers(model, [model.text_embedding_name, model.text_head_name], 7, model.spare_rows)
    assert model.spec.num_text_ids == 67
    batch = pack_batch(model, [build_sequence(model.spec, [5, 66], [3, 9])], [random_condition(0)])
    assert model.text_logits(compute_hidden_states(model, batch)).shape[-1] == 68
    with pytest.raises(GraftError):
        build_sequence(model.spec, [67], [3])


# ---- the original's outputs ---------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("utterance", UTTERANCES)
def test_logits_and_latents_are_the_originals(utterance: str) -> None:
    model, arrays = golden_model(), expected("indextts2")
    hidden = compute_hidden_states(model, golden_pack(utterance))
    text, speech = parts_of(hidden, [golden_layout(utterance)])[0]
    for kind, logits in (("text", model.text_logits(text)), ("mel", model.speech_logits(speech))):
        columns = torch.from_numpy(arrays[f"{kind}_cols"])
        assert difference(logits[:, columns], arrays[f"{kind}_logits_{utterance}"]) < LIMIT
        assert difference(logits.logsumexp(-1), arrays[f"{kind}_lse_{utterance}"]) < LIMIT
        assert logits.argmax(-1).tolist() == arrays[f"{kind}_argmax_{utterance}"].tolist()
    assert difference(model.speech_latents(speech)[:-2], arrays[f"mel_latents_{utterance}"]) < LIMIT


@torch.no_grad()
@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("utterance", UTTERANCES)
def test_losses_are_the_originals(utterance: str, chunk: int | None) -> None:
    arrays, found = expected("indextts2"), compute_losses(golden_model(), golden_pack(utterance), chunk=chunk)
    assert found.text_count == len(arrays[f"text_{utterance}"]) + 1
    assert found.speech_count == len(arrays[f"mel_{utterance}"]) + 1
    assert difference(found.text, arrays[f"text_loss_{utterance}"]) < LIMIT
    assert difference(found.speech, arrays[f"mel_loss_{utterance}"]) < LIMIT


@torch.no_grad()
def test_a_pack_of_both_gives_what_each_gives_alone() -> None:
    """The original pads its batches and masks nothing: text padding comes before the shorter utterance's speech and is
    attended to, which moves those logits by 0.65. A pack has no padding, so the truth is each utterance's solo arrays.
    Where padding cannot be seen (all text, and the longer utterance's speech) the original's batch says the same.
    """
    model, arrays = golden_model(), expected("indextts2")
    batch, layouts = golden_pack("a", "b"), [golden_layout("a"), golden_layout("b")]
    columns = torch.from_numpy(arrays["mel_cols"])
    for utterance, (text, speech) in zip("ab", parts_of(compute_hidden_states(model, batch), layouts), strict=True):
        assert difference(model.text_logits(text).logsumexp(-1), arrays[f"text_lse_{utterance}"]) < LIMIT
        logits = model.speech_logits(speech)
        assert difference(logits[:, columns], arrays[f"mel_logits_{utterance}"]) < LIMIT
        assert difference(logits.logsumexp(-1), arrays[f"mel_lse_{utterance}"]) < LIMIT
    found = compute_losses(model, batch)
    alone = sum(float(arrays[f"mel_loss_{name}"]) * (len(arrays[f"mel_{name}"]) + 1) for name in "ab")
    assert float(found.speech) == pytest.approx(alone / found.speech_count, abs=LIMIT)
    assert difference(found.text, arrays["batch_text_loss"]) < LIMIT
    longer = compute_losses(model, golden_pack("b"))
    assert float(longer.speech_sum) == pytest.approx(float(arrays["batch_mel_ce_sum_per_row"][1]), rel=LIMIT)


@pytest.mark.parametrize("utterance", UTTERANCES)
def test_gradients_are_the_originals_and_the_encoders_get_none(utterance: str) -> None:
    model = golden_model()
    norms = json.loads(shared("golden/indextts2/grad_norms.json").read_text())[utterance]
    found = compute_losses(model, golden_pack(utterance))
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(0.2 * found.text + 0.8 * found.speech, list(parameters.values()), allow_unused=True)
    reached = {
        name: float(gradient.double().norm())  # a sum of a million squares in float32 is off by 1e-4 itself
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    }
    assert reached == pytest.approx(norms, rel=1e-4)
    assert not any(name.startswith(("conditioning_", "perceiver_", "emo")) for name in reached)


# ---- speaking -----------------------------------------------------------------------------------------------


@torch.no_grad()
def spoken_logits(model: UnifiedVoice, batch: PackedBatch, codes: Tensor, positions: Sequence[int]) -> Tensor:
    """The logits after the prompts, and after each code that is fed, one by one. [B, codes] -> [B, 1 + positions, V]"""
    body = model.body
    shape = (body.num_layers, len(codes), body.num_heads, batch.packing.longest + codes.shape[1], body.head_width)
    cache = KVCache(shape)
    prefill = PrefillContext(batch.packing, cache)
    logits = [model.speech_logits(compute_hidden_states(model, batch, prefill)[batch.packing.last])]
    prefill.finish()
    for column, position in enumerate(positions):
        step = DecodeContext(cache)
        vectors = model.embed_speech(codes[:, column], torch.full((len(codes),), position))
        logits.append(model.speech_logits(body(vectors, step)))
        step.finish()
    return torch.stack(logits, 1)


@pytest.mark.parametrize("utterance", UTTERANCES)
@pytest.mark.parametrize(("run", "penalty"), [("greedy", 1.0), ("greedy_pen10", 10.0)])
def test_speaking_gives_the_originals_logits_and_codes(utterance: str, run: str, penalty: float) -> None:
    model = golden_model()
    arrays = {
        name.removeprefix(f"{run}_{utterance}_"): value
        for name, value in expected("indextts2").items()
        if name.startswith(f"{run}_{utterance}_")
    }
    tokens, columns = torch.from_numpy(arrays["tokens"]), torch.from_numpy(expected("indextts2")["mel_cols"])
    text_ids, condition = expected("indextts2")[f"text_{utterance}"], golden_condition(utterance)
    prompt = build_sequence(model.spec, text_ids)
    fed = [*prompt.speech.positions, *(code_position(model.spec, index) for index in range(19))]
    assert fed == arrays["positions"].tolist()
    logits = spoken_logits(model, pack_batch(model, [prompt], [condition]), tokens[None], fed[1:])[0]
    assert difference(logits[:, columns], arrays["logits"]) < LIMIT
    assert difference(logits.logsumexp(-1), arrays["lse"]) < LIMIT

    heard = torch.zeros(20, logits.shape[-1], dtype=torch.bool)
    heard[:, list(model.spec.initial_penalized_codes)] = True
    for index in range(1, 20):
        heard[index:, tokens[index - 1]] = True
    scores = apply_repetition_penalty(logits, heard, penalty)
    best = scores.topk(2).values
    assert difference(best[:, 0] - best[:, 1], arrays["gap"]) < 2 * LIMIT
    assert scores.argmax(-1).tolist() == tokens.tolist()
    if penalty != 1.0:
        assert difference(scores[:, columns], arrays["scores"]) < LIMIT
        of_code_1 = torch.stack([logits[:, 1], scores[:, 1]])
        assert difference(of_code_1, arrays["logit_and_score_of_code_1"]) < LIMIT

    stock = SamplingParams(temperature=0.0, repetition_penalty=penalty, max_codes=20, readable=False)
    spoken = generate_codes(model, [GenerationPrompt(text_ids.tolist(), condition)], stock)
    assert spoken[0].codes == tokens.tolist()


def with_positions(layout: TokenSequence, positions: Sequence[int]) -> TokenSequence:
    speech = SequencePart(layout.speech.ids, np.asarray(positions, dtype=np.int64), layout.speech.targets)
    return replace(layout, speech=speech)


@torch.no_grad()
@pytest.mark.parametrize("stock", [True, False])
def test_speaking_code_by_code_gives_what_one_pass_over_the_whole_gives(stock: bool) -> None:
    model = random_model()
    spec, texts, conditions = model.spec, ([5, 9, 33], list(range(2, 22))), [random_condition(0), random_condition(1)]
    codes = torch.arange(2 * 12).reshape(2, 12) % spec.num_codes
    positions = [code_position(spec, index, stock=stock) for index in range(12)]
    prompts = [build_sequence(spec, text, stock=stock) for text in texts]
    stepwise = spoken_logits(model, pack_batch(model, prompts, conditions), codes, positions)  # [2, 13, V]
    for row, text, condition in zip(range(2), texts, conditions, strict=True):
        whole = build_sequence(spec, text, codes[row].numpy())
        whole = with_positions(whole, [0, *positions, positions[-1] + 1])
        _, speech = parts_of(compute_hidden_states(model, pack_batch(model, [whole], [condition])), [whole])[0]
        assert (model.speech_logits(speech)[:-1] - stepwise[row]).abs().max() < LIMIT


@torch.no_grad()
def test_a_pack_gives_what_its_sequences_give_one_by_one() -> None:
    model = random_model()
    layouts = [
        build_sequence(model.spec, range(2, 2 + text), range(codes)) for text, codes in ((3, 30), (20, 7), (1, 1))
    ]
    conditions = [random_condition(seed) for seed in range(3)]
    hidden = compute_hidden_states(model, pack_batch(model, layouts, conditions))
    together = torch.split(hidden, [layout.length for layout in layouts])
    for layout, condition, found in zip(layouts, conditions, together, strict=True):
        assert (compute_hidden_states(model, pack_batch(model, [layout], [condition])) - found).abs().max() < LIMIT


@torch.no_grad()
def test_a_bfloat16_model_gives_nearly_the_same_losses() -> None:
    model = random_model()
    layouts, conditions = [build_sequence(model.spec, [5, 9], [3, 4, 5])], [random_condition(0)]
    exact = compute_losses(model, pack_batch(model, layouts, conditions))
    model.to(torch.bfloat16)
    rounded = compute_losses(model, pack_batch(model, layouts, conditions))
    assert model.embed_conditions(pack_batch(model, layouts, conditions).conditions).dtype == torch.bfloat16
    assert float(rounded.speech) == pytest.approx(float(exact.speech), rel=0.05)
    assert float(rounded.text) == pytest.approx(float(exact.text), rel=0.05)


def test_every_name_of_the_golden_weights_is_a_parameter() -> None:
    """Nothing that the formula fills is a buffer, or training could not move it."""
    parameters = {name for name, _ in golden_model().named_parameters()}
    assert parameters == set(names("indextts2", "unified_voice_tiny"))
