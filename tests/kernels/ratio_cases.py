"""Requests, drafts and laws for checks of `rejection`, `block` and `target_probs`, and what the library makes of them.

Small enough for the interpreter. Expected tokens come from the library's own chain and verifiers.
"""

import numpy as np
import torch

from draftproof.core import Dense, Draft, PointMass
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
            self.drafts.append(self.drawn(index))

    def normal(self, num_rows):
        return torch.randn(num_rows, self.vocab_size, generator=self.generator)

    @staticmethod
    def rounded(logits, step, dtype):
        logits = torch.round(logits / step) * step if step else logits
        return logits if dtype is None else logits.to(dtype)

    def drawn(self, index):
        draft = Draft.empty(self.start(index))
        for law in self.draft_laws(index):
            draft = draft.draw(law, KeyedNoise(self.seed(index)))
        return draft

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


def agrees(kernels, case, operations=OPERATIONS):
    for operation in operations:
        verdict, expected = case.run(kernels, operation), case.expected(operation)
        assert not verdict.faults.any()
        assert emitted(verdict) == expected
        assert verdict.num_accepted.tolist() == [len(tokens) - 1 for tokens in expected]
        paths = [[row for row in rows if row >= 0] for rows in verdict.accepted_rows.tolist()]
        assert paths == [list(range(1, len(tokens))) for tokens in expected]


def check_faults(kernels, params, seed):
    """Bad rows where a walk of `rejection` stops, which end their requests, and behind the token that stops it."""
    case = Case("point", params, [2] * 4, seed=seed)
    for index in range(4):
        case.drafts[index] = Draft.of_token_ids(case.start(index), [int(case.rows_of(index)[0].argmin()), 1])
    expected = case.expected("rejection")
    case.rows_of(0)[0, 100] = float("nan")
    case.rows_of(1)[0] = -torch.inf
    case.rows_of(2)[1] = float("nan")
    verdict = case.run(kernels, "rejection")
    assert verdict.faults.tolist() == [1, 2, 0, 0]
    assert emitted(verdict) == [[], [], *expected[2:]]
