"""Mutants that verify against wrong rows: another position's, or rows that the sampler chain treated unlike others."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from draftproof.core import Draft, Law, Noise, PointMass
from draftproof.params import SamplingParams
from draftproof.verify import get_verifier
from draftproof.verify.chain_tables import ChainTable, Logits
from draftproof.verify.exact import Step, speculative_step, target_rows
from draftproof.verify.mutants.base import (
    PROMPT,
    Mutant,
    constant,
    enumerated,
    markov,
    production,
    ranked_token_ids,
    row,
)
from draftproof.verify.proposals import Fixed, Proposer, Sampled
from draftproof.verify.tables import Context, LawTable, Table

Rows = Callable[[Context, Draft], list[Law]]


def verified_against(verifier: str, drafter: Proposer, rows: Rows) -> Step:
    """A step of a production verifier that is handed these rows."""

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)
        return get_verifier(verifier).verify(draft, rows(context, draft), noise).token_ids

    return step


def _logits(*numbers: float) -> Logits:
    return lambda context: numbers


def _mutant(name: str, after: str, verifier: str, target: Table, drafter: Proposer, rows: Rows) -> Mutant:
    return Mutant(
        name,
        after,
        enumerated(verified_against(verifier, drafter, rows), target),
        production(verifier, target, drafter),
    )


def _ranks_of_row_zero() -> Mutant:
    """Greedy rows [1, 2, 0, 1]; the tokens drafted are right, and are compared with row 0's ranks instead."""
    ranks = row("0.2 0.5 0.3")
    greedy = LawTable(3, lambda context: [int(token == (len(context) % 3)) for token in range(3)], form="PointMass")

    def rows(context: Context, draft: Draft) -> list[Law]:
        ranked = ranked_token_ids(constant("0.2 0.5 0.3").law(context), len(ranks))
        return [PointMass(ranked[min(index, 2)]) for index in range(len(draft) + 1)]

    return _mutant(
        "rows swapped with row 0's top-k",
        "T17: ds4 project #358",
        "greedy",
        greedy,
        Fixed((1, 1, 1), (1, 2, 0)),
        rows,
    )


def _rows_shifted() -> Mutant:
    target = markov(("0.6 0.3 0.1", "0.2 0.5 0.3", "0.1 0.1 0.8"))

    def rows(context: Context, draft: Draft) -> list[Law]:
        right = target_rows(target, context, draft)
        return [*right[1:], right[-1]]

    return _mutant(
        "logits sliced one row late",
        "T17: NVIDIA/TensorRT-LLM#15098",
        "match",
        target,
        Sampled(constant("0.3 0.3 0.4"), (1, 1)),
        rows,
    )


_PENALISED: Final = SamplingParams(frequency_penalty=1.0)
_FLAT: Final = _logits(1.0, 1.0, 0.0)


def _penalties_frozen() -> Mutant:
    """Every row of the block sees the counts before the block. T22: P(0, 0) = .0895; frozen .1783."""
    target = ChainTable(3, _FLAT, _PENALISED)

    def rows(context: Context, draft: Draft) -> list[Law]:
        return [target.law(context)] * (len(draft) + 1)

    return _mutant(
        "penalties frozen over the block",
        "T22: sgl-project/sglang#40244, #28200",
        "match",
        target,
        Fixed((1,), (0,)),
        rows,
    )


def _penalties_see_the_last_token_only() -> Mutant:
    """After a commit of several tokens only the last one is counted, from the next pass on."""
    target = ChainTable(3, _FLAT, _PENALISED)
    drafter = Fixed((1, 1), (0, 0))

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        seen = context if context == PROMPT else (*PROMPT, context[-1])
        table = ChainTable(3, _FLAT, _PENALISED, history_of=lambda full: seen + full[len(context) :])
        return speculative_step(get_verifier("match"), table, drafter)(context, noise)

    return Mutant(
        "penalties count the last committed token only",
        "T23: sgl-project/sglang#33643",
        enumerated(step, target, 2),
        production("match", target, drafter, 2),
    )


def _filtered_on_the_bonus_row_only() -> Mutant:
    target = constant("0.5263157894736842 0.3157894736842105 0.1578947368421053 0")
    raw = constant("0.5 0.3 0.15 0.05")

    def rows(context: Context, draft: Draft) -> list[Law]:
        return [raw.law(context)] * len(draft) + [target.law(context)]

    return _mutant(
        "min-p on the bonus row only",
        "T25: vllm-project/vllm#42744, #42802",
        "rejection",
        target,
        Sampled(constant("0.25 0.25 0.25 0.25"), (1,)),
        rows,
    )


