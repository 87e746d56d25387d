"""What a request returns. Names are vLLM's where vLLM has one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from draftproof.errors import RequestError

if TYPE_CHECKING:
    from draftproof.engine.logprobs import TokenLogprobs
    from draftproof.engine.request import Request


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sequence.

    text: without what a stop string cut off. token_ids: [n] as committed, an EOS or stop id included.
    from_draft: [n] True where a drafter's token was accepted. finish_reason: "stop", "length",
    "abort" or "error". stop_reason: the stop string or id that ended it, None for EOS. logprobs: [n] if
    asked for, of the raw logits; cumulative_logprob is their sum.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    from_draft: tuple[bool, ...]
    outcomes: tuple[str, ...]
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """speculative_decoding: the acceptance record (None without speculation). Times in milliseconds.

    generation_time_ms runs from the end of the first pass to the end of the last; tokens_per_second is over it, of the
    tokens after the first pass. num_passes: target passes after the prompt, plain and speculative.
    """

    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    tokens_per_second: float | None
    num_passes: int
    speculative_decoding: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request. `seed` is the one that was used, given or fresh. `error` is set if it failed."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    seed: int
    metrics: RequestMetrics
    error: RequestError | None = None

    @property
    def text(self) -> str:
        """The first sequence's text."""
        return self.outputs[0].text

    def to_dict(self) -> dict[str, Any]:
        """Plain values: text, token_ids, finish_reason, seed, metrics, as `--json` prints them."""
        first = self.outputs[0]
        return {
            "request_id": self.request_id,
            "text": first.text,
            "token_ids": list(first.token_ids),
            "from_draft": list(first.from_draft),
            "finish_reason": first.finish_reason,
            "stop_reason": first.stop_reason,
            "seed": self.seed,
            "prompt_token_ids": list(self.prompt_token_ids),
            "cumulative_logprob": first.cumulative_logprob,
            "metrics": asdict(self.metrics),
            "error": None if self.error is None else str(self.error),
        }


def output_of(request: Request, prompt: str | None, *, speculates: bool) -> RequestOutput:
    """What `request` returns as it stands, finished or not. prompt: its text, if it was given as one."""
    asked = request.params.logprobs is not None
    logprobs = tuple(token.logprobs for token in request.emitted if token.logprobs is not None)
    completion = CompletionOutput(
        index=0,
        text=request.stop_rules.text,
        token_ids=tuple(token.token_id for token in request.emitted),
        from_draft=tuple(token.from_draft for token in request.emitted),
        outcomes=tuple(token.outcome.value for token in request.emitted),
        finish_reason=request.stop.finish_reason if request.stop else "error" if request.error else "abort",
        stop_reason=request.stop.stop_reason if request.stop else None,
        logprobs=logprobs if asked else None,
        cumulative_logprob=sum(entry.own.logprob for entry in logprobs) if asked else None,
    )
    return RequestOutput(
        request_id=request.request_id,
        prompt=prompt,
        prompt_token_ids=request.prompt_ids,
        outputs=(completion,),
        seed=request.seed,
        metrics=_metrics_of(request, speculates),
        error=request.error,
    )


def _metrics_of(request: Request, speculates: bool) -> RequestMetrics:
    first, last = request.first_token_s, request.finished_s
    generating = last - first if first is not None and last is not None else None
    later = len(request.emitted) - request.num_first_pass
    return RequestMetrics(
        time_to_first_token_ms=(first - request.arrived_s) * 1e3 if first is not None else None,
        generation_time_ms=generating * 1e3 if generating is not None else None,
        tokens_per_second=later / generating if generating and later > 0 else None,
        num_passes=request.record.num_spec_steps + request.record.num_plain_steps,
        speculative_decoding=request.record.to_dict() if speculates else None,
    )


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One committed token of a stream.

    text: what may be shown now; it lags behind the tokens while a character is incomplete or a stop
    string could still take it back. token_id -1: no token, only the last text. The last chunk has
    finish_reason and `output`.
    """

    text: str
    token_id: int
    from_draft: bool
    outcome: str | None
    logprob: float | None = None
    finish_reason: str | None = None
    output: RequestOutput | None = field(default=None, repr=False)


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C while generating. `outputs` holds what every request had emitted by then."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        self.outputs = outputs
        super().__init__("generation was interrupted; the outputs so far are in .outputs")


class GenerationFailed(RequestError):
    """At least one request failed. `outputs` holds all of them; those that failed have `.error` set."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        self.outputs = outputs
        errors = [output.error for output in outputs if output.error is not None]
        more = f" (and {len(errors) - 1} more; see .outputs)" if len(errors) > 1 else ""
        first = errors[0]
        super().__init__(f"{first.message}{more}", request_id=first.request_id, position=first.position)
