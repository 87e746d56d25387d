"""What `verify_rejection`, `verify_block` and `target_probs` must do, small enough for the interpreter.

Each check takes the package of kernels to be checked. Expected tokens come from the library's own chain and verifiers.
"""

import numpy as np
import torch

from draftproof.core import Dense, Draft, Key, PointMass, Purpose
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.verify import get_verifier

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILE = 256
OPERATIONS = ("rejection", "block")
FILTERS = [
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, top_p=0.6),
    SamplingParams(temperature=1.0, top_k=7, top_p=0.8),
    SamplingParams(temperature=1.2, min_p=0.1),
    SamplingParams(temperature=1.0, top_p=0.95),
    SamplingParams(temperature=3.0, top_k=150),
]
CHAIN = SamplerChain("vllm")


class Case:
    """Requests with logits, a draft that was drawn from its law, and what the library's verifiers emit."""

    def __init__(
        self, kind, params, lengths, *, vocab_size=600, seed=0, nearness=0.7, spread=2.0, step=0.0, dtype=None
    ):
        self.generator = torch.Generator().manual_seed(seed)
        self.params = [params[index % len(params)] for index in range(len(lengths))]
        self.lengths, self.vocab_size, self.kind, self.base_seed = lengths, vocab_size, kind, 1000 * seed
        logits = self.normal(sum(lengths) + len(lengths)) * spread
        self.logits = self.rounded(logits, step, dtype)
        self.temperatures = [(0.8, 1.0, 0.0, 1.3)[index % 4] for index in range(len(lengths))]
        self.draft_logits, self.drafts, self.laws_of_drafts = [], [], []
        for index, length in enumerate(lengths):
            rows = self.rounded(self.rows_of(index)[:length].float() + self.normal(length) * nearness, step, dtype)
            self.draft_logits.append(rows)
            draft = Draft.empty(self.start(index))
            for law in self.draft_laws(index):
                draft = draft.draw(law, KeyedNoise(self.seed(index)))
            self.drafts.append(draft)

    def normal(self, num_rows):
        return torch.randn(num_rows, self.vocab_size, generator=self.generator)

    @staticmethod
    def rounded(logits, step, dtype):
        logits = torch.round(logits / step) * step if step else logits
        return logits if dtype is None else logits.to(dtype)

    def seed(self, index):
        return (1 << 63) + self.base_seed + index

    @staticmethod
    def start(index):
        return 5 + 3 * index

    def rows_of(self, index):
        first = sum(self.lengths[:index]) + index
        return self.logits[first : first + self.lengths[index] + 1]

    def draft_laws(self, index):
        rows = self.draft_logits[index]
        if not len(rows):
            return []
        if self.kind == "point":
            return [PointMass(int(row.float().argmax())) for row in rows]
        params = SamplingParams(temperature=self.temperatures[index], top_k=9 if self.kind == "sparse" else 0)
        if self.kind == "sparse" and params.temperature == 0:
            params = SamplingParams(temperature=0.7, top_k=5)
        laws = CHAIN.laws(rows, CHAIN.resolve(params, None, self.vocab_size), [History([1])] * len(rows))
        if self.kind != "probs":
            return laws
        return [Dense(law.at(None, self.vocab_size).astype(np.float32)) for law in laws]

    def target_laws(self, index):
        params = CHAIN.resolve(self.params[index], None, self.vocab_size)
        return CHAIN.laws(self.rows_of(index), params, [History([1])] * (self.lengths[index] + 1))

    def expected(self, operation, only=None):
        verifier = get_verifier(operation)
        verdicts = [
            verifier.verify(self.drafts[index], self.target_laws(index), KeyedNoise(self.seed(index)))
            for index in (range(len(self.drafts)) if only is None else [only])
        ]
        return [list(verdict.token_ids) for verdict in verdicts]

    def rows(self, kernels):
        starts = [self.start(index) for index in range(len(self.lengths))]
        return kernels.Rows.of_drafts(starts, [list(draft.token_ids) for draft in self.drafts], device=DEVICE)

    def requests(self, kernels):
        seeds = [self.seed(index) for index in range(len(self.lengths))]
        return kernels.Requests.of(self.params, seeds, device=DEVICE)

    def draft(self, kernels):
        if self.kind == "point":
            return kernels.DraftLaws.point_masses()
        laws = [law for draft in self.drafts for law in draft.laws]
        if self.kind == "sparse":
            width = 16
            ids, probs = torch.full((len(laws), width), -1, dtype=torch.int32), torch.zeros(len(laws), width)
            for row, law in enumerate(laws):
                values, token_ids = law.weights()
                if token_ids is None:
                    token_ids = np.flatnonzero(values)
                    values = values[token_ids]
                ids[row, : len(values)] = torch.from_numpy(np.asarray(token_ids)).int()
                probs[row, : len(values)] = torch.from_numpy(np.asarray(values, dtype=np.float32))
            return kernels.DraftLaws.sparse(ids.to(DEVICE), probs.to(DEVICE))
        if self.kind == "probs":
            probs = [torch.from_numpy(law.at(None, self.vocab_size)) for law in laws]
            return kernels.DraftLaws.dense_probs(torch.stack(probs).to(DEVICE))
        temperature = torch.tensor(self.temperatures, dtype=torch.float32, device=DEVICE)
        return kernels.DraftLaws.dense(torch.cat(self.draft_logits).to(DEVICE), temperature)

    def run(self, kernels, operation, **given):
        rows, draft = self.rows(kernels), self.draft(kernels)
        logits = self.logits.to(DEVICE)
        block = operation == "block"
        kernel = kernels.RatioKernel(logits, draft, rows, self.vocab_size, block=block, tile=TILE)
        return kernel(logits, draft, rows, self.requests(kernels), **given)


