"""`rejection`: accept a drafted token with probability min(1, p/q); replace the first rejected one from (p - q)+.

Formula: accept x at node i iff u_i * q_i(x) < p_i(x), strictly; at the first rejection draw from max(p_i - q_i, 0)
normalised; after the last acceptance draw the bonus token from the target's last row. p = target, q = the law that x
was drawn from.
Inputs: a chain of n tokens with their laws; n + 1 target rows of [V]. Output: 1 to n + 1 tokens.
Noise, fresh in every pass, in order: Key(COIN, start, node) for each node tried, then either Key(RESIDUAL, start,
node) at the rejected node or Key(BONUS, start, 0).
Exact because q * min(1, p/q) + (1 - sum min(p, q)) * (p - q)+ / sum (p - q)+ = p at each position, given the tokens
before it, and the coins and residual fields are independent of what the tokens were drawn with.
Edge cases: p(x) = 0 is never accepted, since u * q < 0 is false for u = 0 too; ids outside the target's vocabulary
have p = 0. q(x) = 0 is a broken contract: DraftContractError. An empty residual (by rounding): draw from p.
Refused: trees, drafts that looked at the target's field, lengths that looked at a dropped token.
Sources: Leviathan et al. 2211.17192, section 2.3; Chen et al. 2302.01318, algorithm 2. Deviation: the strict
inequality without a division.
"""

from __future__ import annotations

from typing import ClassVar, final

from draftproof.core import ROOT, Decision, Draft, Key, Noise, Outcome, Purpose, Verdict
from draftproof.verify.base import Guarantee, TargetRows, Verifier, drawn_prob
from draftproof.verify.residual import draw_residual


@final
class Rejection(Verifier):
    """Token-wise rejection sampling. Exact law, chains, drafts drawn with noise of their own."""

    name: ClassVar[str] = "rejection"
    guarantee: ClassVar[Guarantee] = "exact-law"
    needs_draft_law: ClassVar[bool] = True
    supports_trees: ClassVar[bool] = False

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        token_ids: list[int] = []
        decisions: list[Decision] = []
        for node, drafted_id in enumerate(draft.token_ids):
            target_law = rows.after(node - 1)
            target_prob, draft_prob = target_law.prob(drafted_id), drawn_prob(draft, node)
            if noise.coin(Key(Purpose.COIN, draft.start, node), target_prob, draft_prob):
                emitted_id, outcome = drafted_id, Outcome.ACCEPTED
            else:
                emitted_id = draw_residual(
                    target_law, draft.laws[node], noise, Key(Purpose.RESIDUAL, draft.start, node)
                )
                outcome = Outcome.RECOVERED
            token_ids.append(emitted_id)
            decisions.append(
                Decision(draft.start + node, node, drafted_id, emitted_id, outcome, target_prob, draft_prob)
            )
            if outcome is Outcome.RECOVERED:
                return Verdict(tuple(token_ids), tuple(range(node)), tuple(decisions))
        bonus_id = rows.after(len(draft) - 1).draw(noise, Key(Purpose.BONUS, draft.start))
        token_ids.append(bonus_id)
        decisions.append(Decision(draft.start + len(draft), ROOT, None, bonus_id, Outcome.BONUS, None, None))
        return Verdict(tuple(token_ids), tuple(range(len(draft))), tuple(decisions))

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        return sum(
            rows.is_law_after(node - 1)
            and noise.coin(
                Key(Purpose.COIN, draft.start, node), rows.after(node - 1).prob(drafted_id), drawn_prob(draft, node)
            )
            for node, drafted_id in enumerate(draft.token_ids)
        )
