"""`block`: accept the longest prefix of the draft that passes its own test; one coin for each length.

Formula: P_0 = 1, P_i = min(1, P_{i-1} * p_i(x_i) / q_i(x_i)); S_i = sum of max(P_i * p_{i+1}(x) - q_{i+1}(x), 0);
thresholds h_i = S_i / (S_i + 1 - P_i) for i < n and h_n = P_n. The number accepted is the largest i with u_i < h_i,
from n down to 0 (h_0 = 1). Then draw from max(P_i * p_{i+1} - q_{i+1}, 0) normalised, or the bonus from the last row.
p = target, q = the law that x_i was drawn from; i counts tokens, so node i - 1 holds x_i.
Inputs: a chain of n tokens with their laws; n + 1 target rows of [V]. Output: 1 to n + 1 tokens.
Noise, fresh in every pass, in order: Key(COIN, start, i - 1) for i = n, n - 1, … down to the first success, then
Key(RESIDUAL, start, i) or Key(BONUS, start, 0).
Exact because P_i * q(x_1..x_i) is the mass of a prefix that is still to be emitted by events that stop at i or later,
and S_i is the part of it that draws at i + 1 have not supplied (Sun et al., appendix).
Edge cases: h = 0/0 (P_i = 1 and q covers p) is 1: in exact arithmetic a longer prefix has passed already. P_i = 0 is
never accepted, and rows after it are never read. A row that is no law ends the draft before it; its LawError is
raised if the walk gets there. q(x) = 0 is a broken contract: DraftContractError. An empty residual: draw from p.
Refused: as `rejection`.
Source: Sun et al. 2403.10444, algorithm 2. Deviation: strict tests, and the recursion kept in linear space, which
never overflows since P_i <= 1.
"""

from __future__ import annotations

from typing import ClassVar, final

from draftproof.core import ROOT, Decision, Draft, Key, Noise, Number, Outcome, Purpose, Verdict
from draftproof.verify.base import Guarantee, TargetRows, Verifier, drawn_prob
from draftproof.verify.residual import draw_residual, residual


@final
class Block(Verifier):
    """Block verification. Exact law, chains, the most accepted tokens that one chain's law allows in a pass."""

    name: ClassVar[str] = "block"
    guarantee: ClassVar[Guarantee] = "exact-law"
    needs_draft_law: ClassVar[bool] = True
    supports_trees: ClassVar[bool] = False

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        masses = prefix_masses(draft, rows)
        num_accepted = len(masses) - 1
        while num_accepted > 0 and not _passes(draft, rows, noise, masses, num_accepted):
            num_accepted -= 1
        next_law = rows.after(num_accepted - 1)
        decisions = [_decision(draft, rows, node, draft.token_ids[node]) for node in range(num_accepted)]
        if num_accepted == len(draft):
            emitted_id = next_law.draw(noise, Key(Purpose.BONUS, draft.start))
            decisions.append(Decision(draft.start + num_accepted, ROOT, None, emitted_id, Outcome.BONUS, None, None))
        else:
            key = Key(Purpose.RESIDUAL, draft.start, num_accepted)
            emitted_id = draw_residual(next_law, draft.laws[num_accepted], noise, key, masses[num_accepted])
            decisions.append(_decision(draft, rows, num_accepted, emitted_id, Outcome.RECOVERED))
        token_ids = (*draft.token_ids[:num_accepted], emitted_id)
        return Verdict(token_ids, tuple(range(num_accepted)), tuple(decisions))

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        masses = prefix_masses(draft, rows)
        return sum(_passes(draft, rows, noise, masses, length) for length in range(1, len(masses)))


def prefix_masses(draft: Draft, rows: TargetRows) -> list[Number]:
    """P_0..P_n, the mass still to be emitted after x_1..x_i. Shorter if a row that is no law ends the draft."""
    masses: list[Number] = [1]
    for node, drafted_id in enumerate(draft.token_ids):
        draft_prob = drawn_prob(draft, node)
        if masses[-1] == 0:
            masses.append(0)
            continue
        if not rows.is_law_after(node - 1):
            break
        mass = masses[-1] * rows.after(node - 1).prob(drafted_id)
        # Branches, not min(1, mass / draft_prob): two integers, from two point masses, must not become a float.
        masses.append(1 if mass >= draft_prob else 0 if mass == 0 else mass / draft_prob)
    return masses


def _passes(draft: Draft, rows: TargetRows, noise: Noise, masses: list[Number], length: int) -> bool:
    """Whether the test of the prefix of `length` tokens passes."""
    mass, key = masses[length], Key(Purpose.COIN, draft.start, length - 1)
    if mass == 0:
        return False
    if length == len(masses) - 1:
        return noise.coin(key, mass)
    _, _, residual_mass = residual(rows.after(length - 1), draft.laws[length], mass)
    if residual_mass == 0 and mass == 1:
        return True
    return noise.coin(key, residual_mass, residual_mass + 1 - mass)


def _decision(
    draft: Draft, rows: TargetRows, node: int, emitted_id: int, outcome: Outcome = Outcome.ACCEPTED
) -> Decision:
    drafted_id = draft.token_ids[node]
    target_prob, draft_prob = rows.after(node - 1).prob(drafted_id), draft.laws[node].prob(drafted_id)
    return Decision(draft.start + node, node, drafted_id, emitted_id, outcome, target_prob, draft_prob)
