"""Is a first difference between two runs a near tie within the measured logit error, or a defect?

At the first position where the runs differ, the row's logits are computed by forwards of several
widths; delta is the largest difference from the one-token forward, of any token. The difference is explained if
raising the other run's token by delta and lowering this run's by delta, which is what two rows within the measured
error can do, makes the other run's token win: a near tie in log p + G and a token at a filter's edge alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof import LLM, SamplingParams
from draftproof.core import Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.sampling import History
from draftproof.targets.base import ScoreRequest

WIDTHS = (1, 2, 4, 9, 16)


def explain(
    llm: LLM, prompt_ids: Sequence[int], first: Sequence[int], second: Sequence[int], params: SamplingParams
) -> dict[str, Any]:
    """first, second: the two runs' output token ids, from the same seed."""
    at = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    context = [*prompt_ids, *first[:at]]
    rows = [_row(llm, context, width) for width in WIDTHS if width <= len(context)]
    delta = max(float((row - rows[0]).abs().max()) for row in rows)
    ours, other = first[at], second[at]
    row = rows[0].clone()
    row[other] += delta
    row[ours] -= delta
    winner = _winner(llm, row, prompt_ids, first[:at], params)
    return {"position": len(context), "logit_error": delta, "near_tie": winner == other}


def _row(llm: LLM, context: Sequence[int], width: int) -> torch.Tensor:
    llm.target.prefill(0, context[:-width])
    logits = llm.target.score([ScoreRequest(0, tuple(context[-width:]))])[0][-1].float()
    llm.target.release(0)
    return logits


def _winner(
    llm: LLM, row: torch.Tensor, prompt_ids: Sequence[int], output: Sequence[int], params: SamplingParams
) -> int:
    resolved = llm.chain.resolve(params, llm.tokenizer, llm.target.vocab_size, llm.target.eos_token_ids)
    law = llm.chain.laws(row[None], resolved, [History(prompt_ids, output)])[0]
    position = len(prompt_ids) + len(output)
    return law.draw(KeyedNoise(params.seed or 0), Key(Purpose.TARGET, position))
