"""One pass over a batch of requests. Everything that decoding is, stands in `step`.

    drafts   = drafter.propose(context)
    laws     = chain(target.score(drafts))
    verdicts = verifier(drafts, laws, noise)
    commit; target.rewind; drafter.observe

A request without a drafter takes the same road with an empty draft: plain decoding is the pass of
draft length 0. The first token after the prompt is a verified row like every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from draftproof.core import Draft, Verdict
from draftproof.drafters.base import Drafter, DraftRequest
from draftproof.engine.laws import laws_of
from draftproof.engine.logprobs import TokenLogprobs, token_logprobs
from draftproof.engine.request import Emitted, Request
from draftproof.engine.trace import TraceWriter
from draftproof.errors import DraftproofError, LawError
from draftproof.sampling import SamplerChain
from draftproof.targets.base import ScoreRequest, Target
from draftproof.verify.base import Row


@dataclass(frozen=True, slots=True)
class Machinery:
    """What a step works with. drafter None: plain decoding."""

    target: Target
    chain: SamplerChain
    drafter: Drafter | None
    trace: TraceWriter | None = None


def step(machinery: Machinery, requests: Sequence[Request]) -> list[tuple[Request, list[Emitted]]]:
    """Runs one pass; returns what each request committed. A request's error ends that request alone."""
    drafts = _propose(machinery, requests)
    requests, drafts = _alive(machinery, requests, drafts)
    scores, score_s = _score(machinery, requests, drafts) if requests else ([], 0.0)
    committed = []
    for request, draft, logits in zip(requests, drafts, scores, strict=True):
        began = perf_counter()
        laws = laws_of(machinery.chain, request, draft, logits)
        verdict = _verify(request, draft, laws)
        kept = _commit(machinery, request, draft, laws, logits, verdict) if verdict else []
        if request.length_policy is not None:
            request.length_policy.observe_cost(1 + len(draft), score_s + perf_counter() - began)
        _rewind(machinery, request, draft, verdict)
        committed.append((request, kept))
    return committed


def _propose(machinery: Machinery, requests: Sequence[Request]) -> list[Draft]:
    drafts = [Draft.empty(len(request.context_ids)) for request in requests]
    drafter = machinery.drafter
    if drafter is None:
        return drafts
    asked: list[tuple[int, DraftRequest]] = []
    for index, request in enumerate(requests):
        num_tokens = _num_tokens(machinery.target, drafter, request)
        if num_tokens > 0:
            share = request.verifier.guarantee == "replay" and request.share_target_noise
            asked.append(
                (
                    index,
                    DraftRequest(
                        slot=request.slot,
                        context_ids=request.context_ids,
                        num_tokens=num_tokens,
                        noise=request.noise,
                        share_target_field=share,
                        row_params=request.row_params,
                        history=request.history,
                    ),
                )
            )
    if not asked:
        return drafts
    began = perf_counter()
    proposed = _proposed(drafter, [ask for _, ask in asked])
    seconds = (perf_counter() - began) / len(asked)
    for (index, _), draft in zip(asked, proposed, strict=True):
        request = requests[index]
        if isinstance(draft, DraftproofError):
            request.fail_with(draft)
            continue
        drafts[index] = draft
        if request.length_policy is not None:
            request.length_policy.observe_draft_cost(len(draft), seconds)
    return drafts


def _proposed(drafter: Drafter, asked: Sequence[DraftRequest]) -> Sequence[Draft | DraftproofError]:
    """One draft for each request. A drafter that fails on one of a batch is asked again, one by one."""
    try:
        return drafter.propose(asked)
    except DraftproofError as error:
        if len(asked) == 1:
            return [error]
        return [_proposed(drafter, [ask])[0] for ask in asked]


def _alive(
    machinery: Machinery, requests: Sequence[Request], drafts: Sequence[Draft]
) -> tuple[list[Request], list[Draft]]:
    """The requests whose drafter did not fail, and their drafts; the others' slots are freed."""
    for request in requests:
        if request.is_finished:
            _rewind(machinery, request, Draft.empty(len(request.context_ids)), None)
    pairs = [(r, d) for r, d in zip(requests, drafts, strict=True) if not r.is_finished]
    return [request for request, _ in pairs], [draft for _, draft in pairs]


def _num_tokens(target: Target, drafter: Drafter, request: Request) -> int:
    if request.length_policy is None:
        return 0
    # A pass emits one token more than it accepts, and appends one more than it drafts.
    most = min(request.num_tokens_left, target.room(request.slot)) - 1
    if most <= 0:
        return 0
    request.confidence = drafter.confidence(request.slot, request.context_ids)
    if request.confidence is None and not drafter.proposes_without_confidence:
        return 0
    return min(most, request.length_policy.num_tokens(request.confidence))


def _score(
    machinery: Machinery, requests: Sequence[Request], drafts: Sequence[Draft]
) -> tuple[list[torch.Tensor], float]:
    """The target's logits, a [1 + len(draft), V] tensor for each request, and the seconds that they took."""
    asked = [
        ScoreRequest(
            request.slot,
            (request.context_ids[-1], *draft.token_ids),
            None if draft.is_chain else (-1, *(parent + 1 for parent in draft.parents)),
        )
        for request, draft in zip(requests, drafts, strict=True)
    ]
    began = perf_counter()
    scores = machinery.target.score(asked)
    return scores, perf_counter() - began


def _verify(request: Request, draft: Draft, laws: Sequence[Row]) -> Verdict | None:
    """The verdict; None if the request failed, or if this pass is to be run again without a draft.

    Under a replay verifier a bad row past the first is met again by plain passes, so that a failing
    request's text, too, is the same with speculation on and off. A ratio test may not be run again
    after a look at its outcome.
    """
    try:
        return request.verifier.verify(draft, laws, request.noise)
    except LawError as error:
        if len(draft) and request.verifier.guarantee == "replay":
            request.length_policy = None
        else:
            request.fail(error)
    except DraftproofError as error:
        request.fail_with(error)
    return None


def _commit(
    machinery: Machinery, request: Request, draft: Draft, laws: Sequence[Row], logits: torch.Tensor, verdict: Verdict
) -> list[Emitted]:
    kept = request.commit(verdict, len(draft), _logprobs(request, logits, verdict))
    num_accepted = sum(token.from_draft for token in kept)
    if request.length_policy is not None:
        request.length_policy.observe(len(draft), num_accepted, request.confidence)
    if machinery.trace is not None:
        machinery.trace.write(request, draft, laws, verdict, len(kept))
    return kept


def _logprobs(request: Request, logits: torch.Tensor, verdict: Verdict) -> list[TokenLogprobs] | None:
    if request.params.logprobs is None:
        return None
    rows = logits[[0, *(node + 1 for node in verdict.path)]]
    return token_logprobs(rows[:, : request.row_params.vocab_size], verdict.token_ids, request.params.logprobs)


def _rewind(machinery: Machinery, request: Request, draft: Draft, verdict: Verdict | None) -> None:
    target, drafter = machinery.target, machinery.drafter
    if request.is_finished:
        target.release(request.slot)
        if drafter is not None:
            drafter.release(request.slot)
        return
    # The newest token is not in the cache: the next pass appends it.
    length = len(request.context_ids) - 1
    path = () if verdict is None or draft.is_chain else (0, *(node + 1 for node in verdict.path))
    target.rewind(request.slot, length, path)
    if drafter is not None and verdict is not None:
        drafter.observe(request.slot, request.context_ids, verdict)
