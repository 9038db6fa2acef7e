"""A sentence in two languages: words of a base language bypass the adapter, in training and in synthesis."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contract.cases import LENGTHS, TOLERANCE, Case, layout, prompts
from tests.support.fixtures import Fixtures
from tests.support.trainers import OPTIONS, Place, StopAt, loop_of, resumed
from voxgraft.core.errors import GraftError
from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models import family_names
from voxgraft.models.base import Clip, build_sequence
from voxgraft.models.generate import DecodeSession
from voxgraft.models.speech_model import (
    PackedBatch,
    SpeechModel,
    compute_hidden_states,
    compute_losses,
    compute_speech_latents,
    pack_batch,
)
from voxgraft.nn.adapter import find_lora_layers
from voxgraft.nn.decode import SamplingParams
from voxgraft.training.cuda_graphs import BatchBucketSet
from voxgraft.training.prefetch import BatchPrefetcher
from voxgraft.training.trainable import copy_optimizer_state


def closed_batch(case: Case, model: SpeechModel, below: int | None = None) -> PackedBatch:
    """Five utterances of base ids, two of them with words at which the gate is closed."""
    layouts = [layout(model, *lengths, seed, below=below) for seed, lengths in enumerate(LENGTHS)]
    for at in (1, 3):
        closed = np.zeros(len(layouts[at].text.ids), dtype=bool)
        closed[2:6] = True
        layouts[at] = replace(layouts[at], closed=closed)
    return pack_batch(model, layouts, [case.condition(model, seed) for seed in range(len(layouts))])


def outputs_of(model: SpeechModel, batch: PackedBatch, names: list[str]) -> dict[str, Tensor]:
    """What the named layers make of a batch."""
    found: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _module, _x, out, name=name: found.update({name: out}))
        for name in names
    ]
    compute_hidden_states(model, batch)
    for hook in hooks:
        hook.remove()
    return found


def test_at_closed_positions_the_first_layer_has_the_bits_of_the_base_and_teaches_the_adapter_nothing(
    case: Case,
) -> None:
    base = case.open()
    model, gate = case.grafted()
    batch = closed_batch(case, model, base.num_text_ids)
    closed = batch.packing.closed
    assert closed is not None
    assert int(closed.sum()) == 8
    name = next(iter(find_lora_layers(model)))  # the first layer: it reads what it reads in the base
    layer = find_lora_layers(model)[name]
    want = outputs_of(base, closed_batch(case, base), [name])[name]
    with gate.opened():
        found = outputs_of(model, batch, [name])[name]
    assert torch.equal(found[closed].view(torch.int32), want[closed].view(torch.int32))
    assert not any(torch.equal(one, other) for one, other in zip(found[~closed], want[~closed], strict=True))
    for chosen, learns in ((closed, False), (~closed, True)):
        with gate.opened():
            found = outputs_of(model, batch, [name])[name]
        layer.down.grad = layer.up.grad = None
        torch.autograd.backward(found[chosen].square().sum())
        gradients = [parameter.grad for parameter in (layer.down, layer.up)]
        assert all(one is not None and bool(one.any()) == learns for one in gradients)


@torch.no_grad()
def test_without_closed_positions_a_pack_has_no_mask_and_a_mask_changes_no_other_utterance(case: Case) -> None:
    base = case.open()
    model, gate = case.grafted()
    plain = [layout(model, *lengths, seed, below=base.num_text_ids) for seed, lengths in enumerate(LENGTHS)]
    conditions = [case.condition(model, seed) for seed in range(len(plain))]
    without = pack_batch(model, plain, conditions)
    assert without.packing.closed is None
    batch = closed_batch(case, model, base.num_text_ids)
    with gate.opened():
        one, other = (compute_hidden_states(model, own) for own in (without, batch))
    assert gate.mask is None
    same = [torch.equal(one[begin:end], other[begin:end]) for begin, end in _bounds(batch)]
    assert same == [True, False, True, False, True]
    with gate.closed():  # a sentence of a base language: no operation of the adapter, whatever the mask says
        assert torch.equal(compute_hidden_states(model, batch), compute_hidden_states(base, closed_batch(case, base)))


def _bounds(batch: PackedBatch) -> list[tuple[int, int]]:
    offsets = batch.packing.offsets.tolist()
    return list(pairwise(offsets))


def test_gradients_are_the_same_when_activations_are_computed_twice(case: Case) -> None:
    model, gate = case.grafted()
    gradients: list[list[Tensor]] = []
    for twice in (False, True):
        model.body.gradient_checkpointing = twice
        with gate.opened():
            losses = compute_losses(model, closed_batch(case, model))
            learnt = [value for layer in find_lora_layers(model).values() for value in (layer.down, layer.up)]
            gradients.append(list(torch.autograd.grad(losses.text_sum + losses.speech_sum, learnt)))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@torch.no_grad()
def test_speaking_has_the_logits_of_training_where_words_are_closed(case: Case) -> None:
    model, gate = case.grafted()
    sampling = SamplingParams(temperature=0, max_codes=6, readable=True, stock=False)
    given = [
        replace(prompt, closed=[at % 3 == 1 for at in range(len(prompt.text_ids))]) for prompt in prompts(case, model)
    ]
    given[1] = replace(given[1], closed=None)
    with gate.opened():
        streams = DecodeSession(model, given, sampling)
        steps = [streams.logits.clone()]
        for _ in range(5):
            streams.sample_next_codes(None)
            streams.feed_codes()
            steps.append(streams.logits.clone())
        codes = [streams.codes[row, :5].tolist() for row in range(len(given))]
        for row, prompt in enumerate(given):
            sequences = [
                build_sequence(model.spec, prompt.text_ids, codes[row], closed=closed)
                for closed in (prompt.closed, None)
            ]
            logits, open_logits = (
                model.speech_logits(
                    compute_hidden_states(model, pack_batch(model, [own], [prompt.condition]))[-len(own.speech.ids) :]
                )[:6]
                for own in sequences
            )
            cached = torch.stack([step[row] for step in steps])
            assert (logits - cached).abs().max() < TOLERANCE
            assert torch.equal(logits, open_logits) == (prompt.closed is None)
        texts, conditions = [prompt.text_ids for prompt in given], [prompt.condition for prompt in given]
        closed = compute_speech_latents(model, texts, conditions, codes, [prompt.closed for prompt in given])
        opened = compute_speech_latents(model, texts, conditions, codes)
    assert [torch.equal(one, other) for one, other in zip(closed, opened, strict=True)] == [False, True, False]


def test_a_mask_of_another_length_is_refused(case: Case) -> None:
    with pytest.raises(GraftError) as refused:
        build_sequence(case.open().spec, [7, 8, 9], [1, 2], closed=[True])
    assert refused.value.code == "packing"


@pytest.fixture(scope="module", params=family_names())
def place(request: pytest.FixtureRequest, fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Base and sets of a family, with closed words in two of three clips."""
    found, folder = fixtures.place(request.param), tmp_path_factory.mktemp(request.param)
    (folder / "base").symlink_to(found.folder / "base")
    for name in ("train", "valid"):
        clips = open_clip_dataset(found.folder / name)

        def own(at: int, clips: ClipDataset = clips) -> Clip:
            info, ids = clips.infos[at], clips.text_ids(at)
            closed = [place % 2 == 1 for place in range(len(ids))] if at % 3 else ()
            return replace(info, codes=clips.codes(at), voice=clips.voice(at), text_ids=ids, closed=closed)

        write_clip_dataset(folder / name, clips.header, map(own, range(len(clips))), 5)
        again = open_clip_dataset(folder / name)
        assert [again.closed(at) is None for at in range(4)] == [True, False, False, True]
    return Place(request.param, folder)


