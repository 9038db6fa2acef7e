"""XTTS's language model against the original's outputs: voice latents, losses, gradients, decoding, vocoder states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.shared import difference, expected, shared
from tests.support.xtts import (
    CORNER_LIMIT,
    LIMIT,
    SCORE_LIMIT,
    conditioning_mel,
    golden_codes,
    golden_model,
    golden_shapes,
    golden_text,
    golden_wave,
    training_condition,
    training_mel,
)
from voxgraft.core.families import FAMILIES
from voxgraft.models.base import TokenSequence, build_sequence, code_position
from voxgraft.models.generate import DecodeSession, GenerationPrompt
from voxgraft.models.speech_model import (
    LossSums,
    compute_hidden_states,
    compute_losses,
    compute_speech_latents,
    pack_batch,
)
from voxgraft.models.xtts.family import XTTS
from voxgraft.models.xtts.model import XTTSModel
from voxgraft.models.xtts.shapes import XTTSSize, dvae_shapes, xtts_shapes
from voxgraft.nn.decode import SamplingParams, filter_logits

UTTERANCES = ["a", "b"]
SIZES = ["small", pytest.param("full", marks=pytest.mark.long)]
LOSS_LIMIT = 1e-5

sizes = pytest.mark.parametrize("size", SIZES)
utterances = pytest.mark.parametrize("utterance", UTTERANCES)


def corner(output: Tensor) -> Tensor:
    """The first and the last eight rows and columns of a module's output."""
    return torch.cat([output[:8, :8].flatten(), output[-8:, -8:].flatten()])


def record(root: torch.nn.Module, names: Sequence[str]) -> tuple[dict[str, Tensor], ExitStack]:
    """What the named modules give, until the stack is closed."""
    outputs: dict[str, Tensor] = {}
    stack = ExitStack()
    for name in names:
        hook = root.get_submodule(name).register_forward_hook(
            lambda _module, _given, out, name=name: outputs.update({name: out})
        )
        stack.callback(hook.remove)
    return outputs, stack


# ---- tensors and sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["small", "full"])
def test_names_shapes_and_order_are_those_of_the_published_file(size: str) -> None:
    wanted = golden_shapes(size)
    shape = XTTSSize.of(wanted)
    assert list(xtts_shapes(shape).items()) == list(wanted.items())
    with torch.device("meta"):
        state = XTTSModel(shape).state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == wanted


@pytest.mark.parametrize(("size", "widths"), [("small", (32, 32)), ("full", (512, 512))])
def test_the_dvae_has_the_published_tensors_without_its_state_of_training(size: str, widths: tuple[int, int]) -> None:
    known = json.loads(shared("golden/xtts/names.json").read_text())
    unused = {name.removeprefix("dvae.") for name in known["not_filled"]}
    wanted = {name: tuple(shape) for name, shape in known[f"dvae_{size}"].items() if name not in unused}
    assert dvae_shapes(*widths) == wanted


# ---- the voice ----------------------------------------------------------------------------------------------


@sizes
@torch.no_grad()
def test_the_conditioning_encoder_and_its_perceiver_are_the_originals(size: str) -> None:
    arrays, gpt = expected("xtts"), golden_model(size).gpt
    mel = torch.from_numpy(arrays["cond.w2.mel"])
    names = [
        name.removeprefix(f"{size}.at.")
        for name in arrays
        if name.startswith((f"{size}.at.conditioning_encoder.", f"{size}.at.conditioning_perceiver."))
    ]
    assert len(names) == 6
    outputs, stack = record(gpt, names)
    with stack:
        frames = gpt.conditioning_encoder(mel[None])
        latents = gpt.voice_latents(mel[None])[0]
    assert difference(frames[0, :32, :64].squeeze(), arrays[f"{size}.cond.w2.enc_first32"]) < LIMIT
    assert difference(latents, arrays[f"{size}.cond.w2.latents"]) < LIMIT
    for name in names:
        assert difference(corner(outputs[name][0]), arrays[f"{size}.at.{name}"]) < CORNER_LIMIT, name


