"""Scored mode: the engine's target can be run here too, so every emitted token is held against the law it should have.

    audit = audit_scored(engine, Scorer(TorchModel(model)), prompts, num_tokens=100_000)
    print(audit.verdict, audit.findings)

All tokens of all prompts and settings pool into one family of tests; evidence is watched on the way. What the null
hypothesis says: given everything before it, each token was drawn from the target's processed law.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

import numpy as np

from draftproof import ParameterError, SamplingParams
from draftproof.audit.battery import Hypothesis, Layout, hypotheses
from draftproof.audit.conduct import breaches
from draftproof.audit.engine import Engine, EngineError, Generate, Generation, Refusal, Request, as_engine
from draftproof.audit.impossible import split_impossible
from draftproof.audit.journal import Journal
from draftproof.audit.plan import ALPHA, Plan, make_plan
from draftproof.audit.scored_report import scored_audit
from draftproof.audit.scorer import Scored, Scorer
from draftproof.audit.scores import Floats, TokenScores
from draftproof.audit.statistics.eprocess import EProcess
from draftproof.audit.verdict import Audit, Finding

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

    def tested(self) -> list[Hypothesis]:
        """All hypotheses on the tokens so far."""
        return hypotheses(TokenScores.joined(self.parts), self.layout) if self.parts else []


def audit_scored(
    engine: Engine | Generate,
    scorer: Scorer,
    prompts: Sequence[Sequence[int]],
    *,
    settings: Mapping[str, SamplingParams] | None = None,
    num_tokens: int | None = None,
    detect: float | None = None,
    alpha: float = ALPHA,
    max_tokens: int = 64,
    batch_size: int = 16,
    logit_error: float = 0.0,
    stop_early: bool = True,
    seed: int = 0,
    journal: str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audits `engine` against the target of `scorer`.

    prompts: token ids. settings: name -> parameters, tried in turn; temperature 1 alone if left out. Their max_tokens
    is kept where it differs from SamplingParams' own, else it is `max_tokens`. num_tokens or detect: see `make_plan`.
    batch_size: requests handed to the engine at once. logit_error: by how much the engine's logits may differ from
    the scorer's by rounding; a total variation of so much per token is then no finding. seed: of the audit; requests'
    seeds follow from it, all distinct. journal: a file that a later call goes on from. Raises ParameterError. Ctrl-C
    and an engine that fails end the run; what there is, is reported.
    """
    engine = as_engine(engine)
    if not prompts or any(not len(prompt) for prompt in prompts):
        raise ParameterError("prompts", f"{len(prompts)} of them", "at least one, each of at least one token")
    cells = dict(settings or {"temperature 1": SamplingParams()})
    cells = {name: _with_length(params, max_tokens) for name, params in cells.items()}
    offsets = not engine.keyed
    layout = Layout(tuple(cells), scorer.knows_draft, offsets, shift=logit_error)
    plan = make_plan(layout, num_tokens=num_tokens, detect=detect, alpha=alpha, seed=seed)
    run = Run(plan, layout, cells, EProcess(knows_draft=scorer.knows_draft, shift=logit_error))
    header = {
        "engine": engine.name,
        "seed": seed,
        "num_tokens": plan.num_tokens,
        "batch_size": batch_size,
        "prompts": [list(map(int, prompt)) for prompt in prompts],
        "settings": {name: repr(params) for name, params in cells.items()},
    }
    store = Journal(journal, header)
    began = time.perf_counter()
    try:
        _gather(run, engine, scorer, prompts, store, batch_size, stop_early, progress)
    except KeyboardInterrupt:
        run.interrupted = True
    return scored_audit(run, engine, scorer, time.perf_counter() - began)


def _gather(
    run: Run,
    engine: Engine,
    scorer: Scorer,
    prompts: Sequence[Sequence[int]],
    store: Journal,
    batch_size: int,
    stop_early: bool,
    progress: Progress | None,
) -> None:
    recorded: Iterator[Generation] = iter(store.recorded)
    for number in count():
        cells = [name for name in run.settings if name not in run.refused]
        if not cells or run.is_complete:
            return
        cell = cells[number % len(cells)]
        numbers = range(number * batch_size, (number + 1) * batch_size)
        requests = [
            Request(tuple(map(int, prompts[i % len(prompts)])), run.settings[cell], request_seed(run.plan.seed, i))
            for i in numbers
        ]
        began = time.perf_counter()
        replayed = [generation for generation, _ in zip(recorded, requests, strict=False)]
        try:
            missing = requests[len(replayed) :]
            fresh = engine.generate(missing) if missing else []
            store.add(fresh)
            if len(fresh) != len(missing):
                raise EngineError(f"{len(fresh)} generations came back for {len(missing)} requests")
        except Refusal as refusal:
            run.refused[cell] = str(refusal)
            continue
        except EngineError as error:
            run.errors.append(str(error))
            return
        run.generating_seconds += time.perf_counter() - began
        try:
            _take(run, scorer, requests, [*replayed, *fresh], cell, [i % len(prompts) for i in numbers], number)
        except EngineError as error:
            run.errors.append(str(error))
            return
        if progress is not None:
            progress(min(run.num_tokens, run.plan.num_tokens), run.plan.num_tokens)
        if stop_early and (run.has_evidence or run.findings):
            return


def _take(
    run: Run,
    scorer: Scorer,
    requests: Sequence[Request],
    generations: Sequence[Generation],
    cell: str,
    prompt_of: Sequence[int],
    number: int,
) -> None:
    began = time.perf_counter()
    if all(not generation.token_ids for generation in generations):
        raise EngineError(f"the engine gave no token for any of {len(requests)} requests ({cell})")
    scored: Scored = scorer.score(
        requests,
        generations,
        first_request=number * len(requests),
        prompt_of=prompt_of,
        cell=run.layout.cells.index(cell),
    )
    run.parts.append(scored.scores)
    run.evidence.update(scored.scores)
    run.num_requests += len(requests)
    run.num_tokens += len(scored.scores)
    run.path.append((run.num_tokens, float(run.evidence.log_e()) / math.log(10)))
    run.logprob_errors.append(scored.logprob_errors)
    for request, generation in zip(requests, generations, strict=True):
        for breach in breaches(request, generation, scorer.eos_token_ids, scorer.tokenizer):
            run.findings.append(Finding(breach, f"{cell}, seed {request.seed}", 0.0, 1.0, "requests"))
        if len(run.kept) < _KEPT_FOR_DIAGNOSIS:
            run.kept.append((request, generation))
    impossible, num_edge = split_impossible(scorer, requests, generations, scored.impossible, run.layout.shift)
    run.num_edge_tokens += num_edge
    for index, position in impossible:
        token_id = generations[index].token_ids[position]
        where = f"{cell}, seed {requests[index].seed}, output position {position}, token {token_id}"
        run.findings.append(Finding("a token that the target's law excludes", where, 0.0, 1.0, "tokens"))
    run.scoring_seconds += time.perf_counter() - began


def request_seed(seed: int, number: int) -> int:
    """The seed of request `number`: 63 bits, distinct for all practical purposes."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


def _with_length(params: SamplingParams, max_tokens: int) -> SamplingParams:
    if params.is_greedy:
        raise ParameterError("temperature", 0, "above 0 in scored mode", "use greedy mode for temperature 0")
    return replace(params, max_tokens=max_tokens) if params.max_tokens == 16 else params
