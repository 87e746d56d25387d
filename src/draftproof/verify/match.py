"""`match`: draw from the target independently at every node; a drafted token is kept while it equals the draw.

Formula: y ~ p (p the target's law after the node, chain of processors and filters included). Accept the child with
token y; emit y either way.
Inputs: a draft (chain or tree, any law, any noise); len(draft) + 1 target rows of [V]. Output: 1 to depth + 1 tokens.
Noise: one field Key(MATCH, start, row) for each emitted token, in order; row = node + 1, 0 for the context. Fresh in
every pass, since a pass's start never recurs.
Exact because every y is drawn from the target's law with noise that nothing else has seen, the drafter included.
Edge cases: duplicate siblings: the first counts. A drafted id outside the target's vocabulary never equals y. A draft
that looked at the TARGET field is harmless, for MATCH shares no word with it; it gains nothing either.
Sources: Leviathan et al. 2211.17192 with point-mass drafts; on a deterministic tree no exact rule accepts more, since
an accepted path is a prefix of a sample from the target.
"""

from __future__ import annotations

from typing import ClassVar, final

from draftproof.core import Draft, Key, Law, Noise, Purpose, Verdict
from draftproof.verify.base import Guarantee, TargetRows, Verifier
from draftproof.verify.walk import DrawToken, num_nodes_agreeing, walk


@final
class Match(Verifier):
    """Accept while the drafted token equals an independent draw from the target. Exact law, chains and trees."""

    name: ClassVar[str] = "match"
    guarantee: ClassVar[Guarantee] = "exact-law"
    needs_draft_law: ClassVar[bool] = False
    supports_trees: ClassVar[bool] = True

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        return walk(draft, rows, _draw_independently(draft, noise))

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        return num_nodes_agreeing(draft, rows, _draw_independently(draft, noise))


def _draw_independently(draft: Draft, noise: Noise) -> DrawToken:
    def draw_token(law: Law, node: int) -> int:
        return law.draw(noise, Key(Purpose.MATCH, draft.start, node + 1))

    return draw_token