@sizes
def test_a_voice_is_the_mean_over_chunks_of_equal_weight(size: str) -> None:
    arrays, model, wave = expected("xtts"), golden_model(size), golden_wave("w3")
    second = 22_050

    def latents(*edges: int) -> Tensor:
        pieces = [wave[first:end] for first, end in pairwise(edges)]
        return model.voice_latents([conditioning_mel(piece, size) for piece in pieces])

    assert difference(latents(0, 4 * second, 8 * second, len(wave)), arrays[f"{size}.cond.w3.latents_chunk4"]) < LIMIT
    cut = latents(0, 4 * second, 5 * second)
    assert difference(cut[:, :16], arrays[f"{size}.cond.w3.latents_len5_first16"]) < LIMIT
    assert difference(latents(0, 4 * second)[:, :16], arrays[f"{size}.cond.w3.short_tail_first16"]) < LIMIT
    kept = latents(0, 4 * second, 4 * second + 7_277)
    assert difference(kept[:, :16], arrays[f"{size}.cond.w3.kept_tail_first16"]) < LIMIT


@sizes
def test_the_voice_of_a_whole_recording_is_the_originals(size: str) -> None:
    arrays, model = expected("xtts"), golden_model(size)
    latents = model.voice_latents([conditioning_mel(golden_wave("w1"), size)])
    assert difference(latents[:, :16], arrays[f"{size}.cond.w1.latents_first16"]) < LIMIT


@sizes
def test_the_inputs_of_these_tests_are_the_originals(size: str) -> None:
    arrays = expected("xtts")
    for row, utterance in enumerate(UTTERANCES):
        text, codes = golden_text(utterance, size), golden_codes(utterance)
        assert np.array_equal(arrays[f"{size}.in.text"][row, : len(text)], text)
        assert np.array_equal(arrays["in.codes"][row, : len(codes)], codes)


# ---- training -----------------------------------------------------------------------------------------------


def training_layout(utterance: str, size: str) -> TokenSequence:
    return build_sequence(golden_model(size).spec, golden_text(utterance, size), golden_codes(utterance))


def losses_of(model: XTTSModel, size: str, *names: str) -> LossSums:
    layouts = [training_layout(name, size) for name in names]
    return compute_losses(model, pack_batch(model, layouts, [training_condition(name, size) for name in names]))


@utterances
def test_inputs_and_targets_are_the_originals_without_the_positions_that_act_on_nothing(utterance: str) -> None:
    arrays, layout = expected("xtts"), training_layout(utterance, "small")
    mask = arrays[f"train_{utterance}.attention_mask"].astype(bool)
    text, speech = arrays[f"train_{utterance}.text_inputs"], arrays[f"train_{utterance}.mel_inputs"]
    assert len(mask) == 32 + len(text) + len(speech)
    assert mask[:32].all()
    text_mask, speech_mask = mask[32 : 32 + len(text)], mask[32 + len(text) :]
    # What is masked as a key has no target either, so that it may be left out.
    for part, inputs, targets, seen in (
        (layout.text, text, arrays[f"train_{utterance}.text_targets"], text_mask),
        (layout.speech, speech, arrays[f"train_{utterance}.mel_targets"], speech_mask),
    ):
        assert np.array_equal(part.ids, inputs[seen])
        assert np.array_equal(part.targets, targets[seen])
        assert np.array_equal(part.positions, np.arange(len(inputs))[seen])
        assert (targets[~seen] == -1).all()
        assert int((~seen).sum()) == 1


def test_a_padded_batch_of_the_original_holds_the_same_sequences() -> None:
    arrays = expected("xtts")
    for row, utterance in enumerate(UTTERANCES):
        layout = training_layout(utterance, "small")
        for part, name in ((layout.text, "text"), (layout.speech, "mel")):
            scored = arrays[f"train_batch.{name}_targets"][row] >= 0
            assert np.array_equal(part.ids, arrays[f"train_batch.{name}_inputs"][row][scored])
            assert np.array_equal(part.targets, arrays[f"train_batch.{name}_targets"][row][scored])
        assert int(arrays["train_batch.attention_mask"][row].sum()) == layout.length


@sizes
@utterances
@torch.no_grad()
def test_losses_and_logits_of_one_utterance_are_the_originals(size: str, utterance: str) -> None:
    arrays, model, name = expected("xtts"), golden_model(size), f"{size}.train_{utterance}"
    layout = training_layout(utterance, size)
    batch = pack_batch(model, [layout], [training_condition(utterance, size)])
    losses = compute_losses(model, batch)
    assert abs(float(losses.text) - arrays[f"{name}.text_loss"]) < LOSS_LIMIT
    assert abs(float(losses.speech) - arrays[f"{name}.mel_loss"]) < LOSS_LIMIT
    hidden = compute_hidden_states(model, batch)
    for logits, key, columns in (
        (model.text_logits(hidden[batch.text.scored]), "text", arrays[f"{size}.text_cols"]),
        (model.speech_logits(hidden[batch.speech.scored]), "mel", arrays["mel_cols"]),
    ):
        count = len(logits)
        assert difference(logits[:, columns], arrays[f"{name}.{key}_logits"][:count]) < LIMIT
        assert difference(logits.logsumexp(-1), arrays[f"{name}.{key}_lse"][:count]) < LIMIT
        assert np.array_equal(logits.argmax(-1).numpy(), arrays[f"{name}.{key}_argmax"][:count])
        assert count == len(arrays[f"{name}.{key}_lse"]) - 1


