"""Scored mode: the engine's target can be run here too, so every emitted token is held against the law it should have.

    audit = audit_scored(engine, Scorer(TorchModel(model)), prompts, num_tokens=100_000)
    print(audit.verdict, audit.findings)

All tokens of all prompts and settings pool into one family of tests; evidence is watched on the way. What the null
hypothesis says: given everything before it, each token was drawn from the target's processed law.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftproof import ParameterError, SamplingParams
from draftproof.audit.battery import Layout
from draftproof.audit.engine import Engine, Generate, as_engine
from draftproof.audit.gather import Asking, Progress, Run, gather
from draftproof.audit.journal import Journal
from draftproof.audit.plan import ALPHA, OnPlan, make_plan
from draftproof.audit.scored_report import scored_audit
from draftproof.audit.scorer import Scorer
from draftproof.audit.statistics.eprocess import EProcess
from draftproof.audit.verdict import Audit


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
    mixed: bool = False,
    seed: int = 0,
    journal: str | None = None,
    progress: Progress | None = None,
    on_plan: OnPlan | None = None,
) -> Audit:
    """Audits `engine` against the target of `scorer`.

    prompts: token ids. settings: name -> parameters, tried in turn; temperature 1 alone if left out. Their max_tokens
    is kept where it differs from SamplingParams' own, else it is `max_tokens`. num_tokens or detect: see `make_plan`.
    batch_size: requests handed to the engine at once. logit_error: by how much the engine's logits may differ from
    the scorer's by rounding; a total variation of so much per token is then no finding. seed: of the audit; requests'
    seeds follow from it, all distinct. journal: a file that a later call goes on from. on_plan: gets the plan before
    the first token. Raises ParameterError. Ctrl-C and an engine that fails end the run; what there is, is reported.
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
        "mixed": mixed,
        "prompts": [list(map(int, prompt)) for prompt in prompts],
        "settings": {name: repr(params) for name, params in cells.items()},
    }
    store = Journal(journal, header)
    if on_plan is not None:
        on_plan(plan.to_dict())
    began = time.perf_counter()
    try:
        gather(run, engine, scorer, store, Asking(prompts, batch_size, stop_early, mixed), progress)
    except KeyboardInterrupt:
        run.interrupted = True
    return scored_audit(run, engine, scorer, time.perf_counter() - began)


def _with_length(params: SamplingParams, max_tokens: int) -> SamplingParams:
    if params.is_greedy:
        raise ParameterError("temperature", 0, "above 0 in scored mode", "use greedy mode for temperature 0")
    return replace(params, max_tokens=max_tokens) if params.max_tokens == 16 else params
