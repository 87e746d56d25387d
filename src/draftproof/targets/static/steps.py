"""Static forwards of a target: the tables are filled, then the same calls run over the same buffers.

Sizes are rounded up to a few buckets. On a CUDA device a bucket's calls are captured as a graph when they are needed
for the second time, and replayed; elsewhere, and for forwards too wide to gain from it, the same code runs eagerly.
Graphs share one memory pool, and the least recently used are dropped when they take more than `graph_memory`.

Logits, and hidden states that are tapped, lie in buffers of the graph: the next forward may overwrite them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.cache import SlotCache
from draftproof.targets.layers import Layers
from draftproof.targets.lean import LeanDecoder
from draftproof.targets.static.attention import Attention, Shape, most_tokens, power_of_two
from draftproof.targets.static.capturing import captured
from draftproof.targets.static.operations import Heads, Operations
from draftproof.targets.static.tables import Bucket, Kind, Plan, Tables, num_links, plan_of
from draftproof.targets.taps import TapStore

MOST_CAPTURED: Final = 256
"""Tokens of a captured forward; wider ones keep the device busy for longer than the host needs to ask for them."""
KEY_BUCKET: Final = 256
GRAPH_MEMORY: Final = 2 << 30
"""Bytes of all graphs' own buffers."""

Call = Callable[[torch.Tensor, torch.Tensor, "StaticMemory", bool], torch.Tensor]


@dataclass(slots=True)
class Step:
    """A bucket's buffers and calls."""

    tables: Tables
    attentions: list[Attention]
    logits: torch.Tensor | None = None
    seen: dict[int, torch.Tensor] = field(default_factory=dict)
    graph: Any = None
    num_bytes: int = 0
    has_run: bool = False


