"""What products and attention in machine code are held to; mutants have to fail here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.native import compiled
from draftproof.targets.native.attention import RowAttention
from draftproof.targets.native.operations import NativeOperations
from draftproof.targets.native.turning import fits, turn
from draftproof.targets.norms import Norm
from draftproof.targets.static.operations import Heads, TorchOperations, Turning, split_heads
from draftproof.targets.streamed_linear import StreamedLinear

needs_native = pytest.mark.skipif(
    not compiled.available(), reason="needs vector products of bfloat16, without AMX, and llvmlite"
)
TREE = (-1, 0, 0, 1, 1, 2, 5, 3, 7, 0, 9, 9, 10, 2, 13, 14, 15, 16, 8)


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def check_product(num_outputs: int, num_inputs: int, *, biased: bool, most_rows: int = 90) -> None:
    """Within a rounding of the exact product, and the same bits for any number of rows."""
    weight, bias = random(num_outputs, num_inputs, seed=2), random(num_outputs, seed=3) if biased else None
    features = random(most_rows, num_inputs)
    layer = StreamedLinear(weight, bias)
    assert torch.equal(layer.dense_weight(), weight)
    exact = features.double() @ weight.double().T + (0 if bias is None else bias.double())
    size = features.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs())
    found = layer(features)
    assert found.shape == (most_rows, num_outputs) and found.dtype == torch.bfloat16
    assert ((found.double() - exact).abs() <= 2**-8 * exact.abs() + 2**-20 * num_inputs * size).all()
    for num_rows in (0, 1, 2, 3, 7, 15, 16, 17, 27, 28, 29, 56, 57, 89):
        assert torch.equal(layer(features[:num_rows]), found[:num_rows]), num_rows
    assert torch.equal(layer(features[10:].view(2, 5, -1, num_inputs)).flatten(0, 2), found[10:])


def check_norm(width: int) -> None:
    """Added up in place, and normed within a rounding of float64; the same for a row by itself."""
    norm, operations = Norm((random(width, seed=7).abs() + 0.5).bfloat16(), 1e-2), NativeOperations()
    for added in (None, random(40, width, seed=8)):
        before = 3 * random(40, width)
        residual = before.clone()
        out = operations.add_norm(residual, added, norm)
        assert torch.equal(residual, before if added is None else before + added)
        wide = residual.double()
        exact = wide / (wide.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
        assert ((out.double() - exact).abs() <= 2**-8 * exact.abs() * (1 + 1e-4)).all()
        for row in (0, 17, 39):
            own = before[row : row + 1].clone()
            again = operations.add_norm(own, None if added is None else added[row : row + 1], norm)
            assert torch.equal(again[0], out[row]) and torch.equal(own[0], residual[row])


def check_gate(width: int) -> None:
    """Within a rounding of float64 from silu that is rounded first, also where exponentials are none or infinite."""
    joined, operations = 8 * random(40, 2 * width), NativeOperations()
    joined[3, :4] = torch.tensor([200.0, -200.0, 0.0, 3e36])
    joined[4, 0], joined[5, width] = float("nan"), float("nan")
    out = operations.gate(joined)
    gate, up = joined.double().chunk(2, dim=-1)
    exact = (gate * torch.sigmoid(gate)) * up
    assert out[4, 0].isnan() and out[5, 0].isnan() and out.isnan().sum() == 2
    found, wanted = out.double().nan_to_num(), exact.nan_to_num()
    assert ((found - wanted).abs() <= 2**-7 * wanted.abs() + 1e-37).all() and out[3, 1] == 0
    assert (out != TorchOperations().gate(joined)).float().mean() < 0.01
    for row in (0, 17, 39):
        assert torch.equal(operations.gate(joined[row : row + 1])[0], out[row])


def cached(kv_heads: int, dim: int, num_columns: int, offsets: list[int]) -> Any:
    """Two layers, of which the second is asked."""
    shape = (2, kv_heads, num_columns, dim)
    group = SimpleNamespace(keys=random(*shape, seed=4), values=random(*shape, seed=5), layers=[0, 1])
    return SimpleNamespace(groups=[group], extents=SimpleNamespace(offsets=offsets))


def check_attention(kv_heads: int, groups: int, dim: int, starts: tuple[int, int] = (201, 83)) -> None:
    """A tree and a chain, and padding: near the exact law, and the chain's and the path's bits are those of its tokens
    by themselves."""
    offsets, num_chain, num_padding = [256, 1024], 37, 3
    cache = cached(kv_heads, dim, 2048, offsets)
    keys, values = (part[1].double() for part in (cache.groups[0].keys, cache.groups[0].values))
    # What lies beyond what anyone sees must not be touched.
    for buffer in (cache.groups[0].keys, cache.groups[0].values):
        buffer[:, :, : offsets[0]] = float("nan")
        buffer[:, :, offsets[0] + starts[0] + len(TREE) : offsets[1]] = float("nan")
        buffer[:, :, offsets[1] + starts[1] + num_chain :] = float("nan")
    requests = [ScoreRequest(0, tuple(range(len(TREE))), TREE), ScoreRequest(1, tuple(range(num_chain)))]
    num_tokens = len(TREE) + num_chain
    query = 2 * random(num_tokens + num_padding, kv_heads * groups, dim, seed=6)
    out = RowAttention(cache, requests, starts, len(query))(1, query, None, 0.0).view(len(query), -1, dim)
    for token in range(num_tokens):
        exact = exactly(query[token], keys, values, seen_columns(token, starts, offsets), groups)
        assert ((out[token].double() - exact).abs() <= 0.01 * exact.abs() + 2e-4).all(), token
    strided = torch.zeros(len(query), kv_heads * groups + 2, dim, dtype=torch.bfloat16)
    strided[:, :-2] = query
    again = RowAttention(cache, requests, starts, len(query))(1, strided[:, :-2], dim**-0.5, 0.0)
    assert torch.equal(again.view_as(out)[:num_tokens], out[:num_tokens])
    for index in (0, 1, 17, num_chain - 1):
        alone = RowAttention(cache, [ScoreRequest(1, (0,))], [starts[1] + index], 1)
        token = len(TREE) + index
        assert torch.equal(alone(1, query[token : token + 1], None, 0.0).view(-1, dim), out[token])
    check_path(cache, starts[0], offsets[0], query, out)


def one_query(keys: torch.Tensor, values: torch.Tensor, first: float, scale: float = 1.0) -> torch.Tensor:
    """[16] of a query (first, 0, …) over keys (k, 0, …): keys [n], values [n, 16]."""
    cache = cached(1, 16, len(keys), [0])
    cache.groups[0].keys[1], cache.groups[0].values[1] = 0, values
    cache.groups[0].keys[1, 0, :, 0] = keys
    query = torch.zeros(1, 1, 16, dtype=torch.bfloat16)
    query[0, 0, 0] = first
    return RowAttention(cache, [ScoreRequest(0, (0,))], [len(keys) - 1], 1)(1, query, scale, 0.0)[0]


def check_scores() -> None:
    """Far ones weigh nothing, large ones don't overflow, and what is no number stays none."""
    keys, values = torch.zeros(9), torch.zeros(9, 16)
    keys[3], values[3], values[4] = 1e4, 7.0, 1e30
    assert torch.equal(one_query(keys, values, 100.0), torch.full((16,), 7.0).bfloat16())
    keys[5] = float("nan")
    assert one_query(keys, values, 100.0).isnan().all()


