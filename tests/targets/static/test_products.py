"""Products with what follows them in one kernel, on the interpreter, against PyTorch's."""

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from draftproof.targets.norms import Norm
from draftproof.targets.static import products
from draftproof.targets.static.operations import KernelOperations, TorchOperations
from draftproof.targets.static.products import Tiling

pytest.importorskip("triton")

TILING = Tiling(rows=16, columns=16, depth=16, stages=2, warps=4)


def drawn(*sizes, seed=21):
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(*size, generator=source) for size in sizes]


@pytest.mark.parametrize("num_tokens", [16, 37])
def test_the_gate_of_a_product(num_tokens):
    states, weight = drawn((num_tokens, 48), (2 * 32, 48))
    gate, up = (states @ weight.T).chunk(2, dim=-1)
    found = products.gated(states, weight, TILING)
    torch.testing.assert_close(found, silu(gate) * up, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("splits", [2, 3])
def test_the_parts_of_a_product(splits):
    states, weight = drawn((37, 96), (32, 96))
    tiling = Tiling(16, 16, 16, splits=splits, stages=2, warps=4)
    found = products.parts(states, weight, tiling)
    share = 96 // splits
    for part, begin in zip(found, range(0, 96, share), strict=True):
        expected = states[:, begin : begin + share] @ weight[:, begin : begin + share].T
        torch.testing.assert_close(part, expected, rtol=0, atol=1e-5)


def test_a_row_has_the_same_bits_whatever_the_others_are():
    states, weight, others = drawn((40, 96), (64, 96), (40, 96))
    others[7] = states[7]
    for product in (products.gated, products.parts):
        tiling = Tiling(16, 16, 16, splits=1 if product is products.gated else 2, stages=2, warps=4)
        found, again = (product(rows, weight, tiling) for rows in (states, others))
        assert torch.equal(found[..., 7, :], again[..., 7, :]) and not torch.equal(found, again)


def test_operations_take_them_where_they_fit(monkeypatch):
    residual, states = drawn((5, 48), (5, 32))
    gate_up, down = nn.Linear(32, 64, bias=False), nn.Linear(32, 48, bias=False)
    with torch.no_grad():
        gate_up.weight.copy_(drawn((64, 32))[0])
        down.weight.copy_(drawn((48, 32), seed=22)[0])
    norm = Norm(drawn((48,))[0], 1e-6)
    split = Tiling(16, 16, 16, splits=2, stages=2, warps=4)
    ways = []
    with torch.no_grad():
        for operations, tilings in ((TorchOperations(), None), (KernelOperations(), None), (KernelOperations(), split)):
            for name, tiling in (("split_tiling", split), ("gated_tiling", TILING)):
                found = lambda product, states, tiling=tiling: (product.weight, tiling)  # noqa: E731
                monkeypatch.setattr(products, name, found if tilings else lambda product, states: None)
            own = residual.clone()
            ways.append((operations.add_product_norm(own, down, states, norm), own, operations.gated(gate_up, states)))
    for other in ways[1:]:
        for expected, found in zip(ways[0], other, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_halves_are_summed_in_float32_by_steps_that_count_nothing(monkeypatch):
    """Steps that count have rows of other steps to agree with, whose product has one kernel."""
    residual, states = drawn((5, 48), (5, 32))
    down, norm = nn.Linear(32, 48, bias=False), Norm(drawn((48,))[0], 1e-6)
    monkeypatch.setattr(products, "split_tiling", lambda product, states: None)
    monkeypatch.setattr(products, "halved", lambda product, states: product.weight)
    taken = []

    def halves(states, weight):
        taken.append(len(states))
        return torch.stack([states[:, part] @ weight[:, part].T for part in (slice(0, 16), slice(16, 32))])

    monkeypatch.setattr(products, "halves", halves)
    with torch.no_grad():
        expected = TorchOperations().add_product_norm(residual.clone(), down, states, norm)
        for count in (None, torch.tensor([5], dtype=torch.int32)):
            found = KernelOperations().add_product_norm(residual.clone(), down, states, norm, count)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)
            assert taken == [5]
