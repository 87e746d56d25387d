"""A target over any transformers causal language model with plain keys and values.

One forward takes a row per slot. Without `invariant` it has exactly the rows, the width and the key length that it
needs; with it, `invariant.py` chooses shapes under which a token's logits are the same bits in every forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets import attention
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cache import SlotCache
from draftproof.targets.invariant import choose_shapes
from draftproof.targets.layers import Layers, inspect_layers
from draftproof.targets.masks import RowLayout, additive_mask, check_parents, path_columns, path_mask
from draftproof.targets.selfcheck import check_driving
from draftproof.targets.shapes import ExactShapes, Shapes
from draftproof.targets.support import check_architecture, model_length, vocabulary_size
from draftproof.targets.taps import TapStore

PREFILL_CHUNK = 512


class HFTarget:
    """See `draftproof.targets.base.Target` for what the methods promise."""

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int = 1,
        max_model_len: int | None = None,
        eos_token_ids: Sequence[int] = (),
        invariant: bool = False,
        width: int = 16,
    ) -> None:
        """model: a transformers `…ForCausalLM` on one device; its parameters are frozen and it is put in eval mode.
        max_model_len: the most tokens a slot may hold; by default what the model was configured for.
        invariant, width: see `invariant.py`; `width` is the most tokens of one forward under `invariant`.

        Raises ParameterError (num_slots, max_model_len, width) and UnsupportedModelError.
        """
        if num_slots < 1:
            raise ParameterError("num_slots", num_slots, "at least 1")
        if invariant and width < 1:
            raise ParameterError("width", width, "at least 1")
        check_architecture(model)
        self.model = model.eval().requires_grad_(False)
        self.num_slots, self.invariant = num_slots, invariant
        self.max_model_len = model_length(model.config, max_model_len)
        self.vocab_size = vocabulary_size(model)
        self.eos_token_ids = tuple(eos_token_ids)
        self.device, self.dtype = model.device, model.dtype
        if getattr(model, "_supports_sdpa", False) and model.config._attn_implementation != "eager":
            model.set_attn_implementation(attention.register())
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._layers: Layers = inspect_layers(model, self._cache_argument)
        self._stacked: bool = model.config._attn_implementation == attention.NAME
        self.shapes: Shapes = ExactShapes(self.max_model_len)
        self.taps: TapStore | None = None
        self._reset()
        check_driving(self)
        if invariant:
            self.shapes = choose_shapes(self, width)
            self._reset()

    def _reset(self) -> None:
        self.cache = SlotCache(self._layers.shapes, self.num_slots, self.max_model_len + self.shapes.margin)
        self._starts = [0] * self.num_slots
        self._num_releases = [0] * self.num_slots
        self._parents: list[tuple[int, ...] | None] = [None] * self.num_slots

    @contextmanager
    def borrowed(self, shapes: Shapes, num_layers: int) -> Iterator[SlotCache]:
        """Run the first `num_layers` layers with other shapes over a cache of its own; afterwards slots are empty.

        Models that don't read their number of layers from the configuration at each forward run all of them.
        """
        config = self.model.config.get_text_config(decoder=True)
        kept, kept_layers = self.shapes, config.num_hidden_layers
        self.shapes, config.num_hidden_layers = shapes, min(num_layers, kept_layers)
        self._reset()
        try:
            yield self.cache
        finally:
            self.shapes, config.num_hidden_layers = kept, kept_layers
            self._reset()

    @property
    def supports_invariant_trees(self) -> bool:
        """Eager attention adds up a tree's keys in another order than a chain's."""
        return self._stacked

    def request_taps(self, tap_ids: Sequence[int]) -> TapStore:
        """Keep these hidden states from now on; see `taps.py`. Raises ParameterError and UnsupportedModelError."""
        if self.taps is not None:
            self.taps.close()
        self.taps = TapStore(self.model, tap_ids, self.num_slots)
        return self.taps

    def length(self, slot: int) -> int:
        return self.cache.lengths[self._slot(slot)]

    def room(self, slot: int, num_more: int = 0) -> int:
        return self.shapes.room(self.length(slot) + num_more)

    @property
    def max_num_cached_tokens(self) -> int:
        return self.num_slots * self.max_model_len

    def num_columns(self, length: int) -> int:
        return length

    def copy(self, source: int, slot: int, length: int) -> None:
        self.cache.copy(source, slot, length)
        self.cache.clear(slot, length, self.length(slot))
        self.cache.lengths[slot], self._starts[slot], self._parents[slot] = length, length, None
        if self.taps is not None:
            self.taps.copy(source, slot, length)

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest]) -> list[torch.Tensor]:
        self._check(requests)
        logits: dict[int, torch.Tensor] = {}
        for group in self.shapes.split(requests, self.cache.lengths):
            out = self._forward(group, with_logits=True)
            for row, request in enumerate(group):
                index = request.slot if self.shapes.all_slots else row
                logits[request.slot] = out[index, request.first_row : len(request.token_ids)]
        return [logits[request.slot] for request in requests]

    @torch.no_grad()
    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        self._slot(slot)
        done = 0
        while done < len(token_ids):
            room = min(PREFILL_CHUNK, self.room(slot))
            if room == 0:
                raise ParameterError(
                    "token_ids",
                    f"{len(token_ids)} tokens",
                    f"at most {self.max_model_len - self.length(slot) + done}",
                    f"the model reads {self.max_model_len} tokens",
                )
            request = ScoreRequest(slot, tuple(token_ids[done : done + room]))
            self._check([request])
            self._forward([request], with_logits=False)
            done += room

    def rewind(self, slot: int, length: int, path: Sequence[int] = ()) -> None:
        current, start = self.length(slot), self._starts[slot]
        if not 0 <= length <= current:
            raise ParameterError("length", length, f"between 0 and the slot's length {current}")
        kept = list(path) if path else list(range(max(0, length - start)))
        if path or self._parents[slot] is not None:
            self._check_path(slot, kept, length)
        moved = kept if kept != list(range(len(kept))) else []
        if moved:
            self.cache.gather(slot, start, moved)
        if self.taps is not None:
            self.taps.rewind(slot, length, start, moved)
        self.cache.clear(slot, length, current)
        self.cache.lengths[slot] = length
        self._starts[slot], self._parents[slot] = min(start, length), None

    def release(self, slot: int) -> None:
        self.cache.clear(self._slot(slot), 0, self.cache.capacity)
        self.cache.lengths[slot], self._starts[slot], self._parents[slot] = 0, 0, None
        self._num_releases[slot] += 1
        if self.taps is not None:
            self.taps.rewind(slot, 0, 0, ())

    def num_releases(self, slot: int) -> int:
        return self._num_releases[slot]

    def _forward(self, requests: Sequence[ScoreRequest], *, with_logits: bool) -> torch.Tensor:
        """Run one forward, append its tokens; logits [rows, width, vocab_size], or the hidden states."""
        cache, by_slot = self.cache, {request.slot: request for request in requests}
        slots = list(range(self.num_slots)) if self.shapes.all_slots else [request.slot for request in requests]
        width, key_length = self.shapes.forward(requests, cache.lengths)
        ids: list[list[int]] = []
        rows: list[RowLayout] = []
        positions: list[list[int]] = []
        for slot in slots:
            request = by_slot.get(slot)
            tokens = request.token_ids if request else (0,)
            row = RowLayout.of(cache.lengths[slot], len(tokens), request.parents if request else None)
            padding = width - len(tokens)
            ids.append([*tokens, *[tokens[-1]] * padding])
            positions.append([min(p, self.max_model_len - 1) for p in [*row.positions, *[row.positions[-1]] * padding]])
            rows.append(row)
        by_path = self.shapes.query_step > 0 and self._stacked and any(row.parents is not None for row in rows)
        sources = path_columns(rows, width, key_length).to(self.device) if by_path else None
        cache.prepare(slots, [row.start for row in rows], width, key_length, sources)
        packed = torch.tensor([ids, positions], device=self.device)
        arguments = {
            "input_ids": packed[0],
            "position_ids": packed[1],
            "attention_mask": self._masks(rows, width, key_length, by_path),
            self._cache_argument: cache,
            "use_cache": True,
        }
        out: torch.Tensor = self.model(**arguments).logits if with_logits else self.model.base_model(**arguments)[0]
        for slot, row in zip(slots, rows, strict=True):
            request = by_slot.get(slot)
            num_tokens = len(request.token_ids) if request else 0
            cache.clear(slot, row.start + num_tokens, row.start + width)
            if request:
                cache.lengths[slot] = row.start + num_tokens
                self._starts[slot], self._parents[slot] = row.start, request.parents
        if self.taps is not None:
            counts = [len(by_slot[slot].token_ids) if slot in by_slot else 0 for slot in slots]
            self.taps.record(slots, [row.start for row in rows], counts)
        return out

    def _masks(self, rows: list[RowLayout], width: int, key_length: int, by_path: bool) -> Any:
        """One mask, a mask per layer type, or None where a single token sees every key."""
        windows = self._layers.windows
        if width == 1 and len(rows) == 1 and key_length == rows[0].start + 1 and not self.shapes.query_step:
            windows = {kind: window for kind, window in windows.items() if window is not None and window < key_length}
        step = (self.shapes.query_step if self._stacked else 0) or 1
        num_queries = step * -(-width // step)
        groups = self._layers.groups if self._stacked else 1
        if by_path:
            rest = (step * groups, self.dtype, self.device)
            masks = {kind: path_mask(rows, width, key_length, window, *rest) for kind, window in windows.items()}
        else:
            masks = {
                kind: additive_mask(rows, num_queries, key_length, window, groups, self.dtype, self.device)
                for kind, window in windows.items()
            }
        if len(self._layers.windows) == 1:
            return next(iter(masks.values()), None)
        return {kind: masks.get(kind) for kind in self._layers.windows}

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise ParameterError("slot", slot, f"between 0 and {self.num_slots - 1}")
        return slot

    def _check(self, requests: Sequence[ScoreRequest]) -> None:
        if not requests or len({request.slot for request in requests}) != len(requests):
            slots = [request.slot for request in requests]
            raise ParameterError("requests", slots, "one or more, each on its own slot")
        for request in requests:
            tokens, room = request.token_ids, self.room(request.slot)
            if not 1 <= len(tokens) <= room:
                raise ParameterError("token_ids", f"{len(tokens)} tokens", f"1 to room({request.slot}) = {room} tokens")
            if min(tokens) < 0 or max(tokens) >= self.vocab_size:
                wrong = next(token for token in tokens if not 0 <= token < self.vocab_size)
                raise ParameterError("token_ids", wrong, f"ids from 0 to {self.vocab_size - 1}")
            if self._parents[request.slot] is not None:
                raise ParameterError("slot", request.slot, "rewound to a path after a tree, before the next call")
            if request.parents is not None:
                check_parents(request.parents, len(tokens))
                if self.invariant and not self.supports_invariant_trees:
                    raise UnsupportedModelError(
                        f"{type(self.model).__name__} runs with eager attention, under which a tree's logits aren't "
                        "the bits of its chains; draft chains, or go on without invariant execution"
                    )

    def _check_path(self, slot: int, kept: Sequence[int], length: int) -> None:
        num_tokens = self.length(slot) - self._starts[slot]
        parents = self._parents[slot] or tuple(range(-1, num_tokens - 1))
        previous = -1
        for node in kept:
            if not 0 <= node < num_tokens or parents[node] != previous:
                raise ParameterError("path", tuple(kept), "a path from the first token down the tree that was scored")
            previous = node
        if length > self._starts[slot] + len(kept):
            raise ParameterError("length", length, f"at most the {self._starts[slot]} entries before and the path's")