def _bias_ignored_on_draft_rows() -> Mutant:
    logits = _logits(0.5, 0.0, 1.0)
    biased = ChainTable(3, logits, SamplingParams(logit_bias={2: -100.0}))
    plain = ChainTable(3, logits, SamplingParams())

    def rows(context: Context, draft: Draft) -> list[Law]:
        return [plain.law(context)] * len(draft) + [biased.law(context)]

    return _mutant(
        "logit bias ignored on draft rows",
        "T26: vllm-project/vllm#19482, sgl-project/sglang#26330",
        "match",
        biased,
        Fixed((1,), (2,)),
        rows,
    )


def joint_top_k_top_p(probs: tuple[Fraction, ...], top_k: int, top_p: Fraction) -> list[Fraction]:
    """top-p by the cumulated raw probabilities, not by those that top-k's survivors have after it."""
    ranked = sorted(range(len(probs)), key=lambda token_id: (-probs[token_id], token_id))
    kept: list[int] = []
    for token_id in ranked[:top_k]:
        if sum((probs[other] for other in kept), Fraction(0)) >= top_p:
            break
        kept.append(token_id)
    return [probs[token_id] if token_id in kept else Fraction(0) for token_id in range(len(probs))]


def sequential_top_k_top_p(probs: tuple[Fraction, ...], top_k: int, top_p: Fraction) -> list[Fraction]:
    """top-k, then top-p on the renormalised survivors: the chain's default order."""
    survivors = joint_top_k_top_p(probs, top_k, Fraction(1))
    total = sum(survivors)
    return joint_top_k_top_p(tuple(prob / total for prob in survivors), top_k, top_p)


def _filters_joint_on_draft_rows() -> Mutant:
    raw = row("0.35 0.25 0.20 0.05 0.03 0.03 0.03 0.03 0.03")
    target = LawTable(9, lambda context: sequential_top_k_top_p(raw, 4, Fraction("0.82")))
    joint = LawTable(9, lambda context: joint_top_k_top_p(raw, 4, Fraction("0.82")))

    def rows(context: Context, draft: Draft) -> list[Law]:
        return [joint.law(context)] * len(draft) + [target.law(context)]

    return _mutant(
        "top-k and top-p joint on draft rows, in sequence elsewhere",
        "T30: sgl-project/sglang#36173",
        "match",
        target,
        Fixed((1,), (0,)),
        rows,
    )


def _temperature_forgotten_on_draft_rows() -> Mutant:
    logits = _logits(2.0, 1.0, 0.0)
    target = ChainTable(3, logits, SamplingParams(temperature=0.5))
    raw = ChainTable(3, logits, SamplingParams())

    def rows(context: Context, draft: Draft) -> list[Law]:
        return [raw.law(context)] * len(draft) + [target.law(context)]

    return _mutant(
        "temperature left out on draft rows",
        "T32: NVIDIA/TensorRT-LLM#19390 (a temperature other than the request's)",
        "match",
        target,
        Fixed((1,), (0,)),
        rows,
    )


def _seed_token_missing_from_history() -> Mutant:
    """The rows' history begins after the token that seeded the pass."""
    logits = _logits(1.0, 1.0, 0.5)
    target = ChainTable(3, logits, SamplingParams(repetition_penalty=2.0))

    # The prompt is one token, and it seeds the first pass.
    wrong = ChainTable(3, logits, SamplingParams(repetition_penalty=2.0), history_of=lambda context: context[1:])
    drafter = Fixed((1,), (0,))
    return Mutant(
        "seed token missing from the penalties' history",
        "design rule, no public report: the penalties' history includes the seed token",
        enumerated(speculative_step(get_verifier("match"), wrong, drafter), target),
        production("match", target, drafter),
    )


def build() -> tuple[Mutant, ...]:
    """The mutants; a function, since the chain needs torch."""
    return (
        _ranks_of_row_zero(),
        _rows_shifted(),
        _penalties_frozen(),
        _penalties_see_the_last_token_only(),
        _filtered_on_the_bonus_row_only(),
        _bias_ignored_on_draft_rows(),
        _filters_joint_on_draft_rows(),
        _temperature_forgotten_on_draft_rows(),
        _seed_token_missing_from_history(),
    )
