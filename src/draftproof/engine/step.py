"""One step over a batch of requests. Everything that decoding is, stands in `step`.

    drafts   = drafter.propose(context)
    laws     = chain(target.score(drafts))
    verdicts = verifier(drafts, laws, noise)
    commit; target.rewind; drafter.observe

A request without a drafter takes the same road with an empty draft: plain decoding is the pass of
draft length 0. The first token after the prompt is a verified row like every other. A request whose context isn't
cached yet appends a chunk of it in the same forward and commits nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from draftproof.core import Verdict
from draftproof.drafters.base import Drafter
from draftproof.drafters.costs import Load
from draftproof.engine.device_inputs import Pass
from draftproof.engine.device_verification import DeviceVerification
from draftproof.engine.drafting import propose
from draftproof.engine.laws import laws_of
from draftproof.engine.logprobs import logprobs_of
from draftproof.engine.turn import Turn
from draftproof.errors import LawError
from draftproof.sampling import SamplerChain
from draftproof.targets.base import ScoreRequest, Target
from draftproof.verify.base import Row


@dataclass(frozen=True, slots=True)
class Machinery:
    """What a step works with. drafter None: plain decoding. verification None: all passes go the reference way."""

    target: Target
    chain: SamplerChain
    drafter: Drafter | None
    logprobs_mode: str = "raw_logprobs"
    verification: DeviceVerification | None = None


def step(machinery: Machinery, turns: Sequence[Turn]) -> None:
    """Runs one pass, or one chunk of a context, for each turn. A request's error ends that request alone."""
    propose(machinery.drafter, turns)
    turns = [turn for turn in turns if not turn.request.is_finished]
    began = perf_counter()
    scored = _score(machinery.target, turns)
    verdicts = _verify_together(machinery.verification, scored)
    shared_s = perf_counter() - began
    for (turn, logits), verdict in zip(scored, verdicts, strict=True):
        began = perf_counter()
        with turn.failing_alone():
            laws: Sequence[Row] | None = None
            if turn.is_pass and verdict is None:
                laws = laws_of(machinery.chain, turn.request, turn.draft, logits)
                verdict = _verify(turn, laws)
            _commit(machinery, turn, laws, logits, verdict)
            _rewind(machinery, turn, verdict)
            _observe_cost(turn, turns, shared_s + perf_counter() - began)


def _score(target: Target, turns: Sequence[Turn]) -> list[tuple[Turn, torch.Tensor]]:
    """The turns with the rows of their passes, [1 + drafted, V] or none. A turn whose scores failed is left out."""
    found = []
    for turn, logits in zip(turns, _scored(target, turns) if turns else (), strict=True):
        with turn.failing_alone():
            found.append((turn, turn.take_prompt_rows(logits)))
    return found


def _verify_together(
    verification: DeviceVerification | None, scored: Sequence[tuple[Turn, torch.Tensor]]
) -> list[Verdict | None]:
    """What the device decides; None for turns that are no passes, and for passes that go the reference way."""
    verdicts: list[Verdict | None] = [None] * len(scored)
    if verification is None:
        return verdicts
    places = [place for place, (turn, _) in enumerate(scored) if turn.is_pass]
    passes = [Pass(turn.request, turn.draft, logits) for turn, logits in (scored[place] for place in places)]
    for place, verdict in zip(places, verification.verify(passes), strict=True):
        verdicts[place] = verdict
    return verdicts


def _scored(target: Target, turns: Sequence[Turn]) -> Sequence[torch.Tensor | Exception]:
    """A forward that fails is run again, turn by turn: one's tokens must not take the others' with them."""
    try:
        return target.score([_score_request(turn) for turn in turns])
    except Exception:
        for turn in turns:
            target.rewind(turn.request.slot, turn.start)
        return [_scored_alone(target, turn) for turn in turns]


def _scored_alone(target: Target, turn: Turn) -> torch.Tensor | Exception:
    try:
        return target.score([_score_request(turn)])[0]
    except Exception as error:
        return error


def _score_request(turn: Turn) -> ScoreRequest:
    parents: tuple[int, ...] | None = None
    if not turn.draft.is_chain:
        chunk = range(-1, turn.num_context - 1)
        parents = (*chunk, *(parent + turn.num_context for parent in turn.draft.parents))
    return ScoreRequest(turn.request.slot, turn.appended_ids, parents, turn.num_rows)


def _verify(turn: Turn, laws: Sequence[Row]) -> Verdict | None:
    """The verdict; None if the request failed, or if this pass is to be run again without a draft.

    Under a replay verifier a bad row past the first is met again by plain passes, so that a failing
    request's text, too, is the same with speculation on and off. A ratio test may not be run again
    after a look at its outcome.
    """
    request, draft = turn.request, turn.draft
    try:
        return request.verifier.verify(draft, laws, request.noise)
    except LawError as error:
        if len(draft) and request.verifier.guarantee == "replay":
            request.length_policy = None
        else:
            request.fail(error)
    return None


def _commit(
    machinery: Machinery, turn: Turn, laws: Sequence[Row] | None, logits: torch.Tensor, verdict: Verdict | None
) -> None:
    if verdict is None:
        return
    request, draft = turn.request, turn.draft
    size, num_top = request.row_params.vocab_size, request.params.logprobs
    logprobs = logprobs_of(machinery.logprobs_mode, logits, laws, verdict, size, num_top)
    turn.kept = request.commit(verdict, len(draft), logprobs, laws)
    if request.length_policy is not None:
        request.length_policy.observe(*_chosen(turn), request.confidence)
    if request.trace is not None and laws is not None:
        request.trace.write(request, draft, laws, verdict, len(turn.kept))


def _chosen(turn: Turn) -> tuple[int, int]:
    """(drafted, accepted) of the tokens that a length was chosen for: not of those that a grammar forced before."""
    num_accepted = sum(token.from_draft for token in turn.kept)
    num_forced = min(len(turn.request.forced_ids), len(turn.draft))
    if num_accepted < num_forced:
        return 0, 0
    return len(turn.draft) - num_forced, num_accepted - num_forced


def _rewind(machinery: Machinery, turn: Turn, verdict: Verdict | None) -> None:
    """The slot keeps what is committed, without the newest token: the next pass appends it."""
    request, draft = turn.request, turn.draft
    if not turn.is_pass:
        request.num_cached += turn.num_context
        return
    path: tuple[int, ...] = ()
    if verdict is not None and not draft.is_chain:
        path = (*range(turn.num_context), *(node + turn.num_context for node in verdict.path))
    length = len(request.context_ids) - 1
    machinery.target.rewind(request.slot, length, path)
    request.num_cached = length
    if machinery.drafter is not None and verdict is not None:
        machinery.drafter.observe(request.slot, request.context_ids, verdict)


def _observe_cost(turn: Turn, turns: Sequence[Turn], seconds: float) -> None:
    """A step that also cached contexts, or verified forced tokens, says nothing about the cost of a chosen length."""
    if (
        turn.request.length_policy is not None
        and not turn.request.forced_ids
        and all(other.num_context == 1 for other in turns)
    ):
        width = 1 + len(turn.draft)
        num_tokens = sum(1 + len(other.draft) for other in turns)
        load = Load(len(turns), num_tokens - width, sum(other.start for other in turns))
        turn.request.length_policy.observe_cost(width, seconds, load)
