"""Rows and states of a draft that are made when somebody asks for them, once: most of a tree's nobody does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class WhenAsked(Sequence[T]):
    """A sequence of a known length. Each item is made by `_make` at the first look at it."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._made: dict[int, T] = {}

    @abstractmethod
    def _make(self, place: int) -> T:
        """The item at a place from 0 on."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        places = range(self._length)[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        if places not in self._made:
            self._made[places] = self._make(places)
        return self._made[places]


class StatesAlong(Generic[T]):
    """What holds after the context (place 0) and after each node of a tree (place node + 1).

    parents: of each node the index of an earlier one, -1 for the context. after: from the parent's state and the node.
    """

    def __init__(self, first: T, parents: Sequence[int], after: Callable[[T, int], T]) -> None:
        self._parents, self._after = parents, after
        self._known: dict[int, T] = {0: first}

    def at(self, place: int) -> T:
        """The state at a place."""
        missing = []
        while place not in self._known:
            missing.append(place - 1)
            place = self._parents[place - 1] + 1
        state = self._known[place]
        for node in reversed(missing):
            state = self._known[node + 1] = self._after(state, node)
        return state
