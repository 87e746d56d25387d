"""The losses and figures by hand, on three tokens."""

import pytest
import torch

from draftproof.train.losses import Weights, accepted_lengths, choose_temperatures, chosen_weights, compare

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


def test_compared_at_another_temperature():
    """At temperature 1/2 both laws are squared and normed; each position has its own."""
    cold_p, cold_q = (law.square() / law.square().sum() for law in (P, Q))
    pair = compare(
        Q.log().expand(2, 3),
        P.log().expand(2, 3),
        torch.tensor([1, 1]),
        Weights(tv=1.0),
        temperatures=torch.tensor([1.0, 0.5]),
    )
    assert pair.loss.tolist() == pytest.approx([0.2, float(0.5 * (cold_p - cold_q).abs().sum())])


def test_temperatures_are_drawn_for_each_position_and_for_training_alone():
    like, generator = torch.zeros(400), torch.Generator().manual_seed(1)
    found = choose_temperatures((1.0, 0.5), like, generator)
    assert sorted(set(found.tolist())) == [0.5, 1.0] and 140 < int((found == 0.5).sum()) < 260
    assert choose_temperatures((1.0,), like, generator) is None
    with torch.no_grad():
        assert choose_temperatures((1.0, 0.5), like, generator) is None


def test_losses_by_name():
    assert chosen_weights("cross-entropy", False) == Weights(soft=1.0)
    assert chosen_weights("cross-entropy", True) == Weights(hard=1.0)
    assert chosen_weights("distance", False) == Weights(soft=0.1, tv=1.8)
    assert chosen_weights("distance", True) == Weights(hard=0.1, tv=1.8)
