"""EAGLE-3 and MTP draft: one small forward per token, each reading the hidden state of the one before.

Rule, for a context of L tokens: entry i reads the target's feature of position i and token i + 1, for all i up to
L - 2; the last one's logits give the first drafted token. Entry L - 1 reads that entry's own hidden state and the
first drafted token, and so on.

Law of each token: what the target's own sampler chain makes of the logits, with the request's parameters and its
history extended by the drafts before it; over the mapped tokens where the drafter has a reduced vocabulary.
Noise: one draw per node, as `Draft.draw` says. Why exact: law and token are born together; the verifier does the rest.

Cache: entries made from drafted tokens are dropped after every draft. The next proposal writes the entries of the
accepted positions anew, from the target's true features, so the cache is always that of a fresh prefill (T58, T63).
Edge cases: a context of one token has no entry, so nothing is drafted; nor is it where the target hasn't read the
context yet (the pass that prefills it). The draft ends where the drafter's vocabulary holds no token that the request
allows. NaN raises LawError.

On a CUDA device forwards over a context come in few sizes, rounded up: libraries plan each anew, which takes longer
than to run it. What is added is written behind the context, where nothing is read, and masked.

Sources: `eagle3.py`, `mtp.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch.nn.functional import pad

from draftproof.core import Draft, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.cache import DraftCache
from draftproof.drafters.learned.context import DraftContext
from draftproof.drafters.learned.drawing import Drawing
from draftproof.drafters.learned.eagle3 import ChainModel
from draftproof.drafters.learned.head import TargetEnds
from draftproof.drafters.learned.turn import Turn
from draftproof.targets.base import TappedTarget

if TYPE_CHECKING:
    from draftproof.drafters.tree.source import LawSource

_CHUNK: Final = 512
"""Entries of one forward."""
_KEY_STEP: Final = 256
"""Columns that are read, where they are rounded up."""


class ChainDrafter:
    """See `Drafter` for what the methods promise. model: on the target's device, in its dtype."""

    proposes_without_confidence = True

    def __init__(self, model: ChainModel, target: TappedTarget, ends: TargetEnds, drawing: Drawing) -> None:
        self.method, self.layout = model.layout.method, model.layout
        self.model, self.target, self.ends, self.drawing = model, target, ends, drawing
        self.context = DraftContext(target, target.request_taps(self.layout.tap_ids))
        self.cache = DraftCache(
            model.num_cache_layers,
            target.num_slots,
            model.cache_heads,
            *model.cache_dims,
            dtype=target.dtype,
            device=target.device,
        )
        self._rounds = target.device.type == "cuda"

    @torch.no_grad()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One chain for each request; see `Drafter.propose`.

        Raises LawError for NaN logits. The same requests may then be proposed for again, each alone.
        """
        turns = [Turn(request, self._num_tokens(request)) for request in requests]
        going = [turn for turn in turns if not turn.is_done]
        if going:
            self._read_context(going)
            self._score(going)
        while going:
            self._draw(going)
            going = [turn for turn in going if not turn.is_done]
            if going:
                self._extend(going)
        return [turn.draft for turn in turns]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Nothing: the next proposal reads the context."""

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self.context.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """None: what this drafter would say costs the forward that the answer is meant to save."""
        return None

    def _num_tokens(self, request: DraftRequest) -> int:
        return request.num_tokens if len(request.context_ids) >= 2 and self.context.is_ready(request) else 0

    def _read_context(self, turns: Sequence[Turn]) -> None:
        """Write the entries of committed positions that aren't there, the last one in any case for its logits."""
        starts, features, following = [], [], []
        for turn in turns:
            context_ids = turn.request.context_ids
            # Entry i holds token i + 1: it is kept as long as the context up to there is the same.
            common = self.context.keep_common(turn.request.slot, context_ids, len(context_ids) - 1)
            start = max(0, common - 1)
            starts.append(start)
            features.append(self.context.features(turn.request, start))
            following.append(torch.tensor(list(context_ids[start + 1 :]), device=self.target.device))
        done, longest = 0, max(len(rows) for rows in features)
        while done < longest:
            width = min(_CHUNK, longest - done)
            rows = [index for index, taps in enumerate(features) if len(taps) > done]
            parts = [slice(done, min(done + width, len(features[index]))) for index in rows]
            hidden = self.model.features(
                _padded([features[i][p] for i, p in zip(rows, parts, strict=True)], self.target)
            )
            ids = _padded_ids([following[i][p] for i, p in zip(rows, parts, strict=True)])
            begins = [starts[index] + done for index in rows]
            if extra := self._rounded(width) - width:
                ids, hidden = pad(ids, (0, extra)), pad(hidden, (0, 0, 0, extra))
            recycled, outputs = self._forward([turns[index].request.slot for index in rows], begins, ids, hidden)
            for row, (index, part) in enumerate(zip(rows, parts, strict=True)):
                last = part.stop - part.start - 1
                turns[index].hidden, turns[index].logits = recycled[row, last], outputs[row, last]
            done += width
        for turn in turns:
            slot, context_ids = turn.request.slot, turn.request.context_ids
            self.context.extend(slot, context_ids[self.context.num_cached(slot) :])

    def _extend(self, turns: Sequence[Turn]) -> None:
        """The entry of the token just drafted, from the entry before's own hidden state."""
        starts = [len(turn.request.context_ids) - 2 + len(turn.draft) for turn in turns]
        ids = torch.tensor([turn.draft.token_ids[-1:] for turn in turns], device=self.target.device)
        hidden = torch.stack([turn.hidden for turn in turns if turn.hidden is not None])[:, None]
        recycled, outputs = self._forward([turn.request.slot for turn in turns], starts, ids, hidden)
        for row, turn in enumerate(turns):
            turn.hidden, turn.logits = recycled[row, 0], outputs[row, 0]
        self._score(turns)

    @torch.no_grad()
    def cache_context(self, requests: Sequence[DraftRequest]) -> None:
        """Write the entries of committed positions that aren't there; contexts have two tokens or more."""
        self._read_context([Turn(request, 0) for request in requests])

    def law_source(self) -> LawSource:
        """Trees' laws: a forward for each round, over the new nodes alone."""
        from draftproof.drafters.learned.chain_source import ChainSource

        return ChainSource(self)

    def _forward(
        self,
        slots: list[int],
        starts: list[int],
        token_ids: torch.Tensor,
        hidden: torch.Tensor,
        tree: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries starts[r], starts[r] + 1, … of slots[r] from token_ids [rows, n] and hidden [rows, n, hidden].

        tree: positions [rows, n] and which columns each entry sees [rows, n, max(starts) + n]; None for a chain.
        """
        rows, width = token_ids.shape
        device, dtype = hidden.device, hidden.dtype
        key_length = max(starts) + width
        if tree is None:
            key_length = -(-key_length // _KEY_STEP) * _KEY_STEP if self._rounds else key_length
            positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
            seen = torch.arange(key_length, device=device) <= positions[:, :, None]
        else:
            positions, seen = tree
        mask = torch.zeros(rows, width, key_length, dtype=dtype, device=device)
        mask = mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
        self.cache.prepare(slots, starts, width, key_length)
        embedded = nn_embedding(token_ids, self.ends.table)
        recycled, outputs = self.model(embedded, hidden, positions, self.cache, mask)
        return recycled, outputs

    def _rounded(self, width: int) -> int:
        return 1 << (width - 1).bit_length() if self._rounds else width

    def _score(self, turns: Sequence[Turn]) -> None:
        logits = self.ends.logits(torch.stack([turn.logits for turn in turns if turn.logits is not None]))
        for row, turn in enumerate(turns):
            turn.logits = logits[row]

    def _draw(self, turns: Sequence[Turn]) -> None:
        rows = torch.stack([turn.logits for turn in turns if turn.logits is not None])
        laws = self.drawing.laws(self.method, turns, rows, vocab=self.ends.vocab)
        for turn, law in zip(turns, laws, strict=True):
            if law is None:
                turn.stop()
            else:
                turn.take(self.drawing.draw(turn.draft, law, turn.request), law)


def nn_embedding(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of the target's raw embedding table."""
    return torch.nn.functional.embedding(token_ids, table)


def _padded(rows: list[torch.Tensor], target: TappedTarget) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(target.dtype)


def _padded_ids(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
