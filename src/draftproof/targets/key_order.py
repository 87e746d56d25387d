"""In what order does attention add up its keys, and where may they stand that it stays so?

- `attention_agrees` asks whether a query's result depends on how many queries and segments are computed with it.
- `spreads` asks whether a sum stays the same when keys lie further on (`branches.py`), and `moves_blocks` when whole
  blocks of them do (`lanes.py`).

Each is asked with values that cancel, as products are (`summation.py`). Attention's weights are positive, and the order
of their sum shows in no sum that cancels: so each is asked with rulers as well (`ruler.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch

from draftproof.targets.branches import CHUNK, STRIDE, Room
from draftproof.targets.lanes import BLOCK
from draftproof.targets.layers import Layers
from draftproof.targets.masks import additive
from draftproof.targets.packed import attend_stacked
from draftproof.targets.ruler import Asked, ruler
from draftproof.targets.shapes import KEY_STEP, SPARE, padded_queries
from draftproof.targets.summation import SEED, places, random_rows

NUM_QUERIES: Final = (*range(2, 18, 2), *range(20, 68, 4), 100, 256, 512)
NUM_SEGMENTS: Final = (1, 2, 5)
KEY_LENGTHS: Final = (64, 128, 192, 256, 320, 768, 1280)
NUM_SPREAD: Final = 6
NUM_MOVED: Final = 16
"""Queries that are asked whether chunks move: where another order is possible, one in ten or twenty shows it."""


@torch.no_grad()
def attention_agrees(layers: Layers, num_heads: int, query_step: int) -> bool:
    """Is a query's result the same however many queries and segments are computed with it, in steps of so many queries,
    at any key length?"""
    for shape in dict.fromkeys(layers.shapes):
        if not shape.heads or num_heads % shape.heads:
            continue
        for key_length in KEY_LENGTHS:
            most = NUM_QUERIES[-1]
            measure = partial(_attend, num_segments=1, num_queries=most)
            asked = _opposite(shape, num_heads, most, key_length)
            for given in (asked, ruler(shape, num_heads, most, key_length, measure, SEED)):
                expected = measure(given)
                for num_queries in (n for n in NUM_QUERIES if padded_queries(n, query_step) == n):
                    for num_segments in NUM_SEGMENTS if num_queries <= 16 else (1,):
                        if num_segments * num_queries > NUM_QUERIES[-1]:
                            continue
                        found = _attend(given, num_segments, num_queries)
                        if not torch.equal(found, expected[: len(found)]):
                            return False
    return True


@torch.no_grad()
def spreads(layers: Layers, num_heads: int, chain: int, room: Room) -> bool:
    """Does a query get the same from a chain that reads `chain` keys if those of the last two steps lie whole strides
    further on, in order, before the room's stop, and as many keys are read as the room has?

    A kernel adds up the keys in blocks, and the blocks' sums: across the beginning of a block they can't be moved.
    """
    random = torch.Generator().manual_seed(SEED)
    begin = max(chain - 2 * KEY_STEP, 0)
    for shape in dict.fromkeys(layers.shapes):
        if not shape.heads or num_heads % shape.heads:
            continue
        for num_keys in (n for n in (chain - SPARE - KEY_STEP // 2 - 2, chain - KEY_STEP // 2 - 2, chain) if n > 0):
            stays = torch.arange(num_keys)
            asked = _opposite(shape, num_heads, NUM_MOVED, num_keys)
            measure = partial(_over, columns=stays, key_length=chain)
            for given in (asked, ruler(shape, num_heads, NUM_MOVED, num_keys, measure, SEED)):
                expected = measure(given)
                for columns in _spread(num_keys, begin, room.stop, random):
                    if not torch.equal(_over(given, columns, room.key_length), expected):
                        return False
    return True


def _spread(num_keys: int, begin: int, stop: int, random: torch.Generator) -> Iterator[torch.Tensor]:
    """[num_keys] columns: as they are; from every `CHUNK` on as far on as they can be; and at random."""
    columns = torch.arange(num_keys)
    most = (stop - 1 - columns) // STRIDE
    yield columns
    for first in range(begin, num_keys, CHUNK):
        yield torch.where(columns < first, columns, columns + STRIDE * most[-1].clamp(min=0))
    for _ in range(NUM_SPREAD):
        first = int(torch.randint(begin, num_keys, (), generator=random))
        chance = float(torch.rand((), generator=random)) ** 2
        steps = (torch.rand(num_keys, generator=random) < chance) & (columns >= first)
        moves = steps.cumsum(0).minimum(most[-1].clamp(min=0))
        yield columns + STRIDE * moves


@torch.no_grad()
def moves_blocks(layers: Layers, num_heads: int, chain: int, most: int, num_before: int = 0) -> int:
    """How many keys, `most` at most, may be read that a query gets the same from a chain that reads `chain` keys, if
    whole blocks of its last step, and `num_before` before them, lie further on among them, in order? In steps; 0 for
    none."""
    lengths = list(range(chain, most + 1, KEY_STEP))
    for shape in dict.fromkeys(layers.shapes):
        if not shape.heads or num_heads % shape.heads:
            continue
        for num_keys in (chain - BLOCK - 2, chain):
            asked = _opposite(shape, num_heads, NUM_MOVED, num_keys)
            measure = partial(_over, columns=torch.arange(num_keys), key_length=chain)
            for given in (asked, ruler(shape, num_heads, NUM_MOVED, num_keys, measure, SEED)):
                expected = measure(given)
                for place, key_length in enumerate(lengths):
                    moved = _moved(num_keys, max(chain - KEY_STEP - BLOCK * num_before, 0), key_length)
                    if not all(torch.equal(_over(given, columns, key_length), expected) for columns in moved):
                        lengths = lengths[:place]
                        break
    return lengths[-1] if lengths else 0


def _moved(num_keys: int, begin: int, stop: int) -> Iterator[torch.Tensor]:
    """[num_keys] columns: as they are; the last block, and all from `begin` on, as far on as they can be, and halfway;
    and the last block alone as far as that if the one before it goes halfway."""
    columns = torch.arange(num_keys)
    blocks, first = columns // BLOCK, begin // BLOCK
    last = int(blocks[-1])
    most = stop // BLOCK - 1 - last
    yield columns
    for move in {most, most // 2} - {0}:
        yield columns + BLOCK * move * (blocks >= last)
        yield columns + BLOCK * move * (blocks >= first)
    if most > 1 and last > first:
        yield columns + BLOCK * (most // 2 * (blocks >= first) + (most - most // 2) * (blocks >= last))


def _over(given: Asked, columns: torch.Tensor, key_length: int) -> torch.Tensor:
    """[queries, heads, value dim]: attention over so many keys, those that are given at these columns."""
    num_heads, num_queries, _ = given.queries.shape
    heads, device = given.keys.shape[0], given.keys.device
    seen = torch.zeros(key_length, dtype=torch.bool, device=device).index_fill(0, columns.to(device), True)
    keys, values = (part.new_zeros(heads, key_length, part.shape[2]) for part in (given.keys, given.values))
    keys[:, seen], values[:, seen] = given.keys, given.values
    mask = additive(seen, keys.dtype).expand(1, 1, num_heads // heads * num_queries, key_length)
    return _stacked(given.queries, keys[None], values[None], mask, num_queries, given.scale)


def _attend(given: Asked, num_segments: int, num_queries: int) -> torch.Tensor:
    """[num_segments · num_queries, heads, value dim]; every segment reads the same keys."""
    queries, keys, values = given.queries[:, : num_segments * num_queries], given.keys, given.values
    groups, key_length = queries.shape[0] // keys.shape[0], keys.shape[1]
    mask = torch.zeros(num_segments, 1, groups * num_queries, key_length, dtype=keys.dtype, device=keys.device)
    shared = (num_segments, *keys.shape)
    wide = (keys.expand(shared), values.expand(*shared[:-1], values.shape[-1]))
    return _stacked(queries, *wide, mask, num_queries, given.scale)


def _stacked(queries: torch.Tensor, keys: torch.Tensor, *rest: Any) -> torch.Tensor:
    """`attend_stacked` of queries [heads, tokens, dim], to [tokens, heads, value dim]."""
    return attend_stacked(queries.transpose(0, 1), keys, *rest).view(queries.shape[1], len(queries), -1)


def _opposite(shape: Any, num_heads: int, num_queries: int, num_keys: int) -> Asked:
    """Random queries, keys in equal pairs, and values in opposite ones."""
    queries = random_rows(num_queries, num_heads * shape.key_dim, shape.dtype, shape.device)
    found = []
    for dim, sign in ((shape.key_dim, 1), (shape.value_dim, -1)):
        half = random_rows(num_keys // 2, shape.heads * dim, shape.dtype, shape.device)
        rows = torch.cat([half, sign * half])[places(num_keys).to(shape.device)]
        found.append(rows.view(num_keys, shape.heads, dim).transpose(0, 1).contiguous())
    return Asked(queries.view(num_queries, num_heads, shape.key_dim).transpose(0, 1), found[0], found[1])
