"""Promise 2: no training step, optimizer state or average can move a bit of the base; and the proof that it could fail."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from voxgraft.core.errors import CheckpointError, GraftError
from voxgraft.nn.rows import (
    build_trainable_report,
    collect_new_rows,
    compute_base_fingerprint,
    freeze_base,
    grow_layers,
    hash_base_tensors,
    load_new_rows,
    require_matching_moments,
    require_same_base,
)

PIECES, NEW, SPARE, WIDTH, CODES = 20, 6, 1, 16, 11
POINTS = ["text_emb", "text_head"]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class ToySpeaker(nn.Module):
    """Text and speech tables, one causal block, and two heads: the shape of both families in small."""

    def __init__(self, text_rows: int = PIECES + SPARE) -> None:
        super().__init__()
        self.text_emb = nn.Embedding(text_rows, WIDTH)
        self.speech_emb = nn.Embedding(CODES, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.scale = nn.Buffer(torch.full((WIDTH,), 0.5))
        self.text_head = nn.Linear(WIDTH, text_rows)
        self.speech_head = nn.Linear(WIDTH, CODES)

    def forward(self, text: Tensor, speech: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.cat([self.text_emb(text), self.speech_emb(speech)], dim=1)
        query, key, value = self.attention(self.norm(hidden)).chunk(3, dim=-1)
        hidden = hidden + self.scale * F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.mlp(self.norm(hidden))
        return self.text_head(hidden[:, : text.shape[1]]), self.speech_head(hidden[:, text.shape[1] :])


@pytest.fixture
def base() -> ToySpeaker:
    torch.manual_seed(0)
    return ToySpeaker()


@pytest.fixture
def grown(base: ToySpeaker) -> ToySpeaker:
    model = copy.deepcopy(base)
    grow_layers(model, POINTS, NEW, SPARE)
    load_new_rows(model, {name: rows + 0.1 * torch.randn_like(rows) for name, rows in collect_new_rows(model).items()})
    freeze_base(model)
    return model


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sentences of old and new ids, every new id among them."""
    generator = torch.Generator().manual_seed(1)
    new_ids = torch.arange(PIECES, PIECES + NEW).expand(4, NEW)
    for _ in range(steps):
        old_ids = torch.randint(PIECES, (4, NEW), generator=generator)
        speech = torch.randint(CODES, (4, 5), generator=generator)
        yield torch.cat([old_ids, new_ids], dim=1)[:, torch.randperm(2 * NEW, generator=generator)], speech


def loss_of(model: nn.Module, text: Tensor, speech: Tensor) -> Tensor:
    text_logits, speech_logits = model(text, speech)
    text_loss = F.cross_entropy(text_logits[:, :-1].flatten(0, 1), text[:, 1:].flatten())
    return text_loss + F.cross_entropy(speech_logits[:, :-1].flatten(0, 1), speech[:, 1:].flatten())


def train(model: nn.Module, optimizer: Optimizer, steps: int, after_step: Callable[[], None] = lambda: None) -> None:
    for text, speech in batches(steps):
        optimizer.zero_grad()
        loss_of(model, text, speech).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after_step()


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def assert_base_is_the_same_bits(model: nn.Module, base: nn.Module) -> None:
    """Every tensor of the base against the grown model's state dict, as bytes, without the digests under test."""
    state = model.state_dict()
    for name, tensor in base.state_dict().items():
        now = state[name]
        if len(now) != len(tensor):
            now = torch.cat([now[:PIECES], now[PIECES + NEW :]])
        assert torch.equal(now.view(torch.uint8), tensor.view(torch.uint8)), name


def assert_every_new_row_moved(model: nn.Module, start: dict[str, Tensor]) -> None:
    for name, rows in collect_new_rows(model).items():
        assert (rows != start[name]).reshape(NEW, -1).any(dim=1).all(), name


# ---- the promise --------------------------------------------------------------------------------------------------


