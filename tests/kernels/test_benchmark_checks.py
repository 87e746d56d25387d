"""What the kernels' benchmarks time: drafts that are accepted as far as they say, and laws checked before."""

import torch

from benchmarks.verify import drafts_of
from benchmarks.verify_ratio import is_law

BEFORE = torch.tensor([[0.5, 0.3, 0.2 - 1e-9, 1e-9]], dtype=torch.float64)


def over(*kept: bool) -> torch.Tensor:
    mass = torch.where(torch.tensor([kept]), BEFORE, 0.0)
    return mass / mass.sum()


def test_drafts_are_the_rows_own_tokens_up_to_where_they_are_accepted() -> None:
    own = [[3, 9, 4, 1], [7, 9, 0, 5]]
    assert drafts_of(own, 0, 10) == [[4, 0, 5], [8, 0, 1]]
    assert drafts_of(own, 2, 10) == [[3, 9, 5], [7, 9, 1]]
    assert drafts_of(own, 3, 10) == [[3, 9, 4], [7, 9, 0]]


def test_a_law_is_one() -> None:
    law = over(True, True, False, False)
    assert is_law(law.float(), law, BEFORE, 0.7)
    assert not is_law(law.float() + torch.tensor([[2e-6, 0.0, 0.0, 0.0]]), law, BEFORE, 0.7)


def test_only_near_ties_may_keep_other_tokens() -> None:
    fewer, more = over(True, True, False, False), over(True, True, True, False)
    for out, law in ((fewer, more), (more, fewer)):
        assert is_law(out.float(), law, BEFORE, 0.8 + 5e-7)
        assert is_law(out.float(), law, BEFORE, 0.8 - 5e-7)
        assert not is_law(out.float(), law, BEFORE, 0.8 + 1e-5)
        assert not is_law(out.float(), law, BEFORE, 0.8 - 1e-5)
    assert not is_law(over(True, False, True, False).float(), fewer, BEFORE, 0.8)


def test_a_wrong_normaliser_is_found() -> None:
    law = over(True, True, True, True)
    assert not is_law((law * 1.00001).float(), law, BEFORE, 1.0)
