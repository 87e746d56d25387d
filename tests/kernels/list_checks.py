"""What the kernels must do of tokens that they list. As `checks.py`."""

import torch

from draftproof.kernels import reference
from draftproof.params import SamplingParams
from tests.kernels.checks import DEVICE, draws_as_the_reference, logits_of


def check_logits_that_differ_in_their_last_bits(kernels):
    """Whole floats, about ten in each step of a bfloat16: which of them is the k-th, and where top-p ends. In lists
    that are searched at once, and in longer ones."""
    for vocab_size, narrower in ((120, 2), (250, 1)):
        logits = 4.0 + logits_of(24, vocab_size, spread=1.0).float() / 8 / narrower
        logits += logits_of(24, vocab_size, spread=1.0, seed=4).float() / 64 / narrower
        for params in (SamplingParams(top_k=50), SamplingParams(top_k=90, top_p=0.6)):
            draws_as_the_reference(kernels, logits, params)


def check_short_lists(kernels):
    """Ties at the k-th place and where top-p ends; tokens of several tiles, in all places of them."""
    logits = logits_of(12, 120, step=0.25)
    draws_as_the_reference(kernels, logits, SamplingParams(temperature=2.0, top_k=30, top_p=0.5))
    draws_as_the_reference(kernels, logits, SamplingParams(temperature=5.0, top_k=30))
    draws_as_the_reference(kernels, logits_of(12, 120, step=1.0), SamplingParams(temperature=5.0, top_k=30, top_p=0.9))
    draws_as_the_reference(kernels, logits_of(24, 2300), SamplingParams(temperature=4.0, top_k=6))


def check_tiles_of_four_groups(kernels):
    """Tiles of 1,024 tokens, of which a slot has four quads, by packed loads and by others."""
    logits = logits_of(4, 9001)
    params = SamplingParams(temperature=4.0, top_k=5)
    draws_as_the_reference(kernels, logits, params)
    draws_as_the_reference(kernels, logits[:, :9000].contiguous(), params)


def check_more_tiles_than_lanes(kernels):
    """Forty tiles of which 35 hold the likeliest tokens, and some of these two; one has the likeliest, a row's own."""
    num_rows, vocab_size = 3, 40 * 256
    logits = logits_of(num_rows, vocab_size, spread=0.5)
    for row in range(num_rows):
        logits[row, 37 + row : 35 * 256 : 256] += 8.0
        logits[row, 900 + row : 9 * 256 : 512] += 8.0
        logits[row, 37 + row + (34, 33, 20)[row] * 256] += 6.0
    rows = kernels.Rows.of_drafts([5] * num_rows, [[]] * num_rows, device=DEVICE)
    requests = kernels.Requests.of([SamplingParams(top_k=34, top_p=0.9)] * num_rows, range(num_rows), device=DEVICE)
    kernel = kernels.KeyedKernel(logits, rows, vocab_size, tile=256)
    token_ids = kernel(logits, rows, requests).token_ids[:, 0].tolist()
    assert token_ids == reference.draw(logits, rows, requests, vocab_size).tolist()


def check_ties_where_top_p_ends(kernels):
    """Four equal tokens of which top-p keeps two."""
    logits = torch.full((12, 600), -30.0, device=DEVICE)
    logits[:, [7, 120, 300, 590]] = 1.0
    draws_as_the_reference(kernels, logits, SamplingParams(top_k=3, top_p=0.5))


def check_special_tokens_of_many_rows(kernels):
    """More rows than have their special tokens gathered before anything is read."""
    vocab_size, count, up, favourites = 128, 67, 20.0, [5, 60, 100]
    logits = logits_of(count, vocab_size, spread=1.0)
    changed = logits.float()
    changed[:, favourites] += up
    params = SamplingParams(logit_bias=dict.fromkeys(favourites, up), top_k=2)
    rows = kernels.Rows.of_drafts(list(range(count)), [[]] * count, device=DEVICE)
    requests = kernels.Requests.of([params] * count, range(count), device=DEVICE, changed=True)
    changes = kernels.Changes.of([params] * count, [[]] * count, [[]] * count, device=DEVICE)
    verdict = kernels.verify_keyed(logits, rows, requests, changes=changes)
    assert verdict.token_ids[:, 0].tolist() == reference.draw(changed, rows, requests, vocab_size).tolist()


def check_near_ties_of_lists(kernels):
    """Two tokens whose scores float32 can't tell apart, in one lane of a list and in two; the higher id wins."""
    vocab_size, num_rows = 256, 12
    params = SamplingParams(top_k=2)
    rows = kernels.Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device="cpu")
    requests = kernels.Requests.of([params] * num_rows, [9] * num_rows, device="cpu")
    logs = reference.exponential(reference.field(rows, requests, vocab_size)).log()
    for apart in (32, 3):
        logits = torch.full((num_rows, vocab_size), -30.0)
        for row in range(num_rows):
            first, second = 40 + row, 40 + row + apart
            logits[row, first] = 1.0
            gap = (logs[row, second] - logs[row, first]).item()
            z = torch.tensor(1.0 + gap, dtype=torch.float32)
            while z.item() <= 1.0 + gap:
                z = torch.nextafter(z, torch.tensor(torch.inf))
            logits[row, second] = z
        draws = kernels.Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device=DEVICE)
        given = kernels.Requests.of([params] * num_rows, [9] * num_rows, device=DEVICE)
        token_ids, _ = kernels.draw(logits.to(DEVICE), draws, given)
        assert token_ids.tolist() == [40 + row + apart for row in range(num_rows)]