@pytest.mark.long(fast=("tiny", "chatterbox"))
def test_training_with_spans_that_was_stopped_and_resumed_is_the_straight_one_bit_for_bit(
    place: Place, fixtures: Fixtures, tmp_path: Path
) -> None:
    def end(run: str, found: Place = place, **options: Any) -> dict[str, Tensor]:
        loop = loop_of(found, tmp_path / run, replace(OPTIONS, **options))
        if run == "broken":
            loop.callbacks.append(StopAt(4, "enough for now"))
            loop.train(0)
            loop = loop_of(found, tmp_path / run, OPTIONS)
            assert resumed(loop) == 4
        loop.train(4 if run == "broken" else 0)
        groups = {**loop.stepper.trained.tensors(), "optimizer": copy_optimizer_state(loop.stepper.optimizer)}
        return {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}

    straight, broken = end("straight"), end("broken")
    assert all(torch.equal(straight[name], broken[name]) for name in straight)
    open_everywhere = end("open", fixtures.place(place.family_name))
    assert any(not torch.equal(straight[name], open_everywhere[name]) for name in straight)
    # An adapter that will be folded in has no gate: the same training as without closed words.
    merged = end("merged", mode="merged"), end("merged-open", fixtures.place(place.family_name), mode="merged")
    assert all(torch.equal(merged[0][name], merged[1][name]) for name in merged[0])


def test_microbatches_with_closed_words_are_not_recorded_as_cuda_graphs(place: Place, tmp_path: Path) -> None:
    loop = loop_of(place, tmp_path / "run")
    builder = loop.stepper.batch_builder
    prefetcher = BatchPrefetcher(builder, OPTIONS.microbatch_tokens, loop.stepper.group, cuda_graphs=True)
    items = [item for item in loop.stream.step(1) if builder.sets[0].closed(item.clip) is not None][:2]
    batch = prefetcher.pack(items)
    assert batch.packing.closed is not None
    assert len(batch.order) == sum(map(builder.num_positions, items))
    buckets = builder.cuda_graph_buckets(OPTIONS.microbatch_tokens)
    assert isinstance(buckets, BatchBucketSet)
    assert buckets.bucket_for(batch) is not None
