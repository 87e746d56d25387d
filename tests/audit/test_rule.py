"""Rule mode: a right rule passes, enumerated and sampled; wrong ones don't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from draftproof import ParameterError
from draftproof.audit.rule import audit_rule, audit_steps
from draftproof.audit.verdict import Verdict
from draftproof.verify import get_verifier
from draftproof.verify.exact import speculative_step
from draftproof.verify.proposals import Sampled


def rule(
    residual: Callable[[Any, Any], Any], *, strict: bool = True, coin_of_residual: int | None = None
) -> Callable[..., list[int]]:
    """Token-wise rejection over explicit coins."""

    def verify(target_probs: Any, draft_probs: Any, draft_ids: Sequence[int], coins: Any) -> list[int]:
        for index, token in enumerate(draft_ids):
            left, right = coins[index] * draft_probs[index][token], target_probs[index][token]
            if not (left < right if strict else left <= right):
                weights = residual(target_probs[index], draft_probs[index])
                which = len(draft_ids) if coin_of_residual is None else index
                return [*draft_ids[:index], search(weights, coins[which])]
        return [*draft_ids, search(target_probs[len(draft_ids)], coins[len(draft_ids)])]

    return verify


def search(weights: Any, coin: Any) -> int:
    if sum(weights) == 0:
        weights = [1] * len(weights)
    place, end, last = coin * sum(weights), 0, 0
    for token, weight in enumerate(weights):
        end += weight
        if weight > 0:
            last = token
            if place < end:
                return token
    return last


def minus(target: Any, draft: Any) -> Any:
    left = np.maximum(target - draft, 0)
    return left if left.sum() > 0 else target


RIGHT = rule(minus)


def sampled(explicit: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """The same rule with coins from a generator."""

    def verify(target_probs: Any, draft_probs: Any, draft_ids: Sequence[int], random: np.random.Generator) -> list[int]:
        return explicit(target_probs, draft_probs, draft_ids, random.random(len(draft_ids) + 1).tolist())

    return verify


def test_a_right_rule_is_proven() -> None:
    audit = audit_rule(RIGHT)
    assert audit.verdict is Verdict.CONSISTENT and audit.exit_code == 0
    assert audit.numbers["largest total variation, exact"] == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        rule(lambda target, draft: target),
        rule(minus, coin_of_residual=1),
        rule(
            lambda target, draft: np.array(
                [t - d if t > d else 0 * t for t, d in zip(target, draft[::-1], strict=True)]
            )
        ),
    ],
    ids=["residual replaced by the target", "accept coin reused", "residual misaligned"],
)
def test_a_wrong_rule_is_found_exactly(wrong: Callable[..., list[int]]) -> None:
    audit = audit_rule(wrong)
    assert audit.verdict is Verdict.NOT_LOSSLESS and audit.exit_code == 1
    assert audit.numbers["largest total variation, exact"] > 0.01
    assert any("comes with probability" in finding.where for finding in audit.findings)


def test_ends_of_the_coins_are_tried() -> None:
    """T11: u <= p/q accepts probability 0 at u = 0; a law by enumeration can't show it."""
    audit = audit_rule(rule(minus, strict=False))
    assert audit.numbers["largest total variation, exact"] == 0.0
    assert [finding.what for finding in audit.findings] == ["a token that the target excludes"]


@pytest.mark.parametrize("name", ["rejection", "match"])
def test_our_own_verifiers_run_as_steps(name: str) -> None:
    audit = audit_steps(
        lambda pair, k: speculative_step(get_verifier(name), pair.target, Sampled(pair.draft, (1,) * k)), name=name
    )
    assert audit.verdict is Verdict.CONSISTENT


def test_sampling_finds_what_it_should() -> None:
    """Two families at 1e-4 on a right rule; a residual replaced by the target has a total variation of some .1."""
    right = audit_rule(sampled(RIGHT), coins="generator", num_tokens=9000, large_vocabulary=False)
    assert right.verdict is Verdict.CONSISTENT
    wrong = audit_rule(
        sampled(rule(lambda target, draft: target)), coins="generator", num_tokens=9000, large_vocabulary=False
    )
    assert wrong.verdict is Verdict.NOT_LOSSLESS


def test_bad_rules_are_named() -> None:
    def empty(*_: Any) -> list[int]:
        return []

    def opens(target_probs: Any, draft_probs: Any, draft_ids: Any, coins: Any) -> list[int]:
        return [int(float(coins[0]) * 2)]

    for bad, words in ((empty, "emitted 0 tokens"), (opens, "takes a coin's value")):
        audit = audit_rule(bad)
        assert audit.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_LOSSLESS)
        assert words in audit.summary or any(words in f.where for f in audit.findings)
    with pytest.raises(ParameterError, match="explicit"):
        audit_rule(RIGHT, coins="dice")  # type: ignore[arg-type]
