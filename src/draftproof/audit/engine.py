"""What can be audited: anything that turns (prompt, sampling parameters, seed) into token ids.

    def my_engine(prompt_ids, params, seed):
        return token_ids                      # or (token_ids, logprobs), or a Generation

    audit_scored(my_engine, scorer, prompts)

`as_engine` wraps such a function. An engine object may have `generate_batch` too, for speed or to be audited under
concurrency. What an engine says about itself (pass starts, logprobs) is optional and named in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from draftproof import DraftproofError, ParameterError, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to ask for. Seeds are distinct within an audit, unless replay is what is asked."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine answered.

    token_ids: the output, an EOS included. pass_starts: where in it passes began, ascending, the first 0; None if
    unknown. logprobs: of the emitted tokens, if reported. text: what the engine showed, for engines that give no ids.
    """

    token_ids: tuple[int, ...]
    pass_starts: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    text: str | None = None


Generate: TypeAlias = Callable[[Sequence[int], SamplingParams, int], Any]
"""(prompt ids, parameters, seed) -> token ids, (token ids, logprobs) or a Generation."""


@runtime_checkable
class Engine(Protocol):
    """An engine under audit.

    name: for reports. keyed: its output is a function of position noise, so that where a pass starts already depends
    on the noise to come, and strata by pass offset are not predictable.
    """

    @property
    def name(self) -> str: ...

    @property
    def keyed(self) -> bool: ...

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """One generation for each request, in order, all of them in flight at once if the engine can.

        Raises Refusal where a parameter isn't supported, EngineError where the engine failed.
        """
        ...


class Refusal(DraftproofError):
    """The engine refuses a setting: no finding, and listed as refused."""


class EngineError(DraftproofError):
    """The engine failed: down, cut short, or answering nonsense. What it had given before is kept."""


@dataclass(frozen=True, slots=True)
class CallableEngine:
    """An engine made of a function; see the module."""

    function: Generate
    name: str
    keyed: bool = False

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Generation:
        try:
            answer = self.function(list(request.prompt_ids), request.params, request.seed)
        except (EngineError, Refusal):
            raise
        except (NotImplementedError, ParameterError) as error:
            raise Refusal(str(error) or type(error).__name__) from error
        except Exception as error:
            raise EngineError(f"{self.name} failed with {type(error).__name__}: {error}") from error
        return to_generation(answer, self.name)


def as_engine(engine: Engine | Generate, name: str | None = None, *, keyed: bool = False) -> Engine:
    """`engine` itself if it is one, else a function wrapped as one. name: the function's own if left out."""
    if isinstance(engine, Engine):
        return engine
    if not callable(engine):
        raise ParameterError("engine", type(engine).__name__, "a function or an object with name, keyed and generate")
    return CallableEngine(engine, name or str(getattr(engine, "__name__", "engine")), keyed)


def to_generation(answer: Any, name: str) -> Generation:
    """A function's answer as a Generation. Raises EngineError if it is none."""
    if isinstance(answer, Generation):
        return answer
    logprobs = None
    if isinstance(answer, tuple) and len(answer) == 2 and not isinstance(answer[0], int):
        answer, logprobs = answer
    try:
        token_ids = tuple(int(token_id) for token_id in answer)
        values = None if logprobs is None else tuple(float(value) for value in logprobs)
    except (TypeError, ValueError) as error:
        raise EngineError(f"{name} answered {type(answer).__name__}, and token ids were expected: {error}") from error
    if values is not None and len(values) != len(token_ids):
        raise EngineError(f"{name} gave {len(values)} logprobs for {len(token_ids)} tokens")
    return Generation(token_ids, logprobs=values)


def pass_offsets(generation: Generation) -> list[int]:
    """[n] each token's offset from its pass's start; -1 where passes are unknown."""
    if generation.pass_starts is None:
        return [-1] * len(generation.token_ids)
    starts = set(generation.pass_starts)
    offsets, offset = [], -1
    for index in range(len(generation.token_ids)):
        offset = 0 if index in starts else offset + 1
        offsets.append(offset)
    return offsets
