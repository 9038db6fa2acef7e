"""Packs filled up to fixed sizes: filling changes no loss, no gradient, and no size is a surprise."""

from __future__ import annotations

import pytest
import torch

from tests.support.families import PUBLISHED
from tests.support.fixtures import Fixtures
from tests.support.trainers import OPTIONS, loop_of
from voxgraft.models.speech_model import PackedBatch, compute_losses
from voxgraft.training.cuda_graphs import BatchBucket, list_batch_tensors, pad_to_bucket
from voxgraft.training.trainer import Trainer


@pytest.fixture(scope="module", params=PUBLISHED)
def loop(request: pytest.FixtureRequest, fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return loop_of(fixtures.place(request.param), tmp_path_factory.mktemp("moulds") / "run")


def moulded(loop: Trainer, step: int) -> tuple[PackedBatch, BatchBucket]:
    examples = loop.stepper.batch_builder
    batch = examples.batch(loop.stream.step(step))
    mould = examples.cuda_graph_buckets(2 * OPTIONS.batch_tokens).bucket_for(batch)
    assert mould is not None
    return batch, mould


def test_filling_changes_no_loss_and_no_gradient(loop: Trainer) -> None:
    trained = loop.stepper.trained
    batch, mould = moulded(loop, 1)
    found = []
    for one in (batch, pad_to_bucket(batch, mould)):
        assert trained.gate is not None
        with trained.gate.opened():
            both = compute_losses(trained.model, one)
        gradients = torch.autograd.grad(both.text_sum + both.speech_sum, list(trained.named().values()))
        found.append([both.text_sum.detach(), both.speech_sum.detach(), *gradients])
    assert mould.positions > len(batch.order)
    for plain, with_filling in zip(*found, strict=True):
        torch.testing.assert_close(with_filling, plain, rtol=1e-4, atol=1e-5)


def test_all_packs_of_one_mould_have_the_same_shapes(loop: Trainer) -> None:
    shapes: dict[BatchBucket, set[tuple[tuple[int, ...], ...]]] = {}
    for step in range(1, 30):
        batch, mould = moulded(loop, step)
        made = list_batch_tensors(pad_to_bucket(batch, mould))
        # A prompt's own length is no part of the mould, and is the last dimension of some conditions only.
        shapes.setdefault(mould, set()).add(tuple((len(value),) for value in made))
    assert any(len(group) == 1 for group in shapes.values())
    assert all(len(group) == 1 for group in shapes.values())


def test_filled_packs_keep_every_sequence_apart_and_in_bounds(loop: Trainer) -> None:
    for step in range(1, 12):
        batch, mould = moulded(loop, step)
        made = pad_to_bucket(batch, mould)
        lengths = made.packing.offsets.diff()
        assert len(lengths) == mould.sequences
        assert int(lengths.sum()) == mould.positions == len(made.order)
        assert int(lengths.max()) <= mould.longest
        num_vectors = (
            mould.sequences * loop.stepper.batch_builder.model.spec.num_conditioning + mould.text + mould.speech
        )
        assert int(made.order.min()) >= 0
        assert int(made.order.max()) < num_vectors
        assert int((made.text.targets != -100).sum()) == len(batch.text.targets)
        assert int((made.speech.targets != -100).sum()) == len(batch.speech.targets)


def test_a_pack_of_no_foreseen_size_has_no_mould(loop: Trainer) -> None:
    examples = loop.stepper.batch_builder
    batch = examples.batch(loop.stream.step(1))
    assert examples.cuda_graph_buckets(len(batch.order) // 4).bucket_for(batch) is None
