"""Mutants that meet the same noise twice, or that draw noise again which must persist.

Each runs the production verifier on redirected keys, or a step that restarts positions.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from draftproof.core import Draft, Key, Noise, Purpose
from draftproof.verify import get_verifier
from draftproof.verify.exact import Enumeration, speculative_step, target_rows
from draftproof.verify.mutants.base import Mutant, constant, enumerated, markov, production, row, single_token
from draftproof.verify.mutants.twins import Redirected, redirected
from draftproof.verify.proposals import Proposer, Sampled
from draftproof.verify.race import race_joint
from draftproof.verify.tables import Context, Table


def by_position(purpose: Purpose) -> Callable[[Key], Key]:
    """Keys of a purpose by the token's position alone: they persist from pass to pass.

    Block verification has looked at them beyond the place where it stopped. Token-wise rejection has not, so under it
    this alone does no harm (a test says so); `by_index` harms both.
    """
    return lambda key: Key(purpose, key.position + key.index) if key.purpose is purpose else key


def by_index(purpose: Purpose) -> Callable[[Key], Key]:
    """Keys of a purpose by the index within the pass alone: every pass starts the generator again."""
    return lambda key: Key(purpose, 0, key.index) if key.purpose is purpose else key


def _mutant(
    name: str,
    after: str,
    verifier: str,
    redirect: Callable[[Key], Key],
    target: Table,
    drafter: Proposer,
    num_passes: int,
) -> Mutant:
    step = speculative_step(get_verifier(verifier), target, drafter)
    return Mutant(
        name,
        after,
        enumerated(redirected(step, redirect), target, num_passes),
        production(verifier, target, drafter, num_passes),
    )


def _draft_and_residual_share_a_race() -> Mutant:
    """One exponential field picks the draft and its replacement; the coin is independent. Exact race probabilities."""
    target, draft = row("0.10 0.45 0.45"), row("0.70 0.25 0.05")
    left = [max(p - q, Fraction(0)) for p, q in zip(target, draft, strict=True)]

    def law(joint: dict[tuple[int, int], Fraction]) -> Enumeration:
        found = [Fraction(0)] * len(target)
        for (drafted_id, replacement_id), probability in joint.items():
            accepted = min(Fraction(1), target[drafted_id] / draft[drafted_id])
            found[drafted_id] += probability * accepted
            found[replacement_id] += probability * (1 - accepted)
        return single_token(found, target)

    independent = {
        (drafted_id, replacement_id): draft[drafted_id] * left[replacement_id] / sum(left)
        for drafted_id in range(len(target))
        for replacement_id in range(len(target))
    }
    return Mutant(
        "draft and residual share one race",
        "T08: vllm-project/vllm#47386, #54282",
        lambda: law(race_joint(draft, left)),
        lambda: law(independent),
    )


def _residual_from_draft(key: Key) -> Key:
    return Key(Purpose.DRAFT, key.position, key.index) if key.purpose is Purpose.RESIDUAL else key


def _residual_from_coin(key: Key) -> Key:
    return Key(Purpose.COIN, key.position, key.index) if key.purpose is Purpose.RESIDUAL else key


def _coin_from_draft(key: Key) -> Key:
    return Key(Purpose.DRAFT, key.position, key.index) if key.purpose is Purpose.COIN else key


def _match_from_draft(key: Key) -> Key:
    return Key(Purpose.DRAFT, key.position, key.index) if key.purpose is Purpose.MATCH else key


def _target_field_under_a_ratio_test() -> Mutant:
    """The draft is drawn with the target's field and the residual with the same field."""
    target, drafter = constant("0.10 0.45 0.45"), Sampled(constant("0.70 0.25 0.05"), (1,))

    def field(key: Key) -> Key:
        shared = key.purpose in (Purpose.DRAFT, Purpose.RESIDUAL)
        return Key(Purpose.TARGET, key.position + key.index) if shared else key

    return _mutant(
        "draft and residual drawn with the target's field",
        "T08: local-inference-lab/vllm#205, #209",
        "rejection",
        field,
        target,
        drafter,
        1,
    )


def _chat_turn_reuses_noise() -> Mutant:
    """The second turn's positions start at 0 again: its noise is the first turn's."""
    target = markov(("0.5 0.5", "0.3 0.7"))

    def turn(context: Context, noise: Noise) -> tuple[int, ...]:
        restarted = Redirected(noise, lambda key: key._replace(position=0))
        return get_verifier("keyed").verify(Draft.empty(len(context)), [target.law(context)], restarted).token_ids

    return Mutant(
        "chat turn whose positions restart at 0",
        "T52: verl-project/verl#6857; positions are absolute, prompt included",
        enumerated(turn, target, 2),
        production("keyed", target, lambda context, noise: Draft.empty(len(context)), 2),
    )


