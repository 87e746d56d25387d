"""Calls the model: turns requests into the arguments of one forward, and its output into rows of logits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from draftproof.targets import attention
from draftproof.targets.base import ScoreRequest
from draftproof.targets.branches import Branches, Rooms
from draftproof.targets.cache import SlotCache
from draftproof.targets.layers import Layers
from draftproof.targets.lean import LeanDecoder
from draftproof.targets.masks import RowLayout
from draftproof.targets.packed import PackedForward
from draftproof.targets.recurrent import functions
from draftproof.targets.recurrent.forward import RecurrentForward
from draftproof.targets.rows import RowsForward
from draftproof.targets.shapes import Shapes
from draftproof.targets.static.operations import Operations
from draftproof.targets.static.steps import StaticMemory, StaticSteps
from draftproof.targets.taps import TapStore


@dataclass(frozen=True, slots=True)
class Run:
    """Of each request: rows [num_rows, vocab_size], and its first token's index among all tokens of the forward.

    branches: by slot, where the entries of a tree lie that aren't in the nodes' order.
    """

    rows: list[torch.Tensor]
    firsts: list[int]
    branches: Mapping[int, Branches] = field(default_factory=dict)


class Runner:
    """model: a transformers causal language model that `attention.py` was installed in, if it can be."""

    def __init__(self, model: Any, layers: Layers, cache_argument: str, max_model_len: int) -> None:
        self._model, self._layers, self._cache_argument = model, layers, cache_argument
        self._max_model_len = max_model_len
        self.static: StaticSteps | None = None
        self.lean: LeanDecoder | None = None
        self.taps: TapStore | None = None
        self.rooms: Rooms | None = None
        self.attends_by_row = False
        has_attention = any(shape.heads for shape in layers.shapes)
        self.packs: bool = not has_attention or model.config._attn_implementation == attention.NAME
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        # A mask that is there already keeps models from making one; what a token sees is the forward's affair.
        nothing = torch.zeros(1, 1, 1, 1, dtype=layers.shapes[0].dtype, device=layers.shapes[0].device)
        self._no_masks: Any = nothing if len(layers.windows) == 1 else dict.fromkeys(layers.windows, nothing) or None

    def most_tokens(self, length: int, shapes: Shapes) -> int:
        """How many tokens one forward may append to a slot that holds `length`."""
        most = self._max_model_len if shapes.most_tokens is None else shapes.most_tokens
        key_length = shapes.key_length(length)
        return most if self.packs or key_length is None else min(most, key_length - length)

    def batches(
        self, requests: Sequence[ScoreRequest], lengths: Sequence[int], shapes: Shapes
    ) -> Iterator[list[ScoreRequest]]:
        """The requests of one forward each."""
        if not self.packs:
            by_keys: dict[Any, list[ScoreRequest]] = {}
            for request in requests:
                alone = shapes.most_tokens is not None
                key = request.slot if alone else shapes.key_length(lengths[request.slot])
                by_keys.setdefault(key, []).append(request)
            yield from by_keys.values()
            return
        batch: list[ScoreRequest] = []
        for request in requests:
            num_tokens = sum(len(other.token_ids) for other in (*batch, request))
            if batch and shapes.most_tokens is not None and num_tokens > shapes.most_tokens:
                yield batch
                batch = []
            batch.append(request)
        yield batch

    def run(self, cache: SlotCache, requests: Sequence[ScoreRequest], shapes: Shapes) -> Run:
        """One forward; its tokens are in the cache afterwards, the slots' lengths are the caller's to set."""
        if self.static is not None:
            return self._run_static(self.static, requests, shapes)
        return (self._run_packed if self.packs else self._run_rows)(cache, requests, shapes)

    def static_steps(self, cache: SlotCache, operations: Operations, *, invariant: bool, captures: bool) -> StaticSteps:
        """Static forwards over a cache: by a lean decoder, or by the model's own code."""

        def call(ids: torch.Tensor, positions: torch.Tensor, memory: StaticMemory, with_logits: bool) -> torch.Tensor:
            cache.forward = memory
            arguments = self._arguments(ids, positions, self._no_masks, cache)
            with attention.running(memory):
                out: torch.Tensor = self._model(**arguments).logits if with_logits else self._hidden(arguments)
            return out.flatten(0, 1)

        config = self._model.config.get_text_config(decoder=True)
        return StaticSteps(
            self._model,
            self.lean,
            self._layers,
            cache,
            operations,
            num_heads=config.num_attention_heads,
            invariant=invariant,
            captures=captures,
            call=call,
        )

    def _run_static(self, static: StaticSteps, requests: Sequence[ScoreRequest], shapes: Shapes) -> Run:
        firsts, first = [], 0
        for request in requests:
            firsts.append(first)
            first += len(request.token_ids)
        return Run(static.run(requests, shapes.num_tokens), firsts)

    def _run_packed(self, cache: SlotCache, requests: Sequence[ScoreRequest], shapes: Shapes) -> Run:
        num_tokens = sum(len(request.token_ids) for request in requests)
        num_padding = max((shapes.num_tokens or shapes.min_tokens) - num_tokens, 0)
        forward = PackedForward(
            cache, self._layers, shapes, requests, num_padding, self.rooms, by_row=self.attends_by_row
        )
        ids = [token_id for request in requests for token_id in request.token_ids]
        positions = [
            position
            for request in requests
            for position in RowLayout.of(cache.lengths[request.slot], len(request.token_ids), request.parents).positions
        ]
        ids += ids[-1:] * num_padding
        positions += positions[-1:] * num_padding
        firsts, wanted, first = [], [], 0
        for request in requests:
            firsts.append(first)
            wanted.append(range(first + request.first_row, first + len(request.token_ids)))
            first += len(request.token_ids)
        if self.lean is not None:
            return Run(self._run_lean(self.lean, forward, ids, positions, wanted, shapes), firsts, forward.branches)
        cache.forward = forward
        recurrent = None if cache.recurrent is None else RecurrentForward(cache.recurrent, requests, self._model.device)
        cache.recurrent_forward = recurrent
        with attention.running(forward), functions.running(recurrent):
            out = self._call(
                cache, [ids], [positions], self._no_masks, wanted, shapes, fixed=shapes.num_tokens is not None
            )
        if recurrent is not None:
            recurrent.finish()
        return Run(out, firsts, forward.branches)

    def _run_lean(
        self,
        lean: LeanDecoder,
        forward: PackedForward,
        ids: list[int],
        positions: list[int],
        wanted: Sequence[range],
        shapes: Shapes,
    ) -> list[torch.Tensor]:
        """As `_call`, by the lean decoder."""
        table = torch.tensor([ids, positions], device=self._model.device)
        config = self._model.config.get_text_config(decoder=True)
        see = None if self.taps is None else self.taps.see_one
        hidden = lean.run(table[0], table[1], forward, config.num_hidden_layers, see)
        rows = [index for indices in wanted for index in indices]
        if not rows:
            return [hidden.new_zeros(0, self._vocab_size) for _ in wanted]
        head = self._model.get_output_embeddings()
        if shapes.num_tokens is not None or len(rows) == len(ids):
            logits: torch.Tensor = head(hidden)
            return [logits[indices.start : indices.stop] for indices in wanted]
        kept = rows + rows[-1:] * (shapes.min_tokens - len(rows))
        logits = head(hidden.index_select(0, torch.tensor(kept, device=hidden.device)))
        return list(torch.split(logits[: len(rows)], [len(indices) for indices in wanted]))

    def _run_rows(self, cache: SlotCache, requests: Sequence[ScoreRequest], shapes: Shapes) -> Run:
        longest = max(len(request.token_ids) for request in requests)
        width = max(longest, shapes.min_tokens)
        ends = [cache.lengths[request.slot] + len(request.token_ids) for request in requests]
        key_length = shapes.key_length(cache.lengths[requests[0].slot]) or max(ends)
        forward = RowsForward(cache, self._layers, requests, width=width, key_length=key_length)
        ids, positions = [], []
        for request, row in zip(requests, forward.rows, strict=True):
            padding = width - len(request.token_ids)
            ids.append([*request.token_ids, *request.token_ids[-1:] * padding])
            positions.append([*row.positions, *row.positions[-1:] * padding])
        firsts = [row * width for row in range(len(requests))]
        wanted = [
            range(first + request.first_row, first + len(request.token_ids))
            for first, request in zip(firsts, requests, strict=True)
        ]
        masks: Any = forward.masks if len(forward.masks) > 1 else next(iter(forward.masks.values()))
        cache.forward = forward
        return Run(self._call(cache, ids, positions, masks, wanted, shapes, fixed=True), firsts)

    def _call(
        self,
        cache: SlotCache,
        ids: list[list[int]],
        positions: list[list[int]],
        masks: Any,
        wanted: Sequence[range],
        shapes: Shapes,
        *,
        fixed: bool,
    ) -> list[torch.Tensor]:
        """For each range of token indices its rows of logits. fixed: the output layer has all tokens, or none."""
        packed = torch.tensor([ids, positions], device=self._model.device)
        arguments = self._arguments(packed[0], packed[1], masks, cache)
        rows = [index for indices in wanted for index in indices]
        if not rows:
            hidden = self._hidden(arguments)
            return [hidden.new_zeros(0, self._vocab_size) for _ in wanted]
        every = fixed or len(rows) == len(ids[0]) or not self._keeps_rows
        if not every:
            kept = rows + rows[-1:] * (shapes.min_tokens - len(rows))
            arguments["logits_to_keep"] = torch.tensor(kept, device=self._model.device)
        logits: torch.Tensor = self._model(**arguments).logits.flatten(0, 1)
        if every:
            return [logits[indices.start : indices.stop] for indices in wanted]
        return list(torch.split(logits[: len(rows)], [len(indices) for indices in wanted]))

    def _arguments(self, ids: torch.Tensor, positions: torch.Tensor, masks: Any, cache: SlotCache) -> dict[str, Any]:
        return {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": masks,
            self._cache_argument: cache,
            "use_cache": True,
        }

    def _hidden(self, arguments: dict[str, Any]) -> torch.Tensor:
        hidden: torch.Tensor = self._model.base_model(**arguments)[0]
        return hidden

    @property
    def _vocab_size(self) -> int:
        return int(self._model.get_output_embeddings().out_features)
