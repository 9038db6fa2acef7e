"""Training on a CUDA device: replayed packs, one row of parameters, the same bits after a resume. Skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.support.families import PUBLISHED
from tests.support.trainers import NUM_NEW, OPTIONS, Place
from voxgraft.config.train_options import TrainOptions
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.models import get_family
from voxgraft.models.speech_model import compute_hidden_states, compute_losses, load_model
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.step import NonFiniteError, TrainStep
from voxgraft.training.trainable import (
    FlatAdamW,
    build_optimizer,
    copy_optimizer_state,
    make_trainable,
    restore_optimizer_state,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FULL = replace(OPTIONS, mode="merged", full_backbone=True)
MODES = {"gated": OPTIONS, "merged-full": FULL, "merged-adapter": replace(OPTIONS, mode="merged")}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    return {name: Place.make(name, tmp_path_factory.mktemp(name)) for name in PUBLISHED}


@pytest.fixture
def deterministic() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


class Made:
    """A stepper on the device and its data order."""

    def __init__(self, place: Place, options: TrainOptions) -> None:
        kind = get_family(place.family_name)
        model = load_model(kind, place.files, device="cuda", dtype=torch.bfloat16)
        generator = torch.Generator().manual_seed(5)
        shapes = {point.tensor: model.state_dict()[point.tensor].shape[1:] for point in kind.graft_points}
        rows = {name: 0.05 * torch.randn(NUM_NEW, *shape, generator=generator) for name, shape in shapes.items()}
        self.trained = make_trainable(model, rows, options)
        sets = [open_clip_dataset(place.folder / "train")]
        order = DataSamplerOptions(
            options.text_dropout, min_prompt_seconds=0.5, num_conditioning=model.spec.num_conditioning
        )
        self.stream = DeterministicSampler(sets, [1.0], options.batch_tokens, options.seed, order)
        self.optimizer = build_optimizer(self.trained, options)
        self.stepper = TrainStep(self.trained, self.optimizer, BatchBuilder(kind, model, sets), options)

    def steps(self, first: int, last: int) -> list[float]:
        found = []
        for number in range(first, last + 1):
            report = self.stepper.step(number, self.stream.step(number))
            found += [report.text_loss, report.speech_loss, *report.norms.values()]
        return found

    def everything(self) -> dict[str, torch.Tensor]:
        groups = {**self.trained.tensors(), "optimizer": copy_optimizer_state(self.optimizer)}
        return {f"{group}/{name}": value for group, held in groups.items() for name, value in held.items()}


def on_device(options: TrainOptions, **changes: object) -> TrainOptions:
    return replace(options, precision="bf16", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_replayed_packs_give_the_losses_and_gradients_of_plain_ones(
    places: dict[str, Place], name: str, mode: str
) -> None:
    plain = Made(places[name], on_device(MODES[mode]))
    replayed = Made(places[name], on_device(MODES[mode], compile=True))
    assert plain.stepper.cuda_graphs is None
    assert replayed.stepper.cuda_graphs is not None
    expected, found = plain.steps(1, 8), replayed.steps(1, 8)
    assert found == pytest.approx(expected, rel=0.03)
    assert replayed.stepper.cuda_graphs.num_graphs >= 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_stopped_and_resumed_is_the_straight_run_bit_for_bit(
    places: dict[str, Place], name: str, mode: str, deterministic: None
) -> None:
    options = on_device(MODES[mode], compile=True, deterministic=True)
    straight = Made(places[name], options)
    losses_straight = straight.steps(1, 10)
    first = Made(places[name], options)
    losses_first = first.steps(1, 5)
    kept, moments = first.trained.tensors(), copy_optimizer_state(first.optimizer)
    second = Made(places[name], options)
    second.trained.restore(kept)
    restore_optimizer_state(second.optimizer, moments)
    assert losses_first + second.steps(6, 10) == losses_straight
    found, expected = second.everything(), straight.everything()
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PUBLISHED)
def test_with_the_gate_closed_speech_is_the_bases_own_bit_for_bit_after_training(
    places: dict[str, Place], name: str, compiled: bool
) -> None:
    made = Made(places[name], on_device(OPTIONS, compile=compiled))
    made.steps(1, 6)
    kind = get_family(name)
    base = load_model(kind, places[name].files, device="cuda", dtype=torch.bfloat16).requires_grad_(False)
    if compiled:
        base.body.compile_blocks()
    sets = [open_clip_dataset(places[name].folder / "replay")]
    items = DeterministicSampler(sets, [1.0], 600, 0, DataSamplerOptions(0.0, min_prompt_seconds=0.5)).step(1)
    logits = []
    with torch.no_grad():
        for model in (base, made.trained.model):
            batch = BatchBuilder(kind, model, sets).batch(items)
            logits.append(model.speech_logits(compute_hidden_states(model, batch)[batch.speech.scored]))
    assert torch.equal(*logits)
    assert bool(logits[0].isfinite().all())


@pytest.mark.parametrize("copies", [False, True])
def test_the_row_moves_as_torchs_adamw_does(copies: bool) -> None:
    generator = torch.Generator(device="cuda").manual_seed(0)

    def made() -> list[torch.nn.Parameter]:
        shapes = [(3, 5), (1024,), (70, 33)]
        values = torch.Generator(device="cuda").manual_seed(1)
        return [torch.nn.Parameter(torch.randn(*shape, generator=values, device="cuda")) for shape in shapes]

    theirs, ours = made(), made()
    rounded = {value: torch.nn.Parameter(value.detach().bfloat16()) for value in ours} if copies else {}
    theirs_optimizer = torch.optim.AdamW(theirs, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    ours_optimizer = FlatAdamW([{"params": ours, "weight_decay": 0.1}], (0.9, 0.99), rounded)
    for step in range(20):
        ours_optimizer.param_groups[0]["lr"] = 1e-2
        for their, own in zip(theirs, ours, strict=True):
            their.grad = torch.randn(their.shape, generator=generator, device="cuda") * 3
            own.grad = their.grad.clone()
        if step % 3 == 0:
            theirs[1].grad = ours[1].grad = None
        [norm] = ours_optimizer.clip_and_step(1.0, torch.zeros(1, device="cuda"))
        expected = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        theirs_optimizer.step()
        torch.testing.assert_close(norm, expected)
    for their, own in zip(theirs, ours, strict=True):
        torch.testing.assert_close(own.detach(), their.detach(), rtol=2e-5, atol=2e-6)
        assert ours_optimizer.state[own]["step"].item() == theirs_optimizer.state[their]["step"].item()
    for value, copy in rounded.items():
        assert torch.equal(copy.detach(), value.detach().bfloat16())


def test_nothing_moves_where_a_number_is_not_finite(places: dict[str, Place]) -> None:
    made = Made(places["chatterbox"], on_device(FULL, compile=True))
    made.steps(1, 2)
    with torch.no_grad():
        dict(made.trained.model.named_parameters())["speech_head.weight"][5] = float("nan")
    before = made.everything()
    with pytest.raises(NonFiniteError):
        made.steps(3, 3)
    after = made.everything()
    moved = [name for name in before if not torch.equal(before[name].nan_to_num(), after[name].nan_to_num())]
    assert moved == []


def test_validation_and_training_agree_on_a_pack(places: dict[str, Place]) -> None:
    made = Made(places["chatterbox"], on_device(FULL, compile=True))
    items = made.stream.step(1)
    with torch.no_grad():
        before = compute_losses(made.trained.model, made.stepper.batch_builder.batch(items))
    report = made.stepper.step(1, items)
    assert report.speech_loss == pytest.approx(float(before.speech), rel=0.01)
