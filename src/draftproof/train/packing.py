"""Documents into rows of equal length, several to a row, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.train.corpus import Corpus, Document
from draftproof.train.target import Packed

_LOOK_AHEAD = 32
HELD_OUT_EVERY = 64
"""Every so manieth document is kept for evaluation, never trained on."""


class Packing:
    """Batch number i is a function of (corpus, row_length, num_rows, seed, i): a run that was interrupted goes on with
    the very batches that it would have had."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        row_length: int,
        num_rows: int,
        seed: int,
        last_turn_only: bool = False,
        held_out: bool = False,
    ) -> None:
        """last_turn_only: what the target sampled before a document's last forced token doesn't count as sampled."""
        self.last_turn_only = last_turn_only
        self.corpus, self.row_length, self.num_rows, self.seed = corpus, row_length, num_rows, seed
        every = np.arange(len(corpus))
        lengths = np.fromiter(corpus.lengths(), dtype=np.int64, count=len(corpus))
        is_held_out = (every % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) if len(corpus) >= 2 * HELD_OUT_EVERY else every < 0
        wanted = is_held_out if held_out and is_held_out.any() else ~is_held_out
        self._documents = every[wanted & (lengths >= 4)]
        self._lengths = np.minimum(lengths, row_length)
        self._epoch, self._rows = -1, []  # type: tuple[int, list[list[int]]]
        self._counts: list[int] = []

    def batch(self, index: int) -> Packed:
        """Batch `index`, on the CPU."""
        epoch, first = 0, index
        while first >= (count := self._num_batches(epoch)):
            first, epoch = first - count, epoch + 1
        rows = self._epoch_rows(epoch)
        chosen = [rows[(first * self.num_rows + row) % len(rows)] for row in range(self.num_rows)]
        return self._packed(chosen)

    def _num_batches(self, epoch: int) -> int:
        while len(self._counts) <= epoch:
            rows = len(self._epoch_rows(len(self._counts)))
            self._counts.append(max(1, rows // self.num_rows))
        return self._counts[epoch]

    def _epoch_rows(self, epoch: int) -> list[list[int]]:
        if epoch != self._epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(self._documents)
            self._epoch, self._rows = epoch, self._fill(order)
        return self._rows

    def _fill(self, order: NDArray[np.int64]) -> list[list[int]]:
        rows: list[list[int]] = []
        waiting: list[int] = []
        remaining = iter(order.tolist())
        row: list[int] = []
        room = self.row_length
        while True:
            while len(waiting) < _LOOK_AHEAD and (following := next(remaining, None)) is not None:
                waiting.append(following)
            if not waiting:
                break
            fitting = [document for document in waiting if self._lengths[document] <= room]
            if not fitting:
                rows.append(row)
                row, room = [], self.row_length
                continue
            # The oldest that fits goes first into an empty row, the longest that fits into one that is begun.
            chosen = fitting[0] if not row else max(fitting, key=lambda document: int(self._lengths[document]))
            waiting.remove(chosen)
            row.append(chosen)
            room -= int(self._lengths[chosen])
        return [*rows, row] if row else rows

    def _counted(self, document: Document) -> NDArray[np.bool_]:
        if not self.last_turn_only:
            return document.sampled
        forced = np.flatnonzero(~document.sampled)
        counted = np.ones_like(document.sampled)
        counted[: forced[-1] + 1 if len(forced) else 0] = False
        return counted

    def _packed(self, rows: list[list[int]]) -> Packed:
        shape = (self.num_rows, self.row_length)
        ids, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        documents, sampled = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
        for row, members in enumerate(rows):
            start = 0
            for number, member in enumerate(members):
                document = self.corpus[member]
                count = int(self._lengths[member])
                columns = slice(start, start + count)
                ids[row, columns], sampled[row, columns] = document.token_ids[:count], self._counted(document)[:count]
                positions[row, columns], documents[row, columns] = np.arange(count), number
                start += count
        return Packed(*(torch.from_numpy(array) for array in (ids, positions, documents, sampled)))
