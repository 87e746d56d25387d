"""Mutants whose draft was drawn from one law while another one is claimed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from draftproof.core import Dense, Draft, Law, Noise, PointMass
from draftproof.verify import get_verifier
from draftproof.verify.exact import speculative_step
from draftproof.verify.mutants.base import Mutant, constant, enumerated, forged, production
from draftproof.verify.mutants.twins import RejectionTwin
from draftproof.verify.proposals import Fixed, Proposer, Ranked, Sampled
from draftproof.verify.tables import Context, LawTable, Table


def claiming(drafter: Proposer, claim: Callable[[Context, int], Law]) -> Proposer:
    """A drafter that claims another law for each of its chain's tokens: (context of the token, token id) -> law."""

    def propose(context: Context, noise: Noise) -> Draft:
        draft = drafter(context, noise)
        laws = [claim(context + draft.token_ids[:node], token_id) for node, token_id in enumerate(draft.token_ids)]
        return forged(draft, laws=laws)

    return propose


def _mutant(name: str, after: str, target: Table, drafter: Proposer, claimed: Table) -> Mutant:
    lying = claiming(drafter, lambda context, token_id: claimed.law(context))
    step = speculative_step(get_verifier("rejection"), target, lying)
    return Mutant(name, after, enumerated(step, target), production("rejection", target, drafter))


def _argmax_with_softmax_law() -> Mutant:
    draft = constant("0.5 0.2 0.2 0.1")
    return _mutant(
        "argmax draft, softmax law",
        "T01: jaymody/speculative-sampling#3, z-lab/dflash#74, huggingface/transformers#30778",
        constant("0.3 0.4 0.2 0.1"),
        Ranked(draft, (1,)),
        draft,
    )


def _raw_law_after_filtered_draw() -> Mutant:
    return _mutant(
        "filtered draw, raw law",
        "T02: huggingface/transformers#47932",
        constant("0.35 0.65 0 0"),
        Sampled(constant("0.30 0.25 0 0"), (1,)),
        constant("0.30 0.25 0.25 0.20"),
    )


def _law_in_another_precision() -> Mutant:
    # softmax of the logits 20 and 20.06; bfloat16 rounds both logits to 20.
    target = constant("0.4850045 0.5149955")
    return _mutant(
        "drawn from bfloat16 probabilities, float32 law",
        "T05: deepseek-ai/DeepSpec#31",
        target,
        Sampled(constant("0.5 0.5"), (1,)),
        target,
    )


def _raw_laws_at_temperature_zero() -> Mutant:
    raw = constant("0.3 0.5 0.2")
    target = LawTable(3, lambda context: raw.probs(context), form="PointMass")
    claimed = constant("0.2 0.5 0.3")
    drafter = Fixed((1,), (0,))
    lying = claiming(drafter, lambda context, token_id: claimed.law(context))
    wrong = RejectionTwin(target, lying, rows=lambda table, context, draft: [raw.law(context)] * (len(draft) + 1))
    return Mutant(
        "temperature 0 without one-hot laws",
        "T06: jaymody/speculative-sampling#9",
        enumerated(wrong, target),
        production("rejection", target, drafter),
    )


def _infinite_ratio() -> Mutant:
    target = constant("0.2 0.8")
    drafter = Fixed((1,), (0,))
    lying = claiming(drafter, lambda context, token_id: Dense(constant("0 1").law(context).weights()[0]))

    def accept(noise: Noise, key: object, target_prob: Fraction, draft_prob: Fraction) -> bool:
        return draft_prob == 0 or target_prob >= draft_prob

    return Mutant(
        "ratio p/0 taken as accepted",
        "T15: huggingface/transformers 5.24 accepts a token that its claimed law excludes",
        enumerated(RejectionTwin(target, lying, accept=accept), target),
        production("rejection", target, drafter),
    )


def _placeholder_indexes_the_vocabulary() -> Mutant:
    target = constant("0.2 0.3 0.5")

    def padded(context: Context, noise: Noise) -> Draft:
        return forged(Draft.of_token_ids(len(context), (0,)), token_ids=(-1,), laws=(PointMass(2),))

    return Mutant(
        "placeholder -1 counted as the last token",
        "T48: vllm-project/vllm#46533, #46899",
        enumerated(RejectionTwin(target, padded), target),
        production("rejection", target, lambda context, noise: Draft.of_token_ids(len(context), (-1,))),
    )


def _id_clamped_into_the_vocabulary() -> Mutant:
    target = constant("0.5 0.3 0.2")
    drafter = Fixed((1,), (3,))

    def clamped(context: Context, noise: Noise) -> Draft:
        # The token is clamped, the law still holds its mass at the id before.
        return forged(drafter(context, noise), token_ids=(2,))

    def accept(noise: Noise, key: object, target_prob: Fraction, draft_prob: Fraction) -> bool:
        return noise.coin(key, target_prob)  # type: ignore[arg-type]

    return Mutant(
        "id beyond the vocabulary clamped to its last",
        "T64: drafters whose vocabulary is larger than the target's",
        enumerated(RejectionTwin(target, clamped, accept=accept), target),
        production("rejection", target, drafter),
    )


MUTANTS: Final = (
    _argmax_with_softmax_law(),
    _raw_law_after_filtered_draw(),
    _law_in_another_precision(),
    _raw_laws_at_temperature_zero(),
    _infinite_ratio(),
    _placeholder_indexes_the_vocabulary(),
    _id_clamped_into_the_vocabulary(),
)
