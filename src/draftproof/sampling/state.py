"""State of samplers that remember: an immutable value beside a History, advanced by one committed token at a time.

Rule: the state after a token is a function of the state before it, of the token, and of the row's law that the token
came from. `History.extended` makes the next one; the old one stays as it is. So a row of a drafted path or tree has the
state of its own path, a rejected run leaves the committed state untouched, and a request that is preempted or forked
carries it along.
Source: T35 (a stateful processor that was advanced by rows whose tokens were not committed).
"""

from __future__ import annotations

from typing import ClassVar, Protocol, Self

from draftproof.core import Law


class State(Protocol):
    """One sampler's state. Immutable."""

    needs_law: ClassVar[bool]
    """Whether `after` looks at the law."""

    def after(self, token_id: int, law: Law | None) -> Self:
        """The state once `token_id`, drawn at the row that has `law`, is there."""
        ...
