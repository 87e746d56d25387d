"""Teacher forcing: the target's processed law at every emitted token, and what it says of the token.

The law comes from the one sampler chain, with the request's parameters and each row's own history, so that a penalty
or a filter that the engine applies otherwise shows as a bias. The chain's preset decides what law is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof import ParameterError, SamplerChain, SamplingParams
from draftproof.audit.engine import EngineError, Generation, Request, pass_offsets
from draftproof.audit.models import Model
from draftproof.audit.scores import Floats, TokenScores, score_rows
from draftproof.sampling import History, RowParams

_CELLS_PER_CHUNK: Final = 1 << 22
_HISTORY_FIELDS: Final = (
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "bad_words",
    "dry_multiplier",
    "no_repeat_ngram_size",
    "logits_processors",
)


@dataclass(frozen=True, slots=True)
class Scored:
    """What scoring a batch gave. scores: of every token. logprob_errors [n]: reported minus own raw log-probability,
    where the engine reports any. impossible: (request's index in the batch, position) of tokens with probability 0.
    """

    scores: TokenScores
    logprob_errors: Floats
    impossible: tuple[tuple[int, int], ...]


class Scorer:
    """Scores generations against a target.

    target, draft: models; draft None: what needs the draft's law is left out. chain: decides which law is right.
    tokenizer: for bad_words and stop strings. eos_token_ids: of the target. seed: of the auditor's own randomness.
    """

    def __init__(
        self,
        target: Model,
        *,
        draft: Model | None = None,
        draft_params: SamplingParams | None = None,
        chain: SamplerChain | None = None,
        tokenizer: Any = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        if draft is not None and draft.vocab_size != target.vocab_size:
            raise ParameterError("draft", f"{draft.vocab_size} tokens", f"the target's {target.vocab_size} tokens")
        self.target, self.draft, self.tokenizer = target, draft, tokenizer
        self.chain = chain or SamplerChain()
        self.eos_token_ids = tuple(eos_token_ids)
        self._draft_params = draft_params
        self._random = np.random.default_rng(np.random.SeedSequence([seed, 0x5C02E]))
        self._rows: dict[int, tuple[SamplingParams, RowParams]] = {}

    @property
    def knows_draft(self) -> bool:
        """True if the draft's law is given with every token."""
        return self.draft is not None

    def probs(
        self,
        requests: Sequence[Request],
        outputs: Sequence[Sequence[int]],
        seen: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[Floats]:
        """The target's processed law at every output token: [n, V] for each request, summing to 1.

        seen: for each row the output tokens that its penalties and min_tokens count; those before it where left out.
        """
        return self._probs(self.target, requests, outputs, None, seen)

    def raw_logits(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The target's own logits at every output token, as the model gives them."""
        texts = [(request.prompt_ids, output) for request, output in zip(requests, outputs, strict=True)]
        step = self.target.max_batch
        return [row for start in range(0, len(texts), step) for row in self.target.logits(texts[start : start + step])]

    def score(
        self,
        requests: Sequence[Request],
        generations: Sequence[Generation],
        *,
        first_request: int = 0,
        prompt_of: Sequence[int] | None = None,
        cell_of: Sequence[int] | None = None,
    ) -> Scored:
        """Scores a batch. first_request: its number in the audit. prompt_of, cell_of: each one's prompt and setting."""
        self._check(requests, generations)
        parts, errors, impossible = [], [], []
        for group in self._groups(requests, generations):
            asked = [requests[index] for index in group]
            outputs = [generations[index].token_ids for index in group]
            logits = self.raw_logits(asked, outputs)
            laws = self._laws(logits, asked, outputs, None)
            drafts = None if self.draft is None else self._probs(self.draft, asked, outputs, self._draft_params)
            counts = [len(output) for output in outputs]
            probs = np.concatenate(laws)
            token_ids = np.array([token for output in outputs for token in output], dtype=np.int64)
            scores = score_rows(
                probs,
                token_ids,
                self._random,
                draft_probs=None if drafts is None else np.concatenate(drafts),
                previous_ids=np.array(
                    [i for r, o in zip(asked, outputs, strict=True) for i in (r.prompt_ids[-1], *o[:-1])],
                    dtype=np.int64,
                ),
                ending_ids=self.eos_token_ids,
                request=np.repeat(np.array(group) + first_request, counts),
                prompt=np.repeat(np.array([0 if prompt_of is None else prompt_of[i] for i in group]), counts),
                cell=np.repeat(np.array([0 if cell_of is None else cell_of[i] for i in group]), counts),
                position=np.concatenate([np.arange(count) for count in counts]),
                pass_offset=np.array([o for index in group for o in pass_offsets(generations[index])], dtype=np.int64),
            )
            parts.append(scores)
            impossible += [
                (int(scores.request[i]) - first_request, int(scores.position[i]))
                for i in np.flatnonzero(scores.prob <= 0.0)
            ]
            errors += [_logprob_errors(rows, generations[index]) for rows, index in zip(logits, group, strict=True)]
        return Scored(TokenScores.joined(parts), np.concatenate(errors), tuple(impossible))

    def laws_of(
        self, logits: Sequence[torch.Tensor], requests: Sequence[Request], outputs: Sequence[Sequence[int]]
    ) -> list[Floats]:
        """The processed laws [n, V] that given raw logits have."""
        return self._laws(logits, requests, outputs, None)

    def _groups(self, requests: Sequence[Request], generations: Sequence[Generation]) -> list[list[int]]:
        """Indices in chunks whose dense laws fit into memory."""
        groups: list[list[int]] = [[]]
        cells = 0
        for index, generation in enumerate(generations):
            if not generation.token_ids:
                continue
            size = len(generation.token_ids) * self.target.vocab_size
            if groups[-1] and cells + size > _CELLS_PER_CHUNK:
                groups.append([])
                cells = 0
            groups[-1].append(index)
            cells += size
        return groups if groups[0] else []

    def _probs(
        self,
        model: Model,
        requests: Sequence[Request],
        outputs: Sequence[Sequence[int]],
        params: SamplingParams | None,
        seen: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[Floats]:
        texts = [(request.prompt_ids, output) for request, output in zip(requests, outputs, strict=True)]
        step = model.max_batch
        logits = [row for start in range(0, len(texts), step) for row in model.logits(texts[start : start + step])]
        return self._laws(logits, requests, outputs, params, seen)

    def _laws(
        self,
        logits: Sequence[torch.Tensor],
        requests: Sequence[Request],
        outputs: Sequence[Sequence[int]],
        params: SamplingParams | None,
        seen: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[Floats]:
        rows: list[RowParams] = []
        histories: list[History] = []
        for index, (request, output) in enumerate(zip(requests, outputs, strict=True)):
            row = self._resolved(params or request.params)
            rows += [row] * len(output)
            histories += _histories(row, request, output, None if seen is None else seen[index])
        table = self.chain.probs(torch.cat(list(logits)), rows, histories).double().numpy()
        table /= table.sum(-1, keepdims=True)
        return np.split(table, np.cumsum([len(output) for output in outputs])[:-1])

    def _resolved(self, params: SamplingParams) -> RowParams:
        # Kept with its parameters: an id is one object's only while that object lives.
        known = self._rows.get(id(params))
        if known is None:
            row = self.chain.resolve(params, self.tokenizer, self.target.vocab_size, self.eos_token_ids)
            known = self._rows[id(params)] = (params, row)
        return known[1]

    def _check(self, requests: Sequence[Request], generations: Sequence[Generation]) -> None:
        if len(requests) != len(generations):
            raise EngineError(f"{len(generations)} generations came back for {len(requests)} requests")
        for request, generation in zip(requests, generations, strict=True):
            outside = [i for i in generation.token_ids if not 0 <= i < self.target.vocab_size]
            if outside:
                raise EngineError(
                    f"token id {outside[0]} came back and the scorer's vocabulary has {self.target.vocab_size} tokens: "
                    "the engine runs another model or another tokenizer"
                )
            if len(request.prompt_ids) == 0:
                raise ParameterError("prompts", [], "prompts of at least one token")


def greedy_params(params: SamplingParams) -> SamplingParams:
    """The same masks, bias and penalties at temperature 1 and without filters: its law orders tokens as T = 0 does."""
    return replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def _histories(
    row: RowParams, request: Request, output: Sequence[int], seen: Sequence[Sequence[int]] | None
) -> list[History]:
    if row.is_set("mirostat"):
        raise ParameterError("mirostat", row.given("mirostat"), "unset in an audit", "its laws depend on one another")
    if row.is_set("xtc_probability"):
        raise ParameterError(
            "xtc_probability", row.given("xtc_probability"), "unset in an audit", "its law depends on the engine's coin"
        )
    if not any(row.is_set(name) for name in _HISTORY_FIELDS):
        return [_EMPTY] * len(output)
    found = [row.first_history(request.prompt_ids)]
    if seen is not None:
        return [found[0].extended(tuple(tokens)) for tokens in seen]
    for token_id in output[:-1]:
        found.append(found[-1].extended((token_id,)))
    return found


_EMPTY: Final = History((0,))


def _logprob_errors(logits: torch.Tensor, generation: Generation) -> Floats:
    if generation.logprobs is None:
        return np.zeros(0)
    own = torch.log_softmax(logits.double(), -1)
    ids = torch.tensor(generation.token_ids)[:, None]
    values: NDArray[np.float64] = own.gather(1, ids)[:, 0].numpy()
    return np.array(generation.logprobs, dtype=np.float64) - values
