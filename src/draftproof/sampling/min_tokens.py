"""Minimum length: no token may end the output before it has min_tokens tokens.

Formula: z[e] = -inf for every EOS and stop id e, while the row's output has fewer than min_tokens tokens.
In: the row's own output length, drafts before it included. Out: whether the ending ids are masked.
Edge cases: with min_tokens 5, 3 committed and 3 drafts, rows 0 and 1 are masked and rows 2 and 3 are
free (T27). All EOS ids of the model are masked, under ignore_eos too, as in vLLM. Stop strings wait
in the engine.
Source: vLLM's min_tokens; transformers' min_new_tokens.
"""

from __future__ import annotations

from draftproof.sampling.history import History


def too_short_to_end(history: History, min_tokens: int) -> bool:
    """Whether the token after `history` may not end the output."""
    return history.num_output_tokens < min_tokens