def test_base_is_the_same_bits_after_1000_adamw_steps_with_weight_decay(base: ToySpeaker, grown: ToySpeaker) -> None:
    start, digests = collect_new_rows(grown), hash_base_tensors(grown)
    loss_before = loss_of(grown, *next(batches(1))).item()
    optimizer = AdamW(grown.parameters(), lr=1e-2, weight_decay=0.1)  # all parameters: frozen ones must stay too
    train(grown, optimizer, 1000)
    assert_base_is_the_same_bits(grown, base)
    require_same_base(grown, digests)
    assert_every_new_row_moved(grown, start)
    assert loss_of(grown, *next(batches(1))).item() < loss_before - 0.1


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw, fused": lambda parameters: AdamW(parameters, lr=1e-2, weight_decay=0.1, fused=True),
    "adamw, one by one": lambda parameters: AdamW(parameters, lr=1e-2, weight_decay=0.1, foreach=False),
    "adam with L2": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, weight_decay=0.1),
    "sgd with momentum": lambda parameters: SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=0.1, nesterov=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_base_is_the_same_bits_under_other_optimizers_with_clipping(
    kind: str, base: ToySpeaker, grown: ToySpeaker
) -> None:
    start = collect_new_rows(grown)
    optimizer = OPTIMIZERS[kind](trained(grown))
    for text, speech in batches(100):
        optimizer.zero_grad()
        loss_of(grown, text, speech).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(grown.parameters(), 0.1)
        optimizer.step()
    assert_base_is_the_same_bits(grown, base)
    assert_every_new_row_moved(grown, start)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_over_training_has_the_base_of_the_model(
    use_buffers: bool, base: ToySpeaker, grown: ToySpeaker
) -> None:
    start = collect_new_rows(grown)
    ema = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
    average = AveragedModel(grown, multi_avg_fn=ema, use_buffers=use_buffers)
    optimizer = AdamW(trained(grown), lr=1e-2, weight_decay=0.1)
    train(grown, optimizer, 100, lambda: average.update_parameters(grown))
    for model in (grown, average.module):
        assert_base_is_the_same_bits(model, base)
        assert_every_new_row_moved(model, start)


@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning")
def test_ddp_trains_the_new_rows_and_leaves_the_base(tmp_path: Path, base: ToySpeaker, grown: ToySpeaker) -> None:
    for point in (base, grown):
        point.extra = copy.deepcopy(base.text_emb)
    grow_layers(grown, ["extra"], 0, SPARE)  # a graft without rows beside one with rows
    start, fingerprint = collect_new_rows(grown), compute_base_fingerprint(grown)
    freeze_base(grown)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        for broadcast in (False, True):
            wrapped = nn.parallel.DistributedDataParallel(grown, broadcast_buffers=broadcast)
            train(wrapped, AdamW(trained(wrapped), lr=1e-2, weight_decay=0.1), 5)
            assert compute_base_fingerprint(wrapped) == fingerprint
    finally:
        torch.distributed.destroy_process_group()
    assert_base_is_the_same_bits(grown, base)
    for name in ("text_emb.weight", "text_head.bias"):
        assert not torch.equal(collect_new_rows(grown)[name], start[name])


# ---- optimizer state of an unfrozen run -----------------------------------------------------------------------------


def unfrozen_state(**switches: bool) -> dict[str, object]:
    """AdamW's state after a run in which the whole text tables were trained."""
    model = ToySpeaker(PIECES + NEW + SPARE)
    optimizer = AdamW([*model.text_emb.parameters(), *model.text_head.parameters()], lr=1e-2, **switches)  # type: ignore[arg-type]
    train(model, optimizer, 20)
    return optimizer.state_dict()


@pytest.mark.parametrize("foreach", [False, True])
def test_moments_of_an_unfrozen_run_make_the_step_fail_and_move_nothing(
    foreach: bool, base: ToySpeaker, grown: ToySpeaker
) -> None:
    optimizer = AdamW(trained(grown), lr=1e-2, weight_decay=0.1, foreach=foreach)
    optimizer.load_state_dict(unfrozen_state(foreach=foreach))
    with pytest.raises(CheckpointError, match=r"exp_avg of parameter 0 in group 0 has shape \[27, 16\]"):
        require_matching_moments(optimizer)
    with pytest.raises(RuntimeError, match="size of tensor"):
        train(grown, optimizer, 1)
    assert_base_is_the_same_bits(grown, base)


