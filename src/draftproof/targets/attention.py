"""The attention function that targets install in a transformers model.

Within a forward of a target it hands the queries to that forward (`packed.py`, on a GPU `static/`), which knows what
each token reads. It computes what transformers' `sdpa` does for an additive float mask, softmax(q·k·scale + mask)·v,
with the query heads that share a key head stacked along the query axis: keys and values are read where they lie in the
cache instead of being copied once per query head at every step.

Any other call, as transformers' own `generate` makes, goes to transformers' own function, so the model stays usable
outside draftproof.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from draftproof.errors import UnsupportedModelError

NAME = "draftproof"


class Attending(Protocol):
    """A forward that computes its own attention (`packed.py`, `static/steps.py`)."""

    def attend(self, query: torch.Tensor, scale: float | None, dropout: float) -> torch.Tensor:
        """query [1, heads, tokens, dim] to [1, tokens, heads, value dim]."""
        ...


# Keyword arguments that change the law of attention and that a packed forward does not compute.
UNSUPPORTED = ("softcap", "position_bias", "s_aux", "sinks")

_RUNNING: ContextVar[Attending | None] = ContextVar("running_forward", default=None)


@contextmanager
def running(forward: Attending) -> Iterator[None]:
    """Model calls inside are calls of this forward."""
    token = _RUNNING.set(forward)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [batch, heads, tokens, dim] to [batch, tokens, heads, value dim], and None.

    In a packed forward batch is 1, and key, value and attention_mask are not looked at.
    """
    forward = _RUNNING.get()
    if forward is None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(
                f"attention with {name!r} is not computed by the {NAME!r} attention function; "
                "load the model with attn_implementation='eager'"
            )
    return forward.attend(query, scaling, dropout), None


def register() -> str:
    """Make `attend` known to transformers; returns the name to give as attn_implementation."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
