"""What `verify_rejection` and `verify_block` must do at the edges: coins, bad rows, bad laws, empty residuals."""

import numpy as np
import torch

from draftproof.core import Draft, Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History
from tests.kernels.ratio_cases import CHAIN, DEVICE, OPERATIONS, Case, agrees, emitted


def check_coins_at_the_edge(kernels):
    """p / q a hair above and below the coin, for the smallest and the largest of many coins, and in the middle."""
    coins = [(KeyedNoise(seed).uniform(Key(Purpose.COIN, 5, 0)), seed) for seed in range(3000)]
    ordered = sorted(coins)
    for u, seed in (ordered[0], ordered[1500], ordered[-1]):
        for share, accepted in ((u * (1 - 1e-4), 0), (min(u * (1 + 1e-4), (1 + u) / 2), 1)):
            # Two tokens, q = (1/2, 1/2), p(0) = share / 2.
            logits = torch.tensor([[np.log(share / 2), np.log1p(-share / 2)]] * 2, dtype=torch.float32, device=DEVICE)
            rows = kernels.Rows.of_drafts([5], [[0]], device=DEVICE)
            requests = kernels.Requests.of([SamplingParams()], [seed], device=DEVICE)
            law = kernels.DraftLaws.dense(torch.zeros(1, 2, device=DEVICE), torch.ones(1, device=DEVICE))
            for verify in (kernels.verify_rejection, kernels.verify_block):
                assert verify(logits, law, rows, requests).num_accepted.tolist() == [accepted]


def check_faults(kernels):
    """Each request's own: a bad target row, a draft's row, a token that its law can't have drawn."""
    case = Case("logits", [SamplingParams(temperature=0.8)], [2] * 6, seed=9, nearness=0.0)
    case.temperatures = [0.8, 0.8, 0.8, 0.8, 0.0, 0.8]
    case.rows_of(1)[0, 200] = float("nan")
    case.rows_of(2)[0] = -torch.inf
    case.draft_logits[3][0, 150] = float("nan")
    for index in range(5):
        case.drafts[index] = Draft.of_token_ids(case.start(index), [3, 4])
    case.draft_logits[4][0, 77] = 50.0
    case.draft_logits[0][0, 3] = case.draft_logits[0][1, 4] = 9.0
    for operation in OPERATIONS:
        verdict = case.run(kernels, operation)
        assert verdict.faults.tolist() == [0, 1, 2, 3, 3, 0]
        assert [row[0] for row in verdict.token_ids[1:5].tolist()] == [-1] * 4
        assert emitted(verdict)[5:] == case.expected(operation, only=5)


def check_faults_that_nothing_meets(kernels):
    """A bad row behind the token that stops the walk is never read."""
    for operation in OPERATIONS:
        case = Case("point", [SamplingParams(temperature=0.5)], [3] * 3, seed=10)
        for index in range(3):
            rejected = int(case.rows_of(index)[0].argmin())
            case.drafts[index] = Draft.of_token_ids(case.start(index), [rejected, 1, 2])
        expected = case.expected(operation)
        for index in range(3):
            case.rows_of(index)[2] = float("nan")
        verdict = case.run(kernels, operation)
        assert emitted(verdict) == expected
        assert not verdict.faults.any()


def check_bad_probabilities(kernels):
    """Laws whose probabilities sum to something else, or are negative, and a token outside a sparse law."""
    case = Case("probs", [SamplingParams()], [1] * 3, seed=11)
    law = case.draft(kernels)
    law.values[0] *= 1.01
    law.values[1, 5] -= 0.5
    law.values[1, 6] += 0.5
    rows, requests = case.rows(kernels), case.requests(kernels)
    logits = case.logits.to(DEVICE)
    sparse = Case("sparse", [SamplingParams()], [1] * 3, seed=11)
    wrong = sparse.draft(kernels)
    wrong.values[1] *= 0.9
    wrong.token_ids[2] += 1
    for verify in (kernels.verify_rejection, kernels.verify_block):
        assert verify(logits, law, rows, requests).faults.tolist() == [3, 3, 0]
        sparse_rows, sparse_requests = sparse.rows(kernels), sparse.requests(kernels)
        found = verify(sparse.logits.to(DEVICE), wrong, sparse_rows, sparse_requests)
        assert found.faults.tolist()[:2] == [0, 3]


def check_outside_vocabularies(kernels):
    """A drafted id beyond the target's vocabulary is rejected; a draft's vocabulary may be larger or smaller."""
    for draft_size in (450, 630):
        case = Case("logits", [SamplingParams(temperature=1.0)], [2] * 4, seed=12)
        case.temperatures = [1.0] * 4
        for index in range(4):
            wide = torch.zeros(2, 630)
            wide[:, :600] = case.draft_logits[index]
            wide[:, 600:] += 6.0 if index % 2 else 0.0
            case.draft_logits[index] = wide[:, :draft_size].contiguous()
            params = CHAIN.resolve(SamplingParams(temperature=1.0), None, draft_size)
            laws = CHAIN.laws(case.draft_logits[index], params, [History([1])] * 2)
            draft = Draft.empty(case.start(index))
            for law in laws:
                draft = draft.draw(law, KeyedNoise(case.seed(index)))
            case.drafts[index] = draft
        agrees(kernels, case)


def check_empty_residual(kernels):
    """Where rounding leaves no residual, the token comes from the target's law: never token 0, never the last one."""
    # p's only token has q = 1 - 1e-8 rounded to 1, and the drafted token has q > 0 and p = 0.
    logits = torch.full((2, 100), -torch.inf)
    logits[:, 40] = 0.0
    probs = torch.zeros(1, 100)
    probs[0, 40], probs[0, 7] = 1.0, 1e-8
    rows = kernels.Rows.of_drafts([5], [[7]], device=DEVICE)
    requests = kernels.Requests.of([SamplingParams()], [3], device=DEVICE)
    law = kernels.DraftLaws.dense_probs(probs.to(DEVICE))
    for verify in (kernels.verify_rejection, kernels.verify_block):
        assert emitted(verify(logits.to(DEVICE), law, rows, requests)) == [[40]]


CHECKS = [
    check_coins_at_the_edge,
    check_faults,
    check_faults_that_nothing_meets,
    check_bad_probabilities,
    check_outside_vocabularies,
    check_empty_residual,
]
