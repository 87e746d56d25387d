"""Rules that the command line is pointed at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.audit.test_rule import rule

residual_is_target = rule(lambda target, draft: target)


def opens_coins(target_probs: Any, draft_probs: Any, draft_ids: Sequence[int], coins: Any) -> list[int]:
    """Takes a coin's value, which an enumeration can't give."""
    return [int(float(coins[0]) * 2)]


def draws_from_target(target_probs: Any, draft_probs: Any, draft_ids: Sequence[int], generator: Any) -> list[int]:
    """One token of the target's, whatever was drafted."""
    return [int(generator.choice(len(target_probs[0]), p=target_probs[0]))]
