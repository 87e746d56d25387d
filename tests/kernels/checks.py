"""What the kernels must do, small enough for the interpreter. Each check takes the package of kernels to be checked.

Expected tokens come from the float64 reference or from the library's own chain, never from the kernels.
"""

import torch

from draftproof.kernels import reference
from draftproof.params import SamplingParams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def logits_of(num_rows, vocab_size, spread=1.5, step=0.0, seed=3):
    """[rows, V] bf16; `step` rounds to multiples, so that many are equal."""
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    return (torch.round(logits / step) * step if step else logits).bfloat16().to(DEVICE)


def draws_as_the_reference(kernels, logits, params, *, start=5, splits=None):
    """One row for each request, all parameters alike, seeds and sample indices of more than 32 and 16 bits."""
    num_rows, vocab_size = logits.shape
    rows = kernels.Rows.of_drafts([start + 3 * index for index in range(num_rows)], [[]] * num_rows, device=DEVICE)
    seeds = [(1 << 63) + (index << 33) + index for index in range(num_rows)]
    indices = [index * 70001 for index in range(num_rows)]
    requests = kernels.Requests.of([params] * num_rows, seeds, indices, device=DEVICE)
    kernel = kernels.KeyedKernel(logits, rows, vocab_size)
    if splits is not None:
        kernel = kernels.KeyedKernel(logits, rows, vocab_size, splits=splits)
    verdict = kernel(logits, rows, requests)
    assert not verdict.faults.any()
    assert verdict.token_ids[:, 0].tolist() == reference.draw(logits, rows, requests, vocab_size).tolist()


def check_noise(kernels):
    draws_as_the_reference(kernels, logits_of(5, 1024), SamplingParams(temperature=1.0))


def check_slots(kernels):
    """Eight quads of one slot, whose bounds promise more than they hold: each in a tile of its own, or four in a tile.

    A quad promises by its smallest word and is given its logit at its largest, but for the one that must win: the
    second or the third by what they promise.
    """
    num_rows, part, num_parts = 3, 256, 8
    for rank in (1, 2):
        rows = kernels.Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device="cpu")
        requests = kernels.Requests.of([SamplingParams()] * num_rows, [4] * num_rows, device="cpu")
        words = reference.field(rows, requests, part * num_parts).reshape(num_rows, num_parts, part)[:, :, 20:24]
        logits, expected = torch.full((num_rows, part * num_parts), -20.0), []
        for row in range(num_rows):
            order = words[row].min(dim=1).values.argsort().tolist()
            lanes = words[row].argmax(dim=1).tolist()
            lanes[order[rank]] = int(words[row, order[rank]].argmin())
            ids = [part * index + 20 + lane for index, lane in enumerate(lanes)]
            logits[row, [ids[index] for index in order[: rank + 1]]] = 10.0
            expected.append(ids[order[rank]])
        rows = kernels.Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device=DEVICE)
        requests = kernels.Requests.of([SamplingParams()] * num_rows, [4] * num_rows, device=DEVICE)
        logits = logits.bfloat16().to(DEVICE)
        assert reference.draw(logits, rows, requests, part * num_parts).tolist() == expected
        for tile, splits in ((256, 1), (1024, 1), (1024, 2)):
            kernel = kernels.KeyedKernel(logits, rows, part * num_parts, tile=tile, splits=splits)
            assert kernel(logits, rows, requests).token_ids[:, 0].tolist() == expected


def check_peaked_rows(kernels):
    """Likely tokens whose quads share a slot of one tile, as those of a comma, a full stop and "the" may."""
    logits, starts = logits_of(12, 1024, spread=2.0), list(range(12))
    logits[:, [28, 284, 540, 796]] = logits_of(12, 4, spread=1.0, seed=4) + 11.0
    for params in (SamplingParams(temperature=0.7), SamplingParams(temperature=1.0, top_p=0.6)):
        rows = kernels.Rows.of_drafts(starts, [[]] * 12, device=DEVICE)
        requests = kernels.Requests.of([params] * 12, starts, device=DEVICE)
        token_ids = kernels.KeyedKernel(logits, rows, 1024, tile=1024)(logits, rows, requests).token_ids[:, 0]
        assert token_ids.tolist() == reference.draw(logits, rows, requests, 1024).tolist()


