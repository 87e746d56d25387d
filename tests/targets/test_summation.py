"""The questions put to the kernels: other orders of a sum are found, where ordinary numbers hide them."""

import pytest
import torch
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from draftproof.targets import invariant, summation
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.fused import fuse_projections
from draftproof.targets.hf import HFTarget
from draftproof.targets.products import pack_linears
from draftproof.targets.shapes import FixedShapes, StepShapes
from tests.targets.models import VOCAB_SIZE, random_ids, tiny_model


def packs(dtype: torch.dtype) -> bool:
    try:
        PackedLinear(torch.zeros(2, 2, dtype=dtype), None)
    except RuntimeError:
        return False
    return True


PACKED_DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(
        torch.bfloat16,
        id="bf16",
        marks=pytest.mark.skipif(not packs(torch.bfloat16), reason="PyTorch packs no bfloat16 on this processor"),
    ),
]


def in_halves(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same product, as kernels with another block of input features sum it."""
    half = weight.shape[1] // 2
    sums = [
        linear(row[:half].float(), weight[:, :half].float()) + linear(row[half:].float(), weight[:, half:].float())
        for row in features.flatten(0, -2)
    ]
    return torch.stack(sums).to(features.dtype)


def one_sum(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A fixed order for any number of rows, so that the machine's own kernels have no say in these tests."""
    return torch.stack([linear(row.float(), weight.float()) for row in features.flatten(0, -2)]).to(features.dtype)


def own_kernel_up_to(most_rows: int):
    def forward(self: torch.nn.Linear, features: torch.Tensor) -> torch.Tensor:
        rows = features.flatten(0, -2)
        product = in_halves if len(rows) <= most_rows else one_sum
        out = product(rows, self.weight).view(*features.shape[:-1], -1)
        return out if self.bias is None else out + self.bias

    return forward


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "most_rows, window", [(0, (1, None)), (1, (2, None)), (3, (4, None)), (4, (1, 4)), (6, (1, 6)), (7, (1, 6))]
)
def test_the_numbers_of_rows_that_agree_are_found(monkeypatch, dtype: torch.dtype, most_rows: int, window) -> None:
    monkeypatch.setattr(torch.nn.Linear, "forward", own_kernel_up_to(most_rows))
    monkeypatch.setattr(summation, "WIDTHS", (1, 2, 3, 4, 5, 6, 8, 12))
    monkeypatch.setattr(summation, "USUAL", 4)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 7, bias=False)).to(dtype)
    assert summation.row_window(model) == window


def test_ordinary_numbers_hide_what_cancelling_ones_show() -> None:
    """In bfloat16 another order changes few results, and as good as all of those that cancel."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(96, 256, generator=generator).bfloat16()
    features = torch.randn(40, 256, generator=generator).bfloat16()
    ordinary = (one_sum(features, weight) != in_halves(features, weight)).float().mean()
    weight = summation._cancelling(96, 256, torch.bfloat16, torch.device("cpu"), opposite=True)
    features = summation._cancelling(40, 256, torch.bfloat16, torch.device("cpu"), opposite=False)
    cancelling = (one_sum(features, weight) != in_halves(features, weight)).float().mean()
    assert ordinary < 0.01 and cancelling > 0.5


def test_every_kind_and_size_of_layer_is_asked() -> None:
    model = tiny_model("llama")
    sizes = {(m.out_features, m.in_features) for m in model.modules() if type(m) is torch.nn.Linear}
    assert {kind.key.shape for kind in summation._kinds(model)} == sizes
    assert fuse_projections(model)
    kinds = {(type(kind.layer), kind.key.shape) for kind in summation._kinds(model)}
    layer = model.model.layers[0]
    joined = sum(part.out_features for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj))
    assert (PackedLinear, (joined, layer.self_attn.q_proj.in_features)) in kinds


@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_packed_layers_are_asked_in_their_own_dtype(dtype: torch.dtype) -> None:
    """Without a bias they have no parameter that tells."""
    model = tiny_model("llama", dtype)
    assert fuse_projections(model) and pack_linears(model)
    kinds = list(summation._kinds(model))
    assert {kind.key.kind for kind in kinds} == {PackedLinear}
    assert {kind.key.dtype for kind in kinds} == {kind.layer.packed.dtype for kind in kinds} == {dtype}


def packed_kernel_up_to(most_rows: int):
    """A packed layer's product, in another order from so many rows on."""

    def product(self: PackedLinear, features: torch.Tensor) -> torch.Tensor:
        rows = features.flatten(0, -2)
        out = (one_sum if len(rows) <= most_rows else in_halves)(rows, self.packed.to_dense().to(features.dtype))
        return out.view(*features.shape[:-1], -1)

    return product


