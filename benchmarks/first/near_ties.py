"""Is a first difference between two runs a near tie within the measured logit error, or a defect?

At the first position where the runs differ, the row's logits are computed in every way that the two runs may have come
to it: the context in one piece, token by token, in blocks of several widths; delta is the largest difference of any
token's logit between any two of these. The difference is explained if some row within delta of the one that plain
decoding computes makes the other run's token win. Two rows within the measured error can do that to two tokens in log
p + G, and to a token at a filter's edge: there the tokens beside it move, too, and with them the mass above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from draftproof import LLM, SamplingParams
from draftproof.core import Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.sampling import History
from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget

WIDTHS = (1, 2, 3, 4, 6, 9, 16)


def explain(
    llm: LLM, prompt_ids: Sequence[int], first: Sequence[int], second: Sequence[int], params: SamplingParams
) -> dict[str, Any]:
    """first, second: the two runs' output token ids, from the same seed; llm: its model, chain and tokenizer are used.

    Returns position, logit_error (delta), gap (what the first run's token leads by in log p + G, None where the
    filters drop one of the two) and near_tie.
    """
    at = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    rows = logit_rows(llm, prompt_ids, first[:at])
    delta = max(float((row - other).abs().max()) for row in rows for other in rows)
    ours, other = first[at], second[at]
    history = History(prompt_ids, first[:at])
    reachable = any(_winner(llm, row, history, params) == other for row in within(rows[0], ours, other, delta))
    return {
        "position": len(history),
        "logit_error": delta,
        "gap": _gap(llm, rows[0], history, params, ours, other),
        "near_tie": reachable,
    }


def logit_rows(llm: LLM, prompt_ids: Sequence[int], output: Sequence[int]) -> list[torch.Tensor]:
    """The row after prompt and output, float32 [vocabulary], by each route: plain decoding's, token by token, first."""
    whole = [*prompt_ids, *output]
    # A target of its own: the engine's slots hold prefixes that it will use again.
    target = HFTarget(llm.target.model, num_slots=1, invariant=False)
    rows = []
    for width in WIDTHS:
        # The block that ends with the row begins at every offset that the width allows.
        begin = max(1, len(prompt_ids) - 1)
        rows.append(_route(target, whole, begin, width))
    for width in WIDTHS:
        if width < len(whole):
            rows.append(_route(target, whole, len(whole) - width, width))
    return rows


def plain_row(llm: LLM, prompt_ids: Sequence[int], output: Sequence[int]) -> torch.Tensor:
    """The row after prompt and output as plain decoding computes it, float32 [vocabulary]."""
    whole = [*prompt_ids, *output]
    return _route(HFTarget(llm.target.model, num_slots=1, invariant=False), whole, max(1, len(prompt_ids) - 1), 1)


def within(row: torch.Tensor, ours: int, other: int, delta: float) -> Iterator[torch.Tensor]:
    """Rows within delta of `row` that favour `other` over `ours`, the rest standing still or moving with an edge."""
    above_ours, above_other = row > row[ours], row > row[other]
    still = torch.zeros_like(row)
    moves = (
        still,
        still + delta,
        still - delta,
        torch.where(above_ours, delta, -delta),
        torch.where(above_other, -delta, delta),
    )
    for move in moves:
        moved = row + move
        moved[other] = row[other] + delta
        moved[ours] = row[ours] - delta
        yield moved


def _route(target: HFTarget, whole: Sequence[int], begin: int, width: int) -> torch.Tensor:
    """`begin` tokens in one piece, the others in blocks of `width`; the last block has what is left over."""
    target.prefill(0, whole[:begin])
    while True:
        block = tuple(whole[begin : begin + width])
        logits = target.score([ScoreRequest(0, block)])[0]
        begin += len(block)
        if begin >= len(whole):
            target.release(0)
            return logits[-1].float()


def _winner(llm: LLM, row: torch.Tensor, history: History, params: SamplingParams) -> int:
    law = llm.chain.laws(row[None], _resolved(llm, params), [history])[0]
    return law.draw(KeyedNoise(params.seed or 0), Key(Purpose.TARGET, len(history)))


def _gap(llm: LLM, row: torch.Tensor, history: History, params: SamplingParams, ours: int, other: int) -> float | None:
    if params.temperature == 0:
        return float(row[ours] - row[other])
    law = llm.chain.laws(row[None], _resolved(llm, params), [history])[0]
    noise, key = KeyedNoise(params.seed or 0), Key(Purpose.TARGET, len(history))
    probs = [float(law.prob(token_id)) for token_id in (ours, other)]
    if not all(probs):
        return None
    exponentials = [-math.log1p(-(noise.word(key, token_id) + 0.5) / 2**32) for token_id in (ours, other)]
    return math.log(probs[0] / exponentials[0]) - math.log(probs[1] / exponentials[1])


def _resolved(llm: LLM, params: SamplingParams) -> Any:
    return llm.chain.resolve(params, llm.tokenizer, llm.target.vocab_size, llm.target.eos_token_ids)
