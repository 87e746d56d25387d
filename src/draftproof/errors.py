"""Every error that the package raises on purpose.

DraftproofError
├── ParameterError          a request's or a configuration's field: name, value, what is allowed
├── MissingExtraError       an optional dependency is absent: names the install command
├── ModelError              a model can't be found, read or run
│   ├── UnsupportedModelError   its architecture or cache can't be decoded exactly
│   └── TokenizerMismatchError  target and drafter don't share a vocabulary
├── QueueFullError          the engine's queue is full: the caller has to wait
├── RequestError            one request fails; its neighbours go on
│   ├── PromptError             empty, or longer than the model reads
│   ├── GrammarError            a grammar that can't be compiled, begun or followed
│   └── LawError                a row that is no law: NaN, or every token masked
└── DraftContractError      a draft met a verifier under which it would change the law

A message says what was given, what is allowed, and what to do.
"""

from typing import Self


class DraftproofError(Exception):
    """Base of every error that draftproof raises on purpose."""


class ParameterError(DraftproofError, ValueError):
    """A field of SamplingParams, SpeculativeConfig or EngineConfig that can't be honoured.

    `field` is the field's name, `value` what was given, `allowed` a phrase that completes
    "must be …", `hint` what to do instead (optional).
    """

    def __init__(self, field: str, value: object, allowed: str, hint: str = "") -> None:
        self.field, self.value, self.allowed, self.hint = field, value, allowed, hint
        super().__init__(f"{field}={value!r}: must be {allowed}" + (f"; {hint}" if hint else ""))


class MissingExtraError(DraftproofError, ImportError):
    """An optional dependency is absent. The message names the command that installs it."""

    def __init__(self, what: str, package: str, command: str) -> None:
        self.what, self.package, self.command = what, package, command
        super().__init__(f"{what} needs the package {package!r}, which is not installed; run: {command}")


class ModelError(DraftproofError):
    """A model can't be found, read or run."""


class UnsupportedModelError(ModelError):
    """The model's architecture or cache can't be decoded exactly."""


class TokenizerMismatchError(ModelError):
    """Target and drafter don't give the same ids to the same text."""


class QueueFullError(DraftproofError):
    """No further request can be queued now. `num_waiting` are in the queue, `max_num_waiting` fit."""

    def __init__(self, num_waiting: int, max_num_waiting: int) -> None:
        self.num_waiting, self.max_num_waiting = num_waiting, max_num_waiting
        super().__init__(
            f"{num_waiting} requests are waiting and the queue holds {max_num_waiting}: step the engine until some "
            "have been admitted and try again, or raise max_num_waiting"
        )


class RequestError(DraftproofError):
    """One request fails. `request_id` and `position` (absolute, prompt included) say which and where."""

    def __init__(self, message: str, *, request_id: str | None = None, position: int | None = None) -> None:
        self.message, self.request_id, self.position = message, request_id, position
        where = [f"request {request_id}"] if request_id is not None else []
        where += [f"position {position}"] if position is not None else []
        super().__init__(f"{', '.join(where)}: {message}" if where else message)

    def at(self, request_id: str, position: int) -> Self:
        """The same error, with the request and the position filled in."""
        return type(self)(self.message, request_id=request_id, position=position)


class PromptError(RequestError):
    """The prompt is empty, or longer than the model reads."""


class GrammarError(RequestError):
    """structured_outputs that can't be compiled, begun or followed: the library's words, or what it leaves out."""


class LawError(RequestError):
    """A row that is no probability law: NaN or infinite logits, or every token masked."""


class DraftContractError(DraftproofError):
    """A draft met a verifier under which it would change the target's law."""
