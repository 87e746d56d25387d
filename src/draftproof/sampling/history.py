"""What one row has seen: the prompt, the output so far and, inside a verified block, the drafts before it.

Row i of a block has seen drafts 0..i-1, so penalties, bad words and min_tokens look at a History of
their own for each row. A History is immutable; `extended` shares everything but a short tail with
the history that it came from, and counts are kept up to date as tokens come in.

Source: the bugs T21 to T28 (state of the whole block, or of the last pass, used for every row).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Law
from draftproof.errors import ParameterError
from draftproof.sampling.state import State

_FOLD_AT: Final = 64


@final
class _Counted:
    """A counted prefix: every distinct id with how often the prompt and the output hold it."""

    __slots__ = ("_tokens", "ids", "index", "output_counts", "output_ids", "prompt_counts", "prompt_ids")

    def __init__(
        self,
        prompt_ids: tuple[int, ...],
        output_ids: tuple[int, ...],
        index: dict[int, int],
        ids: NDArray[np.int64],
        prompt_counts: NDArray[np.int64],
        output_counts: NDArray[np.int64],
    ) -> None:
        self.prompt_ids, self.output_ids, self.index = prompt_ids, output_ids, index
        self.ids, self.prompt_counts, self.output_counts = ids, prompt_counts, output_counts
        self._tokens: NDArray[np.int64] | None = None

    def tokens(self) -> NDArray[np.int64]:
        """[N] prompt and output as one array, made when first asked for."""
        if self._tokens is None:
            self._tokens = np.array(self.prompt_ids + self.output_ids, dtype=np.int64)
        return self._tokens

    @classmethod
    def of_prompt(cls, prompt_ids: tuple[int, ...]) -> _Counted:
        ids, counts = np.unique(np.array(prompt_ids, dtype=np.int64), return_counts=True)
        index = {token_id: place for place, token_id in enumerate(ids.tolist())}
        return cls(prompt_ids, (), index, ids, counts.astype(np.int64), np.zeros(len(ids), dtype=np.int64))

    def plus(self, token_ids: tuple[int, ...]) -> _Counted:
        ids, prompt_counts, output_counts, new_ids = self.counted_with(token_ids)
        index = self.index
        if new_ids:
            index = dict(index)
            index.update((token_id, len(self.ids) + place) for place, token_id in enumerate(new_ids))
        return _Counted(self.prompt_ids, self.output_ids + token_ids, index, ids, prompt_counts, output_counts)

    def counted_with(
        self, token_ids: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]:
        """(ids, prompt counts, output counts, ids that are new) with `token_ids` added to the output."""
        if not token_ids:
            return self.ids, self.prompt_counts, self.output_counts, []
        output_counts = self.output_counts.copy()
        new: dict[int, int] = {}
        for token_id in token_ids:
            place = self.index.get(token_id)
            if place is None:
                new[token_id] = new.get(token_id, 0) + 1
            else:
                output_counts[place] += 1
        if not new:
            return self.ids, self.prompt_counts, output_counts, []
        new_ids = list(new)
        return (
            np.concatenate([self.ids, np.array(new_ids, dtype=np.int64)]),
            np.concatenate([self.prompt_counts, np.zeros(len(new), dtype=np.int64)]),
            np.concatenate([output_counts, np.array(list(new.values()), dtype=np.int64)]),
            new_ids,
        )


@final
class History:
    """The tokens that a row's processors look at. Immutable.

    prompt_ids, output_ids: token ids, 0 or more; a negative one (a placeholder of a batch that is
    padded or not yet known, T24) raises ParameterError. states: of samplers that remember, as they are after
    output_ids (`RowParams.first_history` makes the first ones).
    """

    __slots__ = ("_base", "_tail", "states")
    _base: _Counted
    _tail: tuple[int, ...]
    states: tuple[State, ...]

    def __init__(
        self, prompt_ids: Iterable[int], output_ids: Iterable[int] = (), states: tuple[State, ...] = ()
    ) -> None:
        self._base = _Counted.of_prompt(_checked("prompt_ids", prompt_ids))
        self._tail = ()
        self.states = states
        outputs = _checked("output_ids", output_ids)
        if outputs:
            self._base = self._base.plus(outputs)

    def extended(self, token_ids: Iterable[int], laws: Sequence[Law] | None = None) -> History:
        """This history and `token_ids` after it. Costs no more than the tail, a few dozen ids.

        laws: one for each token, of the row that it came from; needed where a state looks at them (mirostat).
        Raises ParameterError where they are needed and left out, LawError where a state can't go on.
        """
        child = object.__new__(History)
        added = _checked("token_ids", token_ids)
        tail = self._tail + added
        child.states = self.states if not self.states else _advanced(self.states, added, laws)
        if len(tail) >= _FOLD_AT:
            child._base, child._tail = self._base.plus(tail), ()
        else:
            child._base, child._tail = self._base, tail
        return child

    @property
    def needs_laws(self) -> bool:
        """Whether `extended` has to be given the laws of its tokens."""
        return any(state.needs_law for state in self.states)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return self._base.prompt_ids

    @property
    def output_ids(self) -> tuple[int, ...]:
        """The token ids after the prompt, drafts of this row's block included."""
        return self._base.output_ids + self._tail

    @property
    def num_prompt_tokens(self) -> int:
        """How many tokens the prompt has."""
        return len(self._base.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        """How many tokens the output has so far."""
        return len(self._base.output_ids) + len(self._tail)

    def __len__(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return self.prompt_ids == other.prompt_ids and self.output_ids == other.output_ids

    def __hash__(self) -> int:
        return hash((self.prompt_ids, self.output_ids))

    def __repr__(self) -> str:
        return f"History(num_prompt_tokens={self.num_prompt_tokens}, output_ids={self.output_ids})"

    def last(self, num_tokens: int, *, prompt: bool) -> tuple[int, ...]:
        """The last `num_tokens` ids, or as many as there are; `prompt`: whether they may reach into the prompt."""
        if num_tokens <= 0:
            return ()
        found = self._tail[-num_tokens:]
        if len(found) < num_tokens:
            found = self._base.output_ids[-(num_tokens - len(found)) :] + found
        if prompt and len(found) < num_tokens:
            found = self._base.prompt_ids[-(num_tokens - len(found)) :] + found
        return found

    def tokens(self, num_last: int | None = None) -> NDArray[np.int64]:
        """[N] the last `num_last` ids (None: all), prompt included. Not to be written."""
        if num_last is not None and num_last <= _FOLD_AT:
            return np.array(self.last(num_last, prompt=True), dtype=np.int64)
        tokens = self._base.tokens()
        if self._tail:
            tokens = np.concatenate([tokens, np.array(self._tail, dtype=np.int64)])
        return tokens if num_last is None else tokens[-num_last:]

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """([K] distinct ids, [K] counts in the prompt, [K] counts in the output). Shared arrays: not to be written."""
        return self._base.counted_with(self._tail)[:3]


def _advanced(states: tuple[State, ...], token_ids: tuple[int, ...], laws: Sequence[Law] | None) -> tuple[State, ...]:
    if laws is None and token_ids and any(state.needs_law for state in states):
        raise ParameterError("laws", None, "one law for each token where a sampler's state depends on it (mirostat)")
    given: Sequence[Law | None] = [None] * len(token_ids) if laws is None else laws
    for token_id, law in zip(token_ids, given, strict=True):
        states = tuple(state.after(token_id, law) for state in states)
    return states


def _checked(name: str, token_ids: Iterable[int]) -> tuple[int, ...]:
    ids = token_ids if isinstance(token_ids, tuple) else tuple(map(int, token_ids))
    if ids and min(ids) < 0:
        raise ParameterError(name, min(ids), "token ids of 0 or more", "replace placeholders by the committed tokens")
    return ids
