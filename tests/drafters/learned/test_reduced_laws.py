"""Laws of a reduced vocabulary: those of its logits, expanded with -inf, whichever way they are computed."""

import numpy as np
import pytest
import torch

from draftproof.core import Dense, PointMass, Sparse
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.drawing import Drawing
from draftproof.drafters.learned.turn import Turn
from draftproof.drafters.learned.vocab import VocabMap
from draftproof.errors import LawError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain

SIZE, REDUCED = 400, 120
CONTEXT = [3, 18, 9, 21, 18]
BLIND = {
    "argmax": {"temperature": 0.0},
    "everything": {"temperature": 0.7},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "top-k and min-p": {"temperature": 1.3, "top_k": 9, "min_p": 0.01},
    "typical": {"temperature": 1.0, "typical_p": 0.6},
}
LOOKING = {
    "bias": {"temperature": 1.0, "logit_bias": {6: 4.0, 9: 5.0}},
    "penalty": {"temperature": 1.0, "repetition_penalty": 1.8},
    "allowed": {"temperature": 1.0, "allowed_token_ids": [9, 12, 300]},
    "no repeats": {"temperature": 1.0, "no_repeat_ngram_size": 2},
    "argmax with a penalty": {"temperature": 0.0, "repetition_penalty": 5.0},
    "shortest": {"temperature": 1.0, "min_tokens": 4, "stop_token_ids": [9]},
}


def vocabulary(ascending=True):
    ids = torch.arange(0, 3 * REDUCED, 3)
    return VocabMap(ids if ascending else ids.flip(0), SIZE, "here")


def check_laws(given, vocab):
    chain = SamplerChain()
    params = chain.resolve(SamplingParams(**given), None, SIZE)
    request = DraftRequest(0, CONTEXT, 4, KeyedNoise(4), True, params, History(CONTEXT))
    generator, drawing = torch.Generator().manual_seed(2), Drawing(chain, argmax_by_default=False)
    for _ in range(30):
        logits = 2 * torch.randn(1, REDUCED, generator=generator)
        # The tokens that the parameters name are among the likely ones.
        logits[0, :8] += 3.0
        turn = Turn(request, 4)
        [expected] = drawing.laws("dspark", [turn], vocab.expand(logits))
        drawn_ids = drawing.draw(turn.draft, expected, request).token_ids
        for listed in (False, True):
            [found] = drawing.laws("dspark", [turn], logits, vocab, listed=listed)
            np.testing.assert_allclose(found.at(None, SIZE), expected.at(None, SIZE), rtol=2e-6, atol=0)
            assert drawing.draw(turn.draft, found, request).token_ids == drawn_ids


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("name", BLIND | LOOKING)
def test_laws_are_those_of_the_expanded_logits(name, ascending):
    check_laws((BLIND | LOOKING)[name], vocabulary(ascending))


@pytest.mark.parametrize("name", BLIND | LOOKING)
def test_which_laws_are_computed_over_the_reduced_vocabulary_alone(name, monkeypatch):
    """As a mutant: if all were, those that look at ids would be others; and those that don't never need more."""
    monkeypatch.setattr(SamplerChain, "is_blind_to_ids", lambda chain, params: True)
    if name in BLIND:
        check_laws(BLIND[name], vocabulary())
    else:
        with pytest.raises((AssertionError, IndexError)):
            check_laws(LOOKING[name], vocabulary())


def test_blind_parameters_never_expand(monkeypatch):
    vocab = vocabulary()
    monkeypatch.setattr(VocabMap, "expand", None)
    chain = SamplerChain()
    drawing, kinds = Drawing(chain, argmax_by_default=False), []
    for given in BLIND.values():
        params = chain.resolve(SamplingParams(**given), None, SIZE)
        request = DraftRequest(0, CONTEXT, 4, KeyedNoise(4), True, params, History(CONTEXT))
        [law] = drawing.laws("dspark", [Turn(request, 4)], torch.linspace(0, 9, REDUCED)[None], vocab)
        kinds.append(type(law))
    assert set(kinds) == {PointMass, Dense, Sparse}


def test_a_listed_law_is_over_the_drafters_own_ids():
    """Whose array is one: scores of trees remember noise by it."""
    chain, vocab = SamplerChain(), vocabulary()
    drawing = Drawing(chain, argmax_by_default=False)
    params = chain.resolve(SamplingParams(temperature=1.0), None, SIZE)
    request = DraftRequest(0, CONTEXT, 4, KeyedNoise(4), True, params, History(CONTEXT))
    logits = torch.linspace(0, 9, REDUCED)[None]
    [law] = drawing.laws("eagle3", [Turn(request, 4)], logits, vocab, listed=True)
    assert isinstance(law, Sparse) and law.weights()[1] is vocab.ascending_ids
    [law] = drawing.laws("eagle3", [Turn(request, 4)], logits, vocab)
    assert isinstance(law, Dense)


def test_tokens_beyond_the_requests_vocabulary_are_cut_off():
    """A model whose logits are padded: the request's tokens are fewer than the drafter's reach."""
    chain, vocab = SamplerChain(), vocabulary()
    params = chain.resolve(SamplingParams(temperature=0.0), None, 90)
    request = DraftRequest(0, CONTEXT, 4, KeyedNoise(4), True, params, History(CONTEXT))
    drawing = Drawing(chain, argmax_by_default=False)
    [law] = drawing.laws("dspark", [Turn(request, 4)], torch.linspace(0, 9, REDUCED)[None], vocab)
    assert law == PointMass(87)


def test_nan_names_the_drafter_and_the_place():
    chain, vocab = SamplerChain(), vocabulary()
    params = chain.resolve(SamplingParams(temperature=0.0), None, SIZE)
    request = DraftRequest(0, CONTEXT, 4, KeyedNoise(4), True, params, History(CONTEXT))
    logits = torch.full((1, REDUCED), torch.nan)
    with pytest.raises(LawError, match="drafter dspark, slot 0"):
        Drawing(chain, argmax_by_default=False).laws("dspark", [Turn(request, 4)], logits, vocab)
