"""Drafts for the requests of a step: how long, from whom, and what happens where a drafter fails."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

from draftproof.core import Draft
from draftproof.drafters.anticipating import Anticipating, CuttingNodes
from draftproof.drafters.base import Drafter, DraftRequest, grows_trees
from draftproof.drafters.forced import propose_after_forced
from draftproof.engine.request import Request
from draftproof.engine.turn import Turn
from draftproof.errors import DraftproofError
from draftproof.grammar import forced_ids
from draftproof.targets.base import Target


def num_asked(target: Target, drafter: Drafter | None, request: Request, num_missing: int = 0) -> int:
    """How many tokens the request's next draft asks for, once `num_missing` more context tokens are cached.

    A function of the request alone: of its context, its committed verdicts and its limits, never of batch mates.
    """
    if drafter is None or request.length_policy is None:
        return 0
    request.num_branches = partial(target.num_branches, request.slot)
    # A pass emits one token more than it accepts, and appends one more than it drafts.
    most, deepest = target.room(request.slot, num_missing) - 1, request.num_tokens_left - 1
    if not grows_trees(drafter):
        most = min(most, deepest)
    if min(most, deepest) <= 0:
        return 0
    try:
        most_forced = min(most, deepest)
        request.forced_ids = forced_ids(request.grammar, most_forced) if request.grammar is not None else ()
        num_forced = len(request.forced_ids)
        context_ids = [*request.context_ids, *request.forced_ids] if num_forced else request.context_ids
        request.confidence = drafter.confidence(request.slot, context_ids)
    except Exception as error:  # whatever a drafter raises is its request's failure alone
        request.fail_with(error)
        return 0
    if request.confidence is None and not drafter.proposes_without_confidence:
        return num_forced
    return min(most, num_forced + request.length_policy.num_tokens(request.confidence))


def propose(drafter: Drafter | None, turns: Sequence[Turn]) -> None:
    """Fills in the turns' drafts. A request whose drafter fails is failed, and its turn is to be dropped."""
    asking = [turn for turn in turns if turn.num_asked > 0]
    if drafter is None or not asking:
        return
    began = perf_counter()
    proposed = _proposed(drafter, [draft_request(turn) for turn in asking])
    seconds = (perf_counter() - began) / len(asking)
    for turn, draft in zip(asking, proposed, strict=True):
        if isinstance(draft, Exception):
            turn.request.fail_with(draft)
            continue
        turn.draft = draft
        if turn.request.length_policy is not None:
            num_drafted = max(len(draft) - len(turn.request.forced_ids), 0)
            turn.request.length_policy.observe_draft_cost(num_drafted, seconds, turn.request.confidence)


def draft_request(turn: Turn) -> DraftRequest:
    """What the turn's drafter is asked for."""
    request = turn.request
    return DraftRequest(
        slot=request.slot,
        context_ids=request.context_ids,
        num_tokens=turn.num_asked,
        noise=request.noise,
        share_target_field=request.verifier.guarantee == "replay" and request.share_target_noise,
        law_power=request.law_power,
        anticipating=_anticipating(request),
        num_branches=request.num_branches,
        max_depth=max(request.num_tokens_left - 1, 1),
        row_params=request.row_params,
        history=request.history,
        grammar=request.grammar,
        forced_ids=request.forced_ids[: turn.num_asked],
    )


def _anticipating(request: Request) -> Anticipating | None:
    """The policy as one that looks at drafts, where the verifier allows it."""
    policy = request.length_policy
    return policy if isinstance(policy, CuttingNodes) and request.verifier.guarantee == "replay" else None


def _proposed(drafter: Drafter, asked: Sequence[DraftRequest]) -> Sequence[Draft | Exception]:
    """One draft for each request. A drafter that fails on one of a batch is asked again, one by one."""
    try:
        return [_checked(draft, ask) for draft, ask in zip(propose_after_forced(drafter, asked), asked, strict=True)]
    except Exception as error:  # whatever a drafter raises is its request's failure alone
        if len(asked) == 1:
            return [error]
        return [_proposed(drafter, [ask])[0] for ask in asked]


def _checked(draft: Draft, ask: DraftRequest) -> Draft:
    if draft.start != len(ask.context_ids) or len(draft) > ask.num_tokens:
        raise DraftproofError(
            f"the drafter proposed {len(draft)} tokens from position {draft.start} where at most {ask.num_tokens} from "
            f"position {len(ask.context_ids)} were asked for; this is a bug of the drafter"
        )
    if ask.max_depth is not None and len(draft) > ask.max_depth and max(draft.depths) >= ask.max_depth:
        raise DraftproofError(
            f"the drafter proposed a path of {1 + max(draft.depths)} tokens where at most {ask.max_depth} were asked "
            "for; this is a bug of the drafter"
        )
    return draft