@dataclass(frozen=True)
class MaskedKeys:
    """Dense attention of one sequence with keys that nobody sees: the original's own mask."""

    seen: Tensor  # [T] bool
    closed: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        return torch.arange(len(self.seen))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = torch.ones(len(self.seen), len(self.seen)).tril().bool()
        mask = torch.where(causal & self.seen, 0.0, torch.finfo(torch.float32).min)
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5 + mask
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


@sizes
@utterances
@torch.no_grad()
def test_with_the_originals_mask_every_position_is_the_originals(size: str, utterance: str) -> None:
    """Also those that sequences here leave out: with them the rest must come out as it does without."""
    arrays, model, name = expected("xtts"), golden_model(size), f"{size}.train_{utterance}"
    seen = torch.from_numpy(arrays[f"train_{utterance}.attention_mask"].astype(bool))
    spec = model.spec
    text = torch.from_numpy(np.concatenate([[spec.text_start], golden_text(utterance, size), [spec.text_stop]]))
    codes = torch.from_numpy(np.concatenate([[spec.speech_start], golden_codes(utterance), 4 * [spec.speech_stop]]))
    condition = torch.from_numpy(training_condition(utterance, size))
    vectors = torch.cat(
        [
            condition,
            model.embed_text(text, torch.arange(len(text))),
            model.embed_speech(codes, torch.arange(len(codes))),
        ]
    )
    found = [key.removeprefix(f"{name}.at.") for key in arrays if key.startswith(f"{name}.at.")]
    outputs, stack = record(model.gpt, [module for module in found if module != "final_norm"])
    with stack:
        hidden = model.body(vectors, MaskedKeys(seen))
    parts = hidden[32:].split([len(text), len(codes)])
    for logits, key, columns in (
        (model.text_logits(parts[0]), "text", arrays[f"{size}.text_cols"]),
        (model.speech_logits(parts[1]), "mel", arrays["mel_cols"]),
    ):
        assert difference(logits[:, columns], arrays[f"{name}.{key}_logits"]) < LIMIT
        assert difference(logits.logsumexp(-1), arrays[f"{name}.{key}_lse"]) < LIMIT
        assert np.array_equal(logits.argmax(-1).numpy(), arrays[f"{name}.{key}_argmax"])
    for module, output in outputs.items():
        assert difference(corner(output), arrays[f"{name}.at.{module}"]) < CORNER_LIMIT, module
    if "final_norm" in found:  # the original gives it text and speech alone
        assert difference(corner(model.speech_latents(hidden[32:])), arrays[f"{name}.at.final_norm"]) < CORNER_LIMIT


@sizes
@torch.no_grad()
def test_losses_of_a_batch_are_one_mean_over_all_positions(size: str) -> None:
    arrays, model = expected("xtts"), golden_model(size)
    losses = losses_of(model, size, *UTTERANCES)
    assert abs(float(losses.text) - arrays[f"{size}.train_batch.text_loss"]) < LOSS_LIMIT
    assert abs(float(losses.speech) - arrays[f"{size}.train_batch.mel_loss"]) < LOSS_LIMIT
    text_weight, speech_weight = FAMILIES["xtts"].loss_weights
    whole = text_weight * float(losses.text) + speech_weight * float(losses.speech)
    assert abs(whole - arrays[f"{size}.train_batch.loss"]) < LOSS_LIMIT
    layouts = [training_layout(name, size) for name in UTTERANCES]
    batch = pack_batch(model, layouts, [training_condition(name, size) for name in UTTERANCES])
    found = model.speech_logits(compute_hidden_states(model, batch)[batch.speech.scored]).logsumexp(-1)
    wanted = [
        row[: len(layout.speech.ids)]
        for row, layout in zip(arrays[f"{size}.train_batch.mel_lse"], layouts, strict=True)
    ]
    assert difference(found, np.concatenate(wanted)) < LIMIT


