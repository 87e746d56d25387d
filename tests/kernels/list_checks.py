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
