"""What the kernels must do of rows that a walk may come to or not. As `checks.py`."""

import torch

from draftproof.kernels import reference
from draftproof.params import SamplingParams
from tests.kernels.checks import DEVICE, logits_of


def check_rows_that_no_walk_was_likely_to_come_to(kernels):
    """Drafts of the rows' own tokens, before which three contenders are often dropped: rows behind them weren't summed.

    One request's first row surely draws another token than is drafted, so that none of its others is summed.
    """
    count, length, vocab_size = 6, 3, 1280
    logits = logits_of(count * (length + 1), vocab_size, spread=1.0)
    logits[2 * (length + 1), 77] = 30.0
    requests = kernels.Requests.of([SamplingParams(top_p=0.2)] * count, range(count), device=DEVICE)
    blank = kernels.Rows.of_drafts([5] * count, [[0] * length] * count, device=DEVICE)
    own = reference.draw(logits, blank, requests, vocab_size).view(count, length + 1).tolist()
    drafts = [tokens[:length] for tokens in own]
    drafts[2] = [(own[2][0] + 1) % vocab_size, *own[2][1:length]]
    for parents in (None, [[-1, 0, 1]] * count):
        rows = kernels.Rows.of_drafts([5] * count, drafts, parents, device=DEVICE)
        kernel = kernels.KeyedKernel(logits, rows, vocab_size, splits=5)
        verdict = kernel(logits, rows, requests)
        expected = [tokens if index != 2 else [tokens[0], -1, -1, -1] for index, tokens in enumerate(own)]
        assert verdict.token_ids.tolist() == expected
        num_summed = kernel._scratch[11].view(count, length + 1, 4)[:, :, 3]
        was_summed = num_summed > 0
        assert not was_summed[2, 1:].any()
        assert 0 < int(was_summed[:, 1:].sum()) < (count - 1) * length


def check_branches_are_summed_by_their_own_paths(kernels):
    """A node whose sibling misses, and one below a node that does."""
    vocab_size, parents = 600, [-1, -1, 1, 0]
    logits = logits_of(20, vocab_size, spread=1.0)
    requests = kernels.Requests.of([SamplingParams(top_p=0.5)] * 4, range(4), device=DEVICE)
    blank = kernels.Rows.of_drafts([5] * 4, [[0] * 4] * 4, [parents] * 4, device=DEVICE)
    own = reference.draw(logits, blank, requests, vocab_size).view(4, 5).tolist()
    drafts = [[(tokens[0] + 7) % vocab_size, tokens[0], tokens[2], tokens[1]] for tokens in own]
    rows = kernels.Rows.of_drafts([5] * 4, drafts, [parents] * 4, device=DEVICE)
    verdict = kernels.verify_keyed(logits, rows, requests)
    assert verdict.token_ids[:, :4].tolist() == [[tokens[0], tokens[2], tokens[3], -1] for tokens in own]
    assert torch.equal(verdict.num_accepted.cpu(), torch.full((4,), 2, dtype=torch.int32))
