"""The kernels' rules in plain PyTorch, in float64: what they are tested against, and what runs without Triton.

Inputs are those of the kernels: logits [rows, >= V], `Rows`, `Requests`. One line of the rule is one line here.
"""

from __future__ import annotations

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.noise import philox4x32

_WORD = 0xFFFFFFFF


def field(rows: Rows, requests: Requests, vocab_size: int) -> torch.Tensor:
    """[rows, V] int64: the 32-bit words of every row's noise."""
    of_row = rows.request.long()
    block = torch.arange(0, -(-vocab_size // 4), device=of_row.device)[None, :]
    counter = (
        block,
        (rows.position.long() & _WORD)[:, None],
        (requests.sample_index.long()[of_row] & _WORD)[:, None],
        (rows.word.long() & _WORD)[:, None],
    )
    key = ((requests.seed_low.long()[of_row] & _WORD)[:, None], (requests.seed_high.long()[of_row] & _WORD)[:, None])
    words = torch.stack([word.expand(len(of_row), -1) for word in philox4x32(counter, key)], dim=-1)
    return words.flatten(1)[:, :vocab_size]


def exponential(words: torch.Tensor) -> torch.Tensor:
    """E = -log(1 - (k + 1/2) / 2^32) in float64."""
    return -torch.log(((_WORD - words).double() + 0.5) * 2.0**-32)


def probs(logits: torch.Tensor, rows: Rows, requests: Requests, vocab_size: int) -> torch.Tensor:
    """[rows, V] float64: each row's processed law under the default chain; one-hot at T = 0."""
    of_row = rows.request.long()
    z = logits[:, :vocab_size].float()
    largest = z.max(dim=-1, keepdim=True).values
    temperature = requests.temperature[of_row][:, None]
    scores = (z - largest) / torch.where(temperature > 0, temperature, 1.0)
    greedy = torch.zeros_like(z, dtype=torch.float64)
    ids = torch.arange(z.shape[1], device=z.device).expand_as(z)
    greedy.scatter_(1, torch.where(z == largest, ids, z.shape[1]).min(dim=-1, keepdim=True).values, 1.0)
    kept = scores >= requests.min_score[of_row][:, None]
    kept &= _among_top_k(z.masked_fill(~kept, -torch.inf), requests.top_k[of_row].long())
    weights = torch.where(kept, scores.double().exp(), 0.0)
    order = torch.argsort(weights, dim=-1, descending=True, stable=True)
    ranked = weights.gather(1, order)
    before = ranked.cumsum(dim=-1) - ranked
    needed = requests.top_p[of_row][:, None] * weights.sum(dim=-1, keepdim=True)
    keeps = (before < needed) | (requests.top_p[of_row][:, None] >= 1)
    weights = weights * torch.zeros_like(weights).scatter_(1, order, keeps.double())
    law = weights / weights.sum(dim=-1, keepdim=True)
    return torch.where(temperature > 0, law, greedy)


def _among_top_k(z: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[rows, V] which logits reach their row's k-th largest; all where k is 0."""
    ranked = z.sort(dim=-1, descending=True).values
    place = torch.where(k > 0, k, z.shape[1]).clamp(max=z.shape[1]) - 1
    return z >= ranked.gather(1, place[:, None])


def draw(logits: torch.Tensor, rows: Rows, requests: Requests, vocab_size: int) -> torch.Tensor:
    """[rows] int64: argmin E / p, the lowest id on ties."""
    ratios = exponential(field(rows, requests, vocab_size)) / probs(logits, rows, requests, vocab_size)
    return ratios.argmin(dim=-1)
