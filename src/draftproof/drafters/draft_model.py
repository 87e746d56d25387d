"""A smaller language model drafts, one token per forward.

Rule: token j of the draft is drawn from the drafter's law after (context, drafts 0..j-1), which the
target's own sampler chain makes from the drafter's logits, with the request's parameters and its history
extended by those drafts.

Inputs: context_ids [L], num_tokens. Output: a chain of 0 to num_tokens nodes, each with its law.
The law is raised to request.law_power first (`sharpened`): that is then the one that the token is drawn from.
Noise: one draw per node. With share_target_field the target's field at the node's own position, so that the
two models choose alike wherever their laws are alike; else Key(DRAFT, L, node), fresh in every pass.
Why exact: law and token are born together in `Draft.draw`; the verifier does the rest.

Cache, with k drafted and a of them accepted: drafting leaves L + k - 1 entries (the last draft is not run
through the drafter). The next context has L + a + 1 tokens, of which all but the newest belong in the cache:
`observe` drops max(k - 1 - a, 0) entries. With a = k the last draft is missing; it goes through the drafter
together with the newest token, in the next draft's first forward. Rewinding is arithmetic on lengths.

Vocabularies: the law has the target's width. Columns beyond it are cut before the chain sees them, so no
such id is drafted; ids that the drafter doesn't have get probability 0, and are reached by the target
alone. A context that holds such an id can't be read by the drafter: it drafts nothing from there on.
Edge cases: the drafter's model length reached, or every id that it has masked: the draft ends there.
NaN logits raise LawError.

Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318; shared Gumbel noise: Daliri et al. 2408.07978.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from draftproof.core import Draft, Law, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.same_tokenizer import check_same_tokenizer
from draftproof.drafters.sharpened import sharpened
from draftproof.errors import LawError, ParameterError
from draftproof.grammar import GrammarCursor
from draftproof.sampling import History, SamplerChain
from draftproof.targets.base import ScoreRequest, Target

_MOST_SCORED: Final = 2
"""More missing tokens than the newest and one draft are prefilled, without logits."""


@dataclass(slots=True)
class Turn:
    """One request while its draft grows: where its next law comes from."""

    request: DraftRequest
    draft: Draft
    history: History
    next_ids: tuple[int, ...]
    num_tokens: int
    grammar: GrammarCursor | None

    @property
    def slot(self) -> int:
        return self.request.slot

    @property
    def is_done(self) -> bool:
        return len(self.draft) >= self.num_tokens


class DraftModelDrafter:
    """Drafts with a model behind the Target protocol, which has a slot for each of the engine's slots.

    model: the smaller model, with slots of its own: nothing else may use them.
    chain: the target's sampler chain.
    target_tokenizer, draft_tokenizer: compared here; TokenizerMismatchError if one text could mean two lists
        of ids. None for both, for models that have no text.
    """

    method = "draft_model"
    proposes_without_confidence = True

    def __init__(self, model: Target, chain: SamplerChain, *, target_tokenizer: Any, draft_tokenizer: Any) -> None:
        if (target_tokenizer is None) != (draft_tokenizer is None):
            raise ParameterError(
                "draft_tokenizer", draft_tokenizer, "given where target_tokenizer is", "pass both, or None for both"
            )
        if target_tokenizer is not None:
            check_same_tokenizer(target_tokenizer, draft_tokenizer)
        self.model = model
        self.chain = chain
        self.cached_ids: dict[int, list[int]] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One chain for each request; see `Drafter.propose`.

        Raises LawError, which names the drafter, its slot and the position, if the drafter's logits are no
        numbers. The same requests may then be proposed for again, each alone.
        """
        turns = [self.begin(request) for request in requests]
        while going := [turn for turn in turns if not turn.is_done]:
            self._draw_one_each(going)
        return [turn.draft for turn in turns]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Drop the cache entries that are not in the context."""
        if slot in self.cached_ids:
            self.keep_common(slot, context_ids)

    def release(self, slot: int) -> None:
        """Empty the slot."""
        if self.cached_ids.pop(slot, None) is not None:
            self.model.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """None: what this drafter would say costs the forward that the answer is meant to save."""
        return None

    def begin(self, request: DraftRequest, most_scored: int = _MOST_SCORED) -> Turn:
        """The request's turn, its slot up to date: `next_ids` are what is missing in the cache, the newest last.

        More than `most_scored` missing tokens are prefilled, all but the newest. num_tokens is 0 where nothing can be
        drafted.
        """
        context_ids, start = request.context_ids, len(request.context_ids)
        turn = Turn(request, Draft.empty(start), request.history, (), 0, request.grammar)
        if request.num_tokens == 0 or not 1 <= start <= self.model.max_model_len:
            return turn
        num_cached = self.keep_common(request.slot, context_ids)
        missing = list(context_ids[num_cached:])
        if not all(0 <= token_id < self.model.vocab_size for token_id in missing):
            return turn
        if len(missing) > min(most_scored, self.model.room(request.slot)):
            self.model.prefill(request.slot, missing[:-1])
            self.cached_ids[request.slot].extend(missing[:-1])
            missing = missing[-1:]
        turn.next_ids = tuple(missing)
        turn.num_tokens = request.num_tokens
        return turn

    def keep_common(self, slot: int, context_ids: Sequence[int]) -> int:
        """Rewind the slot to what it shares with the context without its newest token; how many entries stay."""
        cached = self.cached_ids.setdefault(slot, [])
        most = min(len(cached), len(context_ids) - 1)
        expected = list(context_ids[:most])
        if cached[:most] != expected:
            most = next(index for index in range(most) if cached[index] != expected[index])
        if most < len(cached):
            self.model.rewind(slot, most)
            del cached[most:]
        return most

    def _draw_one_each(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            if len(turn.next_ids) > self.model.room(turn.slot):
                turn.num_tokens = len(turn.draft)
        turns = [turn for turn in turns if not turn.is_done]
        if not turns:
            return
        scores = self.model.score([ScoreRequest(turn.slot, turn.next_ids) for turn in turns])
        for turn in turns:
            self.cached_ids[turn.slot].extend(turn.next_ids)
        for turn, law in zip(turns, self.laws(turns, [score[-1] for score in scores]), strict=True):
            if law is None:
                turn.num_tokens = len(turn.draft)
                continue
            request = turn.request
            drawn_from = sharpened(law, request.law_power)
            turn.draft = turn.draft.draw(drawn_from, request.noise, share_target_field=request.share_target_field)
            turn.next_ids = turn.draft.token_ids[-1:]
            try:
                turn.history = turn.history.extended(turn.next_ids, (law,))
            except LawError:
                turn.num_tokens = len(turn.draft)
                continue
            turn.grammar = None if turn.grammar is None else turn.grammar.after_all(turn.next_ids)

    def laws(self, turns: Sequence[Turn], logits: Sequence[torch.Tensor]) -> list[Law | None]:
        """One law per turn; None where the request's masks and processors leave none of the drafter's ids."""
        rows = torch.stack([self._fitted(turn, row) for turn, row in zip(turns, logits, strict=True)])
        params = [turn.request.row_params for turn in turns]
        histories, noise = [turn.history for turn in turns], [turn.request.noise for turn in turns]
        masks = [None if turn.grammar is None else turn.grammar.mask for turn in turns]
        found = self.chain.laws(rows, params, histories, masks=masks, noise=noise, errors="return")
        # The drafter's logits were looked at already: errors are the request's masks and processors.
        return [None if isinstance(law, LawError) else law for law in found]

    def _fitted(self, turn: Turn, logits: torch.Tensor) -> torch.Tensor:
        """[target's V] the row without ids that the target lacks, and -inf at ids that the drafter lacks."""
        own = logits[: self.model.vocab_size]
        if torch.isnan(own).any() or torch.isposinf(own).any() or not torch.isfinite(own).any():
            raise self._error(turn, "the logits hold NaN or infinity; check the draft model's weights and dtype")
        num_missing = turn.request.row_params.vocab_size - len(own)
        if num_missing <= 0:
            return own[: turn.request.row_params.vocab_size]
        return torch.nn.functional.pad(own, (0, num_missing), value=-torch.inf)

    def _error(self, turn: Turn, message: str) -> LawError:
        return LawError(
            f"drafter draft_model, slot {turn.slot}: {message}", position=turn.draft.start + len(turn.draft)
        )