def _noise_redrawn_per_pass() -> Mutant:
    """The draft's length looks at the noise of its second position, and the next pass draws that noise again.

    A pass that goes on has looked at favourable noise, a pass that stops gets new noise: the mixture is biased. With
    noise that persists, the stopped pass meets the very noise that was looked at.
    """
    target = constant("0.5 0.5")

    def propose(context: Context, noise: Noise) -> Draft:
        draft = Sampled(target, (1, 1), share_target_field=True)(context, noise)
        return draft if draft.token_ids[1] == 0 else draft.truncated(0, looked_at_dropped=True)

    def per_pass(context: Context, noise: Noise) -> tuple[int, ...]:
        start = len(context)
        redrawn = Redirected(noise, lambda key: key._replace(index=start + 1) if key.purpose is Purpose.TARGET else key)
        draft = propose(context, redrawn)
        return get_verifier("keyed").verify(draft, target_rows(target, context, draft), redrawn).token_ids

    return Mutant(
        "keyed noise redrawn in each pass under a noise-aware draft",
        "design rule, no public report: a position's field is never drawn again",
        enumerated(per_pass, target, 2),
        production("keyed", target, propose, 2),
    )


def _rejected_position_redrawn() -> Mutant:
    """After a mismatch the position is drawn again with new noise, instead of emitting the sample that was made."""
    target, drafter = constant("0.5 0.3 0.2"), Sampled(constant("0.2 0.3 0.5"), (1,))

    def redrawn(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)
        verdict = get_verifier("keyed").verify(draft, target_rows(target, context, draft), noise)
        if verdict.num_accepted:
            return verdict.token_ids
        return (target.law(context).draw(noise, Key(Purpose.TARGET, draft.start, 1)),)

    return Mutant(
        "rejected position drawn again",
        "design rule, no public report: after a mismatch the sample that was made is emitted",
        enumerated(redrawn, target),
        production("keyed", target, drafter),
    )


_TARGET: Final = constant("0.10 0.45 0.45")
_DRAFT: Final = constant("0.70 0.25 0.05")
_ONE: Final = Sampled(_DRAFT, (1,))
_TWO: Final = Sampled(_DRAFT, (1, 1))
_FRESH: Final = "design rule, no public report: ratio tests need noise that is fresh in every pass"

MUTANTS: Final = (
    _draft_and_residual_share_a_race(),
    _target_field_under_a_ratio_test(),
    _mutant(
        "draft and residual share one uniform",
        "T08: vllm-project/vllm#47386",
        "rejection",
        _residual_from_draft,
        _TARGET,
        _ONE,
        1,
    ),
    _mutant(
        "accept coin reused for the residual",
        "vllm-project/vllm-ascend PR 16370",
        "block",
        _residual_from_coin,
        markov(("0.5 0.3 0.2", "0.2 0.5 0.3", "0.4 0.4 0.2")),
        Sampled(markov(("0.2 0.3 0.5", "0.5 0.25 0.25", "0.05 0.10 0.85")), (1, 1)),
        1,
    ),
    _mutant(
        "draft's uniform reused for the accept coin",
        "T08: the accept coin must not see the draft's noise",
        "rejection",
        _coin_from_draft,
        _TARGET,
        _ONE,
        1,
    ),
    _mutant(
        "draft's uniform reused for the target's sample",
        "T55: one generator stream for draft and target",
        "match",
        lambda key: Key(Purpose.MATCH, key.position, key.index + 1) if key.purpose is Purpose.DRAFT else key,
        _TARGET,
        _TWO,
        1,
    ),
    _mutant("coins persist under block", _FRESH, "block", by_position(Purpose.COIN), _TARGET, _TWO, 2),
    _mutant("drafts persist under block", _FRESH, "block", by_position(Purpose.DRAFT), _TARGET, _TWO, 2),
    _mutant("coins repeat in each pass", _FRESH, "rejection", by_index(Purpose.COIN), _TARGET, _ONE, 2),
    _mutant("drafts repeat in each pass", _FRESH, "rejection", by_index(Purpose.DRAFT), _TARGET, _ONE, 2),
    _mutant("residual fields repeat in each pass", _FRESH, "rejection", by_index(Purpose.RESIDUAL), _TARGET, _ONE, 2),
    _mutant("match draws repeat in each pass", _FRESH, "match", by_index(Purpose.MATCH), _TARGET, _ONE, 2),
    _chat_turn_reuses_noise(),
    _noise_redrawn_per_pass(),
    _rejected_position_redrawn(),
)
