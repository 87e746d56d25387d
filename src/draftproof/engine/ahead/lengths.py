"""Which draft lengths run ahead, and for how long.

A fixed length always does. What `auto` answers is kept for a while: `KEPT_FOR` steps where it pays, or where nothing is
drafted because nothing would; `TIMED_FOR` where a plain step is to be timed; a single one where a length is tried out.
While it would answer the same it is kept on, for `MOST_KEPT` steps. Then the policy is asked again. It learns from each
step, and what steps cost from those that follow one another.
Of a batch the longest length that any asks for is taken, rounded up to a power of two so that there are few graphs,
where at least half of the requests want to draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.length import FixedLength
from draftproof.engine.request import Request
from draftproof.engine.turn import Turn

KEPT_FOR: Final = 16
TIMED_FOR: Final = 3
MOST_KEPT: Final = 128


def few(number: int) -> int:
    """Powers of two, and halves between them: the least of 1, 2, 3, 4, 6, 8, 12, 16, 24, … that is enough."""
    power = 1 << (number - 1).bit_length()
    return 3 * power // 4 if power >= 4 and number <= 3 * power // 4 else power


def agreed_length(turns: Sequence[Turn], most: int) -> int | None:
    """How many tokens all of them draft, 0 to `most`; None if they don't run ahead."""
    policies = [turn.request.length_policy for turn in turns]
    asked = [turn.num_asked for turn in turns]
    shares_noise = all(_shares_noise(turn.request) for turn in turns)
    autos = [policy for policy in policies if isinstance(policy, AutoLength) and policy.use_clock]
    if len(autos) == len(turns):
        common = _common(asked, autos, most)
        return common if common == 0 or shares_noise else None
    longest = max(asked)
    if shares_noise and all(isinstance(policy, FixedLength) and policy.max_tokens == longest for policy in policies):
        return longest if min(asked) == longest <= most else None
    return None


def _common(asked: Sequence[int], policies: Sequence[AutoLength], most: int) -> int:
    """The rule for a batch."""
    if 2 * sum(num > 0 for num in asked) < len(asked):
        return 0
    rounded = 1 << max(max(asked) - 1, 0).bit_length()
    return max(min(rounded, most, *(policy.max_tokens for policy in policies)), 0)


def is_kept(requests: Sequence[Request], num_drafts: int, most: int) -> bool:
    """Would `auto` answer the same once more?"""
    autos = [request.length_policy for request in requests if isinstance(request.length_policy, AutoLength)]
    wanted = [policy.would_draft(request.confidence) for policy, request in zip(autos, requests, strict=True)]
    known = [num for num in wanted if num is not None]
    return len(known) == len(wanted) and _common(known, autos, most) == num_drafts


def num_steps(turns: Sequence[Turn], num_drafts: int) -> int | None:
    """For how many steps their length is kept; None for as many as there are."""
    policies = [turn.request.length_policy for turn in turns]
    autos = [policy for policy in policies if isinstance(policy, AutoLength)]
    if not autos:
        return None
    if num_drafts == 0:
        return TIMED_FOR if any(policy.measures_plain for policy in autos) else KEPT_FOR
    return KEPT_FOR if all(policy.is_settled for policy in autos) else 1


def _shares_noise(request: Request) -> bool:
    """Are drafts drawn over the target's own noise, as the device draws them?"""
    return request.share_target_noise and request.law_power == 1.0 and not request.forced_ids
