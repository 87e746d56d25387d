"""What `verify_rejection` and `verify_block` must do, small enough for the interpreter.

Each check takes the package of kernels to be checked.
"""

import torch

from draftproof.core import Draft
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History
from draftproof.verify import get_verifier
from tests.kernels.ratio_cases import CHAIN, DEVICE, FILTERS, OPERATIONS, TILE, Case, agrees, emitted


def check_mixed_batch(kernels, kind="logits", seed=1):
    """All filters in one batch, ragged lengths, a greedy draft among them, bf16."""
    agrees(kernels, Case(kind, FILTERS, [3, 2, 4, 2, 3, 0, 2], seed=seed, dtype=torch.bfloat16))


def check_law_without_filters(kernels, kind="logits"):
    """Long drafts that are often accepted: prefixes' masses below 1, residuals at every length."""
    for seed in (2, 3):
        agrees(kernels, Case(kind, FILTERS[:1], [6] * 5, seed=seed, nearness=0.5, vocab_size=70))


def check_sparse(kernels):
    """Drafts from a few likely tokens each, of which filters drop some."""
    check_mixed_batch(kernels, "sparse", seed=20)


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


def check_brackets(kernels):
    """Many short drafts under top-p alone: what a bracket tells of tests and of prefixes, and what it can't tell."""
    params = [SamplingParams(temperature=0.9, top_p=top_p) for top_p in (0.3, 0.6, 0.8, 0.95)]
    agrees(kernels, Case("logits", params, [4] * 12, seed=23, nearness=0.5, vocab_size=90))
    agrees(kernels, Case("sparse", params, [3] * 8, seed=24, nearness=0.5, step=0.25, vocab_size=60))


