"""Mutants whose replacement for a rejected token comes from a wrong law."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from draftproof.core import Key, Law, Noise, Weights
from draftproof.verify.mutants.base import Mutant, constant, enumerated, production
from draftproof.verify.mutants.twins import Recover, RejectionTwin
from draftproof.verify.proposals import Sampled
from draftproof.verify.residual import residual
from draftproof.verify.tables import LawTable


def _mutant(name: str, after: str, target: LawTable, draft: LawTable, recover: Recover) -> Mutant:
    drafter = Sampled(draft, (1,))
    return Mutant(
        name,
        after,
        enumerated(RejectionTwin(target, drafter, recover=recover), target),
        production("rejection", target, drafter),
    )


def _through_softmax(target_law: Law, draft_law: Law, rejected_id: int, noise: Noise, key: Key) -> int:
    weights, token_ids, _ = residual(target_law, draft_law)
    # exp is not rational: its float64 value is read as the rational that it is.
    softmax: Weights = np.array([Fraction(math.exp(weight)) for weight in weights], dtype=object)
    return noise.choice(key, softmax, token_ids)


def _at_drafted_token_only(target_law: Law, draft_law: Law, rejected_id: int, noise: Noise, key: Key) -> int:
    weights, _ = target_law.weights()
    reduced = weights.copy()
    reduced[rejected_id] = max(reduced[rejected_id] - draft_law.prob(rejected_id), 0)
    return noise.choice(key, reduced)


def _from_target(target_law: Law, draft_law: Law, rejected_id: int, noise: Noise, key: Key) -> int:
    return target_law.draw(noise, key)


def _index_aligned(target_law: Law, draft_law: Law, rejected_id: int, noise: Noise, key: Key) -> int:
    target_weights, token_ids = target_law.weights()
    draft_weights, _ = draft_law.weights()
    return noise.choice(key, np.maximum(target_weights - draft_weights, 0), token_ids)


def _else_token(token_id: int) -> Recover:
    def recover(target_law: Law, draft_law: Law, rejected_id: int, noise: Noise, key: Key) -> int:
        weights, token_ids, mass = residual(target_law, draft_law)
        return noise.choice(key, weights, token_ids) if mass > 0 else token_id

    return recover


def _unnormalised(numbers: tuple[float, ...]) -> LawTable:
    return LawTable(len(numbers), lambda context: numbers, exact=False)


def _zero_residual(name: str, after: str, token_id: int) -> Mutant:
    # The draft's row, in float32 steps, sums to more than 1: q >= p everywhere, and token 1 may still be rejected.
    target = _unnormalised((0.0, 0.5, 0.25, 0.25, 0.0))
    draft = _unnormalised((0.0, float(np.nextafter(np.float32(0.5), np.float32(1))), 0.25, 0.25, 0.0))
    return _mutant(name, after, target, draft, _else_token(token_id))


def _sparse(numbers: str) -> LawTable:
    return constant(numbers, form="Sparse")


MUTANTS: Final = (
    _mutant(
        "residual through softmax",
        "T03: huggingface/transformers#28508",
        constant("0.5 0.3 0.2"),
        constant("0.7 0.2 0.1"),
        _through_softmax,
    ),
    _mutant(
        "residual subtracts at the drafted token only",
        "T04: xLLM-AI/xllm#2175",
        constant("0.5 0.2 0.3"),
        constant("0.2 0.5 0.3"),
        _at_drafted_token_only,
    ),
    _mutant(
        "residual replaced by the target",
        "T04: asked in NJUNLP/MCSD#5",
        constant("0.5 0.2 0.3"),
        constant("0.2 0.5 0.3"),
        _from_target,
    ),
    _zero_residual("empty residual gives token 0", "T14: vllm-project/vllm V1, 0.33", 0),
    _zero_residual("empty residual gives token V - 1", "T14: sgl-project/sglang, Triton kernel, 0.5.23", 4),
    _mutant(
        "residual aligned by index on sparse lists",
        "T20f: ggml-org/llama.cpp examples/speculative",
        _sparse("0.6 0 0.4"),
        _sparse("0 0.7 0.3"),
        _index_aligned,
    ),
)