def emitted(verdict):
    return [[token for token in row if token >= 0] for row in verdict.token_ids.tolist()]


def agrees(kernels, case):
    for operation in OPERATIONS:
        verdict, expected = case.run(kernels, operation), case.expected(operation)
        assert not verdict.faults.any()
        assert emitted(verdict) == expected
        assert verdict.num_accepted.tolist() == [len(tokens) - 1 for tokens in expected]
        paths = [[row for row in rows if row >= 0] for rows in verdict.accepted_rows.tolist()]
        assert paths == [list(range(1, len(tokens))) for tokens in expected]


def check_mixed_batch(kernels, kind="logits", seed=1):
    """All filters in one batch, ragged lengths, a greedy draft among them, bf16."""
    agrees(kernels, Case(kind, FILTERS, [3, 2, 4, 2, 3, 0, 2], seed=seed, dtype=torch.bfloat16))


def check_law_without_filters(kernels, kind="logits"):
    """Long drafts that are often accepted: prefixes' masses below 1, residuals at every length."""
    for seed in (2, 3):
        agrees(kernels, Case(kind, FILTERS[:1], [6] * 5, seed=seed, nearness=0.5, vocab_size=70))


def check_short(kernels):
    """Small laws without filters: half of the drafts are rejected somewhere, the others earn a bonus."""
    agrees(kernels, Case("logits", FILTERS[:1], [3] * 10, seed=21, nearness=0.6, vocab_size=90))


def check_filters(kernels):
    """Top-p, top-k with top-p and greedy rows, with drafts whose tokens the filters drop."""
    agrees(kernels, Case("logits", FILTERS[1:4], [2] * 9, seed=22, nearness=0.6, vocab_size=90))


def check_top_p(kernels):
    """Top-p alone, narrow and wide, over many tiles, with many equal logits too."""
    params = [SamplingParams(temperature=1.0, top_p=top_p) for top_p in (0.05, 0.5, 0.9, 0.999)]
    agrees(kernels, Case("logits", params, [3] * 4, seed=4, spread=1.0, nearness=0.3))
    agrees(kernels, Case("point", params, [2] * 4, seed=5, spread=1.0, step=0.5, nearness=0.3))


def check_last_kept_mass(kernels):
    """The kept mass is .8 where top_p is .6: tests between the two need the last kept token's own mass."""
    case = Case("point", [SamplingParams(temperature=1.0, top_p=0.6)], [1] * 20, seed=16, spread=0.0, vocab_size=3)
    case.logits[:] = torch.tensor([0.5, 0.3, 0.2]).log()
    agrees(kernels, case)


def check_ties(kernels):
    """Equal logits at every filter's edge and at the greedy top."""
    agrees(kernels, Case("logits", FILTERS[1:5], [2] * 4, seed=6, spread=1.5, step=1.0, nearness=0.5))


def check_equal_laws(kernels):
    """p = q: whatever was drafted is accepted, whatever the coins."""
    case = Case("logits", [SamplingParams(temperature=0.8)], [4] * 3, seed=7, nearness=0.0)
    case.temperatures = [0.8] * 3
    for index in range(3):
        draft = Draft.empty(case.start(index))
        for law in case.draft_laws(index):
            draft = draft.draw(law, KeyedNoise(case.seed(index)))
        case.drafts[index] = draft
    for operation in OPERATIONS:
        verdict = case.run(kernels, operation)
        assert verdict.num_accepted.tolist() == [4] * 3
    agrees(kernels, case)


