"""From a scored run to its report: verdict, findings, numbers, tables, plots, limits, a reproduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from draftproof.audit.battery import EFFECTS, Hypothesis, adjusted_p
from draftproof.audit.diagnosis import causes_by_history, causes_by_parameter, causes_by_pattern
from draftproof.audit.engine import Engine
from draftproof.audit.plan import detectable_aligned, detectable_any, pooled_level
from draftproof.audit.scorer import Scorer
from draftproof.audit.scores import TokenScores
from draftproof.audit.statistics.bound import BOUND_BINS, upper_bound
from draftproof.audit.statistics.pit import bin_counts
from draftproof.audit.verdict import Audit, Cause, Finding, Plot, Table, Verdict, decide

if TYPE_CHECKING:
    from draftproof.audit.gather import Run

BOUND_ALPHA: Final = 1e-3
_PLOT_BINS: Final = 32
_MOST_POSITIONS: Final = 16
_MOST_LISTED: Final = 12
_LIMITS: Final = (
    "deviations that cancel between contexts, or that keep every token's place in the order of probability",
    "biases smaller than the plan's smallest total variation",
    "behaviour outside the prompts, settings and lengths that were asked",
)


def scored_audit(run: Run, engine: Engine, scorer: Scorer, seconds: float) -> Audit:
    """The report of `run`."""
    tested = run.tested()
    adjusted = adjusted_p(tested) if tested else []
    findings = [*run.findings[:_MOST_LISTED], *_evidence(run)]
    # Tests that were planned for the end count at the end only; before it they describe.
    if run.is_complete:
        findings += [_finding(h, p) for h, p in zip(tested, adjusted, strict=True) if p <= run.plan.alpha_fixed]
    complete = run.is_complete and not run.errors and not run.interrupted
    verdict = decide(findings, complete=complete and bool(run.parts))
    scores = run.scores()
    return Audit(
        mode="scored",
        engine=engine.name,
        verdict=verdict,
        summary=_summary(run, verdict, len(run.findings)),
        findings=tuple(findings),
        causes=tuple(_causes(run, tested, scorer)) if verdict is Verdict.NOT_LOSSLESS else (),
        plan={**run.plan.to_dict(), "tokens_per_second": _rate(run.num_tokens, seconds)},
        numbers=_numbers(run, scores),
        tables=_tables(tested, adjusted, scores),
        plots=_plots(run, scores),
        refused=tuple(run.refused.items()),
        limits=_limits(run, engine),
        chain=scorer.chain.describe(),
        reproduction=_reproduction(run, verdict),
        settings={name: repr(params) for name, params in run.settings.items()},
        seconds=seconds,
    )


def _evidence(run: Run) -> list[Finding]:
    if not run.has_evidence:
        return []
    peak = float(run.evidence.peak_log_e)
    return [Finding("evidence against the law, watched on the way", "all tokens", math.exp(-peak), peak / math.log(10),
                    "log10 of the e-value")]  # fmt: skip


def _finding(hypothesis: Hypothesis, adjusted: float) -> Finding:
    effect = float(hypothesis.effect)
    return Finding(hypothesis.statistic, hypothesis.tokens, adjusted, effect, EFFECTS[hypothesis.statistic])


def _causes(run: Run, tested: Sequence[Hypothesis], scorer: Scorer) -> list[Cause]:
    by_chain = [*causes_by_parameter(scorer, run.kept), *causes_by_history(scorer, run.kept)]
    return [*by_chain, *causes_by_pattern(tested)]


def _numbers(run: Run, scores: TokenScores | None) -> dict[str, Any]:
    numbers: dict[str, Any] = {"tokens": run.num_tokens, "requests": run.num_requests}
    if scores is not None:
        observed, bound = upper_bound(scores.pit, BOUND_ALPHA)
        level = pooled_level(run.layout, run.plan.alpha)
        numbers |= {
            f"pooled deviation, {BOUND_BINS} bins by p": observed,
            f"its upper bound, confidence {1 - BOUND_ALPHA:g}": bound,
            "bias that could be missed, any direction along the order": detectable_any(
                run.num_tokens, level, run.plan.power
            ),
            "bias that could be missed, aligned with a set": detectable_aligned(run.num_tokens, level, run.plan.power),
            "log10 of the e-value, peak": float(run.evidence.peak_log_e) / math.log(10),
        }
        if scores.ratio_pit is not None:
            observed, bound = upper_bound(scores.ratio_pit, BOUND_ALPHA)
            numbers["pooled deviation, 8 bins by p/q"] = observed
            numbers["its upper bound by p/q"] = bound
    errors = np.concatenate(run.logprob_errors) if run.logprob_errors else np.zeros(0)
    if len(errors):
        numbers["reported logprobs, largest error, nats"] = float(np.abs(errors).max())
        numbers["reported logprobs, median error, nats"] = float(np.median(np.abs(errors)))
    numbers["total variation allowed for rounding, per token"] = run.layout.shift
    numbers["tokens at a filter's edge"] = run.num_edge_tokens
    numbers["seconds of scoring and statistics"] = run.scoring_seconds
    numbers["seconds of generation"] = run.generating_seconds
    if run.errors:
        numbers["ended by"] = run.errors[0]
    if run.interrupted:
        numbers["ended by"] = "Ctrl-C"
    return numbers


def _tables(tested: Sequence[Hypothesis], adjusted: Sequence[float], scores: TokenScores | None) -> tuple[Table, ...]:
    if scores is None:
        return ()
    pairs = sorted(zip(tested, adjusted, strict=True), key=lambda pair: (pair[1], float(pair[0].p_value)))
    rows = tuple(
        (h.statistic, h.tokens, h.num_tokens, float(h.effect), float(h.z), float(h.p_value), p) for h, p in pairs
    )
    columns = ("statistic", "tokens", "number", "effect", "z", "p", "adjusted p")
    return (Table("Hypotheses, the strongest evidence first", columns, rows), _positions(scores))


def _positions(scores: TokenScores) -> Table:
    """How often the most probable token was emitted, by position in the output."""
    rows = []
    for position in range(min(_MOST_POSITIONS, int(scores.position.max(initial=-1)) + 1)):
        here = scores.position == position
        number = int(here.sum())
        expected = float(scores.top_prob[here].sum())
        variance = float((scores.top_prob[here] * (1 - scores.top_prob[here])).sum())
        observed = int(scores.is_top[here].sum())
        z = (observed - expected) / math.sqrt(variance) if variance > 0 else 0.0
        rows.append((position + 1, number, observed / max(number, 1), expected / max(number, 1), z))
    return Table("The most probable token, by position", ("position", "tokens", "share", "expected", "z"), tuple(rows))


def _plots(run: Run, scores: TokenScores | None) -> tuple[Plot, ...]:
    if scores is None:
        return ()
    x = tuple((index + 0.5) / _PLOT_BINS for index in range(_PLOT_BINS))
    plots = []
    for name, uniforms in (("p", scores.pit), ("p/q", scores.ratio_pit)):
        if uniforms is not None:
            shares = bin_counts(uniforms, _PLOT_BINS) / len(uniforms) * _PLOT_BINS
            title = f"Positions in the order of {name}: flat if lossless"
            plots.append(Plot(title, "bars", "position U", "density", x, tuple(map(float, shares)), 1.0, "expected"))
    threshold = math.log10(1 / run.plan.alpha_evidence)
    plots.append(
        Plot("Evidence against lossless", "line", "tokens", "log10 of the e-value", tuple(n for n, _ in run.path),
             tuple(e for _, e in run.path), threshold, "decides")
    )  # fmt: skip
    level = pooled_level(run.layout, run.plan.alpha)
    sizes = tuple(float(n) for n in np.unique(np.geomspace(1000, max(2000, 10 * run.plan.num_tokens), 40).astype(int)))
    seen = tuple(detectable_any(int(n), level, run.plan.power) for n in sizes)
    title = "Smallest total variation seen with power .99"
    here = float(run.num_tokens)
    plots.append(Plot(title, "log-line", "tokens", "total variation", sizes, seen, here, "this run"))
    return tuple(plots)


def _limits(run: Run, engine: Engine) -> tuple[str, ...]:
    limits = list(_LIMITS)
    if not run.layout.knows_draft:
        limits.append("without the drafter's weights: biases that only the order by p/q shows (p/q, q > p, argmax q)")
    if not run.layout.by_offset:
        limits.append("where in a pass a bias sits: this engine's passes start where its noise decides")
    if run.layout.shift:
        limits.append(f"a total variation of {run.layout.shift:g} per token is taken for rounding")
    return tuple(limits)


def _reproduction(run: Run, verdict: Verdict) -> str | None:
    """The smallest thing to run again: the first request that broke a rule, or the first ones of the run."""
    if verdict is not Verdict.NOT_LOSSLESS or not run.kept:
        return None
    request, generation = next(
        ((r, g) for r, g in run.kept if any(f"seed {r.seed}" in finding.where for finding in run.findings)), run.kept[0]
    )
    lines = [
        "# What was asked, and what came back. Ask again, and score with the same target.",
        "from draftproof import SamplingParams",
        f"prompt_ids = {list(request.prompt_ids)}",
        f"params = {request.params!r}",
        f"seed = {request.seed}",
        f"came_back = {list(generation.token_ids)}",
        "# generation = engine(prompt_ids, params, seed)",
    ]
    return "\n".join(lines) + "\n"


def _summary(run: Run, verdict: Verdict, num_broken: int) -> str:
    if verdict is Verdict.CONSISTENT:
        return f"nothing was found in {run.num_tokens:,} tokens"
    if verdict is Verdict.INCONCLUSIVE:
        why = run.errors[0] if run.errors else "interrupted" if run.interrupted else "every setting was refused"
        return f"nothing was found in the {run.num_tokens:,} tokens of {run.plan.num_tokens:,} that came: {why}"
    if num_broken:
        return f"{num_broken} tokens or requests break a rule, in {run.num_tokens:,} tokens"
    return f"the law differs, seen in {run.num_tokens:,} tokens"


def _rate(num_tokens: int, seconds: float) -> float | None:
    return num_tokens / seconds if num_tokens and seconds > 0 else None
