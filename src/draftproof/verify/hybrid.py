"""`hybrid`: the most probable tokens, and one draw from the others; the best rule for that proposal.

Formula: T the ranked children, x the drawn one, q' its law, the drafter's law without T. Accept x iff
u * q'(x) < p(x); if not, draw y from max(p - q', 0) normalised, and if y is in T, that child is accepted.
p = target. Without a drawn child y is drawn from p.
Inputs: a draft (chain or tree), siblings ranked but for one draw; len(draft) + 1 target rows of [V]. Output: 1 to depth
+ 1 tokens.
Noise, fresh in every pass, in order: at each node reached, Key(COIN, start, child) for the drawn child, then
Key(RESIDUAL, start, node + 1) if it failed; Key(BONUS, start, 0) after a leaf.
Exact because this is the token rule against q'; which children the tree has besides changes no probability.
The acceptance, p(T) + sum outside T of min(p, q'), is the optimum for such a proposal.
Edge cases: one child is `rejection`'s rule; ranked children alone are `match`'s. An empty residual: draw from p.
Refused: two drawn siblings, a drawn sibling whose law holds a ranked one, drafts that looked at the target's field,
lengths that looked at a dropped token.
Source: Hu et al., Towards Optimal Multi-draft Speculative Decoding, ICLR 2025, 2502.18779, section 5 (greedy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from draftproof.core import Draft, Noise, PointMass, Siblings
from draftproof.verify.base import TargetRows, drawn_prob
from draftproof.verify.remaining import Remaining
from draftproof.verify.top_down import Choice, TopDown, coin_key, residual_key


@final
class Hybrid(TopDown):
    """Ranked siblings and one drawn from the rest (Hu et al.). Exact law, chains and trees."""

    name: ClassVar[str] = "hybrid"
    siblings: ClassVar[Siblings | None] = Siblings.RANKED_AND_ONE

    def _choose(self, draft: Draft, rows: TargetRows, noise: Noise, node: int, nodes: Sequence[int]) -> Choice:
        remaining = Remaining(rows.after(node))
        drawn = next((child for child in nodes if not isinstance(draft.laws[child], PointMass)), None)
        if drawn is not None:
            token_id = draft.token_ids[drawn]
            if noise.coin(coin_key(draft, drawn), remaining.prob(token_id), drawn_prob(draft, drawn)):
                return Choice(token_id, drawn)
            remaining.subtract(draft.laws[drawn])
        token_id = remaining.draw(noise, residual_key(draft, node))
        ranked = (child for child in nodes if child != drawn and draft.token_ids[child] == token_id)
        return Choice(token_id, next(ranked, None))
