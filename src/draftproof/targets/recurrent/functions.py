"""How transformers' code of recurrent layers is led here.

A layer calls functions of its own module: `causal_conv1d_fn`, and one recurrence. `install` puts functions of the same
names in their place that hand the call to the running forward (`forward.py`), or to transformers' own function where
none is running, as in its `generate`. The cache tells every layer that there is no state yet (`SlotCache`), so that
these two are called for any number of tokens, and never those for one token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, Protocol

from draftproof.errors import UnsupportedModelError

CONVOLUTION: Final = "causal_conv1d_fn"
GATED_DELTA: Final = "torch_chunk_gated_delta_rule"
STATE_SPACE: Final = "mamba2_chunk_scan"
CHANNEL_STATE_SPACE: Final = "mamba_selective_scan"
RECURRENCES: Final = (GATED_DELTA, STATE_SPACE, CHANNEL_STATE_SPACE)
_MARK: Final = "_draftproof_installed"


class Running(Protocol):
    """A forward that computes these functions itself: `call(name, args, kwargs)`."""

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


_RUNNING: ContextVar[Running | None] = ContextVar("running_recurrence", default=None)


@contextmanager
def running(forward: Running | None) -> Iterator[None]:
    """Calls inside are calls of this forward; of none, transformers' own."""
    token = _RUNNING.set(forward)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def install(model: Any, *, has_states: bool) -> None:
    """Lead the model's recurrent layers here. has_states: they have more than convolutions.

    Raises UnsupportedModelError where the model's code calls none of the functions that are known here.
    """
    modules = {type(module).__module__ for module in model.modules()}
    wanted = (CONVOLUTION, *RECURRENCES)
    found = {(name, where) for where in modules for name in wanted if hasattr(sys.modules[where], name)}
    names = {name for name, _ in found}
    if CONVOLUTION not in names or (has_states and not names & set(RECURRENCES)):
        raise UnsupportedModelError(
            f"{type(model).__name__} has recurrent layers whose code calls none of the recurrences known here "
            f"({', '.join(RECURRENCES)}, after {CONVOLUTION}), so their state can't be rewound exactly; those of "
            "Qwen3-Next, Qwen3.5, Mamba-2, LFM2, Falcon-H1 and Jamba can, for example"
        )
    for name, where in found:
        function = getattr(sys.modules[where], name)
        if not hasattr(function, _MARK):
            setattr(sys.modules[where], name, _led(name, function))


def _led(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        forward = _RUNNING.get()
        return function(*args, **kwargs) if forward is None else forward.call(name, args, kwargs)

    setattr(call, _MARK, True)
    return call
