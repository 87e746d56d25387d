"""The Triton kernels of static forwards, on the interpreter: attention against its rule, the others against PyTorch."""

from typing import Any

import pytest
import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.norms import Norm
from draftproof.targets.static import attention, reference
from draftproof.targets.static.attention import Attention, Shape, Splits
from draftproof.targets.static.following import ChainTables
from draftproof.targets.static.operations import Heads, KernelOperations, TorchOperations
from draftproof.targets.static.tables import Bucket, Kind, Tables, num_links, plan_of
from tests.targets.static.forwards import CASES, LENGTHS

pytest.importorskip("triton")

OFFSETS = (512, 256, 1024)
DEVICE = torch.device("cpu")


def made(requests: list[Any], width: int, paths: bool) -> Tables:
    starts, offsets = [LENGTHS[r.slot] for r in requests], [OFFSETS[r.slot] for r in requests]
    plan = plan_of(requests, starts, offsets, width, paths=paths)
    links = num_links(plan)
    bucket = Bucket(96, width, len(plan.pieces) + 1, 512, plan.kind, links, True)
    tables = Tables(bucket, DEVICE)
    tables.fill(plan)
    return tables


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize(("groups", "dim", "value_dim", "window"), [(2, 8, 8, None), (3, 24, 16, 8)])
@pytest.mark.parametrize("invariant", [False, True])
def test_attention_is_the_rule(case, groups, dim, value_dim, invariant, window):
    source = torch.Generator().manual_seed(11)
    shape = Shape(2 * groups, 2, dim, value_dim, window)
    width = attention.most_tokens(groups)
    tables = made(CASES[case], width, invariant)
    expected_kind = Kind.CHAIN if case != "trees" else Kind.PATH if invariant else Kind.TREE
    assert tables.bucket.kind == expected_kind
    attend = Attention(shape, tables.bucket, DEVICE, invariant=invariant)
    query = torch.randn(96, 2 * groups, dim, generator=source)
    keys, values = (torch.randn(2, 2048, size, generator=source) for size in (dim, value_dim))
    expected = reference.attend(query, keys, values, tables, 0.3, window)
    # What nobody may read.
    keys[:, :256] = values[:, :256] = float("nan")
    found = attend.launch(query, keys, values, tables, 0.3)
    used = sum(len(request.token_ids) for request in CASES[case])
    torch.testing.assert_close(found[:used], expected[:used], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("groups", "window"), [(2, None), (2, 8), (4, None)])
def test_a_block_sees_all_of_itself(groups, window):
    """Of 20 tokens: with four groups each row is cut into pieces."""
    source, num_requests, width = torch.Generator().manual_seed(15), 3, 20
    shape, most = Shape(2 * groups, 2, 8, 8, window), min(attention.most_tokens(groups), width)
    bucket = Bucket(num_requests * width, attention.power_of_two(most), 16, 512, Kind.BLOCK, 0, False)
    tables = Tables(bucket, DEVICE)
    starts, offsets = torch.tensor(LENGTHS, dtype=torch.int32), torch.tensor(OFFSETS, dtype=torch.int32)
    ids, is_real = torch.zeros(num_requests, width).int(), torch.ones(num_requests).bool()
    ChainTables(tables, num_requests, width, most).fill(ids, starts, offsets, is_real)
    query = torch.randn(num_requests * width, 2 * groups, 8, generator=source)
    keys, values = (torch.randn(2, 2048, 8, generator=source) for _ in range(2))
    expected = []
    for row, (length, offset) in enumerate(zip(LENGTHS, OFFSETS, strict=True)):
        own = query[row * width : (row + 1) * width].transpose(0, 1)
        seen = [part[:, offset : offset + length + width].repeat_interleave(groups, 0) for part in (keys, values)]
        distance = torch.arange(length, length + width)[:, None] - torch.arange(length + width)
        mask = distance.abs() < (window or 10**6)
        out = torch.nn.functional.scaled_dot_product_attention(own, *seen, attn_mask=mask, scale=0.3)
        expected.append(out.transpose(0, 1))
    attend = Attention(shape, bucket, DEVICE, invariant=False)
    for found in (attend(query, keys, values, tables, 0.3), attend.launch(query, keys, values, tables, 0.3)):
        torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=2e-6)


