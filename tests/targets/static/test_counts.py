"""Rows that are padding: no kernel computes them, and the rows before them have the bits that they have without."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from draftproof.targets.norms import Norm
from draftproof.targets.static import products, tables
from draftproof.targets.static.following import ChainTables
from draftproof.targets.static.operations import Heads, KernelOperations, TorchOperations
from draftproof.targets.static.products import Tiling
from draftproof.targets.static.tables import Bucket, Kind, Tables
from tests.targets.models import random_ids, tiny_model

pytest.importorskip("triton")

NOT_A_NUMBER = float("nan")
UNTOUCHED = torch.tensor(0.3).item()
"""No sum of sixteenths."""


def drawn(*size: int, seed: int = 31) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def drawn_exactly(*size: int, seed: int = 31) -> torch.Tensor:
    """Quarters, whose sums of products are exact in any order: the interpreter's products are a library's, which may
    add up other numbers of rows in other orders."""
    return torch.randint(-8, 9, size, generator=torch.Generator().manual_seed(seed)) / 4


def counted(count: int) -> torch.Tensor:
    return torch.tensor([count], dtype=torch.int32)


@pytest.mark.parametrize("count", [1, 16, 17, 32, 33, 40])
@pytest.mark.parametrize(("is_gated", "splits"), [(True, 1), (False, 2)])
def test_products_of_the_first_rows(is_gated, splits, count):
    """Of 40, in tiles of 32: of one smaller tile, of a whole one, of both."""
    states, weight = drawn_exactly(40, 64), drawn_exactly(64, 64, seed=32)
    tiling = Tiling(32, 16, 16, splits=splits, stages=2)
    size = 32 if is_gated else 64
    weights = weight.view(2, size, 64) if is_gated else weight
    results = []
    for wanted in (None, counted(count)):
        out = torch.full((splits, 40, size), UNTOUCHED)
        products._launch(states, weights, out, size, tiling, wanted, is_gated=is_gated)
        results.append(out)
        states[count:] = NOT_A_NUMBER
    whole, found = results
    assert torch.equal(found[:, :count], whole[:, :count])
    assert bool((found[:, count:] == UNTOUCHED).all()) and not bool((whole == UNTOUCHED).any())


def test_a_smaller_tile_is_taken_where_it_holds_all(monkeypatch):
    """Its rows alone are read and multiplied."""
    states, weight = drawn(32, 64), drawn(64, 64, seed=32)
    tiling = Tiling(32, 16, 16, splits=2, stages=2)
    from draftproof.targets.static.device import product

    heights = []
    tile = product._tile
    monkeypatch.setattr(product, "_tile", lambda *given: heights.append(int(given[10])) or tile(*given))
    for count, height in ((16, products.FEW), (17, 32)):
        heights.clear()
        products.parts(states, weight, tiling, counted(count))
        assert set(heights) == {height}


@pytest.mark.parametrize("count", [1, 4])
def test_norms_and_placing_of_the_first_rows(count):
    norm, heads = Norm(drawn(48), 1e-6), Heads(4, 2, 8, None, None)
    added, joined, cos, sin = drawn(6, 48), drawn(6, 64, seed=33), drawn(6, 8, seed=34), drawn(6, 8, seed=35)
    columns = torch.arange(6, dtype=torch.int32)
    results = []
    for operations, wanted in ((TorchOperations(), None), (KernelOperations(), counted(count))):
        residual, keys, values = drawn(6, 48, seed=36), torch.full((2, 6, 8), 7.0), torch.full((2, 6, 8), 7.0)
        before = residual.clone()
        normed = operations.add_norm(residual, added, norm, wanted)
        query = operations.place(joined, heads, cos, sin, columns, keys, values, wanted)
        results.append((normed[:count], residual[:count], query[:count], keys[:, :count], values[:, :count]))
    assert torch.equal(residual[count:], before[count:])
    assert bool((keys[:, count:] == 7.0).all()) and bool((values[:, count:] == 7.0).all())
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_what_the_device_writes_counts_copies():
    """Their logits go through the kernels that choose tokens, though nothing comes of them."""
    found = Tables(Bucket(16, 4, 4, 512, Kind.CHAIN, 0, True), torch.device("cpu"))
    fill = ChainTables(found, 3, 4, 4)
    starts, is_real = torch.zeros(3, dtype=torch.int32), torch.tensor([True, False, False])
    fill.fill(torch.zeros(3, 4).int(), starts, starts, is_real)
    assert found.count.tolist() == [12]


def compare(spoil: Callable[[], None] = lambda: None) -> None:
    """A step of five tokens of 24, over the kernels and over PyTorch's operations."""
    ids, results = random_ids(40), []
    target = HFTarget(tiny_model("qwen3"), num_slots=2, static=True, invariant=True, width=24)
    for slot in range(2):
        target.prefill(slot, ids[slot : slot + 5])
    static: Any = target._runner.static
    requests = [ScoreRequest(0, tuple(ids[7:10])), ScoreRequest(1, tuple(ids[20:22]))]
    for operations in (TorchOperations(), KernelOperations()):
        static._operations = static._lean._operations = operations
        results.append(torch.cat([rows.clone() for rows in target.score(requests)]))
        for slot in range(2):
            target.rewind(slot, 5)
        spoil()
    assert next(iter(static._steps)).num_tokens == 24
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-4)


def counts_with(change: Callable[[int], int]) -> Any:
    whole = tables.fill

    def fill(out: Any, plan: Any, bucket: Any) -> None:
        whole(out, plan, bucket)
        np.split(out, np.cumsum(bucket.sizes)[:-1])[-1][0] = change(len(plan.ids))

    return fill


def test_a_step_with_padding():
    compare()


def test_mutants_of_the_count_are_caught(monkeypatch):
    short, first = counts_with(lambda count: count - 1), counts_with(lambda count: 1)
    for spoiled in (short, first):
        with pytest.raises(AssertionError), monkeypatch.context() as patch:
            compare(lambda patch=patch, spoiled=spoiled: patch.setattr(tables, "fill", spoiled))
