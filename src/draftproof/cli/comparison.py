"""The demo's prompts, and what is said about two runs of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from draftproof.outputs import RequestOutput


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt. title: a sentence about it."""

    name: str
    title: str
    prompt: str


CASES: Final = (
    Case(
        "copying",
        "A prompt that is heavy on copying: drafts from the text above are often right.",
        "Fix the grammar of this letter and repeat it in full:\n\n"
        "Dear Mr. Brown,\n\n"
        "Thank you for your letter of 3 March. We have receive your order of twelve oak chairs and two oak tables. "
        "The chairs and the tables will be sent on 10 March and should reach you on 14 March.\n\n"
        "Yours sincerely,\nMaria Lopez",
    ),
    Case(
        "ordinary",
        "An ordinary prompt: there is little to draft from, and the text must be the same all the same.",
        "Give three tips for growing tomatoes on a balcony.",
    ),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt decoded plainly (`off`) and speculatively (`on`)."""

    case: Case
    off: RequestOutput
    on: RequestOutput

    @property
    def is_same(self) -> bool:
        """Whether every token id is the same."""
        return self.off.outputs[0].token_ids == self.on.outputs[0].token_ids

    @property
    def first_difference(self) -> int | None:
        """Index of the first output token that differs, or that only one of the two has; None if they are the same."""
        off_ids, on_ids = self.off.outputs[0].token_ids, self.on.outputs[0].token_ids
        if off_ids == on_ids:
            return None
        pairs = zip(off_ids, on_ids, strict=False)
        return next((at for at, (off, on) in enumerate(pairs) if off != on), min(len(off_ids), len(on_ids)))

    @property
    def speed_ratio(self) -> float | None:
        """Tokens per second, on over off; None where a run was too short to time."""
        off, on = self.off.metrics.tokens_per_second, self.on.metrics.tokens_per_second
        return on / off if off and on else None

    def row(self) -> list[str]:
        """The cells of the demo's table."""
        record = self.on.metrics.speculative_decoding or {}
        off, on = self.off.metrics.tokens_per_second, self.on.metrics.tokens_per_second
        return [
            self.case.name,
            "yes" if self.is_same else "NO",
            f"{record.get('num_accepted_draft_tokens', 0)} / {record.get('num_draft_tokens', 0)}",
            _number(record.get("mean_acceptance_length")),
            _number(off),
            _number(on),
            _number(self.speed_ratio),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for --json."""
        return {
            "name": self.case.name,
            "prompt": self.case.prompt,
            "same_token_ids": self.is_same,
            "first_difference": self.first_difference,
            "speed_ratio": self.speed_ratio,
            "off": self.off.to_dict(),
            "on": self.on.to_dict(),
        }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