def check_disjoint_laws(kernels):
    """The draft's tokens have no mass under the target: nothing is accepted, and what comes is the target's."""
    case = Case("logits", [SamplingParams(temperature=1.0), FILTERS[2], FILTERS[3]], [2] * 3, seed=8)
    for index in range(3):
        case.rows_of(index)[:, ::2] = -torch.inf
        case.draft_logits[index] = case.rows_of(index)[:2].roll(1, dims=1)
        case.temperatures[index] = 1.0
        draft = Draft.empty(case.start(index))
        for law in case.draft_laws(index):
            draft = draft.draw(law, KeyedNoise(case.seed(index)))
        case.drafts[index] = draft
    assert not case.run(kernels, "rejection").num_accepted.any()
    agrees(kernels, case)


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


def check_penalties_and_masks(kernels):
    """Penalised, biased, drafted and masked tokens, in p and in the residual alike."""
    for filters in ({"temperature": 1.3}, {"temperature": 1.0, "top_p": 0.8}, {"temperature": 1.0, "top_k": 12}):
        params = SamplingParams(
            repetition_penalty=1.7, frequency_penalty=0.6, presence_penalty=0.9,
            logit_bias={3: 4.0, 9: 3.0, 77: -float("inf"), 11: -3.0}, **filters,
        )  # fmt: skip
        masked = SamplingParams(
            repetition_penalty=1.7, frequency_penalty=0.6, presence_penalty=0.9,
            logit_bias={3: 4.0, 9: 3.0, 77: -float("inf"), 11: -3.0}, allowed_token_ids=list(range(1, 90)), **filters,
        )  # fmt: skip
        prompt, output = [5, 9, 9, 20, 11], [7, 9, 46]
        case = Case("logits", [params], [3] * 3, seed=13, vocab_size=90, nearness=0.4, spread=1.0)
        base = History(prompt, output)
        rows, draft, requests = case.rows(kernels), case.draft(kernels), []
        requests = kernels.Requests.of(
            [params] * 3, [case.seed(index) for index in range(3)], device=DEVICE, changed=True
        )
        changes = kernels.Changes.of([params] * 3, [prompt] * 3, [output] * 3, device=DEVICE)
        words = torch.full((12, 3), -1, dtype=torch.int32)
        words[:, 0] = -2
        for operation, verify in (("rejection", kernels.verify_rejection), ("block", kernels.verify_block)):
            expected = []
            for index, drafted in enumerate(case.drafts):
                paths = [list(drafted.token_ids[:length]) for length in range(4)]
                laws = CHAIN.laws(
                    case.rows_of(index), CHAIN.resolve(masked, None, 90), [base.extended(path) for path in paths]
                )
                verdict = get_verifier(operation).verify(drafted, laws, KeyedNoise(case.seed(index)))
                expected.append(list(verdict.token_ids))
            found = verify(case.logits.to(DEVICE), draft, rows, requests, changes=changes, allowed=words.to(DEVICE))
            assert emitted(found) == expected


def check_likely_drafts(kernels):
    """Drafted tokens of the largest logits: accepted as they are, hardly ever once penalised, never where masked."""
    drafts, lengths = [[40, 41], [41, 40], [40, 40]], []
    logits = torch.randn(9, 90, generator=torch.Generator().manual_seed(4))
    logits[:, 40:42] = 7.0
    rows = kernels.Rows.of_drafts([6] * 3, drafts, device=DEVICE)
    words = torch.full((9, 3), -1, dtype=torch.int32)
    words[:, 1] -= 1 << 41 - 32
    for given, output in (
        ({"allowed_token_ids": [token for token in range(90) if token != 41]}, []),
        ({"frequency_penalty": 2.0, "logit_bias": {50: 1.0}}, [41] * 6),
    ):
        params = SamplingParams(temperature=1.0, **given)
        masked = not output
        requests = kernels.Requests.of([params] * 3, [1, 2, 3], device=DEVICE, changed=not masked, masked=masked)
        changes = None if masked else kernels.Changes.of([params] * 3, [[]] * 3, [output] * 3, device=DEVICE)
        for operation, verify in (("rejection", kernels.verify_rejection), ("block", kernels.verify_block)):
            expected = []
            for index, drafted in enumerate(drafts):
                histories = [History([], output).extended(drafted[:length]) for length in range(3)]
                laws = CHAIN.laws(logits[3 * index : 3 * index + 3], CHAIN.resolve(params, None, 90), histories)
                draft = Draft.of_token_ids(6, drafted)
                verdict = get_verifier(operation).verify(draft, laws, KeyedNoise(index + 1))
                expected.append(list(verdict.token_ids))
            law, allowed = kernels.DraftLaws.point_masses(), words.to(DEVICE) if masked else None
            found = verify(logits.to(DEVICE), law, rows, requests, changes=changes, allowed=allowed)
            assert emitted(found) == expected
            lengths.append([*map(len, expected)])
    assert lengths == [[2, 1, 3]] * 4