@sizes
@torch.no_grad()
def test_the_originals_faulty_mask_of_the_prompt_is_left_out(size: str) -> None:
    """It counts frames of 256 samples as codes of 1,024 and treats the last row of a batch alone."""
    arrays, model = expected("xtts"), golden_model(size)
    targets = arrays["train_batch_idxs.mel_targets"]
    layouts = [training_layout(name, size) for name in UTTERANCES]
    lengths = [len(layout.speech.ids) for layout in layouts]
    kept = [row[:length] for row, length in zip(targets, lengths, strict=True)]
    assert np.array_equal(kept[0], layouts[0].speech.targets)
    assert not np.array_equal(kept[1], layouts[1].speech.targets)
    batch = pack_batch(model, layouts, [training_condition(name, size) for name in UTTERANCES])
    logits = model.speech_logits(compute_hidden_states(model, batch)[batch.speech.scored])
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(np.concatenate(kept)).long(), ignore_index=-1)
    assert abs(float(loss) - arrays[f"{size}.train_batch_idxs.mel_loss"]) < LOSS_LIMIT
    text = compute_losses(model, batch).text
    assert abs(float(text) - arrays[f"{size}.train_batch_idxs.text_loss"]) < LOSS_LIMIT


@sizes
def test_gradients_reach_every_part_as_in_the_original(size: str) -> None:
    """The conditioning encoder and the perceiver too, which training here reads from prepared arrays."""
    model = golden_model(size)
    wanted = json.loads(shared("golden/xtts/grad_norms.json").read_text())[size]
    parameters = {name.removeprefix("gpt."): own for name, own in model.named_parameters()}
    assert wanted.keys() == parameters.keys()
    latents = [
        model.gpt.requires_grad_(True).voice_latents(training_mel(utterance, size)[None])[0] for utterance in UTTERANCES
    ]
    try:
        layouts = [training_layout(name, size) for name in UTTERANCES]
        batch = pack_batch(model, layouts, [one.detach().numpy() for one in latents])
        batch = replace(batch, conditions=torch.stack(latents))
        losses = compute_losses(model, batch)
        gradients = torch.autograd.grad(0.01 * losses.text + losses.speech, list(parameters.values()))
    finally:
        model.requires_grad_(False)
    for (name, norm), gradient in zip(wanted.items(), gradients, strict=True):
        assert abs(float(gradient.double().norm()) - norm) < 1e-4 * norm, name


@sizes
def test_mels_of_training_clips_are_padded_with_silence_as_in_the_original(size: str) -> None:
    wanted = expected("xtts")[f"{size}.train.cond_mel_mean"]
    found = torch.stack([training_mel(utterance, size).mean(-1) for utterance in UTTERANCES])
    assert difference(found, wanted) < 1e-4


# ---- speaking -----------------------------------------------------------------------------------------------


def voice_of_w2(size: str) -> NDArray[np.float32]:
    return expected("xtts")[f"{size}.cond.w2.latents"]


def begin(utterance: str, size: str, **sampling: Any) -> DecodeSession:
    given = GenerationPrompt(golden_text(utterance, size).tolist(), voice_of_w2(size))
    return DecodeSession(golden_model(size), [given], SamplingParams(max_codes=20, readable=False, **sampling))


@sizes
@torch.no_grad()
def test_a_prompt_is_latents_and_text_with_its_stop(size: str) -> None:
    model = golden_model(size)
    layout = build_sequence(model.spec, golden_text("a", size))
    batch = pack_batch(model, [layout], [voice_of_w2(size)])
    vectors = torch.cat(
        [model.embed_conditions(batch.conditions)[0], model.embed_text(batch.text.ids, batch.text.positions)]
    )
    assert difference(vectors[:, :16], expected("xtts")[f"{size}.prefix_emb_a_first16"]) < LIMIT
    assert batch.speech.ids.tolist() == [1024]
    assert batch.speech.positions.tolist() == [0]