def check_long_split(kernels):
    """A split of so many tiles that one slot of it is looked at twice: its last quads are the likely ones."""
    vocab_size, last = 256 * 66, 256 * 64 + 20
    rows = kernels.Rows.of_drafts([3], [[]], device=DEVICE)
    requests = kernels.Requests.of([SamplingParams()], [4], device=DEVICE)
    words = reference.field(rows, requests, vocab_size)[0, last:].unfold(0, 4, 256)  # [2, 4]
    loser, winner = words.min(dim=1).values.argsort().tolist()
    ids = [last + 256 * loser + int(words[loser].argmax()), last + 256 * winner + int(words[winner].argmin())]
    logits = torch.full((1, vocab_size), -20.0, device=DEVICE)
    logits[0, ids] = 10.0
    assert reference.draw(logits, rows, requests, vocab_size).tolist() == ids[1:]
    kernel = kernels.KeyedKernel(logits, rows, vocab_size, tile=256, splits=1)
    assert kernel(logits, rows, requests).token_ids[:, 0].tolist() == ids[1:]


def check_slack(kernels):
    """The likelier token of a quad, by its bound, has the lower score: the other one wins all the same."""
    num_rows, vocab_size = 4, 256
    rows = kernels.Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device="cpu")
    requests = kernels.Requests.of([SamplingParams()] * num_rows, [4] * num_rows, device="cpu")
    words = reference.field(rows, requests, vocab_size)
    whole = words.double().log2().floor()
    slack = reference.exponential(words).log2() - (whole + words / whole.exp2() - 33)  # a bound's, in bits
    logits, expected = torch.full((num_rows, vocab_size), -20.0), []
    for row, slacks in enumerate(slack.reshape(num_rows, -1, 4)):
        quad = int((slacks.amax(dim=1) - slacks.amin(dim=1)).argmax())
        promising, winner = 4 * quad + int(slacks[quad].argmax()), 4 * quad + int(slacks[quad].argmin())
        behind = (slack[row, promising] - slack[row, winner]) / 2 * torch.log(torch.tensor(2.0))
        assert behind > 0.02
        race = reference.exponential(words[row, [promising, winner]]).log()
        logits[row, winner], logits[row, promising] = 0.0, race[0] - race[1] - behind
        expected.append(winner)
    rows = kernels.Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device=DEVICE)
    requests = kernels.Requests.of([SamplingParams()] * num_rows, [4] * num_rows, device=DEVICE)
    logits = logits.to(DEVICE)
    assert reference.draw(logits, rows, requests, vocab_size).tolist() == expected
    assert kernels.verify_keyed(logits, rows, requests).token_ids[:, 0].tolist() == expected


def check_tiles(kernels):
    """Several tiles read one after the other, the last of them not whole."""
    draws_as_the_reference(kernels, logits_of(3, 1400), SamplingParams(temperature=1.0), splits=1)


def check_flat_rows(kernels):
    draws_as_the_reference(kernels, logits_of(24, 4, spread=1.0), SamplingParams(temperature=1.0))


def check_odd_rows(kernels):
    draws_as_the_reference(kernels, logits_of(3, 1021).float(), SamplingParams(temperature=1.0))


def check_top_k(kernels):
    """Ties at the k-th place are kept."""
    draws_as_the_reference(kernels, logits_of(8, 250, step=0.5), SamplingParams(temperature=5.0, top_k=3))


def check_top_k_top_p(kernels):
    draws_as_the_reference(kernels, logits_of(8, 250, step=0.25), SamplingParams(temperature=2.0, top_k=30, top_p=0.5))


def check_min_p(kernels):
    """A token of exactly the largest probability is kept by min_p = 1."""
    draws_as_the_reference(kernels, logits_of(3, 300, step=0.5), SamplingParams(temperature=1.0, min_p=1.0))
    draws_as_the_reference(kernels, logits_of(6, 300), SamplingParams(temperature=3.0, min_p=0.3, top_p=0.9))


def check_float_groups(kernels):
    """A token just above min-p's threshold, whose logit no bfloat16 is equal to, in a group of its own."""
    logits = torch.full((12, 512), -50.0)
    logits[:, 3], logits[:, 20] = 100.0, 99.32
    draws_as_the_reference(kernels, logits.to(DEVICE), SamplingParams(temperature=1.0, min_p=0.5))


def check_top_p(kernels):
    """Winners are dropped often; a small part of the vocabulary is kept; masses come from several tiles."""
    params = SamplingParams(temperature=1.0, top_p=0.3)
    draws_as_the_reference(kernels, logits_of(6, 700, spread=1.0), params, splits=3)
    draws_as_the_reference(kernels, logits_of(6, 1400, spread=1.0), SamplingParams(temperature=1.0, top_p=0.6))


def check_top_p_of_many_rows(kernels):
    """Rows whose masses a launch of its own sums, where winners are dropped often; three of four parts have tiles."""
    for num_rows, vocab_size in ((66, 600), (18, 2400)):
        logits = logits_of(num_rows, vocab_size, spread=1.0)
        draws_as_the_reference(kernels, logits, SamplingParams(temperature=1.0, top_p=0.3))


