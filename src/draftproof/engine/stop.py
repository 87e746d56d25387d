"""When a request ends. Runs token by token inside an accepted run, before counting, streaming and commit.

Order at each token: EOS, stop token ids, stop strings, then length (max_tokens, the model's length).
So EOS on the last allowed token finishes with "stop", and a stop string that the length cuts off
never counts. Until min_tokens tokens are out, nothing stops: EOS and stop token ids are masked by
the chain, and a stop string counts only if it ends in a later token's text.

Text that could be the beginning of a stop string is held back, so that a stream never shows
what a stop string takes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.engine.detokenize import IncrementalDetokenizer
from draftproof.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a request ended. finish_reason: "stop" or "length"; stop_reason: the string or id, None for EOS."""

    finish_reason: str
    stop_reason: str | int | None = None


class StopRules:
    """The stop rules of one request, and the text that they have let through.

    eos_token_ids: the model's. num_positions_left: how many tokens the model's length still holds.
    detokenizer None: no text is made, and no stop strings are looked for.
    """

    __slots__ = ("_detokenizer", "_eos", "_limit", "_longest", "_min_tokens", "_num_sent", "_params", "_stops", "text")

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        num_positions_left: int,
        detokenizer: IncrementalDetokenizer | None,
    ) -> None:
        self._params = params
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._limit = num_positions_left if params.max_tokens is None else min(params.max_tokens, num_positions_left)
        self._min_tokens = params.min_tokens
        self._detokenizer = detokenizer
        self._stops = params.stop
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._num_sent = 0
        self.text = ""

    @property
    def max_output_tokens(self) -> int:
        """The most tokens that this request can emit."""
        return self._limit

    def push(self, token_id: int, num_output_tokens: int) -> Stop | None:
        """Takes one emitted token; `num_output_tokens` counts it. Returns why the request ends, if it does."""
        may_stop = num_output_tokens > self._min_tokens
        is_eos = may_stop and token_id in self._eos
        is_stop_id = may_stop and token_id in self._params.stop_token_ids
        if is_eos or is_stop_id:
            shown = self._params.include_stop_str_in_output
            new = self._detokenizer.push(token_id) if self._detokenizer and shown else ""
            self.text += new
            self._flush()
            return Stop("stop", None if is_eos else token_id)
        if self._detokenizer is not None:
            before = len(self.text)
            self.text += self._detokenizer.push(token_id)
            found = self._find_stop(before) if may_stop else None
            if found is not None:
                stop, at = found
                self.text = self.text[: at + len(stop) if self._params.include_stop_str_in_output else at]
                return Stop("stop", stop)
        if num_output_tokens >= self._limit:
            self._flush()
            return Stop("length")
        return None

    def take(self, *, final: bool) -> str:
        """Text not yet sent. Unless `final`, what could begin a stop string stays back."""
        end = len(self.text) if final else max(len(self.text) - self._held(), self._num_sent)
        new, self._num_sent = self.text[self._num_sent : end], max(end, self._num_sent)
        return new

    def _find_stop(self, before: int) -> tuple[str, int] | None:
        found = [
            (at, -len(stop), stop)
            for stop in self._stops
            if (at := self.text.find(stop, max(before - len(stop) + 1, 0))) >= 0
        ]
        if not found:
            return None
        at, _, stop = min(found)
        return stop, at

    def _held(self) -> int:
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            tail = self.text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def _flush(self) -> None:
        if self._detokenizer is not None:
            self.text += self._detokenizer.flush()
