"""Mutants that commit the wrong tokens, and the places where an argmax stands for a sample."""

from __future__ import annotations

from typing import Final

from draftproof.core import Key, Law, Noise, Purpose
from draftproof.verify import get_verifier
from draftproof.verify.exact import target_rows
from draftproof.verify.mutants.base import Mutant, constant, enumerated, markov, production
from draftproof.verify.mutants.twins import RejectionTwin
from draftproof.verify.proposals import Fixed, Proposer, Sampled
from draftproof.verify.residual import residual
from draftproof.verify.tables import Context, LawTable, Table

_TARGET: Final = markov(("0.5 0.3 0.2", "0.2 0.5 0.3", "0.1 0.1 0.8"))
_DRAFT: Final = markov(("0.2 0.3 0.5", "0.5 0.25 0.25", "0.2 0.6 0.2"))
_TWO: Final = Sampled(_DRAFT, (1, 1))


def _first_draft_unchecked() -> Mutant:
    target = LawTable(6, lambda context: [int(token == 5) for token in range(6)], form="PointMass")
    drafter = Fixed((1,), (1,))

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)
        after_first = (*context, draft.token_ids[0])
        return (draft.token_ids[0], target.law(after_first).draw(noise, Key(Purpose.MATCH, draft.start, 1)))

    return Mutant(
        "first draft never checked",
        "T18: ohdearquant/lattice#243",
        enumerated(step, target),
        production("greedy", target, drafter),
    )


def _hypothetical_count_committed() -> Mutant:
    """Every draft is tested by itself, and as many are committed as pass, past a rejection too."""

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = _TWO(context, noise)
        laws = target_rows(_TARGET, context, draft)
        verdict = get_verifier("rejection").verify(draft, laws, noise, telemetry=True)
        num_agreeing = verdict.num_positions_agreeing or 0
        return (*draft.token_ids[:num_agreeing], verdict.token_ids[-1])

    return Mutant(
        "hypothetical acceptance count committed",
        "T20g: openinfer-project #534, FlashInfer's accepted counter",
        enumerated(step, _TARGET),
        production("rejection", _TARGET, _TWO),
    )


def _bonus_after_rejection() -> Mutant:
    """The last row's token is appended although a draft was rejected: it belongs to a prefix that was not committed."""

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = _TWO(context, noise)
        laws = target_rows(_TARGET, context, draft)
        verdict = get_verifier("rejection").verify(draft, laws, noise)
        if verdict.num_accepted == len(draft):
            return verdict.token_ids
        return (*verdict.token_ids, laws[-1].draw(noise, Key(Purpose.BONUS, draft.start)))

    return Mutant(
        "bonus token appended after a rejection",
        "design rule, no public report: emitted tokens are accepted ones and one more",
        enumerated(step, _TARGET),
        production("rejection", _TARGET, _TWO),
    )


def _rejected_token_committed() -> Mutant:
    """The rejected draft is committed with its replacement after it."""

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = _TWO(context, noise)
        verdict = get_verifier("rejection").verify(draft, target_rows(_TARGET, context, draft), noise)
        if verdict.num_accepted == len(draft):
            return verdict.token_ids
        return (*draft.token_ids[: verdict.num_accepted + 1], verdict.token_ids[-1])

    return Mutant(
        "rejected token committed with its replacement",
        "T58: off-by-one between accepted and emitted tokens",
        enumerated(step, _TARGET),
        production("rejection", _TARGET, _TWO),
    )


def _greedy_first_token() -> Mutant:
    """The first token after the prompt is the argmax, later ones are samples."""
    target = constant("0.3 0.25 0.25 0.2")

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        return (target.law(context).argmax(),)

    return Mutant(
        "greedy first token after the prompt",
        "T19: Luce-Org PR 374",
        enumerated(step, target),
        production("match", target, Fixed((), ())),
    )


def _argmax_of_residual(target_law: Law, draft_law: Law, rejected_id: int, noise: Noise, key: Key) -> int:
    weights, token_ids, _ = residual(target_law, draft_law)
    best = int(weights.argmax())
    return best if token_ids is None else int(token_ids[best])


def _argmax_bonus(law: Law, noise: Noise, key: Key) -> int:
    return law.argmax()


def _accepts_argmax(target: Table, drafter: Proposer) -> Mutant:
    """The walk compares with the argmax and emits it."""

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)
        emitted: list[int] = []
        for drafted_id, law in zip((*draft.token_ids, -1), target_rows(target, context, draft), strict=True):
            emitted.append(law.argmax())
            if emitted[-1] != drafted_id:
                break
        return tuple(emitted)

    return Mutant(
        "greedy acceptance walk at temperature 1",
        "T19: sgl-project/sglang#39253",
        enumerated(step, target),
        production("match", target, drafter),
    )


MUTANTS: Final = (
    _first_draft_unchecked(),
    _hypothetical_count_committed(),
    _bonus_after_rejection(),
    _rejected_token_committed(),
    _greedy_first_token(),
    Mutant(
        "greedy token that seeds the next step",
        "T19: Luce-Org PR 374",
        enumerated(RejectionTwin(_TARGET, _TWO, recover=_argmax_of_residual), _TARGET),
        production("rejection", _TARGET, _TWO),
    ),
    Mutant(
        "greedy bonus token",
        "T19: argmax bonus after full acceptance",
        enumerated(RejectionTwin(_TARGET, _TWO, bonus=_argmax_bonus), _TARGET),
        production("rejection", _TARGET, _TWO),
    ),
    _accepts_argmax(constant("0.6 0.4"), Fixed((1,), (0,))),
)