class StaticMemory:
    """The cache in one static forward: for lean layers (`mix`), and for transformers' own (`update`, then `attend`)."""

    def __init__(
        self,
        cache: SlotCache,
        layers: Layers,
        step: Step,
        operations: Operations,
        count: torch.Tensor | None,
    ) -> None:
        self._step, self._operations, self._count = step, operations, count
        self._layer = 0
        self._buffers: list[Any] = [None] * len(layers.shapes)
        for group in cache.groups:
            for layer, keys, values in zip(group.layers, group.keys.unbind(0), group.values.unbind(0), strict=True):
                self._buffers[layer] = (keys, values)

    def mix(
        self, layer: int, joined: torch.Tensor, heads: Heads, cos: torch.Tensor, sin: torch.Tensor, scale: float
    ) -> torch.Tensor:
        keys, values = self._buffers[layer]
        tables = self._step.tables
        query = self._operations.place(joined, heads, cos, sin, tables.columns, keys, values, self._count)
        return self._step.attentions[layer](query, keys, values, tables, scale).flatten(1)

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [1, kv_heads, tokens, dim]; `attend` reads them from the cache."""
        self._layer = layer
        for states, cached in zip((keys, values), self._buffers[layer], strict=True):
            self._operations.write(states[0], self._step.tables.columns, cached)
        return keys, values

    def attend(self, query: torch.Tensor, scale: float | None, dropout: float) -> torch.Tensor:
        """Attention of the layer that was updated last: query [1, heads, tokens, dim] to [1, tokens, heads, dim]."""
        keys, values = self._buffers[self._layer]
        queries = query[0].transpose(0, 1).contiguous()
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self._step.attentions[self._layer](queries, keys, values, self._step.tables, scale)[None]


class StaticSteps:
    """Forwards of one target over one cache.

    call: runs the model's own code over (input_ids, position_ids [1, tokens], memory) and returns logits, or hidden
    states if it isn't asked for logits; used where there is no lean decoder. captures: make graphs.
    """

    def __init__(
        self,
        model: Any,
        lean: LeanDecoder | None,
        layers: Layers,
        cache: SlotCache,
        operations: Operations,
        *,
        num_heads: int,
        invariant: bool,
        captures: bool,
        call: Call | None = None,
    ) -> None:
        self._model, self._lean, self._layers, self._cache = model, lean, layers, cache
        self._operations, self._invariant, self._captures, self._call = operations, invariant, captures, call
        self._device = layers.shapes[0].device
        self._shapes = [
            Shape(num_heads, shape.heads, shape.key_dim, shape.value_dim, window)
            for shape, window in zip(layers.shapes, layers.layer_windows, strict=True)
        ]
        self._width = min(most_tokens(shape.groups) for shape in self._shapes)
        self._steps: dict[Bucket, Step] = {}
        self._pool: Any = None
        self.taps: TapStore | None = None
        vocab_size = int(model.get_output_embeddings().out_features)
        self._no_rows = torch.zeros(0, vocab_size, dtype=model.dtype, device=self._device)

    def run(self, requests: Sequence[ScoreRequest], num_tokens: int | None = None) -> list[torch.Tensor]:
        """Of each request its rows of logits [num_rows, vocab_size]; the taps are told what was tapped.

        num_tokens: padding included; None for as many as the next bucket has.
        """
        starts = [self._cache.lengths[request.slot] for request in requests]
        offsets = [self._cache.extents.offsets[request.slot] for request in requests]
        plan = plan_of(requests, starts, offsets, self._width, paths=self._invariant)
        bucket = self._bucket(plan, num_tokens)
        step = self._steps.pop(bucket, None) or self._make(bucket)
        self._steps[bucket] = step
        step.tables.fill(plan)
        wanted = plan.wanted
        is_captured = self._captures and bucket.num_tokens <= MOST_CAPTURED
        if step.graph is None and is_captured and step.has_run:
            self._try_capture(step)
        if step.graph is not None:
            step.graph.replay()
        elif is_captured:
            # The calls that are captured if they are needed again.
            self._forward(step)
        elif num_tokens is None and self._lean is not None:
            self._forward(step, [index for rows in wanted for index in rows])
            wanted = _counted(wanted)
        else:
            self._forward(step)
        step.has_run = True
        if self.taps is not None:
            self.taps.see(step.seen)
        logits = step.logits
        if step.graph is None:
            step.logits, step.seen = None, {}
        if logits is None:
            return [self._no_rows for _ in requests]
        return [logits[rows.start : rows.stop] for rows in wanted]

    @property
    def most_tokens(self) -> int:
        """Of a row of attention."""
        return self._width

    def chain_step(self, num_requests: int, width: int, num_keys: int, num_tokens: int | None) -> Step:
        """Buffers of their own for `width` tokens of a chain for each request; for `forward`, whose caller fills them.

        num_keys: the most that a slot will hold. num_tokens: padding included; None for as many as the bucket has.
        """
        pieces = num_requests * -(-width // self._width)
        bucket = Bucket(
            num_tokens=num_tokens or round_up(num_requests * width),
            width=power_of_two(min(width, self._width)),
            num_rows=power_of_two(pieces),
            num_keys=key_bucket(num_keys),
            kind=Kind.CHAIN,
            num_links=0,
            with_logits=True,
        )
        return self._make(bucket)

    def forward(self, step: Step) -> torch.Tensor:
        """The calls of a step whose tables are filled; logits of all its tokens [num_tokens, vocab_size]."""
        self._forward(step)
        assert step.logits is not None
        return step.logits

    def use_taps(self, taps: TapStore) -> None:
        """Keep these hidden states from now on; the graphs that are there don't."""
        self.taps = taps
        self._steps.clear()
        self._pool = None

    def _bucket(self, plan: Plan, num_tokens: int | None) -> Bucket:
        count = len(plan.ids)
        longest = max(piece.total for piece in plan.pieces)
        widest = max(piece.count for piece in plan.pieces)
        return Bucket(
            num_tokens=num_tokens or round_up(count),
            width=power_of_two(widest),
            num_rows=power_of_two(len(plan.pieces)),
            num_keys=key_bucket(longest),
            kind=plan.kind,
            num_links=power_of_two(num_links(plan)) if plan.kind != Kind.CHAIN else 0,
            with_logits=any(plan.wanted),
        )

    def _make(self, bucket: Bucket) -> Step:
        made: dict[Shape, Attention] = {}
        for shape in self._shapes:
            if shape not in made:
                made[shape] = Attention(shape, bucket, self._device, invariant=self._invariant)
        return Step(Tables(bucket, self._device), [made[shape] for shape in self._shapes])

    def _forward(self, step: Step, rows: Sequence[int] | None = None) -> None:
        """rows: the tokens whose logits are wanted; None for all."""
        tables, with_logits = step.tables, step.tables.bucket.with_logits
        # Other forwards have little padding.
        count = tables.count if self._invariant else None
        memory = StaticMemory(self._cache, self._layers, step, self._operations, count)
        wanted = () if self.taps is None else self.taps.tap_ids
        if self._lean is None:
            assert self._call is not None
            out = self._call(tables.ids[None], tables.positions[None], memory, with_logits)
            step.logits = out if with_logits else None
            step.seen = {} if self.taps is None else self.taps.seen()
            return

        def see(tap: int, hidden: torch.Tensor) -> None:
            if tap in wanted:
                step.seen[tap] = hidden.clone()

        config = self._model.config.get_text_config(decoder=True)
        hidden = self._lean.run(tables.ids, tables.positions, memory, config.num_hidden_layers, see, count)
        if with_logits and rows is not None:
            hidden = hidden.index_select(0, torch.tensor(rows, device=self._device))
        step.logits = self._model.get_output_embeddings()(hidden) if with_logits else None

    def _try_capture(self, step: Step) -> None:
        """A model whose own code waits for the device can't be captured: it runs call by call, to the same bits."""
        try:
            self._capture(step)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if self._lean is not None:
                raise
            self._captures, step.graph = False, None
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"{type(self._model).__name__} runs without CUDA graphs: {reason}", stacklevel=2)

    def _capture(self, step: Step) -> None:
        # The first run has compiled kernels and made workspaces, which a capture must not.
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.memory_reserved(self._device)
        try:
            step.graph = captured(partial(self._forward, step), self._pool)
        except RuntimeError:
            self._pool = None
            raise
        step.num_bytes = max(torch.cuda.memory_reserved(self._device) - before, 0)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._steps) > 1 and sum(step.num_bytes for step in self._steps.values()) > GRAPH_MEMORY:
            self._steps.pop(next(iter(self._steps)))


def _counted(ranges: Sequence[range]) -> list[range]:
    """As many numbers each, one after another from 0."""
    found, begin = [], 0
    for numbers in ranges:
        found.append(range(begin, begin + len(numbers)))
        begin += len(numbers)
    return found


def round_up(count: int) -> int:
    """Of tokens: powers of two up to 16, then steps of an eighth to a half."""
    if count <= 16:
        return power_of_two(count)
    step = max(power_of_two(count) // 4, 8)
    return step * -(-count // step)


def key_bucket(count: int) -> int:
    """Of keys."""
    return max(power_of_two(count), KEY_BUCKET)
