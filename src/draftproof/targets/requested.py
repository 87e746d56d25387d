"""What a target is asked, checked before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.masks import check_parents


class Asked(Protocol):
    """What the checks look at of a target."""

    model: Any
    vocab_size: int
    invariant: bool

    @property
    def supports_trees(self) -> bool: ...
    @property
    def supports_invariant_trees(self) -> bool: ...
    def room(self, slot: int, num_more: int = 0) -> int: ...


def check_requests(target: Asked, requests: Sequence[ScoreRequest], parents: Sequence[tuple[int, ...] | None]) -> None:
    """parents: by slot, of the tree that was scored there last and not rewound; None elsewhere.

    Raises ParameterError and UnsupportedModelError.
    """
    if not requests or len({request.slot for request in requests}) != len(requests):
        slots = [request.slot for request in requests]
        raise ParameterError("requests", slots, "one or more, each on its own slot")
    for request in requests:
        tokens, room = request.token_ids, target.room(request.slot)
        if not 1 <= len(tokens) <= room:
            raise ParameterError("token_ids", f"{len(tokens)} tokens", f"1 to room({request.slot}) = {room} tokens")
        if min(tokens) < 0 or max(tokens) >= target.vocab_size:
            wrong = next(token for token in tokens if not 0 <= token < target.vocab_size)
            raise ParameterError("token_ids", wrong, f"ids from 0 to {target.vocab_size - 1}")
        if parents[request.slot] is not None:
            raise ParameterError("slot", request.slot, "rewound to a path after a tree, before the next call")
        if request.num_rows is not None and not 0 <= request.num_rows <= len(tokens):
            raise ParameterError("num_rows", request.num_rows, f"0 to the {len(tokens)} tokens that are appended")
        if request.parents is not None:
            check_parents(request.parents, len(tokens))
            if not target.supports_trees:
                raise UnsupportedModelError(
                    f"{type(target.model).__name__} has a recurrent state, which follows one path: a tree can't be "
                    "scored; draft chains"
                )
            if target.invariant and not target.supports_invariant_trees:
                raise UnsupportedModelError(
                    f"{type(target.model).__name__} runs with eager attention, under which a tree's logits aren't "
                    "the bits of its chains; draft chains, or go on without invariant execution"
                )


def check_path(
    kept: Sequence[int], length: int, *, start: int, num_tokens: int, parents: tuple[int, ...] | None
) -> None:
    """kept: nodes of the last call's `num_tokens`, which began at `start`; parents: of its tree, None for a chain.

    Raises ParameterError.
    """
    tree = parents or tuple(range(-1, num_tokens - 1))
    previous = -1
    for node in kept:
        if not 0 <= node < num_tokens or tree[node] != previous:
            raise ParameterError("path", tuple(kept), "a path from the first token down the tree that was scored")
        previous = node
    if length > start + len(kept):
        raise ParameterError("length", length, f"at most the {start} entries before and the path's")
