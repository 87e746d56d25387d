"""Which draft lengths run ahead, and for how long.

A fixed length always does. One that `auto` has chosen because it pays, and not to try whether it does, is kept for
`KEPT_FOR` steps, from each of which the policy learns. Then a step is waited for, which measures what passes cost, and
the policy is asked again. Of a batch the longest that any asks for is taken, rounded up so that there are few graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.length import FixedLength
from draftproof.engine.request import Request
from draftproof.engine.turn import Turn

KEPT_FOR: Final = 16


def few(number: int) -> int:
    """Powers of two, and halves between them: the least of 1, 2, 3, 4, 6, 8, 12, 16, 24, … that is enough."""
    power = 1 << (number - 1).bit_length()
    return 3 * power // 4 if power >= 4 and number <= 3 * power // 4 else power


def agreed_length(turns: Sequence[Turn], most: int) -> int | None:
    """How many tokens all of them draft, 1 to `most`; None if they don't run ahead."""
    policies = [turn.request.length_policy for turn in turns]
    asked = {turn.num_asked for turn in turns}
    longest = max(asked)
    if not all(_shares_noise(turn.request) for turn in turns) or not 0 < longest <= most:
        return None
    if all(isinstance(policy, FixedLength) and policy.max_tokens == longest for policy in policies):
        return longest if len(asked) == 1 else None
    if min(asked) > 0 and all(isinstance(policy, AutoLength) and policy.is_settled for policy in policies):
        return min(few(longest), most, *(policy.max_tokens for policy in policies if policy is not None))
    return None


def num_steps(requests: Sequence[Request]) -> int | None:
    """For how many steps their length is kept; None for as many as there are."""
    return KEPT_FOR if any(isinstance(request.length_policy, AutoLength) for request in requests) else None


def _shares_noise(request: Request) -> bool:
    """Are drafts drawn over the target's own noise, as the device draws them?"""
    return request.share_target_noise and request.law_power == 1.0 and not request.forced_ids
