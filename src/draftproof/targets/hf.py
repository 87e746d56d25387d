"""A target over any transformers causal language model with plain keys and values, recurrent states, or both.

One forward takes the tokens of any number of requests, side by side (`packed.py`); a model whose attention isn't ours
gets a row per request (`rows.py`). Without `invariant` a forward has exactly the tokens and keys that it needs; with
it, `invariant.py` chooses shapes under which a token's logits are the same bits in every forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any

import torch

from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets import attention
from draftproof.targets.base import ScoreRequest
from draftproof.targets.branches import Room, find_rooms, num_branches
from draftproof.targets.cache import SlotCache
from draftproof.targets.contents import SlotContents
from draftproof.targets.extents import num_columns
from draftproof.targets.invariant import choose_shapes
from draftproof.targets.key_order import attention_agrees, moves_blocks, spreads
from draftproof.targets.layers import Layers, inspect_layers
from draftproof.targets.lean import LeanDecoder
from draftproof.targets.memory import plan_columns
from draftproof.targets.recurrent.functions import install
from draftproof.targets.requested import check_requests
from draftproof.targets.runner import Run, Runner
from draftproof.targets.selfcheck import check_driving
from draftproof.targets.shapes import KEY_STEP, ExactShapes, Shapes
from draftproof.targets.static.following import FollowingForward
from draftproof.targets.static.operations import operations_for
from draftproof.targets.summation import limit_rows, row_window
from draftproof.targets.support import check_architecture, model_length, vocabulary_size
from draftproof.targets.taps import TapStore

PREFILL_CHUNK = 512
CACHE_ARGUMENTS = ("past_key_values", "cache", "cache_params")
"""What releases of transformers, and models, name the cache."""
DEFAULT_WIDTH = 16
"""Tokens of a forward of fixed shape."""


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
        width: int = DEFAULT_WIDTH,
        max_num_cached_tokens: int | None = None,
        cache_memory: int | None = None,
        static: bool | None = None,
        branches_in_place: bool = True,
    ) -> None:
        """model: a transformers `…ForCausalLM` on one device; its parameters are frozen and it is put in eval mode.
        max_model_len: the most tokens a slot may hold; by default what the model was configured for.
        invariant, width: see `invariant.py`; `width` is the most tokens of a slot and forward under fixed shapes.
        max_num_cached_tokens, cache_memory: of all slots together, see `memory.py`.
        static: run forwards of few shapes over fixed buffers (`static/`), as captured graphs on a GPU; None for where
        that pays, on CUDA devices. branches_in_place: trees under invariant execution on a CPU are computed over the
        slot's own columns where the kernels' sums allow it (`branches.py`).

        Raises ParameterError (num_slots, max_model_len, width, the cache's size) and UnsupportedModelError.
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
        if getattr(model, "_supports_sdpa", False) and getattr(model.config, "_attn_implementation", "") != "eager":
            model.set_attn_implementation(attention.register())
        names = inspect.signature(model.forward).parameters
        cache_argument = next((name for name in CACHE_ARGUMENTS if name in names), CACHE_ARGUMENTS[0])
        self._layers: Layers = inspect_layers(model, cache_argument)
        self._runner = Runner(model, self._layers, cache_argument, self.max_model_len)
        self.taps: TapStore | None = None
        self.shapes: Shapes = ExactShapes()
        self._operations = operations_for(self.device)
        if self.is_recurrent:
            install(model, has_states=any(shape.state is not None for shape in self._layers.recurrent.values()))
            if not self._runner.packs:
                raise UnsupportedModelError(
                    f"{type(model).__name__} has recurrent layers and eager attention; load it with "
                    "attn_implementation='sdpa'"
                )
            if static:
                raise ParameterError("static", static, "False or None for a model with recurrent layers")
            static = False
        self._is_static = self._runner.packs and (self.device.type == "cuda" if static is None else static)
        self._runner.lean = LeanDecoder.of(model, self._operations) if self._runner.packs else None
        self._reset(0)
        self._choose_driving()
        if invariant:
            self.keep_branches_in_place(branches_in_place)
            self.shapes = choose_shapes(self, width)
        self._reset(
            plan_columns(
                self._layers.shapes,
                num_slots=num_slots,
                max_model_len=self.max_model_len,
                max_num_cached_tokens=max_num_cached_tokens,
                cache_memory=cache_memory,
                num_state_bytes=num_slots * sum(shape.num_bytes for shape in self._layers.recurrent.values()),
            ),
            captures=self.device.type == "cuda",
        )

    def _choose_driving(self) -> None:
        """The first way of calling the model that agrees with it: lean layers; static forwards of its own code; packed
        ones; a row per request, for models that do more with what the cache returns (compressed keys)."""
        while True:
            try:
                check_driving(self)
                return
            except UnsupportedModelError:
                if self._runner.lean is not None:
                    self._runner.lean = None
                elif self._is_static:
                    self._is_static = False
                elif self._runner.packs and not self.is_recurrent:
                    self._runner.packs = False
                else:
                    raise

    def _reset(self, columns: int, *, captures: bool = False) -> None:
        cache = SlotCache(
            self._layers.shapes, self.num_slots, columns, self._layers.recurrent, clears=not self._is_static
        )
        self._runner.static = None
        if self._is_static:
            self._runner.static = self._runner.static_steps(
                cache, self._operations, invariant=self.invariant, captures=captures
            )
        self._contents = SlotContents(cache, self.taps)

    @property
    def cache(self) -> SlotCache:
        """Keys, values and states of all slots."""
        return self._contents.cache

    @contextmanager
    def borrowed(self, shapes: Shapes, num_layers: int, length: int) -> Iterator[SlotCache]:
        """Run the first `num_layers` layers with other shapes over a cache of `length` tokens a slot.

        Models that don't read their number of layers from the configuration at each forward run all of them. The
        target's own cache is back afterwards.
        """
        config = self.model.config.get_text_config(decoder=True)
        kept, kept_layers = self.shapes, config.num_hidden_layers
        state = self._contents, self._runner.static
        self.shapes, config.num_hidden_layers = shapes, min(num_layers, kept_layers)
        self._reset(self.num_slots * num_columns(length))
        try:
            yield self.cache
        finally:
            self.shapes, config.num_hidden_layers = kept, kept_layers
            self._contents, self._runner.static = state

    @property
    def is_static(self) -> bool:
        """Whether forwards run over fixed buffers (`static/`)."""
        return self._is_static

    def row_window(self) -> tuple[int, int | None]:
        """See `summation.py`: of all products that a forward runs, packed ones limited to rows of one order."""
        products = () if self._runner.lean is None else self._runner.lean.products
        limit_rows(self.model, products)
        return row_window(self.model, products)

    def attention_agrees(self, query_step: int) -> bool:
        """See `key_order.py`; True where attention isn't packed, which `probe` alone can ask."""
        return not self._runner.packs or self.is_static or attention_agrees(self._layers, self._num_heads, query_step)

    @property
    def _num_heads(self) -> int:
        return int(getattr(self.model.config.get_text_config(decoder=True), "num_attention_heads", 0) or 0)

    @property
    def keeps_branches_in_place(self) -> bool:
        """Whether trees under invariant execution are computed over the slot's own columns where they fit; see
        `branches.py`."""
        return self._runner.rooms is not None

    def keep_branches_in_place(self, wanted: bool) -> None:
        """On a CPU alone. What `key_order.py` finds is asked once for each length of keys."""
        possible = self.device.type == "cpu" and self._runner.packs and not self.is_static
        self._runner.rooms = self._rooms if wanted and possible else None

    @cached_property
    def _rooms(self) -> Callable[[int, int], tuple[Room, ...]]:
        asked = (self._layers, self._num_heads)
        return cache(
            partial(
                find_rooms, spreads=cache(partial(spreads, *asked)), moves_blocks=cache(partial(moves_blocks, *asked))
            )
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers have a recurrent state; see `recurrent/`."""
        return bool(self._layers.recurrent)

    @property
    def supports_trees(self) -> bool:
        """A recurrent state follows one path."""
        return not self.is_recurrent

    def num_branches(self, slot: int, num_entries: int) -> int | None:
        """Under invariant execution on a CPU, those that fit in place: see `branches.py`. Where branches take lanes, as
        with AMX, or always copies, any number."""
        start, rooms = self.length(slot), self._runner.rooms
        first, last = (self.shapes.key_length(start + more) for more in (0, num_entries - 1))
        if rooms is None or first is None or last is None or self.shapes.num_tokens is not None:
            return None
        widest = rooms(KEY_STEP, KEY_STEP)
        if not widest or widest[0].in_lanes:
            return None
        return num_branches(start, num_entries, rooms(first, last))

    @property
    def supports_invariant_trees(self) -> bool:
        """Eager attention adds up a tree's keys in another order than a chain's."""
        return self._runner.packs and self.supports_trees

    def request_taps(self, tap_ids: Sequence[int]) -> TapStore:
        """Keep these hidden states from now on; see `taps.py`. Raises ParameterError and UnsupportedModelError.

        The same ones are kept once, whoever asks; other ones take their place, and who reads the old store is told.
        """
        if self.taps is not None and self.taps.tap_ids == tuple(tap_ids):
            return self.taps
        store = TapStore(self.model, tap_ids, self.num_slots)
        if self.taps is not None:
            self.taps.close()
        self.taps = self._contents.taps = self._runner.taps = store
        if self._runner.static is not None:
            self._runner.static.use_taps(self.taps)
        return self.taps

    @property
    def max_num_cached_tokens(self) -> int:
        return self.cache.max_columns

    def num_columns(self, length: int) -> int:
        return num_columns(length)

    def length(self, slot: int) -> int:
        return self._contents.length(slot)

    def room(self, slot: int, num_more: int = 0) -> int:
        length = self.length(slot) + num_more
        return max(min(self.max_model_len - length, self._runner.most_tokens(length, self.shapes)), 0)

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest]) -> list[torch.Tensor]:
        check_requests(self, requests, self._contents.parents)
        self._contents.reserve(requests)
        logits: dict[int, torch.Tensor] = {}
        batches = list(self._runner.batches(requests, self.cache.lengths, self.shapes))
        for batch in batches:
            run = self._run(batch)
            self._contents.append(batch, run.firsts, run.branches)
            for request, rows in zip(batch, run.rows, strict=True):
                # The next forward may write its logits where these lie.
                logits[request.slot] = rows if batch is batches[-1] else rows.clone()
        return [logits[request.slot] for request in requests]

    @property
    def can_follow(self) -> bool:
        """Whether `following` can be called."""
        return self._runner.static is not None

    def following(self, num_requests: int, width: int, num_keys: int) -> FollowingForward:
        """A forward that the device drives, `width` tokens for each of so many slots of up to `num_keys` entries; see
        `static/following.py`. Only where `can_follow`, and of at most as many tokens as a fixed shape has."""
        static, num_tokens = self._runner.static, self.shapes.num_tokens
        if static is None or (num_tokens is not None and num_requests * width > num_tokens):
            raise ParameterError(
                "num_requests, width", (num_requests, width), f"static forwards, of at most {num_tokens} tokens in all"
            )
        return FollowingForward(
            static,
            self.cache,
            self.taps,
            num_requests=num_requests,
            width=width,
            num_keys=num_keys,
            num_tokens=num_tokens,
        )

    def expect(self, lengths: Mapping[int, int]) -> None:
        """The device will have appended entries up to these lengths at most: `rewind` then says how many are valid.

        Raises ModelError where the cache has no room, with nothing changed.
        """
        self._contents.expect(lengths)

    @torch.no_grad()
    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
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
            self.score([ScoreRequest(slot, tuple(token_ids[done : done + room]), num_rows=0)])
            done += room

    def rewind(self, slot: int, length: int, path: Sequence[int] = ()) -> None:
        self._contents.rewind(slot, length, path)

    def recurrent_states(self, slot: int) -> dict[str, torch.Tensor]:
        """What the layers with a recurrent state hold after the slot's tokens, by name."""
        return self._contents.recurrent_states(slot)

    def release(self, slot: int) -> None:
        self._contents.release(slot)

    def num_releases(self, slot: int) -> int:
        return self._contents.num_releases(slot)

    def reachable(self, slot: int, length: int) -> int:
        return self._contents.reachable(slot, length)

    def copy(self, source: int, slot: int, length: int) -> None:
        self._contents.copy(source, slot, length)

    def _run(self, requests: Sequence[ScoreRequest]) -> Run:
        try:
            return self._runner.run(self.cache, requests, self.shapes)
        except BaseException:
            self._contents.forget(requests)
            raise
