"""Of a draft's rows those are made that the verifier needs."""

import pytest
import torch

from draftproof.core import Draft, Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, laws_along, resolve
from draftproof.verify import get_verifier

V = 12
# Two children of the context, a chain of three below the first, one more child of its second.
PARENTS, DEPTHS, PATH = (-1, -1, 0, 2, 2), (0, 0, 1, 2, 2), (0, 2, 3)


@pytest.mark.parametrize("length", range(4))
@pytest.mark.parametrize("presence_penalty", [0.0, 1.5])
def test_a_walk_makes_the_rows_of_its_path_alone(monkeypatch, length: int, presence_penalty: float) -> None:
    params = SamplingParams(temperature=1.0, presence_penalty=presence_penalty)
    row, history, noise = resolve(params, None, V), History([0]).extended((3,)), KeyedNoise(length)
    logits = torch.randn(1 + len(PARENTS), V, generator=torch.Generator().manual_seed(length))
    made, law = [], SamplerChain.law

    def counted(chain, own, *rest, **given):
        made.append(next(index for index, other in enumerate(logits) if torch.equal(own, other)))
        return law(chain, own, *rest, **given)

    # The target's own tokens as far as the walk is to go, and others that it doesn't draw.
    token_ids: list[int] = []
    for node in range(len(PARENTS)):
        found = laws_along(SamplerChain(), logits[: 1 + node], row, history, token_ids, PARENTS[:node])
        law_before, position = found[PARENTS[node] + 1], 2 + DEPTHS[node]
        own = law_before.draw(noise, Key(Purpose.TARGET, position))
        token_ids.append(own if node in PATH[:length] else (own + 1 + node) % V)
    draft = Draft.of_token_ids(2, token_ids, PARENTS)
    every = list(laws_along(SamplerChain(), logits, row, history, token_ids, PARENTS))
    expected = get_verifier("keyed").verify(draft, every, noise)
    monkeypatch.setattr(SamplerChain, "law", counted)
    rows = laws_along(SamplerChain(), logits, row, history, token_ids, PARENTS)
    verdict = get_verifier("keyed").verify(draft, rows, noise)
    assert verdict.token_ids == expected.token_ids and verdict.path == expected.path
    assert verdict.path == PATH[:length]
    assert made == [0, *(node + 1 for node in verdict.path)]
