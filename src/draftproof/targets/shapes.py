"""Which shapes a target's forwards have.

`ExactShapes` uses what is needed. The others serve invariant execution (`invariant.py`): `RowShapes` where kernels sum
in one order whatever is computed beside; with `StepShapes` and `FixedShapes` what a token reads is a function of its
position alone.
"""

from __future__ import annotations

from typing import Protocol

from draftproof.targets.extents import num_columns

KEY_STEP = 64
SPARE = 64
"""Columns behind a step that its tokens read as well, so that branches may stand there (`branches.py`)."""
QUERY_STEPS = (2, 4)
"""The first for which attention agrees (`key_order.attention_agrees`) is taken: one query often has another kernel."""
FEW_QUERIES = 16
"""More queries are padded to a multiple of 4 at least: kernels take 32 or so at a time, and are others for few left."""


def padded_queries(num_tokens: int, query_step: int) -> int:
    """How many queries of a segment are computed for so many tokens."""
    step = query_step if num_tokens <= FEW_QUERIES else max(query_step, QUERY_STEPS[-1])
    return num_tokens if step == 0 else step * -(-num_tokens // step)


class Shapes(Protocol):
    """How many tokens a forward has and how many keys a token reads.

    num_tokens: of every forward, padding included; None for as many as there are. min_tokens: of every forward and of
    its output layer, padding included. most_tokens: of a forward; None for as many as there are. query_step:
    attention's queries are padded by it (`padded_queries`), 0 where bits don't matter. name: for messages.
    """

    name: str
    query_step: int
    min_tokens: int

    @property
    def most_tokens(self) -> int | None: ...

    @property
    def num_tokens(self) -> int | None: ...

    def key_length(self, position: int) -> int | None:
        """How many keys the token at `position` reads; None for as many as its forward needs."""
        ...


class ExactShapes:
    """As many tokens and keys as there are."""

    name, num_tokens, min_tokens, query_step = "exact shapes", None, 1, 0

    @property
    def most_tokens(self) -> int | None:
        return None

    def key_length(self, position: int) -> None:
        return None


def _named(min_tokens: int, most_tokens: int | None) -> str:
    if most_tokens is not None:
        return f" and forwards of {min_tokens} to {most_tokens} tokens"
    return f" and forwards of {min_tokens} tokens or more" if min_tokens > 1 else ""


class RowShapes(ExactShapes):
    """As many keys as there are, and as many tokens, `min_tokens` at least and `most_tokens` at most."""

    def __init__(self, min_tokens: int = 1, most_tokens: int | None = None) -> None:
        self.name = "rows by themselves" + _named(min_tokens, most_tokens)
        self.min_tokens, self._most_tokens = min_tokens, most_tokens

    @property
    def most_tokens(self) -> int | None:
        return self._most_tokens


class StepShapes:
    """As many tokens as there are, `min_tokens` at least and `most_tokens` at most, and keys in steps of `KEY_STEP`: a
    token at position n reads the steps up to the one that holds n, and where these are `spare_from` keys or more,
    `SPARE` more, as far as its slot has columns.

    Queries are padded as `padded_queries` says."""

    def __init__(
        self,
        min_tokens: int = 1,
        query_step: int = QUERY_STEPS[-1],
        most_tokens: int | None = None,
        *,
        spare_from: int | None = None,
    ) -> None:
        self.name, self.query_step = "key steps" + _named(min_tokens, most_tokens), query_step
        self.num_tokens: int | None = None
        self.min_tokens, self.most_tokens, self.spare_from = min_tokens, most_tokens, spare_from

    def key_length(self, position: int) -> int:
        length = KEY_STEP * (position // KEY_STEP + 1)
        if self.spare_from is None or length < self.spare_from:
            return length
        return min(length + SPARE, num_columns(position + 1))


class FixedShapes(StepShapes):
    """As `StepShapes`, with `width` tokens in every forward, and as many queries at a time."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.name = f"forwards of {width} tokens"
        self.width, self.query_step, self.num_tokens, self.most_tokens = width, width, width, width
