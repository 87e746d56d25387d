"""`multi_round`: SpecInfer's multi-round rejection of siblings that are independent draws of one law.

Formula: at each node p_1 = p; child k is accepted iff u_k * q(x_k) < p_k(x_k); if not, p_{k+1} is max(p_k - q, 0)
normalised; q stays. After the last child: a draw from p_{K+1}. p = target, q = the drafter's law after the node.
Inputs: a draft (chain or tree) whose siblings were drawn independently; len(draft) + 1 target rows of [V]. Output: 1 to
depth + 1 tokens.
Noise: as `recursive`.
Exact because each round emits p_k, given that the rounds before it failed (`in_turn`).
Edge cases: on a chain this is `rejection`'s rule. A sibling drawn twice is tested twice, and its second test can't pass
where the first has left nothing. p(x) = 0 is never accepted.
Refused: siblings drawn without replacement (their q changes; use 'recursive'), drafts that looked at the target's
field, lengths that looked at a dropped token.
Source: Miao et al., SpecInfer, 2305.09781, section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from draftproof.core import Draft, Noise, Siblings
from draftproof.verify.base import TargetRows
from draftproof.verify.in_turn import choose_in_turn
from draftproof.verify.top_down import Choice, TopDown


@final
class MultiRound(TopDown):
    """Multi-round rejection of independent siblings (SpecInfer). Exact law, chains and trees."""

    name: ClassVar[str] = "multi_round"
    siblings: ClassVar[Siblings | None] = Siblings.INDEPENDENT

    def _choose(self, draft: Draft, rows: TargetRows, noise: Noise, node: int, nodes: Sequence[int]) -> Choice:
        return choose_in_turn(draft, rows, noise, node, nodes)
