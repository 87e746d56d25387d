"""What a request returns. Names are vLLM's where vLLM has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from draftproof.engine.stats import merged
from draftproof.errors import RequestError
from draftproof.params import SamplingParams

if TYPE_CHECKING:
    from draftproof.chat import ChatMessage
    from draftproof.engine.logprobs import TokenLogprobs
    from draftproof.engine.request import Emitted, Request


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sequence. `index` is its sample's, 0 to n - 1.

    text: without what a stop string cut off. token_ids: [n] as committed, an EOS or stop id included.
    from_draft: [n] True where a drafter's token was accepted. finish_reason: "stop", "length",
    "abort" or "error". stop_reason: the stop string or id that ended it, None for EOS. logprobs: [n] if
    asked for, as EngineConfig.logprobs_mode says; cumulative_logprob is their sum. message: a chat's answer, read.
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
    message: ChatMessage | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; logprobs and message only if there are any."""
        plain: dict[str, Any] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "from_draft": list(self.from_draft),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "cumulative_logprob": self.cumulative_logprob,
        }
        if self.logprobs is not None:
            plain["logprobs"] = [entry.to_dict() for entry in self.logprobs]
        if self.message is not None:
            plain["message"] = self.message.to_dict()
        return plain


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
    """A finished request, with one completion for each of its n samples.

    seed: the one that was used, given or fresh; None if the request was refused without one. error: set if it failed.
    prompt_logprobs: [L] if asked for, None for the first token.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    seed: int | None
    metrics: RequestMetrics
    error: RequestError | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None

    @property
    def text(self) -> str:
        """The first sequence's text."""
        return self.outputs[0].text

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them: the first sample's on top, all in `outputs` if there are more."""
        plain = {
            "request_id": self.request_id,
            **self.outputs[0].to_dict(),
            "seed": self.seed,
            "prompt_token_ids": list(self.prompt_token_ids),
            "metrics": asdict(self.metrics),
            "error": None if self.error is None else str(self.error),
        }
        if self.prompt_logprobs is not None:
            plain["prompt_logprobs"] = [None if entry is None else entry.to_dict() for entry in self.prompt_logprobs]
        if len(self.outputs) > 1:
            plain["outputs"] = [{"index": output.index, **output.to_dict()} for output in self.outputs]
        return plain


@dataclass(slots=True)
class Job:
    """One prompt on its way: its requests, one for each sample, or the error that refused it.

    text: the prompt, if it was given as text.
    """

    request_id: str
    text: str | None
    params: SamplingParams
    prompt_ids: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    error: RequestError | None = None

    def output(self, *, speculates: bool) -> RequestOutput:
        """What the prompt returns as it stands, finished or not."""
        first = self.requests[0] if self.requests else None
        errors = [request.error for request in self.requests if request.error is not None]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.text,
            prompt_token_ids=tuple(self.prompt_ids),
            outputs=tuple(_completion_of(request) for request in self.requests) or (_NOTHING,),
            seed=first.seed if first is not None else self.params.seed,
            metrics=_metrics_of(self.requests, speculates),
            error=self.error or (errors[0] if errors else None),
            prompt_logprobs=None if first is None else _prompt_logprobs_of(first),
        )


def _completion_of(request: Request) -> CompletionOutput:
    asked = request.params.logprobs is not None
    logprobs = tuple(token.logprobs for token in request.emitted if token.logprobs is not None)
    return CompletionOutput(
        index=request.noise.sample_index,
        text=request.stop_rules.text,
        token_ids=tuple(token.token_id for token in request.emitted),
        from_draft=tuple(token.from_draft for token in request.emitted),
        outcomes=tuple(token.outcome.value for token in request.emitted),
        finish_reason=request.stop.finish_reason if request.stop else "error" if request.error else "abort",
        stop_reason=request.stop.stop_reason if request.stop else None,
        logprobs=logprobs if asked else None,
        cumulative_logprob=sum(entry.own.logprob for entry in logprobs) if asked else None,
    )


_NOTHING: Final = CompletionOutput(0, "", (), (), (), "error")


def _prompt_logprobs_of(request: Request) -> tuple[TokenLogprobs | None, ...] | None:
    """None for the first token, which follows nothing; what was scored so far if the request did not get further."""
    return None if request.params.prompt_logprobs is None else (None, *request.prompt_logprobs)


def _metrics_of(requests: Sequence[Request], speculates: bool) -> RequestMetrics:
    """Over all samples: times from the first's arrival to the last's end, counts as sums."""
    firsts = [request.first_token_s for request in requests if request.first_token_s is not None]
    lasts = [request.finished_s for request in requests if request.finished_s is not None]
    first, last = min(firsts, default=None), max(lasts, default=None)
    generating = last - first if first is not None and last is not None else None
    later = sum(len(request.emitted) - request.num_first_pass for request in requests)
    records = [request.record for request in requests]
    return RequestMetrics(
        time_to_first_token_ms=(first - requests[0].arrived_s) * 1e3 if first is not None else None,
        generation_time_ms=generating * 1e3 if generating is not None else None,
        tokens_per_second=later / generating if generating and later > 0 else None,
        num_passes=sum(record.num_spec_steps + record.num_plain_steps for record in records),
        speculative_decoding=merged(records).to_dict() if speculates else None,
    )


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One committed token of a stream.

    text: what may be shown now; it lags behind the tokens while a character is incomplete or a stop
    string could still take it back. token_id -1: no token, only the last text. index: which of n samples. A sample's
    last chunk has finish_reason, the request's last one `output`. logprobs: of the token, if asked for.
    """

    text: str
    token_id: int
    from_draft: bool
    outcome: str | None
    logprobs: TokenLogprobs | None = field(default=None, repr=False)
    finish_reason: str | None = None
    output: RequestOutput | None = field(default=None, repr=False)
    index: int = 0


def chunks_of(request: Request, kept: Sequence[Emitted]) -> Iterator[StreamChunk]:
    """A chunk for each newly committed token. The stop rules have seen them all: text goes out with the last."""
    for place, token in enumerate(kept):
        yield StreamChunk(
            request.stop_rules.take(final=False) if place == len(kept) - 1 else "",
            token.token_id,
            token.from_draft,
            token.outcome.value,
            token.logprobs,
            index=request.noise.sample_index,
        )


def last_chunk_of(request: Request, output: RequestOutput | None) -> StreamChunk:
    """The chunk that ends a sample: the text that was held back, why it ended, and with the last one the output."""
    return StreamChunk(
        request.stop_rules.take(final=True),
        -1,
        False,
        None,
        finish_reason=request.stop.finish_reason if request.stop else "error",
        output=output,
        index=request.noise.sample_index,
    )


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
