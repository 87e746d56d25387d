"""The table-driven target: its logits are its law, and its slots are rewound like a model's."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from draftproof.errors import ParameterError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.toy import TableTarget
from draftproof.verify.tables import LawTable, random_pair

TABLE = random_pair("zeros", 3, 3).target


def _probs(*context: int) -> list[float]:
    return [float(prob) for prob in TABLE.probs(context)]


def test_logits_are_the_logarithms_of_the_law() -> None:
    target = TableTarget(TABLE, dtype=torch.float64)
    target.prefill(0, [0, 1])
    (logits,) = target.score([ScoreRequest(0, (2, 0))])
    assert logits.shape == (2, 3)
    assert np.allclose(logits.exp(), [_probs(0, 1, 2), _probs(0, 1, 2, 0)], rtol=1e-15, atol=0)
    assert (target.length(0), target.room(0)) == (4, 4092)


def test_rewind_forgets() -> None:
    target = TableTarget(TABLE, num_slots=2)
    target.prefill(1, [0])
    target.score([ScoreRequest(1, (1, 2, 2))])
    target.rewind(1, 2)
    (logits,) = target.score([ScoreRequest(1, (0,))])
    assert torch.allclose(logits[0].exp(), torch.tensor(_probs(0, 1, 0)))
    assert target.length(0) == 0
    target.release(1)
    assert target.length(1) == 0


def test_trees_see_their_ancestors_only_and_are_cut_to_a_path() -> None:
    target = TableTarget(TABLE)
    target.prefill(0, [0])
    (logits,) = target.score([ScoreRequest(0, (1, 0, 2, 2), (-1, 0, 0, 2))])
    expected = [_probs(0, 1), _probs(0, 1, 0), _probs(0, 1, 2), _probs(0, 1, 2, 2)]
    assert torch.allclose(logits.exp(), torch.tensor(expected))
    with pytest.raises(ParameterError, match="rewind"):
        target.score([ScoreRequest(0, (1,))])
    with pytest.raises(ParameterError, match="path"):
        target.rewind(0, 4)
    target.rewind(0, 4, (0, 2, 3))
    (logits,) = target.score([ScoreRequest(0, (0,))])
    assert torch.allclose(logits[0].exp(), torch.tensor(_probs(0, 1, 2, 2, 0)))


@pytest.mark.parametrize("token_ids", [(3,), (-1,)])
def test_ids_outside_the_vocabulary_are_refused(token_ids: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="token_ids"):
        TableTarget(TABLE).score([ScoreRequest(0, token_ids)])


def test_the_model_length_and_the_slots_are_bounds() -> None:
    target = TableTarget(TABLE, max_model_len=3)
    target.prefill(0, [0, 0])
    with pytest.raises(ParameterError, match=r"room\(0\) = 1"):
        target.prefill(0, [0, 0])
    with pytest.raises(ParameterError, match="slot"):
        target.length(1)


def test_rows_are_a_function_of_seed_and_context_alone() -> None:
    first, second = random_pair("plain", 4, 7), random_pair("plain", 4, 7)
    contexts = [(0,), (0, 1), (0, 1, 3)]
    assert [first.target.probs(c) for c in contexts] == [second.target.probs(c) for c in reversed(contexts)][::-1]
    assert first.target.probs((0,)) != first.target.probs((1,))
    assert sum(first.target.probs((0,))) == 1


def test_a_row_without_a_token_is_refused() -> None:
    with pytest.raises(ParameterError, match="positive"):
        LawTable(2, lambda context: (0, 0)).law(())
    with pytest.raises(ParameterError, match="2 numbers"):
        LawTable(2, lambda context: (1,)).law(())
    with pytest.raises(ParameterError, match="vocab_size"):
        LawTable(0, lambda context: ()).law(())
    assert LawTable(2, lambda context: (1, 3)).probs(()) == (Fraction(1, 4), Fraction(3, 4))