def check_top_p_near_ties(kernels):
    """Top-p a hair beside the mass before the winner: float32 sums can't tell, and all ways of reading a row agree."""
    vocab_size, num_rows = 700, 2
    logits = logits_of(num_rows, vocab_size, spread=1.0)
    starts = list(range(num_rows))
    rows = kernels.Rows.of_drafts(starts, [[]] * num_rows, device=DEVICE)
    plain = kernels.Requests.of([SamplingParams()] * num_rows, starts, device=DEVICE)
    law = reference.probs(logits, rows, plain, vocab_size)
    ratios = reference.exponential(reference.field(rows, plain, vocab_size)) / law
    params, repeated = [], []
    for row, winner in enumerate(ratios.argmin(dim=1).tolist()):
        before = (
            law[row][law[row] > law[row, winner]].sum() + law[row, :winner][law[row, :winner] == law[row, winner]].sum()
        )
        for step in range(-4, 4):
            params.append(SamplingParams(top_p=before.item() * (1 + step * 1.7e-8)))
            repeated.append(row)
    logits, starts, count = logits[repeated].contiguous(), [starts[row] for row in repeated], len(repeated)
    rows = kernels.Rows.of_drafts(starts, [[]] * count, device=DEVICE)
    requests = kernels.Requests.of(params, starts, device=DEVICE, changed=True)
    found = [
        kernels.KeyedKernel(logits, rows, vocab_size, splits=splits)(logits, rows, requests).token_ids[:, 0].tolist()
        for splits in (1, 3)
    ]
    # Tokens that are listed apart, and keep their logits.
    apart = {token_id: 0.0 for token_id in range(0, vocab_size, 2)}
    changes = kernels.Changes.of([SamplingParams(logit_bias=apart)] * count, [[]] * count, [[]] * count, device=DEVICE)
    kernel = kernels.KeyedKernel(logits, rows, vocab_size, num_exceptions=changes.num_exceptions(rows))
    found.append(kernel(logits, rows, requests, changes=changes).token_ids[:, 0].tolist())
    assert found[0] == found[1] == found[2]
    assert len(set(zip(repeated, found[0], strict=True))) > num_rows


def check_top_p_ties(kernels):
    """Equal probabilities are kept by id."""
    draws_as_the_reference(kernels, logits_of(6, 64, step=2.0), SamplingParams(temperature=1.0, top_p=0.5))


def check_top_p_over_many_tiles(kernels):
    """Tiles that end before a winner's id or begin after it, with many logits equal to the winner's: 2, or 0 and -0."""
    for top_p in (0.3, 0.8):
        params = SamplingParams(temperature=1.0, top_p=top_p)
        draws_as_the_reference(kernels, logits_of(8, 4400, spread=1.0, step=2.0), params)


def check_wide_filter(kernels):
    """Filters that keep more than a list holds."""
    params = SamplingParams(temperature=3.0, top_k=400, top_p=0.8)
    draws_as_the_reference(kernels, logits_of(3, 700, step=0.125), params)


def check_greedy(kernels):
    """The lowest id of equal ones."""
    draws_as_the_reference(kernels, logits_of(3, 600, step=3.0), SamplingParams(temperature=0))


def check_near_ties(kernels):
    """Two tokens whose scores float32 can't tell apart; the higher id has the smaller word, so it wins."""
    vocab_size, num_rows = 1024, 600
    rows = kernels.Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device="cpu")
    requests = kernels.Requests.of([SamplingParams()] * num_rows, [9] * num_rows, device="cpu")
    words, ids = reference.field(rows, requests, vocab_size).sort(dim=1)
    close = (words[:, 1:] - words[:, :-1] < 60) & (words[:, 1:] > 1 << 30) & (words[:, 1:] < 3 << 30)
    close &= ids[:, :-1] > ids[:, 1:]
    found = [(row, place) for row, place in close.nonzero().tolist()][:4]
    assert len(found) == 4
    for row, place in found:
        logits = torch.full((1, vocab_size), -torch.inf)
        logits[0, ids[row, place : place + 2]] = 0.0
        one = kernels.Rows.of_drafts([row], [[]], device=DEVICE)
        given = kernels.Requests.of([SamplingParams()], [9], device=DEVICE)
        token_ids, _ = kernels.draw(logits.bfloat16().to(DEVICE), one, given)
        assert token_ids.item() == ids[row, place].item()


