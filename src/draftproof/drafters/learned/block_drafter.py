"""DFlash, DFlash 2 and DSpark draft: one forward over a block of masks gives all tokens of the draft.

Rule, for a context of L tokens, anchor position s = L - 1: bring the cache of context keys up to s, run the block,
take the logits of its first num_tokens predicting slots, and draw the tokens from left to right:
    dflash      slot by slot from its own logits
    dflash 2    among the slot's candidates, scored after the token before (`selector.py`)
    dspark      from its logits plus the Markov head's bias after the token before (`markov.py`)
    domino      from its logits plus the correction of a GRU over the block so far (`domino.py`)

Law of each token: what the target's own sampler chain makes of these logits with the request's parameters and its
history extended by the drafts before it; for DFlash 2 the softmax over the candidates at the request's temperature.
Which token is drawn from it, and with which noise: `drawing.py`.
Noise: one draw per node, as `Draft.draw` says. Why exact: law and token are born together; the verifier does the rest.

Width: a block has as many slots as its draft needs. Slots behind them, which layers that aren't causal would see, are
left out, as in vLLM: for our own drafters this costs a percent of the accepted tokens and saves their time.

Length: with a confidence threshold, the draft ends before the first slot whose calibrated probability of acceptance is
below it. That number is known before the slot's token is drawn, so no token is looked at and dropped.

Cache: only features of committed positions are kept; the block's own keys are overwritten. With a of the drafts
accepted, the next proposal adds the a + 1 positions whose features the verification has made (`context.py`).
Edge cases: the draft ends where the drafter's vocabulary holds no token that the request allows; it is empty where the
target hasn't read the context yet (the pass that prefills it). NaN raises LawError.

Sources: see `block_model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from draftproof.core import Draft, Law, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.block_model import BlockModel, block_mask
from draftproof.drafters.learned.cache import DraftCache
from draftproof.drafters.learned.context import DraftContext
from draftproof.drafters.learned.drawing import Drawing, candidate_law
from draftproof.drafters.learned.head import TargetEnds
from draftproof.drafters.learned.host_block import HostBlock
from draftproof.drafters.learned.modules import Attend
from draftproof.drafters.learned.turn import Turn
from draftproof.targets.base import TappedTarget

if TYPE_CHECKING:
    from draftproof.drafters.tree.source import LawSource

_CHUNK: Final = 512
"""Positions whose context keys are made in one go."""


class BlockDrafter:
    """See `Drafter` for what the methods promise.

    model: on the target's device, in its dtype. confidence_threshold: 0 for drafts of full length. host: runs the
    model's layers in place of the modules.
    """

    proposes_without_confidence = True

    def __init__(
        self,
        model: BlockModel,
        target: TappedTarget,
        ends: TargetEnds,
        drawing: Drawing,
        *,
        confidence_threshold: float = 0.0,
        host: HostBlock | None = None,
    ) -> None:
        self.host = host
        self.method, self.layout = model.layout.method, model.layout
        self.model, self.target, self.ends, self.drawing = model, target, ends, drawing
        self.confidence_threshold = confidence_threshold if model.confidence_head is not None else 0.0
        self.context = DraftContext(target, target.request_taps(self.layout.tap_ids))
        layer = model.backbone.layer
        self.cache = DraftCache(
            model.backbone.num_layers,
            target.num_slots,
            layer.num_kv_heads,
            layer.head_dim,
            layer.head_dim,
            dtype=target.dtype if host is None else host.dtype,
            device=target.device,
        )

    @torch.no_grad()
    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One chain for each request, of at most `layout.num_drafts` tokens; see `Drafter.propose`.

        Raises LawError for NaN logits. The same requests may then be proposed for again, each alone.
        """
        turns = [Turn(request, self._num_tokens(request)) for request in requests]
        going = [turn for turn in turns if not turn.is_done]
        if going:
            self._draw(going, self._run(going))
        return [turn.draft for turn in turns]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Nothing: the next proposal reads the context."""

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self.context.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """None: what this drafter would say costs the forward that the answer is meant to save."""
        return None

    def _run(self, turns: Sequence[Turn]) -> torch.Tensor:
        """[turns, slots, hidden]; the turns' rows are set."""
        requests, first = [turn.request for turn in turns], self.layout.first_slot
        self.cache_context(requests)
        for row, turn in enumerate(turns):
            turn.row = row
        return self.block_hidden(requests, [first + turn.num_tokens for turn in turns])

    def _num_tokens(self, request: DraftRequest) -> int:
        return min(request.num_tokens, request.deepest(self.layout.num_drafts)) if self.context.is_ready(request) else 0

    @torch.no_grad()
    def cache_context(self, requests: Sequence[DraftRequest]) -> None:
        """Append the context keys of positions that are committed and not cached yet."""
        starts, missing = [], []
        for request in requests:
            start = self.context.keep_common(request.slot, request.context_ids, len(request.context_ids) - 1)
            starts.append(start)
            missing.append(self.context.features(request, start))
        done, longest = 0, max(len(rows) for rows in missing)
        while done < longest:
            width = min(_CHUNK, longest - done)
            rows = [index for index, taps in enumerate(missing) if len(taps) > done]
            taps = torch.nn.utils.rnn.pad_sequence([missing[i][done : done + width] for i in rows], batch_first=True)
            begins = [starts[index] + done for index in rows]
            self._append([requests[index].slot for index in rows], begins, taps)
            done += width
        for request, start in zip(requests, starts, strict=True):
            self.context.extend(request.slot, request.context_ids[start:-1])

    def _append(self, slots: list[int], starts: list[int], taps: torch.Tensor) -> None:
        features = self.model.context(taps.to(self.target.dtype))
        width = features.shape[1]
        positions = torch.tensor(starts, device=features.device)[:, None] + torch.arange(width, device=features.device)
        rotation = self.model.rotation(features, positions)
        self.cache.prepare(slots, starts, width, max(starts) + width)
        if self.host is not None:
            self.host.append(features, rotation, self.cache)
            return
        for index, layer in enumerate(self.model.layers):
            self.cache.update(*layer.self_attn.keys_values(features, rotation), index)  # type: ignore[operator, union-attr]

    def block_hidden(self, requests: Sequence[DraftRequest], widths: Sequence[int] | None = None) -> torch.Tensor:
        """[rows, n, hidden] of the block that begins at each context's newest token; its context is cached.

        widths: slots of each block, the anchor's included, of which n is the most; None for `layout.block_size`. What
        stands behind a narrower block's slots is not to be used.
        """
        layout, device = self.layout, self.ends.table.device
        slots = [request.slot for request in requests]
        starts = [len(request.context_ids) - 1 for request in requests]
        widths = [layout.block_size] * len(slots) if widths is None else widths
        width = max(widths)
        ids = torch.full((len(slots), width), layout.mask_token_id, device=device)
        ids[:, 0] = torch.tensor([request.context_ids[-1] for request in requests], device=device)
        block = self.model.embed(self.ends.table, ids)
        begins = torch.tensor(starts, device=device)
        positions = begins[:, None] + torch.arange(width, device=device)
        key_length = max(starts) + width
        self.cache.prepare(slots, starts, width, key_length)
        kinds = list(zip(self.model.backbone.windows, layout.causal, strict=True))
        dtype, ends = self.cache.keys.dtype, torch.tensor(widths, device=device)
        made: dict[tuple[int | None, bool], torch.Tensor | None] = {
            kind: None
            if len(slots) == 1 and kind == (None, False)
            else block_mask(begins, ends, key_length, *kind, dtype)
            for kind in set(kinds)
        }
        masks = [made[kind] for kind in kinds]
        rotation = self.model.rotation(block, positions)
        if self.host is not None:
            return self.host.hidden(block, rotation, self.cache, masks)
        attends: list[Attend] = [self.attend(index, mask) for index, mask in enumerate(masks)]
        hidden: torch.Tensor = self.model(block, rotation, attends)
        return hidden

    def attend(self, index: int, mask: torch.Tensor | None) -> Attend:
        """How layer `index` writes its keys and values into the cache, as it was prepared, and reads them."""

        def attend(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
            return *self.cache.update(keys, values, index), mask

        return attend

    def _draw(self, turns: Sequence[Turn], hidden: torch.Tensor) -> None:
        first = self.layout.first_slot
        hidden = hidden[:, first : first + max(turn.num_tokens for turn in turns)]
        logits = self.model.scaled(self.ends.logits(hidden))
        for index in range(hidden.shape[1]):
            going = [turn for turn in turns if not turn.is_done]
            if not going:
                return
            rows = slice(None) if len(going) == len(hidden) else [turn.row for turn in going]
            self._draw_slot(index, going, hidden[rows, index], logits[rows, index])

    def law_source(self) -> LawSource:
        """Trees' laws from one pass: conditionals of a slot after the token before it."""
        from draftproof.drafters.learned.block_source import BlockSource

        return BlockSource(self)

    def _draw_slot(self, index: int, turns: list[Turn], hidden: torch.Tensor, logits: torch.Tensor) -> None:
        confidence, markov = self.model.confidence_head, self.model.markov_head
        if confidence is not None and self.confidence_threshold > 0:
            inputs = hidden
            if self.layout.confidence_with_markov and markov is not None:
                previous = torch.tensor([turn.previous_id for turn in turns], device=hidden.device)
                inputs = torch.cat((hidden, markov.embed(previous)), dim=-1)
            sure = confidence.probability(inputs, index) >= self.confidence_threshold
            for turn, go_on in zip(turns, sure.tolist(), strict=True):
                if not go_on:
                    turn.stop()
        laws = self.slot_laws(index, turns, hidden, logits)
        for turn, law in zip(turns, laws, strict=True):
            if turn.is_done:
                continue
            if law is None:
                turn.stop()
            else:
                turn.take(self.drawing.draw(turn.draft, law, turn.request), law)

    def slot_laws(self, index: int, turns: list[Turn], hidden: torch.Tensor, logits: torch.Tensor) -> list[Law | None]:
        """The law of slot `index` after each turn's draft, whose recurrent state is moved on.

        hidden [turns, hidden], logits [turns, V]: the slot's own. None where masks leave no token of the drafter's.
        """
        previous = torch.tensor([turn.previous_id for turn in turns], device=hidden.device)
        markov, selector = self.model.markov_head, self.model.candidate_selector
        if markov is not None:
            embedded = markov.embed(previous)
            states = [turn.state if turn.state is not None else markov.start(embedded[0]) for turn in turns]
            bias, after = markov.step(embedded, hidden, torch.stack(states))
            logits = logits + bias
            for turn, state in zip(turns, after, strict=True):
                turn.state = state
        if self.model.domino is not None:
            logits = self._corrected(index, turns, previous, hidden, logits)
        if selector is not None:
            kept, ids = selector.candidates(logits)
            scores = selector.scores(kept, ids, hidden, previous)
            return [candidate_law(turn, row, own) for turn, row, own in zip(turns, scores, ids, strict=True)]
        return self._row_laws(turns, logits)

    def _row_laws(self, turns: Sequence[Turn], logits: torch.Tensor) -> list[Law | None]:
        return self.drawing.laws(self.method, turns, logits, vocab=self.ends.vocab)

    def _corrected(
        self, index: int, turns: list[Turn], previous: torch.Tensor, hidden: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        head = self.model.domino
        if head is None:
            return logits
        states = [turn.state if turn.state is not None else head.start(1, hidden)[0] for turn in turns]
        after = head.read(self.model.embed(self.ends.table, previous), torch.stack(states))
        for turn, state in zip(turns, after, strict=True):
            turn.state = state
        if index + self.layout.first_slot < head.first_slot:
            return logits
        return logits + head.correction(hidden, after)


class FactorisedDrafter(BlockDrafter):
    """DFlash without a head that looks back: a slot's law doesn't depend on the tokens before it, so trees grow from
    one pass."""

    @torch.no_grad()
    def depth_laws(self, requests: Sequence[DraftRequest]) -> list[list[Law]]:
        """For each request the laws of its next tokens, by depth; [] where nothing can be drafted.

        Masks of a grammar are those of the first depth: what stands deeper is tested by the target alone.
        """
        turns = [Turn(request, self._num_tokens(request)) for request in requests]
        going = [turn for turn in turns if not turn.is_done]
        found: dict[int, list[Law]] = {}
        if going:
            first = self.layout.first_slot
            hidden = self._run(going)[:, first : first + max(turn.num_tokens for turn in going)]
            logits = self.model.scaled(self.ends.logits(hidden))
            for turn in going:
                found[turn.request.slot] = self._depths(turn, logits[turn.row])
        return [found.get(request.slot, []) for request in requests]

    def _depths(self, turn: Turn, logits: torch.Tensor) -> list[Law]:
        laws: list[Law] = []
        for depth in range(turn.num_tokens):
            [law] = self._row_laws([turn], logits[depth : depth + 1])
            if law is None:
                break
            laws.append(law)
            turn.grammar = None
        return laws
