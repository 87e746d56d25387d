"""The ratio test over siblings in turn, which `recursive` and `multi_round` share.

Formula: p_1 = p; child k, drawn from q_k given the children before it, is accepted iff u_k * q_k(x_k) < p_k(x_k),
strictly; if not, p_{k+1} is max(p_k - q_k, 0) normalised. After the last child the token is drawn from p_{K+1}.
Exact because a child's test and its residual emit p_k, given that the children before it failed, whatever they were:
q_k is the law that x_k was drawn from given them, and coins are independent of draws.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Noise
from draftproof.verify.base import TargetRows, drawn_prob
from draftproof.verify.remaining import Remaining
from draftproof.verify.top_down import Choice, coin_key, residual_key


def choose_in_turn(draft: Draft, rows: TargetRows, noise: Noise, node: int, nodes: Sequence[int]) -> Choice:
    """Tests the children `nodes` of `node`; see the module."""
    remaining = Remaining(rows.after(node))
    for child in nodes:
        token_id = draft.token_ids[child]
        if noise.coin(coin_key(draft, child), remaining.prob(token_id), drawn_prob(draft, child)):
            return Choice(token_id, child)
        remaining.subtract(draft.laws[child])
    return Choice(remaining.draw(noise, residual_key(draft, node)), None)
