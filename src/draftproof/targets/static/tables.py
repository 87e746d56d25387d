"""The tables of one forward: all that its kernels read besides weights and cache, in one run of 32-bit integers.

A row of attention is a run of one request's tokens that read the same keys of one slot. Of its `base + i` keys the
first `base` were cached before the forward; the others are the request's own tokens of this forward. What a token
sees of these depends on the kind of forward:

- CHAIN: the keys up to its own.
- TREE: those whose bit is set in the token's `words`.
- PATH: as CHAIN, and key base + d is read from the column that `links[row, d]` names: a node of a tree, a row of its
  own, reads its ancestors where a chain has them, so that its sums have the chain's order (invariant execution).
- BLOCK: all keys of the row, those behind it too: a block drafter's. A window then counts in both directions.

Tokens beyond `num_tokens` are padding: nothing of theirs is written to the cache, and no row has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.masks import node_depths

ROW_FIELDS: Final = 6
"""Of a row: first token, number of tokens, the slot's first column, base, total keys, token of key `base`."""
WORD_BITS: Final = 32
NO_COLUMN: Final = -1

Ints = npt.NDArray[np.int32]


class Kind(IntEnum):
    """What tokens see of their own forward."""

    CHAIN = 0
    TREE = 1
    PATH = 2
    BLOCK = 3


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes that forwards are rounded up to; one graph each.

    num_tokens: padding included. width: most tokens of a row. num_rows: of attention. num_keys: the most that a row
    reads. num_links: words or links of a token or row. with_logits: whether the output layer runs.
    """

    num_tokens: int
    width: int
    num_rows: int
    num_keys: int
    kind: Kind
    num_links: int
    with_logits: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of integers of: ids, positions, columns, rows, links, the number of tokens without padding."""
        links = self.num_rows if self.kind == Kind.PATH else self.num_tokens
        return (
            self.num_tokens,
            self.num_tokens,
            self.num_tokens,
            self.num_rows * ROW_FIELDS,
            links * self.num_links,
            1,
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A row of attention, in Python numbers; `nodes`, of a path, the node at each depth."""

    first: int
    count: int
    offset: int
    base: int
    total: int
    block: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward before it is rounded up. wanted: of each request, the tokens whose logits are wanted."""

    ids: list[int]
    positions: list[int]
    columns: list[int]
    pieces: list[Piece]
    kind: Kind
    width: int
    parents: list[tuple[int, ...] | None]
    counts: list[int]
    wanted: list[range]


def plan_of(
    requests: Sequence[ScoreRequest], starts: Sequence[int], offsets: Sequence[int], width: int, *, paths: bool
) -> Plan:
    """starts, offsets: of each request's slot, its length and its first column. width: most tokens of a row.

    paths: trees get a row for each node.
    """
    parents = [_tree_of(request) for request in requests]
    kind = Kind.CHAIN if not any(parents) else Kind.PATH if paths else Kind.TREE
    ids: list[int] = []
    positions: list[int] = []
    columns: list[int] = []
    pieces: list[Piece] = []
    for request, start, offset, tree in zip(requests, starts, offsets, parents, strict=True):
        first, count = len(ids), len(request.token_ids)
        ids += request.token_ids
        columns += range(offset + start, offset + start + count)
        if tree is None:
            positions += range(start, start + count)
            for begin in range(0, count, width):
                size, base = min(width, count - begin), start + begin
                pieces.append(Piece(first + begin, size, offset, base, base + size, first + begin))
            continue
        depths = node_depths(tree)
        positions += (start + depth for depth in depths)
        if kind == Kind.PATH:
            for node, depth in enumerate(depths):
                path = _path(tree, node)
                pieces.append(Piece(first + node, 1, offset, start, start + depth + 1, first, path))
        else:
            for begin in range(0, count, width):
                size = min(width, count - begin)
                pieces.append(Piece(first + begin, size, offset, start, start + count, first))
    counts = [len(request.token_ids) for request in requests]
    ends = list(accumulate(counts))
    wanted = [
        range(end - count + request.first_row, end) for request, count, end in zip(requests, counts, ends, strict=True)
    ]
    return Plan(ids, positions, columns, pieces, kind, width, parents, counts, wanted)


def _tree_of(request: ScoreRequest) -> tuple[int, ...] | None:
    parents = request.parents
    if parents is None or all(parent == node - 1 for node, parent in enumerate(parents)):
        return None
    return parents


def _path(parents: Sequence[int], node: int) -> tuple[int, ...]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return tuple(reversed(path))


def num_links(plan: Plan) -> int:
    """How many words a token, or links a row, of the plan needs."""
    if plan.kind == Kind.CHAIN:
        return 0
    if plan.kind == Kind.PATH:
        return max(max(len(piece.nodes), piece.count) for piece in plan.pieces)
    most = max(
        count if tree is not None else min(count, plan.width)
        for count, tree in zip(plan.counts, plan.parents, strict=True)
    )
    return -(-most // WORD_BITS)


def fill(out: Ints, plan: Plan, bucket: Bucket) -> None:
    """Write the plan into `out` [sum of the bucket's sizes]; padding repeats the last token and is written nowhere."""
    ids, positions, columns, rows, links, counted = np.split(out, np.cumsum(bucket.sizes)[:-1])
    counted[0] = count = len(plan.ids)
    ids[:count], positions[:count], columns[:count] = plan.ids, plan.positions, plan.columns
    ids[count:], positions[count:], columns[count:] = plan.ids[-1], plan.positions[-1], NO_COLUMN
    table = rows.reshape(bucket.num_rows, ROW_FIELDS)
    table[: len(plan.pieces)] = [(p.first, p.count, p.offset, p.base, p.total, p.block) for p in plan.pieces]
    table[len(plan.pieces) :] = 0
    if plan.kind == Kind.PATH:
        _fill_links(links.reshape(bucket.num_rows, bucket.num_links), plan)
    elif plan.kind == Kind.TREE:
        _fill_words(links.reshape(bucket.num_tokens, bucket.num_links).view(np.uint32), plan)


def _fill_links(links: Ints, plan: Plan) -> None:
    links[:] = np.arange(links.shape[1], dtype=np.int32)
    for index, piece in enumerate(plan.pieces):
        if piece.nodes:
            links[index, : len(piece.nodes)] = piece.nodes


def _fill_words(words: npt.NDArray[np.uint32], plan: Plan) -> None:
    words[:] = 0
    first = 0
    for count, tree in zip(plan.counts, plan.parents, strict=True):
        for node in range(count):
            # A chain's rows begin a block of their own every `width` tokens.
            place = node if tree is not None else node % plan.width
            parent = tree[node] if tree is not None else (node - 1 if place else -1)
            if parent >= 0:
                words[first + node] = words[first + parent]
            words[first + node, place // WORD_BITS] |= np.uint32(1 << place % WORD_BITS)
        first += count


class Tables:
    """A bucket's tables on the device, and the host buffers that they are filled from."""

    def __init__(self, bucket: Bucket, device: torch.device) -> None:
        self.bucket = bucket
        size = sum(bucket.sizes)
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        cuda: Any = torch.cuda
        self._copied = [cuda.Event() for _ in range(2)] if pinned else []
        self._turn = 0
        self.all = torch.zeros(size, dtype=torch.int32, device=device)
        self.ids, self.positions, self.columns, rows, links, self.count = torch.split(self.all, list(bucket.sizes))
        self.rows = rows.view(bucket.num_rows, ROW_FIELDS)
        self.links = links.view(-1, bucket.num_links) if bucket.num_links else links

    def fill(self, plan: Plan) -> None:
        """Put the plan on the device, without waiting for what runs there."""
        self._turn ^= 1
        host = self._hosts[self._turn]
        if self._copied:
            self._copied[self._turn].synchronize()  # of the copy before the last one: long done
        fill(host.numpy(), plan, self.bucket)
        self.all.copy_(host, non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
