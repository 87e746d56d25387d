"""A target over any transformers causal language model with plain keys and values, recurrent states, or both.

One forward takes the tokens of any number of requests, side by side (`packed.py`); a model whose attention isn't ours
gets a row per request (`rows.py`). Without `invariant` a forward has exactly the tokens and keys that it needs; with
it, `invariant.py` chooses shapes under which a token's logits are the same bits in every forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.driven import DrivenModel
from draftproof.targets.extents import num_columns
from draftproof.targets.invariant import choose_shapes
from draftproof.targets.memory import plan_columns
from draftproof.targets.requested import check_requests
from draftproof.targets.runner import Run
from draftproof.targets.selfcheck import check_driving
from draftproof.targets.static.following import FollowingForward

PREFILL_CHUNK = 512
DEFAULT_WIDTH = 16
"""Tokens of a forward of fixed shape."""


class HFTarget(DrivenModel):
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
        super().__init__(model, num_slots=num_slots, max_model_len=max_model_len, invariant=invariant, static=static)
        self.eos_token_ids = tuple(eos_token_ids)
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
