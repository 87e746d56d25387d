"""Paired mode: two engines, or one with speculation on and off, and no target at hand.

Rule: the same prompts, `num_samples` outputs each from both; first tokens, short prefixes and whole short
continuations are compared by permutation within each prompt (`statistics.twosample`), Holm over the tests. Blunt: a
bias of 0.01 takes tens of thousands of outputs; scored mode is the one to use where the weights are at hand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftproof import ParameterError, SamplingParams
from draftproof.audit.engine import Engine, EngineError, Generate, Generation, Refusal, Request, as_engine
from draftproof.audit.gather import Progress, request_seed
from draftproof.audit.plan import ALPHA, POWER, OnPlan, detectable_aligned
from draftproof.audit.statistics import twosample
from draftproof.audit.statistics.holm import adjusted
from draftproof.audit.verdict import Audit, Finding, Table, decide

_DEPTHS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class _Tested:
    name: str
    p_value: float
    statistic: float


def audit_paired(
    first: Engine | Generate,
    second: Engine | Generate,
    prompts: Sequence[Sequence[int]],
    *,
    params: SamplingParams | None = None,
    num_samples: int = 64,
    length: int = 8,
    alpha: float = ALPHA,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
    on_plan: OnPlan | None = None,
) -> Audit:
    """Compares two engines. length: tokens of each output. Engines that give text alone are compared by characters.

    Every request has a seed of its own, also between the engines. on_plan: gets the plan before the first output.
    Raises ParameterError.
    """
    first, second = as_engine(first), as_engine(second)
    if num_samples < 2 or length < 1:
        raise ParameterError("num_samples, length", (num_samples, length), "at least 2 outputs and 1 token")
    asked = replace(params or SamplingParams(), max_tokens=length)
    num_hypotheses = 2 * len(_depths(length)) + 1
    plan = {
        "alpha": alpha, "power": POWER, "num_hypotheses": num_hypotheses, "num_samples": num_samples, "length": length,
        "detectable_first_token": _reach(num_samples * len(prompts), alpha, num_hypotheses), "seed": seed,
    }  # fmt: skip
    if on_plan is not None:
        on_plan(plan)
    began, error, refused = time.perf_counter(), "", {}
    sides: list[list[list[tuple[int, ...]]]] = []
    done = 0
    try:
        for side, engine in enumerate((first, second)):
            samples: list[list[tuple[int, ...]]] = [[] for _ in prompts]
            sides.append(samples)
            order = [(index, sample) for sample in range(num_samples) for index in range(len(prompts))]
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                requests = [
                    Request(tuple(map(int, prompts[i])), asked, request_seed(seed, 2 * (n * len(prompts) + i) + side))
                    for i, n in batch
                ]
                for (index, _), generation in zip(batch, engine.generate(requests), strict=True):
                    samples[index].append(symbols(generation))
                done += len(batch)
                if progress is not None:
                    progress(done, 2 * num_samples * len(prompts))
    except Refusal as refusal:
        refused["params"] = str(refusal)
    except EngineError as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error = "Ctrl-C"
    complete = len(sides) == 2 and not error and not refused
    tested = _tests(sides[0], sides[1], length, alpha, seed) if complete else []
    p_values = adjusted([t.p_value for t in tested], [1.0] * len(tested)) if tested else np.zeros(0)
    findings = [
        Finding(t.name, "all prompts", float(p), t.statistic, "statistic")
        for t, p in zip(tested, p_values, strict=True)
        if p <= alpha
    ]
    num_outputs = sum(len(outputs) for side in sides for outputs in side)
    each = max(num_outputs // 2, 1)
    reach = _reach(each, alpha, num_hypotheses)
    return Audit(
        mode="paired",
        engine=f"{first.name} against {second.name}",
        verdict=decide(findings, complete=complete),
        summary=error or f"{len(findings)} of {len(tested)} tests see a difference, over {num_outputs:,} outputs",
        findings=tuple(findings),
        plan=plan,
        numbers={
            "outputs": num_outputs,
            "prompts": len(prompts),
            "bias of the first token that could be missed, alike in all prompts": reach,
            "bias of one prompt's first token that could be missed": min(reach * math.sqrt(len(prompts)), 1.0),
            **({"ended by": error} if error else {}),
        },
        tables=(
            Table(
                "Tests by permutation",
                ("test", "statistic", "p", "adjusted p"),
                tuple((t.name, t.statistic, t.p_value, float(p)) for t, p in zip(tested, p_values, strict=True)),
            ),
        ),
        refused=tuple(refused.items()),
        limits=("small biases: this mode knows no law, only samples", f"anything after the first {length} tokens"),
        settings={"params": repr(asked)},
        seconds=time.perf_counter() - began,
    )


def symbols(generation: Generation) -> tuple[int, ...]:
    """What is compared: token ids, or the text's characters where an engine gives no ids."""
    if generation.token_ids or generation.text is None:
        return generation.token_ids
    return tuple(map(ord, generation.text))


def _depths(length: int) -> list[int]:
    return [depth for depth in _DEPTHS if depth <= length]


def _reach(num_outputs: int, alpha: float, num_hypotheses: int) -> float:
    """The total variation of the first token, alike in all prompts, that `num_outputs` a side show."""
    return detectable_aligned(num_outputs, alpha / num_hypotheses, POWER, variance=0.5)


def _tests(
    first: Sequence[Sequence[tuple[int, ...]]],
    second: Sequence[Sequence[tuple[int, ...]]],
    length: int,
    alpha: float,
    seed: int,
) -> list[_Tested]:
    random = np.random.default_rng(np.random.SeedSequence([seed, 0x9A12]))
    depths = _depths(length)
    # Twice as many permutations as the smallest p-value that could be asked for takes.
    most = math.ceil(2 * (2 * len(depths) + 1) / alpha)
    found = []
    for depth in depths:
        largest_p, total_p, largest = twosample.prefix_tests(first, second, depth, random, most)
        found.append(_Tested(f"largest |z| of a prefix of {depth}", largest_p, largest))
        found.append(_Tested(f"all prefixes of {depth}", total_p, largest))
    p_value, statistic = twosample.mmd_test(first, second, length, random, most)
    found.append(_Tested(f"MMD of {length} tokens", p_value, statistic))
    return found
