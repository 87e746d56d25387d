"""A suffix automaton of one context, built online, with counts of what followed what.

A state stands for the substrings that end at one and the same set of positions; its longest one has
`length` tokens, and `link` leads to the state of its longest suffix with more end positions. Appending
a token is amortised O(1) in automaton steps (Blumer et al. 1985), plus one walk of at most `count_depth`
links that keeps, for every substring of up to `count_depth` tokens, how often it occurred and where it
ended last.

Why the counts are exact: the suffixes of the context fall into the states on the link path from its
longest one. The walk starts at the state of the suffix of `count_depth` tokens, so it meets every state
that holds a suffix of at most that many. A clone has the end positions of the state that it is split
from, and takes its count before the new position is added.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ROOT_STATE: Final = 0
NO_STATE: Final = -1


class Place(NamedTuple):
    """A substring of the context: its state, and its own length in tokens, which the state alone leaves open."""

    state: int
    length: int


class Follower(NamedTuple):
    """The most frequent token after a substring. `num_followed`: occurrences that any token follows."""

    token_id: int
    num_occurrences: int
    num_followed: int
    state: int


class SuffixAutomaton:
    """Counts are kept for substrings of up to `count_depth` tokens (at least 1)."""

    def __init__(self, count_depth: int) -> None:
        self.token_ids: list[int] = []
        self._count_depth = count_depth
        self._length = [0]
        self._link = [NO_STATE]
        self._next: list[dict[int, int]] = [{}]
        self._count = [0]
        self._last_end = [NO_STATE]
        self._whole = ROOT_STATE
        self._tail = Place(ROOT_STATE, 0)

    def append(self, token_id: int) -> None:
        """Take in one token."""
        self._extend(token_id)
        tail = self.shortened(self._tail, self._count_depth - 1)
        self._tail = self.shortened(Place(self._next[tail.state][token_id], tail.length + 1), self._count_depth)
        end = len(self.token_ids)
        self.token_ids.append(token_id)
        state = self._tail.state
        while state != ROOT_STATE:
            self._count[state] += 1
            self._last_end[state] = end
            state = self._link[state]

    @property
    def tail(self) -> Place:
        """The context's last `count_depth` tokens, or all of it if it is shorter."""
        return self._tail

    def shortened(self, place: Place, max_length: int) -> Place:
        """The suffix of `place` of at most `max_length` tokens, in the state that holds it now."""
        state, length = place.state, min(place.length, max_length)
        while state != ROOT_STATE and length <= self._length[self._link[state]]:
            state = self._link[state]
        return Place(state, length)

    def after(self, place: Place, token_id: int) -> Place:
        """The longest suffix of `place` that this token follows in the context, with it; the root's if none is."""
        state, length = place
        while token_id not in self._next[state]:
            if state == ROOT_STATE:
                return Place(ROOT_STATE, 0)
            state = self._link[state]
            length = self._length[state]
        return Place(self._next[state][token_id], length + 1)

    def with_follower(self, place: Place) -> Place:
        """The longest suffix of `place` that some token follows in the context; the root if none but it."""
        state, length = place
        while not self._next[state] and state != ROOT_STATE:
            state = self._link[state]
            length = self._length[state]
        return Place(state, length)

    def follower(self, state: int) -> Follower:
        """What most often follows a substring of fewer than `count_depth` tokens in `state`.

        Of equally frequent tokens, the one that followed most recently. The state must have a follower.
        """
        best, best_rank, num_followed = ROOT_STATE, (0, NO_STATE), 0
        best_id = NO_STATE
        for token_id, successor in self._next[state].items():
            rank = (self._count[successor], self._last_end[successor])
            num_followed += rank[0]
            if rank > best_rank:
                best, best_id, best_rank = successor, token_id, rank
        return Follower(best_id, best_rank[0], num_followed, best)

    def followers(self, state: int) -> list[Follower]:
        """All that follows a substring of fewer than `count_depth` tokens in `state`, in no order."""
        successors = self._next[state]
        num_followed = sum(self._count[successor] for successor in successors.values())
        return [
            Follower(token_id, self._count[successor], num_followed, successor)
            for token_id, successor in successors.items()
        ]

    def _extend(self, token_id: int) -> None:
        """The online construction of Blumer et al.: a state for the whole context, and at most one clone."""
        whole = self._add_state(self._length[self._whole] + 1, {}, 0, NO_STATE)
        state = self._whole
        while state != NO_STATE and token_id not in self._next[state]:
            self._next[state][token_id] = whole
            state = self._link[state]
        self._whole = whole
        if state == NO_STATE:
            self._link[whole] = ROOT_STATE
            return
        successor = self._next[state][token_id]
        if self._length[successor] == self._length[state] + 1:
            self._link[whole] = successor
            return
        clone = self._add_state(
            self._length[state] + 1, dict(self._next[successor]), self._count[successor], self._last_end[successor]
        )
        self._link[clone] = self._link[successor]
        self._link[successor] = self._link[whole] = clone
        while state != NO_STATE and self._next[state].get(token_id) == successor:
            self._next[state][token_id] = clone
            state = self._link[state]

    def _add_state(self, length: int, successors: dict[int, int], count: int, last_end: int) -> int:
        self._length.append(length)
        self._link.append(ROOT_STATE)
        self._next.append(successors)
        self._count.append(count)
        self._last_end.append(last_end)
        return len(self._length) - 1
