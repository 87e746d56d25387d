"""Rules for one chain: token-wise rejection, block verification, the target's own sample; and several paths' best.

`laws` makes a chain's laws: [A, V] for each depth, from the tokens so far. An autoregressive drafter's are rows of Q; a
factorised one's are powers of a matrix, whatever was drawn.
Sources: Leviathan et al. 2211.17192; Sun et al. 2403.10444; several paths: `verify/multi_path_block.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftproof.bench.simulation.runs import Ids, Rule
from draftproof.bench.simulation.worlds import Rows, Sequences, draw

Laws = Callable[[Sequences, Ids, Ids, int], Rows]
"""(sequences, first newest tokens [A], tokens before the slot [A], depth) -> [A, V]."""


def autoregressive(many: Sequences, first: Ids, previous: Ids, depth: int) -> Rows:
    """The drafter's row after the token before."""
    rows: Rows = many.world.draft[previous]
    return rows


def rejection(length: int, laws: Laws = autoregressive) -> Rule:
    """Token-wise rejection of a chain of `length` tokens."""

    def rule(many: Sequences, rows: Ids, positions: Ids, newest: Ids) -> tuple[Ids, Ids]:
        emitted, last = np.zeros(len(rows), dtype=np.int64), newest.copy()
        going = np.ones(len(rows), dtype=bool)
        for depth in range(length):
            q, p = laws(many, newest, last, depth), many.world.target[last]
            token_ids = draw(q, many.source)
            index = np.arange(len(rows))
            accepted = many.source.random(len(rows)) * q[index, token_ids] < p[index, token_ids]
            left = np.maximum(p - q, 0)
            left = np.where(left.sum(axis=1, keepdims=True) > 0, left, p)
            next_ids = np.where(accepted, token_ids, draw(left, many.source))
            last = np.where(going, next_ids, last)
            emitted += going
            going &= accepted
        last = np.where(going, draw(many.world.target[last], many.source), last)
        return emitted + going, last

    return rule


def keyed_chain(length: int, noise_weight: float, laws: Laws = autoregressive) -> Rule:
    """argmax(log q + zeta * G) along the chain, kept while it is the target's own token."""

    def rule(many: Sequences, rows: Ids, positions: Ids, newest: Ids) -> tuple[Ids, Ids]:
        accepted, last = np.zeros(len(rows), dtype=np.int64), newest.copy()
        going = np.ones(len(rows), dtype=bool)
        for depth in range(length):
            with np.errstate(divide="ignore"):
                scores = np.log(laws(many, newest, last, depth))
            drafted = (scores + noise_weight * many.gumbel[rows, positions + depth]).argmax(axis=1)
            going &= drafted == many.token_ids[rows, positions + depth]
            accepted += going
            last = drafted
        return accepted + 1, many.token_ids[rows, positions + accepted]

    return rule


def block(length: int, laws: Laws = autoregressive) -> Rule:
    """Block verification of a chain of `length` tokens."""
    return multi_path(1, length, laws)


def multi_path(num_paths: int, length: int, laws: Laws = autoregressive) -> Rule:
    """Of `num_paths` independent paths the best one is followed, and verified as a block."""

    def rule(many: Sequences, rows: Ids, positions: Ids, newest: Ids) -> tuple[Ids, Ids]:
        index = np.arange(len(rows))
        alive = np.ones((len(rows), num_paths), dtype=bool)
        followed = np.empty((len(rows), length), dtype=np.int64)
        selection = np.empty((len(rows), length, many.world.target.shape[0]))
        before = newest
        for depth in range(length):
            q, p = laws(many, newest, before, depth), many.world.target[before]
            # Dead paths' tokens are drawn too, and not looked at.
            token_ids = np.stack([draw(q, many.source) for _ in range(num_paths)], axis=1)
            ratios = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
            rank = ratios.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
            ranks = np.where(alive, rank[index[:, None], token_ids], -1)
            followed[:, depth] = token_ids[index, ranks.argmax(axis=1)]
            selection[:, depth] = _best_of(q, rank, alive.sum(axis=1))
            alive &= token_ids == followed[:, depth : depth + 1]
            before = followed[:, depth]
        return _verified(many, newest, followed, selection)

    return rule


def _best_of(q: Rows, rank: Ids, num_alive: Ids) -> Rows:
    """[A, V] the law of the token of the largest rank among `num_alive` draws of q."""
    order = rank.argsort(axis=1)
    below = np.take_along_axis(q, order, axis=1).cumsum(axis=1)
    powers = (below / below[:, -1:]) ** num_alive[:, None]
    shares = np.diff(powers, axis=1, prepend=0.0)
    found: Rows = np.take_along_axis(shares, rank, axis=1)
    return found


def _verified(many: Sequences, newest: Ids, token_ids: Ids, laws: Rows) -> tuple[Ids, Ids]:
    """Block verification of chains [A, n] that were drawn from laws [A, n, V]."""
    num_rows, length = token_ids.shape
    index = np.arange(num_rows)
    befores = np.concatenate([newest[:, None], token_ids], axis=1)
    target = many.world.target[befores]
    masses = np.ones((num_rows, length + 1))
    for depth in range(length):
        drawn = token_ids[:, depth]
        ratio = target[index, depth, drawn] / laws[index, depth, drawn]
        masses[:, depth + 1] = np.minimum(1.0, masses[:, depth] * ratio)
    residuals = np.maximum(masses[:, :length, None] * target[:, :length] - laws, 0)
    sums = residuals.sum(axis=2)
    whole = sums + 1 - masses[:, :length]
    thresholds = np.ones((num_rows, length + 1))
    np.divide(sums, whole, out=thresholds[:, :length], where=whole > 0)
    thresholds[:, length] = masses[:, length]
    thresholds[:, 0] = 1.0
    passes = many.source.random((num_rows, length + 1)) < thresholds
    passes[:, 0] = True
    accepted = length - passes[:, ::-1].argmax(axis=1)
    after = np.concatenate([residuals, target[:, length:]], axis=1)[index, accepted]
    after = np.where(after.sum(axis=1, keepdims=True) > 0, after, target[index, accepted])
    return accepted + 1, draw(after, many.source)
