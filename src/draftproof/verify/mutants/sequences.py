"""Mutants of the rules that emit one position after the other: `recursive`, `multi_round`, `k_seq` and `hybrid`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from draftproof.core import Draft, Key, Law, Noise, Purpose, Siblings, Weights, Without
from draftproof.verify import get_verifier
from draftproof.verify.base import TargetRows
from draftproof.verify.exact import Step, speculative_step, target_rows
from draftproof.verify.k_seq import division_factor
from draftproof.verify.mutants.base import Mutant, claiming_laws, enumerated, markov, production
from draftproof.verify.proposals import Proposer, SampledTree
from draftproof.verify.tables import Context, LawTable, Table

Claim = Callable[[Law, int], Law]
"""A node's own law and its token -> the law that is claimed for it."""


def unchecked(verifier: str, target: Table, drafter: Proposer, claim: Claim) -> Step:
    """The production rule on a draft whose laws are claimed, without the check that would refuse it."""

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)
        lie = claiming_laws(draft, [claim(*node) for node in zip(draft.laws, draft.token_ids, strict=True)])
        rows = TargetRows(lie, target_rows(target, context, draft))
        return get_verifier(verifier)._decide(lie, rows, noise).token_ids

    return step


def before_siblings(law: Law, token_id: int) -> Law:
    """The law that the first sibling was drawn from."""
    return law.base if isinstance(law, Without) else law


TARGET: Final = markov(("0.3 0.4 0.3", "0.2 0.5 0.3", "0.1 0.1 0.8"))
DRAFT: Final = markov(("0.5 0.25 0.25", "0.3 0.3 0.4", "0.2 0.6 0.2"))
_DIFFERENT: Final = SampledTree(DRAFT, (2,), Siblings.WITHOUT_REPLACEMENT)
_ALIKE: Final = SampledTree(DRAFT, (2,), Siblings.INDEPENDENT)
_RANKED: Final = SampledTree(DRAFT, (2,), Siblings.RANKED_AND_ONE)


@dataclass(frozen=True, slots=True)
class KSeqTwin:
    """One position of k-sequential selection. rho: None for the right one. covers: the residual leaves out what the
    K tests emit; otherwise it is the token rule's (p - q)+.
    """

    target: LawTable
    drafter: Proposer
    rho: Fraction | None = None
    covers: bool = True

    def __call__(self, context: Context, noise: Noise) -> tuple[int, ...]:
        draft = self.drafter(context, noise)
        target_probs: Weights = np.array(self.target.probs(context), dtype=object)
        draft_probs = draft.laws[0].at(None, len(target_probs))
        num_children = len(draft)
        rho = division_factor(target_probs, draft_probs, num_children) if self.rho is None else self.rho
        for node, token_id in enumerate(draft.token_ids):
            coin = Key(Purpose.COIN, draft.start, node)
            if noise.coin(coin, target_probs[token_id], rho * draft_probs[token_id]):
                return (token_id,)
        covered = np.minimum(target_probs / rho, draft_probs)
        beta = covered.sum()
        share = (1 - (1 - beta) ** num_children) / beta
        left = np.maximum(target_probs - (covered * share if self.covers else draft_probs), 0)
        return (noise.choice(Key(Purpose.RESIDUAL, draft.start, 0), left),)


def _ranked_beside_a_draw_from_all(context: Context, noise: Noise) -> tuple[int, ...]:
    """A ranked sibling is accepted where it equals a draw from p; if not, the drawn one is tested against p itself."""
    draft: Draft = _RANKED(context, noise)
    target_law = TARGET.law(context)
    ranked_id, drawn_id = draft.token_ids
    if target_law.draw(noise, Key(Purpose.MATCH, draft.start, 0)) == ranked_id:
        return (ranked_id,)
    if noise.coin(Key(Purpose.COIN, draft.start, 1), target_law.prob(drawn_id), draft.laws[1].prob(drawn_id)):
        return (drawn_id,)
    left = np.maximum(target_law.at(None, 3) - draft.laws[1].at(None, 3), 0)
    return (noise.choice(Key(Purpose.RESIDUAL, draft.start, 0), left),)


def _deduplicated(context: Context, noise: Noise) -> Draft:
    draft = _ALIKE(context, noise)
    num_different = len(set(draft.token_ids))
    return draft.truncated(num_different, looked_at_dropped=False)


def _claimed(name: str, after: str, verifier: str, drafter: Proposer, claim: Claim) -> Mutant:
    wrong = enumerated(unchecked(verifier, TARGET, drafter, claim), TARGET)
    return Mutant(name, after, wrong, production(verifier, TARGET, drafter))


def _k_seq(name: str, after: str, twin: Step) -> Mutant:
    return Mutant(name, after, enumerated(twin, TARGET), production("k_seq", TARGET, _ALIKE))


MUTANTS: Final = (
    _claimed(
        "second sibling's law is the first one's, recursive",
        "T20b: without-replacement draws with a stale draft law",
        "recursive",
        _DIFFERENT,
        before_siblings,
    ),
    _claimed(
        "ranked siblings left in the drawn one's law",
        "design rule, no public report: the drawn sibling's law has no ranked token",
        "hybrid",
        _RANKED,
        before_siblings,
    ),
    Mutant(
        "drawn sibling tested against the whole target after a ranked one failed",
        "design rule, no public report: what a ranked sibling took is no longer there",
        enumerated(_ranked_beside_a_draw_from_all, TARGET),
        production("hybrid", TARGET, _RANKED),
    ),
    Mutant(
        "second of two equal independent siblings removed",
        "T20a taken too far: independent draws that were made different are no longer independent",
        enumerated(speculative_step(get_verifier("multi_round"), TARGET, _deduplicated), TARGET),
        production("multi_round", TARGET, _ALIKE),
    ),
    _k_seq(
        "every one of k siblings tested at p/q",
        "design rule, no public report: SpecTr's division factor left out",
        KSeqTwin(TARGET, _ALIKE, rho=Fraction(1)),
    ),
    _k_seq(
        "k-sequential selection with the token rule's residual",
        "design rule, no public report: the residual of another rule",
        KSeqTwin(TARGET, _ALIKE, covers=False),
    ),
)
