"""Custom logits processors: a request's own functions, called once for every row.

A processor is one of two things:
- a pure function (token_ids, logits) -> logits; token_ids: prompt and output, the drafts before the row included;
  logits: float32 or float64 tensor [V], a copy that it may write to;
- an object that is called the same way and has `extended(token_id)`, which returns the processor after one more output
  token, and `fork()`, which returns an independent copy. Its state is what these two make of it: forked for every
  request and every drafted branch, advanced by committed tokens, never by rejected ones.

Rule: the result is a function of the arguments and of that explicit state. Anything else (a counter, a cache of what
was seen, a random generator) would see rows that are never committed and would change the text under speculation (T35),
so each call is followed by a repeat of an earlier one, whose result must have the same bits: the same call the first
time, the request's previous call from then on. What differs ends the request with an error, and so does an exception, a
wrong shape, NaN or +inf. The check can't see a state that shows later than the next call.
Masked tokens are shown as -inf and stay masked whatever is returned.
Source: vLLM 0's SamplingParams.logits_processors; transformers' LogitsProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Self, final

import torch

from draftproof.core import Law
from draftproof.errors import LawError, ParameterError
from draftproof.sampling.history import History

_HIDDEN: Final = (
    "two calls with the same token ids and logits gave different results: it keeps a state of its own, which would see "
    "tokens that are never committed; make it a pure function, or give it fork() and extended(token_id)"
)


@final
class ProcessorState:
    """A stateful processor beside a History. Forked before it is extended, so earlier rows keep theirs."""

    __slots__ = ("index", "processor")
    needs_law: ClassVar[bool] = False

    def __init__(self, index: int, processor: Any) -> None:
        self.index, self.processor = index, processor

    def after(self, token_id: int, law: Law | None) -> Self:
        """The state once `token_id` is there."""
        try:
            extended = self.processor.fork().extended(token_id)
        except Exception as error:
            raise LawError(f"{_named(self.processor)} failed in fork or extended: {error!r}") from error
        if not callable(extended) or not hasattr(extended, "extended") or not hasattr(extended, "fork"):
            raise LawError(f"{_named(self.processor)}: extended returned {extended!r}; must return the next processor")
        return type(self)(self.index, extended)


@final
class Processors:
    """One request's processors, and the last call of each, which the replay check repeats."""

    __slots__ = ("_failed", "_last", "_processors")
    _processors: tuple[Any, ...]

    def __init__(self, processors: Sequence[Callable[..., Any]]) -> None:
        self._processors = tuple(processors)
        self._last: dict[int, tuple[Any, tuple[int, ...], torch.Tensor, torch.Tensor]] = {}
        self._failed: dict[int, str] = {}
        for processor in processors:
            if hasattr(processor, "extended") != hasattr(processor, "fork"):
                raise ParameterError(
                    "logits_processors", processor, "a pure function, or an object with both fork() and extended(id)"
                )

    def __len__(self) -> int:
        return len(self._processors)

    def names(self) -> list[str]:
        """What the processors are called, for messages."""
        return [_named(processor).removeprefix("logits processor ") for processor in self._processors]

    def first_states(self) -> tuple[ProcessorState, ...]:
        """A fork of each stateful processor, as it is before the first output token."""
        return tuple(
            ProcessorState(index, _forked(processor))
            for index, processor in enumerate(self._processors)
            if hasattr(processor, "extended")
        )

    def apply(self, logits: torch.Tensor, history: History) -> torch.Tensor:
        """[V] logits after all processors, in order. Raises LawError."""
        token_ids = history.prompt_ids + history.output_ids
        states = {state.index: state.processor for state in history.states if isinstance(state, ProcessorState)}
        for index, processor in enumerate(self._processors):
            stateful = hasattr(processor, "extended")
            if stateful and index not in states:
                raise LawError(f"{_named(processor)} has a state that the history lacks: begin with first_history")
            logits = self._call(index, states[index] if stateful else processor, token_ids, logits)
        # The results are kept for the check, and the caller goes on writing to its row.
        return logits.clone()

    def _call(self, index: int, processor: Any, token_ids: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
        if index in self._failed:
            raise LawError(self._failed[index])
        found = _checked(processor, token_ids, logits)
        earlier = self._last.get(index, (processor, token_ids, logits, found))
        self._last[index] = (processor, token_ids, logits, found)
        again = _checked(*earlier[:3])
        if not torch.equal(again, earlier[3]):
            # Rows that this processor has already shaped may be wrong: no later row is made from it.
            self._failed[index] = f"{_named(processor)}: {_HIDDEN}"
            raise LawError(self._failed[index])
        return found


def _forked(processor: Any) -> Any:
    try:
        return processor.fork()
    except Exception as error:
        hint = f"fork raised {error!r}"
        raise ParameterError("logits_processors", processor, "objects whose fork() returns a copy", hint) from error


def _checked(processor: Any, token_ids: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
    name = _named(processor)
    try:
        found = processor(token_ids, logits.clone())
    except Exception as error:
        raise LawError(f"{name} failed: {error!r}") from error
    if not isinstance(found, torch.Tensor):
        raise LawError(f"{name} returned {type(found).__name__}; must return a tensor of {len(logits)} logits")
    if found.shape != logits.shape or not found.is_floating_point():
        given = f"{found.dtype} of shape {tuple(found.shape)}"
        raise LawError(f"{name} returned {given}; must return floats of shape {tuple(logits.shape)}")
    # A copy of its own: what the processor keeps and writes to later must not change this row.
    found = found.detach().to(device="cpu", dtype=logits.dtype, copy=True)
    if torch.isnan(found).any() or torch.isposinf(found).any():
        raise LawError(f"{name} returned NaN or +inf among its logits; -inf masks a token")
    return found


def _named(processor: Any) -> str:
    name = getattr(processor, "__qualname__", None) or type(processor).__qualname__
    return f"logits processor {name}"