def test_moments_of_an_unfrozen_run_reach_no_base_row_even_where_torch_does_not_look(
    base: ToySpeaker, grown: ToySpeaker
) -> None:
    start = collect_new_rows(grown)
    optimizer = AdamW(trained(grown), lr=1e-2, weight_decay=0.1, fused=True)
    optimizer.load_state_dict(unfrozen_state(fused=True))
    with pytest.raises(CheckpointError) as caught:
        require_matching_moments(optimizer)
    assert caught.value.code == "moments-mismatch"
    train(grown, optimizer, 50)
    assert_base_is_the_same_bits(grown, base)
    assert_every_new_row_moved(grown, start)


def test_the_state_of_a_whole_unfrozen_model_is_refused_and_our_own_fits(grown: ToySpeaker) -> None:
    unfrozen = ToySpeaker(PIECES + NEW + SPARE)
    whole = AdamW(unfrozen.parameters(), lr=1e-2)
    train(unfrozen, whole, 2)
    ours = AdamW(trained(grown), lr=1e-2)
    with pytest.raises(ValueError, match="doesn't match the size"):
        ours.load_state_dict(whole.state_dict())
    train(grown, ours, 2)
    resumed = AdamW(trained(grown), lr=1e-2)
    resumed.load_state_dict(ours.state_dict())
    require_matching_moments(resumed)


# ---- the way that does not keep the promise -------------------------------------------------------------------------


def masked_table() -> ToySpeaker:
    """The whole text embedding as one parameter whose base rows get zero gradient by a hook."""
    torch.manual_seed(0)
    model = ToySpeaker(PIECES + NEW + SPARE)
    model.requires_grad_(False)
    mask = torch.zeros(PIECES + NEW + SPARE, 1)
    mask[PIECES : PIECES + NEW] = 1
    weight = model.text_emb.weight.requires_grad_()
    weight.register_hook(lambda gradient: gradient * mask)  # type: ignore[no-untyped-call]
    return model


def test_a_gradient_hook_lets_weight_decay_shrink_every_base_row() -> None:
    model = masked_table()
    before = model.text_emb.weight.detach().clone()
    train(model, AdamW([model.text_emb.weight], lr=1e-2, weight_decay=0.1), 100)
    assert model.text_emb.weight.grad is not None
    assert not model.text_emb.weight.grad[:PIECES].any()
    norms = model.text_emb.weight.detach().norm(dim=1)[:PIECES] / before.norm(dim=1)[:PIECES]
    torch.testing.assert_close(norms, torch.full((PIECES,), (1 - 1e-2 * 0.1) ** 100), rtol=1e-4, atol=0)


def test_a_gradient_hook_lets_old_moments_move_base_rows_without_any_decay() -> None:
    unfrozen = ToySpeaker(PIECES + NEW + SPARE)
    first = AdamW([unfrozen.text_emb.weight], lr=1e-2, weight_decay=0.0)
    train(unfrozen, first, 20)
    model = masked_table()
    before = model.text_emb.weight.detach().clone()
    second = AdamW([model.text_emb.weight], lr=1e-2, weight_decay=0.0)
    second.load_state_dict(first.state_dict())
    train(model, second, 5)
    assert (model.text_emb.weight[:PIECES] != before[:PIECES]).any(dim=1).all()


# ---- old speech -----------------------------------------------------------------------------------------------------


def test_speech_logits_of_base_text_are_the_same_bits_before_and_after_growth(
    base: ToySpeaker, grown: ToySpeaker
) -> None:
    freeze_base(base)  # the same mode: torch picks kernels for slices by whether a weight asks for a gradient
    for length in (1, 2, 7, 33):
        text, speech = torch.randint(PIECES, (2, length)), torch.randint(CODES, (2, length))
        base_text, base_speech = base(text, speech)
        text_logits, speech_logits = grown(text, speech)
        assert torch.equal(speech_logits, base_speech)
        assert torch.equal(text_logits[..., :PIECES], base_text[..., :PIECES])


# ---- fingerprints and counts ----------------------------------------------------------------------------------------


