"""A request on its way through the engine: its sequence so far, its noise, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from draftproof.core import ROOT, Law, Outcome, Verdict
from draftproof.drafters.length import LengthPolicy
from draftproof.engine.logprobs import TokenLogprobs
from draftproof.engine.stats import AcceptanceRecord
from draftproof.engine.stop import Stop, StopRules
from draftproof.errors import DraftproofError, LawError, RequestError
from draftproof.grammar import GrammarCursor
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, RowParams
from draftproof.verify import Verifier
from draftproof.verify.base import Row

if TYPE_CHECKING:
    from draftproof.engine.trace import TraceWriter


@dataclass(frozen=True, slots=True)
class Emitted:
    """One committed token, and how it came to be."""

    token_id: int
    outcome: Outcome
    logprobs: TokenLogprobs | None = None

    @property
    def from_draft(self) -> bool:
        """True if a drafter proposed this token and it was accepted."""
        return self.outcome is Outcome.ACCEPTED


@dataclass(slots=True)
class Request:
    """One sequence being generated. `context_ids` is prompt and output in one growing list.

    priority: lower is served first; equals by arrival. trace: where its decisions are written, if anywhere.
    slot: -1 while it waits. num_cached: entries of the context that its slot holds between steps: all but the newest
    token's once it decodes. last_step: when it was served last. prompt_logprobs: of the prompt's second token on.
    grammar: where the output stands in what structured_outputs asked for. forced_ids: what begins the next draft.
    num_branches: how many branches of so many tokens the target scores cheaply in the next pass; see `Target`.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    row_params: RowParams
    seed: int
    noise: KeyedNoise
    verifier: Verifier
    stop_rules: StopRules
    length_policy: LengthPolicy | None
    history: History
    context_ids: list[int]
    share_target_noise: bool = True
    law_power: float = 1.0
    grammar: GrammarCursor | None = None
    forced_ids: tuple[int, ...] = ()
    num_branches: Callable[[int], int | None] | None = None
    priority: int = 0
    trace: TraceWriter | None = None
    arrival: int = -1
    slot: int = -1
    num_cached: int = 0
    last_step: int = 0
    num_preemptions: int = 0
    confidence: float | None = None
    emitted: list[Emitted] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    record: AcceptanceRecord = field(default_factory=AcceptanceRecord)
    stop: Stop | None = None
    error: RequestError | None = None
    arrived_s: float = field(default_factory=perf_counter)
    first_token_s: float | None = None
    num_first_pass: int = 0
    finished_s: float | None = None

    @property
    def is_finished(self) -> bool:
        """True once a stop rule, an error or a cancellation ended the request."""
        return self.finished_s is not None

    @property
    def num_tokens_left(self) -> int:
        """How many tokens the length rules still allow."""
        return self.stop_rules.max_output_tokens - len(self.emitted)

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether rows of the prompt are still to be computed for their log-probabilities."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt_ids) - 1

    def commit(
        self,
        verdict: Verdict,
        num_drafted: int,
        logprobs: Sequence[TokenLogprobs] | None,
        laws: Sequence[Row] | None,
    ) -> list[Emitted]:
        """Takes the verdict's tokens one by one until a stop rule ends the request; returns what was kept.

        logprobs: one for each of the verdict's tokens, if the request asked for them. laws: the rows of the draft; None
        where they stayed on the device, and no sampler's state asks for them.
        """
        outcomes = [decision.outcome for decision in verdict.decisions]
        rows = None if laws is None else [laws[node + 1] for node in (ROOT, *verdict.path)]
        return self.take(verdict.token_ids, outcomes, num_drafted, logprobs, rows)

    def take(
        self,
        token_ids: Sequence[int],
        outcomes: Sequence[Outcome],
        num_drafted: int,
        logprobs: Sequence[TokenLogprobs] | None = None,
        rows: Sequence[Row] | None = None,
    ) -> list[Emitted]:
        """As `commit`; outcomes and, where there are any, rows: one for each token."""
        kept: list[Emitted] = []
        num_before = len(self.emitted)
        for index, token_id in enumerate(token_ids):
            kept.append(Emitted(token_id, outcomes[index], None if logprobs is None else logprobs[index]))
            self.stop = self.stop_rules.push(token_id, num_before + index + 1)
            if self.stop is not None:
                break
        self.emitted += kept
        own_ids = tuple(token_ids[: len(kept)])
        self.context_ids += own_ids
        if self.grammar is not None:
            self.grammar = self.grammar.committed(own_ids)
        self._extend_history(own_ids, rows)
        num_accepted = outcomes[: len(kept)].count(Outcome.ACCEPTED) if num_drafted else 0
        self.record.add(num_drafted, num_accepted, len(kept))
        if self.first_token_s is None:
            self.first_token_s, self.num_first_pass = perf_counter(), len(kept)
        if self.stop is not None:
            self.finished_s = perf_counter()
        return kept

    def _extend_history(self, token_ids: tuple[int, ...], rows: Sequence[Row] | None) -> None:
        """rows: those that the tokens came from, and more. A sampler's state that can't go on ends the request."""
        try:
            laws = None if rows is None else [row for row in rows[: len(token_ids)] if isinstance(row, Law)]
            self.history = self.history.extended(token_ids, laws)
        except LawError as error:
            if self.stop is None:
                self.fail(error.at(self.request_id, len(self.context_ids)))

    def fail(self, error: RequestError) -> None:
        """Ends this request with an error; what it has emitted stays."""
        self.stop_rules.finish()
        self.error = error
        self.finished_s = perf_counter()

    def fail_with(self, error: Exception) -> None:
        """Ends this request with an error that is not about one of its rows; the message names one that isn't ours."""
        text = str(error) if isinstance(error, DraftproofError) else f"{type(error).__name__}: {error}"
        wrapped = RequestError(text, request_id=self.request_id, position=len(self.context_ids))
        wrapped.__cause__ = error
        self.fail(wrapped)

    def abort(self) -> None:
        """Ends this request where it is."""
        self.stop_rules.finish()
        self.stop = Stop("abort")
        self.finished_s = perf_counter()