def check_kept_before_bounds(kernels):
    """What top-p makes of drafted tokens is known before bounds are: equal logits in tiles before, beside and after."""
    top_ps = (0.6, 0.3, 0.6)
    params = [SamplingParams(temperature=1.0, top_p=top_p) for top_p in top_ps]
    case = Case("logits", params, [5] * 3, seed=33, spread=1.0, step=0.5, vocab_size=1100)
    case.logits[6:] = -2.0
    case.logits[6:, : 27 * 40 : 27] = 2.0  # top-p keeps 17 and 36 of these
    case.logits[6:12, 27 * 37] = 2.5
    laws = case.logits.double().softmax(1)
    drawn = laws.multinomial(1, generator=case.generator)[:, 0]
    drawn[6:11], drawn[12:17] = 27 * torch.tensor([16, 17, 18, 19, 30]), 27 * torch.tensor([34, 35, 36, 37, 2])
    surely = 40.0 * torch.nn.functional.one_hot(drawn, case.vocab_size).float()
    case.draft_logits = [surely[6 * i : 6 * i + 5] for i in range(3)]
    case.drafts = [case.drawn(i) for i in range(3)]
    rows, draft, logits = case.rows(kernels), case.draft(kernels), case.logits.to(DEVICE)
    kernel = kernels.RatioKernel(logits, draft, rows, case.vocab_size, block=True, tile=TILE)
    assert emitted(kernel(logits, draft, rows, case.requests(kernels))) == case.expected("block")
    ids, states = torch.arange(case.vocab_size), []
    for row in range(18):
        z, drafted = case.logits[row], int(drawn[row])
        before = laws[row, (z > z[drafted]) | ((z == z[drafted]) & (ids < drafted))].sum()
        states.append(3 if row % 6 == 5 else 4 if before < top_ps[row // 6] else 1)
    assert kernel._rows[1].tolist() == states
    assert states[:6].count(4) > 0 and states[:6].count(1) > 0


def check_last_kept_mass(kernels):
    """The kept mass is .8 where top_p is .6: tests between the two need the last kept token's own mass."""
    case = Case("point", [SamplingParams(temperature=1.0, top_p=0.6)], [1] * 20, seed=16, spread=0.0, vocab_size=3)
    case.logits[:] = torch.tensor([0.5, 0.3, 0.2]).log()
    agrees(kernels, case)


def check_dropped_drafts(kernels):
    """A first token that may pass, whose coin fails for some; a second that top-p surely drops."""
    case = Case("logits", [SamplingParams(temperature=1.0, top_p=0.4)], [2] * 12, seed=62, spread=0.0, vocab_size=4)
    case.logits[1::3] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    laws = torch.tensor([[1.0, 1e-9, 1e-9, 1e-9], [1e-9, 0.5, 0.5, 1e-9]]).log()
    case.draft_logits, case.temperatures = [laws] * 12, [1.0] * 12
    case.drafts = [case.drawn(index) for index in range(12)]
    agrees(kernels, case, operations=("block",))


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


def check_contenders(kernels):
    """Seeds at which the token of the third best bound wins: two of three tokens are scored before it."""
    seeds, params = [58, 65, 179, 598], SamplingParams(temperature=1.0)
    logits = torch.tensor([[0.45, 0.45, 0.1]]).log()
    laws = CHAIN.laws(logits, CHAIN.resolve(params, None, 3), [History([1])])
    expected = [
        list(get_verifier("rejection").verify(Draft.empty(5), laws, KeyedNoise(seed)).token_ids) for seed in seeds
    ]
    rows = kernels.Rows.of_drafts([5] * 4, [[]] * 4, device=DEVICE)
    requests = kernels.Requests.of([params] * 4, seeds, device=DEVICE)
    law = kernels.DraftLaws.point_masses()
    assert (
        emitted(kernels.verify_rejection(logits.expand(4, 3).contiguous().to(DEVICE), law, rows, requests)) == expected
    )


def check_splits(kernels):
    """Rows that several programs race, and weigh."""
    params = [SamplingParams(temperature=1.0, top_p=0.9)]
    for case in (
        Case("logits", FILTERS[:1], [2] * 3, seed=9, vocab_size=1100),
        Case("logits", params, [1] * 2, seed=10, spread=1.0, vocab_size=9000),
    ):
        rows, draft, logits = case.rows(kernels), case.draft(kernels), case.logits.to(DEVICE)
        kernel = kernels.RatioKernel(logits, draft, rows, case.vocab_size, block=False, tile=TILE)
        for tensor, value in zip(kernel._racers, (1000, -1000, 1000, 0), strict=True):
            tensor.fill_(value)
        assert emitted(kernel(logits, draft, rows, case.requests(kernels))) == case.expected("rejection")


def check_top_k_edge(kernels):
    """Drafted tokens that are the k-th of the tiles' maxima, alone and beside rows without filters, in many rows."""
    alone = [SamplingParams(temperature=1.0, top_k=2)]
    for params in (alone, [*alone, SamplingParams(temperature=1.0)]):
        case = Case("point", params, [1] * 8, seed=25)
        case.logits[:] = -1.0
        case.logits[:, [10, 300]] = 3.0
        case.drafts = [Draft.of_token_ids(case.start(index), [300]) for index in range(8)]
        assert len({len(tokens) for tokens in case.expected("rejection")[::2]}) == 2
        agrees(kernels, case)
        rows, draft, logits = case.rows(kernels), case.draft(kernels), case.logits.to(DEVICE)
        for operation in OPERATIONS:
            kernel = kernels.RatioKernel(logits, draft, rows, case.vocab_size, block=operation == "block", tile=TILE)
            kernel._asks_kth = True
            assert emitted(kernel(logits, draft, rows, case.requests(kernels))) == case.expected(operation)


def check_sure_prefixes(kernels):
    """Long drafts under top-p, of which `block` knows for some rows that no test of theirs is asked."""
    params = [SamplingParams(temperature=0.9, top_p=top_p) for top_p in (0.6, 0.8, 0.95, 0.99)]
    # What ranks before a drafted token is summed for laws from logits alone: for others more is unsure.
    for kind in ("logits", "probs"):
        agrees(kernels, Case(kind, params, [6] * 10, seed=61, nearness=0.3, vocab_size=90), operations=("block",))


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


CHECKS = [
    check_mixed_batch,
    check_law_without_filters,
    check_short,
    check_sparse,
    check_filters,
    check_top_p,
    check_brackets,
    check_kept_before_bounds,
    check_last_kept_mass,
    check_dropped_drafts,
    check_ties,
    check_equal_laws,
    check_contenders,
    check_splits,
    check_sure_prefixes,
    check_top_k_edge,
    check_disjoint_laws,
    check_penalties_and_masks,
    check_likely_drafts,
    check_greedy_beside_a_hint,
]
