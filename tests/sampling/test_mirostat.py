"""Mirostat: its state, its cut and its edges; its figures against llama.cpp are in test_llama_cpp.py."""

import math

import numpy as np
import pytest
import torch

from draftproof.errors import LawError, ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.sampling.mirostat import Mirostat
from tests.sampling.test_samplers import QUARTERS


def test_mirostat_needs_its_state_and_moves_it_by_the_token() -> None:
    row = resolve(SamplingParams(mirostat=2, mirostat_tau=1.5, mirostat_eta=0.5), None, 4)
    logits = torch.tensor([QUARTERS], dtype=torch.float64)
    chain = SamplerChain(dtype="float64")
    with pytest.raises(ParameterError, match="first_history"):
        chain.laws(logits, row, [History([0])])
    first = row.first_history([0])
    [law] = chain.laws(logits, row, [first])
    np.testing.assert_allclose(law.at(None, 4), [0.5, 0.25, 0.125, 0.125])  # mu = 3 bits
    with pytest.raises(ParameterError, match="laws=None"):
        first.extended((3,))
    after = first.extended((3,), (law,))
    assert [state.mu for state in after.states] == [3.0 - 0.5 * (3.0 - 1.5)]
    [cut] = chain.laws(logits, row, [after])
    np.testing.assert_allclose(cut.at(None, 4), [2 / 3, 1 / 3, 0, 0])
    assert first.states[0].mu == 3.0  # the earlier history is as it was
    with pytest.raises(LawError, match="no probability"):
        after.extended((3,), (cut,))


@pytest.mark.parametrize("logits", [[0.0] * 5, [5.0, -5.0], [1.0], [0.0] * 200, [-math.inf, 1.0, 2.0], list(range(40))])
@pytest.mark.parametrize("mu", [-1e3, -1.0, 0.0, 1e-9, 3.0, 30.0, 1e4])
@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_a_prefix_of_at_least_one_at_every_limit(logits: list[float], mu: float, version: int) -> None:
    values = np.array(logits, dtype=float)
    scores = values - values.max()
    kept = Mirostat(version, 3.0, 0.1, mu).keeps(scores, np.exp(scores), len(logits))
    assert len(kept) >= 1 and np.all(np.exp(scores[kept]) > 0)
    assert scores[kept].min() >= np.delete(scores, kept).max(initial=-math.inf)


def test_mirostat_one_is_its_formula() -> None:
    ranks = np.arange(1, 51, dtype=float)
    scores = -1.3 * np.log(ranks)  # Zipf's law, whose exponent the fit must find
    kept = Mirostat(1, 3.0, 0.1, 4.0).keeps(scores, np.exp(scores), 50)
    assert len(kept) == int((0.3 * 2**4 / (1 - 50**-0.3)) ** (1 / 1.3))
