"""Rule mode: a verification function is judged by itself, without a model.

    def my_rule(target_probs, draft_probs, draft_ids, coins):
        ...                       # [k + 1, V], [k, V], [k]; coins[0], coins[1], … are uniform numbers
        return token_ids          # 1 to k + 1 of them

    audit_rule(my_rule)                          # explicit coins: enumerated, exact
    audit_rule(my_rule, coins="generator")       # coins is a numpy Generator: sampled

Explicit coins: every random path over random prefix-dependent tables, one pass and two, in rational arithmetic; a
difference of exactly 0 is required. The ends of the coins' range, 0 and 1 - 2^-53, are tried too: no excluded token may
come out. A generator: outputs over tables of 3 to 50 tokens and over one row of 151,936 with a tail, held against their
exact laws by the statistics of scored mode, and short sequences against their exact joint law.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from draftproof import ParameterError
from draftproof.audit.battery import EFFECTS, Hypothesis, Layout, adjusted_p, hypotheses, num_hypotheses
from draftproof.audit.coins import ConstantCoins, OracleKey, SymbolicCoins
from draftproof.audit.engine import EngineError
from draftproof.audit.gather import Progress
from draftproof.audit.plan import ALPHA, FIXED_SHARE, POWER, OnPlan, detectable_aligned, detectable_any, pooled_level
from draftproof.audit.rule_sampling import joint_p_value, sample_rule
from draftproof.audit.verdict import Audit, Finding, Table, decide
from draftproof.verify.exact import Enumeration, Step, enumerate_steps
from draftproof.verify.tables import PAIR_KINDS, Pair, random_pair

Rule: TypeAlias = Callable[[Any, Any, Sequence[int], Any], Sequence[int]]
"""(target_probs [k + 1, V], draft_probs [k, V], draft_ids [k], coins) -> emitted ids."""
Coins: TypeAlias = Literal["explicit", "generator"]

_ENDS: Final = (0.0, 1 - 2.0**-53)
_MOST_LISTED: Final = 12
_LAYOUT: Final = Layout(("V = 3", "V = 8", "V = 50"), knows_draft=True, by_offset=True)
_NUM_APART: Final = 4
_SHAPES: Final = ((2, 1, 2), (3, 1, 1), (3, 2, 1), (2, 2, 2))
"""(vocabulary, drafted tokens, passes)."""


@dataclass(frozen=True, slots=True)
class _Case:
    pair: Pair
    num_draft: int
    num_passes: int

    @property
    def name(self) -> str:
        return f"{self.pair.name}, {self.num_draft} drafted, {self.num_passes} passes"


def audit_rule(
    rule: Rule,
    *,
    coins: Coins = "explicit",
    name: str | None = None,
    num_tokens: int = 40_000,
    large_vocabulary: bool = True,
    alpha: float = ALPHA,
    seed: int = 0,
    progress: Progress | None = None,
    on_plan: OnPlan | None = None,
) -> Audit:
    """Audits a rule; see the module. num_tokens, large_vocabulary, alpha, on_plan: of sampling alone.

    on_plan gets the plan before the first token. Raises ParameterError.
    """
    if coins not in ("explicit", "generator"):
        raise ParameterError("coins", coins, "'explicit' or 'generator'")
    name = name or str(getattr(rule, "__name__", "rule"))
    began = time.perf_counter()
    if coins == "generator":
        plan = _sampling_plan(num_tokens, alpha, seed)
        if on_plan is not None:
            on_plan(plan)
        return _sampled(rule, name, plan, large_vocabulary, alpha, progress, began)
    return audit_steps(
        lambda pair, num_draft: rule_step(rule, pair, num_draft),
        name=name,
        extra=_end_findings(rule),
        progress=progress,
    )


def audit_steps(
    make_step: Callable[[Pair, int], Step],
    *,
    name: str,
    extra: Sequence[Finding] = (),
    progress: Progress | None = None,
) -> Audit:
    """Enumerates steps that are written against `Noise`: make_step(pair of tables, drafted tokens) -> step."""
    began = time.perf_counter()
    cases = list(_cases())
    findings, rows, error = list(extra), [], ""
    num_paths = 0
    for number, case in enumerate(cases):
        try:
            found = enumerate_steps(make_step(case.pair, case.num_draft), case.pair.target, case.num_passes)
        except EngineError as failure:
            error = str(failure)
            break
        except KeyboardInterrupt:
            error = "Ctrl-C"
            break
        num_paths += found.num_paths
        rows.append((case.name, found.num_paths, float(found.total_variation)))
        if found.total_variation:
            findings.append(_enumerated_finding(case, found))
        if progress is not None:
            progress(number + 1, len(cases))
    rows.sort(key=lambda row: -row[2])
    return Audit(
        mode="rule",
        engine=name,
        verdict=decide(findings, complete=not error),
        summary=error or f"{len(findings)} findings in {len(rows)} instances, {num_paths:,} random paths",
        findings=tuple(findings[:_MOST_LISTED]),
        numbers={
            "instances": len(rows),
            "random paths": num_paths,
            "largest total variation, exact": rows[0][2] if rows else 0.0,
            **({"ended by": error} if error else {}),
        },
        tables=(Table("Instances, the most wrong first", ("instance", "paths", "total variation"), tuple(rows[:24])),),
        limits=("vocabularies above 3 and drafts above 2 tokens", "rounding: arithmetic here is rational"),
        reproduction=f"# {findings[0].where}\n" if findings else None,
        seconds=time.perf_counter() - began,
    )


def rule_step(rule: Rule, pair: Pair, num_draft: int) -> Step:
    """One pass of a rule with explicit coins: drafts drawn by the oracle, the rule's coins split by it."""

    def step(context: tuple[int, ...], noise: Any) -> tuple[int, ...]:
        path, drafts = context, []
        for index in range(num_draft):
            row = np.array(pair.draft.probs(path), dtype=object)
            drafts.append((noise.choice(OracleKey("draft", len(context), index), row), row))
            path = (*path, drafts[-1][0])
        ids = [token_id for token_id, _ in drafts]
        target = np.array([pair.target.probs(context + tuple(ids[:n])) for n in range(num_draft + 1)], dtype=object)
        emitted = rule(
            target, np.array([row for _, row in drafts], dtype=object), ids, SymbolicCoins(noise, len(context))
        )
        return checked(emitted, num_draft)

    return step


