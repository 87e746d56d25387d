"""The run of scored mode: ask, record, score, watch the evidence, until the planned tokens are in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import numpy as np

from draftproof import SamplingParams
from draftproof.audit.battery import Hypothesis, Layout, hypotheses
from draftproof.audit.conduct import breaches
from draftproof.audit.engine import Engine, EngineError, Generation, Refusal, Request
from draftproof.audit.impossible import split_impossible
from draftproof.audit.journal import Journal
from draftproof.audit.plan import Plan
from draftproof.audit.scorer import Scorer
from draftproof.audit.scores import Floats, TokenScores
from draftproof.audit.statistics.eprocess import EProcess
from draftproof.audit.verdict import Finding

Progress = Callable[[int, int], None]
"""Called with (tokens scored, tokens planned)."""
_KEPT_FOR_DIAGNOSIS: Final = 200


@dataclass(slots=True)
class Run:
    """What a scored run has gathered so far."""

    plan: Plan
    layout: Layout
    settings: dict[str, SamplingParams]
    evidence: EProcess
    parts: list[TokenScores] = field(default_factory=list)
    path: list[tuple[int, float]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    logprob_errors: list[Floats] = field(default_factory=list)
    kept: list[tuple[Request, Generation]] = field(default_factory=list)
    num_requests: int = 0
    num_edge_tokens: int = 0
    num_tokens: int = 0
    scoring_seconds: float = 0.0
    generating_seconds: float = 0.0
    interrupted: bool = False

    @property
    def is_complete(self) -> bool:
        """True once the planned tokens are in."""
        return self.num_tokens >= self.plan.num_tokens

    @property
    def has_evidence(self) -> bool:
        """True once the e-process has reached its level."""
        return float(self.evidence.peak_log_e) >= math.log(1 / self.plan.alpha_evidence)

    def scores(self) -> TokenScores | None:
        """The tokens so far, no more than planned: their number may not depend on what came."""
        if not self.parts:
            return None
        joined = TokenScores.joined(self.parts)
        return joined.where(np.arange(len(joined)) < self.plan.num_tokens)

    def tested(self) -> list[Hypothesis]:
        """All hypotheses on these tokens."""
        scores = self.scores()
        return [] if scores is None else hypotheses(scores, self.layout)


@dataclass(frozen=True, slots=True)
class Asking:
    """How a run asks. prompts: token ids. mixed: a batch holds all settings, otherwise one."""

    prompts: Sequence[Sequence[int]]
    batch_size: int
    stop_early: bool
    mixed: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of one batch: their numbers in the run, their settings' names, and themselves."""

    numbers: range
    cells: list[str]
    requests: list[Request]


def gather(run: Run, engine: Engine, scorer: Scorer, store: Journal, asking: Asking, progress: Progress | None) -> None:
    """Fills `run` until it is complete, has evidence, or the engine fails; what failed is in `run.errors`."""
    for batch in _batches(run, asking):
        try:
            generations = _generations(run, engine, store, batch)
            if generations is not None:
                _take(run, scorer, batch, generations, len(asking.prompts))
        except EngineError as error:
            run.errors.append(str(error))
            return
        if progress is not None:
            progress(min(run.num_tokens, run.plan.num_tokens), run.plan.num_tokens)
        if asking.stop_early and (run.has_evidence or run.findings):
            return


def request_seed(seed: int, number: int) -> int:
    """The seed of request `number`: 63 bits, distinct for all practical purposes."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


def _batches(run: Run, asking: Asking) -> Iterator[Batch]:
    for number in count():
        open_cells = [name for name in run.settings if name not in run.refused]
        if not open_cells or run.is_complete:
            return
        numbers = range(number * asking.batch_size, (number + 1) * asking.batch_size)
        cells = [open_cells[(i if asking.mixed else number) % len(open_cells)] for i in numbers]
        requests = [
            Request(
                tuple(map(int, asking.prompts[i % len(asking.prompts)])),
                run.settings[cell],
                request_seed(run.plan.seed, i),
            )
            for i, cell in zip(numbers, cells, strict=True)
        ]
        yield Batch(numbers, cells, requests)


def _generations(run: Run, engine: Engine, store: Journal, batch: Batch) -> list[Generation] | None:
    """What came back, from the journal or the engine; None if a setting was refused."""
    began = time.perf_counter()
    missing = [i for i in batch.numbers if i not in store.recorded]
    requests = [batch.requests[i - batch.numbers.start] for i in missing]
    try:
        fresh = engine.generate(requests) if requests else []
    except Refusal as refusal:
        _note_refusal(run, engine, batch, refusal)
        return None
    if len(fresh) != len(missing):
        raise EngineError(f"{len(fresh)} generations came back for {len(missing)} requests")
    store.add(dict(zip(missing, fresh, strict=True)))
    run.generating_seconds += time.perf_counter() - began
    return [store.recorded.pop(i) for i in batch.numbers]


def _note_refusal(run: Run, engine: Engine, batch: Batch, refusal: Refusal) -> None:
    """Finds the settings of a batch that the engine refuses."""
    cells = dict(zip(batch.cells, batch.requests, strict=True))
    if len(cells) == 1:
        run.refused[batch.cells[0]] = str(refusal)
        return
    for cell, request in cells.items():
        try:
            engine.generate([request])
        except Refusal as its_own:
            run.refused[cell] = str(its_own)
    if not set(cells) & set(run.refused):
        raise EngineError(f"the engine refuses a batch of settings that it takes one by one: {refusal}")


def _take(run: Run, scorer: Scorer, batch: Batch, generations: Sequence[Generation], num_prompts: int) -> None:
    began = time.perf_counter()
    if all(not generation.token_ids for generation in generations):
        raise EngineError(f"the engine gave no token for any of {len(generations)} requests ({batch.cells[0]})")
    scored = scorer.score(
        batch.requests,
        generations,
        first_request=batch.numbers.start,
        prompt_of=[i % num_prompts for i in batch.numbers],
        cell_of=[run.layout.cells.index(cell) for cell in batch.cells],
    )
    run.parts.append(scored.scores)
    run.evidence.update(scored.scores)
    run.num_requests += len(generations)
    run.num_tokens += len(scored.scores)
    run.path.append((run.num_tokens, float(run.evidence.log_e()) / math.log(10)))
    run.logprob_errors.append(scored.logprob_errors)
    for request, generation, cell in zip(batch.requests, generations, batch.cells, strict=True):
        for breach in breaches(request, generation, scorer.eos_token_ids, scorer.tokenizer):
            run.findings.append(Finding(breach, f"{cell}, seed {request.seed}", 0.0, 1.0, "requests"))
        if len(run.kept) < _KEPT_FOR_DIAGNOSIS:
            run.kept.append((request, generation))
    impossible, num_edge = split_impossible(scorer, batch.requests, generations, scored.impossible, run.layout.shift)
    run.num_edge_tokens += num_edge
    for index, position in impossible:
        request, token_id = batch.requests[index], generations[index].token_ids[position]
        where = f"{batch.cells[index]}, seed {request.seed}, output position {position}, token {token_id}"
        run.findings.append(Finding("a token that the target's law excludes", where, 0.0, 1.0, "tokens"))
    run.scoring_seconds += time.perf_counter() - began
