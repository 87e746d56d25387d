"""Runs of the mutants: scores of samplers, doses, visible bias, and one audit for each engine of the other modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from draftproof import SamplingParams
from draftproof.audit.greedy import audit_greedy
from draftproof.audit.models import TableModel
from draftproof.audit.mutants import chains, modes
from draftproof.audit.mutants.sampler import Emission, ExactSampler, instance_tables
from draftproof.audit.paired import audit_paired
from draftproof.audit.replay import audit_replay
from draftproof.audit.scored import audit_scored
from draftproof.audit.scorer import Scorer
from draftproof.audit.scores import Floats, TokenScores, score_rows
from draftproof.audit.state import audit_state
from draftproof.audit.verdict import Audit

LENGTH = 40
_PROMPTS = [[token] for token in range(8)]


def dosed(mutant: type[ExactSampler], dose: float, num_requests: int, seed: int) -> Emission:
    """Outputs of `num_requests` requests of LENGTH tokens, a share `dose` of them, at random, by the mutant."""
    tables = instance_tables(mutant.instance)
    random = np.random.default_rng([seed, 77])
    wrong = mutant(*tables).run(num_requests, LENGTH, seed)
    if dose >= 1:
        return wrong
    right = ExactSampler(*tables).run(num_requests, LENGTH, seed + 1)
    is_wrong = (random.random(num_requests) < dose)[:, None]
    return Emission(
        np.where(is_wrong, wrong.token_ids, right.token_ids),
        wrong.prompt_ids,
        np.where(is_wrong, wrong.pass_offsets, right.pass_offsets),
    )


def scores_of(emission: Emission, target: Floats, draft: Floats, seed: int) -> TokenScores:
    """Scores of what a sampler over tables emitted; seed: of the auditor's own randomness."""
    contexts = emission.contexts()
    num_requests, length = contexts.shape
    vocab_size = target.shape[1]
    return score_rows(
        target[contexts].reshape(-1, vocab_size),
        emission.token_ids.reshape(-1),
        np.random.default_rng(seed),
        draft_probs=draft[contexts].reshape(-1, vocab_size),
        previous_ids=contexts.reshape(-1),
        request=np.repeat(np.arange(num_requests), length),
        position=np.tile(np.arange(length), num_requests),
        pass_offset=emission.pass_offsets.reshape(-1),
    )


def visible_bias(mutant: type[ExactSampler], num_requests: int, seed: int) -> tuple[float, float]:
    """(mean total variation of the next token given the one before, first tokens apart; the same of the exact sampler).

    The second is what counting alone gives; the bias is visible where the first stands clearly above it.
    """
    found = []
    target, draft = instance_tables(mutant.instance)
    for sampler in (mutant, ExactSampler):
        emission = sampler(target, draft).run(num_requests, LENGTH, seed)
        contexts, vocab_size = emission.contexts(), len(target)
        counts = np.zeros((2, vocab_size, vocab_size))
        is_later = (np.arange(LENGTH) > 0).astype(int) * np.ones_like(contexts)
        np.add.at(counts, (is_later.ravel(), contexts.ravel(), emission.token_ids.ravel()), 1)
        totals = counts.sum(-1, keepdims=True)
        shares = counts / np.maximum(totals, 1)
        found.append(float((np.abs(shares - target).sum(-1) / 2 * totals[..., 0]).sum() / totals.sum()))
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class Trial:
    """One engine in the mode that is named for it: run(wrong?, seed) -> its audit, or its right twin's."""

    name: str
    after: str
    mode: str
    run: Callable[[bool, int], Audit]


def trials(num_tokens: int = 6000) -> list[Trial]:
    """Every mutant that is an engine: chains in scored mode, and those of the other modes."""
    found = [Trial(m.name, m.after, "scored", _chain(m, num_tokens)) for m in chains.MUTANTS]
    found += [Trial(m.name, m.after, "greedy", _greedy(m)) for m in modes.GREEDY]
    found += [Trial(m.name, m.after, "replay", _replay(m)) for m in modes.REPLAY]
    found += [Trial(m.name, m.after, "paired", _paired(m)) for m in modes.PAIRED]
    found += [Trial(m.name, m.after, "state", _state(m)) for m in modes.STATE]
    return found


def _chain(mutant: type[chains.ChainEngine], num_tokens: int) -> Callable[[bool, int], Audit]:
    def run(wrong: bool, seed: int) -> Audit:
        logits = chains.chain_logits()
        engine = (mutant if wrong else chains.ChainEngine)(logits)
        settings = {mutant.name: mutant.setting}
        if mutant.mixed:
            settings["another in the batch"] = SamplingParams(temperature=1.5, ignore_eos=True)
        scorer = Scorer(TableModel.of_logits(logits), eos_token_ids=(chains.EOS,), seed=seed)
        return audit_scored(
            engine, scorer, _PROMPTS, settings=settings, num_tokens=num_tokens, max_tokens=20, seed=seed,
            mixed=mutant.mixed,
        )  # fmt: skip

    return run


def _greedy(mutant: type[modes.PlainEngine]) -> Callable[[bool, int], Audit]:
    def run(wrong: bool, seed: int) -> Audit:
        target, _ = instance_tables("random")
        engine = (mutant if wrong else modes.PlainEngine)(target)
        return audit_greedy(engine, Scorer(TableModel(target), seed=seed), _PROMPTS, max_tokens=48, seed=seed)

    return run


def _replay(mutant: type[modes.PlainEngine]) -> Callable[[bool, int], Audit]:
    def run(wrong: bool, seed: int) -> Audit:
        target, _ = instance_tables("random")
        engine = (mutant if wrong else modes.PlainEngine)(target)
        return audit_replay(engine, modes.PlainEngine(target), _PROMPTS, num_seeds=4, max_tokens=24, seed=seed)

    return run


def _paired(mutant: type[modes.PlainEngine]) -> Callable[[bool, int], Audit]:
    def run(wrong: bool, seed: int) -> Audit:
        target, _ = instance_tables("random")
        engine = (mutant if wrong else modes.PlainEngine)(target)
        return audit_paired(
            engine, modes.PlainEngine(target), _PROMPTS, num_samples=60, length=4, alpha=1e-3, seed=seed
        )

    return run


def _state(mutant: type[modes.Recurrent]) -> Callable[[bool, int], Audit]:
    def run(wrong: bool, seed: int) -> Audit:
        made = mutant if wrong else modes.Recurrent
        return audit_state(made, name=made.name, num_trials=40, tolerance=1e-9, seed=seed)

    return run