@sizes
@utterances
@pytest.mark.parametrize("penalty", [1.0, 5.0])
def test_greedy_decoding_gives_the_originals_codes_logits_and_scores(size: str, utterance: str, penalty: float) -> None:
    arrays = expected("xtts")
    name = f"{size}.greedy_{utterance}" if penalty == 1.0 else f"{size}.greedy_pen5_{utterance}"
    session = begin(utterance, size, temperature=0.0, repetition_penalty=penalty)
    logits, scores = [], []
    for _ in range(20):
        logits.append(session.logits[0].clone())
        scores.append(session.penalized_logits()[0].clone())
        session.sample_next_codes(None)
        session.feed_codes() if len(logits) < 20 else None
    assert session.codes[0].tolist() == arrays[f"{name}.tokens"].tolist()
    raw, scored = torch.stack(logits), torch.stack(scores)
    assert difference(raw[:, arrays["mel_cols"]], arrays[f"{name}.logits"]) < LIMIT
    assert difference(raw.logsumexp(-1), arrays[f"{name}.lse"]) < LIMIT
    best = scored.topk(2).values
    assert difference(best[:, 0] - best[:, 1], arrays[f"{name}.gap"]) < 2 * SCORE_LIMIT
    if penalty == 1.0:
        positions = [code_position(session.spec, index) for index in range(19)]
        assert [0, *positions] == arrays[f"greedy_{utterance}.positions"].tolist()
        return
    assert difference(scored[:, arrays["mel_cols"]], arrays[f"{name}.scores"]) < SCORE_LIMIT
    for code, key in ((1, "code_1"), (1024, "start")):
        found = torch.stack([raw[:, code], scored[:, code]])
        assert difference(found, arrays[f"{name}.logit_and_score_of_{key}"]) < SCORE_LIMIT


@utterances
def test_scores_to_draw_from_are_the_originals(utterance: str) -> None:
    arrays, name = expected("xtts"), f"small.sampled_{utterance}"
    assert_sampled_scores("small", utterance, arrays[f"{name}.tokens"])


@pytest.mark.long
def test_scores_to_draw_from_are_the_originals_at_full_size() -> None:
    stored = [utterance for utterance in UTTERANCES if f"full.sampled_{utterance}.tokens" in expected("xtts")]
    assert stored
    for utterance in stored:
        assert_sampled_scores("full", utterance, expected("xtts")[f"full.sampled_{utterance}.tokens"])


def assert_sampled_scores(size: str, utterance: str, tokens: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
    """With the original's tokens, whatever would be drawn here."""
    arrays, name = expected("xtts"), f"{size}.sampled_{utterance}"
    sampling = XTTS().upstream_sampling()
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty) == (0.75, 50, 0.85, 5.0)
    assert sampling.max_codes == 602
    session = begin(utterance, size, temperature=0.75, top_k=50, top_p=0.85, repetition_penalty=5.0)
    for step, token in enumerate(tokens.tolist()):
        assert difference(session.logits[0], arrays[f"{name}.logits"][step]) < LIMIT
        found, wanted = filter_logits(session.penalized_logits(), session.sampling)[0], arrays[f"{name}.scores"][step]
        kept = np.isfinite(wanted)
        assert np.array_equal(found.isfinite().numpy(), kept)
        assert difference(found[kept], wanted[kept]) < SCORE_LIMIT
        # As `sample_next_codes` does with what it draws.
        state = session.state
        state.codes[0, step] = token
        state.heard[0, token] = True
        state.num_generated.add_(1)
        session.feed_codes()


@sizes
@utterances
@torch.no_grad()
def test_states_for_the_vocoder_are_the_originals_and_those_seen_while_decoding(size: str, utterance: str) -> None:
    arrays, model = expected("xtts"), golden_model(size)
    codes, text = arrays[f"{size}.greedy_{utterance}.tokens"].tolist(), [golden_text(utterance, size).tolist()]
    (latents,) = compute_speech_latents(model, text, [voice_of_w2(size)], [codes])
    assert difference(latents, arrays[f"{size}.latents_{utterance}"]) < LIMIT
    (ended,) = compute_speech_latents(model, text, [voice_of_w2(size)], [codes[:12]], ended=[True])
    assert difference(ended[:, :64], arrays[f"{size}.latents_stop_{utterance}_first64"]) < LIMIT
    assert float(arrays[f"{size}.second_pass_minus_decoding"]) < LIMIT
    outputs, stack = record(model, ["gpt.gpt"])
    session = begin(utterance, size, temperature=0.0, repetition_penalty=1.0)
    seen = []
    with stack:
        for step in range(20):
            if step:
                seen.append(model.speech_latents(outputs["gpt.gpt"])[-1])
            session.sample_next_codes(None)
            session.feed_codes()
    assert (torch.stack(seen) - latents[1:]).abs().max() < LIMIT
