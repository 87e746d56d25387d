"""Laws for trees over the few tokens that matter, from a block whose slots add a bias after the token before.

A tree that is verified as point masses needs its laws to rank candidates, for nothing else: what is emitted doesn't
depend on them. So of each slot a list of tokens is kept, those of the largest weight, times the noise's power where the
tree looks at it, without the bias. A node's law is over the list of its slot, with the bias of the node's own token;
all other tokens count in its sum without a bias. So a node costs a product of `LENGTH` rows in place of the whole
vocabulary's.
Where a request's law is more than a softmax at its temperature (filters, penalties, masks, grammars) there are no
lists: see `BlockSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.core import Law, Sparse
from draftproof.drafters.learned.markov import MarkovHead
from draftproof.drafters.tree.scores import NoiseScores, largest
from draftproof.drafters.tree.source import Bounds

LENGTH: Final = 128
"""Tokens of a list."""
REACH: Final = 10.0
"""Nats below a slot's likeliest token, at the temperature: tokens further down are no candidates, and their noise isn't
computed. Hundreds of 16,384 are left."""

Powers = Callable[[int, NDArray[np.int64]], NDArray[np.float32] | None]
"""By slot of the block and token ids [D]: what the noise multiplies their weights by; None where it isn't looked at."""


class Bias:
    """A vanilla Markov head's tables on the host, in float32."""

    def __init__(self, head: MarkovHead) -> None:
        self._table = head.markov_w1.weight
        product: Any = head.markov_w2
        # In 8 bits it reads a quarter of what `rows` are.
        self._whole = None if hasattr(product, "weight") else product
        weight = product.weight.detach() if self._whole is None else product.dense_weight()
        self.rows = weight.float().cpu()
        """[D, rank]"""
        self._scratch: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        self._host: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    @property
    def host(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """`rows`, and what a token [V, rank] is multiplied with them as."""
        if self._host is None:
            self._host = self.rows.numpy(), self._table.detach().float().cpu().numpy()
        return self._host

    def scratch(self, num_slots: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Memory of `grow`, used again by its next call."""
        if self._scratch is None or len(self._scratch[1]) < num_slots:
            size, rank = self.rows.shape
            self._scratch = np.zeros(size + 1, dtype=np.int32), np.zeros((num_slots, LENGTH, rank), dtype=np.float32)
        return self._scratch

    def of_all(self, token_id: int) -> NDArray[np.float32]:
        """[D] the bias after a token."""
        embedded = self._table[[token_id]].float().cpu()
        bias = embedded @ self.rows.T if self._whole is None else self._whole(embedded)
        found: NDArray[np.float32] = bias[0].numpy()
        return found

    def after(self, token_ids: Sequence[int], rows: torch.Tensor) -> NDArray[np.float32]:
        """[n, K] the bias after each of the tokens, of K of `rows`.

        A product of PyTorch's: NumPy's has threads of its own, which go on waiting for work on the processors that
        the target's next products want.
        """
        found: NDArray[np.float32] = (self._table[list(token_ids)].float().cpu() @ rows.T).numpy()
        return found


@dataclass(frozen=True, slots=True)
class _List:
    """ids [K], ascending. scores [K]: over the temperature, less the slot's largest. rows [K, rank]: of the bias. rest:
    what all others weigh."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    rows: torch.Tensor
    rest: float


class ShortLists:
    """One draft's slots. logits [n, D] over the token ids [D], ascending; temperature above 0."""

    def __init__(
        self,
        logits: NDArray[np.float32],
        ids: NDArray[np.int64],
        temperature: float,
        bias: Bias,
        powers: Powers,
    ) -> None:
        self._logits, self._ids, self._temperature, self._bias, self._powers = logits, ids, temperature, bias, powers
        self._lists: dict[int, _List] = {}

    def root(self, token_id: int) -> Sparse:
        """The law of the first slot, over all of the drafter's tokens within reach. token_id: the context's newest."""
        scores = self._logits[0] + self._bias.of_all(token_id)
        weights, likely = self._likely(scores)
        return Sparse(self._ids[likely], weights[likely] / weights.sum())

    def after(self, slot: int, token_ids: Sequence[int]) -> list[Law]:
        """The laws of a slot, the second or a later one, after each of the tokens."""
        kept = self._lists.get(slot)
        if kept is None:
            kept = self._lists[slot] = self._made(slot)
        bias = self._bias.after(token_ids, kept.rows)
        scores = kept.scores + bias / np.float32(self._temperature)
        most = np.maximum(scores.max(axis=1, keepdims=True), np.float32(0.0))
        weights = np.exp(scores - most)
        totals = weights.sum(axis=1, keepdims=True) + np.float32(kept.rest) * np.exp(-most)
        return [Sparse(kept.ids, row) for row in weights / totals]

    def grown(
        self, grow: Any, noise: Any, scores: NoiseScores, bounds: Bounds, root: Sparse
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """As grown_code.py's `grow`, up to a node for each of `bounds.least`. root: what `root` has given."""
        found: tuple[NDArray[np.int64], NDArray[np.float64]] = grow(
            self._logits, self._ids, *self._bias.host, 1.0 / self._temperature, REACH,
            LENGTH, float(scores.sharpness), noise, scores.num_children, len(bounds.least), *bounds,
            root.token_ids, root.probs, *self._bias.scratch(len(self._logits)),
        )  # fmt: skip
        return found

    def _made(self, slot: int) -> _List:
        scores = self._logits[slot].copy()
        weights, likely = self._likely(scores)
        powers = self._powers(slot, self._ids[likely])
        kept = weights[likely] if powers is None else weights[likely] * powers
        places = likely[np.sort(largest(kept, LENGTH))]
        rest = max(float(weights.sum()) - float(weights[places].sum()), 0.0)
        rows = self._bias.rows.index_select(0, torch.from_numpy(places))
        return _List(self._ids[places], scores[places], rows, rest)

    def _likely(self, scores: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Weights [D], and the places within reach. scores [D]: divided by the temperature in place, the largest 0."""
        scores /= np.float32(self._temperature)
        scores -= scores.max()
        return np.exp(scores), np.flatnonzero(scores > -REACH)
