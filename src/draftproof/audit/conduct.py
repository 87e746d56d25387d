"""What an engine may not do whatever its law is: rules of ending, checked token by token.

An EOS or a stop id ends the output, unless ignore_eos; nothing follows it. No more than max_tokens. No EOS or stop id
before min_tokens. An output ends for a reason: EOS, a stop id, a stop string, or its length. Nothing after the token
that completed a stop string. Sources: T27, T36, T37, T39.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from draftproof import SamplingParams
from draftproof.audit.engine import Generation, Request


def breaches(request: Request, generation: Generation, eos_token_ids: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """Each rule that `generation` breaks, in words."""
    params, output = request.params, generation.token_ids
    if params.max_tokens is not None and len(output) > params.max_tokens:
        yield f"more than max_tokens={params.max_tokens} tokens"
    ending = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
    for position, token_id in enumerate(output):
        if token_id in ending:
            if position < params.min_tokens:
                yield f"the ending token {token_id} before min_tokens={params.min_tokens}"
            elif position + 1 < len(output):
                yield f"tokens after the ending token {token_id}"
            return
    stopped_at = _completes_stop(params, output, tokenizer)
    if stopped_at is not None:
        if stopped_at + 1 < len(output):
            yield "tokens after a stop string"
        return
    if params.max_tokens is not None and len(output) < params.max_tokens and not (params.stop and tokenizer is None):
        yield "an end without a reason: no EOS, stop or max_tokens"


def _completes_stop(params: SamplingParams, output: Sequence[int], tokenizer: Any) -> int | None:
    """The position of the token that completes a stop string, past min_tokens; None if there is none."""
    if not params.stop or tokenizer is None:
        return None
    for position in range(params.min_tokens, len(output)):
        text = tokenizer.decode(list(output[: position + 1]))
        if any(stop in text for stop in params.stop):
            return position
    return None
