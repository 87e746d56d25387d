"""Engines and scorers over tables, for the audit's own tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof.audit.engine import Generation, Request
from draftproof.audit.models import TableModel
from draftproof.audit.mutants.sampler import Emission, ExactSampler, instance_tables
from draftproof.audit.scorer import Scorer
from draftproof.audit.scores import Floats, TokenScores, score_rows

EIGHT, EIGHT_DRAFT = instance_tables("random")


def scores_of(emission: Emission, target: Floats, draft: Floats, seed: int = 0) -> TokenScores:
    """Scores of what a sampler over tables emitted."""
    contexts = emission.contexts()
    num_requests, length = contexts.shape
    return score_rows(
        target[contexts].reshape(-1, target.shape[1]),
        emission.token_ids.reshape(-1),
        np.random.default_rng(seed),
        draft_probs=draft[contexts].reshape(-1, target.shape[1]),
        request=np.repeat(np.arange(num_requests), length),
        position=np.tile(np.arange(length), num_requests),
        pass_offset=emission.pass_offsets.reshape(-1),
    )


def table_scorer(*, knows_draft: bool = False, target: Floats = EIGHT, draft: Floats = EIGHT_DRAFT) -> Scorer:
    """A scorer over the table of 8 tokens."""
    return Scorer(TableModel(target), draft=TableModel(draft) if knows_draft else None)


@dataclass
class TableEngine:
    """Plain draws from a table, at the request's temperature times `warmth`; a seed decides the output."""

    target: Floats = field(default_factory=lambda: EIGHT)
    warmth: float = 1.0
    name: str = "table engine"
    keyed: bool = False

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [Generation(self.output(request)) for request in requests]

    def output(self, request: Request) -> tuple[int, ...]:
        random = np.random.default_rng(request.seed)
        token_ids: list[int] = []
        for position in range(request.params.max_tokens or 0):
            law = self.law(request, token_ids, position)
            token_ids.append(int(random.choice(len(law), p=law)))
        return tuple(token_ids)

    def law(self, request: Request, output: Sequence[int], position: int) -> Floats:
        last = output[-1] if output else request.prompt_ids[-1]
        temperature = request.params.temperature * self.warmth
        if temperature == 0:
            return np.asarray(np.arange(len(self.target)) == self.target[last].argmax(), dtype=np.float64)
        weights = self.target[last] ** (1 / temperature)
        return np.asarray(weights / weights.sum())


@dataclass
class SamplerEngine:
    """A sampler of the mutants' package as an engine: one run for each batch, seeded by its first request."""

    sampler: ExactSampler
    keyed: bool = False

    @property
    def name(self) -> str:
        return self.sampler.name

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        length = requests[0].params.max_tokens or 1
        emission = self.sampler.run(len(requests), length, requests[0].seed)
        return [
            Generation(
                tuple(map(int, row)),
                pass_starts=tuple(map(int, np.flatnonzero(offsets == 0))),
            )
            for row, offsets in zip(emission.token_ids, emission.pass_offsets, strict=True)
        ]


PROMPTS = [[token] for token in range(8)]
"""As the samplers have them: a batch of a multiple of 8 requests starts after the tokens 0 to 7 in turn."""
