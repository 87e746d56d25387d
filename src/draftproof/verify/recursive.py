"""`recursive`: recursive rejection of siblings drawn without replacement, from the context down.

Formula: at each node p_1 = p, q_1 = q; child k is accepted iff u_k * q_k(x_k) < p_k(x_k); if not, p_{k+1} is
max(p_k - q_k, 0) normalised and q_{k+1} is q_k without x_k, normalised. After the last child: a draw from p_{K+1}.
p = target, q = the drafter's law after the node.
Inputs: a draft (chain or tree) whose siblings were drawn without replacement, or are ranked point masses; len(draft) +
1 target rows of [V]. Output: 1 to depth + 1 tokens.
Noise, fresh in every pass, in order: Key(COIN, start, child) for each child tried; then Key(RESIDUAL, start, node + 1)
where all children of a node failed (0 for the context), or Key(BONUS, start, 0) after a leaf.
Exact because each child carries the law that it was drawn from given its siblings before it (`in_turn`).
Edge cases: on a chain this is `rejection`'s rule. p(x) = 0 is never accepted. More children than tokens can't be drawn.
Refused: siblings drawn independently (their q stays; use 'multi_round'), drafts that looked at the target's field,
lengths that looked at a dropped token.
Sources: Chen et al., Sequoia, 2402.12374, algorithm 2; Jeon et al., recursive speculative decoding, 2402.14160;
EAGLE-1, 2401.15077.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from draftproof.core import Draft, Noise, Siblings
from draftproof.verify.base import TargetRows
from draftproof.verify.in_turn import choose_in_turn
from draftproof.verify.top_down import Choice, TopDown


@final
class Recursive(TopDown):
    """Recursive rejection without replacement (Sequoia, EAGLE-1). Exact law, chains and trees."""

    name: ClassVar[str] = "recursive"
    siblings: ClassVar[Siblings | None] = Siblings.WITHOUT_REPLACEMENT

    def _choose(self, draft: Draft, rows: TargetRows, noise: Noise, node: int, nodes: Sequence[int]) -> Choice:
        return choose_in_turn(draft, rows, noise, node, nodes)
