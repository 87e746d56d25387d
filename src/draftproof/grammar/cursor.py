"""A point in a constrained text: which tokens may come next, and the points after them. Immutable.

Rule: a cursor is a function of the grammar and of the tokens since its beginning, and of nothing else. `mask` allows
the tokens after which the grammar can go on, and the ending tokens where it may end; after an ending token, only these.
A draft is walked by asking each node's cursor for the next; nothing is advanced that would have to be taken back. So
rejected drafts, branches of a tree, samples of one prompt and a preempted request's second beginning need no care.
How: the cursors of a request share one parser of the library, which is moved to the cursor that asks: back to the last
point in common, then forward. Masks are kept until the committed text has passed them.
Edge cases: an ending token with a text of its own (a stop id such as a newline) is text; before a marker all is free.
A state where no token is allowed gives a mask without a True, and so a LawError at that row.
Source: T41 to T45; XGrammar 2411.15100 for masks and rollback. Deviation: no state is advanced along drafts.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import final

import numpy as np

from draftproof.errors import GrammarError
from draftproof.grammar.backend import Compiled
from draftproof.grammar.marker import Marker
from draftproof.grammar.vocabulary import Vocabulary
from draftproof.sampling import Mask


class Phase(Enum):
    """FREE before the marker, INSIDE the grammar, ENDED after an ending token."""

    FREE = "free"
    INSIDE = "inside"
    ENDED = "ended"


@final
class Rules:
    """What a request's cursors share: the grammar, the marker before it, the tokens that end it, and one parser.

    ending_ids: EOS ids, and stop ids without text. A request has Rules of its own, since the parser moves.
    """

    __slots__ = ("_bits", "_matcher", "_not_end", "_path", "end_mask", "ending_ids", "marker", "vocabulary")

    def __init__(
        self, compiled: Compiled, vocabulary: Vocabulary, ending_ids: Iterable[int], marker: Marker | None = None
    ) -> None:
        self.vocabulary, self.marker = vocabulary, marker
        self.ending_ids = frozenset(ending_ids)
        self.end_mask = _frozen(np.isin(np.arange(vocabulary.size), sorted(self.ending_ids)))
        self._not_end = ~self.end_mask
        self._matcher = compiled.matcher()
        self._path: list[GrammarCursor] = []
        self._bits = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)

    def beginning(self) -> GrammarCursor:
        """The point before the first token."""
        return self.grammar_beginning() if self.marker is None else GrammarCursor(self, Phase.FREE, None, -1, 0, 0)

    def grammar_beginning(self) -> GrammarCursor:
        """The point before the grammar's first token, wherever a marker may put it."""
        return GrammarCursor(self, Phase.INSIDE, None, -1, 0, 0)

    def mask_at(self, cursor: GrammarCursor) -> Mask:
        """[V] the tokens that the grammar allows at a cursor inside it."""
        self._move_to(cursor)
        self._matcher.fill(self._bits)
        bits = np.unpackbits(self._bits.view(np.uint8)[0], count=self.vocabulary.size, bitorder="little")
        mask = bits.view(np.bool_)
        if self._matcher.is_complete():
            mask |= self.end_mask
        else:
            mask &= self._not_end
        return _frozen(mask)

    def _move_to(self, cursor: GrammarCursor) -> None:
        ahead: list[GrammarCursor] = []
        point = cursor
        while point.num_inside and not (
            point.num_inside <= len(self._path) and self._path[point.num_inside - 1] is point
        ):
            ahead.append(point)
            point = point.before
        num_back = len(self._path) - point.num_inside
        if num_back:
            self._matcher.rollback(num_back)
            del self._path[point.num_inside :]
        for step in reversed(ahead):
            if not self._matcher.accept(step.token_id):
                raise GrammarError(f"the grammar's library allows token {step.token_id} and then refuses it")
            self._path.append(step)


@final
class GrammarCursor:
    """One point of one request's text. `token_id` led to it, -1 at the beginning.

    num_inside: how many tokens of the grammar's own text are before it. marker_state: see `marker.Marker`.
    """

    __slots__ = ("_before", "_children", "_mask", "_rules", "marker_state", "num_inside", "phase", "token_id")

    def __init__(
        self,
        rules: Rules,
        phase: Phase,
        before: GrammarCursor | None,
        token_id: int,
        num_inside: int,
        marker_state: int,
    ) -> None:
        self._rules, self._before = rules, before
        self.phase, self.token_id = phase, token_id
        self.num_inside, self.marker_state = num_inside, marker_state
        self._children: dict[int, GrammarCursor] = {}
        self._mask: Mask | None = None

    @property
    def before(self) -> GrammarCursor:
        """The point one token earlier. Raises GrammarError at the beginning."""
        if self._before is None:
            raise GrammarError("there is no point before the beginning of a grammar")
        return self._before

    @property
    def vocabulary(self) -> Vocabulary:
        """What the tokens write."""
        return self._rules.vocabulary

    @property
    def ending_ids(self) -> frozenset[int]:
        """The tokens that end the text."""
        return self._rules.ending_ids

    @property
    def mask(self) -> Mask | None:
        """[V] bool, read-only, the tokens that may come next; None where every token may."""
        marker = self._rules.marker
        if self.phase is Phase.FREE and marker is not None:
            return marker.mask(self.marker_state)
        if self.phase is Phase.ENDED:
            return self._rules.end_mask
        if self._mask is None:
            self._mask = self._rules.mask_at(self)
        return self._mask

    def allows(self, token_id: int) -> bool:
        """Whether the token may come next."""
        mask = self.mask
        return 0 <= token_id < self.vocabulary.size and (mask is None or bool(mask[token_id]))

    def after(self, token_id: int) -> GrammarCursor | None:
        """The point after the token; None where it may not come next."""
        known = self._children.get(token_id)
        if known is None and self.allows(token_id):
            known = self._children[token_id] = self._next(token_id)
        return known

    def after_all(self, token_ids: Iterable[int]) -> GrammarCursor:
        """The point after these tokens. Raises GrammarError if one of them may not come."""
        point = self
        for token_id in token_ids:
            following = point.after(token_id)
            if following is None:
                text = self.vocabulary.text_of(token_id) if 0 <= token_id < self.vocabulary.size else b""
                raise GrammarError(f"token {token_id} ({text!r}) is not one that the grammar allows here")
            point = following
        return point

    def committed(self, token_ids: Iterable[int]) -> GrammarCursor:
        """`after_all`, for tokens that stay: masks of the points before are dropped, and made again if asked for."""
        end = point = self.after_all(token_ids)
        while point is not self:
            point = point.before
            point._children, point._mask = {}, None
        return end

    def _next(self, token_id: int) -> GrammarCursor:
        rules = self._rules
        if token_id in rules.ending_ids:
            return GrammarCursor(rules, Phase.ENDED, self, token_id, self.num_inside, 0)
        if self.phase is Phase.FREE and rules.marker is not None:
            state = rules.marker.after(self.marker_state, token_id)
            if state is None:
                return GrammarCursor(rules, Phase.INSIDE, self, token_id, 0, 0)
            return GrammarCursor(rules, Phase.FREE, self, token_id, 0, state)
        return GrammarCursor(rules, Phase.INSIDE, self, token_id, self.num_inside + 1, 0)


def _frozen(mask: Mask) -> Mask:
    mask.flags.writeable = False
    return mask