def check_greedy_beside_a_hint(kernels):
    """Greedy requests in a kernel that was told that there are none."""
    logits = torch.round(torch.randn(6, 400, generator=torch.Generator().manual_seed(8)) * 2).bfloat16()
    best = [row.index(max(row)) for row in logits.float().tolist()]
    rows = kernels.Rows.of_drafts([3, 3], [[best[0], best[1] + 1], [best[3], best[4]]], device=DEVICE)
    requests = kernels.Requests.of([SamplingParams()] * 2, [1, 2], device=DEVICE)
    assert requests.unfiltered
    requests.temperature.zero_()
    for verify in (kernels.verify_rejection, kernels.verify_block):
        found = verify(logits.to(DEVICE), kernels.DraftLaws.point_masses(), rows, requests)
        assert emitted(found) == [best[:2], best[3:]]


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


def check_target_probs(kernels):
    """Within 1e-6 of the chain's laws, filtered tokens exactly 0, nothing written beyond the vocabulary."""
    for step in (0.0, 0.5):
        case = Case(
            "point", [*FILTERS, SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05)], [0] * 8, seed=14, step=step
        )
        writes_laws(kernels, case)


def check_parts(kernels):
    """Several programs a row, each with a share of the many equal logits at top-p's edge; and with too many to list."""
    params = [SamplingParams(temperature=1.0, top_p=top_p) for top_p in (0.3, 0.6, 0.95)]
    for step in (0.05, 0.5):
        writes_laws(kernels, Case("point", params, [0] * 3, seed=17, spread=1.0, step=step, vocab_size=4096))


def writes_laws(kernels, case):
    num_rows, vocab_size = case.logits.shape
    rows, requests = case.rows(kernels), case.requests(kernels)
    out = torch.full((num_rows, vocab_size + 10), 7.0, device=DEVICE)
    logits = case.logits.to(DEVICE)
    kernel = kernels.TargetProbsKernel(logits, rows, vocab_size, tile=TILE)
    faults = kernel(logits, rows, requests, out)
    assert not faults.any()
    assert (out[:, vocab_size:] == 7.0).all()
    for index in range(num_rows):
        law = np.asarray(case.target_laws(index)[0].at(None, vocab_size), dtype=np.float64)
        found = out[index, :vocab_size].cpu().double().numpy()
        assert np.abs(found - law).max() < 1e-6
        assert ((found == 0) == (law == 0)).all()


def check_target_probs_of_bad_rows(kernels):
    """NaN throughout, and a fault; masked and biased tokens elsewhere."""
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(15))
    logits[1, 50] = float("nan")
    rows = kernels.Rows.of_drafts([1, 2, 3], [[], [], []], device=DEVICE)
    words = torch.full((3, 4), -1, dtype=torch.int32)
    words[2] = 0
    words[0, 1] = 0
    params = SamplingParams(logit_bias={3: 2.0, 40: 9.0})
    requests = kernels.Requests.of([params] * 3, [1, 2, 3], device=DEVICE, changed=True)
    changes = kernels.Changes.of([params] * 3, [[1]] * 3, [[]] * 3, device=DEVICE)
    out = torch.zeros(3, 100, device=DEVICE)
    faults = kernels.target_probs(logits.to(DEVICE), rows, requests, out, allowed=words.to(DEVICE), changes=changes)
    assert faults.tolist() == [0, 1, 2]
    assert out[1:].isnan().all()
    logits[0, 3] += 2.0
    logits[0, 32:64] = -torch.inf
    assert torch.allclose(out[0].cpu(), logits[0].softmax(dim=0), atol=1e-6, rtol=0)
    assert (out[0, 32:64] == 0).all()


CHECKS = [
    check_short, check_filters, check_mixed_batch, check_law_without_filters, check_top_p, check_ties, check_equal_laws,
    check_disjoint_laws, check_coins_at_the_edge, check_faults, check_faults_that_nothing_meets,
    check_bad_probabilities, check_outside_vocabularies, check_penalties_and_masks, check_likely_drafts,
    check_greedy_beside_a_hint, check_empty_residual, check_target_probs, check_parts, check_last_kept_mass,
    check_target_probs_of_bad_rows,
]  # fmt: skip
