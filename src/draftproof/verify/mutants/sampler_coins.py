"""Mutants of XTC's coin: drawn again, shared by rows, or left out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from draftproof.core import Key, Noise, Number, Purpose, Weights
from draftproof.verify import get_verifier
from draftproof.verify.exact import Enumeration
from draftproof.verify.mutants.base import Mutant, enumerated, production, single_token
from draftproof.verify.mutants.samplers import plain_drafter, target_of
from draftproof.verify.proposals import Fixed
from draftproof.verify.tables import Context

_XTC: Final = {"xtc_probability": 0.25, "xtc_threshold": 0.2}


@dataclass
class _Redrawn:
    """Noise whose XTC coins are keyed by the pass and the row, as fresh coins are."""

    noise: Noise
    start: int

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        if key.purpose is not Purpose.XTC:
            return self.noise.coin(key, numerator, denominator)
        return self.noise.coin(
            Key(Purpose.COIN, self.start, 1 << 20 | key.position - self.start), numerator, denominator
        )

    def choice(self, key: Key, weights: Weights, token_ids: Any = None) -> int:
        return self.noise.choice(key, weights, token_ids)


def _coins_redrawn() -> Mutant:
    """Each pass draws its rows' coins anew: the law is still the target's, but the text is not plain decoding's."""
    target = target_of(_XTC)
    drafter = Fixed((1,), (0,))

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        fresh = _Redrawn(noise, len(context))
        draft = drafter(context, fresh)
        return get_verifier("keyed").verify(draft, target.rows(context, draft, fresh), noise).token_ids

    def differs(found: Enumeration) -> Enumeration:
        share = Fraction(found.num_replay_mismatches, found.num_paths)
        return single_token((1 - share, share), (Fraction(1), Fraction(0)))

    return Mutant(
        "XTC: coins drawn again in every pass",
        "design rule: coins of samplers persist by position (share of paths whose text differs)",
        lambda: differs(enumerated(step, target, 2, replay=True)()),
        lambda: differs(production("keyed", target, drafter, 2)()),
    )


def _coin_of_the_pass() -> Mutant:
    """One coin for the whole block: the rows of a pass fall together."""
    target = target_of(_XTC)
    drafter = plain_drafter(target)

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)

        class OfPass:
            def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
                return noise.coin(Key(Purpose.XTC, len(context)), numerator, denominator)

            choice = noise.choice

        return get_verifier("match").verify(draft, target.rows(context, draft, OfPass()), noise).token_ids

    return Mutant(
        "XTC: one coin for all rows of a block",
        "design rule: coins of samplers persist by position",
        enumerated(step, target, 2),
        production("match", target, drafter, 2),
    )


def _xtc_left_out_on_draft_rows() -> Mutant:
    target, plain = target_of(_XTC), target_of({})

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = plain_drafter(target)(context, noise)
        rows = [*plain.rows(context, draft, noise)[:-1], target.rows(context, draft, noise)[-1]]
        return get_verifier("match").verify(draft, rows, noise).token_ids

    return Mutant(
        "XTC on the bonus row only",
        "T25: vllm-project/vllm#42744, #42802 (a filter on the bonus row only)",
        enumerated(step, target, 2),
        production("match", target, plain_drafter(target), 2),
    )


def build() -> tuple[Mutant, ...]:
    """The mutants; a function, since the chain needs torch."""
    return _coins_redrawn(), _coin_of_the_pass(), _xtc_left_out_on_draft_rows()
