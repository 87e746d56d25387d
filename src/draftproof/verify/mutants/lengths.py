"""Mutants of the draft's length: chosen after a look at a token that is then dropped.

`Draft.truncated(…, looked_at_dropped=True)` marks such a draft, and ratio tests refuse it; these forge the mark away.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from draftproof.core import Draft, Noise
from draftproof.verify import get_verifier
from draftproof.verify.exact import speculative_step
from draftproof.verify.mutants.base import Mutant, constant, enumerated, forged, production
from draftproof.verify.proposals import Proposer, Sampled
from draftproof.verify.tables import Context, LawTable


def drops_unlikely_tokens(draft_table: LawTable, num_tokens: int, threshold: Fraction) -> Proposer:
    """Cuts the chain before the first token whose own probability is below `threshold`."""

    def propose(context: Context, noise: Noise) -> Draft:
        draft = Sampled(draft_table, (1,) * num_tokens)(context, noise)
        for node, token_id in enumerate(draft.token_ids):
            if draft.laws[node].prob(token_id) < threshold:
                return forged(draft, length=node)
        return draft

    return propose


def drops_token(draft_table: LawTable, num_tokens: int, dropped_id: int) -> Proposer:
    """Cuts the chain before the first `dropped_id`: a scheduler that admits tokens by what they are."""

    def propose(context: Context, noise: Noise) -> Draft:
        draft = Sampled(draft_table, (1,) * num_tokens)(context, noise)
        length = draft.token_ids.index(dropped_id) if dropped_id in draft.token_ids else num_tokens
        return forged(draft, length=length)

    return propose


def _mutant(
    name: str, after: str, verifier: str, target: LawTable, draft_table: LawTable, drafter: Proposer, num_tokens: int
) -> Mutant:
    step = speculative_step(get_verifier(verifier), target, drafter)
    whole = Sampled(draft_table, (1,) * num_tokens)
    return Mutant(name, after, enumerated(step, target), production(verifier, target, whole))


_FLAT: Final = constant("0.5 0.5")
_UNEVEN: Final = constant("0.6 0.4")
_TARGET: Final = constant("0.7 0.3")

MUTANTS: Final = (
    _mutant(
        "token dropped by its own confidence",
        "T09: ggml-org/llama.cpp#22506 with #27694, ikawrakow/ik_llama.cpp#1820",
        "rejection",
        _FLAT,
        _UNEVEN,
        drops_unlikely_tokens(_UNEVEN, 1, Fraction(1, 2)),
        1,
    ),
    _mutant(
        "length policy that read a discarded draft",
        "DSpark's own counterexample to admission by token",
        "rejection",
        _TARGET,
        _FLAT,
        drops_token(_FLAT, 1, 1),
        1,
    ),
    _mutant(
        "length policy that read a discarded draft, block",
        "DSpark's own counterexample to admission by token, under block verification",
        "block",
        _TARGET,
        _FLAT,
        drops_token(_FLAT, 2, 1),
        2,
    ),
)
