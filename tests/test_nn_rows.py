"""Promises of the grown embedding and head: same bits for the base, ids and state dicts in the upstream layout."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from voxgraft.core.errors import CheckpointError, GraftError
from voxgraft.nn.rows import (
    GrownEmbedding,
    GrownHead,
    GrownLayer,
    RowLayout,
    TokenIdError,
    grow_layers,
    padded_linear,
    to_plain_layer,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]
LOW_PRECISION = [torch.bfloat16, torch.float16]


def table(rows: int, width: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def an_embedding(num_new: int = 3, spare_rows: int = 1, dtype: torch.dtype = torch.float32) -> GrownEmbedding:
    layer = GrownEmbedding.from_base(table(12 + spare_rows).to(dtype), num_new, spare_rows)
    layer.load_new_rows({"weight": table(num_new, seed=1)})
    return layer


def a_head(num_new: int = 3, spare_rows: int = 1, bias: bool = True) -> GrownHead:
    base_bias = table(12 + spare_rows, seed=2)[:, 0] if bias else None
    layer = GrownHead.from_base(table(12 + spare_rows), num_new, spare_rows, bias=base_bias)
    layer.load_new_rows({"weight": table(num_new, seed=1)} | ({"bias": table(num_new, seed=3)[:, 0]} if bias else {}))
    return layer


# ---- the base's bits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("positions", [1, 2, 7, 33, 128])
def test_base_logits_are_bit_equal_to_the_base_alone(positions: int, bias: bool, device: str) -> None:
    torch.manual_seed(positions)
    base = nn.Linear(256, 1001, bias=bias, device=device)
    head = GrownHead.from_base(base.weight, num_new=77, spare_rows=1, bias=base.bias)
    hidden = torch.randn(positions, 256, device=device)
    expected = F.linear(hidden, base.weight, base.bias)
    assert torch.equal(head.base_logits(hidden), expected)
    logits = head(hidden)
    assert torch.equal(logits[:, :1000], expected[:, :1000])
    assert torch.equal(logits[:, 1077:], expected[:, 1000:])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("positions", [1, 2, 7, 33])
def test_base_logits_of_a_batch_and_of_a_slice_of_one_are_those_of_the_base(positions: int, bias: bool) -> None:
    base = nn.Linear(256, 1001, bias=bias)
    head = GrownHead.from_base(base.weight, num_new=77, spare_rows=1, bias=base.bias)
    part = torch.randn(3, positions + 5, 256)[:, 5:]
    assert torch.equal(head.base_logits(part.contiguous()), base(part.contiguous()))
    base.requires_grad_(False)
    assert torch.equal(head.base_logits(part), base(part))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW_PRECISION])
def test_base_rows_come_out_as_the_base_alone_gives_them(dtype: torch.dtype, device: str) -> None:
    layer = an_embedding(dtype=dtype).to(device)
    ids = torch.tensor([[0, 11, 12, 5], [14, 3, 13, 0]], device=device)
    rows = layer(ids)
    assert rows.dtype == dtype
    is_base = ids < 12
    assert torch.equal(rows[is_base], F.embedding(ids[is_base], table(13).to(dtype).to(device)))
    assert torch.equal(rows[~is_base], table(3, seed=1).to(dtype).to(device)[ids[~is_base] - 12])


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_new_rows_of_a_low_precision_base_are_float32_masters_with_float32_sums(dtype: torch.dtype) -> None:
    layer = an_embedding(dtype=dtype)
    assert layer.new_weight.dtype == torch.float32
    layer(torch.full((1000,), 13)).sum().backward()  # bf16 sums of ones stop at 256, fp16 sums at 2048
    assert layer.new_weight.grad is not None
    assert torch.equal(layer.new_weight.grad, torch.tensor([0.0, 1000.0, 0.0])[:, None].expand(3, 8))


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_a_low_precision_head_answers_in_the_dtype_of_the_base(dtype: torch.dtype) -> None:
    head = GrownHead.from_base(table(13).to(dtype), 3, 1, bias=table(13)[:, 0].to(dtype))
    logits = head(table(5, seed=4).to(dtype))
    assert logits.dtype == dtype
    assert head.new_weight.dtype == torch.float32
    logits.sum().backward()
    assert head.new_weight.grad is not None
    assert head.new_weight.grad.dtype == torch.float32


def test_autocast_gives_the_logits_that_the_base_gives_under_autocast() -> None:
    head, hidden = a_head(), table(5, seed=4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(hidden)
        expected = F.linear(hidden, head.base_weight, head.base_bias)
    assert logits.dtype == torch.bfloat16
    assert torch.equal(logits[:, :12], expected[:, :12])


def test_growing_copies_so_that_training_the_old_table_moves_nothing() -> None:
    old = nn.Embedding(13, 8)
    layer = GrownEmbedding.from_base(old.weight, 2, 1)
    before = layer.base_weight.clone()
    with torch.no_grad():
        old.weight.add_(1)
    assert torch.equal(layer.base_weight, before)


def test_new_rows_start_at_the_mean_of_the_pieces_without_the_spare() -> None:
    weight = table(13)
    weight[12] = 1e6
    layer = GrownEmbedding.from_base(weight, 2, 1)
    torch.testing.assert_close(layer.new_weight.detach(), weight[:12].mean(0).expand(2, 8))


# ---- ids ----------------------------------------------------------------------------------------------------------


def test_a_column_of_the_logits_is_a_token_id_and_the_spare_stays_last() -> None:
    head, hidden = a_head(), table(5, seed=4)
    state = head.state_dict()
    torch.testing.assert_close(head(hidden), F.linear(hidden, state["weight"], state["bias"]))
    assert torch.equal(head(hidden)[:, 12:15], F.linear(hidden, head.new_weight, head.new_bias))


@pytest.mark.parametrize(("num_new", "outside"), [(3, 15), (3, 16), (3, -1), (3, 10**12), (0, 12), (0, -1), (0, 13)])
def test_an_id_without_a_row_is_named_and_the_spare_is_out_of_reach(num_new: int, outside: int) -> None:
    layer = an_embedding(num_new)
    with pytest.raises(TokenIdError, match=rf"token id {outside} at position \[1, 0\].*0 to {11 + num_new}") as caught:
        layer(torch.tensor([[0, 11], [outside, 1]]))
    assert isinstance(caught.value, IndexError)
    assert caught.value.code == "token-id-outside"


# ---- state dicts --------------------------------------------------------------------------------------------------


def test_the_state_dict_has_upstreams_names_and_nothing_else() -> None:
    model = nn.ModuleDict({"text_emb": an_embedding(), "text_head": a_head(), "plain": a_head(bias=False)})
    assert list(model.state_dict()) == ["text_emb.weight", "text_head.weight", "text_head.bias", "plain.weight"]
    assert torch.equal(
        model["text_emb"].state_dict()["weight"], torch.cat([table(13)[:12], table(3, seed=1), table(13)[12:]])
    )


def test_a_file_in_the_upstream_layout_is_split_again(tmp_path: Path) -> None:
    head = a_head()
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    state = load_file(tmp_path / "head.safetensors")
    fresh = GrownHead(RowLayout(12, 3, 1), 8, bias=True)
    identities = [id(parameter) for parameter in fresh.parameters()]
    assert str(fresh.load_state_dict(state, strict=True)) == "<All keys matched successfully>"
    assert [id(parameter) for parameter in fresh.parameters()] == identities, "an optimizer would hold the old ones"
    taken_apart = GrownHead.from_grown(state["weight"], base_pieces=12, spare_rows=1, bias=state["bias"])
    for other in (fresh, taken_apart):
        assert torch.equal(other.base_weight, head.base_weight)
        assert torch.equal(other.copy_new_rows()["bias"], head.copy_new_rows()["bias"])
        assert torch.equal(other(table(5, seed=4)), head(table(5, seed=4)))


def test_strict_loading_names_missing_and_unexpected_tensors_as_upstream_does() -> None:
    head = a_head()
    model = nn.ModuleDict({"head": head})
    state = {"head.weight": model.state_dict()["head.weight"], "head.new_weight": table(3)}
    with pytest.raises(RuntimeError, match=r'Missing.*"head.bias"[\s\S]*Unexpected.*"head.new_weight"'):
        model.load_state_dict(state)
    assert model.load_state_dict(state, strict=False).missing_keys == ["head.bias"]
    assert torch.equal(head.copy_new_rows()["weight"], table(3, seed=1)), "own names are not a way in"


@pytest.mark.parametrize(
    ("found", "message"),
    [(13, "13 rows of width 8, as in the base without a graft"), (17, "17 rows of width 8"), (0, "0 rows of width 8")],
)
def test_wrong_row_counts_are_named_with_what_was_expected(found: int, message: str) -> None:
    model = nn.ModuleDict({"text_emb": an_embedding()})
    with pytest.raises(CheckpointError, match=message) as caught:
        model.load_state_dict({"text_emb.weight": table(found)})
    assert caught.value.finding.expected == "16 rows of width 8 (12 base tokens + 3 new + 1 unused)"
    with pytest.raises(CheckpointError, match="is a list"):
        model.load_state_dict({"text_emb.weight": [1.0]})


def test_the_grafts_rows_alone_keep_every_bit_of_their_masters() -> None:
    layer = an_embedding(dtype=torch.bfloat16)
    state = layer.copy_new_rows()
    assert torch.equal(state["weight"], table(3, seed=1))
    with torch.no_grad():
        layer.new_weight.zero_()
    assert torch.equal(state["weight"], table(3, seed=1)), "a snapshot does not follow the layer"
    layer.load_new_rows(state)
    assert torch.equal(layer.new_weight, state["weight"])
    for wrong in ({}, {"weight": table(4)}, {"weight": table(3), "bias": table(3)[:, 0]}):
        with pytest.raises(GraftError, match="weight with 3 rows of width 8"):
            layer.load_new_rows(wrong)


@given(st.integers(1, 9), st.integers(0, 6), st.integers(0, 2), st.integers(1, 5), st.sampled_from(range(3)))
@settings(max_examples=120)
def test_ids_and_state_dicts_agree_with_the_plain_table(
    pieces: int, num_new: int, spare: int, width: int, kind: int
) -> None:
    dtype = [torch.float32, *LOW_PRECISION][kind]
    whole = table(pieces + num_new + spare, width, seed=pieces).to(dtype)
    layer = GrownEmbedding.from_grown(whole, pieces, spare)
    ids = torch.arange(pieces + num_new)
    assert torch.equal(layer(ids), F.embedding(ids, whole))
    assert layer(ids[:0]).shape == (0, width)
    assert torch.equal(layer.state_dict()["weight"], whole)
    again = GrownEmbedding(layer.rows, width, dtype=dtype)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.state_dict()["weight"], whole)
    head = GrownHead.from_grown(whole, pieces, spare, bias=whole[:, 0])
    assert torch.equal(head.state_dict()["weight"], whole)
    assert torch.equal(head.state_dict()["bias"], whole[:, 0])
    for outside in (-1, pieces + num_new):
        with pytest.raises(TokenIdError):
            layer(torch.tensor([outside]))


# ---- living with torch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_new", [0, 3])
def test_copies_casts_and_pickles_behave_as_those_of_any_module(num_new: int) -> None:
    ids, hidden = torch.arange(12 + num_new), table(5, seed=4)
    layers: list[tuple[GrownLayer, Tensor]] = [(an_embedding(num_new), ids), (a_head(num_new), hidden)]
    for layer, given_ in layers:
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(twin(given_), layer(given_))
            assert twin.base_weight.data_ptr() != layer.base_weight.data_ptr()
            assert twin.rows == layer.rows
        cast = copy.deepcopy(layer).to(torch.bfloat16)
        assert {tensor.dtype for tensor in [*cast.parameters(), *cast.buffers()]} == {torch.bfloat16}
        assert cast(given_ if given_ is ids else given_.bfloat16()).dtype == torch.bfloat16


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_both_layers_compile_to_one_graph_with_the_same_results_and_gradients(backend: str) -> None:
    torch.compiler.reset()
    model = nn.Sequential(an_embedding(), a_head())
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=backend, fullgraph=True)
    ids = torch.tensor([[0, 11, 12, 14]])
    assert torch.equal(compiled(ids), model(ids))
    compiled(ids).square().sum().backward()
    model(ids).square().sum().backward()
    for ours, plain in zip(twin.parameters(), model.parameters(), strict=True):
        assert ours.grad is not None
        assert plain.grad is not None
        torch.testing.assert_close(ours.grad, plain.grad)
    with pytest.raises(IndexError):
        compiled(torch.tensor([[15, 0, 0, 0]]))


def test_a_layer_made_on_the_meta_device_takes_its_values_by_assignment() -> None:
    with torch.device("meta"):
        head = GrownHead(RowLayout(12, 3, 1), 8, bias=True)
    assert head.new_weight.is_meta
    assert head.base_weight.is_meta
    source = a_head()
    state = source.state_dict()
    head.load_state_dict(state, assign=True)
    assert torch.equal(head(table(5, seed=4)), source(table(5, seed=4)))
    assert head.new_weight.requires_grad
    state["weight"].zero_()
    assert torch.equal(head.new_weight, source.new_weight), "a view would keep the whole file's table alive"


def test_zero_new_rows_give_the_base_itself_and_nothing_to_train() -> None:
    embedding, head = an_embedding(0), a_head(0)
    ids, hidden = torch.arange(12), table(5, seed=4)
    assert torch.equal(embedding(ids), table(13)[:12])
    assert torch.equal(head(hidden), head.base_logits(hidden))
    assert torch.equal(embedding.state_dict()["weight"], table(13))
    assert embedding.copy_new_rows()["weight"].shape == (0, 8)
    assert not any(parameter.requires_grad for parameter in [*embedding.parameters(), *head.parameters()])
    for fused in (False, True):
        parameters = [*copy.deepcopy(embedding).parameters(), *copy.deepcopy(head).parameters()]
        optimizer = torch.optim.AdamW(parameters, weight_decay=0.1, fused=fused)
        for parameter in parameters:
            parameter.requires_grad_().grad = torch.zeros_like(parameter)
        optimizer.step()
        assert nn.utils.clip_grad_norm_(parameters, 1.0) == 0


@pytest.mark.long
def test_the_module_imports_nothing_but_torch_and_the_standard_library() -> None:
    script = (
        "import sys, torch, numpy, safetensors; before = set(sys.modules)\n"
        "import voxgraft.nn.rows, voxgraft.nn.rows\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots - sys.stdlib_module_names - {'voxgraft', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- growing a model ----------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A base whose layers have a second name, as IndexTTS-2's have inside its `inference_model`."""

    def __init__(self) -> None:
        super().__init__()
        self.emb: nn.Module = nn.Embedding(13, 8)
        self.body = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 13))
        self.alias = nn.Sequential(self.emb, self.body)
        self.normed = nn.Embedding(13, 8, max_norm=1.0)
        self.short = nn.Linear(8, 12)


