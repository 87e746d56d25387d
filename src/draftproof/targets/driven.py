"""A transformers model, and how forwards of slots are run with it: what `HFTarget` is built on.

Which ways there are, lean layers, static forwards, packed ones or a row per request, and what its cache and its shapes
are, is known here; which way is taken is `HFTarget`'s choice, and so is what is scored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any

import torch

from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets import attention
from draftproof.targets.branches import Room, find_rooms, num_branches
from draftproof.targets.cache import SlotCache
from draftproof.targets.contents import SlotContents
from draftproof.targets.extents import num_columns
from draftproof.targets.half_linear import has_halves
from draftproof.targets.key_order import attention_agrees, moves_blocks, spreads
from draftproof.targets.layers import Layers, inspect_layers
from draftproof.targets.lean import LeanDecoder
from draftproof.targets.native import compiled
from draftproof.targets.native.attention import fits
from draftproof.targets.native.operations import NativeOperations
from draftproof.targets.recurrent.functions import install
from draftproof.targets.runner import Runner
from draftproof.targets.shapes import KEY_STEP, ExactShapes, Shapes
from draftproof.targets.static.operations import operations_for
from draftproof.targets.summation import limit_rows, row_window
from draftproof.targets.support import check_architecture, model_length, vocabulary_size
from draftproof.targets.taps import TapStore

MOST_ASKED = 512
"""Keys of a chain up to which a kernel is asked when it begins to add up a larger number in another order."""
CACHE_ARGUMENTS = ("past_key_values", "cache", "cache_params")
"""What releases of transformers, and models, name the cache."""


class DrivenModel:
    """A model with slots. Its forwards are `HFTarget`'s."""

    def __init__(
        self, model: Any, *, num_slots: int, max_model_len: int | None, invariant: bool, static: bool | None
    ) -> None:
        """As `HFTarget`'s. Raises ParameterError and UnsupportedModelError."""
        check_architecture(model)
        self.model = model.eval().requires_grad_(False)
        self.num_slots, self.invariant = num_slots, invariant
        self.max_model_len = model_length(model.config, max_model_len)
        self.vocab_size = vocabulary_size(model)
        self.device, self.dtype = model.device, model.dtype
        if getattr(model, "_supports_sdpa", False) and getattr(model.config, "_attn_implementation", "") != "eager":
            model.set_attn_implementation(attention.register())
        names = inspect.signature(model.forward).parameters
        cache_argument = next((name for name in CACHE_ARGUMENTS if name in names), CACHE_ARGUMENTS[0])
        self._layers: Layers = inspect_layers(model, cache_argument)
        self._runner = Runner(model, self._layers, cache_argument, self.max_model_len)
        self.taps: TapStore | None = None
        self.shapes: Shapes = ExactShapes()
        is_native = self.device.type == "cpu" and self.dtype == torch.bfloat16 and compiled.available()
        self._operations = NativeOperations() if is_native else operations_for(self.device)
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
        self._runner.attends_by_row = self._runner.packs and not self._is_static and fits(self._layers, self._num_heads)

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

    @cached_property
    def has_halves(self) -> bool:
        """Whether weights are kept in float16 (`half_linear.py`), though `dtype` is float32."""
        return has_halves(self.model)

    def row_window(self) -> tuple[int, int | None]:
        """See `summation.py`: of all products that a forward runs, packed ones limited to rows of one order."""
        products = () if self._runner.lean is None else self._runner.lean.products
        limit_rows(self.model, products)
        return row_window(self.model, products)

    def attention_agrees(self, query_step: int) -> bool:
        """See `key_order.py`; True where attention isn't packed, which `probe` alone can ask."""
        return not self._runner.packs or self.is_static or attention_agrees(self._layers, self._num_heads, query_step)

    @property
    def attends_by_row(self) -> bool:
        """Whether attention adds up what a query sees in one order, whatever else is computed (`native/`)."""
        return self._runner.packs and self._runner.attends_by_row

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
        possible = self.device.type == "cpu" and self._runner.packs and not self.is_static and not self.attends_by_row
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
    def spreads_branches(self) -> bool:
        """Whether nodes of a tree that is computed in place stand whole strides further on than their chains' keys."""
        rooms = self._runner.rooms
        widest = () if rooms is None else rooms(KEY_STEP, KEY_STEP)
        return bool(widest) and not widest[0].in_lanes

    def spare_from(self) -> int | None:
        """From how many keys on a chain has to read more of them for its tree to have room, since the kernel adds up a
        larger number in another order; None where that isn't so up to `MOST_ASKED`."""
        rooms = self._runner.rooms
        if rooms is None or not self.spreads_branches:
            return None
        lengths = range(KEY_STEP, MOST_ASKED + 1, KEY_STEP)
        return next((n for n in lengths if [room.key_length for room in rooms(n, n)] == [n]), None)

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
        start, rooms = self._contents.length(slot), self._runner.rooms
        first, last = (self.shapes.key_length(start + more) for more in (0, num_entries - 1))
        if rooms is None or first is None or last is None or self.shapes.num_tokens is not None:
            return None
        if not self.spreads_branches:
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
