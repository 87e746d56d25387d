"""What a request returns. Names are vLLM's where vLLM has one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from draftproof.errors import RequestError

if TYPE_CHECKING:
    from draftproof.engine.logprobs import TokenLogprobs


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

    generation_time_ms runs from the first committed token to the last; tokens_per_second is over it.
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
