"""Cuts the tokens of one forward into segments, and groups the segments that attention can compute in one call.

A segment is a run of one request's tokens that read the same keys: those of its slot, up to one key length. Under
invariant execution a token's key length is a function of its position, so that a request's tokens may need several
segments, and a node of a tree gets keys in the order of its chain (`paths.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from draftproof.targets.base import ScoreRequest
from draftproof.targets.masks import RowLayout
from draftproof.targets.shapes import KEY_STEP, Shapes

MOST_TOGETHER = 16
"""Segments of up to so many tokens share a call, padded to the longest; longer ones have one each."""


@dataclass(frozen=True, slots=True)
class Segment:
    """tokens: their indices in the forward. slot: whose keys. row: the layout of the queries. key_length: keys read.

    nodes: of a tree whose nodes have keys of their own, the index of each token within its request, and `tree` the
    layout of all of them; else None.
    """

    tokens: range
    slot: int
    row: RowLayout
    key_length: int
    nodes: range | None = None
    tree: RowLayout | None = None


def segments_of(requests: Sequence[ScoreRequest], starts: Sequence[int], shapes: Shapes) -> list[Segment]:
    """starts: the slots' lengths. Token indices count through the requests in their order."""
    segments, first = [], 0
    for request, start in zip(requests, starts, strict=True):
        row = RowLayout.of(start, len(request.token_ids), request.parents)
        segments += list(_segments(request.slot, row, first, shapes))
        first += len(request.token_ids)
    return segments


def _segments(slot: int, row: RowLayout, first: int, shapes: Shapes) -> Iterator[Segment]:
    num_tokens = len(row.positions)
    if shapes.query_step == 0:
        yield Segment(range(first, first + num_tokens), slot, row, row.start + num_tokens)
        return
    is_tree = row.parents is not None and any(parent != node - 1 for node, parent in enumerate(row.parents))
    most = shapes.query_step if shapes.num_tokens is not None else num_tokens
    keys = [shapes.key_length(position) or 0 for position in row.positions]
    for key_length, group in groupby(range(num_tokens), key=keys.__getitem__):
        nodes = list(group)
        for begin in range(nodes[0], nodes[-1] + 1, most):
            part = range(begin, min(begin + most, nodes[-1] + 1))
            tokens = range(first + part.start, first + part.stop)
            if is_tree:
                yield Segment(tokens, slot, row, key_length, part, row)
            else:
                yield Segment(tokens, slot, RowLayout.of(row.start + part.start, len(part), None), key_length)


def grouped(segments: Sequence[Segment], offsets: Sequence[int]) -> list[list[Segment]]:
    """Segments that share a call: of one key step, short, and at evenly spaced columns; or single ones.

    offsets: the slots' first columns.
    """
    groups: list[list[Segment]] = []
    ordered = sorted(segments, key=lambda s: (-(-s.key_length // KEY_STEP), offsets[s.slot], s.tokens.start))
    for segment in ordered:
        if groups and _joins(groups[-1], segment, offsets):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _joins(group: Sequence[Segment], segment: Segment, offsets: Sequence[int]) -> bool:
    last = group[-1]
    if max(len(last.tokens), len(segment.tokens)) > MOST_TOGETHER or last.tree or segment.tree:
        return False
    if -(-last.key_length // KEY_STEP) != -(-segment.key_length // KEY_STEP):
        return False
    spacing = offsets[segment.slot] - offsets[last.slot]
    return spacing > 0 and (len(group) == 1 or spacing == offsets[last.slot] - offsets[group[-2].slot])
