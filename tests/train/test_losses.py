"""The losses and figures by hand, on three tokens."""

import pytest
import torch

from draftproof.train.losses import Weights, accepted_lengths, compare

P, Q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.25, 0.25])


def test_by_hand():
    found = compare(Q.log(), P.log(), torch.tensor(1), Weights(hard=2.0, soft=3.0, tv=5.0))
    cross = -float((P * Q.log()).sum())
    assert float(found.overlap) == pytest.approx(0.5 + 0.2 + 0.1)
    assert float(found.loss) == pytest.approx(2.0 * -float(Q[1].log()) + 3.0 * cross + 5.0 * 0.2)
    assert bool(found.agrees)


def test_reduced_vocabulary_counts_what_it_lacks():
    """Tokens 0 and 2 alone: the mass of token 1 is distance; a label that isn't there is no hard loss."""
    half, ids = torch.tensor([0.5, 0.5]), torch.tensor([0, 2])
    found = compare(half.log(), P.log(), torch.tensor(1), Weights(hard=1.0, tv=1.0), ids)
    assert float(found.overlap) == pytest.approx(0.5 + 0.1)
    assert float(found.loss) == pytest.approx(1.0 - 0.6)
    assert float(compare(half.log(), P.log(), torch.tensor(2), Weights(hard=1.0), ids).loss) == pytest.approx(
        0.6931, abs=1e-4
    )


def test_accepted_lengths():
    rates = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.9, 0.9]])
    valid = torch.tensor([[True, True], [True, True], [False, False]])
    assert float(accepted_lengths(rates, valid)) == pytest.approx(((1 + 0.5 + 0.25) + 2.0) / 2)
    assert float(accepted_lengths(rates, torch.zeros_like(valid))) == 1.0


def test_fused_is_the_same():
    """The compiled comparison and its gradient, with a reduced vocabulary."""
    generator = torch.Generator().manual_seed(0)
    target, draft = (torch.randn(6, size, generator=generator) for size in (11, 5))
    ids, token_ids, found = torch.tensor([0, 2, 3, 7, 10]), torch.arange(6), []
    for fused in (False, True):
        own = draft.clone().requires_grad_(True)
        compared = compare(own, target, token_ids, Weights(hard=0.3, soft=1.0, tv=0.5), ids, fused=fused)
        compared.loss.sum().backward()
        found.append((compared.loss.detach(), compared.overlap, compared.agrees, own.grad))
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain)
