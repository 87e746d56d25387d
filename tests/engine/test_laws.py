"""Of a draft's rows those are made that the verifier needs."""

import pytest
import torch

from draftproof.core import Draft
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, laws_along, resolve
from draftproof.verify import get_verifier

V = 12
# Two children of the context, a chain of three below the first, one more child of its second.
PARENTS = (-1, -1, 0, 2, 2)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("presence_penalty", [0.0, 1.5])
def test_a_walk_makes_the_rows_of_its_path_alone(monkeypatch, seed: int, presence_penalty: float) -> None:
    params = SamplingParams(temperature=1.0, presence_penalty=presence_penalty)
    row, history, noise = resolve(params, None, V), History([0]).extended((3,)), KeyedNoise(seed)
    logits = 2.0 * torch.randn(1 + len(PARENTS), V, generator=torch.Generator().manual_seed(seed))
    made, law = [], SamplerChain.law

    def counted(chain, own, *rest, **given):
        made.append(next(index for index, other in enumerate(logits) if torch.equal(own, other)))
        return law(chain, own, *rest, **given)

    # The target's own tokens below the context's first child, so that walks of every length are taken.
    likely = [int(row.argmax()) for row in logits]
    token_ids = (likely[0], (likely[0] + 1) % V, likely[1], likely[3], (likely[3] + 1) % V)
    draft = Draft.of_token_ids(2, token_ids, PARENTS)
    every = list(laws_along(SamplerChain(), logits, row, history, token_ids, PARENTS))
    expected = get_verifier("keyed").verify(draft, every, noise)
    monkeypatch.setattr(SamplerChain, "law", counted)
    rows = laws_along(SamplerChain(), logits, row, history, token_ids, PARENTS)
    verdict = get_verifier("keyed").verify(draft, rows, noise)
    assert verdict.token_ids == expected.token_ids and verdict.path == expected.path
    assert made == [0, *(node + 1 for node in verdict.path)]