def test_a_query_has_the_same_bits_in_any_row():
    source = torch.Generator().manual_seed(12)
    shape, width = Shape(4, 2, 8, 8, None), attention.most_tokens(2)
    query = torch.randn(96, 4, 8, generator=source)
    keys, values = (torch.randn(2, 2048, 8, generator=source) for _ in range(2))
    found = []
    for case in ("chains", "trees"):
        tables = made(CASES[case], width, True)
        attend = Attention(shape, tables.bucket, DEVICE, invariant=True)
        found.append(attend.launch(query, keys, values, tables, 0.3))
    # Token 0 reads slot 0 up to itself in both, in a row of five tokens and in one of its own.
    assert torch.equal(found[0][0], found[1][0])


def test_many_splits_have_the_same_bits_in_any_bucket(monkeypatch):
    """Three of 16 keys and up to nine of 32."""
    monkeypatch.setattr(attention, "INVARIANT_SPLITS", Splits(32, fine=16, num_fine=3))
    source = torch.Generator().manual_seed(17)
    shape, width = Shape(4, 2, 8, 8, None), attention.most_tokens(2)
    query = torch.randn(96, 4, 8, generator=source)
    keys, values = (torch.randn(2, 2048, 8, generator=source) for _ in range(2))
    plan = plan_of([ScoreRequest(0, tuple(range(3))), ScoreRequest(1, (5,))], [300, 40], [512, 0], width, paths=True)
    found = []
    for num_keys in (512, 1024):
        tables = Tables(Bucket(96, width, 4, num_keys, Kind.CHAIN, 0, True), DEVICE)
        tables.fill(plan)
        attend = Attention(shape, tables.bucket, DEVICE, invariant=True)
        assert attend.num_splits == 3 + -(-(num_keys - 48) // 32)
        found.append(attend.launch(query, keys, values, tables, 0.3)[:4])
        expected = reference.attend(query, keys, values, tables, 0.3, None)[:4]
        torch.testing.assert_close(found[-1], expected, rtol=0, atol=2e-6)
    assert torch.equal(*found)


def test_splits_cover_all_keys_once():
    for splits in (Splits(64), Splits(32, fine=16, num_fine=3), attention.INVARIANT_SPLITS):
        begins = [
            min(split, splits.num_fine) * splits.fine + max(split - splits.num_fine, 0) * splits.size
            for split in range(60)
        ]
        for num_keys in (1, 16, 47, 48, 49, 80, 81, 1024, 1025, 1281):
            assert splits.count(num_keys) == sum(begin < num_keys for begin in begins)


def heads_of(norms: bool, num_heads: int, kv_heads: int, dim: int) -> Heads:
    source = torch.Generator().manual_seed(13)
    norm = [Norm(torch.randn(dim, generator=source), 1e-5) if norms else None for _ in range(2)]
    return Heads(num_heads, kv_heads, dim, norm[0], norm[1])


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("num_heads", "kv_heads", "dim"), [(4, 2, 8), (9, 3, 8), (16, 8, 24)])
def test_placing(norms, num_heads, kv_heads, dim):
    """Two heads, one and eight by one program."""
    source = torch.Generator().manual_seed(14)
    heads = heads_of(norms, num_heads, kv_heads, dim)
    joined = torch.randn(6, (num_heads + 2 * kv_heads) * dim, generator=source)
    cos, sin = torch.randn(6, dim, generator=source), torch.randn(6, dim, generator=source)
    columns = torch.tensor([5, 3, 9, 0, -1, -1], dtype=torch.int32)
    results = []
    for operations in (TorchOperations(), KernelOperations()):
        keys, values = torch.full((kv_heads, 12, dim), 7.0), torch.full((kv_heads, 12, dim), 7.0)
        query = operations.place(joined, heads, cos, sin, columns, keys, values)
        results.append((query, keys, values))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("adds", [False, True])
def test_add_norm_and_gate(adds):
    source = torch.Generator().manual_seed(15)
    norm = Norm(torch.randn(48, generator=source), 1e-6)
    residual, added = torch.randn(5, 48, generator=source), torch.randn(5, 48, generator=source)
    results = []
    for operations in (TorchOperations(), KernelOperations()):
        own = residual.clone()
        results.append((operations.add_norm(own, added if adds else None, norm), own, operations.gate(added)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_writing():
    source = torch.Generator().manual_seed(16)
    states = torch.randn(2, 5, 24, generator=source)
    columns = torch.tensor([4, 1, 7, -1, -1], dtype=torch.int32)
    found = []
    for operations in (TorchOperations(), KernelOperations()):
        cached = torch.zeros(2, 9, 24)
        operations.write(states, columns, cached)
        found.append(cached)
    assert torch.equal(found[0], found[1])
