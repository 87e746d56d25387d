"""A forward over the tokens of any number of requests, side by side in one row, without padding between them.

Everything but attention treats the tokens alike. Attention runs once per group of segments (`packing.py`): queries
[segments, kv_heads, groups · width, dim] over keys and values that are read where they lie in the cache. Chunks of
contexts, single tokens and drafts of any length share the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftproof.targets.base import ScoreRequest
from draftproof.targets.branches import Branches, Rooms, branch_mask, branches_of
from draftproof.targets.cache import SlotCache
from draftproof.targets.layers import Layers
from draftproof.targets.masks import additive_mask
from draftproof.targets.native.attention import RowAttention
from draftproof.targets.packing import Segment, grouped, segments_of
from draftproof.targets.paths import CopiedKeys, path_mask, paths_of
from draftproof.targets.shapes import Shapes, padded_queries
from draftproof.targets.static.operations import Heads, Turning, split_heads

PIECE: Final = 4
"""The most nodes of a path that share a copy of its keys."""


@dataclass(slots=True)
class Call:
    """One call of attention. queries: [rows · width] token index of each query, padding repeats one; None if they are
    the forward's tokens in order. keys, values: for each layer [rows, kv_heads, key length, dim], read in place; or,
    for a tree under invariant execution, `copied` ones. tokens: of each row, in the order of its queries. masks: by
    window."""

    num_rows: int
    width: int
    queries: torch.Tensor | None
    tokens: Sequence[Sequence[int]]
    masks: dict[int | None, torch.Tensor | None]
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    copied: CopiedKeys | None = None


class PackedForward:
    """Where one forward's tokens are written, what they read, and how attention is computed over it.

    requests: each on its own slot, whose room in the cache has been reserved. num_padding: tokens that are appended
    to the forward alone, to give it a fixed size; they are neither written nor read. rooms: for trees in place; None
    where trees get copies of their keys. branches: by slot, of trees that are in place. by_row: attention is
    `RowAttention`, for which there is nothing to be grouped, placed or copied.
    """

    def __init__(
        self,
        cache: SlotCache,
        layers: Layers,
        shapes: Shapes,
        requests: Sequence[ScoreRequest],
        num_padding: int = 0,
        rooms: Rooms | None = None,
        *,
        by_row: bool = False,
    ) -> None:
        self._cache, self._layers, self._shapes = cache, layers, shapes
        self._device = layers.shapes[0].device
        starts = [cache.lengths[request.slot] for request in requests]
        self._is_alone = len(requests) == 1
        self._num_written = sum(len(request.token_ids) for request in requests)
        self.num_tokens, self._is_padded = self._num_written + num_padding, num_padding > 0
        self._layer = 0
        self._turning: Turning | None = None
        offsets = cache.extents.offsets
        self.branches: dict[int, Branches] = {}
        self._rows: RowAttention | None = None
        # Views of all layers, which machine code has no use for: made when they are asked for.
        self._prepare: Callable[[], None] | None = partial(self._prepare_writing, requests, starts)
        if by_row:
            self._rows = RowAttention(cache, requests, starts, self.num_tokens)
            return
        segments = segments_of(requests, starts, shapes)
        trees = {
            segment.slot: segment for segment in segments if segment.nodes is not None and segment.nodes.start == 0
        }
        if rooms is not None and shapes.num_tokens is None:
            self.branches = dict(self._place_trees(trees, rooms))
        groups = grouped([segment for segment in segments if segment.slot not in self.branches], offsets)
        self._calls = [self._call(group) for group in groups]
        for slot, branches in self.branches.items():
            self._calls += self._calls_in_place(trees[slot], branches)
        self._order = self._prepare_order()

    def _place_trees(self, trees: Mapping[int, Segment], rooms: Rooms) -> Iterator[tuple[int, Branches]]:
        for slot, segment in trees.items():
            tree = segment.tree
            assert tree is not None
            first, last = (self._shapes.key_length(position) for position in (tree.start, max(tree.positions)))
            assert first is not None and last is not None
            branches = branches_of(tree, rooms(first, last))
            fits = branches is not None and (branches.lanes is None or self._is_alone)
            if branches is not None and fits and self._cache.widen(slot, branches.stop):
                yield slot, branches

    def _prepare_writing(self, requests: Sequence[ScoreRequest], starts: Sequence[int]) -> None:
        """Views [tokens, kv_heads, dim] or indices of the columns that the tokens are written to."""
        self._columns: torch.Tensor | None = None
        self._sources: torch.Tensor | None = None
        written: list[Any] = [None] * len(self._layers.shapes)
        offsets = self._cache.extents.offsets
        first = offsets[requests[0].slot] + starts[0]
        lanes = next((branches.lanes for branches in self.branches.values()), None)
        if lanes is not None:
            self._sources = torch.from_numpy(lanes.nodes.flatten()).to(self._device)
        elif len(requests) > 1 or self.branches:
            columns: list[int] = []
            for request, start in zip(requests, starts, strict=True):
                branches, offset = self.branches.get(request.slot), offsets[request.slot]
                own = range(start, start + len(request.token_ids)) if branches is None else branches.own
                columns += [offset + column for column in own]
            self._columns = torch.tensor(columns, device=self._device)
        for group in self._cache.groups:
            keys, values = group.keys, group.values
            if lanes is not None:
                for buffer in (keys, values):
                    lanes.repeat_context(buffer, first - starts[0])
                keys, values = (lanes.places(buffer, first - starts[0]) for buffer in (keys, values))
            elif self._columns is None:
                keys = keys[:, :, first : first + self._num_written]
                values = values[:, :, first : first + self._num_written]
            by_token = (part.movedim(1, -2).unbind(0) for part in (keys, values))
            for layer, key, value in zip(group.layers, *by_token, strict=True):
                written[layer] = (key, value)
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = written

    def _prepare_order(self) -> torch.Tensor | None:
        """For each token, its row in the calls' outputs one after another; None if that is their order."""
        order, begin = [0] * self.num_tokens, 0
        for call in self._calls:
            for row, tokens in enumerate(call.tokens):
                for place, token in enumerate(tokens):
                    order[token] = begin + row * call.width + place
            begin += call.num_rows * call.width
        if order == list(range(begin)):
            return None
        return torch.tensor(order, device=self._device)

    def _call(self, group: Sequence[Segment]) -> Call:
        if group[0].nodes is not None:
            return self._tree_call(group[0], group[0].nodes, group[0].key_length)
        width = padded_queries(max(len(segment.tokens) for segment in group), self._shapes.query_step)
        key_length = max(segment.key_length for segment in group)
        indices = [token for segment in group for token in _padded(segment.tokens, width)]
        whole = len(group) * width == self.num_tokens and indices == list(range(self.num_tokens))
        queries = None if whole else torch.tensor(indices, device=self._device)
        rows = [segment.row for segment in group]
        # A single token that reads no more than it may sees all of its keys.
        sees_all = width == 1 and len(group) == 1 and key_length == rows[0].start + 1
        masks = {
            window: None
            if sees_all and (window is None or window >= key_length)
            else additive_mask(rows, width, key_length, window, self._layers.groups, self._dtype, self._device)
            for window in set(self._layers.windows.values())
        }
        call = Call(len(group), width, queries, [segment.tokens for segment in group], masks)
        self._read(call, [self._cache.extents.offsets[segment.slot] for segment in group], key_length)
        return call

    def _read(self, call: Call, offsets: Sequence[int], key_length: int) -> None:
        """Evenly spaced stretches of columns, as one view per layer."""
        spacing = offsets[1] - offsets[0] if len(offsets) > 1 else 0
        keys: list[Any] = [None] * len(self._layers.shapes)
        values: list[Any] = [None] * len(self._layers.shapes)
        for group in self._cache.groups:
            for buffer, found in ((group.keys, keys), (group.values, values)):
                by_layer, by_head, by_column, _ = buffer.stride()
                view = buffer.as_strided(
                    (buffer.shape[0], len(offsets), buffer.shape[1], key_length, buffer.shape[3]),
                    (by_layer, spacing * by_column, by_head, by_column, 1),
                    offsets[0] * by_column,
                )
                for layer, seen in zip(group.layers, view.unbind(0), strict=True):
                    found[layer] = seen
        call.keys, call.values = keys, values

    def _calls_in_place(self, segment: Segment, branches: Branches) -> Iterator[Call]:
        """All placed nodes over the slot's own columns; the others over copies."""
        tree, first = segment.tree, segment.tokens.start
        assert tree is not None
        width = padded_queries(len(branches.placed), self._shapes.query_step)
        tokens = [first + node for node in branches.placed]
        indices = [*tokens, *tokens[-1:] * (width - len(tokens))]
        whole = indices == list(range(self.num_tokens))
        layers = self._layers
        masks: dict[int | None, torch.Tensor | None] = {
            window: branch_mask(tree, branches, width, window, layers.groups, self._dtype, self._device)
            for window in set(layers.windows.values())
        }
        call = Call(1, width, None if whole else torch.tensor(indices, device=self._device), [tokens], masks)
        self._read(call, [self._cache.extents.offsets[segment.slot]], branches.room.key_length)
        yield call
        for key_length, nodes in groupby(
            branches.others, key=lambda node: self._shapes.key_length(tree.positions[node]) or 0
        ):
            yield self._tree_call(segment, list(nodes), key_length, branches.own)

    def _tree_call(
        self, segment: Segment, nodes: Sequence[int], key_length: int, own: Sequence[int] | None = None
    ) -> Call:
        """Rows of a few nodes on one path, each over keys in the order of its chain. own: of all nodes, as `paths_of`
        wants them."""
        tree, step = segment.tree, self._shapes.query_step
        assert tree is not None and segment.nodes is not None
        paths, first = paths_of(tree, nodes, max(step, PIECE), own), segment.tokens.start - segment.nodes.start
        width = padded_queries(max(map(len, paths.nodes)), step)
        padded = [[*row, *row[-1:] * (width - len(row))] for row in paths.nodes]
        positions = [[tree.positions[node] for node in row] for row in padded]
        layers = self._layers
        masks: dict[int | None, torch.Tensor | None] = {
            window: path_mask(positions, key_length, window, layers.groups, self._dtype, self._device)
            for window in set(layers.windows.values())
        }
        indices = torch.tensor([first + node for row in padded for node in row], device=self._device)
        tokens = [[first + node for node in row] for row in paths.nodes]
        call = Call(len(tokens), width, indices, tokens, masks)
        offset = self._cache.extents.offsets[segment.slot]
        call.copied = CopiedKeys(paths, tree.start, key_length, offset, self._device)
        return call

    @property
    def _dtype(self) -> torch.dtype:
        return self._layers.shapes[0].dtype

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [1, kv_heads, tokens, dim]; `attend` reads them from the cache."""
        self._layer = layer
        self._write(layer, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        return keys, values

    def attend(self, query: torch.Tensor, scale: float | None, dropout: float) -> torch.Tensor:
        """Attention of the layer that was updated last: query [1, heads, tokens, dim] to [1, tokens, heads, dim]."""
        out = self._attend(self._layer, query[0].transpose(0, 1), scale, dropout)
        return out.view(1, len(out), query.shape[1], -1)

    def mix(
        self, layer: int, joined: torch.Tensor, heads: Heads, cos: torch.Tensor, sin: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """A lean layer's `update` and `attend`; see `lean.Memory`."""
        if self._turning is None:
            self._turning = Turning.of(cos, sin)
        if self._rows is not None:
            turned = self._rows.turned(layer, joined, heads, self._turning)
            if turned is not None:
                return self._rows(layer, turned, scale, 0.0)
        query, key, value = split_heads(joined, heads, self._turning)
        self._write(layer, key, value)
        return self._attend(layer, query, scale, 0.0)

    def _write(self, layer: int, *states: torch.Tensor) -> None:
        """Keys and values [tokens, kv_heads, dim] each."""
        if self._prepare is not None:
            self._prepare()
            self._prepare = None
        for places, own in zip(self._written[layer], states, strict=True):
            real = own[: self._num_written] if self._is_padded else own
            if self._sources is not None:
                real = real.index_select(0, self._sources).view(places.shape)
            if self._columns is None:
                places.copy_(real)
            else:
                places.index_copy_(0, self._columns, real)

    def _attend(self, layer: int, query: torch.Tensor, scale: float | None, dropout: float) -> torch.Tensor:
        """query [tokens, heads, dim] to [tokens, heads · value dim]."""
        if self._rows is not None:
            return self._rows(layer, query, scale, dropout)
        window = self._layers.layer_windows[layer]
        outputs = []
        for call in self._calls:
            own = query if call.queries is None else query.index_select(0, call.queries)
            keys, values = self._keys_of(call, layer)
            outputs.append(attend_stacked(own, keys, values, call.masks[window], call.width, scale, dropout))
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out if self._order is None else out.index_select(0, self._order)

    def _keys_of(self, call: Call, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if call.copied is None:
            return call.keys[layer], call.values[layer]
        group = next(group for group in self._cache.groups if layer in group.layers)
        index = group.layers.index(layer)
        return call.copied.copy(group.keys[index], 0), call.copied.copy(group.values[index], 1)


def attend_stacked(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    width: int,
    scale: float | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """query [rows · width, heads, dim] over keys and values [rows, kv_heads, key length, dim], `width` queries a row.

    Query heads that share a key head are stacked along the query axis. Returns [rows · width, heads · value dim].
    """
    (num_queries, heads, dim), (num_rows, kv_heads, _, value_dim) = query.shape, values.shape
    groups = heads // kv_heads
    stacked = query.reshape(num_rows, width, kv_heads, groups, dim).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(num_rows, kv_heads, groups * width, dim)
    out = scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale)
    out = out.reshape(num_rows, kv_heads, groups, width, value_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(num_queries, heads * value_dim)


def _padded(tokens: range, width: int) -> list[int]:
    return [*tokens, *[tokens[-1]] * (width - len(tokens))]
