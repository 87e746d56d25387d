"""`keyed`: the target's own sample at each position decides; a drafted token is kept while it equals that sample.

Formula: y_t = argmin over v of E_t(v) / p_t(v), which is argmax of log p_t(v) + G_t(v); p the target's law, E and G
the exponential and the Gumbel field of position t. Accept the child with token y_t; emit y_t either way.
Inputs: a draft (chain or tree, any law, any noise); len(draft) + 1 target rows of [V]. Output: 1 to depth + 1 tokens.
Noise: one field Key(TARGET, position, 0) for each emitted token, in order; never redrawn, whatever the pass.
Exact because y_t is a function of the target's law and of the noise at t alone, which is how plain decoding draws it:
the emitted tokens are plain decoding's, and the draft decides only how many come out of one pass.
Edge cases: duplicate siblings: the first counts. A drafted id outside the target's vocabulary never equals y_t. The
draft may look at the same field (`share_target_field`) and be cut or pruned by any rule.
Sources: Gumbel coupling, Daliri, Musco & Suresh 2024 (2408.07978, section 3); sample-and-match for one chain is
Leviathan et al. 2211.17192 with a point mass as the draft law. Deviation: the field is a function of the position.
"""

from __future__ import annotations

from typing import ClassVar, final

from draftproof.core import ROOT, Draft, Key, Law, Noise, Purpose, Verdict
from draftproof.verify.base import Guarantee, TargetRows, Verifier
from draftproof.verify.walk import DrawToken, num_nodes_agreeing, walk


@final
class Keyed(Verifier):
    """Accept while the drafted token equals the target's keyed sample. Replay, chains and trees, any draft."""

    name: ClassVar[str] = "keyed"
    guarantee: ClassVar[Guarantee] = "replay"
    needs_draft_law: ClassVar[bool] = False
    supports_trees: ClassVar[bool] = True

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        return walk(draft, rows, _draw_with_target_field(draft, noise))

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        return num_nodes_agreeing(draft, rows, _draw_with_target_field(draft, noise))


def _draw_with_target_field(draft: Draft, noise: Noise) -> DrawToken:
    def draw_token(law: Law, node: int) -> int:
        depth = 0 if node == ROOT else draft.depths[node] + 1
        return law.draw(noise, Key(Purpose.TARGET, draft.start + depth))

    return draw_token
