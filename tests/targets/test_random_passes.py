"""Random passes over one text have plain decoding's bits, row by row: chains, trees, rewinds, prefixes, chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.trees.fuzz import Passes, Text, written
from draftproof.targets import branches, driven, key_order, packed
from draftproof.targets.cache import SlotCache
from draftproof.targets.hf import HFTarget
from tests.targets.models import attention_weights, random_ids, tiny_model

LENGTHS = (3, 45, 90, 126, 250)
NUM_ROWS = 24


def passes_over(target: HFTarget, num_passes: int, lengths: tuple[int, ...] = LENGTHS) -> Passes:
    generator = torch.Generator().manual_seed(5)
    passes = Passes(target, 6, (True, False))
    for length in lengths:
        target.keep_branches_in_place(False)
        passes.over(written(target, random_ids(length, seed=length), NUM_ROWS, generator), num_passes)
    return passes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_row_is_plain_decodings(name: str, dtype: torch.dtype) -> None:
    target = HFTarget(tiny_model(name, dtype), num_slots=2, invariant=True)
    passes = passes_over(target, 40)
    assert not passes.differences
    assert min(passes.num_rows.values()) > 100 and min(passes.kinds[kind] for kind in ("tree", "chain", "copy")) > 0


def attention_in_two_sums(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, attn_mask: Any, scale: Any = None, **_: Any
) -> torch.Tensor:
    """Attention that adds up every other 16 keys in a sum of its own, on any machine."""
    weights = attention_weights(query, keys, attn_mask, scale)
    sums = torch.zeros(2, *query.shape[:3], values.shape[3] + 1)
    for column in range(keys.shape[2]):
        weight = weights[..., column : column + 1]
        sums[column // 16 % 2] += torch.cat([weight * values[:, :, column : column + 1].float(), weight], dim=-1)
    total = sums[0] + sums[1]
    return (total[..., :-1] / total[..., -1:]).to(query.dtype)


def strides_of_one_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """What branches in place were first, and the kernel's answer not asked for."""
    for module in (branches, key_order):
        monkeypatch.setattr(module, "STRIDE", 16)
    monkeypatch.setattr(driven, "spreads", lambda *_: True)


def keys_of_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = packed.branch_mask
    monkeypatch.setattr(packed, "branch_mask", lambda *args: real(*args).roll(1, dims=2))


def entries_left_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotCache, "gather", lambda *_: None)


@pytest.mark.parametrize("wrong", [strides_of_one_vector, keys_of_other_nodes, entries_left_where_they_were])
def test_what_is_wrong_shows(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """By an attention that adds up its weights in two sums, in float32, where a last bit isn't rounded away."""
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_in_two_sums)
    target = HFTarget(tiny_model("llama"), num_slots=2, invariant=True)
    assert not passes_over(target, 40, (45,)).differences
    wrong(monkeypatch)
    del target._rooms
    found = passes_over(target, 40, (45,)).differences
    assert found and (found[0]["in_place"] or wrong is entries_left_where_they_were)


def test_a_row_of_another_text_shows() -> None:
    target = HFTarget(tiny_model("llama"), num_slots=2, invariant=True)
    text = written(target, random_ids(20), NUM_ROWS, torch.Generator().manual_seed(5))
    passes = Passes(target, 6, (False,))
    passes.over(Text(text.token_ids, text.start, text.rows.nextafter(torch.tensor(9.0))), 2)
    assert len(passes.differences) == 2