def test_a_frozen_base_and_its_grafts_have_one_fingerprint(base: ToySpeaker, grown: ToySpeaker) -> None:
    assert freeze_base(base) == {}
    fingerprint = compute_base_fingerprint(base)
    assert compute_base_fingerprint(grown) == fingerprint
    train(grown, AdamW(trained(grown), lr=1e-2), 3)
    assert compute_base_fingerprint(grown) == fingerprint
    compiled = torch.compile(grown, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert compute_base_fingerprint(compiled) == fingerprint
    grown.requires_grad_(False)
    assert compute_base_fingerprint(grown) == fingerprint, "frozen new rows are still not the base's"
    assert compute_base_fingerprint(grown.bfloat16()) != fingerprint


@pytest.mark.parametrize(
    ("buffer", "name"),
    [("text_emb.base_weight", "text_emb.weight"), ("text_head.base_bias", "text_head.bias"), ("scale", "scale")]
    + [(name, name) for name in ("norm.bias", "attention.weight", "speech_head.weight")],
)
def test_one_flipped_bit_in_the_base_is_found_and_named(buffer: str, name: str, grown: ToySpeaker) -> None:
    digests, fingerprint = hash_base_tensors(grown), compute_base_fingerprint(grown)
    require_same_base(grown, digests)
    path, _, attribute = buffer.rpartition(".")
    getattr(grown.get_submodule(path), attribute).data.view(torch.int32).view(-1)[-1] ^= 1
    assert compute_base_fingerprint(grown) != fingerprint
    with pytest.raises(GraftError, match=f"1 of {len(digests)} base tensors changed: {name}") as caught:
        require_same_base(grown, digests, "runs/amharic")
    assert (caught.value.code, caught.value.finding.where) == ("base-moved", "runs/amharic")


def test_a_model_without_values_has_no_fingerprint() -> None:
    with torch.device("meta"):
        model = ToySpeaker()
    freeze_base(model)
    with pytest.raises(GraftError, match="base-not-loaded"):
        compute_base_fingerprint(model)


def test_the_report_counts_base_rows_as_fixed_and_only_new_rows_as_trained(grown: ToySpeaker) -> None:
    report = build_trainable_report(grown)
    assert report.parts["rows"] == (NEW * (2 * WIDTH + 1), 0)
    assert report.parts["base rows"] == (0, (PIECES + SPARE) * (2 * WIDTH + 1))
    assert report.trained == NEW * (2 * WIDTH + 1)
    assert report.trained + report.fixed == sum(tensor.numel() for tensor in grown.state_dict().values())
    assert report.fixed_base_bytes == 4 * report.fixed
    assert list(report.tables) == ["text_emb", "text_head"]
    assert str(report.tables["text_emb"]) == "20 base tokens + 6 new + 1 unused"


def test_the_report_of_a_model_that_trains_its_body_says_so(grown: ToySpeaker) -> None:
    grown.requires_grad_(True)
    parts = build_trainable_report(grown).parts
    assert parts["body"][1] == WIDTH, "the buffer alone"
    fixed = (PIECES + SPARE) * (2 * WIDTH + 1) + WIDTH
    assert build_trainable_report(grown).fixed_base_bytes == 4 * fixed, "neither the body nor new rows"
    for parameter in grown.parameters():
        parameter.requires_grad_(False)
    whole = build_trainable_report(grown)
    assert whole.trained == 0
    assert whole.fixed_base_bytes == 4 * (whole.fixed - NEW * (2 * WIDTH + 1)), "a frozen graft is not the base's"
    assert parts["base rows"][0] == 0, "base rows cannot be made trainable"
    freeze_base(grown)
    assert {trained > 0 for part, (trained, _) in build_trainable_report(grown).parts.items() if part != "rows"} == {
        False
    }


def test_a_grafts_rows_are_loaded_whole_or_not_at_all(grown: ToySpeaker) -> None:
    state = collect_new_rows(grown)
    assert sorted(state) == ["text_emb.weight", "text_head.bias", "text_head.weight"]
    wrong = {name: torch.zeros_like(rows) for name, rows in state.items()} | {"text_head.bias": torch.zeros(NEW + 1)}
    with pytest.raises(GraftError, match=r"text_head.bias \[7\]"):
        load_new_rows(grown, wrong)
    assert torch.equal(collect_new_rows(grown)["text_emb.weight"], state["text_emb.weight"])


def test_a_base_tensor_that_is_new_or_gone_is_named_too(grown: ToySpeaker) -> None:
    digests = hash_base_tensors(grown)
    require_same_base(grown, digests)
    name = next(iter(digests))
    for other in ({**digests, "gone": "0"}, {key: value for key, value in digests.items() if key != name}):
        with pytest.raises(
            GraftError, match=f"1 of {len(other)} base tensors .*: {'gone' if 'gone' in other else name}"
        ):
            require_same_base(grown, other)