def test_a_model_is_grown_under_every_name_that_a_layer_has() -> None:
    model = Wrapped().eval()
    names = list(model.state_dict())
    grown = grow_layers(model, ["emb", "body.1"], num_new=3, spare_rows=1)
    assert model.emb is grown["emb"]
    assert model.get_submodule("alias.0") is grown["emb"]
    assert model.get_submodule("body.1") is grown["body.1"]
    assert model.get_submodule("alias.1.1") is grown["body.1"]
    assert not model.emb.training
    assert list(model.state_dict()) == names
    assert model.state_dict()["alias.1.1.bias"].shape == (16,)
    by_alias = Wrapped()
    grown = grow_layers(by_alias, ["alias.0", "alias.1.1"], num_new=3, spare_rows=1)
    assert by_alias.emb is grown["alias.0"]
    assert by_alias.get_submodule("body.1") is grown["alias.1.1"]


@pytest.mark.parametrize(
    ("point", "found"),
    [
        ("", "`` is not in the model"),
        ("nowhere", "`nowhere` is not in the model"),
        ("body.0", "`body.0` is a LayerNorm"),
        ("normed", "max_norm 1.0"),
        ("short", "emb has 13 rows, short has 12 rows"),
        ("tied", "the rows of `tied` are tied to those of `emb`"),
    ],
)
def test_what_cannot_be_grown_is_refused_before_anything_is_replaced(point: str, found: str) -> None:
    model = Wrapped()
    plain = model.emb
    if point == "tied":
        model.tied = nn.Linear(8, 13)
        model.tied.weight = plain.get_parameter("weight")
        points = ["tied"]
    else:
        points = ["emb", point]
    with pytest.raises(GraftError, match=found) as caught:
        grow_layers(model, points, 3, 1)
    assert caught.value.code == "graft-point"
    assert model.emb is plain


