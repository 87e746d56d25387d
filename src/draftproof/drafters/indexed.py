"""One index per slot, brought up to date with the context by appending what is new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from draftproof.drafters.base import ContextIndex, is_extension

Index = TypeVar("Index", bound=ContextIndex)


class IndexedContexts(Generic[Index]):
    """slot -> index of that slot's context; an index that the context does not extend is built again."""

    def __init__(self, make_index: Callable[[], Index]) -> None:
        self._make_index = make_index
        self._indexes: dict[int, Index] = {}
        self._sources: dict[int, Sequence[int]] = {}

    def up_to_date(self, slot: int, context_ids: Sequence[int]) -> Index:
        """The slot's index over exactly `context_ids`; costs O(new tokens), or O(all) after a rebuild."""
        index = self._indexes.get(slot)
        if index is None or not is_extension(index, self._sources.get(slot), context_ids):
            index = self._indexes[slot] = self._make_index()
        self._sources[slot] = context_ids
        for position in range(len(index.token_ids), len(context_ids)):
            index.append(context_ids[position])
        return index

    def release(self, slot: int) -> None:
        """Drop the slot's index; a slot without one is left alone."""
        self._indexes.pop(slot, None)
        self._sources.pop(slot, None)
