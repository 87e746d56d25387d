"""Losses between a drafter's logits and the target's, one number per position, and the acceptance that they stand for.

    hard    -log q(token)                       the text's own token (a sample of p)
    soft    -sum p log q                        the same in expectation, with less noise
    tv      ½ sum |p - q|                       1 - tv is the probability that a drafted token is accepted (rejection)
p = target, q = drafter. Sources: DFlash (hard), DSpark 0.1 · hard + 0.9 · 2 · tv, Leviathan et al. 2211.17192 (tv).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

_Comparison = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the three losses. A mask-out position has weight 0 through `position_weights`."""

    hard: float = 0.0
    soft: float = 0.0
    tv: float = 0.0


def chosen_weights(loss: str, hard_labels: bool) -> Weights:
    """Of a loss by name: "cross-entropy", or "distance", DSpark's mixture."""
    share, tv = (0.1, 1.8) if loss == "distance" else (1.0, 0.0)
    return Weights(hard=share, tv=tv) if hard_labels else Weights(soft=share, tv=tv)


@dataclass(frozen=True, slots=True)
class Compared:
    """All [...]: loss (weighted sum of the three), overlap (1 - tv, detached), agrees (same argmax)."""

    loss: torch.Tensor
    overlap: torch.Tensor
    agrees: torch.Tensor


def compare(
    draft_logits: torch.Tensor,
    target_logits: torch.Tensor,
    token_ids: torch.Tensor,
    weights: Weights,
    vocab_ids: torch.Tensor | None = None,
    *,
    temperatures: torch.Tensor | None = None,
    fused: bool = False,
) -> Compared:
    """draft_logits [..., D], target_logits [..., V], token_ids [...] the text's own tokens.

    vocab_ids [D]: the target's id of each of the drafter's tokens, ascending; None where D = V. What the drafter lacks
    counts as distance, and as no hard loss. temperatures [...]: both laws are compared at them, at 1 if None. fused:
    through torch.compile, which keeps no copy of all logits in between.
    """
    function = _fused() if fused else _compare
    return Compared(
        *function(
            draft_logits, target_logits, token_ids, weights.hard, weights.soft, weights.tv, vocab_ids, temperatures
        )
    )


@cache
def _fused() -> Callable[..., _Comparison]:
    return torch.compile(_compare, dynamic=False)


def _compare(
    draft_logits: torch.Tensor,
    target_logits: torch.Tensor,
    token_ids: torch.Tensor,
    hard: float,
    soft: float,
    tv: float,
    vocab_ids: torch.Tensor | None,
    temperatures: torch.Tensor | None,
) -> _Comparison:
    colder = 1.0 if temperatures is None else temperatures[..., None]
    log_q = torch.log_softmax(draft_logits.float() / colder, dim=-1)
    p = torch.softmax(target_logits.float() / colder, dim=-1)
    best, chosen = target_logits.argmax(-1), draft_logits.argmax(-1)
    lacking: torch.Tensor | float = 0.0
    if vocab_ids is not None:
        p, chosen = p[..., vocab_ids], vocab_ids[chosen]
        lacking = 1.0 - p.sum(-1)
    distance = 0.5 * ((p - log_q.exp()).abs().sum(-1) + lacking)
    loss = tv * distance
    if soft:
        loss = loss - soft * (p * log_q).sum(-1)
    if hard:
        loss = loss - hard * _picked(log_q, token_ids, vocab_ids)
    return loss, (1.0 - distance).detach().clamp(0.0, 1.0), chosen == best


def _picked(log_q: torch.Tensor, token_ids: torch.Tensor, vocab_ids: torch.Tensor | None) -> torch.Tensor:
    if vocab_ids is None:
        return log_q.gather(-1, token_ids[..., None])[..., 0]
    where = torch.searchsorted(vocab_ids, token_ids).clamp(max=len(vocab_ids) - 1)
    known = vocab_ids[where] == token_ids
    picked = log_q.gather(-1, where[..., None])[..., 0]
    return torch.where(known, picked, torch.zeros_like(picked))


def accepted_lengths(per_position: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Tokens of a pass, bonus counted: 1 + the sum over k of the product of the first k factors.

    per_position [..., k] in 0 to 1 (overlaps, or 1.0 where the argmax agrees), valid [..., k]; returns the mean over
    blocks whose first position is valid, 1.0 (the bonus alone) where there is none.
    """
    factors = torch.where(valid, per_position.float(), torch.zeros_like(per_position, dtype=torch.float32))
    lengths = 1.0 + factors.cumprod(dim=-1).sum(-1)
    blocks = valid[..., 0]
    return 1.0 + ((lengths - 1.0) * blocks).sum() / blocks.sum().clamp(min=1)


def choose_temperatures(
    choices: tuple[float, ...], like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor | None:
    """One of `choices` for each position of like [...], uniformly; None where all are 1, or without gradients."""
    if set(choices) == {1.0} or not torch.is_grad_enabled():
        return None
    table = torch.tensor(choices, device=like.device)
    return table[torch.randint(len(choices), like.shape, generator=generator, device=like.device)]
