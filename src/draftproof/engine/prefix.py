"""Which slot holds the entries of which tokens: a tree of blocks over committed tokens.

Rule: an entry of the cache is a function of its token and of those before it. So a slot that holds the entries of
a prefix of another request's context can give them away by copying. Only committed tokens are published, after the
pass that committed them has been rewound; an entry of a rejected draft never gets here (T61).

A node of the tree stands for a prefix of whole blocks, keyed by the tokens themselves, not by a hash of them: two
prefixes can't be taken for one another. What follows the last whole block is compared token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

BLOCK_SIZE: Final = 16
"""Tokens per block: shorter prefixes are cheaper to compute than to look for."""


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    block: tuple[int, ...]
    slots: set[int] = field(default_factory=set)
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Published:
    """A slot's tokens; `path` has a node for each whole block of the first `length` of them."""

    token_ids: Sequence[int]
    length: int = 0
    path: list[_Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Match:
    """`slot` holds the entries of the first `length` tokens."""

    slot: int
    length: int


class PrefixIndex:
    """publish, forget, longest. Costs O(tokens / BLOCK_SIZE) each; a published list is kept, not copied."""

    def __init__(self) -> None:
        self._root = _Node(None, ())
        self._published: dict[int, _Published] = {}

    def __len__(self) -> int:
        """How many nodes there are, the root not counted."""
        count, stack = 0, [self._root]
        while stack:
            node = stack.pop()
            count += len(node.children)
            stack.extend(node.children.values())
        return count

    def publish(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        """The slot holds the committed entries of token_ids[:length]. `token_ids` may be a list that grows.

        A slot that is published for again with fewer tokens, or with another list, is forgotten first.
        """
        entry = self._published.get(slot)
        if entry is None or entry.token_ids is not token_ids or length < entry.length:
            self.forget(slot)
            entry = self._published[slot] = _Published(token_ids)
        entry.length = length
        node = entry.path[-1] if entry.path else self._root
        for begin in range(len(entry.path) * BLOCK_SIZE, length - BLOCK_SIZE + 1, BLOCK_SIZE):
            block = tuple(token_ids[begin : begin + BLOCK_SIZE])
            child = node.children.get(block)
            if child is None:
                child = node.children[block] = _Node(node, block)
            child.slots.add(slot)
            entry.path.append(child)
            node = child

    def forget(self, slot: int) -> None:
        """Nothing of the slot may be given away any more. A slot that isn't there is left alone."""
        entry = self._published.pop(slot, None)
        for node in reversed(entry.path if entry is not None else []):
            node.slots.discard(slot)
            if not node.slots and node.parent is not None:
                del node.parent.children[node.block]

    def longest(self, token_ids: Sequence[int], most: int, *, besides: int = -1) -> Match | None:
        """Who holds the longest prefix of token_ids[:most], of one block at least; `besides` is not asked."""
        node, depth = self._root, 0
        best: tuple[_Node, int] | None = None
        while (depth + 1) * BLOCK_SIZE <= most:
            child = node.children.get(tuple(token_ids[depth * BLOCK_SIZE : (depth + 1) * BLOCK_SIZE]))
            if child is None:
                break
            node, depth = child, depth + 1
            if node.slots - {besides}:
                best = (node, depth * BLOCK_SIZE)
        if best is None:
            return None
        holders = sorted(best[0].slots - {besides})
        lengths = [self._shared(slot, token_ids, best[1], most) for slot in holders]
        length = max(lengths)
        return Match(holders[lengths.index(length)], length)

    def _shared(self, slot: int, token_ids: Sequence[int], known: int, most: int) -> int:
        entry = self._published[slot]
        length, most = known, min(most, entry.length)
        while length < most and entry.token_ids[length] == token_ids[length]:
            length += 1
        return length


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
