"""What an answer cost, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.outputs import RequestOutput


def summary(output: RequestOutput) -> str:
    """Tokens, speed, acceptance and seed of a finished request."""
    completion, metrics = output.outputs[0], output.metrics
    num_tokens = len(completion.token_ids)
    parts = [f"{num_tokens} token{'' if num_tokens == 1 else 's'} ({completion.finish_reason})"]
    if metrics.tokens_per_second is not None:
        parts.append(f"{metrics.tokens_per_second:.1f} tokens/s")
    if metrics.time_to_first_token_ms is not None:
        parts.append(f"first after {metrics.time_to_first_token_ms:.0f} ms")
    if metrics.speculative_decoding is not None:
        parts.append(acceptance(metrics.speculative_decoding))
    else:
        parts.append("no speculation")
    return f"{', '.join(parts)}; seed {output.seed}"


def acceptance(record: dict[str, Any]) -> str:
    """The acceptance record in words."""
    if not record["num_spec_steps"]:
        return "nothing drafted"
    return (
        f"accepted {record['num_accepted_draft_tokens']} of {record['num_draft_tokens']} drafted, "
        f"mean_acceptance_length {record['mean_acceptance_length']:.2f} (the bonus counted)"
    )