@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_packed_layers_compute_as_many_rows_at_a_time_as_sum_in_one_order(monkeypatch, dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False), torch.nn.Linear(48, 7, bias=False)).to(dtype)
    assert pack_linears(model) == 2
    monkeypatch.setattr(summation, "WIDTHS", (1, 2, 3, 4, 5, 6, 8, 12))
    monkeypatch.setattr(summation, "USUAL", 4)
    monkeypatch.setattr(PackedLinear, "_product", packed_kernel_up_to(5))
    assert summation.row_window(model) == (1, 5)
    for _ in range(2):  # asked again, what was found before has no say
        summation.limit_rows(model)
        assert [layer.most_rows for layer in model] == [5, 5]
        assert summation.row_window(model) == (1, None)
    features = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    together = model(features)
    assert together.shape == (2, 9, 7)
    for index, row in enumerate(features.flatten(0, 1)):
        assert torch.equal(together.flatten(0, 1)[index], model(row[None])[0])


def test_packed_layers_compute_no_more_rows_at_a_time_than_were_asked(monkeypatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 7))
    assert pack_linears(model) == 2
    monkeypatch.setattr(PackedLinear, "_product", packed_kernel_up_to(1 << 20))
    monkeypatch.setattr(summation, "LARGE", 1000)
    summation.limit_rows(model)
    assert [layer.most_rows for layer in model] == [summation.FEW_WIDTHS[-1], summation.WIDTHS[-1]]


def test_conv1d_is_asked() -> None:
    conv = Conv1D(24, 10)
    conv.weight.requires_grad_(False)
    (kind,) = summation._kinds(torch.nn.Sequential(conv))
    assert type(kind.layer) is Conv1D and kind.key.shape == (24, 10)
    assert not torch.equal(kind.layer.weight, conv.weight)
    assert summation.row_window(torch.nn.Sequential(conv))[0] <= summation.USUAL


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_narrow_forwards_are_padded_where_they_need_it(monkeypatch, dtype: torch.dtype) -> None:
    """A model whose layers have a kernel of their own for up to two rows: the same bits, one by one or together."""
    monkeypatch.setattr(torch.nn.Linear, "forward", own_kernel_up_to(2))
    # Four can be faster than three, which is for the clock to say.
    monkeypatch.setattr(invariant, "_cheapest", lambda target, least, most: least)
    target = HFTarget(tiny_model("llama", dtype), num_slots=2, invariant=True)
    assert type(target.shapes) is StepShapes and target.shapes.min_tokens == 3
    token_ids = random_ids(12)
    rows = []
    for cuts in ([12], [1] * 12, [2, 3, 7], [5, 1, 6]):
        target.release(0)
        done, found = 0, []
        for size in cuts:
            found += target.score([ScoreRequest(0, tuple(token_ids[done : done + size]))])
            done += size
        rows.append(torch.cat(found))
        assert rows[-1].shape == (12, VOCAB_SIZE) and torch.equal(rows[-1], rows[0])


@pytest.mark.parametrize("most_rows", [24, 40])
def test_layers_that_agree_among_few_rows_leave_forwards_of_one_size(monkeypatch, most_rows: int) -> None:
    """From 25 rows on, which is much padding; or for up to 40 where 48 are asked for."""
    monkeypatch.setattr(torch.nn.Linear, "forward", own_kernel_up_to(most_rows))
    assert isinstance(HFTarget(tiny_model("llama"), invariant=True, width=48).shapes, FixedShapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_wide_forwards_are_cut_where_they_need_it(monkeypatch, dtype: torch.dtype) -> None:
    """A model whose layers have another kernel from 97 rows on: forwards of 96 tokens at most, and the same bits
    whatever prompts are cut into and share a forward."""
    monkeypatch.setattr(torch.nn.Linear, "forward", own_kernel_up_to(96))
    target = HFTarget(tiny_model("llama", dtype), num_slots=2, invariant=True, width=32)
    assert type(target.shapes) is StepShapes and target.shapes.most_tokens == 96 and target.room(0) == 96
    token_ids = random_ids(130)
    sizes: list[int] = []
    run = target._runner.run
    monkeypatch.setattr(
        target._runner,
        "run",
        lambda cache, batch, shapes: (sizes.append(sum(len(r.token_ids) for r in batch)), run(cache, batch, shapes))[1],
    )
    rows = []
    for cuts in ([96, 34], [1] * 130, [60, 70], [30, 96, 4]):
        target.release(0)
        target.release(1)
        done, found = 0, []
        for size in cuts:
            asked = [ScoreRequest(slot, tuple(token_ids[done : done + size])) for slot in range(2)]
            found += target.score(asked)[:1]
            done += size
        rows.append(torch.cat(found))
        assert torch.equal(rows[-1], rows[0])
    assert max(sizes) == 96
