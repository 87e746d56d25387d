"""`rejection` and `block` in plain PyTorch, in float64: what the kernels are tested against at whole vocabularies.

Inputs are those of the kernels, in good order: chains, laws that their tokens were drawn from, rows without faults.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from draftproof.core import Key, Purpose
from draftproof.kernels import reference
from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.ratio.laws import DraftLaws
from draftproof.noise import KeyedNoise

_WORD = 0xFFFFFFFF


def verify(
    logits: torch.Tensor,
    draft: DraftLaws,
    rows: Rows,
    requests: Requests,
    vocab_size: int,
    *,
    block: bool,
    limit: int | None = None,
) -> list[list[int]]:
    """The emitted tokens of each request, of the first `limit` alone if given."""
    offsets = rows.offsets.tolist()
    emitted = []
    for request in range(rows.num_requests if limit is None else min(limit, rows.num_requests)):
        first, last = offsets[request], offsets[request + 1]
        part = slice(first, last)
        own = replace(
            rows,
            offsets=rows.offsets[request : request + 2] - first,
            request=rows.request[part],
            position=rows.position[part],
            word=rows.word[part],
            drafted=rows.drafted[part],
        )
        target = reference.probs(logits[part], own, requests, vocab_size)
        drafted = rows.drafted[first + 1 : last].tolist()
        laws = _draft_probs(draft, first - request, request, drafted, target)
        seed = (int(requests.seed_high[request]) & _WORD) << 32 | (int(requests.seed_low[request]) & _WORD)
        noise = KeyedNoise(seed, int(requests.sample_index[request]) & _WORD)
        start = int(rows.position[first]) & _WORD
        coins = [noise.uniform(Key(Purpose.COIN, start, node)) for node in range(len(drafted))]
        stop, share = (_stop_of_block if block else _stop_of_rejection)(target, laws, drafted, coins)
        bonus = stop == len(drafted)
        weights = target[stop] if bonus else (share * target[stop] - laws[stop]).clamp(min=0)
        if not weights.sum() > 0:
            weights = target[stop]
        purpose, index = (Purpose.BONUS, 0) if bonus else (Purpose.RESIDUAL, stop)
        row = slice(first + stop, first + stop + 1)
        word, position = rows.word.new_tensor([int(purpose) << 24 | index]), rows.position[first : first + 1]
        field = reference.field(
            replace(own, request=rows.request[row], position=position, word=word), requests, vocab_size
        )
        emitted.append([*drafted[:stop], int((reference.exponential(field)[0] / weights).argmin())])
    return emitted


def drawn(logits: torch.Tensor, start: int, rows: Rows, requests: Requests, vocab_size: int) -> torch.Tensor:
    """[n] tokens of rows `start` to `start` + n - 1, drawn from `logits` [n, >= V] with those rows' noise."""
    part = slice(start, start + logits.shape[0])
    own = replace(rows, request=rows.request[part], position=rows.position[part], word=rows.word[part])
    return reference.draw(logits, own, requests, vocab_size)


def _draft_probs(draft: DraftLaws, first: int, request: int, drafted: list[int], target: torch.Tensor) -> torch.Tensor:
    """[nodes, V] float64: each node's q over the target's vocabulary."""
    laws = torch.zeros((len(drafted), target.shape[1]), dtype=torch.float64, device=target.device)
    if not drafted:
        return laws
    if draft.values is None:
        return laws.scatter_(1, torch.tensor(drafted, device=target.device)[:, None], 1.0)
    values = draft.values[first : first + len(drafted)]
    if draft.token_ids is not None:
        ids = draft.token_ids[first : first + len(drafted)].long()
        return laws.scatter_add_(1, ids.clamp(min=0), torch.where(ids >= 0, values.double(), 0.0))
    probs = values[:, : draft.vocab_size].double()
    if draft.temperature is not None:
        temperature = float(draft.temperature[request])
        if temperature == 0:
            probs = torch.zeros_like(probs).scatter_(1, probs.argmax(dim=1, keepdim=True), 1.0)
        else:
            probs = (probs / temperature).softmax(dim=1)
    width = min(probs.shape[1], target.shape[1])
    laws[:, :width] = probs[:, :width]
    return laws


def _stop_of_rejection(
    target: torch.Tensor, laws: torch.Tensor, drafted: list[int], coins: list[float]
) -> tuple[int, float]:
    for node, token_id in enumerate(drafted):
        if not coins[node] * float(laws[node, token_id]) < float(target[node, token_id]):
            return node, 1.0
    return len(drafted), 1.0


def _stop_of_block(
    target: torch.Tensor, laws: torch.Tensor, drafted: list[int], coins: list[float]
) -> tuple[int, float]:
    masses = [1.0]
    for node, token_id in enumerate(drafted):
        masses.append(min(1.0, masses[-1] * float(target[node, token_id]) / float(laws[node, token_id])))
    for length in range(len(drafted), 0, -1):
        mass, coin = masses[length], coins[length - 1]
        if length == len(drafted):
            passes = coin < mass
        else:
            rest = float((mass * target[length] - laws[length]).clamp(min=0).sum())
            passes = mass > 0 and (mass == 1 or coin * (rest + 1 - mass) < rest)
        if passes:
            return length, mass
    return 0, 1.0
