"""The acceptance record of a request, with vLLM's field names.

Three identities of its integers hold at all times and are checked when it is read: the
histogram's counts sum to num_spec_steps, its weighted sum is num_accepted_draft_tokens, and no
more is accepted than was drafted. Tokens that a stop rule cut off are not counted as accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from draftproof.errors import DraftproofError


@dataclass(slots=True)
class AcceptanceRecord:
    """Counts over the passes that verified at least one drafted token.

    num_spec_tokens: tokens that those passes committed, accepted ones and the one more of each. num_plain_steps: the
    passes without a draft, which are in no other count.
    """

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_plain_steps: int = 0
    num_spec_tokens: int = 0
    per_step_accepted: list[int] = field(default_factory=list)
    per_step_drafted: list[int] = field(default_factory=list)

    def add(self, num_drafted: int, num_accepted: int, num_emitted: int) -> None:
        """One pass. num_emitted: tokens committed by it, after the stop rules."""
        if num_drafted == 0:
            self.num_plain_steps += 1
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_draft_tokens += num_accepted
        self.num_spec_tokens += num_emitted
        self.per_step_accepted.append(num_accepted)
        self.per_step_drafted.append(num_drafted)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Emitted tokens per speculative pass, the bonus or recovered token counted; None without passes."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else None

    def to_dict(self, *, detailed: bool = False) -> dict[str, Any]:
        """vLLM's `metrics.speculative_decoding` object. Raises if its integers disagree."""
        histogram = Counter(self.per_step_accepted)
        by_length: dict[int, Counter[int]] = {}
        for drafted, accepted in zip(self.per_step_drafted, self.per_step_accepted, strict=True):
            by_length.setdefault(drafted, Counter())[accepted] += 1
        self._check(histogram)
        record: dict[str, Any] = {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": (
                self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None
            ),
            "acceptance_histogram": {str(k): histogram[k] for k in sorted(histogram)},
            "acceptance_histogram_by_draft_length": {
                str(length): {str(k): counts[k] for k in sorted(counts)} for length, counts in sorted(by_length.items())
            },
            "num_spec_steps": self.num_spec_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "num_spec_tokens": self.num_spec_tokens,
            "num_plain_steps": self.num_plain_steps,
        }
        if detailed:
            record |= {"per_step_accepted": self.per_step_accepted, "per_step_drafted": self.per_step_drafted}
        return record

    def _check(self, histogram: Counter[int]) -> None:
        identities = {
            "histogram counts sum to num_spec_steps": sum(histogram.values()) == self.num_spec_steps,
            "histogram's weighted sum is num_accepted_draft_tokens": (
                sum(k * count for k, count in histogram.items()) == self.num_accepted_draft_tokens
            ),
            "accepted <= drafted": self.num_accepted_draft_tokens <= self.num_draft_tokens,
        }
        broken = [name for name, holds in identities.items() if not holds]
        if broken:
            raise DraftproofError(
                f"the acceptance record is inconsistent ({'; '.join(broken)}); this is a bug, report it"
            )


def merged(records: Iterable[AcceptanceRecord]) -> AcceptanceRecord:
    """The counts of several requests, as one record."""
    total = AcceptanceRecord()
    for record in records:
        total.num_spec_steps += record.num_spec_steps
        total.num_draft_tokens += record.num_draft_tokens
        total.num_accepted_draft_tokens += record.num_accepted_draft_tokens
        total.num_plain_steps += record.num_plain_steps
        total.num_spec_tokens += record.num_spec_tokens
        total.per_step_accepted += record.per_step_accepted
        total.per_step_drafted += record.per_step_drafted
    return total
