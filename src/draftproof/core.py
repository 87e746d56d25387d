"""The nouns that every package shares: Key, Noise, Law, Draft, Verdict.

Tokens and the law that they were drawn from are born together: `Draft.draw` is the only way to
add a sampled token to a draft, and it records the very array that the token was drawn from.

Weights are one-dimensional numpy arrays, of floats in production and of `fractions.Fraction`
(dtype object) in proofs by enumeration; nothing here asks which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import DraftContractError, ParameterError

Weights: TypeAlias = NDArray[Any]
"""[V] or [K] non-negative numbers: floats, or Fractions in an object array."""
Number: TypeAlias = Any
"""A float in production, a Fraction in proofs."""

ROOT: Final = -1
"""The parent of a draft's first node: the context itself."""


class Purpose(IntEnum):
    """Which stream a random number comes from. Streams of different purposes never share a word.

    The numbers are part of the noise layout (`noise.LAYOUT_VERSION`).
    """

    TARGET = 0
    XTC = 1
    DRAFT = 16
    COIN = 17
    RESIDUAL = 18
    BONUS = 19
    MATCH = 20

    @property
    def persists(self) -> bool:
        """True if the stream is a function of the position alone, and is never redrawn."""
        return self < Purpose.DRAFT


class Key(NamedTuple):
    """Names one random draw of a request.

    `position` is absolute, prompt included: for purposes that persist, the position of the token
    that the draw is for; for the others, the position at which the pass starts. `index` is the
    draft's node or the draw's number within the pass.
    """

    purpose: Purpose
    position: int
    index: int = 0  # type: ignore[assignment]  # shadows tuple.index, which a key has no use for


class Noise(Protocol):
    """The only source of randomness: keyed streams in production, an oracle in proofs."""

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        """True with probability min(1, numerator / denominator): u * denominator < numerator, strictly."""
        ...

    def choice(self, key: Key, weights: Weights, token_ids: NDArray[np.int64] | None = None) -> int:
        """A token id, drawn in proportion to `weights` [K]; ids are 0..K-1 unless `token_ids` [K] says otherwise.

        A token of weight zero is never returned. Draws of one key share one field: the same key
        with other weights answers from the same noise.
        """
        ...


class Law(ABC):
    """A probability law over token ids. Closed set: PointMass, Dense, Sparse."""

    __slots__ = ()

    @abstractmethod
    def prob(self, token_id: int) -> Number:
        """The probability of `token_id`; 0 for an id outside the law, whatever the id."""

    @abstractmethod
    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        """([K] probabilities, [K] ascending token ids); ids None means 0..K-1."""

    @abstractmethod
    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        """[size] probabilities at `token_ids` (None: 0..size-1), zeros outside."""

    def draw(self, noise: Noise, key: Key) -> int:
        """A token id drawn from this law by the field of `key`."""
        values, token_ids = self.weights()
        return noise.choice(key, values, token_ids)

    def argmax(self) -> int:
        """The most probable token id, the lowest one on ties."""
        values, token_ids = self.weights()
        best = int(np.argmax(values))
        return best if token_ids is None else int(token_ids[best])


@final
@dataclass(frozen=True, slots=True)
class PointMass(Law):
    """All mass on one token: argmax, n-gram and suffix drafts, T = 0."""

    token_id: int

    def prob(self, token_id: int) -> Number:
        return 1 if token_id == self.token_id else 0

    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        return np.ones(1, dtype=np.int64), np.array([self.token_id], dtype=np.int64)

    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        ids = np.arange(size) if token_ids is None else token_ids
        return (ids == self.token_id).astype(np.int64)

    def draw(self, noise: Noise, key: Key) -> int:
        return self.token_id

    def argmax(self) -> int:
        return self.token_id


