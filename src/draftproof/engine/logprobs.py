"""Log-probabilities of emitted tokens and of the prompt's, with ranks.

Rule: a token's row is the one that it was drawn from, so accepted, recovered and bonus tokens are treated alike, and
the numbers are a function of that row alone, in float64: the same bits with speculation on and off wherever the
row is. Which numbers (`logprobs_mode`, vLLM's names):

raw_logprobs        log softmax of the model's own logits, before the sampler chain
raw_logits          those logits
processed_logprobs  the logarithm of the law that the token was drawn from: after masks, penalties, temperature and
                    filters; -inf for what they took away. At temperature 0 that law is a point mass: 0 and -inf

Ties: a token's rank is 1 plus the number of tokens with a strictly larger number, so equal ones share the best rank
(vllm#7627); among equals the top list takes the lowest ids first.
Deviation: vLLM gives a greedy row's processed logprobs before temperature, here they are those of the law.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.core import Verdict
from draftproof.errors import ParameterError
from draftproof.laws import Law
from draftproof.verify.base import Row


@dataclass(frozen=True, slots=True)
class Logprob:
    """logprob: natural logarithm (a logit in the modes of logits). rank: 1 is the largest; equals share a rank."""

    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one token: itself and, in `top`, the most probable tokens of its row, best first."""

    token_id: int
    own: Logprob
    top: dict[int, Logprob]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the token's own numbers, and a list of the top tokens'."""
        top = [{"token_id": which, **asdict(entry)} for which, entry in self.top.items()]
        return {"token_id": self.token_id, **asdict(self.own), "top": top}


def logprobs_of(
    mode: str, logits: torch.Tensor, laws: Sequence[Row] | None, verdict: Verdict, vocab_size: int, num_top: int | None
) -> list[TokenLogprobs] | None:
    """One entry for each of the verdict's tokens; None if `num_top` is.

    logits, laws: a row after the context and one after every drafted token; only "processed_logprobs" looks at laws.
    num_top: -1 is all.
    """
    if num_top is None:
        return None
    rows = [0, *(node + 1 for node in verdict.path)]
    picked = None if laws is None else [laws[row] for row in rows]
    values = list(row_values(mode, logits[rows], picked, vocab_size))
    return token_logprobs(values, verdict.token_ids, num_top)


def token_logprobs(rows: Sequence[NDArray[Any]], token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """rows: [n] numbers [V] as `row_values` gives them. token_ids: [n]. num_top: most probable beside them, -1 all."""
    return [_of_row(row, token_id, num_top) for row, token_id in zip(rows, token_ids, strict=True)]


def row_values(mode: str, logits: torch.Tensor, laws: Sequence[Row] | None, vocab_size: int) -> Iterator[NDArray[Any]]:
    """Numbers [V] in float64 for each row: what `mode` asks for.

    logits: [n, >= V] the model's. laws: [n] the laws of the same rows, for "processed_logprobs".
    """
    for index in range(logits.shape[0]):
        if mode == "raw_logits":
            yield _float64(logits[index, :vocab_size])
        elif mode == "raw_logprobs":
            yield log_softmax(_float64(logits[index, :vocab_size]))
        else:
            if laws is None:
                raise ParameterError("laws", None, f"given for logprobs_mode={mode!r}")
            law = laws[index]
            if not isinstance(law, Law):
                raise law
            with np.errstate(divide="ignore"):
                yield np.log(np.asarray(law.at(None, vocab_size), dtype=np.float64))


def log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """[V] log-probabilities of logits [V] in float64: z - max - log sum exp(z - max)."""
    shifted = logits - logits.max()
    normalised: NDArray[Any] = shifted - np.log(np.exp(shifted).sum())
    return normalised


def raw_rows(logits: torch.Tensor, vocab_size: int) -> Iterator[NDArray[Any]]:
    """Raw log-probabilities [V] of each row of logits [n, >= V]."""
    for row in logits:
        yield log_softmax(_float64(row[:vocab_size]))


def _float64(row: torch.Tensor) -> NDArray[Any]:
    values: NDArray[Any] = row.detach().to(device="cpu", dtype=torch.float64).numpy()
    return values


def _of_row(values: NDArray[Any], token_id: int, num_top: int) -> TokenLogprobs:
    top_ids = _top_ids(values, len(values) if num_top < 0 else min(num_top, len(values)))
    top: dict[int, Logprob] = {}
    rank = 0
    for place, which in enumerate(top_ids):
        if place == 0 or values[which] < values[top_ids[place - 1]]:
            rank = place + 1
        top[which] = Logprob(float(values[which]), rank)
    own = top.get(token_id) or Logprob(float(values[token_id]), 1 + int((values > values[token_id]).sum()))
    return TokenLogprobs(token_id, own, top)


def _top_ids(values: NDArray[Any], num_top: int) -> list[int]:
    """The `num_top` largest, best first, the lowest ids first among equals."""
    if num_top == 0:
        return []
    edge = np.partition(values, len(values) - num_top)[len(values) - num_top]
    above = np.flatnonzero(values > edge)
    level = np.flatnonzero(values == edge)[: num_top - len(above)]
    found = np.concatenate([above, level])
    ordered: list[int] = found[np.lexsort((found, -values[found]))].tolist()
    return ordered
