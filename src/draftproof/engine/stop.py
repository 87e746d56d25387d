"""When a request ends. Runs token by token inside an accepted run, before counting, streaming and commit.

Order at each token: EOS, stop token ids, stop strings, then length (max_tokens, the model's length).
So EOS on the last allowed token finishes with "stop", and a stop string that the length cuts off
never counts. Until min_tokens tokens are out, nothing stops: EOS and stop token ids are masked by
the chain, and a stop string counts only if it ends in a later token's text.

Text that could be the beginning of a stop string is held back, so that a stream never shows
what a stop string takes away; `finish` lets it go when the request ends in another way.
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

    A token costs no more than its own text and the longest stop string, however long the text is.
    """

    __slots__ = ("_detokenizer", "_eos", "_limit", "_longest", "_min_tokens", "_num_sent", "_params", "_stops", "_text")

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
        self._text = _Text()

    @property
    def text(self) -> str:
        """All text so far, what is held back included."""
        return self._text.whole()

    @property
    def max_output_tokens(self) -> int:
        """The most tokens that this request can emit."""
        return self._limit

    def push(self, token_id: int, num_output_tokens: int) -> Stop | None:
        """Takes one emitted token; `num_output_tokens` counts it. Returns why the request ends, if it does."""
        may_stop = num_output_tokens > self._min_tokens
        is_eos = may_stop and token_id in self._eos
        if is_eos or (may_stop and token_id in self._params.stop_token_ids):
            if self._detokenizer is not None and self._params.include_stop_str_in_output:
                self._text.append(self._detokenizer.push(token_id))
            self.finish()
            return Stop("stop", None if is_eos else token_id)
        if self._detokenizer is not None:
            new = self._detokenizer.push(token_id)
            self._text.append(new)
            found = self._find_stop(len(new)) if may_stop else None
            if found is not None:
                stop, at = found
                self._text.cut(at + len(stop) if self._params.include_stop_str_in_output else at)
                return Stop("stop", stop)
        if num_output_tokens >= self._limit:
            self.finish()
            return Stop("length")
        return None

    def take(self, *, final: bool) -> str:
        """Text not yet sent. Unless `final`, what could begin a stop string stays back."""
        length = len(self._text)
        end = length if final else max(length - self._num_held(), self._num_sent)
        new = self._text.since(self._num_sent)[: end - self._num_sent]
        self._num_sent = max(end, self._num_sent)
        return new

    def finish(self) -> None:
        """The request ends: an incomplete character comes out, as U+FFFD."""
        if self._detokenizer is not None:
            self._text.append(self._detokenizer.flush())

    def _find_stop(self, num_new: int) -> tuple[str, int] | None:
        """The stop string that begins first, and where; the longest of those that begin there."""
        if not self._stops or not num_new:
            return None
        begin = max(len(self._text) - num_new - self._longest + 1, 0)
        tail = self._text.since(begin)
        last_of_old = len(tail) - num_new
        found = [
            (at, -len(stop), stop)
            for stop in self._stops
            if (at := tail.find(stop, max(last_of_old - len(stop) + 1, 0))) >= 0
        ]
        if not found:
            return None
        at, _, stop = min(found)
        return stop, begin + at

    def _num_held(self) -> int:
        """How many of the last characters begin a stop string."""
        tail = self._text.since(max(len(self._text) - self._longest + 1, 0)) if self._longest > 1 else ""
        for length in range(len(tail), 0, -1):
            end = tail[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0


class _Text:
    """A growing text: appending and reading its end cost what is appended and read."""

    __slots__ = ("_length", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._length += len(text)

    def whole(self) -> str:
        self._pieces = ["".join(self._pieces)] if self._pieces else []
        return self._pieces[0] if self._pieces else ""

    def since(self, begin: int) -> str:
        """The text from character `begin` on."""
        found: list[str] = []
        left = self._length - begin
        for piece in reversed(self._pieces):
            if left <= 0:
                break
            found.append(piece[-left:])
            left -= len(found[-1])
        return "".join(reversed(found))

    def cut(self, length: int) -> None:
        """Keep the first `length` characters."""
        while self._pieces and self._length - len(self._pieces[-1]) >= length:
            self._length -= len(self._pieces.pop())
        if self._length > length:
            self._pieces[-1] = self._pieces[-1][: length - self._length]
            self._length = length