def check_faults(kernels):
    """NaN, an infinite logit and nothing allowed, each in a row of its own, in every kind of row."""
    for params in (SamplingParams(), SamplingParams(top_p=0.5), SamplingParams(top_k=3), SamplingParams(temperature=0)):
        logits = logits_of(4, 300)
        logits[1, 270] = float("nan")
        logits[2, 3] = float("inf")
        logits[3] = -float("inf")
        rows = kernels.Rows.of_drafts([1] * 4, [[]] * 4, device=DEVICE)
        token_ids, faults = kernels.draw(logits, rows, kernels.Requests.of([params] * 4, range(4), device=DEVICE))
        assert faults.tolist() == [0, 1, 1, 2]
        assert [token >= 0 for token in token_ids.tolist()] == [True, False, False, False]


def check_chain(kernels):
    """A draft whose second token misses, and one with a bad row after its first."""
    logits = logits_of(8, 256)
    tokens = [_alone(kernels, logits[index : index + 1], 5 + index % 4, index // 4) for index in range(8)]
    logits[5, 7] = float("nan")
    drafts = [[tokens[0], (tokens[1] + 1) % 256, tokens[2]], [tokens[4], tokens[5], tokens[6]]]
    rows = kernels.Rows.of_drafts([5, 5], drafts, device=DEVICE)
    verdict = kernels.verify_keyed(logits, rows, kernels.Requests.of([SamplingParams()] * 2, [0, 1], device=DEVICE))
    assert verdict.token_ids.tolist() == [[tokens[0], tokens[1], -1, -1], [tokens[4], -1, -1, -1]]
    assert verdict.num_accepted.tolist() == [1, 1]
    assert verdict.accepted_rows.tolist() == [[1, -1, -1, -1], [1, -1, -1, -1]]
    assert verdict.faults.tolist() == [0, 1]


def check_greedy_beside_a_hint(kernels):
    """Greedy requests, one of them with a bad row, in a kernel that was told that there are none."""
    logits = logits_of(6, 600, step=3.0)
    logits[5, 400] = float("nan")
    best = [row.index(max(row)) for row in logits.float().tolist()]
    drafts = [[best[0], best[1] + 1], [best[3], best[4]]]
    rows = kernels.Rows.of_drafts([3, 3], drafts, device=DEVICE)
    mixed = kernels.Requests.of([SamplingParams(), SamplingParams()], [1, 2], device=DEVICE)
    assert mixed.unfiltered
    mixed.temperature.zero_()
    verdict = kernels.KeyedKernel(logits, rows, 600)(logits, rows, mixed)
    assert verdict.token_ids.tolist() == [[best[0], best[1], -1, -1], [best[3], best[4], -1, -1]]
    assert verdict.num_accepted.tolist() == [1, 2]
    assert verdict.faults.tolist() == [0, 1]


def check_chain_fault(kernels):
    """A bad row's token is never drawn: a draft that says -1 at it must not pass it."""
    logits = logits_of(3, 256)
    token = _alone(kernels, logits[:1], 5, 0)
    logits[1, 7] = float("nan")
    rows = kernels.Rows.of_drafts([5], [[token, -1]], device=DEVICE)
    verdict = kernels.verify_keyed(logits, rows, kernels.Requests.of([SamplingParams()], [0], device=DEVICE))
    assert verdict.token_ids.tolist() == [[token, -1, -1, -1]]
    assert verdict.num_accepted.tolist() == [1]
    assert verdict.faults.tolist() == [1]


def check_tree(kernels):
    """The token of the first row is drafted below the wrong parent too, and there it must not count."""
    logits = logits_of(5, 256)
    depths, parents = [0, 1, 2, 1, 2], [-1, 0, -1, 2]
    tokens = [_alone(kernels, logits[index : index + 1], 5 + depth, 0) for index, depth in enumerate(depths)]
    wrong = (tokens[0] + 1) % 256
    draft = [wrong, tokens[0], tokens[0], tokens[3]]
    rows = kernels.Rows.of_drafts([5], [draft], [parents], device=DEVICE)
    verdict = kernels.verify_keyed(logits, rows, kernels.Requests.of([SamplingParams()], [0], device=DEVICE))
    assert verdict.token_ids[0].tolist()[:4] == [tokens[0], tokens[3], tokens[4], -1]
    assert verdict.accepted_rows[0].tolist()[:3] == [3, 4, -1]
    assert verdict.num_accepted.tolist() == [2]


def _alone(kernels, logits, start, seed):
    rows = kernels.Rows.of_drafts([start], [[]], device=DEVICE)
    requests = kernels.Requests.of([SamplingParams()], [seed], device=DEVICE)
    return int(reference.draw(logits, rows, requests, logits.shape[1]).item())