@final
@dataclass(frozen=True, slots=True, eq=False)
class Dense(Law):
    """`probs` [V]: one probability per token id."""

    probs: Weights

    def __post_init__(self) -> None:
        if self.probs.ndim != 1 or self.probs.shape[0] == 0:
            raise ParameterError("probs", f"array of shape {self.probs.shape}", "one row of at least one token")

    def prob(self, token_id: int) -> Number:
        if not 0 <= token_id < self.probs.shape[0]:
            return 0
        return _scalar(self.probs[token_id])

    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        return self.probs, None

    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        own = self.probs.shape[0]
        if token_ids is None and size <= own:
            return self.probs[:size]
        ids = np.arange(size) if token_ids is None else token_ids
        inside = ids < own
        found = np.zeros(len(ids), dtype=self.probs.dtype)
        found[inside] = self.probs[ids[inside]]
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sparse(Law):
    """`probs` [K] on strictly ascending `token_ids` [K]; every other token has probability 0."""

    token_ids: NDArray[np.int64]
    probs: Weights

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.token_ids.shape != self.probs.shape or not len(self.token_ids):
            raise ParameterError(
                "token_ids, probs",
                f"shapes {self.token_ids.shape} and {self.probs.shape}",
                "two rows of one length, at least 1",
            )
        if self.token_ids[0] < 0 or not (np.diff(self.token_ids) > 0).all():
            raise ParameterError("token_ids", self.token_ids.tolist(), "strictly ascending and not negative")

    def prob(self, token_id: int) -> Number:
        where = int(np.searchsorted(self.token_ids, token_id))
        if where == len(self.token_ids) or self.token_ids[where] != token_id:
            return 0
        return _scalar(self.probs[where])

    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        return self.probs, self.token_ids

    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        if token_ids is None:
            found = np.zeros(size, dtype=self.probs.dtype)
            inside = self.token_ids < size
            found[self.token_ids[inside]] = self.probs[inside]
            return found
        where = np.minimum(np.searchsorted(self.token_ids, token_ids), len(self.token_ids) - 1)
        return np.where(self.token_ids[where] == token_ids, self.probs[where], 0)


def _scalar(value: Any) -> Number:
    """A Python float or Fraction: mixed-precision scalar arithmetic would round in float32."""
    return value.item() if isinstance(value, np.generic) else value


class DrawnWith(Enum):
    """Which noise a draft's tokens looked at. A verifier refuses what would bias it."""

    NOTHING = "no noise (point masses)"
    FRESH = "its own stream, fresh in every pass"
    TARGET_FIELD = "the target's field, shared"