@pytest.mark.parametrize(("rows", "num_new", "spare"), [(1, 2, 1), (13, -1, 1), (13, 2, -1), (13, 2, 14)])
def test_a_layout_that_no_table_has_is_refused(rows: int, num_new: int, spare: int) -> None:
    with pytest.raises(GraftError, match="rows-layout"):
        GrownEmbedding.from_base(table(rows), num_new, spare)


def test_tables_of_the_wrong_shape_or_kind_are_refused() -> None:
    with pytest.raises(GraftError, match=r"shape \[13\]"):
        GrownEmbedding.from_base(table(13)[:, 0], 1)
    with pytest.raises(GraftError, match=r"bias has shape \[12\]"):
        GrownHead.from_base(table(13), 1, bias=table(12)[:, 0])
    with pytest.raises(GraftError, match=r"torch\.int8"):
        GrownEmbedding.from_base(torch.zeros(13, 8, dtype=torch.int8), 1)
    with pytest.raises(GraftError, match="13 base tokens"):
        GrownEmbedding.from_grown(table(13), base_pieces=13, spare_rows=1)


@pytest.mark.parametrize("num_new", [0, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_as_plain_layers_both_have_the_same_rows_in_the_order_of_a_file(num_new: int, bias: bool) -> None:
    embedding, head = an_embedding(num_new), a_head(num_new, bias=bias).eval()
    plain, linear = to_plain_layer(embedding), to_plain_layer(head)
    assert (type(plain), type(linear)) == (nn.Embedding, nn.Linear)
    assert (plain.training, linear.training) == (True, False)
    assert {name: list(value.shape) for name, value in linear.state_dict().items()} == {
        "weight": [13 + num_new, 8],
        **({"bias": [13 + num_new]} if bias else {}),
    }
    for grown, layer in ((embedding, plain), (head, linear)):
        assert layer.state_dict().keys() == grown.state_dict().keys()
        assert all(torch.equal(value, grown.state_dict()[name]) for name, value in layer.state_dict().items())
    ids, hidden = torch.arange(12 + num_new), table(5, seed=4)
    assert torch.equal(plain(ids), embedding(ids))
    torch.testing.assert_close(linear(hidden), head(hidden))


@pytest.mark.parametrize("make", [an_embedding, a_head])
def test_a_state_dict_is_detached_unless_the_variables_are_asked_for(make: Callable[[], GrownLayer]) -> None:
    layer = make()
    assert not any(tensor.requires_grad for tensor in layer.state_dict().values())
    kept = layer.state_dict(keep_vars=True)
    assert all(tensor.requires_grad for tensor in kept.values())
    kept["weight"].sum().backward()
    assert layer.new_weight.grad is not None


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The widths of the matrix products that were computed, and what was cut out of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.widths: list[int] = []
        self.cuts: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm"):
            self.widths.append(result.shape[-1])
        elif name == "slice":
            self.cuts.append(tuple(args[1:]))
        return result


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("positions", "rows", "dtype", "device", "autocast", "width"),
    [
        (65, 13, torch.bfloat16, "cuda", False, 64),
        (65, 65, torch.float16, "cuda", False, 128),
        (65, 13, torch.float32, "cuda", True, 64),
        (64, 13, torch.bfloat16, "cuda", False, 13),
        (65, 64, torch.bfloat16, "cuda", False, 64),
        (65, 13, torch.float32, "cuda", False, 13),
        (65, 13, torch.bfloat16, "cpu", False, 13),
    ],
    ids=["bf16", "fp16", "autocast", "few positions", "a full width", "float32", "cpu"],
)
def test_a_product_is_padded_to_64_where_that_is_faster_and_only_there(
    positions: int, rows: int, dtype: torch.dtype, device: str, autocast: bool, width: int, bias: bool
) -> None:
    """Tensors without values stand for those of a GPU."""
    torch.set_autocast_enabled(device, autocast)  # the context manager would look for a GPU
    try:
        with FakeTensorMode(), Products() as seen:
            x, weight, offsets = (
                torch.empty(*shape, device=device, dtype=dtype) for shape in ((positions, 8), (rows, 8), (rows,))
            )
            logits = padded_linear(x, weight, offsets if bias else None)
    finally:
        torch.set_autocast_enabled(device, False)
    assert seen.widths == [width]
    assert logits.shape == (positions, rows)
    assert seen.cuts == ([(1, 0, rows)] if width != rows else [])