def checked(emitted: Any, num_draft: int) -> tuple[int, ...]:
    """A rule's answer as token ids, 1 to num_draft + 1 of them. Raises EngineError."""
    try:
        token_ids = tuple(int(token_id) for token_id in emitted)
    except (TypeError, ValueError) as error:
        raise EngineError(f"the rule answered {emitted!r}, and token ids were expected") from error
    if not 1 <= len(token_ids) <= num_draft + 1:
        raise EngineError(
            f"the rule emitted {len(token_ids)} tokens for {num_draft} drafted ones, 1 to {num_draft + 1} fit"
        )
    return token_ids


def _cases() -> Iterator[_Case]:
    for kind in PAIR_KINDS:
        if kind == "wide draft":
            continue
        for vocab_size, num_draft, num_passes in _SHAPES:
            yield _Case(random_pair(kind, vocab_size, 1, target_form="Dense"), num_draft, num_passes)


def _enumerated_finding(case: _Case, found: Enumeration) -> Finding:
    worst = max(found.expected, key=lambda s: abs(found.law.get(s, Fraction(0)) - found.expected[s]))
    got, right = float(found.law.get(worst, Fraction(0))), float(found.expected[worst])
    where = f"{case.name}: {list(worst)} comes with probability {got:.6g}, not {right:.6g}"
    return Finding(
        "the output's law is not the target's", where, 0.0, float(found.total_variation), "total variation, exact"
    )