@final
@dataclass(frozen=True, slots=True, init=False)
class Draft:
    """Drafted tokens, their topology, and for each the law that it was drawn from.

    A chain is a tree with one branch. Node i has token `token_ids[i]`, parent `parents[i]` < i
    (ROOT for a child of the context) and was drawn from `laws[i]`. `start` is the absolute
    position of the first drafted token, which is also where the pass starts.

    Built by `Draft.empty(start)` and `.draw(…)`, or by `Draft.of_token_ids(…)` for tokens that no
    law was sampled for; there is no way to hand in tokens and laws apart.
    """

    start: int
    token_ids: tuple[int, ...] = field(default=())
    parents: tuple[int, ...] = field(default=())
    laws: tuple[Law, ...] = field(default=())
    depths: tuple[int, ...] = field(default=())
    drawn_with: DrawnWith = field(default=DrawnWith.NOTHING)
    anticipating: bool = field(default=False)

    @classmethod
    def empty(cls, start: int) -> Draft:
        """A draft without tokens, for the pass that starts at absolute position `start`."""
        if start < 0:
            raise ParameterError("start", start, "an absolute position, 0 or more")
        return _make(start, (), (), (), (), DrawnWith.NOTHING, False)

    @classmethod
    def of_token_ids(cls, start: int, token_ids: Iterable[int], parents: Sequence[int] | None = None) -> Draft:
        """Tokens chosen by a rule (n-gram, argmax, rank): each one's law is the point mass on it.

        `parents` None makes a chain. A chain ends before the first negative id, the padding of ragged batches.
        """
        draft = cls.empty(start)
        for index, token_id in enumerate(token_ids):
            if token_id < 0:
                if parents is not None:
                    raise ParameterError("token_ids", token_id, "an id of 0 or more in every node of a tree")
                break
            parent = index - 1 if parents is None else parents[index]
            draft = draft._with(int(token_id), parent, PointMass(int(token_id)), DrawnWith.NOTHING)
        return draft

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if every node is the child of the node before it."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    def draw(self, law: Law, noise: Noise, *, parent: int | None = None, share_target_field: bool = False) -> Draft:
        """This draft and one more token, drawn from `law`.

        law: the drafter's law at that node. parent: the node's parent, the last node if None.
        share_target_field: draw with the target's own field at that position, which only verifiers
        whose output can't depend on the draft accept; otherwise with a stream that is fresh in
        every pass.
        """
        parent = len(self) - 1 if parent is None else parent
        if isinstance(law, PointMass):
            return self._with(law.token_id, parent, law, DrawnWith.NOTHING)
        if share_target_field:
            key, drawn_with = Key(Purpose.TARGET, self.start + self._depth(parent)), DrawnWith.TARGET_FIELD
        else:
            key, drawn_with = Key(Purpose.DRAFT, self.start, len(self)), DrawnWith.FRESH
        return self._with(law.draw(noise, key), parent, law, drawn_with)

    def truncated(self, num_tokens: int, *, looked_at_dropped: bool) -> Draft:
        """The first `num_tokens` nodes. looked_at_dropped: the length was chosen after seeing a dropped token."""
        if num_tokens >= len(self):
            return self
        n = max(num_tokens, 0)
        return _make(
            self.start,
            self.token_ids[:n],
            self.parents[:n],
            self.laws[:n],
            self.depths[:n],
            self.drawn_with if n else DrawnWith.NOTHING,
            self.anticipating or (looked_at_dropped and self.drawn_with is not DrawnWith.NOTHING),
        )

    def path_to(self, node: int) -> tuple[int, ...]:
        """Node indices from the root's child down to `node`; () for ROOT."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def children_of(self, node: int) -> tuple[int, ...]:
        """Node indices whose parent is `node` (ROOT: the context), in the order they were drawn."""
        return tuple(index for index, parent in enumerate(self.parents) if parent == node)

    def _depth(self, parent: int) -> int:
        return 0 if parent == ROOT else self.depths[parent] + 1

    def _with(self, token_id: int, parent: int, law: Law, drawn_with: DrawnWith) -> Draft:
        if not ROOT <= parent < len(self):
            raise ParameterError("parent", parent, f"a node of the draft so far, {ROOT} to {len(self) - 1}")
        kinds = {self.drawn_with, drawn_with} - {DrawnWith.NOTHING}
        if len(kinds) > 1:
            raise DraftContractError(
                "one draft mixes tokens drawn with the target's field and with a fresh stream; draw all of them one way"
            )
        return _make(
            self.start,
            (*self.token_ids, token_id),
            (*self.parents, parent),
            (*self.laws, law),
            (*self.depths, self._depth(parent)),
            kinds.pop() if kinds else DrawnWith.NOTHING,
            self.anticipating,
        )


def _make(
    start: int,
    token_ids: tuple[int, ...],
    parents: tuple[int, ...],
    laws: tuple[Law, ...],
    depths: tuple[int, ...],
    drawn_with: DrawnWith,
    anticipating: bool,
) -> Draft:
    draft = object.__new__(Draft)
    values = (start, token_ids, parents, laws, depths, drawn_with, anticipating)
    for name, value in zip(Draft.__slots__, values, strict=True):
        object.__setattr__(draft, name, value)
    return draft


class Outcome(Enum):
    """How an emitted token came to be."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided at one emitted position, for traces.

    node: the draft's node that was accepted or, on a rejection, tried first; ROOT if none was there.
    target_prob, draft_prob: of the drafted token at that node; None without a draft.
    """

    position: int
    node: int
    drafted_id: int | None
    emitted_id: int
    outcome: Outcome
    target_prob: Number | None
    draft_prob: Number | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided about one draft.

    token_ids: the emitted tokens, accepted ones and then exactly one recovered or bonus token.
    path: node indices of the accepted tokens, root side first; len(path) is the commit signal.
    decisions: one for each emitted token.
    num_positions_agreeing: telemetry only, never a commit signal: at how many of the draft's
    positions the test alone would pass, past a rejection too. None when telemetry is off.
    """

    token_ids: tuple[int, ...]
    path: tuple[int, ...]
    decisions: tuple[Decision, ...]
    num_positions_agreeing: int | None = None

    @property
    def num_accepted(self) -> int:
        """How many drafted tokens were accepted: emitted tokens less one."""
        return len(self.token_ids) - 1

    @property
    def outcome(self) -> Outcome:
        """How the last token came to be: RECOVERED or BONUS."""
        return self.decisions[-1].outcome
