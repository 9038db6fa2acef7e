"""What the front ends share: batches by length, and float32 that is float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from voxgraft.audio.features import batch_by_length, exact_float32, pad_rows


@given(st.lists(st.integers(0, 500), max_size=30), st.integers(1, 2_000))
def test_batches_hold_every_clip_once_and_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(batch_by_length(lengths, budget))
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        own = [lengths[place] for place in batch]
        assert len(batch) == 1 or max(own) * len(batch) <= budget
        assert min(own) >= 0.8 * max(own)


def test_a_padded_batch_says_where_its_clips_are() -> None:
    batch, mask = pad_rows([torch.ones(2, 3), torch.ones(4, 3)])
    assert mask is not None
    assert mask.tolist() == [[True, True, False, False], [True] * 4]
    assert torch.equal(batch, mask[:, :, None].expand(2, 4, 3).float())
    assert pad_rows([torch.ones(2, 3), torch.ones(2, 3)])[1] is None


@pytest.fixture
def rounded_by_training() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("rounded_by_training")
def test_float32_is_exact_inside_and_as_before_outside_also_after_an_error() -> None:
    def precisions() -> list[str]:
        cudnn = torch.backends.cudnn
        settings = (torch.backends.cuda.matmul, *(getattr(cudnn, kind) for kind in ("conv", "rnn")))
        return [setting.fp32_precision for setting in settings]

    before = precisions()
    assert "tf32" in before
    with exact_float32():
        assert precisions() == ["ieee"] * 3
    with pytest.raises(ZeroDivisionError), exact_float32():
        divmod(1, 0)
    assert precisions() == before
    assert torch.get_float32_matmul_precision() == "high"