def _end_findings(rule: Rule) -> list[Finding]:
    """Excluded tokens that come out where every coin is at an end of its range."""
    target = np.array([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0]])
    draft = np.array([[0.5, 0.5, 0.0]])
    found = []
    for value in _ENDS:
        for drafted in (0, 1):
            try:
                emitted = checked(rule(target.copy(), draft.copy(), [drafted], ConstantCoins(value)), 1)
            except Exception as error:
                where = f"coins all {value!r}, draft [{drafted}]: {type(error).__name__}: {error}"
                found.append(Finding("the rule fails at an end of the coins' range", where, 0.0, 1.0, "calls"))
                continue
            row = 0
            for token_id in emitted:
                if not 0 <= token_id < 3 or target[row, token_id] == 0:
                    where = f"coins all {value!r}, draft [{drafted}]: emitted {list(emitted)}"
                    found.append(Finding("a token that the target excludes", where, 0.0, 1.0, "calls"))
                    break
                row += 1
    return found


def _sampling_plan(num_tokens: int, alpha: float, seed: int) -> dict[str, Any]:
    """Half of alpha goes to the statistics over tokens, half to the joint law and the large row."""
    level = pooled_level(_LAYOUT, alpha / 2 / FIXED_SHARE)
    return {
        "alpha": alpha,
        "power": POWER,
        "num_hypotheses": num_hypotheses(_LAYOUT) + _NUM_APART,
        "num_tokens": num_tokens,
        "detectable_any": detectable_any(num_tokens, level, POWER),
        "detectable_aligned": detectable_aligned(num_tokens, level, POWER),
        "seed": seed,
    }


def _sampled(
    rule: Rule,
    name: str,
    plan: dict[str, Any],
    large_vocabulary: bool,
    alpha: float,
    progress: Progress | None,
    began: float,
) -> Audit:
    error, findings, tested, p_values = "", [], [], []
    numbers: dict[str, Any] = {}
    try:
        sampled = sample_rule(
            rule, checked, plan["num_tokens"], plan["seed"], large_vocabulary=large_vocabulary, progress=progress
        )
        findings += sampled.findings
        tested = hypotheses(sampled.scores, _LAYOUT)
        joint = joint_p_value(sampled.sequences, sampled.joint_law)
        # Two families share alpha: the statistics over tokens, and the joint and the large row.
        p_values = adjusted_p(tested)
        findings += [_of(h, p) for h, p in zip(tested, p_values, strict=True) if p <= alpha / 2]
        apart = {"joint law of three tokens, V = 3": joint, **sampled.large_p_values}
        for what, p in apart.items():
            numbers[f"p, {what}"] = p
            if p * len(apart) <= alpha / 2:
                findings.append(Finding("the output's law is not the target's", what, p * len(apart), 1.0, ""))
        numbers["tokens"] = len(sampled.scores)
    except EngineError as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error = "Ctrl-C"
    rows = sorted(
        ((h.statistic, h.tokens, h.num_tokens, float(h.effect), float(h.p_value), p)
         for h, p in zip(tested, p_values, strict=True)),
        key=lambda row: row[4],
    )  # fmt: skip
    return Audit(
        mode="rule",
        engine=name,
        verdict=decide(findings, complete=not error),
        summary=error or f"{len(findings)} findings in {numbers.get('tokens', 0):,} tokens",
        findings=tuple(findings[:_MOST_LISTED]),
        plan=plan,
        numbers={**numbers, **({"ended by": error} if error else {})},
        tables=(Table("Hypotheses", ("statistic", "tokens", "number", "effect", "p", "adjusted p"), tuple(rows)),),
        limits=("biases below what so many tokens show; explicit coins would be enumerated",),
        seconds=time.perf_counter() - began,
    )


def _of(hypothesis: Hypothesis, adjusted: float) -> Finding:
    effect = float(hypothesis.effect)
    return Finding(hypothesis.statistic, hypothesis.tokens, adjusted, effect, EFFECTS[hypothesis.statistic])
