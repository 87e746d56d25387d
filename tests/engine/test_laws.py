"""The law at the engine's level, by samples: T19, T51 and the joint law of what exact-law verifiers emit.

Error budget: each chi-square below alarms with probability 1e-6 on a sound engine; seeds are fixed,
and a failing test is never rerun with others.
"""

import random
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from tests.engine.drafting import TableDrafter
from tests.engine.tables import engine, ids, params, table

ALPHA = 1e-6


def fits(counts, probs, num_samples):
    """Chi-square of counts against probs, cells of expectation below 5 pooled."""
    expected = np.array([float(prob) * num_samples for prob in probs.values()])
    observed = np.array([counts.get(key, 0) for key in probs], dtype=float)
    small = expected < 5
    if small.any():
        expected = np.append(expected[~small], expected[small].sum())
        observed = np.append(observed[~small], observed[small].sum())
        keep = expected > 0
        assert observed[~keep].sum() == 0
        expected, observed = expected[keep], observed[keep]
    assert observed.sum() == num_samples
    statistic = ((observed - expected) ** 2 / expected).sum()
    return stats.chi2.sf(statistic, len(expected) - 1) > ALPHA


def joint(target_table, prompt, length):
    """{token ids: probability} of the next `length` tokens."""
    laws = {(): 1.0}
    for _ in range(length):
        laws = {
            (*path, token_id): mass * float(prob)
            for path, mass in laws.items()
            for token_id, prob in enumerate(target_table.probs((*prompt, *path)))
        }
    return laws


@pytest.mark.parametrize("verifier", ["keyed", "match", "rejection", "block"])
def test_joint_law_of_three_tokens_over_several_passes(verifier):
    target, prompt, num = table(2, sharpness=1.0, vocab_size=4), [1, 2], 4000
    llm = engine(target, num_slots=8, verifier=verifier, drafter=TableDrafter(table(3, 1.0, 4)), tokens=2)
    requests = [params(seed=seed, max_tokens=3) for seed in range(num)]
    outputs = llm.generate([prompt] * num, requests)
    assert fits(Counter(ids(outputs)), joint(target, prompt, 3), num)
    accepted = sum(o.metrics.speculative_decoding["num_accepted_draft_tokens"] for o in outputs)
    assert accepted > num / 4


def test_t19_no_argmax_slips_in():
    """150 runs at T = 1 with a top token of .3: first token after prefill, the next step's seed, and the walk."""
    weights = [0.3, 0.25, 0.25, 0.2]
    from draftproof.verify.tables import LawTable

    target = LawTable(4, lambda context: weights, exact=False)
    for drafter in (None, TableDrafter(target), TableDrafter(LawTable(4, lambda context: [1, 0, 0, 0], exact=False))):
        llm = engine(target, num_slots=4, method="ngram", drafter=drafter, tokens=3)
        outputs = ids(llm.generate([[0, 1]] * 150, [params(seed=seed, max_tokens=8) for seed in range(150)]))
        for position in range(8):
            top = sum(output[position] == 0 for output in outputs)
            # Binomial(150, .3): outside [19, 75] with probability below 1e-6 on either side.
            assert 19 <= top <= 75, (position, top)


def test_t51_unseeded_requests_are_independent(monkeypatch):
    """Each request draws a seed of its own; the draws come from a seeded source here, so that the test is the same."""
    from draftproof.engine import admission
    from draftproof.verify.tables import LawTable

    source = random.Random(51)
    monkeypatch.setattr(admission, "fresh_seed", lambda: source.getrandbits(64))
    target = LawTable(3, lambda context: [5, 3, 2])
    llm = engine(target, num_slots=16)
    outputs = llm.generate([[0]] * 1000, params(max_tokens=1))
    assert len({output.seed for output in outputs}) == 1000
    counts = Counter(output[0] for output in ids(outputs))
    assert fits(counts, {0: 0.5, 1: 0.3, 2: 0.2}, 1000)


@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
def test_exact_law_verifiers_reproduce_from_their_seed(verifier):
    def run(length):
        llm = engine(table(2), verifier=verifier, drafter=TableDrafter(table(3)), length=length)
        return ids(llm.generate([[1, 2]] * 6, [params(seed=seed) for seed in range(6)]))

    assert run("fixed") == run("fixed")
    assert run("auto") == run("auto")
