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

from collections.abc import Sequence
from typing import ClassVar, final

from draftproof.core import ROOT, Draft, Key, Law, Noise, Number, Purpose, Verdict
from draftproof.verify.base import Guarantee, TargetRows, Verifier, prob_in
from draftproof.verify.residual import draw_residual, residual
from draftproof.verify.verdicts import verdict_of


@final
class Block(Verifier):
    """Block verification. Exact law, chains, the most accepted tokens that one chain's law allows in a pass."""

    name: ClassVar[str] = "block"
    guarantee: ClassVar[Guarantee] = "exact-law"
    needs_draft_law: ClassVar[bool] = True
    supports_trees: ClassVar[bool] = False

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        return BlockOfPath(draft, rows, range(len(draft)), draft.laws).verdict(noise)

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        return BlockOfPath(draft, rows, range(len(draft)), draft.laws).num_passing(noise)


class BlockOfPath:
    """The rule on one path of a draft.

    nodes: the path, from the context's child down. laws: what each of its tokens was drawn from, given those before.
    """

    def __init__(self, draft: Draft, rows: TargetRows, nodes: Sequence[int], laws: Sequence[Law]) -> None:
        self._draft, self._rows, self._nodes, self._laws = draft, rows, nodes, laws
        self._masses = self._prefix_masses()

    def verdict(self, noise: Noise) -> Verdict:
        """The longest prefix that passes, and the token after it."""
        num_accepted = len(self._masses) - 1
        while num_accepted > 0 and not self._passes(noise, num_accepted):
            num_accepted -= 1
        draft, path = self._draft, self._nodes[:num_accepted]
        next_law = self._row(num_accepted)
        if num_accepted == len(self._nodes):
            return verdict_of(draft, self._rows, path, next_law.draw(noise, Key(Purpose.BONUS, draft.start)))
        key, mass = Key(Purpose.RESIDUAL, draft.start, self._nodes[num_accepted]), self._masses[num_accepted]
        emitted_id = draw_residual(next_law, self._laws[num_accepted], noise, key, mass)
        return verdict_of(draft, self._rows, path, emitted_id)

    def num_passing(self, noise: Noise) -> int:
        """How many prefixes pass their own test."""
        return sum(self._passes(noise, length) for length in range(1, len(self._masses)))

    def _row(self, length: int) -> Law:
        return self._rows.after(self._nodes[length - 1] if length else ROOT)

    def _prefix_masses(self) -> list[Number]:
        """P_0..P_n, the mass still to be emitted after x_1..x_i. Shorter if a row that is no law ends the draft."""
        masses: list[Number] = [1]
        for index, (node, law) in enumerate(zip(self._nodes, self._laws, strict=True)):
            draft_prob = prob_in(law, self._draft.token_ids[node], node)
            if masses[-1] == 0:
                masses.append(0)
                continue
            if not self._rows.is_law_after(self._nodes[index - 1] if index else ROOT):
                break
            mass = masses[-1] * self._row(index).prob(self._draft.token_ids[node])
            # Branches, not min(1, mass / draft_prob): two integers, from two point masses, must not become a float.
            masses.append(1 if mass >= draft_prob else 0 if mass == 0 else mass / draft_prob)
        return masses

    def _passes(self, noise: Noise, length: int) -> bool:
        """Whether the test of the prefix of `length` tokens passes."""
        mass, key = self._masses[length], Key(Purpose.COIN, self._draft.start, self._nodes[length - 1])
        if mass == 0:
            return False
        if length == len(self._masses) - 1:
            return noise.coin(key, mass)
        _, _, residual_mass = residual(self._row(length), self._laws[length], mass)
        if residual_mass == 0 and mass == 1:
            return True
        return noise.coin(key, residual_mass, residual_mass + 1 - mass)