def check_exponential() -> None:
    """Weights of scores from -20 to 0 are right to a few parts in a million: in each dimension two large weighted
    values nearly cancel."""
    keys = -torch.linspace(0, 20, 1000).bfloat16()
    weights = keys.double().exp()
    total, values = weights.sum(), torch.zeros(1000, 16, dtype=torch.bfloat16)
    for dim in range(16):
        one, other = 3 + 61 * dim, 30 + 57 * dim
        values[one, dim] = float(1e4 * total / weights[one])
        values[other, dim] = -float(1e4 * total / weights[other])
    exact = weights @ values.double() / total
    found = one_query(keys, values, 1.0).double()
    assert ((found - exact).abs() <= 2**-8 * exact.abs() + 0.05).all()


def check_path(cache: Any, start: int, offset: int, query: torch.Tensor, out: torch.Tensor) -> None:
    """The deepest node's path as a chain, whose keys lie one after another."""
    path = path_of(TREE.index(16))
    for buffer in (cache.groups[0].keys, cache.groups[0].values):
        own = buffer[:, :, offset + start : offset + start + len(TREE)].clone()
        buffer[:, :, offset + start : offset + start + len(path)] = own[:, :, path]
    chain = RowAttention(cache, [ScoreRequest(0, tuple(path))], [start], len(path))
    assert torch.equal(chain(1, query[path], None, 0.0).view_as(out[path]), out[path])


def path_of(node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = TREE[node]
    return path[::-1]


def seen_columns(token: int, starts: tuple[int, int], offsets: list[int]) -> list[int]:
    if token < len(TREE):
        return [*range(offsets[0], offsets[0] + starts[0]), *(offsets[0] + starts[0] + node for node in path_of(token))]
    return list(range(offsets[1], offsets[1] + starts[1] + token - len(TREE) + 1))


def exactly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, columns: list[int], groups: int
) -> torch.Tensor:
    """query [heads, dim], keys and values [kv_heads, columns, dim] in float64."""
    own, weighed = (part[:, columns].repeat_interleave(groups, 0) for part in (keys, values))
    scores = torch.einsum("hd,hkd->hk", query.double(), own) * query.shape[1] ** -0.5
    return torch.einsum("hk,hkd->hd", scores.softmax(-1), weighed)


def check_turning(heads: int, kv_heads: int, dim: int) -> None:
    """PyTorch's bits, for any number of threads; of tokens that are written, keys and values in their columns, and
    nothing elsewhere."""
    given = Heads(heads, kv_heads, dim, None, None)
    for num_tokens, num_written in ((1, 1), (7, 7), (70, 70), (9, 6), (2, 0)):
        joined, angles = random(num_tokens, (heads + 2 * kv_heads) * dim), random(num_tokens, dim, seed=5).float() * 3
        turning = Turning.of(angles.cos().bfloat16(), angles.sin().bfloat16())
        assert fits(joined, given, turning)
        query, key, value = split_heads(joined, given, turning)
        keys, values = (torch.full((kv_heads, 200, dim), 7.0).bfloat16()[:, 50:150] for _ in range(2))
        columns = torch.randperm(100, generator=torch.Generator().manual_seed(2))[:num_written]
        assert torch.equal(turn(joined, given, turning, keys, values, columns), query)
        for found, own in ((keys, key), (values, value)):
            wanted = torch.full_like(found, 7.0)
            wanted[:, columns] = own[:num_written].transpose(0, 1)
            assert torch.equal(found, wanted)
